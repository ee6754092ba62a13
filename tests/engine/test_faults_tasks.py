"""Tasks that do what no task should, and outcomes that cannot be stored: the step fails, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

from dwarf import END, App, Flow, FlowOptions, Graph, Status
from dwarf.decide import decide
from dwarf.executor import runs
from dwarf.store import Store
from dwarf.testing.engine import EngineUnderTest
from tests.engine.victims import until
from tests.sql.plays import broken

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"


class Strange(BaseException):
    """Not an Exception, as some libraries have them."""


def single(app: App, url: str, **settings: Any) -> Callable[[Any], Any]:
    """Register a task together with a graph of nothing else."""

    def register(function: Any) -> Any:
        app.task(url, **settings)(function)
        app.add_graph(url, Graph(url).add_transition(url, END))
        return function

    return register


def run(test: Coroutine[Any, Any, None], *, seconds: float = 90) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await test

    asyncio.run(bounded())


RAISED: list[BaseException] = [
    SystemExit(3), KeyboardInterrupt(), Strange("odd"), GeneratorExit(), asyncio.CancelledError(), SystemError("null without error"),
    BaseExceptionGroup("group", [Strange("odd"), ValueError("v")]), StopIteration(1), StopAsyncIteration(), MemoryError(),
    RecursionError("deep"),
]  # fmt: skip


def raising_app() -> App:
    app = App()

    @single(app, "thread")
    def in_a_thread(flow: Flow) -> None:
        raise RAISED[flow.get_int("nth")]

    @single(app, "loop")
    async def on_the_loop(flow: Flow) -> None:
        raise RAISED[flow.get_int("nth")]

    @single(app, "fine")
    async def fine(flow: Flow) -> None:
        flow["fine"] = True

    return app


@pytest.mark.row("L7")
@pytest.mark.parametrize("where", ["thread", "loop"])
def test_whatever_a_task_raises_fails_its_step_and_nothing_else(where: str) -> None:
    async def test() -> None:
        async with EngineUnderTest(raising_app(), f"raises_{where}", workers=4) as engine:
            for nth, raised in enumerate(RAISED):
                if where == "loop" and isinstance(raised, KeyboardInterrupt):
                    continue  # there it may be a user's, and ends the loop
                _, outcome = await engine.run(where, {"nth": nth}, timeout=10)
                assert outcome.status is Status.FAILED, raised
                assert outcome.error, raised
            for _ in range(5):  # all four slots are free again
                _, outcome = await engine.run("fine", timeout=10)
                assert outcome.status is Status.COMPLETED
            assert engine._embedded[1].sessions_lost == 0
            assert engine._embedded[1].dispatcher.running == 0

    run(test())


class SlowHost:
    """A host that has to fetch its graphs."""

    async def load_graph(self, url: str) -> Graph:
        await asyncio.sleep(0.01)
        return Graph(url).add_transition("fine", END)

    async def execute_task(self, url: str, flow: Flow) -> None:
        raise AssertionError(url)


def test_a_task_that_cancels_itself_and_calls_a_child_fails() -> None:
    app = raising_app()
    app.mount("slow:", SlowHost())

    @single(app, "self-cancelling")
    async def self_cancelling(flow: Flow) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        flow.subgraph("slow:child")

    async def test() -> None:
        async with EngineUnderTest(app, "self_cancelling") as engine:
            _, outcome = await engine.run("self-cancelling", timeout=10)
            assert outcome.status.closed
            await until(lambda: engine._embedded[1].dispatcher.running == 0, "nothing is held")

    run(test())


@pytest.mark.row("G8")
def test_time_budgets_end_what_honours_them_and_what_does_not_is_told() -> None:
    app = App()
    told = threading.Event()

    @single(app, "honours", time_budget=0.1)
    async def honours(flow: Flow) -> None:
        await asyncio.sleep(60)

    @single(app, "thread", time_budget=0.1)
    def thread(flow: Flow) -> None:
        assert flow.cancelled.wait(60)
        told.set()
        raise TimeoutError("I was told")

    @single(app, "swallows", time_budget=0.1)
    async def swallows(flow: Flow) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            flow["cancelled"] = flow.cancelled.is_set()

    async def test() -> None:
        async with EngineUnderTest(app, "budgets") as engine:
            (_, honoured), (_, threaded), (_, swallowed) = await asyncio.gather(
                *(engine.run(url, timeout=20) for url in ("honours", "thread", "swallows"))
            )
            assert honoured.status is Status.FAILED
            assert "time budget of 0.1 s" in honoured.error
            assert threaded.status is Status.FAILED
            assert threaded.error == "I was told"
            assert told.is_set()
            assert (swallowed.status, dict(swallowed.state)) == (Status.COMPLETED, {"cancelled": True})

    run(test())


def test_a_task_that_outlives_its_lease_has_one_outcome() -> None:
    """Its second run reports first; what the first one comes to late changes nothing. M37"""
    app = App()
    runs: list[str] = []
    release = threading.Event()

    @single(app, "slow")
    def slow(flow: Flow) -> None:
        runs.append(flow.step_key)
        mine = len(runs)
        if mine == 1:
            release.wait(60)
        flow["by"] = mine

    async def test() -> None:
        async with EngineUnderTest(app, "outlives", session_seconds=1) as engine:
            key = await engine.create("slow")
            await until(lambda: runs, "it runs")
            with psycopg.connect(engine.dsn, autocommit=True) as connection:
                connection.execute("update dwarf.active set due_at = dwarf.now()")
            outcome = await engine.wait(key, 20)
            release.set()
            await until(lambda: engine._embedded[1].dispatcher.running == 0, "the late run is over")
            assert (outcome.status, dict(outcome.state)) == (Status.COMPLETED, {"by": 2})
            assert dict((await engine.snapshot(key)).state) == {"by": 2}
            assert len(set(runs)) == 1
            assert len(runs) == 2
            assert len(await engine.history(key)) == 1
            assert engine.counters(1).swept == 1
            assert broken(engine.dsn) == []
            release.set()

    try:
        run(test())
    finally:
        release.set()


def test_background_tasks_of_a_step_do_not_hold_it() -> None:
    app = App()
    left: list[asyncio.Task[Any]] = []

    @single(app, "leaves")
    async def leaves(flow: Flow) -> None:
        left.append(asyncio.create_task(asyncio.sleep(60)))
        flow["left"] = True

    async def test() -> None:
        async with EngineUnderTest(app, "background") as engine:
            _, outcome = await engine.run("leaves", timeout=10)
            assert dict(outcome.state) == {"left": True}
        assert not left[0].done()
        left[0].cancel()

    run(test())


# ---- what cannot be stored ----


def two_steps() -> App:
    app = App()

    @app.graph("line")
    def line() -> Graph:
        return Graph("line").add_transition_chain("A", "B", END)

    @app.task("A")
    async def a(flow: Flow) -> None:
        flow["a"] = flow.get_int("n")

    @app.task("B")
    async def b(flow: Flow) -> None:
        flow["b"] = flow.get_int("n")

    return app


POISON = 77


@pytest.mark.parametrize("poison", [b'{"a": nonsense', b"\xff\xfe", b"{}\x00"])
def test_a_value_that_the_server_refuses_fails_one_flow_of_many(poison: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    original = runs.finish

    def finish(run: Any, effect: Any) -> Any:
        record = original(run, effect)
        if b'"b":77' in record.changes.replace(b" ", b""):
            record.changes = poison
        return record

    monkeypatch.setattr("dwarf.executor.executor.finish", finish)

    async def test() -> None:
        async with EngineUnderTest(two_steps(), "poison") as engine:
            keys = await engine.create_many([("line", {"n": n}) for n in range(200)])
            outcomes = await asyncio.gather(*(engine.wait(key, 60) for key in keys))
            failed = [n for n, outcome in enumerate(outcomes) if outcome.status is Status.FAILED]
            assert failed == [POISON]
            assert "cannot be stored" in outcomes[POISON].error
            assert all(outcome.status is Status.COMPLETED for n, outcome in enumerate(outcomes) if n != POISON)
            assert engine.counters(1).poisoned == 1
            assert engine.counters(1).write_failed == 0
            assert broken(engine.dsn) == []

    run(test())


def test_a_batch_that_the_server_never_takes_does_not_hold_up_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is too much for the server's memory: the connection is good, the statement is not."""
    original = Store.record
    refused: Counter[str] = Counter()

    async def record(self: Store, lane: Any, batch: Any, *, now: Any = None) -> Any:
        if any(b'"a":77' in entry.record.changes.replace(b" ", b"") for entry in batch.entries):
            refused["times"] += 1
            raise psycopg.errors.OutOfMemory("out of memory")
        return await original(self, lane, batch, now=now)

    monkeypatch.setattr(Store, "record", record)

    async def test() -> None:
        async with EngineUnderTest(two_steps(), "never_taken", grace=0) as engine:
            keys = await engine.create_many([("line", {"n": n}) for n in range(200)])
            others = [key for n, key in enumerate(keys) if n != POISON]
            outcomes = await asyncio.gather(*(engine.wait(key, 60) for key in others))
            assert all(outcome.status is Status.COMPLETED for outcome in outcomes)
            before = refused["times"]
            await asyncio.sleep(0.5)
            assert refused["times"] - before < 20, "it is tried without a pause"
            monkeypatch.setattr(Store, "record", original)
            assert (await engine.wait(keys[POISON], 30)).status is Status.COMPLETED
            assert engine.counters(1).write_failed == 0

    run(test())


