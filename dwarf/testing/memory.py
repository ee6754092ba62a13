"""The reference runner's store: the rows of one flow, its history and its documents, in dicts.

It counts, and keeps bytes; it never routes and never folds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dwarf.changes import Changes
from dwarf.flow import Past
from dwarf.graph import Graph
from dwarf.inputs import START, Document, Input, Position, build, chain_of, decode_document, initial
from dwarf.keys import step_id
from dwarf.rebuild import HistoryRow, Rebuild
from dwarf.record import Kind, Member, Record, Todo, Via
from dwarf.state import State
from dwarf.status import StepStatus


class Row:
    """A live branch: the mutable row that a database would keep of it."""

    def __init__(self, branch: int, seq: int, task: str, *, depth: int, ready_at: float, join_branch: int | None = None, ordinal: int = 0):
        self.branch, self.seq, self.task, self.depth = branch, seq, task, depth
        self.status, self.todo, self.lease = StepStatus.PENDING, Todo.RUN, 0
        self.created_at = self.ready_at = ready_at
        self.started_at: float | None = None
        self.attempt = 0
        self.past = Past()
        self.base: Position = START
        self.delta: bytes | None = None
        self.delta_seq = 0
        self.hot_input: Input | None = None
        self.join_branch, self.ordinal = join_branch, ordinal
        self.size = self.expanded = self.arrived = self.bad = 0
        self.last_arrival: int | None = None
        self.payload: bytes | None = None
        self.parked = (0.0, 0, 0)
        self.child: Any = None

    @property
    def is_joining(self) -> bool:
        return self.size > 0

    @property
    def awaits_branches(self) -> bool:
        """True while the fan-in's step does not exist for anybody outside: its cohort has not converged."""
        return self.is_joining and (self.todo in (Todo.EXPAND, Todo.RESOLVE) or self.arrived < self.size)

    def wake(self, now: float) -> None:
        self.status, self.ready_at, self.payload = StepStatus.PENDING, now, None

    def cancel(self, now: float) -> None:
        """Take in a cancellation: a step in progress is to deliver it, a cohort being expanded is cut short."""
        if self.todo is Todo.EXPAND:
            self.size, self.todo = self.expanded, Todo.RUN
            self.settle_cohort(now, 0.0, cut=True)
        elif self.todo is not Todo.RESOLVE and self.status in (StepStatus.PENDING, StepStatus.INTERRUPTED):
            self.todo, self.past = Todo.CANCEL, Past()
            self.wake(now)

    def settle_cohort(self, now: float, delay: float, *, cut: bool = False) -> None:
        """Make the joining row claimable once every branch has arrived."""
        self.status = StepStatus.PARKED
        if self.todo is Todo.EXPAND or self.arrived < self.size:
            return
        self.todo = Todo.RESOLVE if self.bad or cut else Todo.FOLD
        self.status, self.ready_at = StepStatus.PENDING, now + delay

    def next_step(self, task: str, now: float, delay: float) -> None:
        self.seq, self.depth, self.task = self.seq + 1, self.depth + 1, task
        self.status, self.todo, self.attempt, self.past = StepStatus.PENDING, Todo.RUN, 0, Past()
        self.created_at, self.started_at, self.ready_at = now, None, now + delay
        self.size = self.expanded = self.arrived = self.bad = 0
        self.last_arrival = self.child = None


class TraceStep:
    """A step as a test sees it; `path` does not depend on the order in which steps ran."""

    def __init__(self, path: str, row: Row) -> None:
        self.path, self.task, self.depth = path, row.task, row.depth
        self.step_id = step_id(row.branch, row.seq)
        self.attempt, self.status, self.via = 0, StepStatus.PENDING, "normal"
        self.input, self.error = State(), ""
        self.changes: dict[str, Any] = {}
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.child: Any = None

    def __repr__(self) -> str:
        return f"<{self.path} {self.task} {self.status} {self.changes}>"


