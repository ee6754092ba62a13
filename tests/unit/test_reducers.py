"""The ten reducers, one contribution at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dwarf import reducers
from dwarf.changes import Changes
from dwarf.changes import fold as fold_state
from dwarf.errors import ReducerError
from dwarf.reducers import Reducer, fold, is_fraction

NAMES = ["replace", "append", "add", "min", "max", "union", "merge", "and", "or", "concat"]
COMBINING = NAMES[1:]
SEEDS: dict[str, Any] = {
    "replace": 1, "append": [1], "add": 2, "min": 2.5, "max": -1, "union": [1, "a"], "merge": {"a": 1}, "and": True, "or": False, "concat": "a",
}  # fmt: skip


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value, separators=(",", ":")).encode())


def folded(reducer: str, current: Any, contribution: Any) -> Any:
    """Fold decoded values; `...` stands for an absent field."""
    found = fold("f", reducer, None if current is ... else raw(current), raw(contribution))
    return json.loads(bytes(found))


def refused(reducer: str, current: Any, contribution: Any) -> ReducerError:
    with pytest.raises(ReducerError) as caught:
        folded(reducer, current, contribution)
    assert (caught.value.field, caught.value.reducer) == ("f", reducer)
    assert "'f'" in str(caught.value)
    assert reducer in str(caught.value)
    assert caught.value.status == 400
    return caught.value


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    return repr(left) == repr(right)


# ---- common rules ----


@pytest.mark.row("F-02")
def test_the_ten_names() -> None:
    assert [reducer.value for reducer in Reducer] == NAMES
    assert [str(reducer) for reducer in Reducer] == NAMES
    base, changes = {"f": raw(1)}, Changes({"f": raw(2)})
    assert fold_state(base, changes, {"f": "replace"}) == fold_state(base, changes, {}) == {"f": raw(2)}
    assert fold("f", Reducer.ADD, raw(1), raw(2)) == raw(3)


@pytest.mark.row("F-01", "F-08")
def test_without_a_reducer_the_last_write_wins() -> None:
    state = {"sumTotal": raw(1)}
    for value in (2, [3], {"a": 4}, "5"):
        state = fold_state(state, Changes({"sumTotal": raw(value)}), {"other": "add"})
        assert state == {"sumTotal": raw(value)}
    assert folded("replace", [1], {"a": 1}) == {"a": 1}


@pytest.mark.row("F-03", "F-11")
@pytest.mark.parametrize("reducer", NAMES)
@pytest.mark.parametrize("current", [..., None], ids=["missing", "null"])
def test_the_first_contribution_seeds_the_field(reducer: str, current: Any) -> None:
    assert same(folded(reducer, current, SEEDS[reducer]), SEEDS[reducer])
    base = {} if current is ... else {"f": raw(current)}
    assert fold_state(base, Changes({"f": raw(SEEDS[reducer])}), {"f": reducer}) == {"f": raw(SEEDS[reducer])}


@pytest.mark.row("F-04", "F-05", "F-42")
@pytest.mark.parametrize("reducer", NAMES)
def test_a_null_contribution_deletes_and_resets_what_was_accumulated(reducer: str) -> None:
    """In force is the later decision: a null is a delete, for reduced fields too, at its place in the order."""
    kinds = {"f": reducer}
    base = {"f": raw(SEEDS[reducer]), "g": raw(1)}
    state = fold_state(base, Changes({"f": raw(None)}), kinds)
    assert state == {"g": raw(1)}
    state = fold_state(state, Changes({"f": raw(SEEDS[reducer])}), kinds)
    assert state == base
    assert fold_state({}, Changes({"f": raw(None)}), kinds) == {}


WRONG: dict[str, list[Any]] = {
    "append": [], "add": ["1", True, [], {}], "min": ["1", False, [], {}], "max": ["1", True, [1], {}], "union": [],
    "merge": [1, "a", [1], True], "and": [1, 0, "true", [], {}], "or": [1, "", [], {}], "concat": [1, True, [], {}],
}  # fmt: skip


@pytest.mark.row("F-06", "F-13", "F-21", "F-25", "F-26", "F-27")
@pytest.mark.parametrize("reducer", COMBINING)
def test_a_contribution_or_a_value_of_the_wrong_type_is_refused(reducer: str) -> None:
    for wrong in WRONG[reducer]:
        refused(reducer, ..., wrong)
        refused(reducer, None, wrong)
        refused(reducer, SEEDS[reducer], wrong)
    for wrong in WRONG[reducer] or ["s", {}, 5, True]:
        refused(reducer, wrong, SEEDS[reducer])


def test_the_error_says_what_was_found() -> None:
    assert "text" in str(refused("add", 1, "one"))
    assert "true or false" in str(refused("add", 1, True))
    assert "a list" in str(refused("merge", {}, [1]))
    assert len(str(refused("add", 1, "x" * 10_000))) < 200


@pytest.mark.row("F-07")
def test_an_unknown_reducer_is_refused_when_something_is_folded() -> None:
    error = refused("sum", 1, 2)
    assert "unknown" in str(error)
    refused("", 1, 2)
    refused("ADD", 1, 2)
    assert fold_state({"f": raw(1)}, Changes({"f": raw(None)}), {"f": "sum"}) == {}
    with pytest.raises(ReducerError):
        fold_state({}, Changes({"f": raw(1)}), {"f": "sum"})


def test_a_result_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducers, "VALUE_BYTES_MAX", 100)
    for reducer, value in (("append", ["x" * 50]), ("union", ["x" * 50]), ("concat", "x" * 60), ("merge", {"k": "x" * 60})):
        larger = {"merge": {"other": "y" * 60}, "union": ["y" * 50]}.get(reducer, value)
        assert "100" in str(refused(reducer, value, larger))


def test_what_no_reader_decodes_is_refused_as_unfit() -> None:
    """SQL can leave such values in a json column."""
    for bad in (b"1e400", b"1" * 5000, b'"\\ud800"'):
        for reducer in ("add", "min", "union", "concat", "and"):
            for current, contribution in ((Raw(bad), raw(SEEDS[reducer])), (raw(SEEDS[reducer]), Raw(bad))):
                with pytest.raises(ReducerError):
                    fold("f", reducer, current, contribution)


# ---- append ----


@pytest.mark.row("F-09", "F-11", "F-14")
@pytest.mark.parametrize(
    ("current", "contribution", "expected"),
    [
        ([1], [1, 2], [1, 1, 2]),
        ([1], 1, [1, 1]),
        ([1], {"k": 1}, [1, {"k": 1}]),
        ([1], [[2]], [1, [2]]),
        ([1], [], [1]),
        ([], [], []),
        ([], 1, [1]),
        ([], [1], [1]),
        ([1], [None], [1, None]),
        ([1], "a", [1, "a"]),
        ([1], False, [1, False]),
        (..., [1], [1]),
        (..., 1, [1]),
        (..., [], []),
        (..., {"a": 1}, [{"a": 1}]),
        (..., "a", ["a"]),
    ],
)
def test_append(current: Any, contribution: Any, expected: Any) -> None:
    assert same(folded("append", current, contribution), expected)


@pytest.mark.row("F-14", "F-33")
def test_an_element_then_a_list() -> None:
    assert folded("append", folded("append", ..., "a"), ["b"]) == ["a", "b"]
    assert folded("append", ["a"], ["b"]) == ["a", "b"]


@pytest.mark.row("F-13")
@pytest.mark.parametrize("current", ["s", {}, 5, True])
@pytest.mark.parametrize("contribution", [[1], [], 1])
def test_append_to_what_is_no_list(current: Any, contribution: Any) -> None:
    refused("append", current, contribution)
    refused("union", current, contribution)


@pytest.mark.parametrize(
    ("current", "contribution", "expected"),
    [
        (b"[ ]", b"[1 , 2]", b"[1 , 2]"),
        (b"[1 ]", b"[\n]", b"[1 ]"),
        (b"[ 1]", b"[ 2 ]", b"[ 1, 2 ]"),
        (b"[ \n\t\r ]", b'" a "', b'[" a "]'),
        (b'["]"]', b'["["]', b'["]","["]'),
        (b"[1.50]", b"123456789012345678901234567890", b"[1.50,123456789012345678901234567890]"),
    ],
)
def test_append_joins_lists_without_reading_them(current: bytes, contribution: bytes, expected: bytes) -> None:
    assert bytes(fold("f", "append", Raw(current), Raw(contribution))) == expected


# ---- union ----


@pytest.mark.row("F-15", "F-16", "F-18")
@pytest.mark.parametrize(
    ("current", "contribution", "expected"),
    [
        ([1], [1, 2], [1, 2]),
        ([1], 1, [1]),
        ([1], 2, [1, 2]),
        (..., [1, 1], [1]),
        (..., 1, [1]),
        (..., [], []),
        ([1, 1], [2, 2], [1, 1, 2]),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], [{"a": 1, "b": 2}]),
        ([{"a": 1}], {"a": 1}, [{"a": 1}]),
        ([[1, [2, {"k": [3]}]]], [[1, [2, {"k": [3]}]]], [[1, [2, {"k": [3]}]]]),
        ([[1, 2]], [[2, 1]], [[1, 2], [2, 1]]),
        ([1], [True], [1, True]),
        ([0, 1], [False, True], [0, 1, False, True]),
        ([True], [1, "1", "true"], [True, 1, "1", "true"]),
        ([{"a": 1}], [{"a": True}, {"a": 1.0}], [{"a": 1}, {"a": True}]),
        ([[1]], [[True], [1.0]], [[1], [True]]),
        ([1], [1.0], [1]),
        ([None], [None, 0, False, "", [], {}], [None, 0, False, "", [], {}]),
        ([9007199254740993], [9007199254740992, 9007199254740993], [9007199254740993, 9007199254740992]),
        ([["list", 1]], [{"list": 1}], [["list", 1], {"list": 1}]),
    ],
)
def test_union(current: Any, contribution: Any, expected: Any) -> None:
    assert same(folded("union", current, contribution), expected)


# ---- add, min, max ----


@pytest.mark.row("F-20", "F-21", "F-22", "F-23")
@pytest.mark.parametrize(
    ("reducer", "current", "contribution", "expected"),
    [
        ("add", 1, 2.5, 3.5),
        ("min", 1, 2.5, 1),
        ("max", 1, 2.5, 2.5),
        ("add", 9007199254740993, 1, 9007199254740994),
        ("max", 9007199254740993, 1, 9007199254740993),
        ("min", 9007199254740993, 1, 1),
        ("max", 9007199254740993, 9007199254740992, 9007199254740993),
        ("min", 2**64, 2**64 + 1, 2**64),
        ("add", 2**63, 2**63, 2**64),
        ("add", -(10**40), 1, -(10**40) + 1),
        ("add", 0.1, 0.2, 0.1 + 0.2),
        ("add", 1, 2.0, 3),
        ("add", 1.0, 2.0, 3),
        ("add", 0.5, 0.5, 1.0),
        ("add", 9007199254740993, 2.0, 9007199254740995),
        ("add", 0, -0.0, 0),
        ("add", 1, -1, 0),
        ("min", 1, 1.0, 1),
        ("max", 1.0, 1, 1.0),
        ("min", -0.0, 0, -0.0),
        ("max", 10**400, 1.5, 10**400),
        ("min", 10**400, 1.5, 1.5),
        ("max", 1.5, 10**400, 10**400),
        ("min", -1e308, -(10**400), -(10**400)),
        ("add", 1e308, 1, 1e308),
    ],
)
def test_numbers(reducer: str, current: Any, contribution: Any, expected: Any) -> None:
    assert same(folded(reducer, current, contribution), expected)


@pytest.mark.row("F-23")
def test_a_sum_that_is_no_finite_number_is_refused() -> None:
    assert "1e308" in str(refused("add", 1e308, 1e308)).replace("+", "")
    refused("add", -1.7e308, -1.7e308)
    refused("add", 10**400, 0.5)
    refused("add", 10**4299 * 9, 10**4299 * 9)


def test_numbers_keep_their_spelling_until_they_are_changed() -> None:
    assert bytes(fold("f", "max", Raw(b"1.50"), Raw(b"1.2"))) == b"1.50"
    assert bytes(fold("f", "add", None, Raw(b"1.50"))) == b"1.50"
    assert [is_fraction(Raw(text)) for text in (b"1", b"-12", b"1.0", b"1e5", b"1E5")] == [False, False, True, True, True]
    assert not is_fraction(None)


# ---- merge, and, or, concat ----


@pytest.mark.row("F-25")
@pytest.mark.parametrize(
    ("current", "contribution", "expected"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 1}, {"a": 2}, {"a": 2, "b": 1}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2}}),
        ({"a": 1}, {"a": None}, {"a": None}),
        (..., {}, {}),
    ],
)
def test_merge(current: Any, contribution: Any, expected: Any) -> None:
    assert same(folded("merge", current, contribution), expected)


@pytest.mark.row("F-25")
def test_merge_refuses_lists_on_either_side() -> None:
    refused("merge", [], {"a": 1})
    refused("merge", {"a": 1}, [])


@pytest.mark.row("F-26", "F-27")
@pytest.mark.parametrize(
    ("reducer", "current", "contribution", "expected"),
    [
        ("and", True, False, False),
        ("and", True, True, True),
        ("and", False, True, False),
        ("or", True, False, True),
        ("or", False, False, False),
        ("or", False, True, True),
        ("and", ..., False, False),
        ("or", ..., True, True),
        ("concat", "a", "b", "ab"),
        ("concat", "a", "", "a"),
        ("concat", "", "b", "b"),
        ("concat", "é\n", '"\\\x00', 'é\n"\\\x00'),
        ("concat", "👩\u200d", "👧", "👩\u200d👧"),
        ("concat", ..., "", ""),
    ],
)
def test_truths_and_texts(reducer: str, current: Any, contribution: Any, expected: Any) -> None:
    assert same(folded(reducer, current, contribution), expected)


# ---- what a reference in plain Python says ----


def reference(reducer: str, current: list[Any], contribution: Any) -> Any:
    match reducer:
        case "append":
            return [*current, *(contribution if isinstance(contribution, list) else [contribution])]
        case "union":
            found = list(current)
            for value in contribution if isinstance(contribution, list) else [contribution]:
                if all(json.dumps(value, sort_keys=True) != json.dumps(other, sort_keys=True) for other in found):
                    found.append(value)
            return found
    raise AssertionError


INTS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(["append", "union"]), st.lists(INTS, max_size=4), INTS.filter(lambda value: value is not None))
@settings(max_examples=80)
def test_lists_against_a_reference(reducer: str, current: list[Any], contribution: Any) -> None:
    assert same(folded(reducer, current, contribution), reference(reducer, current, contribution))
