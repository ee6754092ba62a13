"""What a state value may be, and its JSON bytes.

A value is encoded the moment it is written, so nothing the caller does to it later reaches the state. msgspec does the
encoding; this module refuses what JSON cannot hold or msgspec would silently change: NaN and infinities (it writes
null), keys that are not text (it writes their digits), bytes that nobody asked to store as base64, lone surrogates,
nesting that a later reader could not follow. The check is quick and says no more than yes or no; only when it says no
is the offending part looked for, so that the error can name its path.

A field that holds a `timedelta` holds whole nanoseconds. Deeper inside a value a duration is ISO 8601 text, which is
what msgspec reads back where a type asks for one.
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import accumulate, chain
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Raw

from dwarf.errors import InvalidArgument, StateValueError
from dwarf.limits import FIELD_CHARS_MAX, NESTING_MAX, VALUE_BYTES_MAX

NULL = Raw(b"null")
EMPTY_OBJECT = b"{}"

Fields = dict[str, Raw]

_COPIED_BYTES_MAX = 4096  # up to here a copy is quicker than a view
_BLANKS = b" \t\r\n"
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = frozenset((str, int, bool, type(None)))
_LEAVES = _PLAIN | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
_LEAVES_AND_FLOAT = _LEAVES | {float}
_date, _datetime, _timedelta = datetime.date, datetime.datetime, datetime.timedelta  # whatever a test may put in their places
_fields = msgspec.json.Decoder(Fields)
_elements = msgspec.json.Decoder(list[Raw])
_decode = msgspec.json.decode


def b64(data: bytes | bytearray | memoryview) -> str:
    """Return raw bytes as the base64 text they are stored as. Bytes that did not pass here are refused."""
    return base64.b64encode(data).decode("ascii")


def raw_json(data: bytes | str, path: str = "pre-encoded JSON") -> Raw:
    """Mark JSON that is already encoded, to be stored as it is. Raises `StateValueError` when it is not valid JSON."""
    return Raw(_checked_json(_as_bytes(data, path), path))


def encode(value: Any, path: str) -> Raw:
    """Return the JSON of one value. Raises `StateValueError` naming `path` and the offending part below it."""
    kind = type(value)
    if kind not in _PLAIN:
        if isinstance(value, _timedelta):
            return Raw(b"%d" % nanoseconds(value))
        if kind is Raw:
            return Raw(_checked_json(bytes(value), path))
    try:
        encoded = _encoder.encode(value)
    except MemoryError:
        raise
    except Exception as error:
        _explain(value, path, error)
    if len(encoded) > VALUE_BYTES_MAX:
        _refuse(path, f"takes {len(encoded)} bytes as JSON; at most {VALUE_BYTES_MAX} are allowed")
    if kind is float:
        if value - value != 0:
            _explain(value, path)
    elif kind not in _LEAVES:
        soundness = _soundness(value, encoded)
        if not soundness:
            _explain(value, path)
        if soundness is Soundness.UNORDERED:
            with suppress(TypeError):  # members of several types have no order: theirs is by chance
                encoded = _ordering_encoder.encode(value)
    return Raw(encoded)


def encode_fields(value: Any, what: str) -> Fields:
    """Return the JSON of every field of an object: a mapping, a State, a msgspec Struct or a dataclass; None has none.

    A field that is None is null, one that is `msgspec.UNSET` is left out. Raises `InvalidArgument` when the value has
    no fields, `StateValueError` naming the part that cannot be stored.
    """
    if value is None:
        return {}
    if type(value) is not dict and _is_state(value):
        return dict(value.raw_fields())
    members = members_of(value)
    if members is None:
        raise InvalidArgument(f"{what} must be an object with fields, not {type(value).__name__}")
    fields = {}
    for field, inner in members:
        check_field_name(field, what)
        if inner is None:
            fields[field] = NULL
        elif inner is not UNSET:
            try:
                fields[field] = encode(inner, field)
            except StateValueError as error:
                raise _inside(what, error) from None
    return fields


def encode_object(value: Any, what: str) -> bytes:
    """Return `encode_fields` as one JSON object."""
    if value is None:
        return EMPTY_OBJECT
    encoded = msgspec.json.encode(encode_fields(value, what))
    if len(encoded) > VALUE_BYTES_MAX:
        _refuse(what, f"takes {len(encoded)} bytes as JSON; at most {VALUE_BYTES_MAX} are allowed")
    return encoded


def decode_fields(data: bytes | Raw) -> Fields:
    """Split a trusted JSON object into its fields without decoding them."""
    return _fields.decode(data)


def decode_elements(data: bytes | Raw) -> list[Raw]:
    """Split a trusted JSON list into its elements without decoding them."""
    return _elements.decode(data)


def parse_object(data: bytes | str | None, what: str) -> Fields:
    """Split JSON from outside into its fields; nothing, blanks and `null` are an empty object.

    Raises `StateValueError` for JSON that is malformed or cannot be stored, naming the path, and `InvalidArgument` for
    JSON that is no object. Of duplicate keys the last wins.
    """
    if data is None:
        return {}
    encoded = _as_bytes(data, what).strip(_BLANKS)
    if encoded in (b"", b"null"):
        return {}
    try:
        _checked_json(encoded, "", depth_max=NESTING_MAX + 1)
    except StateValueError as error:
        raise _inside(what, error) from None
    if not encoded.startswith(b"{"):
        raise InvalidArgument(f"{what} must be a JSON object, not {_json_kind(encoded)}")
    fields = _fields.decode(encoded)
    for field in fields:
        check_field_name(field, what)
    return fields


def check_field_name(field: object, what: str) -> str:
    """Accept any text of at most 512 characters as the name of a state field."""
    if not isinstance(field, str):
        raise StateValueError(f"{what}: a field's name must be text, not {type(field).__name__} {field!r}", path=repr(field))
    if not field.isascii() and _SURROGATE.search(field):
        shown = printable(field)
        raise StateValueError(f"{what}: field {shown!r} holds half a surrogate pair, which is not text", path=shown)
    if len(field) > FIELD_CHARS_MAX:
        shown = field[:40] + "…"
        raise StateValueError(f"{what}: field {shown!r} has {len(field)} characters; at most {FIELD_CHARS_MAX} are allowed", path=shown)
    return field


def nanoseconds(duration: datetime.timedelta) -> int:
    """Return a duration as whole nanoseconds, the form durations have in state."""
    return duration // _timedelta(microseconds=1) * 1000


def is_null(raw: Raw | None) -> bool:
    """Tell whether a field is absent: there is no value, or the value is null."""
    return raw is None or raw == NULL


def opens_with(raw: Raw | bytes, char: bytes) -> bool:
    """Tell whether a value's JSON starts with one character, which tells its kind; the value is not copied."""
    return start_of(raw, 1) == char


