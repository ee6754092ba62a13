"""What a state value may be, and its JSON bytes.

A value is encoded the moment it is written, so nothing the caller does to it later reaches the state. msgspec does the
encoding; this module refuses what JSON cannot hold or msgspec would silently change: NaN and infinities (it writes
null), keys that are not text (it writes their digits), bytes that nobody asked to store as base64, lone surrogates,
nesting that a later reader could not follow. Errors name the path of the offending part.
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import accumulate
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from dwarf.errors import InvalidArgument, StateValueError
from dwarf.limits import FIELD_CHARS_MAX, NESTING_MAX, VALUE_BYTES_MAX

NULL = Raw(b"null")
EMPTY_OBJECT = b"{}"

Fields = dict[str, Raw]

_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SCALARS = frozenset((str, int, bool, type(None)))
_fields = msgspec.json.Decoder(Fields)
_elements = msgspec.json.Decoder(list[Raw])


def b64(data: bytes | bytearray | memoryview) -> str:
    """Return raw bytes as the base64 text they are stored as. Bytes that did not pass here are refused."""
    return base64.b64encode(data).decode("ascii")


def raw_json(data: bytes | str) -> Raw:
    """Mark JSON that is already encoded, to be stored as it is. Raises `StateValueError` when it is not valid JSON."""
    return Raw(_checked_json(data.encode() if isinstance(data, str) else bytes(data), "pre-encoded JSON"))


def encode(value: Any, path: str) -> Raw:
    """Return the JSON of one value. Raises `StateValueError` naming `path` and the offending part below it."""
    kind = type(value)
    if kind is datetime.timedelta:
        return Raw(b"%d" % nanoseconds(value))
    try:
        encoded = _encoder.encode(value)
    except RecursionError:
        _refuse(path, f"is nested deeper than {NESTING_MAX} levels or holds itself")
    except UnicodeEncodeError:
        _refuse(_find(value, path, _has_surrogate), "holds half a surrogate pair, which is not text")
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        _refuse(path, f"of type {kind.__name__} cannot be stored: {error}")
    if len(encoded) > VALUE_BYTES_MAX:
        _refuse(path, f"takes {len(encoded)} bytes as JSON; at most {VALUE_BYTES_MAX} are allowed")
    if kind not in _SCALARS:
        _check(value, path)
    return Raw(encoded)


def encode_object(value: Any, what: str) -> bytes:
    """Return the JSON object that `value` is: a mapping, a State, a msgspec Struct or a dataclass; None is `{}`.

    Raises `InvalidArgument` when it is something else, `StateValueError` when a part of it cannot be stored.
    """
    if value is None:
        return EMPTY_OBJECT
    if isinstance(value, Raw | bytes | bytearray | str):
        raise InvalidArgument(f"{what} must be an object with fields, not {type(value).__name__}")
    encoded = bytes(encode(value, what))
    if not encoded.startswith(b"{"):
        raise InvalidArgument(f"{what} must be an object with fields, not {type(value).__name__}")
    for field in decode_fields(encoded):
        check_field_name(field, what)
    return encoded


def decode_fields(data: bytes | Raw) -> Fields:
    """Split a trusted JSON object into its fields without decoding them."""
    return _fields.decode(data)


def decode_elements(data: bytes | Raw) -> list[Raw]:
    """Split a trusted JSON list into its elements without decoding them."""
    return _elements.decode(data)


def parse_object(data: bytes | str | None, what: str) -> Fields:
    """Split JSON from outside into its fields; nothing, blanks and `null` are an empty object.

    Raises `InvalidArgument` for malformed JSON and for JSON that is no object. Of duplicate keys the last wins.
    """
    if data is None:
        return {}
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    if encoded.strip(b" \t\r\n") in (b"", b"null"):
        return {}
    encoded = _checked_json(encoded, what)
    try:
        fields = _fields.decode(encoded)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{what} must be a JSON object: {error}") from None
    for field in fields:
        check_field_name(field, what)
    return fields


def check_field_name(field: object, what: str) -> str:
    """Accept any text of at most 512 characters as the name of a state field."""
    if not isinstance(field, str):
        raise StateValueError(f"{what}: a field's name must be text, not {type(field).__name__} {field!r}", path=repr(field))
    if not field.isascii() and _has_surrogate(field):
        shown = field.encode("ascii", "backslashreplace").decode()
        raise StateValueError(f"{what}: field {shown!r} holds half a surrogate pair, which is not text", path=shown)
    if len(field) > FIELD_CHARS_MAX:
        shown = field[:40] + "…"
        raise StateValueError(f"{what}: field {shown!r} has {len(field)} characters; at most {FIELD_CHARS_MAX} are allowed", path=shown)
    return field


def nanoseconds(duration: datetime.timedelta) -> int:
    """Return a duration as whole nanoseconds, the form durations have in state."""
    return duration // datetime.timedelta(microseconds=1) * 1000


def is_null(raw: Raw | None) -> bool:
    """Tell whether a field is absent: there is no value, or the value is null."""
    return raw is None or raw == NULL


def opens_with(raw: Raw, char: bytes) -> bool:
    """Tell whether a value's JSON starts with one character, which tells its kind; the value is not copied."""
    return memoryview(raw)[:1] == char


