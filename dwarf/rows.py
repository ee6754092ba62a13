"""The rows that the hot statements return, as structs, and how their columns are read. No statement is executed here.

Times are whole microseconds since 2000-01-01 UTC, by the database's clock: nothing on this path needs a `datetime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from dwarf import arrays
from dwarf.arrays import read_bool, read_int2, read_int4, read_int8, read_text

Cells = Sequence[bytes | None]
Reader = Callable[[Cells], list[Any]]
Row = TypeVar("Row", bound=msgspec.Struct)


def read_bytes(cells: Cells) -> list[Any]:
    """Read a column of json: the documents as they are stored."""
    return list(cells)


class ClaimedRow(msgspec.Struct, gc=False):
    """A claimed row of `dwarf.active`, and what its flow adds: `dwarf.claimed`, member by member.

    `input` is set where the step stands on the flow's initial state; documents further on are loaded apart.
    """

    flow_id: int
    branch: int
    seq: int
    lease: int
    task: str
    todo: int
    attempt: int
    depth: int
    created_at: int
    due_at: int
    parked: bool
    base_branch: int
    base_seq: int
    delta: bytes | None
    delta_seq: int
    join_branch: int | None
    ordinal: int | None
    size: int | None
    expanded: int | None
    last_ordinal: int | None
    fairness_key: str
    priority: int
    day: int
    root_id: int
    caller_flow: int | None
    caller_branch: int | None
    token: str
    graph_id: int
    workflow: str
    budget_ms: int
    flow_created_at: int
    nesting: int
    reason: str | None
    baggage: bytes | None
    input: bytes | None


CLAIMED: tuple[Reader, ...] = (
    read_int8, read_int8, read_int4, read_int4, read_text, read_int2, read_int4, read_int4, read_int8, read_int8, read_bool,
    read_int8, read_int4, read_bytes, read_int4, read_int8, read_int4, read_int4, read_int4, read_int4, read_text, read_int2, read_int4,
    read_int8, read_int8, read_int8, read_text, read_int4, read_text, read_int4, read_int8, read_int2, read_text, read_bytes, read_bytes,
)  # fmt: skip


class DocumentRow(msgspec.Struct, gc=False):
    """A document at its position; of (0, 0) it is the flow's initial state."""

    flow_id: int
    branch: int
    seq: int
    document: bytes | None


DOCUMENTS: tuple[Reader, ...] = (read_int8, read_int8, read_int4, read_bytes)


class ChangesRow(msgspec.Struct, gc=False):
    """What one finished step changed."""

    flow_id: int
    branch: int
    seq: int
    changes: bytes | None


CHANGES = DOCUMENTS


class SourceRow(msgspec.Struct, gc=False):
    """The fan-out source of a joining row: its task, and the numbers of the branches it opened."""

    flow_id: int
    branch: int
    task: str
    fan_first: int
    fan_size: int


SOURCES: tuple[Reader, ...] = (read_int8, read_int8, read_text, read_int8, read_int4)


class MemberRow(msgspec.Struct, gc=False):
    """The last step of a branch of a cohort, with what the branch contributed."""

    ordinal: int
    seq: int
    status: int
    contribution: bytes | None
    error: str | None


MEMBERS: tuple[Reader, ...] = (read_int4, read_int4, read_int2, read_bytes, read_text)


class ParkRow(msgspec.Struct, gc=False):
    """What a parked or retried step left, and what answered it. `kind`: 0 writes only, 1 interrupt, 2 child."""

    flow_id: int
    branch: int
    kind: int
    kept: bytes | None
    answer: bytes | None
    child_id: int | None
    child_status: int | None
    child_error: str | None
    result: bytes | None


PARKS: tuple[Reader, ...] = (read_int8, read_int8, read_int2, read_bytes, read_bytes, read_int8, read_int2, read_text, read_bytes)


class SignalRow(msgspec.Struct, gc=False):
    """A running row that was taken away. `kind`: 1 cancelled, 2 terminated, 3 swept."""

    flow_id: int
    branch: int
    seq: int
    lease: int
    kind: int


SIGNALS: tuple[Reader, ...] = (read_int8, read_int8, read_int4, read_int4, read_int2)


class SweptRow(msgspec.Struct, gc=False):
    """A row that was returned to pending; `why`: session or deadline."""

    flow_id: int
    branch: int
    owner: int
    why: str


SWEPT: tuple[Reader, ...] = (read_int8, read_int8, read_int4, read_text)


def read_rows(kind: type[Row], readers: Sequence[Reader], columns: Sequence[Cells]) -> list[Row]:
    """Turn columns of cells into structs, each column read at once."""
    return [kind(*row) for row in zip(*(read(cells) for read, cells in zip(readers, columns, strict=True)), strict=True)]


