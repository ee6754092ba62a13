"""A dispatcher without an engine: it claims, decides with the real pure functions, and records, until nothing is due.

Plain and slow on purpose: every document is loaded anew, and nothing is kept between calls but the lanes and a block of
branch numbers. So whatever is wrong between two calls is wrong in SQL or in the store.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import random
from collections.abc import Callable, Coroutine, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import msgspec
import psycopg
from psycopg.rows import namedtuple_row

from dwarf import cohorts
from dwarf.arrays import EPOCH, micros
from dwarf.batch import STATUS_OF, ChildStart, Entry, lay_out
from dwarf.changes import Changes
from dwarf.database import Connection
from dwarf.decide import cancel as decide_cancel
from dwarf.decide import decide, fail
from dwarf.effect import Subgraph, engine_failure, failure_of
from dwarf.errors import NotFound
from dwarf.flow import Flow, Identity, Past
from dwarf.graph import Graph
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.run import run_sync
from dwarf.inputs import START, Document, Input, build, chain_of, decode_document, initial
from dwarf.record import ClaimedStep, Kind, Member, Record, Todo, Via
from dwarf.rows import ClaimedRow, SourceRow
from dwarf.state import State
from dwarf.status import StepStatus
from dwarf.store import NewFlows, Store

Result = TypeVar("Result")
Tasks = Mapping[str, Callable[[Flow], Any]]
LANES = 2
BLOCK = 1 << 20
SESSION_LIFE_MS = 30_000
PRIORITY = 3
ROUNDS_MAX = 100_000
ENGINES = itertools.count(1)  # every player is an engine of its own


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
        self.runner = asyncio.Runner()
        self.link = self.runner.run(Connection.open(dsn))
        self.store = Store(self.link)
        self.dice = random.Random(seed)
        self.now = now
        self.tasks = {url: TaskFunction(url, task) for url, task in tasks.items()}
        self.graphs: dict[int, Graph] = {}
        self.graph_ids: dict[str, int] = {}
        for url, graph in graphs.items():
            self._freeze(url, graph)
        self.engine = next(ENGINES)
        self.session: int = self.do(self.store.start_session(self.engine, life_ms=SESSION_LIFE_MS, now=self.micros))
        self.lanes: dict[int, list[int]] = {}
        self.block = (0, 0)
        self.runs = 0
        self.chain_steps_max = 1  # more: steps that simply follow each other are run as one chain

    def close(self) -> None:
        self.runner.run(self._leave())
        self.runner.close()
        self.connection.close()

    async def _leave(self) -> None:
        self.link.close()

    @property
    def micros(self) -> int | None:
        return None if self.now is None else micros(self.now)

    def do(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    def one(self, query: str, *parameters: Any) -> Any:
        return self.connection.execute(query, parameters).fetchone()

    def all(self, query: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(query, parameters).fetchall()

    def _freeze(self, url: str, graph: Graph) -> None:
        form = graph.to_json()
        (graph_id,) = self.do(self.store.put_graphs([(sha256(form).digest(), graph.name, graph.entry_point, form)]))
        self.graphs[graph_id] = graph
        self.graph_ids[url] = graph_id

    # Calls

    def create(self, url: str, state: Any = None, *, key: str = "", born_claimed: bool = False) -> int:
        graph_id = self.graph_ids[url]
        new = NewFlows(
            ["0" * 16], [url], [graph_id], [self.graphs[graph_id].entry_point], [State(state).to_json()], [PRIORITY], [120_000],
            fairness_keys=[key] if key else None,
        )  # fmt: skip
        (flow_id,), _ = self.do(self.store.create_flows(new, session=self.session if born_claimed else None, now=self.micros))
        return flow_id

    def claim(self, quota: int = 5, *, keys: list[str] | None = None) -> list[ClaimedRow]:
        quotas = dict.fromkeys(keys or [""], quota)
        rows: list[ClaimedRow] = []
        for half in (0, 1):
            rows += self.do(self.store.claim(self.session, quotas, half=half, priority=PRIORITY, now=self.micros))
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
            opened = self.do(self.store.open_lane(self.session, lane))
            self.lanes[lane] = [opened.epoch, opened.batch]
        self.lanes[lane][1] += 1
        epoch, number = self.lanes[lane]
        batch = lay_out(entries)
        recorded = self.do(self.store.record((self.session, lane, epoch, number), batch, now=self.micros))
        assert recorded.state == "ok", recorded
        return batch.missed(recorded.missed)

    # Work

    def run(self, quota: int = 5) -> None:
        """Work until nothing is due and nothing sleeps; sleepers are slept out by moving the clock."""
        for _ in range(ROUNDS_MAX):
            rows = self.claim(quota)
            if rows:
                self.dice.shuffle(rows)
                assert self.record(self.work(rows)) == []
                continue
            wake = self.do(self.store.next_wake())
            if wake is None:
                return
            self.now = max(self.now or EPOCH, EPOCH + datetime.timedelta(microseconds=wake))
            self.do(self.store.wake(1000, now=self.micros))
        raise AssertionError("the flow does not end")

    def work(self, rows: list[ClaimedRow]) -> list[Entry]:
        """Do what the rows ask for; rows whose flow is gone are left out."""
        entries = []
        for row in rows:
            try:
                entries.append(self._work(row))
            except Gone:
                continue
        return entries

    def _work(self, row: ClaimedRow) -> Entry:
        graph = self.graphs[row.graph_id]
        given = self._load(graph, row)
        joining = row.size is not None
        source, members = self._members(row) if joining else (None, [])
        step = ClaimedStep(
            row.branch, row.seq, row.task, given, row.lease, Todo(row.todo),
            in_cohort=row.join_branch is not None, source=source.task if source else "", expanded=row.expanded or 0,
        )  # fmt: skip
        *prefix, record = self._chain(graph, row, self._act(graph, row, step, members))
        first_branch = None
        if record.kind is Kind.FAN_OUT:
            first_branch = source.fan_first if row.todo == Todo.EXPAND and source else self._branches(record.size)
        child = None
        if record.child is not None:
            graph_id = self.graph_ids[record.child.url]
            child = ChildStart("0" * 16, graph_id, self.graphs[graph_id].entry_point)
        caller = None if row.caller_flow is None else (row.caller_flow, row.caller_branch or 0)
        return Entry(
            row.flow_id, row.root_id, record, row.join_branch, caller,
            joining=joining, unparks=row.parked, first_branch=first_branch, child=child, prefix=prefix,
            elapsed=[number / 1000 for number in range(len(prefix))] if self.dice.random() < 0.5 else [],
        )  # fmt: skip

    def _chain(self, graph: Graph, row: ClaimedRow, record: Record) -> list[Record]:
        """Run what simply follows a step, up to a chance number of steps; return the records of all."""
        records = [record]
        count = self.dice.randint(1, self.chain_steps_max) if self.chain_steps_max > 1 else 1
        while len(records) < count and record.kind is Kind.ADVANCE and record.via is Via.NORMAL and not record.delay:
            assert record.next_input is not None
            step = ClaimedStep(
                row.branch, record.seq + 1, record.task, record.next_input, row.lease, in_cohort=row.join_branch is not None
            )  # fmt: skip
            created_at = EPOCH + datetime.timedelta(microseconds=row.created_at)
            record = self._perform(graph, step, Identity(task_name=step.task, step_created_at=created_at), Past())
            records.append(record)
        return records

    def _act(self, graph: Graph, row: ClaimedRow, step: ClaimedStep, members: list[Member]) -> Record:
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
        identity = Identity(
            task_name=row.task, attempt=row.attempt, step_created_at=EPOCH + datetime.timedelta(microseconds=row.created_at)
        )
        return self._perform(graph, step, identity, self._past(row))

    def _perform(self, graph: Graph, step: ClaimedStep, identity: Identity, past: Past) -> Record:
        url = graph.url_of(step.task)
        flow = Flow(step.input.state, identity=msgspec.structs.replace(identity, task_url=url), past=past, clock=self._time)
        self.runs += 1
        task = self.tasks.get(url)
        effect = run_sync(task, flow) if task else flow.effect(failure_of(NotFound(f"no task is registered for {url!r}")))
        if isinstance(effect.park, Subgraph) and effect.park.url not in self.graph_ids:
            return fail(graph, step, engine_failure(f"task {step.task!r}: no graph is registered for {effect.park.url!r}", 404))
        return decide(graph, step, effect)

    def _time(self) -> datetime.datetime:
        return self.now or datetime.datetime.now(datetime.UTC)

    def _branches(self, size: int) -> int:
        if self.block[0] + size > self.block[1]:
            first = self.do(self.store.branch_block())
            self.block = (first, first + BLOCK)
        first = self.block[0]
        self.block = (first + size, self.block[1])
        return first

    # Reading

    def _load(self, graph: Graph, row: ClaimedRow) -> Input:
        base = (row.base_branch, row.base_seq)
        top = self._document(row, base)
        chain = chain_of(base, top)
        documents: list[bytes | Document] = [self._document(row, at) for at in chain[:-1]]
        spans = [(row.flow_id, row.branch, row.delta_seq, row.seq, row.day)]
        later = self.do(self.store.load_changes(spans)) if row.seq - row.delta_seq > 1 else []
        if len(later) != row.seq - row.delta_seq - 1:
            raise Gone
        changes = [Changes.decode(each.changes) for each in later]
        return build([*documents, top], row.delta, changes, branch=row.branch, chain=chain, reducers=graph.reducers)

    def _document(self, row: ClaimedRow, at: tuple[int, int]) -> Document:
        found = self.do(self.store.load_documents([(row.flow_id, *at, row.day)]))
        if not found or found[0].document is None:
            raise Gone
        return initial(found[0].document) if at == START else decode_document(found[0].document)

    def _members(self, row: ClaimedRow) -> tuple[SourceRow, list[Member]]:
        sources = self.do(self.store.load_sources([(row.flow_id, row.branch, row.seq, row.day)]))
        if not sources:
            raise Gone
        (source,) = sources
        rows = self.do(self.store.load_members(row.flow_id, source.fan_first, row.expanded or 0, row.day))
        members = [
            Member(
                each.ordinal, STATUS_OF[each.status], Changes.decode(each.contribution), each.error or "",
                (source.fan_first + each.ordinal) << 20 | each.seq,
            )
            for each in rows
        ]  # fmt: skip
        return source, members

    def _past(self, row: ClaimedRow) -> Past:
        if not row.parked:
            return Past()
        parks = self.do(self.store.load_parks([(row.flow_id, row.branch)]))
        if not parks:
            raise Gone
        (park,) = parks
        ended = STATUS_OF[park.child_status] if park.child_status else None
        return Past(
            changes=Changes.decode(park.kept),
            resume=park.answer,
            result=park.result if ended is StepStatus.COMPLETED else None,
            child_error=park.child_error if ended not in (None, StepStatus.COMPLETED) else None,
        )

    def ended(self, flow_id: int) -> Ended | None:
        """Return how a flow ended, or None while it is open."""
        row = self.one("select status, error, reason, final_state::text as state from dwarf.flows where flow_id = %s", flow_id)
        if row is None:
            return None
        return Ended(STATUS_OF[row.status].value, State.from_json(row.state), row.error or "", row.reason or "")