def test_a_poisonous_value_and_one_that_is_too_much_in_one_batch_harm_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that could be recorded is acknowledged: none is taken for another's, and none runs again."""
    original, finish_step = Store.record, runs.finish
    ran: Counter[int] = Counter()

    def finish(run: Any, effect: Any) -> Any:
        record = finish_step(run, effect)
        if b'"b":' in record.changes.replace(b" ", b""):
            ran[run.flow["b"]] += 1
        if b'"b":77' in record.changes.replace(b" ", b""):
            record.changes = b"{}\0"
        return record

    async def record(self: Store, lane: Any, batch: Any, *, now: Any = None) -> Any:
        if any(b'"b":150' in entry.record.changes.replace(b" ", b"") for entry in batch.entries) and not healed:
            raise psycopg.errors.OutOfMemory("out of memory")
        return await original(self, lane, batch, now=now)

    healed: list[bool] = []
    monkeypatch.setattr("dwarf.executor.executor.finish", finish)
    monkeypatch.setattr(Store, "record", record)

    async def test() -> None:
        async with EngineUnderTest(two_steps(), "poison_and_more") as engine:
            keys = await engine.create_many([("line", {"n": n}) for n in range(200)])
            outcomes = await asyncio.gather(*(engine.wait(key, 60) for n, key in enumerate(keys) if n != 150))
            assert [n for n, outcome in enumerate(outcomes) if outcome.status is Status.FAILED] == [POISON]
            healed.append(True)
            assert (await engine.wait(keys[150], 60)).status is Status.COMPLETED
            assert set(ran.values()) == {1}
            assert engine.counters(1).missed == 0
            assert broken(engine.dsn) == []

    run(test())


