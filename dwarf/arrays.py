"""PostgreSQL's binary formats, built and read a column at a time: parameters of the hot statements, and their results.

Owns the byte layouts below and nothing else: pure functions from values to bytes and back. An array travels as

    int32 dimensions (0 or 1) | int32 has-null | oid element type | int32 length | int32 lower bound (1)
    then for every element: int32 bytes, or -1 for null | the element

all big-endian. Every builder takes None for null, and a sequence that holds what its type cannot is a `ValueError` that
names the place. Building by columns costs some 50 ns an element; a driver that looks at every value takes ten times that.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct, error, unpack
from typing import Any, cast

BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON, FLOAT4, FLOAT8, TIMESTAMPTZ = 16, 17, 20, 21, 23, 25, 114, 700, 701, 1184
BOOL_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT2_ARRAY, INT4_ARRAY = 1000, 1001, 1016, 1005, 1007
TEXT_ARRAY, JSON_ARRAY, FLOAT4_ARRAY, FLOAT8_ARRAY, TIMESTAMPTZ_ARRAY = 1009, 199, 1021, 1022, 1185

Buffer = bytes | bytearray | memoryview  # of single bytes

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
FOREVER, SINCE_EVER = (1 << 63) - 1, -(1 << 63)  # `infinity` and `-infinity`, in microseconds since the epoch
_MICROSECOND = timedelta(microseconds=1)

_HEADER = Struct("!iiIii")
_NULL = b"\xff\xff\xff\xff"
_LENGTHS = tuple(Struct("!i").pack(length) for length in range(4096))  # those of most texts and documents, ready made
_BOOLS = {True: b"\0\0\0\1\1", False: b"\0\0\0\1\0", None: _NULL}
_CELLS_MAX = 1024  # elements that one compiled layout packs
_SWAP = sys.byteorder == "little"

# ---- single values ----

_INT2, _INT4, _INT8, _FLOAT4, _FLOAT8, _LENGTH = map(Struct, ("!h", "!i", "!q", "!f", "!d", "!i"))
int2: Callable[[int], bytes] = _INT2.pack
int4: Callable[[int], bytes] = _INT4.pack
int8: Callable[[int], bytes] = _INT8.pack
float8: Callable[[float], bytes] = _FLOAT8.pack
text: Callable[[str], bytes] = str.encode


def boolean(value: bool) -> bytes:
    """Return a boolean's one byte."""
    return b"\1" if value else b"\0"


def timestamptz(value: datetime) -> bytes:
    """Return the bytes of an aware time."""
    return _INT8.pack(micros(value))


def micros(value: datetime) -> int:
    """Return the whole microseconds between the server's epoch and an aware time. `TypeError` for a naive one."""
    since = value - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(value: int) -> datetime:
    """Return the time at whole microseconds after the server's epoch: the inverse of `micros`."""
    return EPOCH + value * _MICROSECOND


# ---- arrays ----


def int2_array(values: Sequence[int | None]) -> bytes:
    """Build an int2[]."""
    try:
        column = array("h", cast("Sequence[int]", values))
    except (TypeError, OverflowError):
        return _nullable("int2", INT2, _INT2, values)
    cells = array("h", (0, 2, 0)) * len(column)
    cells[2::3] = column
    return _native("int2", INT2, cells, len(column))


def int4_array(values: Sequence[int | None]) -> bytes:
    """Build an int4[]."""
    try:
        column = array("i", cast("Sequence[int]", values))
    except (TypeError, OverflowError):
        return _nullable("int4", INT4, _INT4, values)
    cells = array("i", (4, 0)) * len(column)
    cells[1::2] = column
    return _native("int4", INT4, cells, len(column))


def int8_array(values: Sequence[int | None]) -> bytes:
    """Build an int8[]."""
    return _packed("int8", INT8, _INT8, values)


def float4_array(values: Sequence[float | None]) -> bytes:
    """Build a float4[]. A value beyond its range is refused, not made infinite."""
    return _packed("float4", FLOAT4, _FLOAT4, values)


def float8_array(values: Sequence[float | None]) -> bytes:
    """Build a float8[]."""
    return _packed("float8", FLOAT8, _FLOAT8, values)


