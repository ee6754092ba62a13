"""`Expression`: a parsed condition, ready to be evaluated over a state. The language is told in the package's docstring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dwarf.errors import ExpressionError
from dwarf.expression.compile import TRUE, Steps, compile_code
from dwarf.expression.nodes import PATTERNS, Code, Compare, Name, Text, operands
from dwarf.expression.parser import parse
from dwarf.expression.patterns import PatternError, compile_pattern
from dwarf.expression.printer import render
from dwarf.expression.problems import pattern_problem, syntax_problem
from dwarf.limits import EXPRESSION_CHARS_MAX

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class Expression:
    """A condition. Immutable; two are equal when they have the same structure, whatever their spelling and blanks.

    Construction judges the whole text and raises `ExpressionError`; only patterns are judged later, when they are reached or
    when `bad_pattern` is asked. `str()` gives the canonical spelling, which parses to an equal expression (unless its
    blanks make it longer than a condition may be).
    """

    __slots__ = ("_code", "_pattern_offsets", "_rereads", "_start", "_steps", "_text")

    def __init__(self, text: str) -> None:
        _check(text)
        self._text = text
        self._code, self._pattern_offsets = parse(text)
        self._steps: Steps | None = None
        self._start = TRUE
        self._rereads = False

    @property
    def text(self) -> str:
        """The text as it was given."""
        return self._text

    @property
    def fields(self) -> frozenset[str]:
        """The fields of the state that evaluation may read: the first part of each name in the text."""
        return frozenset(_fields(self._code))

    @property
    def patterns(self) -> tuple[tuple[str, int], ...]:
        """The literal patterns, from left to right, each with the offset of its opening quote in `text`."""
        matches = [node for node in self._code if isinstance(node, Compare) and node.operator in PATTERNS]
        pairs = zip(matches, self._pattern_offsets, strict=True)
        return tuple((match.right.value, offset) for match, offset in pairs if isinstance(match.right, Text))

    def bad_pattern(self) -> str | None:
        """Return what is wrong with the first literal pattern that RE2 refuses, or None."""
        for pattern, offset in self.patterns:
            try:
                compile_pattern(pattern)
            except PatternError as error:
                return str(pattern_problem(pattern, str(error), text=self._text, offset=offset))
        return None

    def evaluate(self, state: Mapping[str, Any]) -> bool:
        """Return whether the condition holds over `state`, whose `get` gives the decoded value of a field or None.

        Asks for a field only when it is reached, and once. Raises `ExpressionError` (rule `expression-pattern`) on reaching
        a pattern that RE2 refuses while both sides are text.
        """
        steps = self._steps
        if steps is None:
            steps = self._compile()
        get: Callable[[str], Any] = _Once(state.get).__getitem__ if self._rereads else state.get
        at = self._start
        while at >= 0:
            test, yes, no = steps[at]
            at = yes if test(get) else no
        return at == TRUE

    def _compile(self) -> Steps:
        fields = _fields(self._code)
        self._rereads = len(set(fields)) < len(fields)
        steps, self._start = compile_code(self._code, self._text, self._pattern_offsets)
        self._steps = steps  # last, since another thread that sees it relies on the other two
        return steps

    def __eq__(self, other: object) -> bool:
        return self._code == other._code if isinstance(other, Expression) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._code)

    def __str__(self) -> str:
        return render(self._code)

    def __repr__(self) -> str:
        return f"Expression({self._text!r})"

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return Expression, (self._text,)


class _Once(dict[str, Any]):
    """The fields read so far in one evaluation, since decoding a field may be costly."""

    __slots__ = ("_get",)

    def __init__(self, get: Callable[[str], Any]) -> None:
        super().__init__()
        self._get = get

    def __missing__(self, field: str) -> Any:
        value = self[field] = self._get(field)
        return value


def _fields(code: Code) -> list[str]:
    return [operand.field for node in code for operand in operands(node) if isinstance(operand, Name)]


def _check(text: object) -> None:
    if not isinstance(text, str):
        raise ExpressionError(f"a condition must be text, not {type(text).__name__}", rule="expression-type")
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(
            f"the condition {text[:40] + '…'!r} has {len(text)} characters; at most {EXPRESSION_CHARS_MAX} are allowed",
            text=text[:EXPRESSION_CHARS_MAX],
            offset=EXPRESSION_CHARS_MAX,
            rule="expression-length",
        )
    if half := _HALF_PAIR.search(text):
        raise syntax_problem("half a surrogate pair is no character", text, half.start())
