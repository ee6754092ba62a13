"""The binary formats of PostgreSQL, without a server: layouts, refusals, and what is read back. `tests/sql` asks the server."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf import arrays

Build = Callable[[Sequence[Any]], bytes]
Read = Callable[[Sequence[bytes | None]], list[Any]]


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


NAIVE = datetime.fromisoformat("2030-01-01")
times = st.timedeltas(timedelta(days=-730_000), timedelta(days=2_900_000)).map(lambda since: arrays.EPOCH + since)
TYPES: list[tuple[Build, Read, int, st.SearchStrategy[Any]]] = [
    (arrays.int2_array, arrays.read_int2, arrays.INT2, whole(16)),
    (arrays.int4_array, arrays.read_int4, arrays.INT4, whole(32)),
    (arrays.int8_array, arrays.read_int8, arrays.INT8, whole(64)),
    (arrays.micros_array, arrays.read_int8, arrays.TIMESTAMPTZ, whole(64)),
    (arrays.float4_array, arrays.read_float4, arrays.FLOAT4, st.floats(width=32, allow_nan=False)),
    (arrays.float8_array, arrays.read_float8, arrays.FLOAT8, st.floats(allow_nan=False)),
    (arrays.bool_array, arrays.read_bool, arrays.BOOL, st.booleans()),
    (arrays.text_array, arrays.read_text, arrays.TEXT, st.text(st.characters(exclude_categories=["Cs"]))),
    (arrays.json_array, list, arrays.JSON, st.binary()),
    (arrays.bytea_array, list, arrays.BYTEA, st.binary()),
    (arrays.timestamptz_array, arrays.read_timestamptz, arrays.TIMESTAMPTZ, times),
]
NAMED = [pytest.param(*each, id=each[0].__name__) for each in TYPES]
NUMBERS = [each[0] for each in TYPES[:6]]


def reference(oid: int, cells: Sequence[bytes | None]) -> bytes:
    """The layout, written down once more, plainly."""
    if not cells:
        return struct.pack("!iiI", 0, 0, oid)
    body = b"".join(struct.pack("!i", -1) if cell is None else struct.pack("!i", len(cell)) + cell for cell in cells)
    return struct.pack("!iiIii", 1, None in cells, oid, len(cells), 1) + body


@pytest.mark.parametrize(("build", "read", "oid", "values"), NAMED)
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_built_is_read_back(build: Build, read: Read, oid: int, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    column = data.draw(st.lists(values) | st.lists(values | st.none()))
    built = build(column)
    cells = arrays.read_array(built)
    assert built == reference(oid, cells)
    assert read(cells) == column


@pytest.mark.parametrize("build", NUMBERS)
@pytest.mark.parametrize("length", [1023, 1024, 1025, 2048, 5000])
def test_long_columns_are_built_like_short_ones(build: Build, length: int) -> None:
    column = list(range(length))
    assert build(column)[20:] == b"".join(build([value])[20:] for value in column)
    with_null: list[int | None] = [*column, None]
    assert build(with_null)[20:] == build(column)[20:] + b"\xff" * 4


@pytest.mark.parametrize(("build", "read", "oid", "values"), NAMED)
def test_tuples_do_as_well_as_lists(build: Build, read: Read, oid: int, values: st.SearchStrategy[Any]) -> None:
    assert build(()) == build([])
    assert build((None, None)) == build([None, None]) == reference(oid, [None, None])


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000])
def test_texts_and_documents_of_every_size(size: int) -> None:
    document = b"x" * size
    assert arrays.json_array([document, None]) == reference(arrays.JSON, [document, None])
    assert arrays.text_array(["x" * size]) == reference(arrays.TEXT, [document])


def test_documents_may_be_any_buffer() -> None:
    assert arrays.json_array([memoryview(b"{}"), bytearray(b"[]")]) == arrays.json_array([b"{}", b"[]"])


@pytest.mark.parametrize(
    ("build", "values", "place", "what"),
    [
        (arrays.int2_array, [1, 1 << 15], 1, "int2"),
        (arrays.int4_array, [1, 2, -(1 << 31) - 1], 2, "int4"),
        (arrays.int8_array, [1 << 63], 0, "int8"),
        (arrays.int8_array, [None, 1, 1 << 63], 2, "int8"),
        (arrays.int4_array, [None, 1.0], 1, "int4"),
        (arrays.int8_array, [1, "2"], 1, "int8"),
        (arrays.int2_array, [1.5], 0, "int2"),
        (arrays.float4_array, [1e39], 0, "float4"),
        (arrays.float8_array, [1, None, "x"], 2, "float8"),
        (arrays.bool_array, [True, 2], 1, "bool"),
        (arrays.bool_array, [[]], 0, "bool"),
        (arrays.text_array, ["a", b"b"], 1, "text"),
        (arrays.text_array, [None, "a", 1], 2, "text"),
        (arrays.text_array, ["\ud800"], 0, "text"),
        (arrays.json_array, [b"1", "2"], 1, "json"),
        (arrays.json_array, [None, b"1", 2], 2, "json"),
        (arrays.timestamptz_array, [None, NAIVE], 1, "timestamptz"),
        (arrays.timestamptz_array, ["today"], 0, "timestamptz"),
    ],
)
def test_a_value_that_does_not_fit_is_named(build: Build, values: list[Any], place: int, what: str) -> None:
    with pytest.raises(ValueError, match=rf"^element {place} of an array of {what} is .*, which is no {what}$"):
        build(values)


def test_a_bool_is_a_number_and_no_number_but_0_and_1_a_bool() -> None:
    assert arrays.int4_array([True]) == arrays.int4_array([1])
    numbers: list[Any] = [1, 0]
    assert arrays.bool_array(numbers) == arrays.bool_array([True, False])


def test_single_values() -> None:
    assert (arrays.int2(-2), arrays.int4(3), arrays.int8(-4)) == (b"\xff\xfe", b"\0\0\0\x03", b"\xff" * 7 + b"\xfc")
    assert (arrays.float8(1.5), arrays.text("é"), arrays.boolean(True), arrays.boolean(False)) == (
        struct.pack("!d", 1.5),
        "é".encode(),
        b"\1",
        b"\0",
    )
    assert arrays.timestamptz(arrays.EPOCH + timedelta(seconds=1)) == struct.pack("!q", 1_000_000)


def test_a_time_of_another_zone_is_the_same_instant() -> None:
    here = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert arrays.micros(here) == arrays.micros(here.astimezone(UTC))
    with pytest.raises(TypeError):
        arrays.timestamptz(NAIVE)


@pytest.mark.parametrize(
    ("since", "said"), [(arrays.FOREVER, "infinite"), (arrays.SINCE_EVER, "infinite"), (1 << 60, "microseconds from 2000")]
)
def test_a_time_that_no_datetime_reaches_is_refused(since: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        arrays.read_timestamptz([arrays.int8(since)])


@given(st.lists(whole(64) | st.none(), max_size=40))
def test_arrays_of_numbers_are_read_whole(column: list[int | None]) -> None:
    assert arrays.read_int8_array(arrays.int8_array(column)) == column
    small = [None if value is None else value >> 32 for value in column]
    assert arrays.read_int4_array(arrays.int4_array(small)) == small


def test_a_long_array_of_numbers_is_read_whole() -> None:
    column = list(range(3000))
    assert arrays.read_int8_array(arrays.int8_array(column)) == column


def test_an_array_of_two_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        arrays.read_array(struct.pack("!iiIiiii", 2, 0, arrays.INT4, 1, 1, 1, 1) + struct.pack("!ii", 4, 1))


def test_an_empty_column_is_read_as_nothing() -> None:
    assert arrays.read_int8([]) == arrays.read_text([]) == arrays.read_timestamptz([]) == []
