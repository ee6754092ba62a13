"""State as its readers see it: a read-only mapping that decodes a field when it is read, and never before.

`State` keeps each field's JSON as it came. What nobody touches is neither decoded nor encoded again, so big integers,
long texts and numbers keep every digit. `TypedReads` is what a `State` and a task's `Flow` share: the typed getters.
`decode_as` and `parse_as` are how a field, and a whole object, become a value of some type.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, overload

import msgspec
from msgspec import Raw

from dwarf.errors import InvalidArgument, StateTypeError
from dwarf.values import NULL, Fields, are_equal, encode_fields, is_null, opens_with, parse_object, start_of

T = TypeVar("T")

_SHOWN_CHARS_MAX = 40
_ZERO_DURATION = datetime.timedelta(0)
_decode = msgspec.json.decode
_encode = msgspec.json.encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_NO_VALUE = (type(None), msgspec.UnsetType)
_member = re.compile(r"at `\$\.(\w+)|field `([^`]+)`")


class TypedReads:
    """Typed access to fields, over `raw(key)`.

    An absent field, and one that is null, gives the getter's zero value or the `default` passed. A field of another type
    raises `StateTypeError`.
    """

    __slots__ = ()

    def raw(self, key: str) -> Raw | None:
        """Return a field's JSON; a deleted field may be null, one that was never there is None."""
        raise NotImplementedError

    @overload
    def get(self, key: str, default: Any = None) -> Any: ...
    @overload
    def get(self, key: str, default: T, *, type: type[T]) -> T: ...
    @overload
    def get(self, key: str, default: Any = None, *, type: Any) -> Any: ...
    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """Return a field decoded as `type`: any type msgspec decodes, such as `list[str]` or a Struct of your own."""
        raw = self.raw(key)
        if raw is None or raw == NULL:
            return default
        return decode_as(key, raw, type)

    def get_str(self, key: str, default: str = "") -> str:
        return self.get(key, default, type=str)

    def get_int(self, key: str, default: int = 0) -> int:
        """Return an integer, exact at any size; a whole fraction such as 5.0 is one, 5.5 is not."""
        return self.get(key, default, type=int)

    def get_float(self, key: str, default: float = 0.0) -> float:
        """Return a number as a float; an integer beyond 2**53 is rounded to the nearest."""
        return self.get(key, default, type=float)

    def get_bool(self, key: str, default: bool = False) -> bool:
        return self.get(key, default, type=bool)

    def get_list(self, key: str, default: list[Any] | None = None, *, type: Any = Any) -> list[Any]:
        """Return a list whose elements are decoded as `type`; absent gives a new empty list."""
        value: list[Any] | None = self.get(key, default, type=list if type is Any else list[type])
        return [] if value is None else value

    def get_dict(self, key: str, default: dict[str, Any] | None = None, *, type: Any = Any) -> dict[str, Any]:
        """Return an object whose members are decoded as `type`; absent gives a new empty one."""
        value: dict[str, Any] | None = self.get(key, default, type=dict if type is Any else dict[str, type])
        return {} if value is None else value

    def get_duration(self, key: str, default: datetime.timedelta = _ZERO_DURATION) -> datetime.timedelta:
        """Return a duration, stored as whole nanoseconds (below a microsecond it is cut)."""
        raw = self.raw(key)
        if raw is not None and opens_with(raw, b'"'):
            raise _mistyped(key, raw, "a duration: whole nanoseconds are wanted")
        return self.get(key, default, type=datetime.timedelta)

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
        self._fields: Fields = encode_fields(value, "the state")

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

    def raw(self, key: str) -> Raw | None:
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
        return State.of({field: raw for field, raw in self._fields.items() if raw != NULL})

    def parse(self, type: type[T]) -> T:
        """Return the whole state decoded as `type`. Raises `StateTypeError`, naming what does not fit."""
        return parse_as(self._fields, type)

    def __getitem__(self, key: str) -> Any:
        raw = self._fields.get(key)
        if raw is None or raw == NULL:
            raise KeyError(key)
        return decode_as(key, raw, Any)

    def __contains__(self, key: object) -> bool:
        return not is_null(self._fields.get(key))  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        return (field for field, raw in self._fields.items() if raw != NULL)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, State):
            mine, theirs = self.enacted()._fields, other.enacted()._fields
            return mine.keys() == theirs.keys() and all(are_equal(raw, theirs[field]) for field, raw in mine.items())
        if isinstance(other, Mapping):
            return dict(self) == dict(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        text = self.to_json().decode()
        return f"State({text if len(text) <= 200 else text[:199] + '…'})"


def canonical(fields: Fields) -> bytes:
    """Return one spelling of an object: members sorted, numbers and texts in their shortest form."""
    return _encode_sorted({field: _decode(raw) for field, raw in fields.items()})


def decode_as(key: str, raw: Raw, kind: Any) -> Any:
    """Decode one field, which is not null, as `kind`.

    Raises `StateTypeError` naming the field, what it holds and the type; `InvalidArgument` when nothing can be read as `kind`.
    """
    try:
        return reader(kind)(raw)
    except msgspec.DecodeError as error:
        raise _mistyped(key, raw, f"{name_of(kind)}: {error}") from None
    except (OverflowError, RecursionError) as error:
        raise StateTypeError(f"field {key!r} cannot be read as {name_of(kind)}: {error}", field=key) from None
    except (TypeError, NameError) as error:
        raise InvalidArgument(f"field {key!r} cannot be read as {name_of(kind)}: {error}") from None


def reader(kind: Any) -> Callable[[Raw], Any]:
    """Return the function that decodes a value, which is not null, as `kind`.

    Raises `TypeError` when msgspec reads no such type, `NameError` when the type's own annotations name something unknown.
    """
    try:
        return _known_reader(kind)
    except TypeError:
        return _make_reader(kind)  # what cannot be hashed, and, once more, what cannot be read


def parse_as(fields: Fields, kind: type[T], what: str = "the state") -> T:
    """Decode an object's fields as `kind`.

    A null counts as absent, and where `kind` allows None and has no default, absent is None. Raises `StateTypeError`.
    """
    present = {field: raw for field, raw in fields.items() if raw != NULL}
    try:
        nullable, durations = _members_to_adapt(kind)
        for member in durations & present.keys():
            if not opens_with(present[member], b'"'):
                present[member] = Raw(_encode(decode_as(member, present[member], datetime.timedelta)))
        for member in nullable:
            present.setdefault(member, NULL)
        value: T = reader(kind)(Raw(_encode(present)))
        return value
    except msgspec.DecodeError as error:
        found = _member.search(str(error))
        raise StateTypeError(f"{what} does not fit {name_of(kind)}: {error}", field=(found[1] or found[2]) if found else "") from None
    except (TypeError, NameError) as error:
        raise InvalidArgument(f"{what} cannot be read as {name_of(kind)}: {error}") from None


def name_of(kind: Any) -> str:
    """Return how a type is written."""
    plain = isinstance(kind, type) and not get_args(kind)
    return kind.__name__ if plain else str(kind).replace("typing.", "")


def _make_reader(kind: Any) -> Callable[[Raw], Any]:
    if kind is Any:
        return _decode
    if get_origin(kind) in {Union, UnionType}:
        others = [part for part in get_args(kind) if part not in _NO_VALUE]
        if len(others) == 1:
            return _make_reader(others[0])
    if kind is int:
        return _read_int
    if kind is datetime.timedelta:
        return _read_duration
    return msgspec.json.Decoder(kind).decode


_known_reader = lru_cache(maxsize=512)(_make_reader)
_read_strict_int = msgspec.json.Decoder(int).decode
_read_iso_duration = msgspec.json.Decoder(datetime.timedelta).decode


def _read_int(raw: Raw) -> int:
    try:
        return _read_strict_int(raw)
    except msgspec.ValidationError:
        value = _decode(raw)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise


def _read_duration(raw: Raw) -> datetime.timedelta:
    """Read nanoseconds, or ISO 8601 text, which is what a duration inside a larger value is."""
    if opens_with(raw, b'"'):
        return _read_iso_duration(raw)
    value = _read_int(raw)
    return datetime.timedelta(microseconds=value // 1000 if value >= 0 else -(-value // 1000))


def _find_members_to_adapt(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Return the members of an object type that may be None and have no default, and those that are durations."""
    from msgspec import inspect

    members = getattr(inspect.type_info(kind), "fields", ())
    nullable, durations = set(), set()
    for member in members:
        kinds = {type(part) for part in getattr(member.type, "types", [member.type])}
        if member.required and inspect.NoneType in kinds:
            nullable.add(member.encode_name)
        if inspect.TimeDeltaType in kinds and not kinds & {inspect.StrType, inspect.IntType, inspect.FloatType}:
            durations.add(member.encode_name)
    return frozenset(nullable), frozenset(durations)


_members_to_adapt: Callable[[Any], tuple[frozenset[str], frozenset[str]]] = lru_cache(maxsize=512)(_find_members_to_adapt)


def _mistyped(key: str, raw: Raw, wanted: str) -> StateTypeError:
    start = start_of(raw, 4 * _SHOWN_CHARS_MAX).decode(errors="ignore")
    shown = start if len(start) <= _SHOWN_CHARS_MAX else start[: _SHOWN_CHARS_MAX - 1] + "…"
    return StateTypeError(f"field {key!r} holds {shown}, which is not {wanted}", field=key)
