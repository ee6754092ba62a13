"""Conditions as deep and as wide as their length allows: parsed, printed, compared, hashed, copied, evaluated and freed."""

from __future__ import annotations

import copy
import gc

import pytest

from dwarf.errors import ExpressionError
from dwarf.expression import Expression
from dwarf.limits import EXPRESSION_CHARS_MAX

N = 8_000

DEEP = {
    "parentheses": "(" * N + "a" + ")" * N,
    "nots": "!" * (2 * N) + "a",
    "nots of parts": "!(" * 5_000 + "a" + ")" * 5_000,
    "right-nested": "a&&(b||(" * 1_600 + "a" + "))" * 1_600,
    "left-nested": "((" * 1_600 + "a" + "||b)&&a)" * 1_600,
    "nested nots": "!(b||!(a&&" * 1_300 + "a" + "))" * 1_300,
    "both ends": "(b||(a&&" * 1_600 + "b" + "))" * 1_600,
    "wide and": "&&".join(["a"] * 5_000),
    "wide or": "||".join(["b"] * 5_000 + ["a"]),
    "wide of wides": "||".join(["(b&&a||b)"] * 1_400 + ["a"]),
    "wide comparisons": "||".join(["b==1"] * 2_500 + ["a"]),
}


@pytest.mark.row("D-08")
@pytest.mark.parametrize("shape", sorted(DEEP))
def test_depth_and_width_are_bounded_by_length_alone(shape: str) -> None:
    text = DEEP[shape]
    assert len(text) <= EXPRESSION_CHARS_MAX
    expression = Expression(text)
    answers = [expression.evaluate({"a": a, "b": b}) for a in (True, False) for b in (True, False)]
    canonical = Expression(str(expression)) if len(str(expression)) <= EXPRESSION_CHARS_MAX else None
    if canonical is not None:
        assert canonical == expression
        assert hash(canonical) == hash(expression)
        assert [canonical.evaluate({"a": a, "b": b}) for a in (True, False) for b in (True, False)] == answers
    assert Expression(text) == expression
    assert copy.deepcopy(expression) == expression
    assert expression.fields <= {"a", "b"}
    del expression, canonical
    gc.collect()


@pytest.mark.parametrize(
    "text",
    [
        "(" * EXPRESSION_CHARS_MAX,
        ")" * EXPRESSION_CHARS_MAX,
        "!" * EXPRESSION_CHARS_MAX,
        "(" * N + "a" + ")" * (N - 1),
        "(" * N + "a" + ")" * (N + 1),
        "a" + "&&(" * 5_000,
        "a." * N,
        "'" + "a" * (EXPRESSION_CHARS_MAX - 1),
        "1" * (EXPRESSION_CHARS_MAX - 1) + "é",
        "1." * N,
        "a " * N,
        "a==" * 5_000,
        "&" * EXPRESSION_CHARS_MAX,
        "-" * EXPRESSION_CHARS_MAX,
        "''" * N,
        "!(" * N,
        "é" * EXPRESSION_CHARS_MAX,
    ],
)
def test_long_mistakes_are_errors_like_short_ones(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert len(str(caught.value)) < 400


def test_the_parity_of_nots() -> None:
    for count in (1, 2, 999, 1_000, 9_999, 10_000):
        assert Expression("!" * count + "a").evaluate({"a": 1}) is (count % 2 == 0)
        depth = min(count, 5_000 + count % 2)
        assert Expression("!(" * depth + "a" + ")" * depth).evaluate({"a": 1}) is (depth % 2 == 0)


def test_constants_fold_at_any_depth() -> None:
    depth = 1_500
    assert Expression("true&&(" * depth + "a" + ")" * depth).evaluate({"a": 1})
    assert not Expression("(" * depth + "a" + "&&false)" * depth).evaluate({"a": 1})
    assert Expression("!(false||!(" * 1_200 + "true" + "))" * 1_200).evaluate({})
