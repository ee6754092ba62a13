"""`FlowOptions`: what a caller may choose for a new flow, and the rules each choice is held to.

`FlowOptions` holds what the caller wrote, unchecked, so that it can be built anywhere; `resolve` checks all of it and
returns the `ResolvedOptions` that are stored. Whether a thread exists, whether an idempotency key is taken and what a
tenant may touch is for others to say: nothing here asks a database or reads a clock.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from dwarf.checks import check_flag, check_text, check_time, check_whole, read_members, read_time, shown
from dwarf.durations import nanoseconds_of, parse_text
from dwarf.errors import InvalidArgument
from dwarf.keys import FlowKey
from dwarf.limits import (
    BAGGAGE_BYTES_MAX,
    FAIRNESS_KEY_CHARS_MAX,
    FAIRNESS_WEIGHT_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    PRIORITY_MAX_DEFAULT,
    PRIORITY_MAX_MAX,
    TIME_BUDGET_DEFAULT_MS,
    TIME_BUDGET_MAX_MS,
    TIME_BUDGET_MIN_MS,
)
from dwarf.values import encode_object

ENGINE_ID_MAX = (1 << 63) - 1

_fairness_key = re.compile(r"[A-Za-z0-9._-]*")
_not_in_fairness_key = re.compile(r"[^A-Za-z0-9._-]")
_control = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NS_PER_MS = 1_000_000


class ResolvedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Checked options as they are stored with a flow; every default is filled in."""

    priority: int
    fairness_key: str
    fairness_weight: float
    time_budget_ms: int
    baggage: bytes | None = None
    thread_key: FlowKey | None = None
    delete_on_completion: bool = False
    idempotency_key: str = ""
    start_at: datetime | None = None


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Choices for one new flow, unchecked. A zero, empty or None member takes the default.

    `time_budget` is in seconds or a `timedelta`, `start_at` an aware time before which the entry step is not due,
    `baggage` any object whose members JSON can hold, `thread_key` the key of a flow whose thread the new one joins.
    """

    priority: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0
    time_budget: float | timedelta = 0
    baggage: Any = None
    thread_key: str = ""
    delete_on_completion: bool = False
    idempotency_key: str = ""
    start_at: datetime | None = None

    @classmethod
    def from_wire(cls, wire: object) -> FlowOptions:
        """Read decoded JSON: camelCase members, `timeBudget` in seconds or as "2m", `startAt` as RFC 3339 text.

        None and null members stand for the defaults. `InvalidArgument` for what is no object and for unknown members.
        """
        members = read_members(wire, cls, "options")
        if isinstance(members.get("time_budget"), str):
            members["time_budget"] = parse_text(members["time_budget"], "options.timeBudget")
        if "start_at" in members:
            members["start_at"] = read_time(members["start_at"], "options.startAt")
        return cls(**members)

    def resolve(
        self,
        *,
        priority_max: int = PRIORITY_MAX_DEFAULT,
        time_budget_ms: int = TIME_BUDGET_DEFAULT_MS,
        time_budget_ceiling_ms: int = TIME_BUDGET_MAX_MS,
    ) -> ResolvedOptions:
        """Check every option and fill in the defaults, of which `time_budget_ms` is the engine's own.

        Raises `InvalidArgument` naming option, value and rule, `StateValueError` for baggage that JSON cannot hold.
        """
        return ResolvedOptions(
            priority=_priority(self.priority, priority_max),
            fairness_key=check_fairness_key(self.fairness_key),
            fairness_weight=_fairness_weight(self.fairness_weight),
            time_budget_ms=check_time_budget(self.time_budget, default_ms=time_budget_ms, ceiling_ms=time_budget_ceiling_ms),
            baggage=_baggage(self.baggage),
            thread_key=_thread_key(self.thread_key),
            delete_on_completion=check_flag(self.delete_on_completion, "delete_on_completion"),
            idempotency_key=check_idempotency_key(self.idempotency_key),
            start_at=None if self.start_at is None else check_time(self.start_at, "start_at"),
        )

    def __repr__(self) -> str:
        """Show what differs from the defaults; baggage holds claims and a thread key a token, so neither is shown."""
        parts: list[str] = []
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value = getattr(self, name)
            if name in {"baggage", "thread_key"}:
                parts += [] if value is None or value is default else [f"{name}=…"]
            elif value != default:
                parts.append(f"{name}={value!r}")
        return f"FlowOptions({', '.join(parts)})"


def check_priority_max(value: object) -> int:
    """Accept the largest priority that an engine offers, 1 to 100."""
    return check_whole(value, "max_priority", least=1, most=PRIORITY_MAX_MAX)


def check_engine_id(value: object) -> int:
    """Accept the number by which an engine is known, 1 to 2**63-1."""
    return check_whole(value, "engine_id", least=1, most=ENGINE_ID_MAX)


def check_time_budget(value: object, *, default_ms: int = TIME_BUDGET_DEFAULT_MS, ceiling_ms: int = TIME_BUDGET_MAX_MS) -> int:
    """Accept the time a task may take, in seconds or a `timedelta`, and return milliseconds; 0 gives the default."""
    nanoseconds = nanoseconds_of(value, "time_budget")
    if value in {0, timedelta(0)}:
        return min(default_ms, ceiling_ms)
    if not TIME_BUDGET_MIN_MS * _NS_PER_MS <= nanoseconds <= ceiling_ms * _NS_PER_MS:
        rule = f"it must be from {TIME_BUDGET_MIN_MS / 1000} to {ceiling_ms / 1000} seconds, or 0 for the default"
        raise InvalidArgument(f"time_budget is {shown(value)}; {rule}")
    return (nanoseconds + _NS_PER_MS // 2) // _NS_PER_MS


def check_fairness_key(value: object) -> str:
    if not isinstance(value, str) or len(value) > FAIRNESS_KEY_CHARS_MAX or not _fairness_key.fullmatch(value):
        raise InvalidArgument(
            f"fairness_key is {shown(value)}; it must be at most {FAIRNESS_KEY_CHARS_MAX} of the letters A-Z a-z, digits and - _ ."
        )
    return value


def check_idempotency_key(value: object) -> str:
    """Accept text of at most 256 characters that is not all blanks; the empty text stands for none."""
    key = check_text(value, "idempotency_key", chars_max=IDEMPOTENCY_KEY_CHARS_MAX)
    if _control.search(key) or (key and not key.strip()):
        raise InvalidArgument(f"idempotency_key is {shown(key)}; it must hold more than blanks, and no control characters")
    return key


def scoped_fairness_key(fairness_key: str, *, tenant: str, is_admin: bool) -> str:
    """Return the key that a caller of `tenant` shares capacity under.

    Without a key of its own it is the tenant's; a key named by a caller who is not admin stays inside the tenant's
    name. `InvalidArgument` when the whole is no fairness key.
    """
    if not tenant or (is_admin and fairness_key):
        return check_fairness_key(fairness_key)
    prefix = _tenant_key(tenant)
    return check_fairness_key(f"{prefix}.{fairness_key}" if fairness_key else prefix)


def _tenant_key(tenant: str) -> str:
    """Spell a tenant as a fairness key. One that cannot be spelled so ("org|42") keeps what it can and a digest apart."""
    if len(tenant) <= FAIRNESS_KEY_CHARS_MAX and _fairness_key.fullmatch(tenant):
        return tenant
    digest = sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_not_in_fairness_key.sub('_', tenant[:64])}-{digest}"


def _priority(value: object, priority_max: int) -> int:
    return check_whole(value, "priority", least=0, most=priority_max, besides="the middle") or (priority_max + 1) // 2


def _fairness_weight(value: object) -> float:
    # NaN fails every comparison, so it is refused with the rest.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= FAIRNESS_WEIGHT_MAX:
        raise InvalidArgument(f"fairness_weight is {shown(value)}; it must be above 0 and at most {FAIRNESS_WEIGHT_MAX:.0f}, or 0 for 1")
    return float(value) or 1.0


def _baggage(value: object) -> bytes | None:
    if value is None:
        return None
    encoded = encode_object(value, "baggage")
    if len(encoded) > BAGGAGE_BYTES_MAX:
        raise InvalidArgument(f"baggage takes {len(encoded)} bytes as JSON; at most {BAGGAGE_BYTES_MAX} are allowed")
    return encoded


def _thread_key(value: object) -> FlowKey | None:
    if value == "":
        return None
    try:
        return FlowKey.parse(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"thread_key: {error}") from None
