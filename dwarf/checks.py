"""How arguments from callers are held to a rule: one check for each kind of value, and how errors show a value.

Each check takes what the argument is called, returns the value it accepts, and raises `InvalidArgument` naming the
argument, the value and the rule. What has rules of its own (keys, durations, fairness keys) is checked where it lives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from dwarf.errors import InvalidArgument
from dwarf.keys import hide_tokens

_SHOWN_CHARS_MAX = 80
_unstorable = re.compile("[\x00\ud800-\udfff]")


def shown(value: object) -> str:
    """Show a value in an error, cut short and without tokens. What is no text, number or time is shown by its type alone."""
    if isinstance(value, int) and not -(10**18) < value < 10**18:
        return "a number of more than 18 digits"
    if isinstance(value, str):
        value = hide_tokens(value[: 4 * _SHOWN_CHARS_MAX])
    if value is None or isinstance(value, str | int | float | timedelta | datetime):
        text = repr(value)
        return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"
    return f"of type {type(value).__name__}"


def check_whole(value: object, what: str, *, least: int, most: int, besides: str = "") -> int:
    """Accept an int from `least` to `most`; `besides` says in the error what `least` stands for."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        rule = f"from {least} to {most}" if not besides else f"from {least + 1} to {most}, or {least} for {besides}"
        raise InvalidArgument(f"{what} is {shown(value)}; it must be a whole number {rule}")
    return int(value)


def check_text(value: object, what: str, *, chars_max: int) -> str:
    """Accept text that a database column can hold."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is {shown(value)}; it must be text")
    if len(value) > chars_max:
        raise InvalidArgument(f"{what} is {shown(value)}, {len(value)} characters long; at most {chars_max} are allowed")
    if _unstorable.search(value):
        raise InvalidArgument(f"{what} is {shown(value)}; a NUL or half a surrogate pair is not allowed")
    return value


def check_flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} is {shown(value)}; it must be true or false")
    return value


def check_time(value: object, what: str) -> datetime:
    """Accept a time that says its offset, and return it in UTC."""
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{what} is {shown(value)}; it must be a datetime with a time zone")
    if value.utcoffset() is None:
        raise InvalidArgument(f"{what} is {value.isoformat()}, without a time zone; say which instant is meant, for example in UTC")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument(f"{what} is {value.isoformat()}, which in UTC is outside the years 1 to 9999") from None


def check_day(value: object, what: str) -> date:
    """Accept a date, or a time that says its offset: then the day, in UTC, that it is in."""
    if isinstance(value, datetime):
        return check_time(value, what).date()
    if not isinstance(value, date):
        raise InvalidArgument(f"{what} is {shown(value)}; it must be a date")
    return value


def read_time(text: object, what: str) -> datetime:
    """Read a time as JSON has it: RFC 3339 text with its offset."""
    try:
        time = msgspec.convert(text, datetime) if isinstance(text, str) else None
    except msgspec.ValidationError:
        time = None
    if time is None:
        raise InvalidArgument(f"{what} is {shown(text)}; it must be a time such as 2030-01-31T12:00:00Z")
    return check_time(time, what)


def read_members(wire: object, struct: type[msgspec.Struct], what: str) -> dict[str, Any]:
    """Return the members of a decoded JSON object under the Python names of `struct`'s fields, null members left out.

    None stands for the empty object. Unknown members are refused: a misspelt option must not be lost in silence.
    """
    if wire is None:
        return {}
    if not isinstance(wire, Mapping):
        raise InvalidArgument(f"{what} must be an object, not {type(wire).__name__}")
    names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    for member in wire:
        if member not in names:
            raise InvalidArgument(f"{what} has no member {shown(member)}; it has {', '.join(names)}")
    return {names[member]: value for member, value in wire.items() if value is not None}
