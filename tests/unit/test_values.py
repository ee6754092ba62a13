"""What may be stored, what is refused and where the refusal points, and what comes back."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import math
import types
import typing
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from dwarf import values
from dwarf.errors import InvalidArgument, StateValueError
from dwarf.flow import Flow
from dwarf.limits import FIELD_CHARS_MAX, NESTING_MAX
from dwarf.state import State
from dwarf.values import b64, check_field_name, encode, encode_fields, encode_object, parse_object, raw_json

NAN = math.nan
NOT_UTF8 = "\ud800"


class Colour(enum.Enum):
    RED = "red"


class Odd(enum.Enum):
    NOTHING = None
    NAN = NAN
    BYTES = b"x"
    PAIR = (1, NAN)
    OBJECT = types.SimpleNamespace()


class Level(enum.IntEnum):
    HIGH = 3


class Point(msgspec.Struct):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Order:
    total: Any
    lines: Any = ()
    limit: typing.ClassVar[float] = NAN
    hint: dataclasses.InitVar[int] = 0


@dataclasses.dataclass
class Basket:
    total: int
    lines: list[int]


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Fraction(float):
    pass


class Moment(datetime.datetime):
    pass


class Wait(datetime.timedelta):
    pass


def nested(levels: int, inside: Any = None) -> Any:
    value: Any = [] if inside is None else [inside]
    for _ in range(levels - 1):
        value = [value]
    return value


def refused(value: Any, path: str = "x") -> StateValueError:
    with pytest.raises(StateValueError) as caught:
        encode(value, path)
    return caught.value


# ---- what is refused, and where ----


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (NAN, "x"),
        (math.inf, "x"),
        (-math.inf, "x"),
        ([1, [NAN]], "x[1][0]"),
        ((1, NAN), "x[1]"),
        ({1.5, NAN}, None),
        (frozenset([NAN]), "x[0]"),
        ({"lines": [0, 1, 2, {"price": math.inf}]}, "x.lines[3].price"),
        (Point({"k": (1, NAN)}), "x.x.k[1]"),
        (Order([Point(NAN)]), "x.total[0].x"),
        ([Odd.NAN], "x[0]"),
        (Odd.PAIR, "x[1]"),
        (Fraction("nan"), "x"),
        ({"a": [Fraction("inf")]}, "x.a[0]"),
        (decimal.Decimal("NaN"), "x"),
        ([decimal.Decimal("-Infinity")], "x[0]"),
        (collections.ChainMap({"a": NAN}), "x.a"),
        ([None, NAN], "x[1]"),
        (["null", 1.5, {"a": NAN}], "x[2].a"),
    ],
)
def test_what_is_no_finite_number_is_refused_with_its_path(value: Any, path: str | None) -> None:
    error = refused(value)
    assert path is None or error.path == path
    assert error.status == 400
    assert error.path in str(error)
    assert "finite" in str(error)


@pytest.mark.row("E-28")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (NOT_UTF8, "x"),
        ("a\udfffb", "x"),
        (["ok", {"note": "é" + NOT_UTF8}], "x[1].note"),
        (Point(NOT_UTF8), "x.x"),
        (Order((NOT_UTF8,)), "x.total[0]"),
        ({NOT_UTF8: 1}, "x"),
        ({"a": {"b": {"\udc00": 1}}}, "x.a.b"),
        (Text(NOT_UTF8), "x"),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_path(value: Any, path: str) -> None:
    error = refused(value)
    assert error.path == path
    assert "surrogate" in str(error)
    str(error).encode()


@pytest.mark.row("E-28", "L15", "E-27")
@pytest.mark.parametrize(
    "text",
    [
        "a\x00b",
        "\x00",
        "\t\n\r\x0b\x1f\x7f",
        "'\"\\/`",
        "\\u0000",
        "日本語 中文",
        "שלום مرحبا",
        "👩‍👩‍👧 🏳️‍🌈",
        "\ufeff\u2028\u2029\uffff",
        "",
    ],
)
def test_text_comes_back_as_it_was(text: str) -> None:
    flow = Flow()
    flow["x"] = {text: [text]}
    flow[text] = text
    assert flow["x"] == {text: [text]}
    assert State.from_json(State.of(flow.effect().changes.fields).to_json())[text] == text
    assert State.from_json(encode_object({"x": text}, "resume data"))["x"] == text
    assert State({text: text}) == {text: text}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1: 2}, "x"),
        ({"a": [{None: 1}]}, "x.a[0]"),
        ({1.5: 1}, "x"),
        ({True: 1}, "x"),
        ({(1,): 1}, "x"),
        ({uuid.UUID(int=1): 1}, "x"),
        (Point({b"k": 1}), "x.x"),
    ],
)
def test_keys_that_are_not_text_are_refused(value: Any, path: str) -> None:
    error = refused(value)
    assert error.path == path
    assert "keys must be text" in str(error)


def test_keys_that_are_text_in_another_coat_are_text() -> None:
    class Name(enum.StrEnum):
        A = "a"

    assert encode({Name.A: 1, Text("b"): 2}, "x") == Raw(b'{"a":1,"b":2}')


@pytest.mark.row("E-26")
@pytest.mark.parametrize(
    ("value", "path"),
    [(b"x", "x"), (bytearray(b"x"), "x"), (memoryview(b"x"), "x"), ({"a": [b"x"]}, "x.a[0]"), (Point(b"x"), "x.x"), (Odd.BYTES, "x")],
)
def test_bytes_are_refused_unless_they_were_wrapped(value: Any, path: str) -> None:
    """The names in force ask for `dwarf.b64`: bytes that are stored by accident would come back as text."""
    error = refused(value)
    assert error.path == path
    assert "b64" in str(error)
    for data in (b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")):
        assert State({"x": b64(data)}).get("x", type=bytes) == b"\x00\xff"
        assert State({"x": b64(data)})["x"] == "AP8="


@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        (object(), "x", "object"),
        ([1, {"a": object()}], "x[1].a", "object"),
        (Point(object), "x.x", "type"),
        ({"a": 1j}, "x.a", "complex"),
        ((n for n in [1]), "x", "generator"),
        (collections.deque([1]), "x", "deque"),
        (types.SimpleNamespace(a=1), "x", "SimpleNamespace"),
        ([Odd.OBJECT], "x[0]", "SimpleNamespace"),
        ({"a": UNSET}, "x.a", "UnsetType"),
        (UNSET, "x", "UnsetType"),
        ([10**5000], "x[0]", "digits"),
        ({"a": [10**5000]}, "x.a[0]", "digits"),
        (ValueError("x"), "x", "ValueError"),
        (test_keys_that_are_not_text_are_refused, "x", "function"),
    ],
)
def test_what_has_no_json_form_is_refused_with_its_path(value: Any, path: str, text: str) -> None:
    error = refused(value)
    assert error.path == path
    assert text in str(error)


def test_a_part_that_looks_like_a_state_is_looked_into() -> None:
    @dataclasses.dataclass
    class Table:
        raw_fields: Any

    assert refused([Table([NAN])]).path == "x[0].raw_fields[0]"
    assert encode([Table([1])], "x") == Raw(b'[{"raw_fields":[1]}]')
    assert encode_fields(Table(1), "x") == {"raw_fields": Raw(b"1")}


def test_a_mapping_that_breaks_when_it_is_read_is_refused() -> None:
    class Broken(collections.UserDict[str, int]):
        def __iter__(self) -> Any:
            raise RuntimeError("broken")

    with pytest.raises((StateValueError, RuntimeError)):
        encode(Broken(a=1), "x")


def test_nesting_ends_at_the_limit_and_cycles_are_found() -> None:
    assert encode(nested(NESTING_MAX), "x")
    assert encode(nested(NESTING_MAX, Colour.RED), "x"), "what is no container is no level"
    for value in (nested(NESTING_MAX + 1), nested(NESTING_MAX, {}), nested(900), nested(100_000)):
        assert refused(value).path == "x"
    itself: list[Any] = []
    itself.append(itself)
    twice: dict[str, Any] = {}
    twice["a"], twice["b"] = twice, [twice]
    point = Point(1)
    point.x = point
    for cycle in (itself, twice, point, {"deep": [itself]}):
        error = refused(cycle)
        assert error.path == "x"
        assert "holds itself" in str(error)


def test_something_wrong_before_a_cycle_is_what_is_named() -> None:
    itself: list[Any] = []
    itself += [itself, itself]
    assert refused([NOT_UTF8, itself]).path == "x[0]"
    assert "holds itself" in str(refused([itself, NOT_UTF8]))


def test_shared_parts_are_no_cycle() -> None:
    shared = {"a": [1]}
    assert encode([shared, shared], "x") == Raw(b'[{"a":[1]},{"a":[1]}]')


@pytest.mark.row("E-30")
def test_a_value_over_the_limit_is_refused_naming_size_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "VALUE_BYTES_MAX", 1000)
    assert encode("a" * 998, "x")
    error = refused("a" * 999)
    assert error.path == "x"
    assert "1001" in str(error)
    assert "1000" in str(error)
    for refusing in (
        lambda: encode_object({"a": "b" * 600, "c": "d" * 600}, "the state"),
        lambda: parse_object(b'{"a":"' + b"b" * 1000 + b'"}', "the state"),
        lambda: raw_json(b'"' + b"b" * 1000 + b'"'),
        lambda: Flow().set("a", ["b" * 600, "c" * 600]),
    ):
        with pytest.raises(StateValueError, match="1000"):
            refusing()


# ---- what is accepted ----


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=datetime.UTC), datetime.datetime),
        (datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5, minutes=30))), datetime.datetime),
        (datetime.datetime(2024, 2, 29, 12), datetime.datetime),  # noqa: DTZ001 - without a zone on purpose
        (datetime.date(2024, 2, 29), datetime.date),
        (datetime.time(1, 2, 3), datetime.time),
        (datetime.timedelta(days=400, microseconds=1), datetime.timedelta),
        (datetime.timedelta(seconds=-1.5), datetime.timedelta),
        (uuid.UUID(int=7), uuid.UUID),
        (decimal.Decimal("1.10"), decimal.Decimal),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (Point(1, [2]), Point),
        (Basket(1, [2]), Basket),
        ({1, 2}, set[int]),
        (frozenset("a"), frozenset[str]),
        ((1, "a"), tuple[int, str]),
        ([Point(1)], list[Point]),
        ({"a": Point(1)}, dict[str, Point]),
        ([datetime.timedelta(seconds=90)], list[datetime.timedelta]),
        (2**63, int),
        (2**64, int),
        (-(2**70), int),
        (10**4000, int),
        (0.1 + 0.2, float),
        (5e-324, float),
        (1.7976931348623157e308, float),
        (-0.0, float),
        (True, bool),
    ],
)
def test_values_come_back_as_their_types(value: Any, kind: Any) -> None:
    flow = Flow()
    flow["x"] = value
    back = flow.get("x", type=kind)
    assert back == value
    assert math.copysign(1, back) == math.copysign(1, value) if isinstance(value, float) else True
    assert State.from_json(State.of(flow.effect().changes.fields).to_json()).get("x", type=kind) == value


def test_subclasses_of_plain_types_count_as_those() -> None:
    moment = Moment(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    value = {"text": Text("a"), "whole": Whole(3), "fraction": Fraction(0.5), "moment": moment, "waits": [Wait(seconds=1)], "none": None}
    assert encode(value, "x") == Raw(b'{"text":"a","whole":3,"fraction":0.5,"moment":"2024-01-02T03:04:05Z","waits":["PT1S"],"none":null}')
    assert encode(Wait(seconds=1), "x") == Raw(b"1000000000")
    assert encode(types.MappingProxyType({"a": 1}), "x") == Raw(b'{"a":1}')
    assert encode(State({"a": 1}), "x") == Raw(b'{"a":1}')
    assert encode([collections.OrderedDict(b=1, a=2), collections.Counter("aa")], "x") == Raw(b'[{"b":1,"a":2},{"a":2}]')


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=20,
    )
)
@settings(max_examples=80)
def test_any_json_value_comes_back_equal(value: Any) -> None:
    raw = encode(value, "x")
    assert repr(msgspec.json.decode(raw)) == repr(value)
    assert raw_json(bytes(raw)) == raw


@given(st.data())
@settings(max_examples=80)
def test_whatever_is_hidden_somewhere_is_found(data: st.DataObject) -> None:
    """Put one bad part at a random place of a random value: it is refused, with the path that leads to it."""
    value: Any = data.draw(st.sampled_from([NAN, b"x", NOT_UTF8, object(), decimal.Decimal("Infinity"), {1: 1}, Raw(b"{")]))
    path = ""
    for _ in range(data.draw(st.integers(0, 6))):
        siblings = data.draw(st.lists(st.sampled_from([None, 1, 1.5, "null", "a", {"k": None}, [1.0]]), max_size=3))
        match data.draw(st.sampled_from(["list", "tuple", "dict", "struct", "dataclass"])):
            case "list":
                value, path = [*siblings, value], f"[{len(siblings)}]{path}"
            case "tuple":
                value, path = (*siblings, value, *siblings), f"[{len(siblings)}]{path}"
            case "dict":
                value, path = {**{f"s{n}": s for n, s in enumerate(siblings)}, "k": value}, f".k{path}"
            case "struct":
                value, path = Point(siblings, value), f".y{path}"
            case _:
                value, path = Order(value, siblings), f".total{path}"
    assert refused(value).path == f"x{path}"


# ---- JSON that is encoded already ----


@pytest.mark.row("E-26")
def test_pre_encoded_json_is_stored_as_it_is_and_must_be_valid() -> None:
    flow = Flow()
    flow.set_json("a", b' {"n": 1.50, "big": 123456789012345678901234567890}\n')
    flow.set_json("b", '"\\u00e9"')
    flow.set_json("c", " null ")
    flow["d"] = Raw(b"  [1 , 2] ")
    flow["e"] = {"inner": Raw(b"1.50")}
    flow["f"] = raw_json("  null ")
    fields = flow.effect().changes.fields
    assert bytes(fields["a"]) == b'{"n": 1.50, "big": 123456789012345678901234567890}'
    assert flow["b"] == "é"
    assert "c" not in flow
    assert "f" not in flow
    assert bytes(fields["d"]) == b"[1 , 2]"
    assert bytes(fields["e"]) == b'{"inner":1.50}'
    for bad in (b"", b"{", b"[1,]", b"nul", b"01", b"1e400", b'"\xff"', b"1 2", b"NaN", '"\\ud800"', "[" * 300 + "]" * 300):
        with pytest.raises(StateValueError) as caught:
            flow.set_json("bad", bad)
        assert caught.value.path == "bad"
    with pytest.raises(InvalidArgument, match="int"):
        flow.set_json("bad", 5)  # type: ignore[arg-type]
    assert "bad" not in flow.effect().changes.fields


@pytest.mark.parametrize("bad", [b"", b"{", b"junk", b'{"a":1e400}', b'"\\ud800"'])
def test_raw_json_inside_a_value_is_checked(bad: bytes) -> None:
    assert refused({"a": [Raw(bad)]}).path.startswith("x.a[0]")
    assert refused(Raw(bad)).path.startswith("x")


def test_nesting_counts_through_embedded_json_and_states() -> None:
    deep = Raw(b"[" * 150 + b"]" * 150)
    assert encode([deep], "x")
    assert encode(nested(50, deep), "x")
    assert refused(nested(51, deep)).path == "x"
    assert refused(nested(51, State({"a": nested(150)}))).path == "x"
    assert refused(Raw(b"[" * 201 + b"]" * 201)).path == "x"
    assert encode(Raw(b"[" * 200 + b"]" * 200), "x")
    assert encode(Raw(b'["' + b"[" * 500 + b'","\\"[["]'), "x"), "brackets inside text are no nesting"


# ---- objects ----


@pytest.mark.row("E-37")
@pytest.mark.parametrize("nothing", [None, b"null", "null", b"", "", b"{}", "  {}\n", b"\t\r\n ", bytearray(b" null ")])
def test_nothing_is_an_empty_state(nothing: Any) -> None:
    assert parse_object(nothing, "the state") == {}
    state = State.from_json(nothing)
    assert state == {}
    assert len(state) == 0
    assert state.to_json() == b"{}"
    assert State(None) == State() == State({}) == state
    assert encode_object(None, "x") == encode_object({}, "x") == b"{}"


@pytest.mark.row("E-38", "E-39", "B26")
@pytest.mark.parametrize(
    "value", [5, 5.5, "text", [1], (1,), True, {1}, b"{}", Raw(b"{}"), Colour.RED, datetime.timedelta(1), object(), Point, State]
)
def test_what_has_no_fields_is_no_state(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="the input must be an object") as caught:
        encode_object(value, "the input")
    assert caught.value.status == 400
    with pytest.raises(InvalidArgument):
        State(value)


@pytest.mark.row("E-38", "E-39")
@pytest.mark.parametrize("data", [b"5", "5.5", b'"text"', b"[1]", b"true", b"false", '"{}"'])
def test_json_that_is_no_object_is_no_state(data: Any) -> None:
    with pytest.raises(InvalidArgument, match="the input must be a JSON object") as caught:
        parse_object(data, "the input")
    assert caught.value.status == 400


@pytest.mark.row("E-28")
@pytest.mark.parametrize(
    ("data", "path"),
    [
        ('{"a":{"b":[1,1e400]}}', "a.b[1]"),
        ('{"a":[NaN]}', "a[0]"),
        ('{"a":-Infinity}', "a"),
        ('{"x":{"y":"\\ud800"}}', "x.y"),
        ('{"x":["\\udc00\\ud800"]}', "x[0]"),
        ('{"x":{"\\ud800":1}}', "x"),
        ('{"a":[' + "1" * 5000 + "]}", "a[0]"),
        ('{"a":01}', "the input"),
        ('{"a":1}}', "the input"),
        ("{'a':1}", "the input"),
        ('{"a"', "the input"),
        (b'{"a":"\xff"}', "the input"),
        (b'{"\xed\xa0\x80":1}', "the input"),
        ('{"a":"\ud800"}', "the input"),
        ("[" * 100_000, "the input"),
        ('{"a":' * 202 + "1" + "}" * 202, "the input"),
    ],
)
def test_json_that_cannot_be_stored_is_refused_at_the_door_with_its_path(data: Any, path: str) -> None:
    with pytest.raises(StateValueError, match="the input") as caught:
        parse_object(data, "the input")
    assert caught.value.path == path
    assert caught.value.status == 400


def test_json_from_outside_keeps_its_spelling_and_the_last_of_duplicate_keys() -> None:
    fields = parse_object('{"a": 1.50, "b": {"x":1,"x":2}, "a": 2.50, "big": 18446744073709551617, "nul": null}', "x")
    assert {field: bytes(raw) for field, raw in fields.items()} == {
        "a": b"2.50", "b": b'{"x":1,"x":2}', "big": b"18446744073709551617", "nul": b"null",
    }  # fmt: skip
    assert parse_object('{"a":' * 201 + "1" + "}" * 201, "x"), "the state itself is no level of a value"
    with pytest.raises(InvalidArgument, match="int"):
        parse_object(5, "x")  # type: ignore[arg-type]


def test_an_object_s_fields_are_values_of_their_own() -> None:
    class Renamed(msgspec.Struct, rename="camel", omit_defaults=True, tag="quote"):
        unit_price: float = 1.5
        wait_for: datetime.timedelta = datetime.timedelta(seconds=2)
        nothing: str | None = None
        unset: int | msgspec.UnsetType = UNSET

    expected = {"type": b'"quote"', "unitPrice": b"1.5", "waitFor": b"2000000000", "nothing": b"null"}
    assert {field: bytes(raw) for field, raw in encode_fields(Renamed(), "x").items()} == expected
    assert encode_fields({"a": None, "b": UNSET, "c": 1}, "x") == {"a": Raw(b"null"), "c": Raw(b"1")}
    assert encode_fields(Order(1), "x") == {"total": Raw(b"1"), "lines": Raw(b"[]")}
    assert encode_fields(collections.ChainMap({"a": 1}), "x") == {"a": Raw(b"1")}
    given = State({"a": None, "b": 1.50})
    assert encode_fields(given, "x") == given.raw_fields()
    assert encode_fields(given, "x") is not given.raw_fields()


def test_an_error_in_an_object_names_what_it_is_for_and_the_path() -> None:
    with pytest.raises(StateValueError, match="the payload: a.b is nan") as caught:
        encode_object({"a": {"b": NAN}}, "the payload")
    assert caught.value.path == "a.b"

    class Listed(msgspec.Struct, array_like=True):
        x: int = 1

    with pytest.raises(InvalidArgument, match="the payload"):
        encode_object(Listed(), "the payload")


# ---- names of fields ----


@pytest.mark.parametrize("name", ["a", "", "with space", "a.b", "日本", "x" * FIELD_CHARS_MAX, "\x00", "itemIndex", "123"])
def test_any_text_is_the_name_of_a_field(name: str) -> None:
    assert check_field_name(name, "x") == name
    assert State({name: 1})[name] == 1
    assert parse_object(msgspec.json.encode({name: 1}), "x") == {name: Raw(b"1")}


@pytest.mark.parametrize("name", [1, None, b"a", ("a",), True, NOT_UTF8, "x" * (FIELD_CHARS_MAX + 1)])
def test_what_is_no_text_is_not_the_name_of_a_field(name: Any) -> None:
    for refusing in (
        lambda: check_field_name(name, "the state"),
        lambda: State({name: 1}),
        lambda: Flow().set(name, 1),
        lambda: Flow().update({name: 1}),
        lambda: Flow().delete(name),
        lambda: Flow().set_json(name, "1"),
        lambda: Flow().overwrite(name, 1),
    ):
        with pytest.raises(StateValueError) as caught:
            refusing()
        str(caught.value).encode()