def bool_array(values: Sequence[bool | None]) -> bytes:
    """Build a bool[]."""
    try:
        body = b"".join(map(_BOOLS.__getitem__, values))
    except (KeyError, TypeError):
        raise _refused("bool", values, lambda value: value is None or value in (0, 1)) from None
    return _array(BOOL, body, len(values), has_null=len(body) < 5 * len(values))


def text_array(values: Sequence[str | None]) -> bytes:
    """Build a text[]. The server refuses NUL in a text, and with it the whole statement."""
    try:
        if None in values:
            return _joined(TEXT, [None if value is None else value.encode() for value in values])
        return _joined(TEXT, [value.encode() for value in cast("Sequence[str]", values)])
    except (AttributeError, UnicodeEncodeError):
        raise _refused("text", values, _is_text) from None


def json_array(values: Sequence[Buffer | None]) -> bytes:
    """Build a json[] of encoded documents. Nothing looks into them before the server does."""
    return _binary("json", JSON, values)


def bytea_array(values: Sequence[Buffer | None]) -> bytes:
    """Build a bytea[]."""
    return _binary("bytea", BYTEA, values)


def timestamptz_array(values: Sequence[datetime | None]) -> bytes:
    """Build a timestamptz[] of aware times."""
    try:
        column = [None if value is None else micros(value) for value in values]
    except (TypeError, AttributeError):
        raise _refused("timestamptz", values, _is_time) from None
    return _packed("timestamptz", TIMESTAMPTZ, _INT8, column)


def micros_array(values: Sequence[int | None]) -> bytes:
    """Build a timestamptz[] of microseconds since the server's epoch; `FOREVER` and `SINCE_EVER` are the infinities."""
    return _packed("timestamptz", TIMESTAMPTZ, _INT8, values)


def _array(oid: int, body: bytes, length: int, *, has_null: bool) -> bytes:
    if length == 0:
        return _HEADER.pack(0, 0, oid, 0, 0)[:12]
    return _HEADER.pack(1, has_null, oid, length, 1) + body


def _native(name: str, oid: int, cells: array[int], length: int) -> bytes:
    if _SWAP:
        cells.byteswap()
    return _array(oid, cells.tobytes(), length, has_null=False)


@lru_cache(maxsize=256)
def _cells(code: str, count: int) -> Struct:
    return Struct("!" + ("i" + code) * count)


