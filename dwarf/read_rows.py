"""The rows that clients' reads return, as structs, and how their columns are read. No statement is executed here."""

from __future__ import annotations

from datetime import datetime

import msgspec

from dwarf.arrays import read_bool, read_float8, read_int2, read_int4, read_int8, read_text, read_timestamptz
from dwarf.rows import Reader, read_bytes


class FoundFlow(msgspec.Struct, gc=False):
    """What has to be known of a flow before anything is done with it. `status`: 1 running, 4 interrupted, 6 to 9 ended."""

    flow_id: int
    root_id: int
    thread_id: int
    token: str
    status: int
    graph_id: int
    name: str
    workflow: str
    ended_at: datetime | None
    is_hidden: bool


FOUND_FLOW: tuple[Reader, ...] = (
    read_int8, read_int8, read_int8, read_text, read_int2, read_int4, read_text, read_text, read_timestamptz, read_bool,
)  # fmt: skip


class OutcomeRow(msgspec.Struct, gc=False):
    """Where a flow stands. `final_state` is None where it has to be folded; `park_*` name the step of the first open interrupt."""

    flow_id: int
    root_id: int
    token: str
    status: int
    graph_id: int
    error: str | None
    reason: str | None
    final_state: bytes | None
    payload: bytes | None
    park_flow: int | None
    park_branch: int | None
    park_seq: int | None


OUTCOME: tuple[Reader, ...] = (
    read_int8, read_int8, read_text, read_int2, read_int4, read_text, read_text, read_bytes, read_bytes, read_int8, read_int8, read_int4,
)  # fmt: skip


class EndedRow(msgspec.Struct, gc=False):
    """How a flow ended. `final_state` is None where it has to be folded, and where it is large."""

    flow_id: int
    status: int
    error: str | None
    reason: str | None
    final_state: bytes | None


ENDED: tuple[Reader, ...] = (read_int8, read_int2, read_text, read_text, read_bytes)


class StepRow(msgspec.Struct, gc=False):
    """One step of a flow or of a child below it, finished or under way."""

    flow_id: int
    branch: int
    seq: int
    depth: int
    attempt: int
    status: int
    task: str
    error: str | None
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    engine_id: int | None
    parent_branch: int | None
    parent_seq: int | None
    fan_first: int | None
    fan_size: int | None
    child_id: int | None


STEPS: tuple[Reader, ...] = (
    read_int8, read_int8, read_int4, read_int4, read_int4, read_int2, read_text, read_text, read_timestamptz, read_timestamptz,
    read_timestamptz, read_int8, read_int8, read_int4, read_int8, read_int4, read_int8,
)  # fmt: skip


class ReplayRow(msgspec.Struct, gc=False):
    """A finished step, as far as rebuilding inputs goes."""

    branch: int
    seq: int
    status: int
    via: int
    task: str
    changes: bytes | None
    parent_branch: int | None
    parent_seq: int | None
    ordinal: int | None
    fan_first: int | None
    fan_size: int | None
    depth: int
    attempt: int
    child_id: int | None
    kept: bytes | None


REPLAY: tuple[Reader, ...] = (
    read_int8, read_int4, read_int2, read_int2, read_text, read_bytes, read_int8, read_int4, read_int4, read_int8, read_int4,
    read_int4, read_int4, read_int8, read_bytes,
)  # fmt: skip


class OriginRow(msgspec.Struct, gc=False):
    """What a flow was created with. `overrides`: what forks have put in place of inputs, [[branch, seq, fields], …]."""

    graph_id: int
    input: bytes | None
    overrides: bytes | None


ORIGIN: tuple[Reader, ...] = (read_int4, read_bytes, read_bytes)


class CallerRow(msgspec.Struct, gc=False):
    """A closed flow on the way from a root to a flow below it, and the step of the one before that called it."""

    flow_id: int
    day: int
    graph_id: int
    caller_branch: int | None
    caller_seq: int | None
    input: bytes | None
    overrides: bytes | None


CALLERS: tuple[Reader, ...] = (read_int8, read_int4, read_int4, read_int8, read_int4, read_bytes, read_bytes)


class WritesRow(msgspec.Struct, gc=False):
    changes: bytes | None
    payload: bytes | None


WRITES: tuple[Reader, ...] = (read_bytes, read_bytes)


class ParkedRow(msgspec.Struct, gc=False):
    """What an interrupted step stands on, and the writes it keeps."""

    graph_id: int
    day: int
    base_branch: int
    base_seq: int
    delta_seq: int
    delta: bytes | None
    kept: bytes | None
    is_fan_in: bool


PARKED: tuple[Reader, ...] = (read_int4, read_int4, read_int8, read_int4, read_int4, read_bytes, read_bytes, read_bool)


class WorkflowRow(msgspec.Struct, gc=False):
    """The graph that engines have registered under a URL."""

    url: str
    graph_id: int
    entry_task: str


WORKFLOWS: tuple[Reader, ...] = (read_text, read_int4, read_text)


class ListedRow(msgspec.Struct, gc=False):
    """What a list shows of a flow. Of a place, which says where the list goes on, only the first three are set."""

    flow_id: int
    ended_at: datetime | None
    is_place: bool
    token: str
    thread_id: int
    thread_token: str | None
    workflow: str
    name: str
    status: int
    task: str | None
    error: str | None
    reason: str | None
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime | None
    priority: int
    fairness_key: str
    is_child: bool


LISTED: tuple[Reader, ...] = (
    read_int8, read_timestamptz, read_bool, read_text, read_int8, read_text, read_text, read_text, read_int2, read_text, read_text,
    read_text, read_timestamptz, read_timestamptz, read_timestamptz, read_int2, read_text, read_bool,
)  # fmt: skip


class StoppedRow(msgspec.Struct, gc=False):
    """A root that a purge would take. `parked_at`, of one that is interrupted, is in microseconds since 2000."""

    flow_id: int
    parked_at: int | None
    is_place: bool


STOPPED: tuple[Reader, ...] = (read_int8, read_int8, read_bool)


class ShardGauges(msgspec.Struct, gc=False):
    flows_open: int
    steps_pending: int
    steps_running: int
    oldest_pending_seconds: float
    dispatchers: int
    version: int | None


SHARD_GAUGES: tuple[Reader, ...] = (read_int8, read_int8, read_int8, read_float8, read_int4, read_int4)
