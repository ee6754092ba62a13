"""One batch of records as the columns of the record call. Pure: it sorts and lays out, and never looks into user state.

`lay_out` decides which records go the linear path (the trunk of a root whose step simply advances or completes) and which
go the general one, sorts both by (flow, branch), and works out which live, joining and caller rows the call must lock.
A chain is one entry: the record of its last step, with the records of the steps before it as `prefix`. Its row goes on by
all of them at once, or by none. Ordinals in an answer count the linear records first, then the general ones;
`Batch.entries` is in that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dwarf.record import Kind, Record, Via
from dwarf.status import StepStatus

HOT = 8  # added to a kind: the successor starts at once

STATUS_CODES: dict[StepStatus, int] = {
    StepStatus.PENDING: 1,
    StepStatus.RUNNING: 2,
    StepStatus.INTERRUPTED: 4,
    StepStatus.PARKED: 5,
    StepStatus.COMPLETED: 6,
    StepStatus.FAILED: 7,
    StepStatus.CANCELLED: 8,
    StepStatus.TERMINATED: 9,
}
STATUS_OF = {code: status for status, code in STATUS_CODES.items()}


class ChildStart(msgspec.Struct, frozen=True):
    """What starting a child takes beside its input: its token, and its graph as it is stored."""

    token: str
    graph_id: int
    entry_task: str


class Entry(msgspec.Struct):
    """A record with what the dispatcher knows of its row.

    `hot`: the successor, or for a fan-out each branch in `hot_branches`, starts at once. `first_branch` numbers the first
    branch of a fan-out. `joining`: the row is a fan-in's. `unparks`: the step has a past in `parks`.
    `prefix`: the steps of a chain that came before `record`'s, in order, each an advance to the next; the lease of `record`
    is that of the row. `elapsed`: when each of these ended, in seconds after the chain began (unknown when left out).
    """

    flow_id: int
    root_id: int
    record: Record
    join_branch: int | None = None
    caller: tuple[int, int] | None = None
    hot: bool = False
    hot_branches: frozenset[int] = frozenset()
    first_branch: int | None = None
    joining: bool = False
    unparks: bool = False
    child: ChildStart | None = None
    prefix: list[Record] = []
    elapsed: list[float] = []

    @property
    def place(self) -> tuple[int, int]:
        return self.flow_id, self.record.branch


class Batch(msgspec.Struct):
    """The columns by parameter name of `dwarf.record_v1`, and the entries in the order of their ordinals."""

    entries: list[Entry]
    columns: dict[str, list[Any]]

    def missed(self, ordinals: Iterable[int]) -> list[Entry]:
        return [self.entries[ordinal - 1] for ordinal in ordinals]


def lay_out(entries: Iterable[Entry]) -> Batch:
    """Return the columns for a batch. A parameter without rows, or with nothing but None, is left out.

    At most one entry per row of a flow.
    """
    ordered = sorted(entries, key=lambda entry: entry.place)
    linear = [entry for entry in ordered if is_linear(entry)]
    general = [entry for entry in ordered if not is_linear(entry)]
    columns: dict[str, list[Any]] = {}
    if linear:
        columns.update(_linear(linear))
    if general:
        columns.update(_general(general))
        columns.update(_branches(general))
        columns.update(_children(general))
        columns.update(_chains(general))
    columns.update(_locks(ordered))
    return Batch(linear + general, {name: column for name, column in columns.items() if _holds_any(column)})


def cut_chain(entry: Entry) -> tuple[Entry, Entry]:
    """Cut the first step off the entry of a chain, to be recorded by itself; the rest applies if that did.

    For a chain that cannot be stored as a whole: cut again and again it leaves one step that cannot, after those that can.
    """
    lease = entry.record.lease
    first = msgspec.structs.replace(
        entry, record=msgspec.structs.replace(entry.prefix[0], lease=lease), prefix=[], elapsed=[],
        hot=True, hot_branches=frozenset(), first_branch=None, child=None,
    )  # fmt: skip
    last = msgspec.structs.replace(entry.record, lease=lease + 1)
    return first, msgspec.structs.replace(entry, record=last, prefix=entry.prefix[1:], elapsed=[], joining=False, unparks=False)


def _holds_any(column: list[Any]) -> bool:
    return bool(column) and (column[0] is not None or column.count(None) < len(column))


def is_linear(entry: Entry) -> bool:
    """Tell whether a record takes the short path: nothing but a root's only row going on, or its flow completing."""
    record = entry.record
    return (
        record.kind in (Kind.ADVANCE, Kind.CLOSE)
        and record.branch == 0
        and not entry.prefix
        and entry.flow_id == entry.root_id
        and record.status is StepStatus.COMPLETED
        and record.via is Via.NORMAL
        and record.snapshot is None
        and not (record.delay or entry.joining or entry.unparks or (record.kind is Kind.CLOSE and entry.hot))
    )