def test_a_defect_in_deciding_fails_the_step_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    original = decide

    def defective(graph: Any, step: Any, effect: Any) -> Any:
        if step.task == "B" and step.input.state["n"] == POISON:
            raise ZeroDivisionError("a defect")
        return original(graph, step, effect)

    monkeypatch.setattr("dwarf.executor.runs.decide", defective)

    async def test() -> None:
        async with EngineUnderTest(two_steps(), "defect") as engine:
            outcomes = await asyncio.gather(*(engine.run("line", {"n": n}, timeout=30) for n in range(70, 90)))
            failed = [outcome for _, outcome in outcomes if outcome.status is Status.FAILED]
            assert len(failed) == 1
            assert "a defect" in failed[0].error
            assert engine._embedded[1].sessions_lost == 0

    run(test())


def test_a_graph_that_this_version_cannot_read_fails_its_flows_and_not_the_engine() -> None:
    """Such as one that a newer version has stored."""

    async def test() -> None:
        async with EngineUnderTest(two_steps(), "unreadable") as engine:
            with psycopg.connect(engine.dsn, autocommit=True) as connection:
                connection.execute("update dwarf.graphs set definition = '[1]' where name = 'line'")
            key = await engine.create("line", {"n": 1})
            outcome = await engine.wait(key, 20)
            assert outcome.status is Status.FAILED
            assert engine._embedded[1].sessions_lost == 0

    run(test())


def test_a_damaged_document_fails_its_step_and_holds_up_nobody() -> None:
    """A step that cannot be read does not keep those from running that were claimed along with it."""

    app = two_steps()

    @app.graph("asleep")
    def asleep() -> Graph:
        return Graph("asleep").add_transition_chain("Big", "A", "B", END)

    @app.task("Big")
    async def big(flow: Flow) -> None:
        flow["big"] = "x" * 100_000
        flow.sleep(3600)

    async def test() -> None:
        async with EngineUnderTest(app, "damaged") as engine:
            keys = await engine.create_many([("asleep", {"n": n}) for n in range(20)])
            with psycopg.connect(engine.dsn, autocommit=True) as connection:
                await until(
                    lambda: connection.execute("select count(*) from dwarf.history where state is not null").fetchone() == (20,),
                    "they sleep",
                )
                connection.execute("update dwarf.history set state = '[1]' where flow_id = (select min(flow_id) from dwarf.history)")
            await engine.advance(3601)
            outcomes = await asyncio.gather(*(engine.wait(key, 30) for key in keys))
            assert Counter(outcome.status for outcome in outcomes) == {Status.COMPLETED: 19, Status.FAILED: 1}
            assert engine._embedded[1].sessions_lost == 0

    run(test())


# ---- many at one time ----


def test_no_more_steps_run_than_there_are_workers() -> None:
    app = App()
    running = most = 0

    @single(app, "one")
    async def one(flow: Flow) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async def test() -> None:
        async with EngineUnderTest(app, "workers", workers=2) as engine:

            async def some(first: int) -> None:
                for n in range(25):
                    await engine.run("one", {"n": first + n}, FlowOptions(priority=1 + n % 5), timeout=60)

            await asyncio.gather(*(some(n) for n in range(8)))
            assert most <= 2, f"{most} ran at one time"

    run(test())


