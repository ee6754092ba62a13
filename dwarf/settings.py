"""The settings of a replica: their names, defaults and rules, one place for each. Pure.

Engine, `EngineUnderTest` and the service share the names. Durations are seconds or `timedelta` in Python, seconds or texts such as
"15m" where they come from a file, a variable or a flag (`read_text`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dwarf.checks import check_whole, shown
from dwarf.durations import Duration, read_seconds, seconds_of
from dwarf.errors import InvalidArgument
from dwarf.limits import TIME_BUDGET_MIN_MS
from dwarf.options import check_engine_id, check_priority_max, check_time_budget

EXECUTORS_MAX = 1_024
WORKERS_DEFAULT = 1_000
WORKERS_MAX = 1_000_000
THREADS_DEFAULT = 32
GRACE_SECONDS = 30
SESSION_SECONDS = 30
SESSION_SECONDS_MIN = 1
SWEEP_SECONDS = 60
RETENTION_DAYS_DEFAULT = 30
RETENTION_DAYS_MAX = 36_500
FLOW_EXPIRATION_SECONDS_MIN = 1


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a replica is told. Durations in seconds; None: see each setting. Made by `check`."""

    executors: int = 2
    workers: int = WORKERS_DEFAULT
    threads: int = THREADS_DEFAULT
    time_budget: float = 120
    max_priority: int = 5
    retention_days: int | None = RETENTION_DAYS_DEFAULT  # None keeps for ever
    flow_expiration: float | None = None  # None: flows may be open for ever
    engine_id: int | None = None  # None: one is drawn
    takeover: str = "session"
    grace: float = GRACE_SECONDS
    session_seconds: float = SESSION_SECONDS
    sweep_seconds: float = SWEEP_SECONDS


def at_least(value: Duration, what: str, least: float) -> float:
    """Accept a duration and return its seconds."""
    seconds = seconds_of(value, what)
    if seconds < least:
        raise InvalidArgument(f"{what} is {value!r}; it must be at least {least} seconds")
    return seconds


def check_workers(value: object) -> int:
    return check_whole(value, "workers", least=0, most=WORKERS_MAX)


def check_threads(value: object) -> int:
    return check_whole(value, "threads", least=1, most=WORKERS_MAX)


def check_days(value: object) -> int | None:
    return None if value is None else check_whole(value, "retention_days", least=1, most=RETENTION_DAYS_MAX)


def check_expiration(value: Duration | None) -> float | None:
    return None if value is None else at_least(value, "flow_expiration", FLOW_EXPIRATION_SECONDS_MIN)


def check_takeover(value: object) -> str:
    if value not in ("session", "deadline"):
        raise InvalidArgument(f"takeover is {shown(value)}; it must be 'session' or 'deadline'")
    return str(value)


def check_budget(value: Duration) -> float:
    """Accept a time budget for flows that name none: zero is none. Return its seconds."""
    if seconds_of(value, "time_budget") * 1000 < TIME_BUDGET_MIN_MS:
        raise InvalidArgument(f"time_budget is {value!r}; it must be at least {TIME_BUDGET_MIN_MS / 1000} seconds")
    return check_time_budget(value) / 1000


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "executors": lambda value: check_whole(value, "executors", least=1, most=EXECUTORS_MAX),
    "workers": check_workers,
    "threads": check_threads,
    "time_budget": check_budget,
    "max_priority": check_priority_max,
    "retention_days": check_days,
    "flow_expiration": check_expiration,
    "engine_id": lambda value: None if value is None else check_engine_id(value),
    "takeover": check_takeover,
    "grace": lambda value: at_least(value, "grace", 0),
    "session_seconds": lambda value: at_least(value, "session_seconds", SESSION_SECONDS_MIN),
    "sweep_seconds": lambda value: at_least(value, "sweep_seconds", SESSION_SECONDS_MIN),
}
_DURATIONS = {"time_budget", "flow_expiration", "grace", "session_seconds", "sweep_seconds"}
_NONE = {"retention_days", "flow_expiration", "engine_id"}  # may be "none" in a text
NAMES = tuple(_CHECKS)


def check(given: dict[str, Any]) -> Settings:
    """Hold settings to their rules; those that are not given have their defaults. Raises `InvalidArgument` naming the setting."""
    return Settings(**{name: _CHECKS[name](value) for name, value in given.items()})


def read_text(name: str, text: str) -> Any:
    """Read a setting from a variable or a flag. Raises `InvalidArgument` where it is no number or duration."""
    if name in _NONE and text == "none":
        return None
    if name in _DURATIONS:
        return read_seconds(text, name)
    if name == "takeover":
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name} is {shown(text)}; it must be a whole number") from None


def read_value(name: str, value: object) -> Any:
    """Read a setting from a file: durations may be texts there."""
    return read_seconds(value, name) if name in _DURATIONS and isinstance(value, str) and value != "none" else _none(name, value)


def _none(name: str, value: object) -> Any:
    return None if name in _NONE and value == "none" else value