# The parameters of `dwarf.record_v1` after the lane's four, in order: how each column is built, and its type.
RECORD_COLUMNS: dict[str, tuple[Callable[[Any], bytes], int]] = {
    "f_flow": (arrays.int8_array, arrays.INT8_ARRAY),
    "f_seq": (arrays.int4_array, arrays.INT4_ARRAY),
    "f_lease": (arrays.int4_array, arrays.INT4_ARRAY),
    "f_kind": (arrays.int2_array, arrays.INT2_ARRAY),
    "f_task": (arrays.text_array, arrays.TEXT_ARRAY),
    "f_changes": (arrays.json_array, arrays.JSON_ARRAY),
    "f_state": (arrays.json_array, arrays.JSON_ARRAY),
    "p_creators": (arrays.int8_array, arrays.INT8_ARRAY),
    "p_closing": (arrays.int8_array, arrays.INT8_ARRAY),
    "j_flow": (arrays.int8_array, arrays.INT8_ARRAY),
    "j_branch": (arrays.int8_array, arrays.INT8_ARRAY),
    "s_flow": (arrays.int8_array, arrays.INT8_ARRAY),
    "s_branch": (arrays.int8_array, arrays.INT8_ARRAY),
    "s_seq": (arrays.int4_array, arrays.INT4_ARRAY),
    "s_lease": (arrays.int4_array, arrays.INT4_ARRAY),
    "s_kind": (arrays.int2_array, arrays.INT2_ARRAY),
    "s_status": (arrays.int2_array, arrays.INT2_ARRAY),
    "s_via": (arrays.int2_array, arrays.INT2_ARRAY),
    "s_task": (arrays.text_array, arrays.TEXT_ARRAY),
    "s_goto": (arrays.text_array, arrays.TEXT_ARRAY),
    "s_error": (arrays.text_array, arrays.TEXT_ARRAY),
    "s_changes": (arrays.json_array, arrays.JSON_ARRAY),
    "s_contribution": (arrays.json_array, arrays.JSON_ARRAY),
    "s_snapshot": (arrays.json_array, arrays.JSON_ARRAY),
    "s_delta": (arrays.json_array, arrays.JSON_ARRAY),
    "s_delay_ms": (arrays.int8_array, arrays.INT8_ARRAY),
    "s_size": (arrays.int4_array, arrays.INT4_ARRAY),
    "s_count": (arrays.int4_array, arrays.INT4_ARRAY),
    "s_first": (arrays.int8_array, arrays.INT8_ARRAY),
    "s_final": (arrays.json_array, arrays.JSON_ARRAY),
    "s_kept": (arrays.json_array, arrays.JSON_ARRAY),
    "s_payload": (arrays.json_array, arrays.JSON_ARRAY),
    "s_from": (arrays.int4_array, arrays.INT4_ARRAY),
    "s_own": (arrays.text_array, arrays.TEXT_ARRAY),
    "s_begun_ms": (arrays.int8_array, arrays.INT8_ARRAY),
    "s_base": (arrays.int4_array, arrays.INT4_ARRAY),
    "s_delta_seq": (arrays.int4_array, arrays.INT4_ARRAY),
    "c_rec": (arrays.int4_array, arrays.INT4_ARRAY),
    "c_ordinal": (arrays.int4_array, arrays.INT4_ARRAY),
    "c_task": (arrays.text_array, arrays.TEXT_ARRAY),
    "c_delta": (arrays.json_array, arrays.JSON_ARRAY),
    "c_hot": (arrays.bool_array, arrays.BOOL_ARRAY),
    "k_rec": (arrays.int4_array, arrays.INT4_ARRAY),
    "k_token": (arrays.text_array, arrays.TEXT_ARRAY),
    "k_graph_id": (arrays.int4_array, arrays.INT4_ARRAY),
    "k_workflow": (arrays.text_array, arrays.TEXT_ARRAY),
    "k_task": (arrays.text_array, arrays.TEXT_ARRAY),
    "k_input": (arrays.json_array, arrays.JSON_ARRAY),
    "h_rec": (arrays.int4_array, arrays.INT4_ARRAY),
    "h_task": (arrays.text_array, arrays.TEXT_ARRAY),
    "h_changes": (arrays.json_array, arrays.JSON_ARRAY),
    "h_state": (arrays.json_array, arrays.JSON_ARRAY),
    "h_ended_ms": (arrays.int8_array, arrays.INT8_ARRAY),
}
LINEAR_COLUMNS = ("f_flow", "f_seq", "f_lease", "f_kind", "f_task", "f_changes", "f_state")