def _linear(entries: list[Entry]) -> dict[str, list[Any]]:
    records = [entry.record for entry in entries]
    return {
        "f_flow": [entry.flow_id for entry in entries],
        "f_seq": [record.seq for record in records],
        "f_lease": [record.lease for record in records],
        "f_kind": [_kind(entry) for entry in entries],
        "f_task": [record.task for record in records],
        "f_changes": [record.changes for record in records],
        "f_state": [entry.record.final_state if entry.record.kind is Kind.CLOSE else _delta(entry) for entry in entries],
    }


def _general(entries: list[Entry]) -> dict[str, list[Any]]:
    records = [entry.record for entry in entries]
    finished = [record.kind not in (Kind.PARK, Kind.RETRY, Kind.NONE) for record in records]
    return {
        "s_flow": [entry.flow_id for entry in entries],
        "s_branch": [record.branch for record in records],
        "s_seq": [record.seq for record in records],
        "s_lease": [record.lease for record in records],
        "s_kind": [_kind(entry) for entry in entries],
        "s_status": [STATUS_CODES[record.status] for record in records],
        "s_via": [int(record.via) for record in records],
        "s_task": [record.task or None for record in records],
        "s_goto": [record.goto or None for record in records],
        "s_error": [record.error or None for record in records],
        "s_changes": [record.changes if done else None for record, done in zip(records, finished, strict=True)],
        "s_contribution": [record.contribution for record in records],
        "s_snapshot": [record.snapshot for record in records],
        "s_delta": [_delta(entry) for entry in entries],
        "s_delay_ms": [milliseconds(record.delay) or None for record in records],
        "s_size": [record.size if record.kind is Kind.FAN_OUT else None for record in records],
        "s_count": [record.expanded if record.kind is Kind.FAN_OUT else None for record in records],
        "s_first": [entry.first_branch for entry in entries],
        "s_final": [record.final_state if record.kind is Kind.CLOSE else None for record in records],
        "s_kept": [record.kept for record in records],
        "s_payload": [record.payload for record in records],
    }


def _branches(entries: list[Entry]) -> dict[str, list[Any]]:
    new = [(place, branch, entry) for place, entry in enumerate(entries, 1) for branch in entry.record.branches]
    return {
        "c_rec": [place for place, _, _ in new],
        "c_ordinal": [branch.ordinal for _, branch, _ in new],
        "c_task": [branch.task for _, branch, _ in new],
        "c_delta": [branch.delta for _, branch, _ in new],
        "c_hot": [branch.ordinal in entry.hot_branches for _, branch, entry in new],
    }


def _children(entries: list[Entry]) -> dict[str, list[Any]]:
    started = []
    for place, entry in enumerate(entries, 1):
        if entry.record.child is not None:
            assert entry.child is not None, entry
            started.append((place, entry.record.child, entry.child))
    return {
        "k_rec": [place for place, _, _ in started],
        "k_token": [start.token for _, _, start in started],
        "k_graph_id": [start.graph_id for _, _, start in started],
        "k_workflow": [child.url for _, child, _ in started],
        "k_task": [start.entry_task for _, _, start in started],
        "k_input": [child.input for _, child, _ in started],
    }