def _encode_unknown(value: Any) -> Any:
    """Turn what msgspec does not know into what it does; raises TypeError for the rest."""
    if isinstance(value, Mapping):
        fields = getattr(value, "raw_fields", None)
        return fields() if fields is not None else dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_encode_unknown)


def _check(value: Any, path: str) -> None:
    """Walk the containers of an encodable value, level by level, and refuse the parts msgspec would silently change."""
    level: list[tuple[str, Any]] = [(path, value)]
    depth = 0
    while level:
        depth += 1
        if depth > NESTING_MAX:
            _refuse(path, f"is nested deeper than {NESTING_MAX} levels")
        below: list[tuple[str, Any]] = []
        for where, part in level:
            for key, inner in _parts(part, where):
                kind = type(inner)
                if kind in _SCALARS:
                    continue
                if kind is float:
                    if inner - inner != 0:
                        _refuse(_join(where, key), f"is {inner}; JSON has no such number")
                else:
                    below.append((_join(where, key), inner))
        level = below


def _parts(part: Any, where: str) -> Iterator[tuple[str | int | None, Any]]:
    """Yield what a container holds, or refuse it; a leaf yields itself once when it is a float, else nothing."""
    if isinstance(part, dict):
        for key in part:
            if not isinstance(key, str):
                _refuse(where, f"has the key {key!r} of type {type(key).__name__}; keys must be text")
        if not _SCALARS.issuperset(map(type, part.values())):
            yield from part.items()
    elif isinstance(part, list | tuple | set | frozenset):
        if not _SCALARS.issuperset(map(type, part)):
            yield from enumerate(part)
    elif isinstance(part, float):
        yield None, float(part)
    elif isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            yield name, getattr(part, name)
    elif isinstance(part, bytes | bytearray | memoryview):
        _refuse(where, "is raw bytes; wrap it in dwarf.b64(...) to store it as base64 text")
    elif isinstance(part, Raw):
        _checked_json(bytes(part), where)
    elif isinstance(part, Enum):
        yield None, part.value
    elif hasattr(part, "raw_fields"):
        return
    elif isinstance(part, Mapping):
        yield from _parts(dict(part), where)
    else:
        names = getattr(type(part), "__dataclass_fields__", None) or [a.name for a in getattr(type(part), "__attrs_attrs__", ())]
        for name in names:
            if hasattr(part, name):
                yield name, getattr(part, name)


def _join(where: str, key: str | int | None) -> str:
    if key is None:
        return where
    return f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}"


def _find(value: Any, path: str, is_culprit: Any) -> str:
    """Return the path of the first part for which `is_culprit` holds, or `path` itself."""
    level: list[tuple[str, Any]] = [(path, value)]
    while level:
        below: list[tuple[str, Any]] = []
        for where, part in level:
            if is_culprit(part):
                return where
            if isinstance(part, Mapping):
                below += [(_join(where, str(key).encode("ascii", "backslashreplace").decode()), inner) for key, inner in part.items()]
            elif isinstance(part, list | tuple | set | frozenset):
                below += [(_join(where, index), inner) for index, inner in enumerate(part)]
        level = below
    return path


def _has_surrogate(part: Any) -> bool:
    if isinstance(part, Mapping):
        return any(_has_surrogate(key) for key in part)
    return isinstance(part, str) and any("\ud800" <= char <= "\udfff" for char in part)


def _checked_json(encoded: bytes, what: str) -> bytes:
    """Decode JSON from outside in full once, so that no later reader can stumble over it."""
    try:
        encoded.decode()
        msgspec.json.decode(encoded)
    except UnicodeDecodeError as error:
        raise StateValueError(f"{what} is not UTF-8: {error}", path=what) from None
    except RecursionError:
        _refuse(what, f"is nested deeper than {NESTING_MAX} levels")
    except msgspec.DecodeError as error:
        raise StateValueError(f"{what} is not valid JSON: {error}", path=what) from None
    _check_nesting(encoded, what)
    return encoded.strip(b" \t\r\n")


def _check_nesting(encoded: bytes, path: str) -> None:
    """Refuse JSON nested deeper than every reader, at whatever depth of its own stack, can decode."""
    if encoded.count(b"[") + encoded.count(b"{") <= NESTING_MAX:
        return
    brackets = _QUOTED.sub(b"", encoded).translate(None, delete=_NOT_BRACKETS)
    deepest = max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets))
    if deepest > NESTING_MAX:
        _refuse(path, f"is nested {deepest} levels deep; at most {NESTING_MAX} are allowed")


def _refuse(path: str, why: str) -> NoReturn:
    raise StateValueError(f"{path} {why}", path=path)