class Store:
    """The rows, history and documents of one flow."""

    def __init__(self, state: bytes, reducers: Mapping[str, str]) -> None:
        self.runs: list[tuple[str, int]] = []
        self._state, self._reducers = state, reducers
        self._rows: dict[int, Row] = {}
        self._history: dict[Position, HistoryRow] = {}
        self._last: dict[int, int] = {}  # the last finished step of each branch
        self._contributions: dict[int, Changes] = {}
        self._documents: dict[Position, bytes] = {}
        self._steps: dict[Position, TraceStep] = {}
        self._paths: dict[int, str] = {}
        self._hidden: set[Position] = set()
        self._branches = 0

    def rows(self) -> list[Row]:
        return [self._rows[branch] for branch in sorted(self._rows)]

    def trace(self) -> list[TraceStep]:
        for row in self._rows.values():
            self._show(row)
        hidden = self._hidden | {(row.branch, row.seq) for row in self._rows.values() if row.awaits_branches}
        return [self._steps[at] for at in sorted(self._steps, key=lambda at: _order(self._steps[at].path)) if at not in hidden]

    def rebuild(self, graph: Graph) -> Rebuild:
        return Rebuild(graph, State.from_json(self._state), self._history.values())

    def add(self, row: Row, path: str) -> None:
        self._rows[row.branch] = row
        self._paths[row.branch] = path.rpartition(".")[0]
        self._show(row)

    def path(self, row: Row) -> str:
        prefix = self._paths[row.branch]
        return f"{prefix}.{row.seq}" if prefix else str(row.seq)

    def source_of(self, row: Row) -> str:
        return self._history[row.branch, row.seq - 1].task if row.is_joining else ""

    def load(self, row: Row) -> Input:
        """Fold the documents the row stands on, its delta, and the history after that."""
        top = self._document(row.base)
        chain = chain_of(row.base, top)
        later = [self._history[row.branch, seq].changes for seq in range(row.delta_seq + 1, row.seq)]
        documents: list[bytes | Document] = [self._documents.get(at) or initial(self._state) for at in chain]
        return build(documents, row.delta, later, branch=row.branch, chain=chain, reducers=self._reducers)

    def _document(self, at: Position) -> Document:
        return decode_document(self._documents[at]) if at in self._documents else initial(self._state)

    def members(self, row: Row) -> list[Member]:
        """Return the branches of a joining row's cohort in order, as their last rows tell them."""
        source = self._history[row.branch, row.seq - 1]
        members = []
        for ordinal in range(row.expanded):
            branch = source.fan_first + ordinal
            last = self._history[branch, self._last[branch]]
            members.append(Member(ordinal, last.status, self._contributions[branch], last.error, step_id(branch, last.seq)))
        return members

    def show_input(self, row: Row, state: State) -> None:
        self._show(row).input = state

    def park(self, row: Row, record: Record, now: float) -> None:
        row.status, row.payload, row.parked = record.status, record.payload, (now, row.branch, row.seq)
        row.past = Past(changes=Changes.decode(record.kept))
        self._show(row)

    def retry(self, row: Row, record: Record, now: float) -> None:
        row.attempt += 1
        row.past = Past(changes=Changes.decode(record.kept))
        row.status, row.ready_at = StepStatus.PENDING, now + record.delay
        self._show(row)

    def end(self, row: Row, record: Record, now: float) -> None:
        """Write the step into history and take the branch away."""
        self._finish(row, record, now)
        del self._rows[row.branch]

    def end_all(self, status: StepStatus, now: float) -> None:
        for row in self.rows():
            if row.awaits_branches:
                self._hidden.add((row.branch, row.seq))
            self.end(row, Record(kind=Kind.CLOSE, branch=row.branch, seq=row.seq, status=status), now)

    def apply(self, row: Row, record: Record, now: float) -> None:
        if record.kind is Kind.ADVANCE:
            self._finish(row, record, now)
            self._go_on(row, record, now)
        elif record.kind is Kind.FAN_OUT:
            self._fan_out(row, record, now)
        elif record.kind is Kind.ARRIVE:
            self.end(row, record, now)
            self._count(row, record, now)

    def _go_on(self, row: Row, record: Record, now: float) -> None:
        at = (row.branch, row.seq)
        if record.snapshot is not None:
            self._documents[at] = record.snapshot
            row.base, row.delta, row.delta_seq = at, record.delta, row.seq
        elif record.delta is not None:
            row.delta, row.delta_seq = record.delta, row.seq
        row.next_step(record.task, now, record.delay)
        row.hot_input = record.next_input
        self._show(row)

    def _fan_out(self, row: Row, record: Record, now: float) -> None:
        first_slice = row.todo is not Todo.EXPAND
        if first_slice:
            self._finish(row, record, now)
            source = self._history[row.branch, row.seq]
            source.fan_first, source.fan_size = self._branches + 1, record.size
            self._branches += record.size
            self._go_on(row, record, now)
            row.size = record.size
        source = self._history[row.branch, row.seq - 1]
        path = self._steps[row.branch, row.seq - 1].path
        for new in record.branches:
            branch = Row(
                source.fan_first + new.ordinal, 1, new.task, depth=row.depth, ready_at=now + record.delay,
                join_branch=row.branch, ordinal=new.ordinal,
            )  # fmt: skip
            assert record.base is not None
            branch.base, branch.delta = record.base, new.delta
            self.add(branch, f"{path}/{new.ordinal}.1")
        row.expanded = record.expanded
        row.todo = Todo.EXPAND if row.expanded < row.size else Todo.RUN
        row.status = StepStatus.PENDING
        if row.todo is not Todo.EXPAND:
            row.settle_cohort(now, 0.0)

    def _count(self, row: Row, record: Record, now: float) -> None:
        assert row.join_branch is not None
        joining = self._rows[row.join_branch]
        contribution = record.contribution if record.contribution is not None else record.changes
        self._contributions[row.branch] = Changes.decode(contribution)
        joining.arrived += 1
        joining.bad += record.status is not StepStatus.COMPLETED
        joining.last_arrival = row.ordinal
        joining.depth = max(joining.depth, row.depth + 1)
        if joining.todo is not Todo.EXPAND:
            joining.settle_cohort(now, record.delay)

    def _finish(self, row: Row, record: Record, now: float) -> None:
        at = (row.branch, row.seq)
        changes = Changes.decode(record.changes)
        self._history[at] = HistoryRow(
            branch=row.branch, seq=row.seq, task=row.task, status=record.status, via=record.via, changes=changes, error=record.error,
        )  # fmt: skip
        self._last[row.branch] = row.seq
        step = self._show(row)
        step.status, step.via, step.error, step.ended_at = record.status, record.via.name.lower(), record.error, now
        step.changes = {field: State.of({field: raw}).get(field) for field, raw in changes.fields.items()}
        if record.via is Via.RESOLVE:
            self._hidden.add(at)

    def _show(self, row: Row) -> TraceStep:
        at = (row.branch, row.seq)
        step = self._steps.setdefault(at, TraceStep(self.path(row), row))
        step.depth, step.attempt, step.status = row.depth, row.attempt, row.status
        step.started_at, step.child = row.started_at, row.child
        return step


def _order(path: str) -> list[tuple[int, ...]]:
    return [tuple(int(number) for number in part.split(".")) for part in path.split("/")]
