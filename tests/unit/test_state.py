"""Typed reads, whole-state views, equality and merging of states."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import pickle
import typing
import uuid
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dwarf.errors import InvalidArgument, StateTypeError, StateValueError
from dwarf.flow import Flow
from dwarf.state import State, TypedReads

READERS: list[typing.Callable[[str], TypedReads]] = [
    State.from_json,
    lambda data: Flow(State.from_json(data)),
    lambda data: written(data),
]


def written(data: str) -> Flow:
    flow = Flow()
    for field, raw in State.from_json(data).raw_fields().items():
        flow.set_json(field, bytes(raw))
    return flow


@pytest.fixture(params=READERS, ids=["state", "flow", "own-writes"])
def read(request: pytest.FixtureRequest) -> Any:
    return request.param


def mistyped(call: typing.Callable[[], object], field: str = "x") -> StateTypeError:
    with pytest.raises(StateTypeError) as caught:
        call()
    assert caught.value.field == field
    assert repr(field) in str(caught.value)
    return caught.value


# ---- typed getters ----


@pytest.mark.row("E-01")
@pytest.mark.parametrize("data", ["{}", '{"x":null}'])
def test_absent_and_null_fields_read_as_zero_values(read: Any, data: str) -> None:
    fields = read(data)
    assert (fields.get_str("x"), fields.get_int("x"), fields.get_bool("x")) == ("", 0, False)
    assert fields.get_float("x") == 0.0
    assert type(fields.get_float("x")) is float
    assert fields.get_list("x") == []
    assert fields.get_list("x", type=str) == []
    assert fields.get_dict("x") == {}
    assert fields.get_duration("x") == datetime.timedelta(0)
    assert fields.get_datetime("x") is None
    assert fields.get("x") is None
    assert fields.get("x", type=int) is None
    assert "x" not in fields
    with pytest.raises(KeyError):
        fields["x"]


@pytest.mark.row("E-01", "E-16")
@pytest.mark.parametrize("data", ["{}", '{"x":null}'])
def test_absent_and_null_fields_read_as_the_default_given(read: Any, data: str) -> None:
    fields = read(data)
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert fields.get("x", 7) == 7
    assert fields.get("x", 7, type=int) == 7
    assert fields.get("x", "other", type=str) == "other"
    assert (fields.get_str("x", "d"), fields.get_int("x", 3), fields.get_float("x", 0.5), fields.get_bool("x", True)) == ("d", 3, 0.5, True)
    assert fields.get_list("x", ["d"]) == ["d"]
    assert fields.get_dict("x", {"d": 1}) == {"d": 1}
    assert fields.get_duration("x", datetime.timedelta(1)) == datetime.timedelta(1)
    assert fields.get_datetime("x", moment) == moment


def test_the_zero_value_of_a_list_is_a_new_one_each_time() -> None:
    state = State()
    state.get_list("x").append(1)
    state.get_dict("x")["a"] = 1
    assert state.get_list("x") == []
    assert state.get_dict("x") == {}


WRONG = {
    "str": ["5", "true", "[]", "{}", "1.5"],
    "int": ['"5"', "true", "[]", "{}", "5.5", "1e-1"],
    "float": ['"5"', "true", "[]", "{}"],
    "bool": ['"true"', "0", "1", "[]", "{}"],
    "list": ['"a"', "5", "true", "{}"],
    "dict": ['"a"', "5", "true", "[]"],
    "duration": ['"1.5s"', '"PT1S"', "1.5", "true", "[]", "{}"],
    "datetime": ['"yesterday"', "5", "true", "[]", "{}"],
}


@pytest.mark.row("E-02", "E-03", "E-05", "E-15")
@pytest.mark.parametrize(("getter", "value"), [(getter, value) for getter, wrong in WRONG.items() for value in wrong])
def test_a_field_of_another_type_raises_naming_field_value_and_type(read: Any, getter: str, value: str) -> None:
    fields = read(f'{{"x":{value}}}')
    error = mistyped(lambda: getattr(fields, f"get_{getter}")("x"))
    assert value in str(error)
    assert error.status == 500


@pytest.mark.row("E-03", "E-05", "E-06", "E-08", "E-09", "E-10")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", 5),
        ("-5", -5),
        ("-0", 0),
        ("-0.0", 0),
        ("5.0", 5),
        ("1e2", 100),
        ("1E+2", 100),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 2**63),
        ("-9223372036854775809", -(2**63) - 1),
        ("1234567890123456789", 1234567890123456789),
        ("18446744073709551616", 2**64),
        ("1" + "0" * 4000, 10**4000),
    ],
)
def test_get_int_is_exact_at_any_size(read: Any, value: str, expected: int) -> None:
    """Beyond 64 bits too: rows E-08 and E-09 leave both open, and here an integer is an integer."""
    found = read(f'{{"x":{value}}}').get_int("x")
    assert found == expected
    assert type(found) is int
    assert read(f'{{"x":{value}}}').get("x", type=int) == expected


@pytest.mark.row("E-06", "E-05")
def test_a_whole_float_reads_as_an_integer_and_a_fraction_does_not() -> None:
    flow = Flow()
    flow["x"] = 2.0
    flow["y"] = 5.5
    assert flow.get_int("x") == 2
    assert type(flow.get_int("x")) is int
    assert flow["x"] == 2.0
    assert type(flow["x"]) is float
    assert flow.get_float("y") == 5.5
    mistyped(lambda: flow.get_int("y"), "y")


@pytest.mark.row("E-10")
def test_get_float_rounds_a_large_integer_silently_and_refuses_one_out_of_range(read: Any) -> None:
    assert read('{"x":1234567890123456789}').get_float("x") == float(1234567890123456789)
    assert read('{"x":9007199254740993}').get_float("x") == 9007199254740992.0
    assert type(read('{"x":5}').get_float("x")) is float
    mistyped(lambda: read('{"x":' + "1" * 400 + "}").get_float("x"))


@pytest.mark.row("E-13", "E-14")
def test_lists(read: Any) -> None:
    """A null in a list of texts raises: row E-14 allows either, and no text is not the empty text."""
    assert read('{"x":[]}').get_list("x", type=str) == []
    assert read('{"x":["a","b"]}').get_list("x", type=str) == ["a", "b"]
    assert read('{"x":["a",1,null]}').get_list("x") == ["a", 1, None]
    assert read('{"x":[1,2]}').get_list("x", type=int) == [1, 2]
    assert read('{"x":["a",null]}').get_list("x", type=Optional[str]) == ["a", None]  # noqa: UP045
    for wrong in ('["a",1]', '"a"', '["a",null]'):
        mistyped(lambda wrong=wrong: read(f'{{"x":{wrong}}}').get_list("x", type=str))  # type: ignore[misc]
    mistyped(lambda: read('{"x":[1,true]}').get_list("x", type=int))
    assert read('{"x":{"a":1}}').get_dict("x", type=int) == {"a": 1}
    mistyped(lambda: read('{"x":{"a":"b"}}').get_dict("x", type=int))


@pytest.mark.row("E-15")
def test_a_duration_is_stored_as_whole_nanoseconds() -> None:
    flow = Flow()
    flow["x"] = datetime.timedelta(seconds=1.5)
    assert flow["x"] == 1_500_000_000
    assert type(flow["x"]) is int
    assert flow.get_duration("x") == datetime.timedelta(seconds=1.5)
    assert State({"x": datetime.timedelta(seconds=1.5)}) == {"x": 1_500_000_000}
    numbers: list[tuple[float, int]] = [(1_999, 1), (-1_999, -1), (0, 0), (-1_500_000_000, -1_500_000), (2_000.0, 2)]
    for value, expected in numbers:
        flow["x"] = value
        assert flow.get_duration("x") == datetime.timedelta(microseconds=expected)
    flow["x"] = 10**30
    mistyped(lambda: flow.get_duration("x"))
    for wait in (datetime.timedelta.max, datetime.timedelta.min, datetime.timedelta(microseconds=-1)):
        flow["x"] = wait
        assert flow.get_duration("x") == wait


def test_a_duration_inside_a_value_is_iso_text_which_typed_reads_understand() -> None:
    class Plan(msgspec.Struct):
        wait: datetime.timedelta

    state = State({"x": [datetime.timedelta(seconds=90)], "plan": Plan(datetime.timedelta(days=1))})
    assert state["x"] == ["PT90S"]
    assert state.get_list("x", type=datetime.timedelta) == [datetime.timedelta(seconds=90)]
    assert state.get("plan", type=Plan) == Plan(datetime.timedelta(days=1))
    assert State({"x": "PT90S"}).get("x", type=datetime.timedelta) == datetime.timedelta(seconds=90)


class Line(msgspec.Struct):
    sku: str
    count: int = 1


@dataclasses.dataclass
class Address:
    street: str
    zip: str = ""


class Person(typing.TypedDict, total=False):
    name: typing.Required[str]
    age: int


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


@pytest.mark.row("E-16")
@pytest.mark.parametrize(
    ("data", "kind", "expected"),
    [
        ('{"sku":"a"}', Line, Line("a")),
        ('[{"sku":"a","count":2}]', list[Line], [Line("a", 2)]),
        ('{"k":{"sku":"a"}}', dict[str, Line], {"k": Line("a")}),
        ('{"street":"s","extra":1}', Address, Address("s")),
        ('{"name":"n"}', Person, {"name": "n"}),
        ('{"type":"Dog","tricks":["sit"]}', Cat | Dog, Dog(["sit"])),
        ("5", int | str, 5),
        ('"a"', int | str, "a"),
        ("5", int | None, 5),
        ("5.0", int | None, 5),
        ("1500", datetime.timedelta | None, datetime.timedelta(microseconds=1)),
        ('{"sku":"a"}', Optional[Line], Line("a")),  # noqa: UP045
        ("[1,2]", tuple[int, ...], (1, 2)),
        ("[1,1]", set[int], {1}),
        ('"a"', Literal["a", "b"], "a"),
        ("5", Annotated[int, msgspec.Meta(ge=5)], 5),
        ('"00000000-0000-0000-0000-000000000007"', uuid.UUID, uuid.UUID(int=7)),
        ("[1]", Any, [1]),
        ("[1]", object, [1]),
        ("1.50", Raw, Raw(b"1.50")),
    ],
)
def test_get_decodes_as_a_type(data: str, kind: Any, expected: Any) -> None:
    for read in READERS:
        found = read(f'{{"x":{data}}}').get("x", type=kind)
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.row("E-16", "E-02")
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ('{"count":1}', Line),
        ('{"sku":1}', Line),
        ('[{"sku":"a"},{}]', list[Line]),
        ('{"age":5}', Person),
        ('"c"', Literal["a", "b"]),
        ("true", int | None),
        ("true", Literal[1]),
        ("4", Annotated[int, msgspec.Meta(ge=5)]),
        ("5", uuid.UUID),
        ('"x"', uuid.UUID),
        ("1.5", int | None),
        ("5", Line | None),
    ],
)
def test_get_refuses_what_does_not_fit(data: str, kind: Any) -> None:
    mistyped(lambda: State.from_json(f'{{"x":{data}}}').get("x", type=kind))


def test_a_type_that_nothing_can_be_read_as_is_named() -> None:
    state = State({"x": 1, "y": {"a": 1}})
    with pytest.raises(InvalidArgument, match=r"'x' cannot be read as .*Line | .*Address"):
        state.get("x", type=Line | Address | Cat)
    with pytest.raises(InvalidArgument, match="NoReturn"):
        state.get("x", type=typing.NoReturn)
    mistyped(lambda: state.get("x", type=type("Own", (), {})))
    assert state.get("x", type=Annotated[int, ["unhashable"]]) == 1


def test_what_other_writers_left_in_the_database_fails_as_a_mistyped_field() -> None:
    """SQL can put numbers and texts into a json column that no reader here decodes."""
    for raw in (b"1e400", b"1" * 5000, b'"\\ud800"', b"[" * 5000 + b"]" * 5000):
        state = State.of({"x": Raw(raw)})
        for call in (lambda state=state: state["x"], lambda state=state: state.get("x"), lambda state=state: state.get_int("x")):
            mistyped(call)
        mistyped(lambda state=state: Flow(state)["x"])  # type: ignore[misc]


# ---- whole-state views ----


class View(msgspec.Struct):
    name: str
    total: float = 0.0
    note: str | None = "none"


@pytest.mark.row("E-33", "E-16")
def test_parse_reads_the_whole_state_as_a_type() -> None:
    state = State({"name": "a", "total": 5, "other": [1], "note": None})
    assert state.parse(View) == View("a", 5.0, "none"), "null is absent"
    assert Flow(state).parse(View) == View("a", 5.0, "none")
    assert state.parse(dict[str, Any]) == {"name": "a", "total": 5, "other": [1]}
    flow = Flow(state)
    flow["name"] = "b"
    flow.delete("total")
    assert flow.parse(View) == View("b", 0.0, "none")
    assert flow.parse(Person) == {"name": "b"}


@pytest.mark.row("E-33")
def test_parse_refuses_a_mistyped_or_missing_field_and_names_it() -> None:
    error = mistyped_view(State({"name": 5}))
    assert error.field == "name"
    assert "View" in str(error)
    assert mistyped_view(State({"total": 1.0})).field == "name"
    assert mistyped_view(State({"name": None})).field == "name"
    assert mistyped_view(State({"name": "a", "total": "x"})).field == "total"


def mistyped_view(state: State) -> StateTypeError:
    with pytest.raises(StateTypeError) as caught:
        state.parse(View)
    with pytest.raises(StateTypeError):
        Flow(state).parse(View)
    return caught.value


def test_parse_gives_none_where_none_fits_and_reads_durations() -> None:
    class Plan(msgspec.Struct, rename="camel"):
        wait_for: datetime.timedelta
        note: str | None
        pause: datetime.timedelta | None
        inner: list[datetime.timedelta] = []

    @dataclasses.dataclass
    class Same:
        waitFor: datetime.timedelta  # noqa: N815
        note: str | None

    wait = datetime.timedelta(seconds=90)
    state = State({"waitFor": wait, "inner": [wait]})
    assert state.parse(Plan) == Plan(wait, None, None, [wait])
    assert state.parse(Same) == Same(wait, None)
    assert State(Plan(wait, "n", wait, [wait])).parse(Plan) == Plan(wait, "n", wait, [wait])
    with pytest.raises(StateTypeError, match="waitFor"):
        State({"waitFor": 1.5}).parse(Plan)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        state.parse(Line | Address | Cat)  # type: ignore[arg-type]


# ---- the mapping ----


def test_a_state_is_a_mapping_of_what_is_not_null() -> None:
    state = State({"a": 1, "b": None, "c": [1]})
    assert list(state) == ["a", "c"]
    assert dict(state) == {"a": 1, "c": [1]}
    assert len(state) == 2
    assert "b" not in state
    assert state.__contains__(5) is False
    assert [*state.keys()] == ["a", "c"]
    assert [*state.items()] == [("a", 1), ("c", [1])]
    assert state.raw_fields()["b"] == Raw(b"null")
    assert repr(state) == 'State({"a":1,"b":null,"c":[1]})'
    assert len(repr(State({"a": "x" * 1000}))) < 220
    with pytest.raises(TypeError):
        state["a"] = 2  # type: ignore[index]
    with pytest.raises(TypeError):
        hash(state)


@pytest.mark.row("E-23")
def test_changing_what_was_read_changes_nothing() -> None:
    state = State({"a": [1], "d": {"k": 1}})
    for values in (state["a"], state.get("a"), state.get_list("a"), state.get("a", type=list[int]), dict(state)["a"]):
        values.append(2)
    state.get_dict("d")["k"] = 2
    assert state == {"a": [1], "d": {"k": 1}}


def test_equality_is_by_value() -> None:
    assert State.from_json('{"a": [1, 2], "b": 1}') == State.from_json('{"b":1,"a":[1,2]}')
    assert State.from_json('{"a":"\\u00e9"}') == State({"a": "é"})
    assert State.from_json('{"a":{"x":1,"y":2}}') == State.from_json('{"a":{"y":2,"x":1}}')
    assert State({"a": None}) == State()
    assert State({"a": 1}) != State({"a": True})
    assert State({"a": 1}) != State({"a": "1"})
    assert State({"a": 1}) == {"a": 1}
    assert State({"a": 1}) != {"a": 1, "b": 2}
    assert State({"a": 1}) != 5


@pytest.mark.row("E-41")
def test_merging() -> None:
    base, over = State({"a": 1, "b": 2}), State({"b": 3, "c": 4, "a": None})
    clone = copy.copy(base)
    merged = clone.merged(over)
    assert dict(merged) == {"b": 3, "c": 4}
    assert merged.raw_fields()["a"] == Raw(b"null"), "a pending delete"
    assert "a" not in merged
    assert set(merged.enacted().raw_fields()) == {"b", "c"}
    assert over.raw_fields()["a"] == Raw(b"null")
    assert base == clone == {"a": 1, "b": 2}
    assert dict(over) == {"b": 3, "c": 4}


@pytest.mark.row("E-10", "E-29")
def test_what_is_not_touched_keeps_every_byte() -> None:
    data = '{"n":1.50,"big":123456789012345678901234567890,"esc":"\\u00e9\\/","list":[1, 2 ,3],"text":"' + "é日" * 40_000 + '"}'
    state = State.from_json(data)
    assert state.to_json().decode() == data
    flow = Flow(state)
    flow["more"] = 1
    assert State.of({**state.raw_fields(), **flow.effect().changes.fields}).to_json().decode() == data[:-1] + ',"more":1}'


def test_states_can_be_copied_and_pickled() -> None:
    state = State({"a": [1], "b": None})
    for twin in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert twin == state
        assert twin.raw_fields() == state.raw_fields()


def test_errors_show_no_more_than_the_start_of_a_value() -> None:
    error = mistyped(lambda: State({"x": "é" * 10_000}).get_int("x"))
    assert len(str(error)) < 200
    with pytest.raises(StateValueError):
        State({"x": {1: 2}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=5))
@settings(max_examples=60)
def test_any_object_survives_the_trip_through_json(value: dict[str, Any]) -> None:
    state = State(value)
    present = {key: inner for key, inner in value.items() if inner is not None}
    assert repr(dict(state)) == repr(present)
    assert State.from_json(state.to_json()).to_json() == state.to_json()
    assert State.from_json(state.to_json()) == state
    assert msgspec.json.decode(state.to_json()) == value
