"""Calls that are stopped half-way, each at a lock of our choice, while another call goes ahead.

A `Stage` is a database with two players (sessions A and B), a clerk for every verb, and any number of holders, each of which
holds exactly one lock. An `Act` is a call that is ready to be made. Nothing here waits for a time: the stage looks at the
server until a call is over or really waits for somebody.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from dwarf.arrays import micros
from dwarf.batch import Batch, Entry, lay_out
from dwarf.database import Connection
from dwarf.flow import Flow
from dwarf.graph import Graph
from dwarf.rows import ClaimedRow
from dwarf.store import Recorded, Store
from tests.sql.player import Player

Result = TypeVar("Result")
INVARIANTS = (Path(__file__).parent.parent.parent / "sql/runbook/invariants.sql").read_text()
NOON = datetime.datetime.now(datetime.UTC).replace(hour=12, minute=0, second=0, microsecond=0)
# A hang becomes an error of the call that hangs, a deadlock one at once.
GUARDS = "-c statement_timeout=60s -c deadlock_timeout=50ms"
TABLES = ("live", "active", "parks", "signals", "history", "flows", "doomed")
STAGE_LANE = 2  # a third lane of the players, used by acts alone
# Ranks in the lock order of the schema; the keys that an insert takes have no place in it.
LANE, LIVE, COUNTED, OTHERS, PARKS, KEYS = range(6)


class Point(NamedTuple):
    """One lock. `rank` and `place` are where the lock order has it; `take` and `values` make a holder take it."""

    name: str
    rank: int
    place: tuple[int, int]
    take: str
    values: tuple[Any, ...]


class Stop(NamedTuple):
    """A lock that a call asked for, and whether others may have the same at the same time."""

    point: Point
    is_shared: bool


class Act(NamedTuple):
    """A call that is ready. `skipped` is its answer when it passes over everything, for one that never waits for rows."""

    session: Session
    call: Callable[[], Any]
    skipped: Any = None


class Scene(NamedTuple):
    """What may happen in a situation: calls that are ready, by name, and keys that they are about to take."""

    acts: dict[str, Act]
    keys: Sequence[Point] = ()


class Session:
    """One connection to the database, with the store over it and a loop of its own."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn, self.name = dsn, name
        self.runner = asyncio.Runner()
        self.open()

    def open(self) -> None:
        self.link = self.runner.run(Connection.open(self.dsn))
        self.store = Store(self.link)

    @property
    def pid(self) -> int:
        return self.link.backend_pid

    def do(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    def close(self) -> None:
        async def leave() -> None:
            self.link.close()

        self.runner.run(leave())
        self.runner.close()


class PlayerSession(Session):
    """A player seen as a session; when its connection is opened anew the player goes on with the new one."""

    def __init__(self, dsn: str, name: str, player: Player) -> None:
        self.dsn, self.name, self.player = dsn, name, player
        self.runner, self.link, self.store = player.runner, player.link, player.store

    def open(self) -> None:
        super().open()
        self.player.link, self.player.store = self.link, self.store

    def close(self) -> None:
        self.player.close()


class Stage:
    """Everything that a race takes. `now` of every session is its own, so that what is stored tells who stored it."""

    def __init__(self, dsn: str, graphs: Mapping[str, Graph], tasks: Mapping[str, Callable[[Flow], Any]]) -> None:
        self.dsn = dsn
        self.guarded = guarded = make_conninfo(dsn, options=GUARDS)
        self.observer = psycopg.connect(guarded, autocommit=True)
        self.observer.execute("select dwarf.ensure_partitions(1, %s)", (NOON,))
        names = ("A", "B")
        self.players = {name: Player(guarded, graphs, tasks, seed=seed, now=NOON) for seed, name in enumerate(names)}
        self.sessions: dict[str, Session] = {name: PlayerSession(guarded, name, self.players[name]) for name in names}
        self.holders: list[psycopg.Connection] = []
        self.threads = ThreadPoolExecutor(4)
        self.roots: list[int] = []
        self.built: tuple[Build, Scene] | None = None
        self.paths: dict[tuple[Build, str], list[Stop]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.shutdown()
        for each in [*self.holders, self.observer]:
            each.close()
        for session in self.sessions.values():
            session.close()

    def all(self, query: str, *values: Any) -> list[Any]:
        return self.observer.execute(query, values or None).fetchall()

    def session(self, name: str) -> Session:
        """The session of a name: a player's, or a clerk's, who comes when first asked for."""
        if name not in self.sessions:
            self.sessions[name] = Session(self.guarded, name)
        return self.sessions[name]

    def clear(self) -> None:
        """Begin anew, with the same sessions, whatever became of the last scene."""
        for holder in self.holders:
            holder.rollback()
        for session in self.sessions.values():
            if not session.link.is_open:
                session.open()
        self.observer.execute("truncate " + ", ".join(f"dwarf.{table}" for table in TABLES))
        self.roots.clear()
        for player in self.players.values():
            player.now = NOON
            player.runs = 0

    # Getting there

    def create(self, url: str, state: Any = None) -> int:
        self.roots.append(self.players["A"].create(url, state))
        return self.roots[-1]

    def rows(self, *tasks: str) -> list[tuple[int, int]]:
        """The claimable rows of tasks, in order."""
        query = "select flow_id, branch from dwarf.active where claimable is not null and task = any(%s) order by flow_id, branch"
        return self.all(query, list(tasks))

    def take(self, name: str, rows: Sequence[tuple[int, int]]) -> list[ClaimedRow]:
        player = self.players[name]
        claimed = player.do(player.store.claim_these(player.session, rows, now=player.micros))
        assert len(claimed) == len(rows)
        return sorted(claimed, key=lambda row: (row.flow_id, row.branch))

    def entries(self, name: str, rows: Sequence[tuple[int, int]]) -> list[Entry]:
        """Claim rows and do what they ask for, up to the record."""
        entries = self.players[name].work(self.take(name, rows))
        assert len(entries) == len(rows)
        return entries

    def play(self, *until: str) -> None:
        """Let A work until nothing is claimable but the rows of some tasks."""
        query = "select flow_id, branch from dwarf.active where claimable is not null and task <> all(%s) order by flow_id, branch"
        while rows := self.all(query, list(until)):
            assert self.players["A"].record(self.entries("A", rows)) == []

    # Calls

    def record(self, name: str, entries: Sequence[Entry], *, minutes: int = 1, number: int | None = None) -> Act:
        """The record of entries: answers with its state, a - for each entry that did not apply and a + for the others (when it is
        not stale), and a ! for each row that it woke. Goes through a lane of its own, by its next number if none is given.
        """
        player = self.players[name]
        batch = lay_out(entries)
        now = micros(NOON + datetime.timedelta(minutes=minutes))

        def call() -> Any:
            recorded = self.send(player, batch, number=number, now=now)
            missed = {id(entry) for entry in batch.missed(recorded.missed)}
            if recorded.state == "stale":
                return "stale"
            return recorded.state + "".join("-" if id(entry) in missed else "+" for entry in entries) + "!" * len(recorded.woke)

        self.open_lane(player)
        return Act(self.sessions[name], call)

    def open_lane(self, player: Player) -> None:
        if STAGE_LANE not in player.lanes:
            opened = player.do(player.store.open_lane(player.session, STAGE_LANE))
            player.lanes[STAGE_LANE] = [opened.epoch, opened.batch]

    def send(self, player: Player, batch: Batch, *, number: int | None, now: int) -> Recorded:
        epoch, last = player.lanes[STAGE_LANE]
        number = last + 1 if number is None else number
        recorded = player.do(player.store.record((player.session, STAGE_LANE, epoch, number), batch, now=now))
        player.lanes[STAGE_LANE][1] = max(number, last)  # not reached by a call that fails: its number is used again
        return recorded

    def verb(self, name: str, call: Callable[[Store, int], Coroutine[Any, Any, Any]], *, minutes: int, skipped: Any = None) -> Act:
        """A call of a clerk, or on a player's connection, at a time of its own."""
        session = self.session(name)
        now = micros(NOON + datetime.timedelta(minutes=minutes))
        return Act(session, lambda: session.do(call(session.store, now)), skipped)

    def query(self, name: str, query: str, *values: Any) -> Act:
        """A query of a clerk that has no method in the store; its values are numbers and texts without quotes."""
        session = self.session(name)
        text = (query % tuple(repr(value) for value in values)).encode()

        def call() -> Any:
            found = session.do(session.link.execute(text, result_format=0)).get_value(0, 0)
            return found and found.decode()

        return Act(session, call)

    # Locks

    def set_up(self, build: Build) -> Scene:
        """Build a scene, or put everything back to where it was when it had been built."""
        if self.built is not None and self.built[0] is build:
            self.observer.execute("select stash.restore()")
        else:
            self.clear()
            self.paths.clear()
            self.built = (build, build(self))
            self.stash()
        return self.built[1]

    def stash(self) -> None:
        """Keep a copy of all rows aside. Putting it back truncates nothing, which would cost every session its plans."""
        restore = [f"delete from dwarf.{table}; insert into dwarf.{table} overriding system value table stash.{table};" for table in TABLES]
        copies = [f"create table stash.{table} as table dwarf.{table};" for table in TABLES]
        function = f"create function stash.restore() returns void language plpgsql as $$ begin {' '.join(restore)} end $$;"
        self.observer.execute("drop schema if exists stash cascade; create schema stash; " + " ".join([*copies, function]))

    def point(self, scene: Scene, name: str) -> Point:
        return next(point for point in self.points(scene) if point.name == name)

    def points(self, scene: Scene) -> list[Point]:
        """Every lock that a call on these trees might need: rows that are there, and keys that are not."""
        flows, branches = self.names()
        points = list(scene.keys)
        for session, lane in self.all("select session, lane from dwarf.lanes where lane = %s order by 1", STAGE_LANE):
            row = "select from dwarf.lanes where session = %s and lane = %s for update"
            points.append(Point(f"lane {self._letter(session)}", LANE, (session, lane), row, (session, lane)))
        for (flow_id,) in self.all("select flow_id from dwarf.live order by 1"):
            name = flows[flow_id]
            points.append(Point(f"live {name}", LIVE, (flow_id, 0), "select from dwarf.live where flow_id = %s for update", (flow_id,)))
            insert = """
                insert into dwarf.flows(flow_id, day, root_id, status, priority, graph_id, budget_ms, weight, created_at, ended_at
                , thread_id, token, workflow, fairness_key)
                select flow_id, day, root_id, 6, priority, graph_id, budget_ms, weight, created_at, now(), thread_id, token, workflow
                , fairness_key from dwarf.live where flow_id = %s
            """
            points.append(Point(f"end of {name}", KEYS, (flow_id, 0), insert, (flow_id,)))
        query = """
            select a.flow_id, a.branch, a.seq, a.day, a.size is not null or a.status = 5
            , exists (select from dwarf.parks p where p.flow_id = a.flow_id and p.branch = a.branch)
            from dwarf.active a order by 1, 2
        """
        for flow_id, branch, seq, day, comes_first, has_park in self.all(query):
            name, place = f"{flows[flow_id]}.{branches[branch]}", (flow_id, branch)
            row = "select from dwarf.active where flow_id = %s and branch = %s for update"
            points.append(Point(f"row {name}", COUNTED if comes_first else OTHERS, place, row, place))
            park = "select from dwarf.parks where flow_id = %s and branch = %s for update"
            if not has_park:
                park = "insert into dwarf.parks(flow_id, branch, seq, kind, root_id, parked_at) values (%s, %s, 1, 0, 0, now())"
            points.append(Point(f"park {name}", PARKS if has_park else KEYS, place, park, place))
            points.append(Point(f"step {name}", KEYS, place, HISTORY, (*place, seq, day)))
        return points

    def key_of_branch(self, flow_id: int, branch: int) -> Point:
        """The key of a branch that a record is about to create."""
        insert = """
            insert into dwarf.active(flow_id, branch, weight, budget_ms, day, priority, half, status, seq, depth, created_at, task, fairness_key)
            values (%s, %s, 1, 1, 1, 1, 0, 1, 1, 1, now(), '', '')
        """
        return Point("new branch", KEYS, (flow_id, branch), insert, (flow_id, branch))

    @staticmethod
    def writes(table: str) -> Point:
        """Whatever changes a table; rows can be read and locked meanwhile."""
        return Point(f"writes to {table}", KEYS, (0, 0), f"lock table dwarf.{table} in share mode", ())

    def hold(self, point: Point, *, shared: bool = False) -> psycopg.Connection:
        """Take one lock, and nothing else, until `release`."""
        holder = next((each for each in self.holders if each.info.transaction_status == psycopg.pq.TransactionStatus.IDLE), None)
        if holder is None:
            holder = psycopg.connect(self.dsn, prepare_threshold=None)
            self.holders.append(holder)
        holder.execute(point.take.replace("for update", "for share") if shared else point.take, point.values or None)
        return holder

    @contextmanager
    def stopped(self, act: Act, point: Point) -> Iterator[None]:
        """Let a call run into a lock for good: inside, it waits there, and by the end somebody has killed it."""
        holder = self.hold(point)
        future = self.start(act)
        assert self.blockers(act, future) == [holder.info.backend_pid]
        yield
        with pytest.raises(psycopg.OperationalError):
            future.result()
        holder.rollback()

    def start(self, act: Act) -> Future[Any]:
        return self.threads.submit(act.call)

    def blockers(self, act: Act, future: Future[Any]) -> list[int]:
        """Whom a call waits for, as soon as it waits for anybody; nobody, as soon as it is over."""
        while not future.done():
            [(pids,)] = self.all("select pg_catalog.pg_blocking_pids(%s)", act.session.pid)
            if pids:
                return list(pids)
        return []

    def footprint(self, build: Build, name: str) -> list[Stop]:
        """Which locks a call needs, in the order it asks for them: it runs against a wall of them, taken down one by one."""
        if (build, name) not in self.paths:
            self.paths[build, name] = self._footprint(build, name)
        return self.paths[build, name]

    def _footprint(self, build: Build, name: str) -> list[Stop]:
        scene = self.set_up(build)
        act, met = scene.acts[name], []
        # Who passes over rows that are held meets a wall without them.
        wall = [point for point in self.points(scene) if act.skipped is None or point.rank not in (COUNTED, OTHERS)]
        holders = {self.hold(point): point for point in wall}
        by_pid = {holder.info.backend_pid: holder for holder in holders}
        future = self.start(act)
        while blockers := self.blockers(act, future):
            [pid] = blockers
            met.append(holders[by_pid[pid]])
            by_pid[pid].rollback()
        future.result()
        for holder in holders:
            holder.rollback()
        return [Stop(point, point.rank == LIVE and self._shares(build, name, point)) for point in met]

    def _shares(self, build: Build, name: str, point: Point) -> bool:
        """Whether a call gets along with others that hold a lock of its own kind."""
        scene = self.set_up(build)
        holder = self.hold(self.point(scene, point.name), shared=True)
        act = scene.acts[name]
        future = self.start(act)
        waits = self.blockers(act, future) != []
        holder.rollback()
        future.result()
        return not waits

    # What is there

    def _letter(self, session: int | None) -> str | None:
        return next((name for name, player in self.players.items() if player.session == session), None)

    def names(self) -> tuple[dict[int | None, str | None], dict[int | None, int | None]]:
        """Names of flows (roots by number, children by their callers) and of branches that are the same in every run."""
        branches = self.all(
            "select branch from dwarf.active union select branch from dwarf.history union select branch from dwarf.parks order by 1"
        )
        ranks: dict[int | None, int | None] = {branch: rank for rank, (branch,) in enumerate(branches)}
        flows: dict[int | None, str | None] = {None: None} | {root: str(number) for number, root in enumerate(self.roots)}
        query = "select flow_id, caller_flow, caller_branch, caller_seq from dwarf.{} where caller_flow is not null"
        children = self.all(" union ".join(map(query.format, ("live", "flows"))) + " order by 1")
        while waiting := [child for child in children if child[0] not in flows]:
            for flow_id, caller, branch, seq in waiting:
                if caller in flows:
                    flows[flow_id] = f"{flows[caller]}/{ranks.get(branch)}.{seq}"
        ranks[None] = None
        return flows, ranks

    def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that is stored of these trees, without what differs between two runs of the same."""
        flows, ranks = self.names()
        found: dict[str, list[dict[str, Any]]] = {}
        for table in TABLES:
            rows = [row for (row,) in self.all(f"select to_jsonb(t) from dwarf.{table} t")]
            for row in rows:
                for column in {"signal_id", "half"} & row.keys():
                    row.pop(column)
                for column in FLOW_COLUMNS & row.keys():
                    row[column] = flows.get(row[column], "?")
                for column in BRANCH_COLUMNS & row.keys():
                    row[column] = ranks.get(row[column], "?")
                for column in {"owner", "session"} & row.keys():
                    row[column] = self._letter(row[column])
                if row.get("path"):
                    row["path"] = [flows[flow_id] for flow_id in row["path"]]
            found[table] = sorted(({key: value for key, value in sorted(row.items()) if value is not None} for row in rows), key=repr)
        return found

    def faults(self) -> list[Any]:
        """What `invariants.sql` finds."""
        return self.all(INVARIANTS)


class Outcome(NamedTuple):
    """What a run answered and left."""

    answers: dict[str, Any]
    left: dict[str, list[dict[str, Any]]]

    def __str__(self) -> str:
        """How every flow stands, what its steps became, and what its live rows are about to do."""
        ends = {row["flow_id"]: STATUSES[row["status"]] for row in self.left["flows"]} | {
            row["flow_id"]: "open" for row in self.left["live"]
        }
        steps = Counter(f"{row['task']} {STATUSES[row['status']]}" for row in self.left["history"])
        rows = Counter(f"{row['task']} {STATUSES[row['status']]}{DUTIES[row['todo']]}" for row in self.left["active"])
        parts = [" ".join(map(str, [*self.answers.values()])), ", ".join(f"{name} {end}" for name, end in sorted(ends.items()))]
        return " | ".join([*parts, *(", ".join(f"{count} {what}" for what, count in sorted(each.items())) for each in (steps, rows))])


class Race:
    """Two calls that meet, one of them stopped at each of its locks in turn.

    Whatever happens must be what happens when one comes after the other: the answers, and all that is stored. The one that
    is not stopped has to wait exactly where it needs a lock that the other has, and nowhere else. `problems` says what was not so.
    """

    def __init__(self, stage: Stage, build: Build, first: str, second: str) -> None:
        self.stage, self.build, self.names = stage, build, (first, second)
        self.problems: list[str] = []
        self.runs = 0
        self.paths = {name: stage.footprint(build, name) for name in self.names}
        self.serial = {order: self._one_after_the_other(order) for order in ((first, second), (second, first))}
        skips = any(act.skipped is not None for name, act in stage.set_up(build).acts.items() if name in self.names)
        self.solo = {name: self._one_after_the_other((name,)) for name in self.names} if skips else {}

    def run(self) -> Self:
        first, second = self.names
        for stopped, other in ((first, second), (second, first)):
            for number in range(len(self.paths[stopped])):
                self._race(stopped, other, number)
        return self

    def _one_after_the_other(self, order: Sequence[str]) -> Outcome:
        scene = self.stage.set_up(self.build)
        answers = {name: scene.acts[name].call() for name in order}
        self._judge(" then ".join(order))
        return Outcome(answers, self.stage.dump())

    def _race(self, stopped: str, other: str, number: int) -> None:
        stage, stop = self.stage, self.paths[stopped][number]
        label = f"{stopped} stopped at {stop.point.name}, {other} meanwhile"
        scene = stage.set_up(self.build)
        acts, self.runs = scene.acts, self.runs + 1
        holder = stage.hold(stage.point(scene, stop.point.name))
        futures = {stopped: stage.start(acts[stopped])}
        if stage.blockers(acts[stopped], futures[stopped]) != [holder.info.backend_pid]:
            self.problems.append(f"{label}: it does not stop there")
        futures[other] = stage.start(acts[other])
        waits = stage.blockers(acts[other], futures[other]) != []
        if waits != (acts[other].skipped is None and self._meets(stopped, other, number, unseen=acts[stopped].skipped is not None)):
            self.problems.append(f"{label}: the latter {'waits' if waits else 'does not wait'}")
        holder.rollback()
        if errors := {name: future.exception() for name, future in futures.items() if future.exception() is not None}:
            self.problems.append(f"{label}: {errors}")
            return
        self._judge(label)
        self._compare(label, Outcome({name: future.result() for name, future in futures.items()}, stage.dump()), scene, (stopped, other))

    def _meets(self, stopped: str, other: str, number: int, *, unseen: bool) -> bool:
        """Whether one call needs what the other, stopped, holds already, or what stops it. A call that skips holds rows unseen."""
        held = {stop.point.name: stop.is_shared for stop in self.paths[stopped][:number]}
        held[self.paths[stopped][number].point.name] = False
        return any(
            (stop.point.name in held and not (stop.is_shared and held[stop.point.name]))
            or (unseen and stop.point.rank in (COUNTED, OTHERS))
            for stop in self.paths[other]
        )

    def _compare(self, label: str, outcome: Outcome, scene: Scene, order: tuple[str, str]) -> None:
        allowed = list(self.serial.values())
        for name, rest in (order, order[::-1]):
            if (skipped := scene.acts[rest].skipped) is not None:
                allowed.append(Outcome(self.solo[name].answers | {rest: skipped}, self.solo[name].left))
        if outcome not in allowed:
            nearest = min((differences(outcome, each) for each in allowed), key=len)
            self.problems.append(f"{label}: as in no order of the two; nearest: {nearest}")

    def _judge(self, label: str) -> None:
        if faults := self.stage.faults():
            self.problems.append(f"{label}: {faults}")


def differences(one: Outcome, two: Outcome) -> list[str]:
    """What the first has and the second has not (+), and the other way round (-)."""
    found = [
        f"{name}: {answer!r}, not {two.answers.get(name)!r}" for name, answer in one.answers.items() if answer != two.answers.get(name)
    ]
    for table in one.left:
        found += [f"+{table} {row}" for row in one.left[table] if row not in two.left[table]]
        found += [f"-{table} {row}" for row in two.left[table] if row not in one.left[table]]
    return found


Build = Callable[[Stage], Scene]
HISTORY = """
    insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, created_at, ended_at, task)
    values (%s, %s, %s, %s, 1, 0, 6, now(), now(), '')
"""
STATUSES = ("", "pending", "running", "joining", "interrupted", "parked", "completed", "failed", "cancelled", "terminated")
DUTIES = ("", " to fold", " to resolve", " to be cancelled", " to expand")
FLOW_COLUMNS = {"flow_id", "root_id", "caller_flow", "thread_id", "child_id"}
BRANCH_COLUMNS = {"branch", "base_branch", "join_branch", "caller_branch", "parent_branch", "fan_first"}
