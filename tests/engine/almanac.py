"""Sixty days in the life of a shard, and what has to be there at the end of each: flows, and nothing that speaks of others.

`Almanac` keeps the books: every flow that was ever made, when it ended, whether it was deleted. From that follows, day by day,
what a database may hold. It moves the clock, never waits for it.

    python -m tests.engine.almanac DSN COUNT SECONDS     does a round of background work, and dies SECONDS after its COUNTth statement
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
from psycopg.rows import namedtuple_row

from dwarf import END, App, Flow, FlowKey, FlowOptions, Graph, NotFound, Query, Reducer, Status, Step, TaskError, partitions
from dwarf.chores import Chores, Done, Terms
from dwarf.pool import Pool
from dwarf.store import Store
from dwarf.testing import EngineUnderTest
from tests.engine.victims import until
from tests.sql.plays import broken

DAY = timedelta(days=1)
RETENTION_DAYS = 30
NEVER = 10_000
TERMS = Terms(retention_days=RETENTION_DAYS)
POOL = "almanac chores"

app = App()
app.add_graph("short", Graph("short").add_transition_chain("Write", "Look", END).set_reducer("log", Reducer.APPEND))
app.add_graph("broken", Graph("broken").add_transition_chain("Write", "Break", END).set_reducer("log", Reducer.APPEND))
app.add_graph("ask", Graph("ask").add_transition_chain("Write", "Ask", "Look", END).set_reducer("log", Reducer.APPEND))
app.add_graph("nap", Graph("nap").add_transition_chain("Nap", "Look", END))
app.add_graph("sour", Graph("sour").add_transition_chain("Ask", "Break", END))
app.add_graph("family", Graph("family").add_transition_chain("Call", "Look", END))
app.add_graph("late", Graph("late").add_transition_chain("Nap", "Call", "Ask", "Look", END))  # its child is of another day
app.add_graph(
    "wide",
    Graph("wide")
    .add_transition_for_each("Spread", "Each", "xs", "x")
    .add_transition_chain("Each", "Join", END)
    .set_fan_in("Join")
    .set_reducer("log", Reducer.APPEND),
)


@app.task("Write")
async def write(flow: Flow) -> None:
    flow["log"] = [flow.get_int("n")]


@app.task("Break")
async def fail(flow: Flow) -> None:
    raise TaskError("broken")


@app.task("Ask")
async def ask(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"n": flow.get_int("n")})["day"]


@app.task("Nap")
async def nap(flow: Flow) -> None:
    flow.sleep(86_400 * flow.get_int("days"))


@app.task("Call")
async def call(flow: Flow) -> None:
    below = {"n": flow.get_int("n"), "days": 2, "child": flow.get_str("below")}
    flow["got"] = flow.subgraph(flow.get_str("child"), below)


@app.task("Each")
async def each(flow: Flow) -> None:
    match flow.get_str("x"):
        case "ask":
            flow["log"] = [flow.interrupt({"n": 1})["day"]]
        case "nap":
            flow["log"] = ["nap"]
            flow.sleep(86_400 * 3)
        case "call":
            flow["log"] = [flow.subgraph("short", {"n": 1})["log"]]
        case other:
            flow["log"] = [other]


for name in ("Look", "Spread", "Join"):
    app.task(name)(lambda flow: None)

SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("short", {}), ("short", {}), ("broken", {}), ("ask", {}), ("ask", {}), ("nap", {"days": 4}), ("family", {"child": "short"}),
    ("family", {"child": "ask"}), ("family", {"child": "nap"}), ("sour", {}), ("late", {"days": 3, "child": "family", "below": "short"}), ("wide", {"xs": ["plain", "call", "nap"]}), ("wide", {"xs": ["ask", "ask", "call"]}),
]  # fmt: skip


class Entry(msgspec.Struct):
    """What the books say of a root. `resumed_on` is the day of its answer, `deleted` that it is to be gone by the end of the day."""

    key: str
    workflow: str
    made_on: int
    resumed_on: int = NEVER
    idempotency_key: str = ""
    state: dict[str, Any] = {}
    is_brief: bool = False  # deleted on completion
    status: Status = Status.RUNNING
    parked_on: int = NEVER
    ended_on: int = NEVER
    deleted: bool = False
    outcome: Any = None
    shape: Any = None
    weight: Any = None  # how many flows and steps its tree has once it has ended

    @property
    def flow_id(self) -> int:
        return FlowKey.parse(self.key).flow_id

    @property
    def is_ended(self) -> bool:
        return self.status.closed


class Almanac:
    """The books of an engine's only shard."""

    def __init__(self, engine: EngineUnderTest, seed: int) -> None:
        self.engine, self.dice = engine, random.Random(seed)
        self.entries: list[Entry] = []
        self.today = 0
        self.cut = 0  # closed flows that ended before this day have been dropped
        self.pool = Pool(engine.dsn, size=1, application=POOL, name="shard 1")
        self.chores = Chores(self.pool, engine.dsn, TERMS)
        self.link = psycopg.connect(engine.dsn, autocommit=True, row_factory=namedtuple_row)
        self.first = 0

    async def begin(self) -> None:
        """Move to the next noon, so that no day begins by itself. What is measured last in the engine's own round has been by then."""
        await until(lambda: self.one("select count(*) from dwarf.gauges"), "it is measured")
        now = self.one("select dwarf.now()")
        noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
        await self.engine.advance((noon - now) % DAY)
        self.first = self.today = self.one("select dwarf.day_of(dwarf.now())")

    def close(self) -> None:
        self.pool.close()
        self.link.close()

    def all(self, query: str, *parameters: Any) -> list[Any]:
        return self.link.execute(query.encode(), parameters or None).fetchall()

    def one(self, query: str, *parameters: Any) -> Any:
        [[value]] = self.all(query, *parameters)
        return value

    # A day

    async def pass_day(self) -> None:
        """Let a day begin, and have everything happen in it that is due; the background work is left to the caller."""
        # A statement of a round that was killed must not see the clock move.
        await until(lambda: not self.backends("state <> 'idle'"), "they have ended")
        await self.engine.advance(DAY)
        self.today += 1
        await self.settle()
        for entry in self.entries:
            if entry.is_brief and entry.status is Status.COMPLETED and entry.ended_on < self.today:
                entry.deleted = True  # its minute is over
        await self.answer()
        await self.tidy()
        await self.go_on()
        await self.create()
        await self.settle()

    def backends(self, which: str = "true") -> list[int]:
        """Return the backends that do background work."""
        rows = self.all(
            f"""select pid from pg_stat_activity where datname = current_database()
            and application_name in (%s, %s) and {which}""",
            POOL, partitions.APPLICATION,
        )  # fmt: skip
        return [row.pid for row in rows]

    async def settle(self) -> None:
        """Let everything run that will, and bring the books up to date."""
        await self.engine.settled()
        stopped = {
            row.flow_id: row
            for row in self.all("select flow_id, status, dwarf.day_of(ended_at) as day from dwarf.flows where root_id = flow_id")
        }
        parked = dict(
            self.all("select root_id, dwarf.day_of(max(parked_at)) from dwarf.parks where kind = 1 and answer is null group by 1")
        )
        for entry in self.entries:
            if entry.is_ended:
                continue
            entry.parked_on = parked.get(entry.flow_id, NEVER)
            if entry.flow_id in stopped:
                await self.end(entry, stopped[entry.flow_id].day)

    async def end(self, entry: Entry, day: int) -> None:
        outcome = await self.engine.snapshot(entry.key)
        entry.status, entry.outcome, entry.ended_on = outcome.status, outcome, day
        entry.weight = self.weights([entry.flow_id])[entry.flow_id]
        if not entry.deleted and not (entry.is_brief and entry.status is Status.COMPLETED):
            entry.shape = [(step.task_name, step.status) for step in await self.engine.history(entry.key)]

    def weights(self, roots: Iterable[int]) -> dict[int, tuple[int, int, int]]:
        """Return how many flows and steps the trees of ended roots have, and a digest of what the steps wrote."""
        rows = self.all(
            """select f.root_id, count(distinct f.flow_id) as flows, count(h.flow_id) as steps
            , coalesce(sum(hashtext(concat_ws('|', h.branch, h.seq, h.status, h.task, h.changes, h.error))), 0)::bigint as digest
            from dwarf.flows f left join dwarf.history h on h.flow_id = f.flow_id and h.day = f.day
            where f.root_id = any (%s) group by 1""",
            list(roots),
        )
        return {row.root_id: (row.flows, row.steps, row.digest) for row in rows}

    async def answer(self) -> None:
        """Answer what waits and is to be answered by today, one question of each flow after the other."""
        while due := [
            entry for entry in self.entries if entry.resumed_on <= self.today and entry.parked_on != NEVER and not entry.is_ended
        ]:
            for entry in due:
                await self.engine.resume(entry.key, {"day": self.today})
            await self.settle()

    async def create(self) -> None:
        day = self.today - self.first
        for place, (workflow, state) in enumerate(SHAPES):
            if self.dice.random() < 0.5:
                continue
            entry = Entry("", workflow, self.today, state={**state, "n": day * 100 + place})
            entry.resumed_on = self.today + self.dice.choice([0, 1, 3, 10, 25, 38, NEVER])
            entry.idempotency_key = f"{day}/{place}" if self.dice.random() < 0.3 else ""
            entry.is_brief = self.dice.random() < 0.2
            await self.create_one(entry)

    async def create_one(self, entry: Entry) -> None:
        options = FlowOptions(idempotency_key=entry.idempotency_key, delete_on_completion=entry.is_brief)
        entry.key = await self.engine.create(entry.workflow, entry.state, options)
        self.entries.append(entry)

    async def go_on(self) -> None:
        """Continue and fork some flows, of any age."""
        there = [entry for entry in self.entries if entry.is_ended and self.is_there(entry) and not entry.is_brief and not entry.deleted]
        for entry in self.dice.sample(there, min(2, len(there))):
            if entry.status is Status.COMPLETED:
                key = await self.engine.continue_flow(entry.key, {"n": self.today})
                assert (await self.engine.snapshot(entry.key)).state == entry.outcome.state
                self.entries.append(Entry(key, entry.workflow, self.today, self.today + self.dice.choice([0, 2, NEVER])))
            else:
                step: Step = self.dice.choice(await self.engine.history(entry.key))
                key = await self.engine.fork(step.step_key)
                self.entries.append(Entry(key, entry.workflow, self.today, self.today + self.dice.choice([0, 2, NEVER])))

    async def tidy(self) -> None:
        """End, delete and purge some flows."""
        for entry in self.entries:
            if entry.deleted or not self.is_there(entry) or self.dice.random() > 0.01:
                continue
            if entry.is_ended or entry.parked_on != NEVER:
                await self.engine.delete(entry.key)
                entry.deleted = True
            else:
                await self.engine.terminate(entry.key, "tidied")
        await self.settle()
        if self.today % 7 == 0:
            old = [entry for entry in self.entries if entry.workflow == "short" and entry.is_ended and entry.ended_on <= self.today - 10]
            await self.purge(Query(workflow_url="short", older_than=timedelta(days=9.5)), old)
        if self.today % 9 == 0:
            old = [entry for entry in self.entries if entry.workflow == "ask" and not entry.is_ended and entry.parked_on <= self.today - 12]
            await self.purge(Query(status="interrupted", workflow_url="ask", older_than=timedelta(days=11.5)), old)
            await self.settle()

    async def purge(self, query: Query, meant: list[Entry]) -> None:
        meant = [entry for entry in meant if self.is_there(entry) and not entry.deleted]
        assert await self.engine.purge(query) == len(meant), query
        for entry in meant:
            entry.deleted = True

    def is_there(self, entry: Entry) -> bool:
        """Tell whether a flow was there at the end of the day before, or has been made since."""
        return not entry.is_ended or (entry.ended_on >= self.cut and entry.key not in self.gone)

    gone: frozenset[str] = frozenset()

    # The end of a day

    async def do_chores(self) -> Done:
        """Do rounds of the background work until nothing is left to do."""
        while True:
            done = await self.chores.do(1)
            assert done.faults == {}, done.faults
            if not done.is_behind:
                self.cut = max(self.cut, self.today - RETENTION_DAYS - 1)
                return done

    async def check(self) -> None:
        """Compare what is there with the books, once the background work of the day is done."""
        there = [entry for entry in self.entries if self.is_there(entry) and not entry.deleted]
        self.gone = self.gone | {entry.key for entry in self.entries if entry.deleted}
        roots = {
            row[0]
            for row in self.all(
                "select flow_id from dwarf.live where root_id = flow_id union all select flow_id from dwarf.flows where root_id = flow_id"
            )
        }
        wanted = {entry.flow_id: entry for entry in there}
        assert wanted.keys() - roots == set(), ("lost", [wanted[lost] for lost in wanted.keys() - roots])
        assert roots - wanted.keys() == set(), (
            "kept too long",
            [entry for entry in self.entries if entry.flow_id in roots - wanted.keys()],
        )
        ended = {entry.flow_id: entry.weight for entry in there if entry.is_ended}
        assert self.weights(ended) == ended, "all of a tree is there, as it was when it ended"
        self.check_rest(there)
        assert await asyncio.to_thread(broken, self.engine.dsn) == []
        await self.check_some(there)

    def check_rest(self, there: list[Entry]) -> None:
        """See that nothing is left of what is gone."""
        known = "select flow_id from dwarf.live union all select flow_id from dwarf.flows"
        for table in ("history", "active", "parks"):
            assert self.all(f"select flow_id from dwarf.{table} where flow_id not in ({known})") == [], table
        assert self.all(f"select root_id from dwarf.forks where root_id not in ({known})") == []
        assert self.all(f"select root_id from dwarf.flows where root_id not in ({known})") == []
        keyed = {(entry.idempotency_key, entry.flow_id) for entry in there if entry.idempotency_key}
        assert {tuple(row) for row in self.all("select key, flow_id from dwarf.idempotency")} == keyed
        brief = {entry.flow_id for entry in there if entry.is_brief and entry.status is Status.COMPLETED}
        assert {row.flow_id for row in self.all("select flow_id from dwarf.doomed")} == brief, "what is to be gone is gone"
        days = {row.day for row in self.all("select day from dwarf.partitions_v1()")}
        assert min(days) >= min(self.cut, self.first) if self.cut <= self.first else min(days) == self.cut
        assert days >= set(range(max(self.cut, self.first), self.today + 3))
        assert self.all("select 1 from dwarf.partitions_v1() where not is_attached") == []

    async def check_some(self, there: list[Entry]) -> None:
        """Ask the engine for some of the flows, and for some that are gone."""
        for entry in self.dice.sample(there, min(6, len(there))):
            if not entry.is_ended:
                status = (await self.engine.snapshot(entry.key)).status
                assert status is (Status.RUNNING if entry.parked_on == NEVER else Status.INTERRUPTED), entry
                assert await self.engine.history(entry.key)
                continue
            assert await self.engine.snapshot(entry.key) == entry.outcome
            if entry.shape is not None:
                assert [(step.task_name, step.status) for step in await self.engine.history(entry.key)] == entry.shape
            if entry.idempotency_key:
                options = FlowOptions(idempotency_key=entry.idempotency_key)
                assert await self.engine.create(entry.workflow, entry.state, options) == entry.key
        gone = [entry for entry in self.entries if not self.is_there(entry)]
        for entry in self.dice.sample(gone, min(4, len(gone))):
            for ask in (self.engine.snapshot, self.engine.history, self.engine.delete, self.engine.continue_flow):
                try:
                    await ask(entry.key)
                except NotFound:
                    continue
                raise AssertionError(f"{entry} is gone, and {ask.__name__} finds it")

    async def use_keys_again(self) -> None:
        """Create under the keys of flows that are gone: they are free."""
        gone = [entry for entry in self.entries if entry.idempotency_key and not self.is_there(entry)]
        for entry in self.dice.sample(gone, min(2, len(gone))):
            if not any(other.idempotency_key == entry.idempotency_key and self.is_there(other) for other in self.entries):
                await self.create_one(Entry("", entry.workflow, self.today, self.today, entry.idempotency_key, {"n": 0, **entry.state}))
        await self.settle()
        await self.answer()

    async def drop_early(self, days: int) -> int:
        """Have an operator drop what is older than some days."""
        dropped = await self.engine.purge_before(partitions.FIRST_DAY + (self.today - days) * DAY)
        self.cut = max(self.cut, self.today - days)
        return dropped


# ---- a round of background work that dies ----


class Countdown:
    """Kills this process some time after so many statements."""

    def __init__(self, count: int, seconds: float) -> None:
        self._left, self._seconds = count, seconds

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            threading.Timer(self._seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


async def die_in_chores(dsn: str, countdown: Countdown) -> None:
    """Do rounds of background work for as long as this process lives."""
    calls, pieces = Store._call, partitions.Dropping._take

    async def counted(self: Store, name: str, *parameters: Any) -> Any:
        countdown()
        return await calls(self, name, *parameters)

    def taken(self: partitions.Dropping, connection: Any) -> Any:
        countdown()
        return pieces(self, connection)

    Store._call = counted  # type: ignore[method-assign]
    partitions.Dropping._take = taken  # type: ignore[method-assign]
    pool = Pool(dsn, size=1, application=POOL)
    while True:
        await Chores(pool, dsn, TERMS).do(1)


if __name__ == "__main__":
    asyncio.run(die_in_chores(sys.argv[1], Countdown(int(sys.argv[2]), float(sys.argv[3]))))
