"""The language of conditions: a small boolean language over the fields of a flow's state.

    severity >= 3 && (status == 'open' || tags.urgent) && !(owner =~ '^bot-')

Grammar (blanks are space, tab, newline and carriage return, and may stand around any token)::

    or         := and { "||" and }
    and        := term { "&&" term }
    term       := comparison | { "!" } primary
    comparison := operand op operand            exactly one op: == != < <= > >= =~ !~
    primary    := "(" or ")" | operand
    operand    := quoted text | number | true | false | name

So `!n == 5` and `(n) == 5` are errors; write `!(n == 5)` and `n == 5`.

Literals win over fields of the same name. Quoted text stands between two ' or " or ` and is taken as it is: there are no
escapes. Numbers are `5 05 -5 +5 .5 5. 2.5 1e3 1.5E-3`; digits alone are an integer, exact at any size, all others are the
nearest double. `true` and `false` are constants in any case. Any other run of ASCII letters, digits and underscores is a
name, also `5a`, `1_000`, `0x10`, `inf` and `null`; single dots join names, so `2.5.a` is a name of three parts.

A name `a.b.c` takes field `a` of the state, then goes into objects by key. When it comes to a list, what is left of the
name is compared with the text of each element: `roles.admin` and `ids.2.5` are true when some element's text is `admin` or
`2.5`, and absent otherwise. Text has itself as text, numbers and booleans their JSON text (a whole float also its digits
without the fraction), null, lists and objects none. When these steps lead to nothing, an object met on the way may answer
with a key that equals all that is left of the name, dots included; the innermost such object wins.

Values. Absent and null are one value. A number equals and is ordered with a number, by exact value; text with text, by code
point. Booleans, and null with null, can only be equal. Lists and objects equal nothing, themselves included. Values of
different types are never equal and never ordered; `<=` and `>=` hold for whatever is equal; `!=` is always the opposite of
`==`. `=~` searches for an RE2 pattern anywhere in the text, `!~` holds when it is not found; both are false unless both
sides are text. A value alone is true unless it is absent, null, false, zero, or empty text, list or object.

Evaluation goes from left to right, and stops as soon as the answer is known. The package never reads anything but the state
it is given.
"""

from __future__ import annotations

from dwarf.expression.expression import Expression

__all__ = ["Expression"]
