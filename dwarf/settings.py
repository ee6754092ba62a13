"""The settings that `Engine`, `EngineUnderTest` and the service share: names, defaults, and one rule for each.

Durations are seconds or `timedelta` in Python; in a file, a variable or a flag they may be texts such as "15m" as well
(`read_value`, `read_text`). Where the library differs from the service, `Engine` has a default of its own. Nothing here
knows where a value came from: `dwarf.config` says that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from dwarf.checks import check_text, check_whole, shown
from dwarf.durations import Duration, read_seconds, seconds_of
from dwarf.errors import InvalidArgument
from dwarf.limits import NAME_CHARS_MAX, PRIORITY_MAX_DEFAULT, TIME_BUDGET_DEFAULT_MS, TIME_BUDGET_MIN_MS
from dwarf.options import check_engine_id, check_priority_max, check_time_budget

EXECUTORS_DEFAULT = 2
EXECUTORS_MAX = 1_024
WORKERS_DEFAULT = 1_000
WORKERS_MAX = 1_000_000
THREADS_DEFAULT = 32
GRACE_SECONDS = 30
SESSION_SECONDS = 30
SESSION_SECONDS_MIN = 1
SESSION_SECONDS_MAX = ((1 << 31) - 1) // 1000  # the database takes its milliseconds as an int
SWEEP_SECONDS = 60
RETENTION_DAYS_DEFAULT = 30
RETENTION_DAYS_MAX = 36_500
FLOW_EXPIRATION_SECONDS_MIN = 1
POISON_LIMIT_DEFAULT = 3
POISON_LIMIT_MAX = 1_000
WAIT_CEILING_SECONDS = 900
SCHEDULER_DEFAULT = "default"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a replica, all in seconds where they are durations. Made by `check`; the defaults are the service's."""

    executors: int = EXECUTORS_DEFAULT
    workers: int = WORKERS_DEFAULT
    threads: int = THREADS_DEFAULT
    time_budget: float = TIME_BUDGET_DEFAULT_MS / 1000
    max_priority: int = PRIORITY_MAX_DEFAULT
    retention_days: int | None = RETENTION_DAYS_DEFAULT  # None: for ever
    flow_expiration: float | None = None  # None: never
    engine_id: int | None = None  # None: one is drawn
    takeover: str = "session"
    poison_limit: int = POISON_LIMIT_DEFAULT
    scheduler: str = SCHEDULER_DEFAULT
    unknown_task: str = "wait"
    wait_ceiling: float | None = WAIT_CEILING_SECONDS  # None: no bound
    grace: float = GRACE_SECONDS
    session_seconds: float = SESSION_SECONDS
    sweep_seconds: float = SWEEP_SECONDS


def check(given: Mapping[str, Any]) -> Settings:
    """Hold settings to their rules; those that are not given have their defaults. Raises `InvalidArgument` naming the setting."""
    return Settings(**{name: check_setting(name, value) for name, value in given.items()})


def check_setting(name: str, value: object) -> Any:
    """Accept a value as Python has it and return it as `Settings` does: durations in seconds. Raises `InvalidArgument`."""
    check_known(name, NAMES, "setting")
    return None if value is None and name in _OPTIONAL else _CHECKS[name](value)


def check_known(name: str, known: tuple[str, ...], what: str, *, where: str = "") -> None:
    """Refuse a name that is not among those known, and name the one that comes nearest."""
    if name in known:
        return
    # What is no name at all may be a misplaced connection string, which no error may show.
    text = repr(name) if _name.fullmatch(name) else "a text that is no name"
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    rest = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    raise InvalidArgument(f"{where}{text} is no {what}; {rest}")


def read_text(name: str, text: str) -> Any:
    """Read a setting from a variable or a flag, for `check_setting`. Raises `InvalidArgument` where it is of another kind."""
    if name in _OPTIONAL and text == "none":
        return None
    if name in DURATIONS:
        return read_seconds(text, name)
    return read_whole(name, text) if name in _WHOLE else text


