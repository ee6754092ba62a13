"""Cuts the text of a condition into tokens; knows how tokens are spelled, not how they follow each other.

A token is `(kind, text, offset)`. Its kind is NUMBER, WORD (a name or a constant), QUOTED, END, or the symbol itself. Time is
linear in the text: every repetition in the pattern is possessive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dwarf.expression.problems import shorten, syntax_problem

NUMBER = "number"
WORD = "word"
QUOTED = "quoted"
END = "end"

Token = tuple[str, str, int]

_BLANKS = re.compile(r"[ \t\n\r]*+")
_TOKEN = re.compile(
    r"""
      (?P<number> [+-]? (?: [0-9]++ (?: \. [0-9]*+ )? | \. [0-9]++ ) (?: [eE] [+-]? [0-9]++ )? (?! [\w.] ) )
    | (?P<word> \w++ (?: \. \w++ )*+ )
    | (?P<quoted> ' [^']*+ ' | " [^"]*+ " | ` [^`]*+ ` )
    | (?P<symbol> && | \|\| | == | != | <= | >= | =~ | !~ | [<>!()] )
    """,
    re.ASCII | re.VERBOSE,
)

_ADVICE = {
    "&": "a single & is not an operator; write && for and",
    "|": "a single | is not an operator; write || for or",
    "=": "a single = is not an operator; write == to compare",
    "~": "~ is not an operator; write =~ to match a pattern and !~ for the opposite",
    ".": "a dot stands only inside a number or between two parts of a name",
    "[": "there is no indexing; names go into objects and lists by dots",
    "]": "there is no indexing; names go into objects and lists by dots",
    "\\": "a backslash stands only inside quotes, where it is an ordinary character",
} | {sign: f"there is no arithmetic; {sign!r} is not an operator" for sign in "+-*/%^"}


def scan(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, END last. Raises `ExpressionError` on reaching what is no token."""
    at = 0
    while True:
        blanks = _BLANKS.match(text, at)
        at = blanks.end() if blanks else at
        if at == len(text):
            yield END, "", at
            return
        found = _TOKEN.match(text, at)
        if found is None:
            raise syntax_problem(_reason(text, at), text, at)
        token = found.group()
        kind = found.lastgroup or ""
        yield token if kind == "symbol" else kind, token, at
        at = found.end()


def _reason(text: str, at: int) -> str:
    char = text[at]
    if char in "'\"`":
        return f"the text {shorten(text[at:])!r} has no closing {char}"
    if char in _ADVICE:
        return _ADVICE[char]
    if char.isalnum():
        return f"{char!r} cannot be part of a name; names have letters A-Z a-z, digits and underscores"
    if char.isspace():
        return f"only space, tab, newline and carriage return may stand between tokens, not {char!r}"
    return f"{char!r} has no meaning outside quotes"
