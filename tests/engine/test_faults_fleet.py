"""Several engines on one database: each step runs once, whoever goes away the others finish it, and nobody's late word counts."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dwarf import END, App, Conflict, DwarfError, Flow, Graph, Status, faults
from dwarf.testing.databases import fresh_database
from dwarf.testing.engine import EngineUnderTest, shared_server
from tests.engine import victim
from tests.engine.shaky import number, owned
from tests.engine.victims import left_over, most_runs, until
from tests.sql.plays import broken

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"


def run(test: Coroutine[Any, Any, None], *, seconds: float = 90) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await test

    asyncio.run(bounded())


@asynccontextmanager
async def fleet(count: int, app: App = victim.app, **settings: Any) -> AsyncIterator[list[EngineUnderTest]]:
    """Open engines on one database, and check it when they have been closed."""
    with fresh_database(shared_server(), "fleet") as dsn:
        async with AsyncExitStack() as stack:
            engines = []
            for _ in range(count):
                engine = EngineUnderTest(app, "x", dsns=[dsn], migrates=False, **settings)
                engines.append(await stack.enter_async_context(engine))
            yield engines
        assert broken(dsn) == []
        assert left_over(dsn) == 0
        assert (
            number(dsn, "select count(*) from dwarf.signals s where not exists (select from dwarf.peers p where p.session = s.session)")
            == 0
        )


def _has_recorded(engine: EngineUnderTest, count: int) -> bool:
    return engine.counters(1).recorded > count


async def driven(engine: EngineUnderTest, keys: list[str]) -> None:
    outcomes = await asyncio.gather(*(victim.drive(engine, key) for key in keys))
    assert {(outcome.status, outcome.error, outcome.state["total"]) for outcome in outcomes} == {(Status.COMPLETED, "", 15)}


@pytest.mark.row("F23", "F24")
@pytest.mark.parametrize("count", [2, 3])
def test_every_step_runs_once(count: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(count, workers=20) as engines:
            keys: list[str] = []
            for nth in range(60):
                keys += await engines[nth % count].create_many(victim.voyages(tmp_path / "notes", 1))
            await driven(engines[0], keys)
            assert most_runs(tmp_path / "notes", kills=0) == 0
            for engine in engines:
                counters = engine.counters(1)
                assert counters.swept == counters.missed == counters.write_failed == counters.withdrawn == 0
                assert counters.recorded > 0, "it did nothing"

    run(test())


@pytest.mark.row("G20")
@pytest.mark.parametrize("kills", [1, 2])
def test_those_who_are_left_finish_what_the_killed_ones_ran(kills: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(kills + 2, workers=20, session_seconds=1) as engines:
            keys = await engines[-1].create_many(victim.voyages(tmp_path / "notes", 40))
            for engine in engines[:kills]:
                await until(partial(_has_recorded, engine, 30), "it works")
                await engine.kill()
            await driven(engines[-1], keys)
            lost = sum(engine._embedded[1].sessions_lost for engine in engines[kills:])
            again = most_runs(tmp_path / "notes", kills=kills + lost)
            swept = sum(engine.counters(1).swept for engine in engines[kills:])
            assert lost or again <= swept

    run(test())


def test_an_engine_whose_session_is_deleted_by_hand_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(2, workers=20, session_seconds=1) as engines:
            keys = await engines[0].create_many(victim.voyages(tmp_path / "notes", 30))
            await until(lambda: all(engine.counters(1).recorded > 10 for engine in engines), "both work")
            first = engines[0]._embedded[1].dispatcher.session
            with psycopg.connect(engines[0].dsn, autocommit=True) as connection:
                connection.execute("delete from dwarf.peers")
            await driven(engines[0], keys)
            await until(
                lambda: engines[0]._embedded[1].is_running and engines[0]._embedded[1].dispatcher.session != first, "it has a new session"
            )
            assert (await engines[0].run("errand", {"n": 1}))[1].state["n"] == 2

    run(test())


def test_the_late_word_of_a_swept_step_does_not_count() -> None:
    """A replica that everybody takes for dead goes on running a step; another one runs it too, and is the one that counts."""
    app = App()
    app.add_graph("slow", Graph("slow").add_transition_chain("Slow", "After", END))
    runs: list[str] = []
    release = threading.Event()

    @app.task("Slow")
    def slow(flow: Flow) -> None:
        runs.append(flow.step_key)
        nth = len(runs)
        if nth == 1:
            release.wait(60)
        flow["by"] = nth

    @app.task("After")
    async def after(flow: Flow) -> None:
        flow["after"] = flow.get_int("by")

    async def test() -> None:
        async with fleet(2, app, session_seconds=2, grace=1) as engines:
            key = await engines[0].create("slow")
            await until(lambda: runs, "it runs")
            holder = next(engine for engine in engines if engine._embedded[1].dispatcher.running)
            other = next(engine for engine in engines if engine is not holder)
            with psycopg.connect(holder.dsn, autocommit=True) as connection:
                await until(
                    lambda: connection.execute(
                        "select steady_since <= dwarf.now() - interval '2 s' from dwarf.peers where session = %s",
                        (other._embedded[1].dispatcher.session,),
                    ).fetchone() == (True,),
                    "the other one may judge",
                )  # fmt: skip
                holder._embedded[1].dispatcher._session._renewals.close()  # it cannot renew, and does not know yet what that means
                connection.execute(
                    "update dwarf.peers set expires_at = dwarf.now() where session = %s", (holder._embedded[1].dispatcher.session,)
                )
            outcome = await other.wait(key, 20)
            assert (outcome.status, dict(outcome.state)) == (Status.COMPLETED, {"by": 2, "after": 2})
            release.set()
            assert len(await other.history(key)) == 2
            assert dict((await other.snapshot(key)).state) == {"by": 2, "after": 2}
            assert len(runs) == 2
            assert len(set(runs)) == 1

    try:
        run(test())
    finally:
        release.set()


@pytest.mark.row("C10", "C32")
@pytest.mark.parametrize("seed", range(10 if HEAVY else 1))
def test_a_storm_of_verbs_while_two_engines_work(seed: int, tmp_path: Path) -> None:
    """Every call tells the truth, every flow ends in one way, and nothing of a closed flow is left."""

    async def test() -> None:
        dice = random.Random(seed)
        async with fleet(2, workers=30) as engines:
            keys = await engines[0].create_many(victim.voyages(tmp_path / "notes", 60))
            won: dict[str, list[str]] = {key: [] for key in keys}

            async def call(key: str, verb: str) -> None:
                engine = dice.choice(engines)
                try:
                    await (engine.resume(key, victim.ANSWER) if verb == "resume" else getattr(engine, verb)(key, "storm"))
                    won[key].append(verb)
                except Conflict:
                    pass

            async def storm() -> None:
                for _ in range(300):
                    await call(dice.choice(keys), dice.choice(["resume", "resume", "resume", "cancel", "terminate"]))
                    await asyncio.sleep(dice.random() * 0.01)

            await asyncio.gather(*(storm() for _ in range(4)))
            outcomes = dict(zip(keys, await asyncio.gather(*(victim.drive(engines[1], key) for key in keys)), strict=True))
            seen = Counter(outcome.status for outcome in outcomes.values())
            for key, outcome in outcomes.items():
                assert outcome.status in {Status.COMPLETED, Status.CANCELLED, Status.TERMINATED}, outcome
                assert ("terminate" in won[key]) == (outcome.status is Status.TERMINATED), (won[key], outcome)
                assert won[key].count("terminate") <= 1
                if outcome.status is Status.CANCELLED:
                    assert "cancel" in won[key]
                if outcome.status is Status.COMPLETED:
                    assert dict(outcome.state) == dict(victim.undisturbed().outcome.state)
                    assert "cancel" not in won[key]
                with pytest.raises(DwarfError):
                    await engines[0].terminate(key)
            assert len(seen) >= 2
            assert most_runs(tmp_path / "notes", kills=0) == 0
            await until(lambda: owned(engines[0].dsn) == 0, "nobody holds anything")
            await until(lambda: all(engine._embedded[1].dispatcher.running == 0 for engine in engines), "no engine thinks it does")

    run(test())


def test_slots_come_back_after_a_storm_of_terminations() -> None:
    """Also those of tasks that do not listen, once they have ended."""
    app = App()
    app.add_graph("deaf", Graph("deaf").add_transition("Deaf", END))
    release = threading.Event()
    began: list[str] = []

    @app.task("Deaf")
    def deaf(flow: Flow) -> None:
        began.append(flow.flow_key)
        release.wait(60)

    async def test() -> None:
        async with fleet(1, app, workers=3, threads=3) as [engine]:
            keys = await engine.create_many([("deaf",)] * 10)
            await until(lambda: len(began) == 3, "three run")
            for key in keys:
                await engine.terminate(key)
            assert len(began) == 3
            release.set()
            for _ in range(5):
                assert (await engine.run("deaf", timeout=10))[1].status is Status.COMPLETED
            assert len(began) == 8

    try:
        run(test())
    finally:
        release.set()


@pytest.mark.parametrize("seconds", [2.5])
def test_a_task_that_keeps_the_loop_for_longer_than_a_lease_runs_once(seconds: float) -> None:
    """Alone with it, nobody has taken the step away."""
    app = App()
    app.add_graph("keeps", Graph("keeps").add_transition_chain("Keeps", "After", END))
    ran: Counter[str] = Counter()

    @app.task("Keeps")
    async def keeps(flow: Flow) -> None:
        ran[flow.task_name] += 1
        time.sleep(seconds)  # noqa: ASYNC251 - that is the point

    @app.task("After")
    async def after(flow: Flow) -> None:
        ran[flow.task_name] += 1

    async def test() -> None:
        async with fleet(1, app, session_seconds=1) as [engine]:
            key, outcome = await engine.run("keeps", timeout=30)
            assert outcome.status is Status.COMPLETED
            assert ran == {"Keeps": 1, "After": 1}
            assert engine._embedded[1].sessions_lost == 0
            assert len(await engine.history(key)) == 2

    run(test())


@pytest.mark.parametrize("takeover", ["session", "deadline"])
def test_takeover_by_deadline_leaves_steps_to_their_own_deadline(takeover: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(2, workers=20, session_seconds=1, takeover=takeover) as engines:
            keys = await engines[0].create_many(victim.voyages(tmp_path / "notes", 10))
            await until(lambda: engines[0].counters(1).recorded > 10, "it works")
            await engines[0].kill()
            left = owned(engines[1].dsn)
            if takeover == "deadline":
                await until(
                    lambda: number(engines[1].dsn, "select count(*) from dwarf.peers where expires_at < dwarf.now()") > 0,
                    "a session has expired",
                )
                sweeps: list[object] = []
                with faults.armed("sweep.sent", sweeps.append):
                    await until(lambda: len(sweeps) > 1, "others have been judged since")
                assert engines[1].counters(1).swept == 0
                with psycopg.connect(engines[1].dsn, autocommit=True) as connection:
                    connection.execute("update dwarf.active set due_at = dwarf.now() where due_at is not null")
            await driven(engines[1], keys)
            assert most_runs(tmp_path / "notes", kills=1) <= max(left, engines[1].counters(1).swept)

    run(test())