def read_value(name: str, value: object) -> Any:
    """Read a setting from a file, which knows numbers and texts, for `check_setting`: durations may be texts."""
    if name in _OPTIONAL and value == "none":
        return None
    return read_seconds(value, name) if name in DURATIONS and isinstance(value, str) else value


def read_whole(name: str, text: str) -> int:
    """Read a whole number: digits alone, with a sign at most."""
    if not _digits.fullmatch(text):
        raise InvalidArgument(f"{name} is {shown(text)}; it must be a whole number")
    return int(text)


def at_least(value: Duration, what: str, least: float) -> float:
    """Accept a duration and return its seconds."""
    seconds = seconds_of(value, what)
    if seconds < least:
        raise InvalidArgument(f"{what} is {value!r}; it must be at least {least} seconds")
    return seconds


def check_budget(value: Duration) -> float:
    """Accept a time budget for flows that name none, where zero stands for nothing, and return its seconds, whole milliseconds."""
    if seconds_of(value, "time_budget") * 1000 < TIME_BUDGET_MIN_MS:
        raise InvalidArgument(f"time_budget is {value!r}; it must be at least {TIME_BUDGET_MIN_MS / 1000} seconds")
    return check_time_budget(value) / 1000


def one_of(value: object, what: str, *choices: str) -> str:
    """Accept one of a few texts."""
    if not isinstance(value, str) or value not in choices:
        names = [repr(choice) for choice in choices]
        raise InvalidArgument(f"{what} is {shown(value)}; it must be {', '.join(names[:-1])} or {names[-1]}")
    return value


def _session_seconds(value: Duration) -> float:
    seconds = at_least(value, "session_seconds", SESSION_SECONDS_MIN)
    if seconds > SESSION_SECONDS_MAX:
        raise InvalidArgument(f"session_seconds is {value!r}; it must be at most {SESSION_SECONDS_MAX} seconds")
    return seconds


def _scheduler(value: object) -> str:
    name = check_text(value, "scheduler", chars_max=NAME_CHARS_MAX)
    if not name or name != name.strip():
        raise InvalidArgument(
            f"scheduler is {shown(name)}; it must be default, chain, batch, adaptive or a registered name, without blanks around"
        )
    return name


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "executors": lambda value: check_whole(value, "executors", least=1, most=EXECUTORS_MAX),
    "workers": lambda value: check_whole(value, "workers", least=0, most=WORKERS_MAX),
    "threads": lambda value: check_whole(value, "threads", least=1, most=WORKERS_MAX),
    "time_budget": check_budget,
    "max_priority": check_priority_max,
    "retention_days": lambda value: check_whole(value, "retention_days", least=1, most=RETENTION_DAYS_MAX),
    "flow_expiration": lambda value: at_least(value, "flow_expiration", FLOW_EXPIRATION_SECONDS_MIN),
    "engine_id": check_engine_id,
    "takeover": lambda value: one_of(value, "takeover", "session", "deadline"),
    "poison_limit": lambda value: check_whole(value, "poison_limit", least=1, most=POISON_LIMIT_MAX),
    "scheduler": _scheduler,
    "unknown_task": lambda value: one_of(value, "unknown_task", "wait", "fail"),
    "wait_ceiling": lambda value: at_least(value, "wait_ceiling", 0),
    "grace": lambda value: at_least(value, "grace", 0),
    "session_seconds": _session_seconds,
    "sweep_seconds": lambda value: at_least(value, "sweep_seconds", SESSION_SECONDS_MIN),
}
NAMES = tuple(_CHECKS)
DURATIONS = frozenset({"time_budget", "flow_expiration", "wait_ceiling", "grace", "session_seconds", "sweep_seconds"})
_OPTIONAL = frozenset({"retention_days", "flow_expiration", "engine_id", "wait_ceiling"})  # None in Python, "none" in a text
_WHOLE = frozenset({"executors", "workers", "threads", "max_priority", "retention_days", "engine_id", "poison_limit"})
_digits = re.compile(r"[+-]?[0-9]{1,19}")
_name = re.compile(r"[A-Za-z0-9_.-]{1,64}")
