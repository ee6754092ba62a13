"""Durations: seconds or `timedelta` from Python, texts such as "1h30m" from settings and the wire.

Every reader names what it reads in its errors (`InvalidArgument`) and refuses NaN, infinities and whatever does not fit
in 63 bits of nanoseconds (292 years, either way). Signs are for the caller to judge: a wait that began too late has a
negative rest, a budget has not. Nothing here reads a clock.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import NoReturn

from dwarf.checks import shown
from dwarf.errors import InvalidArgument

Duration = int | float | timedelta

NANOSECONDS = 1_000_000_000  # in a second
NANOSECONDS_MAX = (1 << 63) - 1

_UNITS = {"d": 86_400 * NANOSECONDS, "h": 3_600 * NANOSECONDS, "m": 60 * NANOSECONDS, "s": NANOSECONDS, "ms": 1_000_000}
_AMOUNT = r"([0-9]{1,20})(?:\.([0-9]{1,20}))?"
_plain = re.compile(_AMOUNT)
_part = re.compile(_AMOUNT + "(d|h|ms|m|s)")


def nanoseconds_of(value: object, what: str) -> int:
    """Return a duration in nanoseconds: exact for whole seconds and `timedelta`, else to the nearest."""
    if isinstance(value, timedelta):
        nanoseconds = value // timedelta(microseconds=1) * 1_000
    elif isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(what, value, "seconds as a number, or a timedelta, are wanted")
    elif isinstance(value, int):
        nanoseconds = value * NANOSECONDS
    elif not math.isfinite(value):
        _refuse(what, value, "the number must be finite")
    else:
        fraction, whole = math.modf(value)
        nanoseconds = int(whole) * NANOSECONDS + round(fraction * NANOSECONDS)
    return _bounded(nanoseconds, what, value)


def milliseconds(value: object, what: str) -> int:
    """Return a duration in milliseconds, to the nearest. Compare the nanoseconds where a fraction decides."""
    return (nanoseconds_of(value, what) + 500_000) // 1_000_000


def seconds_of(value: object, what: str) -> float:
    """Return a duration in seconds."""
    nanoseconds = nanoseconds_of(value, what)
    return float(value) if isinstance(value, int | float) else nanoseconds / NANOSECONDS


def parse_text(text: object, what: str) -> float:
    """Return the seconds of "15m", "1h30m", "250ms", "1.5s", or of a plain number of seconds such as "90".

    Units, each at most once and from large to small: d h m s ms. No sign, no blanks, no capitals.
    """
    if not isinstance(text, str):
        _refuse(what, text, "a text such as 15m or 1h30m is wanted")
    plain = _plain.fullmatch(text)
    nanoseconds = _amount(plain, NANOSECONDS) if plain else _sum_of_parts(text, what)
    return _bounded(nanoseconds, what, text) / NANOSECONDS


def read_seconds(value: object, what: str) -> float:
    """Return the seconds of a setting or of a member of a request: a text as `parse_text`, a number, a `timedelta`."""
    return parse_text(value, what) if isinstance(value, str) else seconds_of(value, what)


def _sum_of_parts(text: str, what: str) -> int:
    total, at, last = 0, 0, 1 << 63
    while at < len(text):
        part = _part.match(text, at)
        if part is None or _UNITS[part[3]] >= last:
            at = -1
            break
        last = _UNITS[part[3]]
        total += _amount(part, last)
        at = part.end()
    if at <= 0:
        _refuse(what, text, "a text such as 15m, 1h30m or 250ms is wanted, with the units d h m s ms in this order")
    return total


def _amount(match: re.Match[str], unit: int) -> int:
    fraction = match[2] or ""
    return int(match[1]) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def _bounded(nanoseconds: int, what: str, value: object) -> int:
    if not -NANOSECONDS_MAX <= nanoseconds <= NANOSECONDS_MAX:
        _refuse(what, value, f"at most {NANOSECONDS_MAX // NANOSECONDS} seconds are allowed")
    return nanoseconds


def _refuse(what: str, value: object, rule: str) -> NoReturn:
    raise InvalidArgument(f"{what} is {shown(value)}; {rule}")
