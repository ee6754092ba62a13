"""The cuts of a fork laid out column by column, as the statement that copies takes them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dwarf.arrays import INT4_ARRAY, INT8, INT8_ARRAY, JSON_ARRAY, TEXT_ARRAY, int4_array, int8, int8_array, json_array, text_array
from dwarf.forking import Cut, Place

_INT4S = (int4_array, INT4_ARRAY)
_INT8S = (int8_array, INT8_ARRAY)
_JSONS = (json_array, JSON_ARRAY)
_TEXTS = (text_array, TEXT_ARRAY)


class Source(msgspec.Struct):
    """A flow to copy: its id, the token of the copy, and the step of the copy before it that has called it, with its writes."""

    flow_id: int
    token: str
    caller: Place | None
    kept: bytes | None
    cut: Cut


class Copy(msgspec.Struct):
    """The columns, named and in the order of the parameters of dwarf.fork_v1 behind the first."""

    origin: list[int] = []
    token: list[str] = []
    caller_branch: list[int | None] = []
    caller_seq: list[int | None] = []
    kept: list[bytes | None] = []
    input: list[bytes | None] = []
    kept_rec: list[int] = []
    kept_branch: list[int] = []
    kept_last: list[int] = []
    steps: int = 0
    document_rec: list[int] = []
    document_branch: list[int] = []
    document_seq: list[int] = []
    document: list[bytes] = []
    cancelled_rec: list[int] = []
    cancelled_branch: list[int] = []
    cancelled_seq: list[int] = []
    cancelled_contribution: list[bytes] = []
    row_rec: list[int] = []
    row_branch: list[int] = []
    row_seq: list[int] = []
    row_task: list[str] = []
    row_depth: list[int] = []
    row_status: list[int] = []
    row_attempt: list[int] = []
    row_base_branch: list[int] = []
    row_base_seq: list[int] = []
    row_delta: list[bytes | None] = []
    row_join_branch: list[int | None] = []
    row_ordinal: list[int | None] = []
    row_size: list[int | None] = []
    row_arrived: list[int | None] = []
    row_failed: list[int | None] = []
    again_rec: list[int] = []
    again_branch: list[int] = []
    again_seq: list[int] = []
    again_overrides: list[bytes | None] = []


# How each column is built, and the oid of its type.
COPY: Sequence[tuple[Callable[[Any], bytes], int]] = (
    _INT8S, _TEXTS, _INT8S, _INT4S, _JSONS, _JSONS,
    _INT4S, _INT8S, _INT4S, (int8, INT8),
    _INT4S, _INT8S, _INT4S, _JSONS,
    _INT4S, _INT8S, _INT4S, _JSONS,
    _INT4S, _INT8S, _INT4S, _TEXTS, _INT4S, _INT4S, _INT4S, _INT8S, _INT4S, _JSONS, _INT8S, _INT4S, _INT4S, _INT4S, _INT4S,
    _INT4S, _INT8S, _INT4S, _JSONS,
)  # fmt: skip
assert len(COPY) == len(Copy.__struct_fields__)


def lay_out(sources: Sequence[Source]) -> Copy:
    """Lay out the flows to copy, the root first."""
    copy = Copy()
    for rec, source in enumerate(sources, 1):
        cut = source.cut
        copy.origin.append(source.flow_id)
        copy.token.append(source.token)
        copy.caller_branch.append(source.caller and source.caller[0])
        copy.caller_seq.append(source.caller and source.caller[1])
        copy.kept.append(source.kept)
        copy.input.append(cut.input)
        copy.steps += cut.steps
        for branch, last in cut.kept.items():
            copy.kept_rec.append(rec)
            copy.kept_branch.append(branch)
            copy.kept_last.append(last)
        for (branch, seq), document in cut.documents.items():
            copy.document_rec.append(rec)
            copy.document_branch.append(branch)
            copy.document_seq.append(seq)
            copy.document.append(document)
        for (branch, seq), contribution in cut.cancelled.items():
            copy.cancelled_rec.append(rec)
            copy.cancelled_branch.append(branch)
            copy.cancelled_seq.append(seq)
            copy.cancelled_contribution.append(contribution)
        _lay_out_rows(copy, rec, cut)
        for (branch, seq), overrides in cut.overrides.items():
            if overrides or rec == len(sources):
                copy.again_rec.append(rec)
                copy.again_branch.append(branch)
                copy.again_seq.append(seq)
                copy.again_overrides.append(msgspec.json.encode(overrides) if overrides else None)
    return copy


def _lay_out_rows(copy: Copy, rec: int, cut: Cut) -> None:
    for row in cut.rows:
        copy.row_rec.append(rec)
        copy.row_branch.append(row.branch)
        copy.row_seq.append(row.seq)
        copy.row_task.append(row.task)
        copy.row_depth.append(row.depth)
        copy.row_status.append(row.status)
        copy.row_attempt.append(row.attempt)
        copy.row_base_branch.append(row.base[0])
        copy.row_base_seq.append(row.base[1])
        copy.row_delta.append(row.delta)
        copy.row_join_branch.append(row.join_branch)
        copy.row_ordinal.append(row.ordinal)
        copy.row_size.append(row.size)
        copy.row_arrived.append(row.arrived)
        copy.row_failed.append(row.failed)
