"""A dispatcher without an engine: it claims, decides with the real pure functions, and records, until nothing is due.

Plain and slow on purpose: parameters travel as text, every document is loaded anew, and nothing is kept between calls but
the lanes and a block of branch numbers. So whatever is wrong between two calls is wrong in SQL.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row

from dwarf import cohorts
from dwarf.batch import STATUS_OF, ChildStart, Entry, lay_out
from dwarf.changes import Changes
from dwarf.decide import cancel as decide_cancel
from dwarf.decide import decide, fail
from dwarf.effect import Subgraph, engine_failure, failure_of
from dwarf.errors import NotFound
from dwarf.flow import Flow, Identity, Past
from dwarf.graph import Graph
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.run import run_sync
from dwarf.inputs import START, Document, Input, build, chain_of, decode_document, initial
from dwarf.record import ClaimedStep, Kind, Member, Record, Todo
from dwarf.state import State
from dwarf.status import StepStatus

Tasks = Mapping[str, Callable[[Flow], Any]]
LANES = 2
BLOCK = 1 << 20
SESSION_LIFE_MS = 30_000
PRIORITY = 3
ROUNDS_MAX = 100_000

TYPES = {
    "flow": "bigint[]", "seq": "int[]", "lease": "int[]", "kind": "smallint[]", "task": "text[]", "branch": "bigint[]", "status": "smallint[]",
    "via": "smallint[]", "goto": "text[]", "error": "text[]", "delay_ms": "bigint[]", "size": "int[]", "count": "int[]", "first": "bigint[]",
    "rec": "int[]", "ordinal": "int[]", "hot": "boolean[]", "token": "text[]", "graph_id": "int[]", "workflow": "text[]",
    "creators": "bigint[]", "closing": "bigint[]",
}  # fmt: skip


class Gone(Exception):
    """What was claimed has been taken away by a verb since."""


class Ended(NamedTuple):
    status: str
    state: State
    error: str
    reason: str


class Player:
    """One session with its lanes. `now` moves the clock of every call; None leaves it to the database."""

    def __init__(self, dsn: str, graphs: Mapping[str, Graph], tasks: Tasks, *, seed: int = 0, now: datetime.datetime | None = None) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row)
        self.dice = random.Random(seed)
        self.now = now
        self.tasks = {url: TaskFunction(url, task) for url, task in tasks.items()}
        self.graphs: dict[int, Graph] = {}
        self.graph_ids: dict[str, int] = {}
        for url, graph in graphs.items():
            self._freeze(url, graph)
        self.session: int = self.one("select dwarf.start_session_v1(1, %s, %s) as session", SESSION_LIFE_MS, now).session
        self.lanes: dict[int, list[int]] = {}
        self.block = (0, 0)
        self.runs = 0

    def close(self) -> None:
        self.connection.close()

    def one(self, query: str, *parameters: Any) -> Any:
        return self.connection.execute(query, parameters).fetchone()

    def all(self, query: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(query, parameters).fetchall()

    def _freeze(self, url: str, graph: Graph) -> None:
        form = graph.to_json()
        row = self.one(
            """insert into dwarf.graphs (hash, name, entry_task, definition, created_at) values (sha256(%s), %s, %s, %s::json, now())
            on conflict (hash) do update set name = excluded.name returning graph_id""",
            form, graph.name, graph.entry_point, form.decode(),
        )  # fmt: skip
        self.graphs[row.graph_id] = graph
        self.graph_ids[url] = row.graph_id

    # Calls

    def create(self, url: str, state: Any = None, *, key: str = "", born_claimed: bool = False) -> int:
        graph_id = self.graph_ids[url]
        row = self.one(
            """select flow_ids from dwarf.create_v1(%s, %s::text[], %s::text[], %s::int[], %s::text[], %s::text[]::json[], %s::smallint[]
            , %s::int[], %s::text[], p_now => %s)""",
            self.session if born_claimed else None, ["0" * 16], [url], [graph_id], [self.graphs[graph_id].entry_point],
            [State(state).to_json().decode()], [PRIORITY], [120_000], [key], self.now,
        )  # fmt: skip
        return int(row.flow_ids[0])

    def claim(self, quota: int = 5, *, keys: list[str] | None = None) -> list[Any]:
        keys = keys or [""]
        rows: list[Any] = []
        for half in (0, 1):
            query = "select * from dwarf.claim_v1(%s, %s::smallint, %s::smallint, %s::text[], %s::int[], %s)"
            rows += self.all(query, self.session, half, PRIORITY, keys, [quota] * len(keys), self.now)
        return rows

    def record(self, entries: list[Entry]) -> list[Entry]:
        """Record entries in their lanes and return those that did not apply."""
        missed: list[Entry] = []
        for lane in range(LANES):
            mine = [entry for entry in entries if entry.root_id % LANES == lane]
            if mine:
                missed += self._record(lane, mine)
        return missed

    def _record(self, lane: int, entries: list[Entry]) -> list[Entry]:
        if lane not in self.lanes:
            opened = self.one("select * from dwarf.open_lane_v1(%s, %s::smallint)", self.session, lane)
            self.lanes[lane] = [opened.epoch, opened.batch]
        self.lanes[lane][1] += 1
        batch = lay_out(entries)
        query, parameters = record_call((self.session, lane, *self.lanes[lane]), batch.columns, self.now)
        answer = self.one(query, *parameters)
        assert answer.state == "ok", answer
        return batch.missed(answer.missed)

    # Work

    def run(self, quota: int = 5) -> None:
        """Work until nothing is due and nothing sleeps; sleepers are slept out by moving the clock."""
        for _ in range(ROUNDS_MAX):
            rows = self.claim(quota)
            if rows:
                self.dice.shuffle(rows)
                assert self.record(self.work(rows)) == []
                continue
            wake = self.one("select min(wake_at) as at from dwarf.active where wake_at is not null").at
            if wake is None:
                return
            self.now = max(self.now or wake, wake)
            self.one("select dwarf.wake_v1(1000, %s)", self.now)
        raise AssertionError("the flow does not end")

    def work(self, rows: list[Any]) -> list[Entry]:
        """Do what the rows ask for; rows whose flow is gone are left out."""
        entries = []
        for row in rows:
            try:
                entries.append(self._work(row))
            except Gone:
                continue
        return entries

    def _work(self, row: Any) -> Entry:
        graph = self.graphs[row.graph_id]
        given = self._load(graph, row)
        joining = row.size is not None
        source, members = self._members(row) if joining else (None, [])
        step = ClaimedStep(
            row.branch, row.seq, row.task, given, row.lease, Todo(row.todo),
            in_cohort=row.join_branch is not None, source=source.task if source else "", expanded=row.expanded or 0,
        )  # fmt: skip
        record = self._act(graph, row, step, members)
        first_branch = None
        if record.kind is Kind.FAN_OUT:
            first_branch = source.fan_first if row.todo == Todo.EXPAND and source else self._branches(record.size)
        child = None
        if record.child is not None:
            graph_id = self.graph_ids[record.child.url]
            child = ChildStart("0" * 16, graph_id, self.graphs[graph_id].entry_point)
        caller = (row.caller_flow, row.caller_branch) if row.caller_flow else None
        return Entry(
            row.flow_id, row.root_id, record, row.join_branch, caller,
            joining=joining, unparks=row.parked, first_branch=first_branch, child=child,
        )  # fmt: skip

    def _act(self, graph: Graph, row: Any, step: ClaimedStep, members: list[Member]) -> Record:
        if row.todo == Todo.EXPAND:
            return cohorts.expand_slice(graph, step)
        if row.todo == Todo.RESOLVE:
            return cohorts.resolve(graph, step, members, last=row.last_ordinal, reason=row.reason or "")
        if row.size is not None:
            folded = cohorts.fold_join(graph, step, [member.contribution for member in members])
            if isinstance(folded, Record):
                return folded
            step = folded
        if row.todo == Todo.CANCEL:
            return decide_cancel(graph, step, row.reason or "")
        url = graph.url_of(row.task)
        identity = Identity(task_name=row.task, task_url=url, attempt=row.attempt, step_created_at=row.created_at)
        flow = Flow(step.input.state, identity=identity, past=self._past(row), clock=self._time)
        self.runs += 1
        task = self.tasks.get(url)
        effect = run_sync(task, flow) if task else flow.effect(failure_of(NotFound(f"no task is registered for {url!r}")))
        if isinstance(effect.park, Subgraph) and effect.park.url not in self.graph_ids:
            return fail(graph, step, engine_failure(f"task {row.task!r}: no graph is registered for {effect.park.url!r}", 404))
        return decide(graph, step, effect)

    def _time(self) -> datetime.datetime:
        return self.now or datetime.datetime.now(datetime.UTC)

    def _branches(self, size: int) -> int:
        if self.block[0] + size > self.block[1]:
            first = self.one("select dwarf.branch_block_v1() as first").first
            self.block = (first, first + BLOCK)
        first = self.block[0]
        self.block = (first + size, self.block[1])
        return first

    # Reading

    def _load(self, graph: Graph, row: Any) -> Input:
        base = (row.base_branch, row.base_seq)
        top = self._document(row, base)
        chain = chain_of(base, top)
        documents: list[bytes | Document] = [self._document(row, at) for at in chain[:-1]]
        later = self.all(
            "select changes::text from dwarf.load_changes_v1(%s, %s, %s, %s, %s)",
            [row.flow_id], [row.branch], [row.delta_seq], [row.seq], [row.day],
        )  # fmt: skip
        delta = self.one("select delta::text from dwarf.active where flow_id = %s and branch = %s", row.flow_id, row.branch)
        if delta is None:
            raise Gone
        return build(
            [*documents, top], encoded(delta.delta), [Changes.decode(encoded(each.changes)) for each in later],
            branch=row.branch, chain=chain, reducers=graph.reducers,
        )  # fmt: skip

    def _document(self, row: Any, at: tuple[int, int]) -> Document:
        found = self.one(
            "select document::text from dwarf.load_documents_v1(%s, %s, %s, %s)", [row.flow_id], [at[0]], [at[1]], [row.day]
        )  # fmt: skip
        if found is None:
            raise Gone
        return initial(found.document.encode()) if at == START else decode_document(found.document.encode())

    def _members(self, row: Any) -> tuple[Any, list[Member]]:
        source = self.one("select * from dwarf.load_sources_v1(%s, %s, %s, %s)", [row.flow_id], [row.branch], [row.seq], [row.day])
        if source is None:
            raise Gone
        rows = self.all(
            "select ordinal, seq, status, contribution::text, error from dwarf.load_members_v1(%s, %s, %s, %s)",
            row.flow_id, source.fan_first, row.expanded, row.day,
        )  # fmt: skip
        members = [
            Member(
                each.ordinal, STATUS_OF[each.status], Changes.decode(encoded(each.contribution)), each.error or "",
                (source.fan_first + each.ordinal) << 20 | each.seq,
            )
            for each in rows
        ]  # fmt: skip
        return source, members

    def _past(self, row: Any) -> Past:
        if not row.parked:
            return Past()
        found = self.one(
            """select kept::text, answer::text, child_status, child_error, result::text from dwarf.load_parks_v1(%s, %s)""",
            [row.flow_id], [row.branch],
        )  # fmt: skip
        if found is None:
            raise Gone
        ended = STATUS_OF.get(found.child_status)
        return Past(
            changes=Changes.decode(encoded(found.kept)),
            resume=encoded(found.answer),
            result=encoded(found.result) if ended is StepStatus.COMPLETED else None,
            child_error=found.child_error if ended not in (None, StepStatus.COMPLETED) else None,
        )

    def ended(self, flow_id: int) -> Ended | None:
        """Return how a flow ended, or None while it is open."""
        row = self.one("select status, error, reason, final_state::text as state from dwarf.flows where flow_id = %s", flow_id)
        if row is None:
            return None
        return Ended(STATUS_OF[row.status].value, State.from_json(row.state), row.error or "", row.reason or "")


def record_call(lane: tuple[int, ...], columns: Mapping[str, list[Any]], now: datetime.datetime | None = None) -> tuple[str, list[Any]]:
    """Return the text and the parameters of one record call; `lane` is session, lane, epoch and batch."""
    parts = ["%s", "%s::smallint", "%s", "%s"]
    parameters: list[Any] = list(lane)
    for name, column in columns.items():
        kind = TYPES.get(name.partition("_")[2])
        parts.append(f"{name} => %s::{kind}" if kind else f"{name} => %s::text[]::json[]")
        parameters.append(column if kind else [None if value is None else value.decode() for value in column])
    parts.append("p_now => %s")
    return f"select * from dwarf.record_v1({', '.join(parts)})", [*parameters, now]


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