def start_of(raw: Raw | bytes, size: int) -> bytes:
    """Return the first bytes of a value's JSON."""
    return bytes(raw)[:size] if len(raw) < _COPIED_BYTES_MAX else bytes(memoryview(raw)[:size])


def comparable(value: Any) -> Any:
    """Return a hashable stand-in for a decoded value, equal for equal values: 1 and 1.0 are, True and 1 are not."""
    if isinstance(value, bool) or value is None:
        return (value is None, value)
    if isinstance(value, dict):
        return ("object", frozenset((key, comparable(inner)) for key, inner in value.items()))
    if isinstance(value, list):
        return ("list", tuple(comparable(inner) for inner in value))
    return value


def are_equal(left: Raw, right: Raw) -> bool:
    """Tell whether two values are equal, however they are spelled."""
    return left == right or comparable(_decode(left)) == comparable(_decode(right))


def printable(text: str) -> str:
    """Return text with its lone surrogates spelled out, so that it can be put into a message."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def has_fields(value: Any) -> bool:
    """Tell whether a value is one that `encode_fields` takes."""
    return members_of(value) is not None


def members_of(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the named parts of what has fields, under the names they have in JSON; None for what has none."""
    if type(value) is dict or isinstance(value, Mapping):
        return value.items()
    if isinstance(value, msgspec.Struct):
        return None if value.__struct_config__.array_like else _struct_members(value)
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import fields

        return _set_members(value, ((field.name, field.name) for field in fields(value)))
    if hasattr(kind, "__attrs_attrs__"):
        return _set_members(value, ((field.name, field.name) for field in kind.__attrs_attrs__))
    return None


def _is_state(value: Any) -> bool:
    """Tell whether a value is a `dwarf.state.State`, which stands above this module: its fields are encoded and checked already."""
    return isinstance(value, Mapping) and hasattr(value, "raw_fields")


