"""A database that goes away under load, in every way: no flow fails, nothing is recorded twice, and nobody has to restart the engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dwarf import ShardUnavailable, Status, faults
from dwarf.lanes import LaneWriter
from dwarf.store import Store
from dwarf.testing.databases import create_database, fresh_database, template_database
from dwarf.testing.engine import EngineUnderTest, shared_server
from dwarf.testing.postgres import EMBEDDED, QUICK, Server, find_bindir
from tests.engine import victim
from tests.engine.shaky import connections, down, frozen, number
from tests.engine.victims import left_over, most_runs, until
from tests.sql.plays import broken

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
FLOWS = 40
TABLES = ("dwarf.active", "dwarf.live", "dwarf.history", "dwarf.signals", "dwarf.lanes")
END_BACKENDS = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and application_name like 'dwarf%'
"""

OTHERS = " where datname = current_database() and pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def shaky() -> Iterator[Server]:
    """A server that tests may stop and freeze; each leaves it running."""
    with Server(find_bindir(EMBEDDED), settings=QUICK, in_memory=True) as server:
        yield server


@pytest.fixture
def shaky_dsn(shaky: Server) -> str:
    return create_database(shaky, "shaky", template=template_database(shaky))


def run(test: Coroutine[Any, Any, None], *, seconds: float = 120) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await test

    asyncio.run(bounded())


class Load:
    """Voyages on an engine, each created and driven to its end whatever happens meanwhile."""

    def __init__(self, engine: EngineUnderTest, notes: Path) -> None:
        self.engine, self.notes = engine, notes
        self.done = 0
        self.created = 0
        self.unsure = 0
        self.write_retries = 0

    async def one(self) -> None:
        while True:
            try:
                [key] = await self.engine.create_many(victim.voyages(self.notes, 1))
                break
            except ShardUnavailable:
                self.unsure += 1  # it may exist: then it runs as well
                await asyncio.sleep(0.05)
        self.created += 1
        while True:
            try:
                outcome = await victim.drive(self.engine, key)
                break
            except ShardUnavailable:
                await asyncio.sleep(0.05)
        assert (outcome.status, outcome.error) == (Status.COMPLETED, "")
        assert outcome.state["total"] == 15
        self.done += 1


@asynccontextmanager
async def load(dsn: str, notes: Path, *, flows: int = FLOWS, lost: bool = False, **settings: Any) -> AsyncIterator[Load]:
    """Keep an engine under load during the block, and check afterwards that everything has come to its end, once.

    `lost`: sessions may be lost on the way, so that steps run again.
    """
    async with EngineUnderTest(victim.app, "load", dsns=[dsn], migrates=False, **settings) as engine:
        work = Load(engine, notes)
        async with asyncio.TaskGroup() as group:
            for _ in range(flows):
                group.create_task(work.one())
            yield work
        if work.unsure:
            await finish_unsure(engine)
        sessions_lost = engine._embedded[1].sessions_lost
        assert lost or sessions_lost == 0
        counters = engine.counters(1)
        work.write_retries = engine.write_retries(1)
        assert counters.write_failed == counters.poisoned == 0
        assert lost or counters.swept == 0
        again = most_runs(notes, kills=sessions_lost)
        assert lost or again == 0
    assert broken(dsn) == []
    assert left_over(dsn) == 0


async def finish_unsure(engine: EngineUnderTest) -> None:
    """Drive what exists although its creator was not told so."""
    while True:
        page = (await engine.list_open()).items
        if not page:
            return
        await asyncio.gather(*(victim.drive(engine, item.flow_key) for item in page))


def ended(dsn: str, condition: str = "true") -> int:
    """End Dwarf's sessions in a database."""
    return number(dsn, f"{END_BACKENDS} and {condition}")


# ---- connections that are lost at one moment ----


@pytest.mark.parametrize("point", ["claim.sent", "claim.taken", "record.sent", "record.committed", "create.committed", "renew.sent"])
@pytest.mark.parametrize("times", [1, 2, 3] if HEAVY else [2])
def test_all_connections_are_lost_at_a_point(point: str, times: int, tmp_path: Path) -> None:
    async def test() -> None:
        with fresh_database(shared_server(), "lost") as dsn:
            left = times

            def lose(_: object) -> None:
                nonlocal left
                if left:
                    left -= bool(ended(dsn))

            with faults.armed(point, lose):
                async with load(dsn, tmp_path / "notes", flows=8, session_seconds=6):
                    await until(lambda: not left, "they are lost")
            assert left == 0

    run(test())


