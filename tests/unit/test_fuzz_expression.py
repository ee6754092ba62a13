"""Random conditions against an evaluator written from the rows alone, and random texts that are mostly no conditions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dwarf.errors import ExpressionError
from dwarf.expression import Expression

Tree = tuple[Any, ...]

NAMES = ["a", "b", "c", "5a", "_", "a.x", "a.x.y", "a.2.5", "b.k", "a.1", "b.true", "c.x"]
WORDS = ["", "x", "k", "true", "1", "2.5", "x.y", "ab", "é", "😀"]
PATTERNS = ["x", "^a", "b$", "", "(a|k)", "[^x]", "."]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">=", "=~", "!~"]

numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, 10**25, 2.5, 0.0, -0.5, 1e25, 1.0]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.sampled_from(WORDS), st.text(max_size=3))
keys = st.sampled_from(["x", "y", "k", "1", "2", "5", "x.y", "2.5", "true"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6)
states = st.dictionaries(st.sampled_from(["a", "b", "c", "5a", "_"]), values)

names = st.sampled_from(NAMES).map(lambda name: ("name", name))
literals = st.one_of(numbers, st.booleans(), st.sampled_from(WORDS)).map(lambda value: ("literal", value))
operands = names | literals
leaves = st.one_of(
    operands.map(lambda operand: ("truth", operand)),
    st.tuples(st.just("compare"), operands, st.sampled_from(COMPARISONS[:6]), operands),
    st.tuples(
        st.just("compare"),
        operands,
        st.sampled_from(COMPARISONS[6:]),
        st.sampled_from(PATTERNS).map(lambda text: ("literal", text)) | literals,
    ),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lambda tree: ("not", tree)),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: ("and", *parts)),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: ("or", *parts)),
    ),
    max_leaves=12,
)


# ---- the second opinion: recursive, slow, straight from the rows ----


def truth(value: Any) -> bool:
    return value not in (None, False, 0, "", [], {})


def text_of(element: Any) -> set[str]:
    if isinstance(element, bool):
        return {"true" if element else "false"}
    if isinstance(element, str):
        return {element}
    if isinstance(element, int):
        return {str(element)}
    if isinstance(element, float):
        return {repr(element)} | ({str(int(element))} if element == int(element) else set())
    return set()


def walk(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    rest = ".".join(parts)
    if isinstance(value, dict):
        found = walk(value.get(parts[0]), parts[1:])
        return value.get(rest) if found is None else found
    if isinstance(value, list):
        return True if any(rest in text_of(element) for element in value) else None
    return None


def value_of(operand: Tree, state: dict[str, Any]) -> Any:
    kind, content = operand
    if kind == "literal":
        return content
    first, *rest = content.split(".")
    return walk(state.get(first), rest)


def family(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", int: "number", float: "number", str: "text"}.get(type(value), "structure")


def compare(left: Any, operator: str, right: Any) -> bool:
    same = family(left) == family(right)
    if operator == "==":
        return same and family(left) != "structure" and left == right
    if operator == "!=":
        return not compare(left, "==", right)
    if operator in ("=~", "!~"):
        # The random patterns mean the same to Python's re as to RE2, but for $ before a final newline.
        return same and family(left) == "text" and (re.search(right.replace("$", r"\Z"), left) is not None) == (operator == "=~")
    if not same or family(left) not in ("number", "text"):
        return operator in ("<=", ">=") and compare(left, "==", right)
    less, equal = left < right, left == right
    return bool({"<": less, "<=": less or equal, ">": not less and not equal, ">=": not less}[operator])


def judge(tree: Tree, state: dict[str, Any]) -> bool:
    kind, *parts = tree
    if kind == "truth":
        return truth(value_of(parts[0], state))
    if kind == "compare":
        left, operator, right = parts
        return compare(value_of(left, state), operator, value_of(right, state))
    if kind == "not":
        return not judge(parts[0], state)
    answers = (judge(part, state) for part in parts)
    return all(answers) if kind == "and" else any(answers)


# ---- spelling a tree, with blanks and parentheses where they may be ----


def spell(tree: Tree, draw: Any) -> str:
    kind, *parts = tree
    if kind == "truth":
        text = spell_operand(parts[0], draw)
    elif kind == "compare":
        left, operator, right = parts
        text = f"{spell_operand(left, draw)}{blanks(draw)}{operator}{blanks(draw)}{spell_operand(right, draw)}"
    elif kind == "not":
        inner = spell(parts[0], draw)
        text = f"!{blanks(draw)}" + (inner if parts[0][0] in ("truth", "not") else f"({inner})")
    else:
        separator = f"{blanks(draw)}{'&&' if kind == 'and' else '||'}{blanks(draw)}"
        loose = ("and", "or") if kind == "and" else ("or",)
        text = separator.join(f"({spell(part, draw)})" if part[0] in loose else spell(part, draw) for part in parts)
    if kind in ("truth", "not"):
        return text
    return f"({blanks(draw)}{text}{blanks(draw)})" if kind != "compare" and draw(st.booleans()) else text


def spell_operand(operand: Tree, draw: Any) -> str:
    kind, content = operand
    if kind == "name":
        return str(content)
    if isinstance(content, bool):
        return str(draw(st.sampled_from(["true", "TRUE", "True"] if content else ["false", "FALSE", "False"])))
    if isinstance(content, str):
        quote = draw(st.sampled_from("'\"`"))
        return f"{quote}{content}{quote}"
    return repr(content)


def blanks(draw: Any) -> str:
    return str(draw(st.sampled_from(["", " ", "\n\t", " \r "])))


@st.composite
def spelled(draw: Any) -> tuple[Tree, str]:
    tree = draw(trees)
    return tree, blanks(draw) + spell(tree, draw) + blanks(draw)


# ---- properties ----


@settings(max_examples=150)
@given(spelled(), st.lists(states, min_size=1, max_size=2))
def test_evaluation_agrees_with_the_second_opinion(case: tuple[Tree, str], some_states: list[dict[str, Any]]) -> None:
    tree, text = case
    expression = Expression(text)
    canonical = Expression(str(expression))
    for state in some_states:
        assert expression.evaluate(state) is judge(tree, state)
        assert canonical.evaluate(state) is judge(tree, state)


@settings(max_examples=100)
@given(spelled())
def test_printing_and_parsing_lose_nothing(case: tuple[Tree, str]) -> None:
    expression = Expression(case[1])
    again = Expression(str(expression))
    assert again == expression
    assert hash(again) == hash(expression)
    assert str(again) == str(expression)
    assert again.fields == expression.fields
    assert [pattern for pattern, _ in again.patterns] == [pattern for pattern, _ in expression.patterns]


@settings(max_examples=200)
@given(
    st.text() | st.text(alphabet="ab5.'\"`()!&|=<>~ \n+-e\\") | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")), states
)
@example("a" * 20_000, {})
@example("'\ud800'", {})
@example("\ud800", {})
@example("1" * 5_000, {})
def test_any_text_is_a_condition_or_an_expression_error(text: str, state: dict[str, Any]) -> None:
    error = None
    try:
        expression = Expression(text)
        assert type(expression.evaluate(state)) is bool
        assert Expression(str(expression)) == expression
    except ExpressionError as raised:
        error = raised
    if error is not None:
        assert error.text == text[: len(error.text)]
        assert 0 <= error.offset <= len(error.text)
        assert error.rule.startswith("expression-")
        str(error).encode()


SPELLINGS = {"v": ["a", "b.c", "5", "-1", "'x'", "true"], "c": COMPARISONS, "&": ["&&"], "|": ["||"], "!": ["!"], "(": ["("], ")": [")"]}


def test_any_short_row_of_tokens_is_legal_exactly_by_the_grammar() -> None:
    legal = 0
    turns = {kind: itertools.cycle(spellings) for kind, spellings in SPELLINGS.items()}
    for length in range(6):
        for kinds in itertools.product(SPELLINGS, repeat=length):
            text = " ".join(next(turns[kind]) for kind in kinds)
            assert parses(text) == is_condition("".join(kinds)), text
            legal += parses(text)
    assert legal == 40


@settings(max_examples=200)
@given(st.text(alphabet="vvvc&|!()", max_size=14))
@example("!(v&v)|((vcv)&!!v)")
@example("((v))&(v|(v))")
@example("!v&!(vcv)|!(!v)")
def test_longer_rows_of_tokens_too(kinds: str) -> None:
    text = " ".join(SPELLINGS[kind][0] for kind in kinds)
    assert parses(text) == is_condition(kinds)


def parses(text: str) -> bool:
    try:
        return type(Expression(text).evaluate({})) is bool
    except ExpressionError:
        return False


def is_condition(kinds: str) -> bool:
    """Recognise by the grammar as it stands in the rows; each rule returns every place where it can end."""

    def symbol(wanted: str, start: int) -> set[int]:
        return {start + 1} if kinds[start : start + 1] == wanted else set()

    def chain(part: Callable[[int], set[int]], joint: str, start: int) -> set[int]:
        ends, fresh = set[int](), part(start)
        while fresh:
            ends |= fresh
            fresh = {end for place in fresh for after in symbol(joint, place) for end in part(after)} - ends
        return ends

    def disjunction(start: int) -> set[int]:
        return chain(conjunction, "|", start)

    def conjunction(start: int) -> set[int]:
        return chain(term, "&", start)

    def term(start: int) -> set[int]:
        comparison = {end for left in symbol("v", start) for op in symbol("c", left) for end in symbol("v", op)}
        negated = {end for after in symbol("!", start) for end in nots(after)}
        return comparison | negated | primary(start)

    def nots(start: int) -> set[int]:
        return primary(start) | {end for after in symbol("!", start) for end in nots(after)}

    def primary(start: int) -> set[int]:
        inside = {end for after in symbol("(", start) for part in disjunction(after) for end in symbol(")", part)}
        return inside | symbol("v", start)

    return len(kinds) in disjunction(0)
