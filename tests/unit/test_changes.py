"""Contributions: their stored form, folding them into a state, and composing them first."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dwarf.changes import NOTHING, Changes, compose, fold
from dwarf.errors import ReducerError
from dwarf.values import Fields

KINDS = {name: name for name in ("replace", "append", "add", "min", "max", "union", "merge", "and", "or", "concat")}
FIELDS = [*KINDS, "plain"]


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value, separators=(",", ":")).encode())


def fields(**values: Any) -> Fields:
    return {field: raw(value) for field, value in values.items()}


def changes(*overwrites: str, **values: Any) -> Changes:
    return Changes(fields(**values), frozenset(overwrites))


def decoded(state: Fields) -> dict[str, Any]:
    return {field: json.loads(bytes(value)) for field, value in state.items()}


# ---- the stored form ----


def test_the_stored_form() -> None:
    assert changes(a=1, b=None).encode() == b'{"a":1,"b":null}'
    assert changes("b", "a", a=1, b=[2]).encode() == b'[{"a":1,"b":[2]},["a","b"]]'
    assert NOTHING.encode() == Changes().encode() == b"{}"
    for nothing in (None, b"", b"{}"):
        assert Changes.decode(nothing) == NOTHING
    assert not NOTHING
    assert changes(a=None)
    assert Changes.decode(Raw(b'[{"a":1},["a"]]')) == changes("a", a=1)
    total = compose(changes(add=1, b=2), changes(add=0.5), KINDS)
    assert total.encode() == b'[{"add":[1,0.5],"b":2},[],["add"]]'
    assert Changes.decode(total.encode()) == total != Changes(total.fields)
    assert total.without(["add"]) == changes(b=2)


def test_equality_is_by_what_is_written_not_by_order() -> None:
    assert changes(a=1, b=2) == changes(b=2, a=1)
    assert changes("a", a=1) != changes(a=1)
    assert changes(a=1) != changes(a=2)
    assert changes(a=1) != {"a": 1}
    assert NOTHING != 5


def test_without() -> None:
    given_ = changes("a", "b", a=1, b=2, c=3)
    assert given_.without(["a", "x"]) == changes("b", b=2, c=3)
    assert given_.without([]) is given_
    assert given_.without(iter(["x"])) is given_
    assert given_.without({"a", "b", "c"}) == NOTHING
    assert given_ == changes("a", "b", a=1, b=2, c=3)


# ---- folding ----


@pytest.mark.row("F-33", "F-34", "F-40", "F-42")
def test_folding_one_contribution() -> None:
    kinds = {"log": "append", "total": "add"}
    base = fields(log=["a"], total=10, v=1)
    assert decoded(fold(base, changes(log=["b"]), kinds)) == {"log": ["a", "b"], "total": 10, "v": 1}
    assert decoded(fold(base, changes(total=5), kinds)) == {"log": ["a"], "total": 15, "v": 1}
    assert decoded(fold(base, changes(log=["b"], v=2), kinds)) == {"log": ["a", "b"], "total": 10, "v": 2}
    assert decoded(fold(base, NOTHING, kinds)) == decoded(base), "the base is taken as it is"
    assert decoded(fold(base, changes(log=None, v=None), kinds)) == {"total": 10}
    assert decoded(fold(base, changes("log", log=["b"]), kinds)) == {"log": ["b"], "total": 10, "v": 1}
    assert decoded(fold(fields(log=None), changes(log=["b"]), kinds)) == {"log": ["b"]}, "a null in the base is absent"


@pytest.mark.row("F-28", "F-29", "F-37", "F-04")
def test_folding_branches_in_order() -> None:
    kinds = {"log": "append", "sum": "add"}
    spawned = fold(fields(sum=10), changes(sum=5), kinds)
    assert decoded(spawned) == {"sum": 15}, "the source's write counts once, whatever its branches do"
    state = spawned
    for place in range(100):
        state = fold(state, changes(log=place), kinds)
    assert decoded(state) == {"sum": 15, "log": list(range(100))}
    parts = [changes(log=["a"]), changes(log=None), changes(log="b"), changes("log", log=["c"]), changes(log=["d"])]
    state = fields(log=["base"])
    seen = []
    for part in parts:
        state = fold(state, part, kinds)
        seen.append(decoded(state).get("log"))
    assert seen == [["base", "a"], None, ["b"], ["c"], ["c", "d"]]


@pytest.mark.row("F-41")
def test_reducers_of_another_graph_have_no_say() -> None:
    child = fold(fields(log=["in"]), changes(log=["c"]), {"log": "append"})
    assert decoded(child) == {"log": ["in", "c"]}
    parent = fold(fields(log=["p"]), Changes({"log": child["log"]}), {})
    assert decoded(parent) == {"log": ["in", "c"]}


def test_a_failing_fold_leaves_what_it_was_given_unchanged() -> None:
    base, given_ = fields(a=1, log=["x"]), changes("b", a=2, b=3, log=["y"], total="no")
    twin_base, twin = copy.deepcopy(base), copy.deepcopy(given_)
    kinds = {"log": "append", "total": "add"}
    with pytest.raises(ReducerError, match="'total'"):
        fold(base, given_, kinds)
    with pytest.raises(ReducerError, match="'total'"):
        compose(changes(total=1, log=[]), given_, kinds)
    assert (base, given_) == (twin_base, twin)


# ---- composing ----


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (changes(append="a"), changes(append=["b"]), changes(append=["a", "b"])),
        (changes(append="a"), changes(append="b"), changes(append=["a", "b"])),
        (changes(append=[["a"]]), changes(append=[]), changes(append=[["a"]])),
        (changes(union=1), changes(union=[1, 2]), changes(union=[1, 2])),
        (changes(union=[1, 1]), changes(union=1), changes(union=[1])),
        (changes("append", append=["a"]), changes(append="b"), changes("append", append=["a", "b"])),
        (changes("union", union=[1, 1]), changes(union=2), changes("union", union=[1, 1, 2])),
        (changes(append=None), changes(append="b"), changes("append", append=["b"])),
        (changes(append="a"), changes(append=None), changes(append=None)),
        (changes("append", append=["a"]), changes(append=None), changes(append=None)),
        (changes(append="a"), changes("append", append=["b"]), changes("append", append=["b"])),
        (changes(append=None), changes("append", append=[]), changes("append", append=[])),
        (changes(plain=1), changes(plain=2), changes(plain=2)),
        (changes("plain", plain=1), changes(plain=2), changes(plain=2)),
        (changes(plain=None), changes(plain=2), changes(plain=2)),
        (changes(add=1), changes(min=2), changes(add=1, min=2)),
        (NOTHING, changes(add=1), changes(add=1)),
        (changes(append="a"), NOTHING, changes(append="a")),
    ],
)
@pytest.mark.row("F-14", "F-42")
def test_composing(first: Changes, second: Changes, expected: Changes) -> None:
    assert compose(first, second, KINDS) == expected


def test_composing_refuses_what_folding_refuses() -> None:
    for first, second in (
        (changes(add="x"), changes(add=1)),
        (changes(add=1), changes(add="x")),
        (changes("append", append="text"), changes(append="b")),
        (changes(add=None), changes(add="x")),
    ):
        with pytest.raises(ReducerError):
            compose(first, second, KINDS)
        with pytest.raises(ReducerError):
            fold(fold({}, first, KINDS), second, KINDS)


NUMBERS = st.floats(-1e3, 1e3)
INTEGERS = st.integers(-(2**70), 2**70) | st.integers(-3, 3) | st.sampled_from([2.0, -1.0, 0.0])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", 1.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
LISTS = st.lists(ANYTHING, max_size=3)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "replace": ANYTHING, "plain": ANYTHING, "append": LISTS | ANYTHING, "union": LISTS | ANYTHING, "add": INTEGERS | NUMBERS,
    "min": INTEGERS | st.floats(-10, 10), "max": INTEGERS | st.floats(-10, 10),
    "merge": st.dictionaries(st.sampled_from("abc"), ANYTHING, max_size=3), "and": st.booleans(), "or": st.booleans(),
    "concat": st.text(max_size=3),
}  # fmt: skip
WHOLE = {**FITTING, "append": LISTS, "union": LISTS}  # what may stand in a state, or be overwritten
BAD: dict[str, st.SearchStrategy[Any]] = {**dict.fromkeys(FIELDS, ANYTHING)}


@st.composite
def contributions(draw: st.DrawFn, values: dict[str, st.SearchStrategy[Any]] = FITTING) -> Changes:
    written: Fields = {}
    overwritten = set()
    for field in draw(st.lists(st.sampled_from(FIELDS), unique=True, max_size=6)):
        match draw(st.sampled_from(["write", "write", "write", "delete", "overwrite"])):
            case "delete":
                written[field] = raw(None)
            case "overwrite":
                written[field] = raw(draw((WHOLE if values is FITTING else values)[field].filter(lambda value: value is not None)))
                overwritten.add(field)
            case _:
                written[field] = raw(draw(values[field]))
    return Changes(written, frozenset(overwritten))


@st.composite
def states(draw: st.DrawFn) -> Fields:
    chosen = draw(st.lists(st.sampled_from(FIELDS), unique=True))
    return {field: raw(value) for field in chosen if (value := draw(WHOLE[field])) is not None}


@given(states(), contributions(), contributions())
@settings(max_examples=150)
def test_folding_a_composition_is_folding_one_after_the_other(base: Fields, first: Changes, second: Changes) -> None:
    """To the last byte, sums of fractions included."""
    one_by_one = fold(fold(base, first, KINDS), second, KINDS)
    assert fold(base, compose(first, second, KINDS), KINDS) == one_by_one


@given(contributions(), contributions(), contributions(), states())
@settings(max_examples=80)
def test_composing_is_associative(first: Changes, second: Changes, third: Changes, base: Fields) -> None:
    left = compose(compose(first, second, KINDS), third, KINDS)
    right = compose(first, compose(second, third, KINDS), KINDS)
    assert fold(base, left, KINDS) == fold(base, right, KINDS)
    for part in (left, right):
        assert part.overwrites <= part.fields.keys()


@given(contributions(BAD), contributions(BAD), contributions(BAD))
@settings(max_examples=80)
def test_nothing_but_reducer_errors_comes_out_of_misfits(first: Changes, second: Changes, third: Changes) -> None:
    """Where a composition succeeds and folding one by one does too, they agree."""
    base: Fields = {}
    try:
        one_by_one = fold(fold(fold(base, first, KINDS), second, KINDS), third, KINDS)
    except ReducerError:
        one_by_one = None
    try:
        composed = fold(base, compose(compose(first, second, KINDS), third, KINDS), KINDS)
    except ReducerError:
        composed = None
    if one_by_one is not None:
        assert composed == one_by_one, "what folds one by one also folds composed"


@given(contributions(), contributions())
@settings(max_examples=50)
def test_the_stored_form_comes_back(first: Changes, second: Changes) -> None:
    for part in (first, second, compose(first, second, KINDS)):
        back = Changes.decode(part.encode())
        assert back == part
        assert back.encode() == part.encode()
        assert Changes.decode(Raw(part.encode())) == part


@given(st.lists(st.floats(-1e308, 1e308) | st.integers(-(2**70), 2**70), min_size=2, max_size=8), st.integers(1, 7))
@settings(max_examples=60)
def test_a_sum_comes_out_the_same_however_its_parts_were_grouped(parts: list[float], split: int) -> None:
    """Order decides about the last digit of fractions, and about overflow; grouping decides about neither."""
    base = fields(add=0.5)

    def outcome(*groups: list[float]) -> Fields | None:
        state = base
        try:
            for group in groups:
                composed = NOTHING
                for part in group:
                    composed = compose(composed, changes(add=part), KINDS)
                state = fold(state, composed, KINDS)
        except ReducerError:
            return None
        return state

    assert outcome(*([part] for part in parts)) == outcome(parts) == outcome(parts[:split], parts[split:])


def test_a_long_sum_of_whole_numbers_stays_short_and_exact() -> None:
    composed = NOTHING
    for part in range(1000):
        composed = compose(composed, changes(add=part), KINDS)
    assert len(composed.encode()) < 1000
    assert decoded(fold(fields(add=2**70), composed, KINDS)) == {"add": 2**70 + sum(range(1000))}
