"""The process tree: flows run in it, and go on whatever of it dies, is replaced or is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dwarf import Client, Shard, Status
from dwarf.testing.databases import fresh_database
from dwarf.testing.engine import shared_server
from tests.replica.tree import Tree, until
from tests.sql.plays import broken


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_database(shared_server(), "tree") as made:
        yield made


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    made = tmp_path / "notes"
    made.mkdir()
    return made


def play(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(150):
            await work()

    asyncio.run(bounded())


async def connected(dsn: str) -> Client:
    """Return a client of a shard that a replica is preparing, once it knows the replica's workflows."""

    def is_prepared() -> bool:
        try:
            with psycopg.connect(dsn) as link:
                return bool(link.execute("select count(*) from dwarf.workflows").fetchone()[0])  # type: ignore[index]
        except psycopg.Error:
            return False

    await until(is_prepared, "the workflows are registered")
    client = Client([Shard(1, dsn)])
    await client.start()
    return client


def runs(notes: Path, what: str = "ran") -> Counter[str]:
    """Count the runs of each step."""
    return Counter(note.name.rsplit("-", 2)[0] for note in notes.iterdir() if note.name.startswith(what))


def begun_in(notes: Path, pid: int) -> int:
    return sum(f"-{pid}-" in note.name for note in notes.iterdir())


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def where(notes: Path, what: str) -> set[int]:
    """Return the processes in which steps were noted."""
    return {int(note.name.rsplit("-", 2)[1]) for note in notes.iterdir() if note.name.startswith(what)}


def test_flows_run_in_it_and_it_stops_in_good_order(dsn: str, notes: Path, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, executors=2) as tree:
            client = await connected(dsn)
            async with client:
                keys = await client.create_many([("line", {"notes": str(notes)})] * 50)
                outcomes = [await client.wait(key, 60) for key in keys]
                assert {outcome.status for outcome in outcomes} == {Status.COMPLETED}
                _, outcome = await client.run("mixed", {"notes": str(notes), "items": list(range(40))}, timeout=60)
                assert (outcome.status, outcome.state["sum"]) == (Status.COMPLETED, 780)
                assert (await client.wait(outcome.state["created"], 60)).status is Status.COMPLETED
            assert len(tree.pids("dispatcher")) == 1
            executors = tree.pids("executor")
            assert len(executors) == 2
            assert where(notes, "ran") <= set(executors)
            assert set(runs(notes).values()) == {1}
            tree.signal(signal.SIGTERM)
            assert await tree.ends() == 0
            assert tree.logged("stopped")
            assert not any(is_alive(pid) for pid in executors)
        assert broken(dsn) == []

    play(work)


@pytest.mark.row("G1")
def test_what_a_killed_executor_ran_runs_again_at_once(dsn: str, notes: Path, tmp_path: Path) -> None:
    """Far sooner than its lease would end: the session is that of the replica, which lives."""

    async def work() -> None:
        with Tree(dsn, tmp_path, executors=2, session_seconds=3600) as tree:
            async with await connected(dsn) as client:
                keys = await client.create_many([("held", {"notes": str(notes)})] * 20)
                await until(lambda: len(runs(notes, "began")) == 20, "all tasks run")
                victim = next(pid for pid in tree.pids("executor") if begun_in(notes, pid))
                theirs = begun_in(notes, victim)
                os.kill(victim, signal.SIGKILL)
                await until(lambda: runs(notes, "began").total() == 20 + theirs, "what it ran runs again")
                assert max(runs(notes, "began").values()) == 2
                (notes / "go").touch()
                assert {(await client.wait(key, 60)).status for key in keys} == {Status.COMPLETED}
            await until(lambda: len(tree.pids("executor")) == 2, "another one has started")
            assert victim not in tree.pids("executor")
            assert "SIGKILL" in tree.logged("has ended")[0]["message"]
        assert broken(dsn) == []

    play(work)


def test_a_killed_dispatcher_is_replaced_and_loses_nothing(dsn: str, notes: Path, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, executors=1, session_seconds=2) as tree:
            async with await connected(dsn) as client:
                keys = await client.create_many([("held", {"notes": str(notes)})] * 5)
                await until(lambda: len(runs(notes, "began")) == 5, "all tasks run")
                [victim] = tree.pids("dispatcher")
                os.kill(victim, signal.SIGKILL)
                (notes / "go").touch()
                assert {(await client.wait(key, 100)).status for key in keys} == {Status.COMPLETED}
                assert tree.pids("dispatcher") != [victim]
        assert broken(dsn) == []

    play(work)


def test_a_stop_hands_back_what_does_not_end_within_the_grace(dsn: str, notes: Path, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, executors=1, grace=3600) as tree:
            async with await connected(dsn) as client:
                key = await client.create("held", {"notes": str(notes)})
                await until(lambda: runs(notes, "began"), "it runs")
                tree.signal(signal.SIGTERM)
                await until(lambda: tree.logged("stopping"), "it stops")
                assert (await client.snapshot(key)).status is Status.RUNNING
                assert tree.process.poll() is None
                tree.signal(signal.SIGTERM)  # at once now
                assert await tree.ends() == 0
                with psycopg.connect(dsn) as link:
                    assert link.execute("select status, owner from dwarf.active").fetchall() == [(1, None)]
                (notes / "go").touch()
                with Tree(dsn, tmp_path, executors=1):
                    assert (await client.wait(key, 60)).status is Status.COMPLETED
        assert broken(dsn) == []

    play(work)