def _packed(name: str, oid: int, one: Struct, values: Sequence[float | None]) -> bytes:
    """Pack a whole column at once, its lengths between its values."""
    flat: list[float | None] = [one.size] * (2 * len(values))
    flat[1::2] = values
    code = one.format[-1]
    try:
        if len(values) <= _CELLS_MAX:
            return _array(oid, _cells(code, len(values)).pack(*flat), len(values), has_null=False)
        parts = [flat[start : start + 2 * _CELLS_MAX] for start in range(0, len(flat), 2 * _CELLS_MAX)]
        return _array(oid, b"".join([_cells(code, len(part) // 2).pack(*part) for part in parts]), len(values), has_null=False)
    except (error, OverflowError):
        return _nullable(name, oid, one, values)


def _nullable(name: str, oid: int, one: Struct, values: Sequence[float | None]) -> bytes:
    """Pack value by value: the way of a column with nulls in it, and of one that is refused."""
    if None not in values:
        raise _refused(name, values, lambda value: _fits(one, value))
    cell = _cells(one.format[-1], 1).pack
    size = one.size
    try:
        body = b"".join([_NULL if value is None else cell(size, value) for value in values])
    except (error, OverflowError):
        raise _refused(name, values, lambda value: value is None or _fits(one, value)) from None
    return _array(oid, body, len(values), has_null=True)


def _binary(name: str, oid: int, values: Sequence[Buffer | None]) -> bytes:
    try:
        return _joined(oid, values)
    except TypeError:
        raise _refused(name, values, lambda value: value is None or isinstance(value, Buffer)) from None


def _joined(oid: int, values: Sequence[Buffer | None]) -> bytes:
    nulls = values.count(None)
    if nulls == len(values):
        return _array(oid, _NULL * nulls, nulls, has_null=True)
    whole = [value or b"" for value in values] if nulls else cast("Sequence[Buffer]", values)
    flat: list[Buffer] = [b""] * (2 * len(values))
    flat[1::2] = whole
    try:
        flat[::2] = map(_LENGTHS.__getitem__, map(len, whole))
    except IndexError:
        flat[::2] = map(_LENGTH.pack, map(len, whole))
    if nulls:
        flat[::2] = [_NULL if value is None else length for value, length in zip(values, flat[::2], strict=True)]
    return _array(oid, b"".join(flat), len(values), has_null=nulls > 0)


def _fits(one: Struct, value: object) -> bool:
    try:
        one.pack(value)
    except (error, OverflowError):
        return False
    return True


def _is_text(value: object) -> bool:
    try:
        return value is None or bool(isinstance(value, str) and value.encode() is not None)
    except UnicodeEncodeError:
        return False


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, datetime) and value.utcoffset() is not None)


def _refused(name: str, values: Sequence[object], fits: Callable[[object], bool]) -> ValueError:
    place, value = next((place, value) for place, value in enumerate(values) if not fits(value))
    shown = repr(value)
    return ValueError(f"element {place} of an array of {name} is {shown[:80]}, which is no {name}")


# ---- results: None stands for null, which is why their elements are typed as anything ----


def read_int2(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of int2."""
    return _read(_INT2, cells)


def read_int4(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of int4."""
    return _read(_INT4, cells)


def read_int8(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of int8, or of timestamptz as microseconds since the server's epoch."""
    return _read(_INT8, cells)


def read_float4(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of float4."""
    return _read(_FLOAT4, cells)


def read_float8(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of float8."""
    return _read(_FLOAT8, cells)


def read_bool(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of bool."""
    return [None if cell is None else cell != b"\0" for cell in cells]


def read_text(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of text."""
    return [None if cell is None else cell.decode() for cell in cells]


def read_timestamptz(cells: Sequence[bytes | None]) -> list[Any]:
    """Read a column of timestamptz as aware times. `ValueError` for an infinity and for years after 9999."""
    return [None if since is None else _time(since) for since in read_int8(cells)]


def read_array(value: bytes) -> list[bytes | None]:
    """Cut an array of one dimension into its elements, for one of the readers above."""
    (dimensions,) = _LENGTH.unpack_from(value)
    if dimensions == 0:
        return []
    if dimensions != 1:
        raise ValueError(f"an array has {dimensions} dimensions; only one can be read")
    cells: list[bytes | None] = []
    position = _HEADER.size
    for _ in range(_LENGTH.unpack_from(value, 12)[0]):
        (size,) = _LENGTH.unpack_from(value, position)
        position += 4
        cells.append(None if size < 0 else value[position : position + size])
        position += max(size, 0)
    return cells


def read_int4_array(value: bytes) -> list[Any]:
    """Read an int4[]."""
    return _read_numbers(_INT4, value)


def read_int8_array(value: bytes) -> list[Any]:
    """Read an int8[]."""
    return _read_numbers(_INT8, value)


def _read(one: Struct, cells: Sequence[bytes | None]) -> list[Any]:
    try:
        return list(unpack(f"!{len(cells)}{one.format[-1]}", b"".join(cast("Sequence[bytes]", cells))))
    except TypeError:
        return [None if cell is None else one.unpack(cell)[0] for cell in cells]


def _read_numbers(one: Struct, value: bytes) -> list[Any]:
    dimensions, has_null = unpack("!ii", value[:8])
    if dimensions == 1 and not has_null:
        (length,) = _LENGTH.unpack_from(value, 12)
        if length <= _CELLS_MAX:
            return list(_cells(one.format[-1], length).unpack_from(value, _HEADER.size)[1::2])
    return _read(one, read_array(value))


def _time(since: int) -> datetime:
    try:
        return EPOCH + since * _MICROSECOND  # half the price of a timedelta made of microseconds
    except OverflowError:
        which = "infinite" if since in {FOREVER, SINCE_EVER} else f"{since} microseconds from 2000-01-01"
        raise ValueError(f"a time is {which}, beyond what a datetime reaches") from None
