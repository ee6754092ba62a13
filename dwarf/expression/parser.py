"""Turns the text of a condition into `Code`, the flat form that `nodes` describes; judges all of the text.

The parser keeps its open parentheses on a list of its own, so their depth is bounded by the text alone.
"""

from __future__ import annotations

import math

from dwarf.errors import ExpressionError
from dwarf.expression.lexer import END, NUMBER, QUOTED, WORD, scan
from dwarf.expression.nodes import (
    COMPARISONS,
    PATTERNS,
    And,
    Code,
    Compare,
    Constant,
    Name,
    Node,
    Not,
    Number,
    Operand,
    Or,
    Text,
    Truth,
)
from dwarf.expression.problems import shorten, syntax_problem

INTEGER_DIGITS_MAX = 4300  # as many as Python converts from text and back by default

_VALUES = (NUMBER, WORD, QUOTED)
_CONSTANTS = {"true": Constant(True), "false": Constant(False)}
_WORDS_FOR = {"and": "&&", "or": "||", "not": "!"}


def parse(text: str) -> tuple[Code, tuple[int, ...]]:
    """Return the code of `text`, and where the right side of each `=~` and `!~` starts, from left to right."""
    parser = _Parser(text)
    parser.run()
    return tuple(parser.code), tuple(parser.pattern_offsets)


class _Group:
    """An open parenthesis, or the whole text: what of it has been read."""

    __slots__ = ("chains", "is_negated", "offset", "terms")

    def __init__(self, offset: int, is_negated: bool) -> None:
        self.offset = offset
        self.is_negated = is_negated
        self.terms = 1  # joined by && since the last ||
        self.chains = 1  # joined by ||


class _Parser:
    __slots__ = ("_groups", "_kind", "_offset", "_text", "_token", "_tokens", "code", "pattern_offsets")

    def __init__(self, text: str) -> None:
        self.code: list[Node] = []
        self.pattern_offsets: list[int] = []
        self._text = text
        self._groups = [_Group(0, False)]
        self._tokens = scan(text)
        self._advance()

    def run(self) -> None:
        if self._kind == END:
            raise self._problem("it is empty; to hold always, write true")
        while True:
            self._term()
            while self._kind == ")":
                self._close()
            if self._kind == "||":
                self._join_terms()
                self._groups[-1].chains += 1
            elif self._kind == "&&":
                self._groups[-1].terms += 1
            else:
                break
            self._advance()
        self._finish()

    def _advance(self) -> None:
        self._kind, self._token, self._offset = next(self._tokens)

    def _problem(self, reason: str, offset: int | None = None) -> ExpressionError:
        return syntax_problem(reason, self._text, self._offset if offset is None else offset)

    def _term(self) -> None:
        is_negated = follows_not = False
        while self._kind in ("!", "("):
            if self._kind == "!":
                is_negated = not is_negated
                follows_not = True
            else:
                self._groups.append(_Group(self._offset, is_negated))
                is_negated = follows_not = False
            self._advance()
        self._leaf(is_negated=is_negated, follows_not=follows_not)

    def _leaf(self, *, is_negated: bool, follows_not: bool) -> None:
        left = self._operand()
        if self._kind not in COMPARISONS:
            self.code.append(Truth(left))
            if is_negated:
                self._negate()
            return
        if follows_not:
            raise self._problem("! takes one value or a part in parentheses; write !(a == b), not !a == b")
        operator = self._kind
        self._advance()
        if operator in PATTERNS:
            self.pattern_offsets.append(self._offset)
        self.code.append(Compare(left, operator, self._operand()))
        if self._kind in COMPARISONS:
            raise self._problem("comparisons do not chain; join two of them with &&")

    def _operand(self) -> Operand:
        operand: Operand
        if self._kind == QUOTED:
            operand = Text(self._token[1:-1])
        elif self._kind == WORD:
            operand = _CONSTANTS.get(self._token.lower()) or Name(self._token)
        elif self._kind == NUMBER:
            operand = self._number()
        elif self._kind == END:
            raise self._problem("a value is missing at the end")
        else:
            raise self._problem(f"a value is missing before {self._token!r}")
        self._advance()
        return operand

    def _number(self) -> Number:
        digits = self._token.lstrip("+-").lstrip("0") or "0"
        if digits.isdecimal():
            try:
                value = int(digits) if len(digits) <= INTEGER_DIGITS_MAX else None
            except ValueError:  # a process may be set to convert fewer digits
                value = None
            if value is None:
                raise self._problem(f"the integer {shorten(digits)} has {len(digits)} digits; at most {INTEGER_DIGITS_MAX} are allowed")
            return Number(-value if self._token[0] == "-" else value)
        fraction = float(self._token)
        if math.isinf(fraction):
            raise self._problem(f"the number {shorten(self._token)} is too large for a double")
        return Number(fraction)

    def _negate(self) -> None:
        if isinstance(self.code[-1], Not):
            self.code.pop()
        else:
            self.code.append(Not())

    def _join_terms(self) -> None:
        group = self._groups[-1]
        if group.terms > 1:
            self.code.append(And(group.terms))
            group.terms = 1

    def _join(self) -> None:
        self._join_terms()
        if self._groups[-1].chains > 1:
            self.code.append(Or(self._groups[-1].chains))

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise self._problem("this ) closes nothing")
        self._join()
        if self._groups.pop().is_negated:
            self._negate()
        self._advance()
        if self._kind in COMPARISONS:
            raise self._problem("a part in parentheses cannot be compared; compare values")

    def _finish(self) -> None:
        if self._kind != END:
            raise self._problem(self._surplus())
        if len(self._groups) > 1:
            raise self._problem("this ( is never closed", self._groups[-1].offset)
        self._join()

    def _surplus(self) -> str:
        """Say what is wrong with the present token, which follows a whole term."""
        word = self._token.lower()
        if word in _WORDS_FOR:
            return f"{self._token!r} is not an operator; write {_WORDS_FOR[word]}"
        if self._kind == "(":
            return "an operator is missing before this (; there are no function calls"
        if self._kind in _VALUES:
            arithmetic = "; there is no arithmetic" if self._token[0] in "+-" else ""
            return f"an operator is missing before {shorten(self._token)}{arithmetic}"
        return f"an operator is missing before {self._token!r}"
