"""`Query` and what a list answers: which flows are meant, the page they come on, the cursor to the next page.

`Query` holds what the caller wrote, unchecked; `check` returns the `CheckedQuery` that statements are built from. Its
`matches` is the meaning of a query in plain Python; SQL has to agree with it. Nothing here asks a database or a clock.

A cursor says for each shard where its list goes on: shards that are not in it are exhausted, no shard left is the end.

    cursor   base64url( digest[9] + msgpack [[shard, flow_id, ended_us], ...] )

in which a shard that has not been read yet (it was down) stands alone as [shard], and `ended_us` is there for closed
flows only. The digest covers the positions and every filter, so a cursor fits no other query.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal

import msgspec

from dwarf.checks import check_flag, check_text, check_time, check_whole, read_members, read_time, shown
from dwarf.durations import parse_text, seconds_of
from dwarf.errors import InvalidArgument
from dwarf.keys import SHARD_INDEX_MAX, FlowKey, StepKey, key_name, parse_name
from dwarf.limits import FAIRNESS_KEY_CHARS_MAX, NAME_CHARS_MAX, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, PRIORITY_MAX_MAX, SEARCH_CHARS_MAX
from dwarf.status import Status
from dwarf.steps import wire_name

PURGE_ROOTS_MAX = 4_096  # roots that one purge takes
CURSOR_CHARS_MAX = 64 << 10
SEARCH_FIELDS = ("workflow_url", "workflow_name", "task_name", "fairness_key", "error", "reason")

_DIGEST_BYTES = 9
_INT63 = (1 << 63) - 1
_FROM_URL = bytes.maketrans(b"-_+/", b"+/!!")
_rows = msgspec.msgpack.Decoder(list[list[int]])


class FlowSummary(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """A flow as lists show it. `task_name` is empty while a fan-out leaves no single current step."""

    flow_key: str
    thread_key: str = ""
    workflow_url: str = ""
    workflow_name: str = ""
    status: Status = Status.RUNNING
    task_name: str = ""
    error: str = ""
    reason: str = ""
    created_at: datetime | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None
    ended_at: datetime | None = None
    priority: int = 0
    fairness_key: str = ""
    trace_id: str = ""
    subgraph: bool = False

    def __repr__(self) -> str:
        return f"FlowSummary({key_name(self.flow_key)} {self.workflow_url!r} {self.status})"


class Page(msgspec.Struct, frozen=True):
    """One page of a list. It may hold few items, even none, and go on: the end has neither items nor a cursor.

    `errors` tells for each shard that could not be asked why; the cursor goes on there.
    """

    items: list[FlowSummary] = []
    cursor: str = ""
    errors: dict[int, str] = {}

    def __iter__(self) -> Iterator[FlowSummary]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Position(msgspec.Struct, frozen=True):
    """The last flow that a shard's list has shown; `ended_us` is in microseconds since 1970, for closed flows only."""

    flow_id: int
    ended_us: int | None = None


Positions = Mapping[int, Position | None]


# Which half of the flows is meant; "stopped" is what a purge takes: closed flows, or interrupted ones where the status says so.
Scope = Literal["open", "closed", "stopped"]


class CheckedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query whose every part has been checked. What is None, empty or zero does not filter.

    A bound that is a `timedelta` is an age by the database's clock. `search_key` is set instead of `search` when the
    text names a flow or one of its steps. `positions` is None on the first page.
    """

    scope: Scope
    status: Status | None
    workflow_url: str
    workflow_name: str
    thread_key: FlowKey | None
    task_name: str
    fairness_key: str
    priority: int
    older_than: datetime | timedelta | None
    newer_than: datetime | timedelta | None
    include_subgraphs: bool
    shard: int
    search: str
    search_key: FlowKey | StepKey | tuple[int, int] | None
    limit: int
    positions: Positions | None = None

    @property
    def filters(self) -> bytes:
        """Everything that decides which flows are meant; neither the size of a page nor the place in the list."""
        return msgspec.json.encode([getattr(self, name) for name in self.__struct_fields__ if name not in {"limit", "positions"}])

    def matches(self, flow: FlowSummary, *, now: datetime | None = None) -> bool:
        """Tell whether every filter lets `flow` through. Filters compare exactly; `now` is needed where ages filter."""
        wanted = (
            (self.status, flow.status),
            (self.workflow_url, flow.workflow_url),
            (self.workflow_name, flow.workflow_name),
            (self.thread_key and str(self.thread_key), flow.thread_key),
            (self.task_name, flow.task_name),
            (self.fairness_key, flow.fairness_key),
            (self.priority, flow.priority),
            (self.shard, FlowKey.parse(flow.flow_key).shard),
        )
        return (
            self._is_in_scope(flow.status)
            and (self.include_subgraphs or not flow.subgraph)
            and all(not want or want == have for want, have in wanted)
            and self._in_window(flow, now)
            and self._is_found(flow)
        )

    def finds(self, flow: FlowKey) -> bool:
        """Tell whether `search_key` names this flow. A key with a wrong token names none."""
        key = self.search_key
        if isinstance(key, StepKey):
            return (key.shard, key.flow_id) == (flow.shard, flow.flow_id) and key.belongs_to(flow.token)
        return key in {flow, (flow.shard, flow.flow_id)}

    def _is_in_scope(self, status: Status) -> bool:
        if self.scope == "stopped":
            return status.closed or status is self.status is Status.INTERRUPTED
        return status.closed is (self.scope == "closed")

    def _is_found(self, flow: FlowSummary) -> bool:
        if self.search_key is not None:
            return self.finds(FlowKey.parse(flow.flow_key))
        needle = self.search.lower()
        return not needle or any(needle in getattr(flow, field).lower() for field in SEARCH_FIELDS)

    def _in_window(self, flow: FlowSummary, now: datetime | None) -> bool:
        moved = flow.ended_at or flow.updated_at
        older, newer = _instant(self.older_than, now), _instant(self.newer_than, now)
        if moved is None:
            return older is newer is None
        return (older is None or moved < older) and (newer is None or moved >= newer)


class Query(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """Which flows are meant, unchecked. All filters must match, exactly and case-sensitively; zero or empty is no filter.

    `older_than` and `newer_than` are aware times, or ages (`timedelta` or seconds), and bound the last update of open
    flows and the end of closed ones: newer_than <= time < older_than. `search` looks for a part of the URL, names,
    fairness key, error and reason whatever the case; a key of a flow or step, or its name in logs, finds that flow.
    Without `include_subgraphs` only roots are meant.
    """

    status: Status | str = ""
    workflow_url: str = ""
    workflow_name: str = ""
    thread_key: str = ""
    task_name: str = ""
    fairness_key: str = ""
    priority: int = 0
    older_than: datetime | timedelta | float | None = None
    newer_than: datetime | timedelta | float | None = None
    include_subgraphs: bool = False
    shard: int | None = 0
    search: str = ""
    limit: int = 0
    cursor: str = ""

    @classmethod
    def from_wire(cls, wire: object) -> Query:
        """Read decoded JSON: camelCase members; a time as RFC 3339 text, an age in seconds or as "2d"."""
        members = read_members(wire, cls, "query")
        for bound in ("older_than", "newer_than"):
            if isinstance(members.get(bound), str):
                members[bound] = _read_bound(members[bound], f"query.{wire_name(bound)}")
        return cls(**members)

    def check(self, *, closed: bool = False, shards: Collection[int] | None = None) -> CheckedQuery:
        """Check every part for a list of open or of closed flows; `shards` are the configured indexes.

        Raises `InvalidArgument` naming part, value and rule.
        """
        checked = self._checked("closed" if closed else "open", shards, limit_max=PAGE_ITEMS_MAX, limit_default=PAGE_ITEMS_DEFAULT)
        if self.cursor == "":
            return checked
        return msgspec.structs.replace(checked, positions=decode_cursor(self.cursor, checked))

    def check_purge(self, *, shards: Collection[int] | None = None) -> CheckedQuery:
        """Check every part for a purge, which takes roots and begins at the oldest, so has no cursor."""
        if self.include_subgraphs:
            raise InvalidArgument("include_subgraphs is set; a purge takes roots only, their children go with them")
        if self.cursor:
            raise InvalidArgument("cursor is set; a purge has none: call it again until it returns 0")
        return self._checked("stopped", shards, limit_max=PURGE_ROOTS_MAX, limit_default=PURGE_ROOTS_MAX)

    def _checked(self, scope: Scope, shards: Collection[int] | None, *, limit_max: int, limit_default: int) -> CheckedQuery:
        search = check_text(self.search, "search", chars_max=SEARCH_CHARS_MAX).strip()
        search_key = _search_key(search)
        limit = check_whole(self.limit, "limit", least=0, most=limit_max, besides=f"the default of {limit_default}")
        return CheckedQuery(
            scope=scope,
            status=_status(self.status),
            workflow_url=check_text(self.workflow_url, "workflow_url", chars_max=NAME_CHARS_MAX),
            workflow_name=check_text(self.workflow_name, "workflow_name", chars_max=NAME_CHARS_MAX),
            thread_key=_thread_key(self.thread_key),
            task_name=check_text(self.task_name, "task_name", chars_max=NAME_CHARS_MAX),
            fairness_key=check_text(self.fairness_key, "fairness_key", chars_max=FAIRNESS_KEY_CHARS_MAX),
            priority=check_whole(self.priority, "priority", least=0, most=PRIORITY_MAX_MAX, besides="any"),
            older_than=_bound(self.older_than, "older_than"),
            newer_than=_bound(self.newer_than, "newer_than"),
            include_subgraphs=check_flag(self.include_subgraphs, "include_subgraphs"),
            shard=_shard(self.shard, shards),
            search=search if search_key is None else "",
            search_key=search_key,
            limit=limit or limit_default,
        )

    def __repr__(self) -> str:
        """Show what differs from the defaults, no token among it."""
        parts = {name: value for name, value in msgspec.structs.asdict(self).items() if value not in ("", 0, None)}
        if "thread_key" in parts:
            parts["thread_key"] = key_name(self.thread_key)
        if "search" in parts and (name := key_name(self.search)) != "?":
            parts["search"] = name
        if "cursor" in parts:
            parts["cursor"] = "…"
        return f"Query({', '.join(f'{name}={value!r}' for name, value in parts.items())})"


def encode_cursor(positions: Positions, query: CheckedQuery) -> str:
    """Return the cursor to the next page; a None position stands for a shard to be read from its start."""
    if not positions:
        return ""
    payload = msgspec.msgpack.encode([_row(shard, positions[shard]) for shard in sorted(positions)])
    return urlsafe_b64encode(sha256(payload + query.filters).digest()[:_DIGEST_BYTES] + payload).rstrip(b"=").decode()


def decode_cursor(cursor: object, query: CheckedQuery) -> dict[int, Position | None]:
    """Read a cursor that a list with the same filters gave. `InvalidArgument` for anything else."""
    positions: dict[int, Position | None] = {}
    if isinstance(cursor, str) and len(cursor) <= CURSOR_CHARS_MAX:
        with suppress(ValueError, msgspec.MsgspecError):
            padded = cursor.encode("ascii").translate(_FROM_URL) + b"=" * (-len(cursor) % 4)
            rows = _rows.decode(binascii.a2b_base64(padded, strict_mode=True)[_DIGEST_BYTES:])
            positions = {shard: Position(*place) if place else None for shard, *place in rows if _is_place(shard, place, query)}
    # Positions have one spelling: whatever was cut, added, changed or left out above shows when it is written again.
    if not positions or encode_cursor(positions, query) != cursor:
        raise InvalidArgument(f"cursor {shown(cursor)} was not given by a list with these filters")
    return positions


def _row(shard: int, position: Position | None) -> list[int]:
    if position is None:
        return [shard]
    return [shard, position.flow_id] if position.ended_us is None else [shard, position.flow_id, position.ended_us]


def _is_place(shard: int, place: list[int], query: CheckedQuery) -> bool:
    parts_wanted = 2 if query.scope == "closed" else 1
    return 1 <= shard <= SHARD_INDEX_MAX and len(place) in {0, parts_wanted} and all(0 <= part <= _INT63 for part in place)


def _status(value: object) -> Status | None:
    if isinstance(value, str):
        if value == "":
            return None
        with suppress(ValueError):
            return Status(value)
    raise InvalidArgument(f"status is {shown(value)}; the statuses are {', '.join(Status)}")


def _thread_key(value: object) -> FlowKey | None:
    if value == "":
        return None
    try:
        return FlowKey.parse(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"thread_key: {error}") from None


def _shard(value: object, shards: Collection[int] | None) -> int:
    shard = check_whole(0 if value is None else value, "shard", least=0, most=SHARD_INDEX_MAX, besides="all")
    if shard and shards is not None and shard not in shards:
        raise InvalidArgument(f"shard {shard} is not configured; the shards are {', '.join(map(str, sorted(shards)))}")
    return shard


def _bound(value: object, what: str) -> datetime | timedelta | None:
    if value is None or isinstance(value, datetime):
        return None if value is None else check_time(value, what)
    seconds = seconds_of(value, what)
    if seconds < 0:
        raise InvalidArgument(f"{what} is {shown(value)}; an age cannot be negative")
    return timedelta(seconds=seconds) or None


def _read_bound(text: object, what: str) -> datetime | float:
    with suppress(InvalidArgument):
        return parse_text(text, what)
    return read_time(text, what)


def _search_key(search: str) -> FlowKey | StepKey | tuple[int, int] | None:
    for kind in (FlowKey, StepKey):
        with suppress(InvalidArgument):
            return kind.parse(search)
    return parse_name(search)


def _instant(bound: datetime | timedelta | None, now: datetime | None) -> datetime | None:
    if not isinstance(bound, timedelta):
        return bound
    assert now is not None, "an age filters only from some now"
    return now - bound
