"""The ten reducers: how a contribution is folded into the field it is for.

Folding works on the fields' JSON, and decodes only what a reducer must look into: `append` joins two lists without
reading them. A fold of an absent field seeds it with the contribution, checked like any other. Every reducer but `add`
over fractions is associative to the last digit, which is what lets contributions be composed before they are folded
(`dwarf.changes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
from msgspec import Raw

from dwarf.errors import ReducerError
from dwarf.limits import VALUE_BYTES_MAX
from dwarf.values import comparable, is_null, opens_with, start_of

_EXACT_FLOAT = float(1 << 53)


class Reducer(str, Enum):
    """How contributions to a field combine; `REPLACE` is what a field without a reducer does."""

    REPLACE = "replace"
    APPEND = "append"
    ADD = "add"
    MIN = "min"
    MAX = "max"
    UNION = "union"
    MERGE = "merge"
    AND = "and"
    OR = "or"
    CONCAT = "concat"

    def __str__(self) -> str:
        return self.value


Reducers = dict[str, str]
_decode = msgspec.json.decode
_encode = msgspec.json.encode
_members = msgspec.json.Decoder(dict[str, Raw])


class _Unfit(Exception):
    """A value has the wrong type for the reducer; the message says which type it has."""


def fold(field: str, reducer: str, current: Raw | None, contribution: Raw) -> Raw:
    """Return the JSON of `field` after one contribution, which is not null; `current` is None or null when the field is absent.

    Raises `ReducerError` naming field and reducer when a value has the wrong type or the result is no JSON number.
    """
    combine = _COMBINE.get(reducer)
    if combine is None:
        raise ReducerError(f"field {field!r} has the unknown reducer {reducer!r}", field=field, reducer=str(reducer))
    try:
        folded = combine(None if is_null(current) else current, contribution)
        if len(folded) > VALUE_BYTES_MAX:
            raise _Unfit(f"makes {len(folded)} bytes; at most {VALUE_BYTES_MAX} are allowed in one value")
    except (_Unfit, msgspec.DecodeError, RecursionError) as error:
        why = str(error) if isinstance(error, _Unfit) else f"cannot read a value: {error}"
        raise ReducerError(f"reducer {reducer} of field {field!r} {why}", field=field, reducer=str(reducer)) from None
    return folded


def is_fraction(raw: Raw | None) -> bool:
    """Tell whether a number is written as a fraction; sums of such are not associative to the last digit."""
    if raw is None:
        return False
    text = bytes(raw)
    return b"." in text or b"e" in text or b"E" in text


def _replace(_current: Raw | None, contribution: Raw) -> Raw:
    return contribution


def _append(current: Raw | None, contribution: Raw) -> Raw:
    is_list = opens_with(contribution, b"[")
    if current is None:
        return contribution if is_list else Raw(b"[%b]" % bytes(contribution))
    if not opens_with(current, b"["):
        raise _Unfit(f"needs a list to append to, not {_kind(_decode(current))}")
    if is_list and _is_empty_list(contribution):
        return current
    if _is_empty_list(current):
        return _append(None, contribution)
    head, tail = memoryview(current)[:-1], memoryview(contribution)
    return Raw(b"".join((head, b",", tail[1:]) if is_list else (head, b",", tail, b"]")))


def _is_empty_list(raw: Raw) -> bool:
    return len(raw) == 2 or (start_of(raw, 2)[1] in b" \t\r\n" and not bytes(raw)[1:-1].strip())


def _add(current: Raw | None, contribution: Raw) -> Raw:
    right = _number(contribution)
    if current is None:
        return contribution
    left = _number(current)
    try:
        total = left + right
    except OverflowError:
        raise _Unfit(f"cannot add {_short(left)} and {_short(right)}: the sum is too large for a fraction") from None
    if isinstance(total, float) and not math.isfinite(total):
        raise _Unfit(f"overflows: {_short(left)} plus {_short(right)} is not a finite number")
    try:
        return Raw(_encode(total))
    except ValueError:
        raise _Unfit("has grown beyond the digits that a number may have") from None


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[[Raw | None, Raw], Raw]:
    def combine(current: Raw | None, contribution: Raw) -> Raw:
        right = _number(contribution)
        if current is None:
            return contribution
        return contribution if better(right, _number(current)) else current

    return combine


def _union(current: Raw | None, contribution: Raw) -> Raw:
    old = [] if current is None else _decode(current)
    if not isinstance(old, list):
        raise _Unfit(f"needs a list to unite with, not {_kind(old)}")
    new = _decode(contribution)
    seen = {comparable(value) for value in old}
    fresh = []
    for value in new if isinstance(new, list) else [new]:
        found = comparable(value)
        if found not in seen:
            seen.add(found)
            fresh.append(value)
    addition = Raw(_encode(fresh))
    return _append(current, addition)


def _merge(current: Raw | None, contribution: Raw) -> Raw:
    right = _object(contribution)
    if current is None:
        return contribution
    return Raw(_encode({**_object(current), **right}))


def _logical(combine_two: Callable[[bool, bool], bool]) -> Callable[[Raw | None, Raw], Raw]:
    def combine(current: Raw | None, contribution: Raw) -> Raw:
        right = _typed(contribution, bool, "true or false")
        if current is None:
            return contribution
        return Raw(_encode(combine_two(_typed(current, bool, "true or false"), right)))

    return combine


def _concat(current: Raw | None, contribution: Raw) -> Raw:
    right = _typed(contribution, str, "text")
    if current is None:
        return contribution
    return Raw(_encode(_typed(current, str, "text") + right))


def _number(raw: Raw) -> int | float:
    """Decode a number; a whole fraction below 2**53 counts as the integer it is."""
    value = _decode(raw)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT else value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _Unfit(f"needs numbers, not {_kind(value)}")


def _object(raw: Raw) -> dict[str, Raw]:
    if not opens_with(raw, b"{"):
        raise _Unfit(f"needs objects, not {_kind(_decode(raw))}")
    return _members.decode(raw)


def _typed(raw: Raw, kind: type, wanted: str) -> Any:
    value = _decode(raw)
    if not isinstance(value, kind):
        raise _Unfit(f"needs {wanted}, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    kinds = {int: "a number", float: "a number", str: "text", list: "a list", dict: "an object", type(None): "null"}
    return f"{kinds[type(value)]} ({_short(value)})"


def _short(value: Any) -> str:
    try:
        text = _encode(value).decode()
    except ValueError:
        return "a huge number"
    return text if len(text) <= 40 else text[:39] + "…"


_COMBINE: dict[str, Callable[[Raw | None, Raw], Raw]] = {
    "replace": _replace,
    "append": _append,
    "add": _add,
    "min": _extreme(lambda new, old: new < old),
    "max": _extreme(lambda new, old: new > old),
    "union": _union,
    "merge": _merge,
    "and": _logical(lambda left, right: left and right),
    "or": _logical(lambda left, right: left or right),
    "concat": _concat,
}