REPLIES: dict[str, Callable[..., Any]] = {
    "claim": Store.claim, "claim by key": Store.claim_these, "record": Store.record,
    "create": Store.create_flows, "documents": Store.load_documents, "members": Store.load_members, "parks": Store.load_parks,
    "signals": Store.take_signals, "branches": Store.branch_block, "graphs": Store.put_graphs, "owned": Store.owned,
    "release": Store.release, "look": Store.look, "due": Store.due,
}  # fmt: skip


@pytest.mark.row("G9")
def test_the_answer_to_any_statement_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has committed, and who asked is not told: at the first, the second and the fifth time of each statement."""
    calls: dict[str, int] = {}

    def losing(original: Callable[..., Any]) -> Callable[..., Any]:
        async def call(self: Store, *args: Any, **named: Any) -> Any:
            found = await original(self, *args, **named)
            calls[original.__name__] = nth = calls.get(original.__name__, 0) + 1
            if nth in {2, 3, 6}:
                self._connection.close()
                raise psycopg.OperationalError("the answer is lost")
            return found

        return call

    for original in REPLIES.values():
        monkeypatch.setattr(Store, original.__name__, losing(original))

    async def test() -> None:
        with fresh_database(shared_server(), "answers") as dsn:
            async with load(dsn, tmp_path / "notes", flows=20, session_seconds=6) as work:
                pass
            assert work.write_retries >= 3
            assert calls["record"] > 6
            assert calls.keys() >= {"record", "create_flows", "look", "due", "owned", "load_members"}

    run(test())


def test_a_record_under_way_is_no_lost_claim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A record has committed and its lane does not know it for a long while: its successors are not taken for strays."""
    original = LaneWriter._record
    held_up: list[int] = []

    async def slow(self: LaneWriter, batch: Any, now: Any) -> Any:
        recorded = await original(self, batch, now)
        if not held_up:
            held_up.append(1)
            await asyncio.sleep(1.5)  # nine looks of a session of one second
        return recorded

    monkeypatch.setattr(LaneWriter, "_record", slow)

    async def test() -> None:
        with fresh_database(shared_server(), "under_way") as dsn:
            async with load(dsn, tmp_path / "notes", flows=4, session_seconds=1) as work:
                pass
            assert held_up
            assert work.engine.engine_id

    run(test())


# ---- the server ----