def test_a_reload_replaces_every_executor_and_no_step_is_lost_or_run_twice(dsn: str, notes: Path, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, executors=2) as tree:
            async with await connected(dsn) as client:
                await until(lambda: len(tree.pids("executor")) == 2 and len(tree.logged("is ready")) == 3, "it is up")
                before = tree.pids("executor")
                held = await client.create_many([("held", {"notes": str(notes)})] * 4)
                await until(lambda: len(runs(notes, "began")) == 4, "tasks run")
                tree.signal(signal.SIGHUP)
                keys = []
                while set(tree.pids("executor")) & set(before) or len(tree.pids("executor")) != 2:
                    keys += await client.create_many([("line", {"notes": str(notes)})] * 10)
                    await client.wait(keys[-1], 60)
                    if len(tree.pids("executor")) == 3:
                        (notes / "go").touch()  # the first to leave waits for its tasks
                assert {(await client.wait(key, 60)).status for key in [*held, *keys]} == {Status.COMPLETED}
                assert set(runs(notes).values()) == {1}
        assert broken(dsn) == []

    play(work)


def test_a_reload_of_code_that_does_not_boot_leaves_the_replica_as_it_was(
    dsn: str, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_code = tmp_path / "broken"
    monkeypatch.setenv("DWARF_TEST_BROKEN", str(broken_code))

    async def work() -> None:
        with Tree(dsn, tmp_path, executors=2) as tree:
            async with await connected(dsn) as client:
                await until(lambda: len(tree.logged("is ready")) == 3, "it is up")
                before = tree.pids("executor")
                broken_code.touch()
                tree.signal(signal.SIGHUP)
                await until(lambda: any(line["level"] == "critical" for line in tree.logged("cannot boot")), "the new code is given up")
                _, outcome = await client.run("line", {"notes": str(notes)}, timeout=60)
                assert outcome.status is Status.COMPLETED
                assert tree.pids("executor") == before
                broken_code.unlink()
                tree.signal(signal.SIGHUP)
                await until(lambda: len(tree.pids("executor")) == 2 and not set(before) & set(tree.pids("executor")), "all are new")

    play(work)


def test_without_a_supervisor_everything_is_handed_back(dsn: str, notes: Path, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, executors=2, grace=1) as tree:
            async with await connected(dsn) as client:
                key = await client.create("held", {"notes": str(notes)})
                await until(lambda: runs(notes, "began"), "it runs")
                children = [*tree.pids("dispatcher"), *tree.pids("executor")]
                tree.process.kill()
                await until(lambda: not any(map(is_running, children)), "all have ended")
                assert (await client.snapshot(key)).status is Status.RUNNING
                with psycopg.connect(dsn) as link:
                    assert link.execute("select status, owner from dwarf.active").fetchall() == [(1, None)]

    play(work)


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.row("G36")
def test_a_replica_that_is_left_alone_takes_over_all_work(dsn: str, notes: Path, tmp_path: Path) -> None:
    """Two of three are killed whole, in the middle of their tasks."""

    async def work() -> None:
        logs = [tmp_path / name for name in "abc"]
        for place in logs:
            place.mkdir()
        with ExitStack() as stack:
            trees = [stack.enter_context(Tree(dsn, place, executors=1, workers=8, session_seconds=2)) for place in logs]
            async with await connected(dsn) as client:
                await until(lambda: all(len(tree.logged("is ready")) == 2 for tree in trees), "all are up")
                keys = await client.create_many([("held", {"notes": str(notes)})] * 24)
                await until(lambda: len(runs(notes, "began")) == 24, "every replica is full")
                for tree in trees[:2]:
                    for pid in (tree.process.pid, *tree.pids("dispatcher"), *tree.pids("executor")):
                        os.kill(pid, signal.SIGKILL)
                (notes / "go").touch()
                assert {(await client.wait(key, 100)).status for key in keys} == {Status.COMPLETED}
        assert broken(dsn) == []

    play(work)


def test_executors_come_and_go_by_signals(dsn: str, notes: Path, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, executors=1) as tree:
            async with await connected(dsn) as client:
                tree.signal(signal.SIGTTIN)
                await until(lambda: len(tree.pids("executor")) == 2, "there are two")
                for _ in range(3):
                    tree.signal(signal.SIGTTOU)
                await until(lambda: len(tree.pids("executor")) == 1, "there is one")
                _, outcome = await client.run("line", {"notes": str(notes)}, timeout=60)
                assert outcome.status is Status.COMPLETED
                assert len(tree.pids("executor")) == 1

    play(work)


def test_a_replica_that_cannot_boot_says_why_and_ends(dsn: str, tmp_path: Path) -> None:
    async def work() -> None:
        with Tree(dsn, tmp_path, app="tests.replica.nothing:app", executors=1) as tree:
            assert await tree.ends() == 78
            assert any("tests.replica.nothing" in line["message"] for line in tree.logged("cannot boot"))

    play(work)


def test_a_shard_that_cannot_be_reached_is_waited_for(tmp_path: Path) -> None:
    async def work() -> None:
        with Tree("host=127.0.0.1 port=1 password=hunter2 dbname=none", tmp_path, executors=1) as tree:
            await until(lambda: len(tree.logged("is ready")) == 2, "its processes are up")
            await until(lambda: len(tree.logged("shard 1")) > 2, "they try")
            assert tree.process.poll() is None
            tree.signal(signal.SIGTERM)
            assert await tree.ends() == 0
            assert not tree.logged("hunter2")

    play(work)
