"""Victims seen from outside: started, found dead, and their flows finished by an engine that has to get everything right."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from dwarf import Client, Engine, Query, Shard, Status
from dwarf.testing.databases import fresh_database
from dwarf.testing.engine import EngineUnderTest, shared_server
from tests.engine import victim
from tests.sql.plays import broken

WAIT_SECONDS_MAX = 60
ROOT = Path(__file__).parent.parent.parent


async def until(is_so: Callable[[], object], what: str, *, seconds: float = WAIT_SECONDS_MAX) -> None:
    """Look again and again until something is so. The deadline only turns a hang into a failure."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = is_so()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        assert asyncio.get_running_loop().time() < deadline, f"still not so: {what}"
        await asyncio.sleep(0.01)


async def killed(dsn: str, notes: Path, flows: int, fault: str | tuple[str, str, str, str]) -> int:
    """Run a victim to its death and return its process id."""
    environment = {**os.environ, "DWARF_FAULT": fault if isinstance(fault, str) else ""}
    arguments = [] if isinstance(fault, str) else fault
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.victim", dsn, str(notes), str(flows), *arguments, cwd=ROOT, env=environment
    )
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            assert await process.wait() == -signal.SIGKILL, f"{fault}: it did not come to its end there"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.pid


async def all_roots(engine: Engine) -> list[str]:
    """Return the keys of all roots; there are not many."""
    found = []
    for page in (await engine.list_open(Query(limit=1000)), await engine.list_closed(Query(limit=1000))):
        found += [item.flow_key for item in page.items]
    return found


class Finished(msgspec.Struct):
    """How voyages were finished: their histories by flow, how many steps were taken back, how many sessions were lost meanwhile."""

    histories: dict[str, list[Any]]
    swept: int
    lost: int


async def finish(dsn: str, *, session_seconds: float = victim.SESSION_SECONDS) -> Finished:
    """Finish whatever voyages are in a database, and check that they came to what they come to when nobody dies."""
    async with EngineUnderTest(victim.app, "rescue", dsns=[dsn], session_seconds=session_seconds, migrates=False) as engine:
        keys = await all_roots(engine)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            outcomes = await asyncio.gather(*(victim.drive(engine, key) for key in keys))
        expected = victim.undisturbed()
        for outcome in outcomes:
            assert (outcome.status, outcome.error) == (Status.COMPLETED, "")
            assert dict(outcome.state) == dict(expected.outcome.state)
        histories = {key: await engine.history(key) for key in keys}
        steps = Counter((step.task, str(step.status)) for step in expected.steps)
        for history in histories.values():
            assert Counter((step.task_name, str(step.status)) for step in history) == steps
            assert len({step.step_key for step in history}) == len(history)
            assert {step.task_name: step.attempt for step in history if step.attempt} == {"Flaky": 2}
        assert engine.counters(1).write_failed == engine.counters(1).poisoned == 0
        finished = Finished(histories, engine.counters(1).swept, engine._embedded[1].sessions_lost)
    assert broken(dsn) == []
    assert left_over(dsn) == 0
    return finished


def left_over(dsn: str) -> int:
    """Return how many rows are left that belong to nobody's flow: none may be."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select (select count(*) from dwarf.active) + (select count(*) from dwarf.parks)").fetchone()
    assert row is not None
    return int(row[0])


def most_runs(notes: Path, *, kills: int) -> int:
    """Check that no run of a step was begun more often than its deaths allow; return how many were begun again."""
    runs = Counter((note.step_key, note.task, note.attempt) for note in victim.read_notes(str(notes)))
    again = 0
    for (step_key, task, attempt), count in runs.items():
        allowed = 1 + (task in victim.PARKING)
        assert count <= allowed + kills, (step_key, task, attempt, count)
        again += max(count - allowed, 0)
    return again


async def killed_and_finished(name: str, folder: Path, flows: int, fault: str | tuple[str, str, str, str]) -> None:
    """Kill a victim at a fault on a database of its own, finish its flows, and check everything."""
    with fresh_database(shared_server(), name) as dsn:
        notes = folder / f"{name}.notes"
        creates_itself = isinstance(fault, str) and fault.startswith("create")
        if not creates_itself:
            async with Client([Shard(1, dsn)], host=victim.app) as client:
                await client.create_many(victim.voyages(notes, flows))
        await killed(dsn, notes, flows if creates_itself else 0, fault)
        finished = await finish(dsn)
        assert len(finished.histories) == flows
        again = most_runs(notes, kills=1 + finished.lost)
        assert again <= finished.swept or finished.lost, "more ran again than was in flight"
        ran = {note.step_key for note in victim.read_notes(str(notes))}
        recorded = {step.step_key for history in finished.histories.values() for step in everything(history)}
        assert ran == recorded, "a step ran under another key than it was recorded under"


def everything(history: list[Any]) -> Iterator[Any]:
    """Yield the steps of a flow and of its children."""
    for step in history:
        yield step
        yield from everything(step.sub_history or [])
