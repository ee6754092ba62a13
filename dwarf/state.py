"""State as its readers see it: a read-only mapping that decodes a field when it is read, and never before.

`State` keeps each field's JSON as it came. What nobody touches is neither decoded nor encoded again, so big integers,
long texts and numbers keep every digit. `TypedReads` is what a `State` and a task's `Flow` share: the typed getters.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Raw

from dwarf.errors import StateTypeError
from dwarf.values import Fields, encode_object, is_null, opens_with, parse_object

T = TypeVar("T")

_decode = msgspec.json.decode
_encode = msgspec.json.encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_ZERO_DURATION = datetime.timedelta(0)


class TypedReads:
    """Typed access to fields, over `_raw(key)`.

    An absent field, and one that is null, gives the getter's zero value or the `default` passed. A field of another type
    raises `StateTypeError`.
    """

    __slots__ = ()

    def _raw(self, key: str) -> Raw | None:
        raise NotImplementedError

    @overload
    def get(self, key: str, default: Any = None) -> Any: ...
    @overload
    def get(self, key: str, default: T, *, type: type[T]) -> T: ...
    @overload
    def get(self, key: str, default: Any = None, *, type: Any) -> Any: ...
    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """Return a field decoded as `type`: any type msgspec decodes, such as `list[str]` or a Struct of your own."""
        raw = self._raw(key)
        if raw is None or is_null(raw):
            return default
        return _decode(raw) if type is Any else decode_as(key, raw, type)

    def get_str(self, key: str, default: str = "") -> str:
        value: str = self.get(key, default, type=str)
        return value

    def get_int(self, key: str, default: int = 0) -> int:
        """Return an integer, exact at any size; a whole fraction such as 5.0 is one, 5.5 is not."""
        value: int = self.get(key, default, type=int)
        return value

    def get_float(self, key: str, default: float = 0.0) -> float:
        value = self.get(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _mistyped(key, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise StateTypeError(f"field {key!r} is too large for a float; read it with get_int", field=key) from None

    def get_bool(self, key: str, default: bool = False) -> bool:
        value: bool = self.get(key, default, type=bool)
        return value

    def get_list(self, key: str, default: list[Any] | None = None, *, type: Any = Any) -> list[Any]:
        """Return a list whose elements are decoded as `type`; absent gives a new empty list."""
        value: list[Any] | None = self.get(key, default, type=list[type])
        return [] if value is None else value

    def get_dict(self, key: str, default: dict[str, Any] | None = None, *, type: Any = Any) -> dict[str, Any]:
        """Return an object whose members are decoded as `type`; absent gives a new empty one."""
        value: dict[str, Any] | None = self.get(key, default, type=dict[str, type])
        return {} if value is None else value

    def get_duration(self, key: str, default: datetime.timedelta = _ZERO_DURATION) -> datetime.timedelta:
        """Return a duration, stored as whole nanoseconds (below a microsecond it is cut)."""
        value: datetime.timedelta = self.get(key, default, type=datetime.timedelta)
        return value

    def get_datetime(self, key: str, default: datetime.datetime | None = None) -> datetime.datetime | None:
        """Return a time, stored as RFC 3339 text; absent gives None unless a default is passed."""
        value: datetime.datetime | None = self.get(key, default, type=datetime.datetime)
        return value


class State(TypedReads, Mapping[str, Any]):
    """A read-only mapping of field names to values, decoded when read. A value read is yours: changing it changes nothing.

    Two states are equal when their fields are; comparing with a plain mapping compares the decoded values.
    """

    __slots__ = ("_fields",)

    def __init__(self, value: Any = None) -> None:
        """Take a mapping, a Struct or a dataclass; None is empty. Raises `InvalidArgument` and `StateValueError`."""
        self._fields: Fields = parse_object(encode_object(value, "the state"), "the state")

    @classmethod
    def from_json(cls, data: bytes | str | None, what: str = "the state") -> State:
        """Read a JSON object; nothing, blanks and null are empty. Raises `InvalidArgument` and `StateValueError`."""
        return cls.of(parse_object(data, what))

    @classmethod
    def of(cls, fields: Fields) -> State:
        """Wrap fields that are known to be good, without a copy."""
        state = cls.__new__(cls)
        state._fields = fields
        return state

    def _raw(self, key: str) -> Raw | None:
        return self._fields.get(key)

    def raw_fields(self) -> Fields:
        """Return the JSON of each field, pending deletes (null) included. Not a copy: do not change it."""
        return self._fields

    def to_json(self) -> bytes:
        return _encode(self._fields)

    def merged(self, other: State) -> State:
        """Return this state with the fields of `other` over it; a null of `other` stays as a pending delete."""
        return State.of({**self._fields, **other._fields})

    def enacted(self) -> State:
        """Return this state without its pending deletes."""
        return State.of({field: raw for field, raw in self._fields.items() if not is_null(raw)})

    def parse(self, type: type[T]) -> T:
        """Return the whole state decoded as `type`. Raises `StateTypeError`, naming what does not fit."""
        return parse_as(self._fields, type)

    def __getitem__(self, key: str) -> Any:
        raw = self._fields.get(key)
        if raw is None or is_null(raw):
            raise KeyError(key)
        return _decode(raw)

    def __contains__(self, key: object) -> bool:
        return not is_null(self._fields.get(key))  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        return (field for field, raw in self._fields.items() if not is_null(raw))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, State):
            mine, theirs = self.enacted()._fields, other.enacted()._fields
            return mine == theirs or (mine.keys() == theirs.keys() and canonical(mine) == canonical(theirs))
        if isinstance(other, Mapping):
            return dict(self) == dict(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        text = self.to_json().decode()
        return f"State({text if len(text) <= 200 else text[:199] + '…'})"


def canonical(fields: Fields) -> bytes:
    """Return one spelling for equal states: members sorted, numbers and texts in their shortest form."""
    return _encode_sorted({field: _decode(raw) for field, raw in fields.items()})


def decode_as(key: str, raw: Raw, kind: Any) -> Any:
    """Decode one field as `kind`. Raises `StateTypeError` naming the field, the type and what was found."""
    try:
        if kind is datetime.timedelta and not opens_with(raw, b'"'):
            return datetime.timedelta(microseconds=_decode(raw, type=int) // 1000)
        if kind is str:
            return _strings.decode(raw)
        return _decoder(kind).decode(raw)
    except msgspec.ValidationError as error:
        if kind is int:
            value = _decode(raw)
            if isinstance(value, float) and value.is_integer():
                return int(value)
            raise _mistyped(key, "an integer", value) from None
        raise StateTypeError(f"field {key!r} does not fit {_name(kind)}: {error}", field=key) from None
    except OverflowError:
        raise StateTypeError(f"field {key!r} is out of range for {_name(kind)}", field=key) from None


def parse_as(fields: Fields, kind: type[T]) -> T:
    """Decode an object's fields as `kind`, nulls left out. Raises `StateTypeError`."""
    present = {field: raw for field, raw in fields.items() if not is_null(raw)}
    try:
        return msgspec.json.decode(_encode(present), type=kind)
    except msgspec.ValidationError as error:
        raise StateTypeError(f"the state does not fit {_name(kind)}: {error}") from None


_strings = msgspec.json.Decoder(str)


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _mistyped(key: str, wanted: str, value: Any) -> StateTypeError:
    found = type(value).__name__
    return StateTypeError(f"field {key!r} holds {found} {str(value)[:40]!r}, not {wanted}", field=key)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