@pytest.mark.row("G33")
def test_a_database_frozen_for_less_than_a_lease(shaky: Server, shaky_dsn: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with load(shaky_dsn, tmp_path / "notes") as work:
            await until(lambda: work.created > FLOWS // 2, "it works")
            with frozen(shaky):
                await asyncio.sleep(10 if HEAVY else 2)
        assert work.write_retries == 0

    run(test())


def test_a_database_frozen_for_longer_than_a_lease(shaky: Server, shaky_dsn: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with load(shaky_dsn, tmp_path / "notes", session_seconds=2, lost=True) as work:
            await until(lambda: work.created > FLOWS // 2, "it works")
            with frozen(shaky):
                await asyncio.sleep(10 if HEAVY else 3)

    run(test())


@pytest.mark.row("M23")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_restart_of_the_server_under_load(shaky: Server, shaky_dsn: str, tmp_path: Path, how: signal.Signals) -> None:
    async def test() -> None:
        async with load(shaky_dsn, tmp_path / "notes") as work:
            for share in (1, 2):
                await until(partial(_has_created, work, FLOWS * share // 3), "it works")
                await asyncio.to_thread(_restart, shaky, how)

    run(test())


def _has_created(work: Load, count: int) -> bool:
    return work.created >= count


def _restart(server: Server, how: signal.Signals) -> None:
    with down(server, how):
        pass


@pytest.mark.row("G34")
def test_a_server_that_is_down_for_longer_than_a_lease(shaky: Server, shaky_dsn: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with load(shaky_dsn, tmp_path / "notes", session_seconds=1, lost=True) as work:
            await until(lambda: work.created > FLOWS // 2, "it works")
            with down(shaky):
                await asyncio.sleep(2.5)

    run(test())


@pytest.mark.row("M29")
def test_backends_that_are_ended_at_random(tmp_path: Path) -> None:
    async def test() -> None:
        with fresh_database(shared_server(), "ended") as dsn:
            async with load(dsn, tmp_path / "notes") as work:
                while work.done < FLOWS:
                    await asyncio.to_thread(ended, dsn, "random() < 0.2")
                    await asyncio.sleep(0.02)
            await until(lambda: connections(dsn) == 0, "no connection is left", seconds=10)

    run(test())


def test_a_primary_that_becomes_read_only_for_a_while(shaky: Server, shaky_dsn: str, tmp_path: Path) -> None:
    """Old connections stay open and refuse to write. A26"""

    def set_read_only(is_wanted: str) -> None:
        with psycopg.connect(shaky.dsn(), autocommit=True) as connection:
            connection.execute(f"alter system set default_transaction_read_only = {is_wanted}".encode())
        shaky.reload()

    async def test() -> None:
        async with load(shaky_dsn, tmp_path / "notes") as work:
            await until(lambda: work.created > FLOWS // 2, "it works")
            await asyncio.to_thread(set_read_only, "on")
            await asyncio.sleep(2)
            await asyncio.to_thread(set_read_only, "off")

    try:
        run(test())
    finally:
        set_read_only("off")


@pytest.mark.row("M28")
def test_others_take_all_connections_for_a_while(shaky: Server, shaky_dsn: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with load(shaky_dsn, tmp_path / "notes") as work:
            await until(lambda: work.created > FLOWS // 2, "it works")
            others: list[psycopg.Connection] = []
            try:
                ended(shaky_dsn)
                while True:
                    others.append(await asyncio.to_thread(lambda: psycopg.connect(shaky.dsn())))
            except psycopg.OperationalError:
                await asyncio.sleep(1)
            finally:
                for other in others:
                    other.close()

    run(test())


# ---- locks ----


@pytest.mark.parametrize("table", TABLES if HEAVY else TABLES[:2])
def test_a_table_locked_for_longer_than_a_lease_costs_nobody_the_session(table: str, tmp_path: Path) -> None:
    """What waits for the lock keeps no renewal waiting."""

    async def test() -> None:
        with fresh_database(shared_server(), "locked") as dsn:
            async with load(dsn, tmp_path / "notes", flows=10, session_seconds=1) as work:
                await until(lambda: work.created > 5, "it works")
                async with await psycopg.AsyncConnection.connect(dsn) as connection:
                    await connection.execute(f"lock table {table} in access exclusive mode".encode())
                    await asyncio.sleep(1.5)

    run(test())


def test_contention_is_no_failure_of_a_flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Deadlocks and lock timeouts, more in a row than one batch is tried."""
    original = Store.record
    times = 0

    async def record(self: Store, lane: Any, batch: Any, *, now: Any = None) -> Any:
        nonlocal times
        times += 1
        if times % 25 < 12:
            raise psycopg.errors.DeadlockDetected("deadlock detected") if times % 2 else psycopg.errors.LockNotAvailable("timeout")
        return await original(self, lane, batch, now=now)

    monkeypatch.setattr(Store, "record", record)

    async def test() -> None:
        with fresh_database(shared_server(), "contention") as dsn:
            async with load(dsn, tmp_path / "notes", flows=10) as work:
                pass
            assert work.done == 10

    run(test())


# ---- through a pooler ----


def test_an_engine_behind_a_pooler(pgbouncer: Callable[..., Any], database: str, tmp_path: Path) -> None:
    """In transaction mode, with fewer connections to the server than the engine has to it. A22, A23"""
    pooler = pgbouncer(default_pool_size=4, server_idle_timeout=2)

    async def test() -> None:
        async with load(pooler.dsn(database), tmp_path / "notes", flows=20) as work:
            await until(lambda: work.created > 10, "it works")
            await asyncio.to_thread(number, database, "select count(pg_terminate_backend(pid)) from pg_stat_activity" + OTHERS)
            await until(lambda: work.done > 10, "it works again")
            await asyncio.to_thread(number, database, "select count(pg_terminate_backend(pid)) from pg_stat_activity" + OTHERS)

    run(test())