def _chains(entries: list[Entry]) -> dict[str, list[Any]]:
    """Return the columns of chains, and what an earlier step of one leaves to the row where its last step leaves nothing."""
    if not any(entry.prefix for entry in entries):
        return {}
    columns: dict[str, list[Any]] = {}
    for entry in entries:
        _check_chain(entry)
        first, base, delta, delta_seq = _left_by_prefix(entry)
        record, ended = entry.record, entry.elapsed
        own_delta = _delta(entry)
        if own_delta is not None or record.snapshot is not None:
            delta, delta_seq = own_delta, record.seq
        row = {
            "s_delta": delta,
            "s_from": first,
            "s_own": entry.prefix[-1].task if entry.prefix else None,
            "s_begun_ms": milliseconds(ended[-1]) if ended else None,
            "s_base": base,
            "s_delta_seq": delta_seq if entry.prefix else None,
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    steps = [
        (place, each, entry.elapsed[nth] if entry.elapsed else None)
        for place, entry in enumerate(entries, 1)
        for nth, each in enumerate(entry.prefix)
    ]
    return columns | {
        "h_rec": [place for place, _, _ in steps],
        "h_task": [each.task for _, each, _ in steps],
        "h_changes": [each.changes for _, each, _ in steps],
        "h_state": [each.snapshot for _, each, _ in steps],
        "h_ended_ms": [None if ended is None else milliseconds(ended) for _, _, ended in steps],
    }


def _left_by_prefix(entry: Entry) -> tuple[int | None, int | None, bytes | None, int | None]:
    """Return the first seq of a chain, and the base, the delta and its place as the steps before the last would leave them."""
    base: int | None = None
    delta: bytes | None = None
    delta_seq: int | None = None
    for each in entry.prefix:
        if each.snapshot is not None:
            base, delta, delta_seq = each.seq, None, each.seq
        if each.delta_always and each.delta is not None:
            delta, delta_seq = each.delta, each.seq
    return entry.prefix[0].seq if entry.prefix else None, base, delta, delta_seq


def _check_chain(entry: Entry) -> None:
    last = entry.record
    assert not entry.elapsed or len(entry.elapsed) == len(entry.prefix), entry
    for seq, each in enumerate(entry.prefix, last.seq - len(entry.prefix)):
        assert (each.branch, each.seq) == (last.branch, seq), entry
        assert each.kind is Kind.ADVANCE, entry
        assert each.status is StepStatus.COMPLETED, entry
        assert each.via is Via.NORMAL, entry
        assert not each.delay, entry


def _locks(entries: list[Entry]) -> dict[str, list[Any]]:
    """Return the rows to lock beforehand, sorted: see the lock order on top of the schema."""
    creators = {entry.root_id for entry in entries if entry.record.kind is Kind.FAN_OUT or entry.record.child is not None}
    closing = {entry.flow_id for entry in entries if entry.record.kind is Kind.CLOSE}
    joining = set()
    for entry in entries:
        if entry.joining:
            joining.add(entry.place)
        if entry.record.kind is Kind.ARRIVE:
            assert entry.join_branch is not None, entry
            joining.add((entry.flow_id, entry.join_branch))
        if entry.record.kind is Kind.CLOSE and entry.caller is not None:
            joining.add(entry.caller)
    rows = sorted(joining)
    return {
        "p_creators": sorted(creators),
        "p_closing": sorted(closing),
        "j_flow": [flow_id for flow_id, _ in rows],
        "j_branch": [branch for _, branch in rows],
    }


def _kind(entry: Entry) -> int:
    return entry.record.kind + (HOT if entry.hot and entry.record.kind is Kind.ADVANCE else 0)


def _delta(entry: Entry) -> bytes | None:
    """Return the delta to store: a successor that starts at once is kept by its executor and needs none."""
    return entry.record.delta if entry.record.delta_always or not entry.hot else None


def milliseconds(seconds: float) -> int:
    """Return a delay in whole milliseconds, never shorter than asked for."""
    return max(0, -int(-seconds * 1000 // 1))