def test_caps_are_kept_and_nothing_gets_stuck_under_them() -> None:
    app = App()
    lock = threading.Lock()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def enter(name: str) -> None:
        with lock:
            running[name] += 1
            most[name] = max(most[name], running[name])

    def leave(name: str) -> None:
        with lock:
            running[name] -= 1

    @single(app, "async", concurrency=3)
    async def on_loop(flow: Flow) -> None:
        enter("async")
        await asyncio.sleep(0)
        leave("async")
        if flow.get_int("n") % 7 == 0:
            raise ValueError("no")

    @single(app, "sync", concurrency=2)
    def in_thread(flow: Flow) -> None:
        enter("sync")
        leave("sync")
        if flow.attempt == 0 and flow.get_int("n") % 5 == 0:
            flow.retry(0)

    @single(app, "free")
    def free(flow: Flow) -> None:
        enter("free")
        leave("free")

    async def test() -> None:
        async with EngineUnderTest(app, "caps", threads=4) as engine:
            flows = [(url, {"n": n}) for n in range(200) for url in ("async", "sync", "free")]
            keys = await engine.create_many(flows)
            terminated = keys[1::31]
            ends = await asyncio.gather(*(engine.terminate(key) for key in terminated), return_exceptions=True)
            outcomes = await asyncio.gather(*(engine.wait(key, 60) for key in keys))
            assert all(outcome.status.closed for outcome in outcomes)
            assert sum(outcome.status is Status.TERMINATED for outcome in outcomes) == sum(end is None for end in ends)
            assert most["async"] <= 3
            assert most["sync"] <= 2
            assert most["free"] <= 4
            await until(lambda: engine._embedded[1].dispatcher.running == 0, "nothing is held")
            assert broken(engine.dsn) == []

    run(test())


@pytest.mark.parametrize("count", [5_000 if HEAVY else 1_000])
def test_many_sync_tasks_on_few_threads(count: int) -> None:
    app = App()
    ran: Counter[int] = Counter()

    @single(app, "sync")
    def sync(flow: Flow) -> None:
        ran[flow.get_int("n")] += 1

    async def test() -> None:
        async with EngineUnderTest(app, "threads", threads=4) as engine:
            keys = await engine.create_many([("sync", {"n": n}) for n in range(count)])
            outcomes = await asyncio.gather(*(engine.wait(key, 60) for key in keys))
            assert all(outcome.status is Status.COMPLETED for outcome in outcomes)
            assert set(ran.values()) == {1}
            assert len(ran) == count

    run(test())


WIDE = Graph("wide").add_transition_for_each("Spread", "Leaf", "xs", "x").add_transition("Leaf", "Join").set_fan_in("Join")
WIDE.add_transition("Join", END).set_reducer("total", "add").set_reducer("joined", "add")
NESTED = Graph("nested").add_transition_for_each("Spread", "Inner", "xs", "x").add_transition_for_each("Inner", "Leaf", "ys", "y")
NESTED.add_transition("Leaf", "Merge").set_fan_in("Merge").add_transition("Merge", "Join").set_fan_in("Join")
NESTED.add_transition("Join", END).set_reducer("total", "add").set_reducer("joined", "add")


@pytest.mark.parametrize(("url", "width", "inner"), [("wide", 50_000 if HEAVY else 3_000, 1), ("nested", 300 if HEAVY else 60, 30)])
def test_a_wide_fan_out_takes_few_commits(url: str, width: int, inner: int) -> None:
    app = App()
    app.add_graph("wide", WIDE)
    app.add_graph("nested", NESTED)
    joined: list[int] = []

    @app.task("Spread")
    async def spread(flow: Flow) -> None:
        flow["xs"] = list(range(flow.get_int("width")))
        flow["ys"] = list(range(inner))

    @app.task("Inner")
    async def inner_task(flow: Flow) -> None:
        pass

    @app.task("Leaf")
    async def leaf(flow: Flow) -> None:
        flow["total"] = 1

    @app.task("Merge")
    async def merge(flow: Flow) -> None:
        flow["joined"] = 1

    @app.task("Join")
    async def join(flow: Flow) -> None:
        joined.append(flow.get_int("total"))

    async def test() -> None:
        async with EngineUnderTest(app, url) as engine:
            _, outcome = await engine.run(url, {"width": width}, timeout=300)
            assert outcome.status is Status.COMPLETED
            assert outcome.state["total"] == width * inner
            assert joined == [width * inner]
            if url == "nested":
                assert outcome.state["joined"] == width
            assert engine.counters(1).missed == 0
            assert engine.counters(1).batches < width * inner / 10
            assert broken(engine.dsn) == []

    run(test(), seconds=400)