def _struct_members(value: msgspec.Struct) -> list[tuple[str, Any]]:
    members = _set_members(value, zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
    config = value.__struct_config__
    return [(config.tag_field, config.tag), *members] if config.tag_field is not None else members


def _set_members(value: Any, names: Iterable[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Return the attributes that are there and set, as (name in JSON, value)."""
    members = ((encoded, getattr(value, name, UNSET)) for encoded, name in names)
    return [(encoded, inner) for encoded, inner in members if inner is not UNSET]


def _encode_unknown(value: Any) -> Any:
    """Turn what msgspec does not know into what it does; raises TypeError for the rest."""
    if _is_state(value):
        return value.raw_fields()
    if isinstance(value, Mapping):
        return dict(value)
    for kind, plain in _OF_SUBCLASS:
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


# Subclasses of plain types count as what they are derived from; a datetime is a date, so it comes first.
_OF_SUBCLASS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__pos__),
    (float, float.__pos__),
    (_datetime, lambda value: _datetime.combine(value.date(), value.time(), value.tzinfo)),
    (_date, lambda value: _date(value.year, value.month, value.day)),
    (_timedelta, lambda value: _timedelta(value.days, value.seconds, value.microseconds)),
)
_encoder = msgspec.json.Encoder(enc_hook=_encode_unknown)
_ordering_encoder = msgspec.json.Encoder(enc_hook=_encode_unknown, order="deterministic")


class Soundness(IntEnum):
    """Whether an encodable value is stored as what it is. A set is, but its order would differ from process to process."""

    UNSOUND = 0
    SOUND = 1
    UNORDERED = 2


def _soundness(value: Any, encoded: bytes) -> Soundness:
    """Judge an encodable value. Takes whole levels at a time, for the sake of speed."""
    safe = _LEAVES if b"null" in encoded else _LEAVES_AND_FLOAT  # what is no number was written as null
    level, levels, embeds, sound = [value], 0, False, Soundness.SOUND
    while level:
        levels += 1
        objects = [part for part in level if type(part) is dict]
        try:
            "".join(chain.from_iterable(objects))
        except TypeError:
            return Soundness.UNSOUND
        inner = list(chain.from_iterable(map(dict.values, objects)))
        for part in level if len(objects) < len(level) else ():
            kind = type(part)
            if kind is list or kind is tuple:
                inner += part
            elif kind is float:
                if part - part != 0:
                    return Soundness.UNSOUND
            elif kind is not dict:
                if _fault_of(part):
                    return Soundness.UNSOUND
                if isinstance(part, set | frozenset):
                    sound = Soundness.UNORDERED
                embeds = embeds or kind is Raw or _is_state(part)
                inner += [found for _, found in _parts_of(part) or ()]
        kinds = set(map(type, inner))
        if kinds <= safe:
            break
        level = inner if kinds.isdisjoint(safe) else [found for found in inner if type(found) not in safe]
    is_shallow = not (embeds or levels > NESTING_MAX) or _depth(encoded) <= NESTING_MAX
    return sound if is_shallow else Soundness.UNSOUND


def _explain(value: Any, path: str, error: Exception | None = None) -> NoReturn:
    """Refuse a value for the first of its parts that cannot be stored; `error` is what the encoder said."""
    for where, part, depth in _walk(value, path):
        why = _fault_of(part)
        if why:
            _refuse(where, why)
        if depth > NESTING_MAX and _parts_of(part) is not None and not isinstance(part, Enum):
            _refuse(path, f"is nested deeper than {NESTING_MAX} levels or holds itself")
    if error is None:  # every part is fine by itself: JSON that was put in whole makes it too deep
        _refuse(path, f"is nested deeper than {NESTING_MAX} levels")
    _refuse(path, f"of type {type(value).__name__} cannot be stored: {error}")


def _explain_json(encoded: bytes, path: str, error: msgspec.DecodeError) -> NoReturn:
    """Refuse JSON that msgspec does not decode, naming the part if a lenient reader finds one that is no JSON value."""
    import json

    try:
        text = encoded.decode()
        value = json.loads(text, parse_int=_any_integer)
    except UnicodeDecodeError as broken:
        _refuse(path, f"is not UTF-8: {broken}")
    except RecursionError:
        _refuse(path, f"is nested deeper than {NESTING_MAX} levels")
    except ValueError:
        _refuse(path, f"is not valid JSON: {error}")
    _explain(value, path, error)


def _any_integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        return int(10 ** min(len(digits), 10_000))  # as unstorable as what was written


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any, int]]:
    """Yield a value and all its parts in the order they are encoded, each with its path and its depth, from 1."""
    stack: list[Iterator[tuple[str, Any]]] = [iter([(path, value)])]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        yield *found, len(stack)
        parts = _parts_of(found[1])
        if parts is not None:
            stack.append(_below(found[0], parts))


def _below(where: str, parts: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    for key, part in parts:
        if key is None:
            yield where, part
        elif isinstance(key, int):
            yield f"{where}[{key}]", part
        else:
            name = printable(str(key))
            yield f"{where}.{name}" if where else name, part


def _parts_of(part: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return what a part holds, each with its key, its index or None; None for what holds nothing."""
    if isinstance(part, list | tuple | set | frozenset):
        return enumerate(part)
    if isinstance(part, Enum):
        return [(None, part.value)]
    if isinstance(part, msgspec.Struct):
        return _struct_members(part)
    return () if _is_state(part) else members_of(part)


def _fault_of(part: Any) -> str:
    """Say why a part cannot be stored, whatever it holds; empty when it can."""
    if isinstance(part, Enum):
        return ""
    if isinstance(part, Mapping):
        return _fault_of_keys(part)
    if isinstance(part, str):
        return "holds half a surrogate pair, which is not text" if _SURROGATE.search(part) else ""
    if (isinstance(part, float) and part - part != 0) or (isinstance(part, Decimal) and not part.is_finite()):
        return f"is {part}; a number must be finite"
    if isinstance(part, bytes | bytearray | memoryview):
        return "is raw bytes; wrap it in dwarf.b64(...) to store it as base64 text"
    return "" if _parts_of(part) is not None else _fault_of_leaf(part)


def _fault_of_leaf(part: Any) -> str:
    try:
        if isinstance(part, Raw):
            _checked_json(bytes(part), "")
        else:
            _encoder.encode(part)
    except StateValueError as error:
        return str(error)
    except Exception as error:
        if isinstance(part, int):
            return "is a whole number of more digits than can be stored"
        return f"of type {type(part).__name__} cannot be stored: {error}"
    return ""


def _fault_of_keys(part: Mapping[Any, Any]) -> str:
    for key in part:
        if not isinstance(key, str):
            return f"has the key {key!r:.40} of type {type(key).__name__}; keys must be text"
        if not key.isascii() and _SURROGATE.search(key):
            return f"has the key '{printable(key)}', which holds half a surrogate pair"
    return ""


def _inside(what: str, error: StateValueError) -> StateValueError:
    """Say where the value stood that an error is about."""
    return StateValueError(f"{what}: {error}" if error.path else f"{what} {error}", path=error.path or what)


def _as_bytes(data: object, what: str) -> bytes:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if isinstance(data, bytes | bytearray | memoryview | Raw):
        return bytes(data)
    raise InvalidArgument(f"{what} must be JSON as bytes or text, not {type(data).__name__}")


def _checked_json(encoded: bytes, path: str, depth_max: int = NESTING_MAX) -> bytes:
    """Decode JSON from outside in full once, so that no later reader can stumble over it; return it without blanks around it."""
    if len(encoded) > VALUE_BYTES_MAX:
        _refuse(path, f"takes {len(encoded)} bytes as JSON; at most {VALUE_BYTES_MAX} are allowed")
    try:
        _decode(encoded)
    except RecursionError:
        _refuse(path, f"is nested deeper than {NESTING_MAX} levels")
    except msgspec.DecodeError as error:
        _explain_json(encoded, path, error)
    if _depth(encoded) > depth_max:
        _refuse(path, f"is nested deeper than {NESTING_MAX} levels")
    return encoded.strip(_BLANKS)


def _depth(encoded: bytes) -> int:
    """Return how deep valid JSON is nested, or an upper bound that is small enough."""
    brackets = encoded.count(b"[") + encoded.count(b"{")
    if brackets <= NESTING_MAX:
        return brackets
    opening = _QUOTED.sub(b"", encoded).translate(None, delete=_NOT_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in opening), default=0)


def _json_kind(encoded: bytes) -> str:
    kinds = {b"[": "a list", b'"': "text", b"t": "true", b"f": "false"}
    return kinds.get(encoded[:1], "a number")


def _refuse(path: str, why: str) -> NoReturn:
    raise StateValueError(f"{path} {why}".lstrip(), path=path)
