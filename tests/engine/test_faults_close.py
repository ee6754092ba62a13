"""The end of an engine, in good order and not: what it hands back, what it waits for, and that it always ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dwarf import END, App, Conflict, Flow, Graph, ShardUnavailable, Status, faults
from dwarf.dispatch.session import SessionLost
from dwarf.pool import Unreached
from dwarf.store import Store
from dwarf.testing.databases import create_database, fresh_database, template_database
from dwarf.testing.engine import EngineUnderTest, shared_server
from dwarf.testing.postgres import EMBEDDED, QUICK, Server, find_bindir
from tests.engine.shaky import connections, down, frozen, number, owned
from tests.engine.victims import until
from tests.sql.plays import broken

CLOSE_SECONDS_MAX = 20  # whatever has happened, with a grace of a second


@pytest.fixture(scope="module")
def shaky() -> Iterator[Server]:
    """A server that tests may stop and freeze; each leaves it running."""
    with Server(find_bindir(EMBEDDED), settings=QUICK, in_memory=True) as server:
        yield server


def run(test: Any, *, seconds: float = 90) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await test

    asyncio.run(bounded())


class Work:
    """Flows of three steps, and how often each step ran, by engine."""

    def __init__(self, seconds: float = 0.005) -> None:
        self.ran: Counter[str] = Counter()
        self.seconds = seconds
        self.running = 0
        self.block = threading.Event()

    def app(self) -> App:
        app = App()
        graph = Graph("line").add_transition_chain("A", "B", "C", END)
        app.add_graph("line", graph)
        for name in "ABC":
            app.task(name)(self.step)
        for name, task in (("stubborn", self.stubborn), ("thread", self.thread), ("sleeper", self.sleeper)):
            app.task(name)(task)
            app.add_graph(name, Graph(name).add_transition(name, END))
        return app

    async def step(self, flow: Flow) -> None:
        self.ran[flow.step_key] += 1
        self.running += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1

    async def stubborn(self, flow: Flow) -> None:
        self.ran[flow.step_key] += 1
        while not self.block.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                flow["told"] = True

    async def sleeper(self, flow: Flow) -> None:
        self.ran[flow.step_key] += 1
        await asyncio.sleep(60 if self.ran[flow.step_key] == 1 else 0)

    def thread(self, flow: Flow) -> None:
        self.ran[flow.step_key] += 1
        self.block.wait(60)


async def closed(engine: EngineUnderTest) -> None:
    """Close an engine, which has to come to an end whatever there is."""
    async with asyncio.timeout(CLOSE_SECONDS_MAX):
        await engine.close()


@pytest.mark.row("G21", "G24")
def test_closing_under_load_runs_nothing_twice_and_hands_the_rest_on() -> None:
    work = Work()

    async def test() -> None:
        with fresh_database(shared_server(), "close_under_load") as dsn:
            first = EngineUnderTest(work.app(), "x", dsns=[dsn], workers=50)
            await first.start()
            keys = await first.create_many([("line",)] * 400)
            await until(lambda: sum(work.ran.values()) >= 100, "it runs")
            await closed(first)
            assert work.running == 0
            assert owned(dsn) == 0
            assert connections(dsn) == 0
            assert len(work.ran) < 1_200
            # Its session is 30 s long: what it left would not be found before.
            async with EngineUnderTest(work.app(), "x", dsns=[dsn]) as second:
                outcomes = await asyncio.gather(*(second.wait(key, 20) for key in keys))
                assert all(outcome.status is Status.COMPLETED for outcome in outcomes)
                assert second.counters(1).swept == 0
            assert len(work.ran) == 1_200
            assert set(work.ran.values()) == {1}
            assert broken(dsn) == []

    run(test())


class Gate:
    """Holds up the answers to statements of a store, after they have been done: until it is opened, or `for_ever` in the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, for_ever: bool = False) -> None:
        self.arrived, self.opened = asyncio.Event(), asyncio.Event()
        self.for_ever = for_ever
        for name in names:
            monkeypatch.setattr(Store, name, self._held_up(getattr(Store, name)))

    def _held_up(self, original: Any) -> Any:
        async def call(store: Store, *args: Any, **named: Any) -> Any:
            found = await original(store, *args, **named)
            if found:
                self.arrived.set()
                if self.for_ever:
                    await store._connection.execute(b"select pg_sleep(3600)")
                await self.opened.wait()
            return found

        return call


def test_a_claim_that_is_under_way_when_it_closes_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()

    async def test() -> None:
        with fresh_database(shared_server(), "claim_under_way") as dsn:
            async with EngineUnderTest(work.app(), "x", dsns=[dsn], workers=0) as creator:
                await creator.create_many([("line",)] * 3)
            engine = EngineUnderTest(work.app(), "x", dsns=[dsn])
            gate = Gate(monkeypatch, "claim")
            await engine.start()
            await gate.arrived.wait()
            closing = asyncio.create_task(engine.close())
            await until(lambda: engine._embedded[1].dispatcher._draining, "it is closing")
            gate.opened.set()
            await closing
            assert owned(dsn) == 0
            assert work.ran == {}

    run(test())


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_create_that_is_under_way_when_it_closes_is_answered(monkeypatch: pytest.MonkeyPatch, is_answered: bool) -> None:
    """With the key, or else with the word that the flow may exist; never with a cancellation that its caller did not ask for."""
    work = Work()

    async def test() -> None:
        with fresh_database(shared_server(), "create_under_way") as dsn:
            engine = EngineUnderTest(work.app(), "x", dsns=[dsn], grace=10 if is_answered else 0.2)
            await engine.start()
            gate = Gate(monkeypatch, "create_flows", for_ever=not is_answered)
            creates = [asyncio.create_task(engine.create("line")) for _ in range(2)]
            await gate.arrived.wait()
            creates.append(asyncio.create_task(engine.create("line")))
            closing = asyncio.create_task(engine.close())
            await until(lambda: engine._embedded[1].dispatcher._draining, "it is closing")
            if is_answered:
                gate.opened.set()
            await closing
            made = await asyncio.wait_for(asyncio.gather(*creates, return_exceptions=True), 10)
            if is_answered:
                assert isinstance(made[0], str), made  # it was sent; the others may not have been
                assert owned(dsn) == 0
            else:
                assert not isinstance(made[0], Unreached), "it was sent, and must not be tried elsewhere"
            assert all(isinstance(each, str | ShardUnavailable) for each in made), made

    run(test())


@pytest.mark.parametrize("nth", range(4))
def test_whatever_is_under_way_when_it_closes_is_not_left_behind(nth: int) -> None:
    """Claims, creates and hand-backs that have been sent when the engine closes."""
    work = Work(seconds=0)

    async def test() -> None:
        with fresh_database(shared_server(), "under_way") as dsn:
            engine = EngineUnderTest(work.app(), "x", dsns=[dsn], workers=7, threads=2)
            await engine.start()
            made: list[str] = []
            refused = 0

            async def create() -> None:
                nonlocal refused
                while True:
                    try:
                        made.append(await engine.create("line"))
                    except ShardUnavailable:
                        refused += 1
                        return

            creators = [asyncio.create_task(create()) for _ in range(10)]
            await until(lambda: len(made) > 20 + 13 * nth, "flows are created")
            await closed(engine)
            ended = await asyncio.wait_for(asyncio.gather(*creators, return_exceptions=True), 10)
            assert ended == [None] * 10, "a creator was told something else than that the shard is unavailable"
            assert owned(dsn) == 0
            async with EngineUnderTest(work.app(), "x", dsns=[dsn]) as second:
                for key in made:
                    assert (await second.wait(key, 20)).status is Status.COMPLETED
            assert set(work.ran.values()) == {1}
            assert broken(dsn) == []

    run(test())


@pytest.mark.row("G21")
def test_what_outlasts_the_grace_is_handed_back_at_once() -> None:
    work = Work()

    async def test() -> None:
        with fresh_database(shared_server(), "outlasts") as dsn:
            first = EngineUnderTest(work.app(), "x", dsns=[dsn], grace=0.1)
            await first.start()
            keys = await first.create_many([("sleeper",)] * 5)
            await until(lambda: len(work.ran) == 5, "they run")
            await closed(first)
            assert owned(dsn) == 0
            async with EngineUnderTest(work.app(), "x", dsns=[dsn]) as second:
                outcomes = await asyncio.gather(*(second.wait(key, 20) for key in keys))
                assert all(outcome.status is Status.COMPLETED for outcome in outcomes)
                assert second.counters(1).swept == 0
                assert [step.attempt for step in await second.history(keys[0])] == [0]
            assert set(work.ran.values()) == {2}

    run(test())


@pytest.mark.parametrize("task", ["stubborn", "thread"])
def test_a_task_that_does_not_end_does_not_keep_an_engine_from_closing(task: str) -> None:
    work = Work()

    async def test() -> None:
        with fresh_database(shared_server(), "does_not_end") as dsn:
            first = EngineUnderTest(work.app(), "x", dsns=[dsn], grace=0.1)
            await first.start()
            key = await first.create(task)
            await until(lambda: work.ran, "it runs")
            await closed(first)
            assert owned(dsn) == 0
            work.block.set()
            async with EngineUnderTest(work.app(), "x", dsns=[dsn]) as second:
                assert (await second.wait(key, 20)).status is Status.COMPLETED
            assert list(work.ran.values()) == [2]

    try:
        run(test())
    finally:
        work.block.set()


@pytest.mark.row("G21")
def test_closing_twice_is_fine_and_starting_twice_is_not() -> None:
    async def test() -> None:
        never = EngineUnderTest(Work().app(), "never")
        await never.close()
        await never.kill()
        never.drop()
        engine = EngineUnderTest(Work().app(), "twice")
        await engine.start()
        with pytest.raises(Conflict):
            await engine.start()
        await asyncio.gather(engine.close(), engine.close())
        await engine.close()
        assert connections(engine.dsn) == 0
        with pytest.raises(Conflict):
            await engine.start()
        engine.drop()

    run(test())


def test_closing_that_is_cancelled_leaves_nothing_open() -> None:
    work = Work()

    async def test() -> None:
        engine = EngineUnderTest(work.app(), "close_cancelled", grace=60)
        await engine.start()
        await engine.create("sleeper")
        await until(lambda: work.ran, "it runs")
        closing = asyncio.create_task(engine.close())
        await until(lambda: engine._embedded[1].dispatcher._draining, "it is closing")
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await closed(engine)
        await until(lambda: connections(engine.dsn) == 0, "no connection is left", seconds=5)
        engine.drop()

    run(test())


def test_an_engine_whose_session_is_lost_while_it_closes_ends_all_the_same() -> None:
    """An error that comes together with the cancellation hides it."""

    def lose(_: object) -> None:
        raise SessionLost("for the test")

    async def test() -> None:
        with fresh_database(shared_server(), "lost_at_close") as dsn:
            for turns in range(12):
                engine = EngineUnderTest(Work().app(), "x", dsns=[dsn], session_seconds=1, migrates=False)
                await engine.start()
                passed = asyncio.Event()

                def lose_and_tell(what: object, passed: asyncio.Event = passed) -> None:
                    passed.set()
                    lose(what)

                with faults.armed("renew.sent", lose_and_tell):
                    await passed.wait()
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    async with asyncio.timeout(CLOSE_SECONDS_MAX):
                        await engine.kill()
            await until(lambda: connections(dsn) == 0, "no connection is left", seconds=5)

    run(test())


@pytest.mark.parametrize(("workers", "count"), [(5, 20), (1_000, 2_500)])
def test_a_batch_of_creates_is_stored_as_a_whole_or_not_at_all(workers: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its flows might have been born claimed, and however many go into one statement."""
    original = Store.create_flows
    sent: list[int] = []

    async def create_flows(self: Store, new: Any, **settings: Any) -> Any:
        sent.append(len(new.tokens))
        if len(sent) > 1:
            raise OSError("for the test")
        return await original(self, new, **settings)

    monkeypatch.setattr(Store, "create_flows", create_flows)

    async def test() -> None:
        async with EngineUnderTest(Work().app(), "whole", workers=workers) as engine:
            keys = await engine.create_many([("line",)] * count)
            assert sent == [count]
            assert len(set(keys)) == count
            with pytest.raises(ShardUnavailable):
                await engine.create_many([("line",)] * count)
            assert number(engine.dsn, "select (select count(*) from dwarf.live) + (select count(*) from dwarf.flows)") == count
            monkeypatch.undo()
            for key in (keys[0], keys[-1]):
                assert (await engine.wait(key, 30)).status is Status.COMPLETED

    run(test())


# ---- starts that fail ----


@pytest.mark.row("J2")
def test_a_start_on_a_dead_shard_leaves_nothing_open_and_may_be_tried_again(shaky: Server) -> None:
    dsn = create_database(shaky, "dead", template=template_database(shaky))

    async def test() -> None:
        with fresh_database(shared_server(), "alive") as alive:
            engine = EngineUnderTest(Work().app(), "x", dsns=[alive, dsn])
            await asyncio.to_thread(shaky.halt)
            try:
                with pytest.raises(ShardUnavailable, match="shard 2"):
                    await engine.start()
                assert connections(alive) == 0
                await engine.close()
            finally:
                await asyncio.to_thread(shaky.resume)
            async with engine:
                assert (await engine.run("line", timeout=20))[1].status is Status.COMPLETED

    run(test())


def test_a_start_whose_second_shard_fails_late_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shard is being dispatched by then: what it has claimed goes back at once."""
    work = Work()

    async def test() -> None:
        from dwarf.dispatch.dispatcher import Dispatcher

        with fresh_database(shared_server(), "one") as one, fresh_database(shared_server(), "two") as two:
            async with EngineUnderTest(work.app(), "x", dsns=[one], workers=0) as creator:
                key = await creator.create("sleeper")
            original = Dispatcher.start
            seen: list[Dispatcher] = []

            async def start(self: Dispatcher, *, patience: float = 10.0) -> None:
                seen.append(self)
                if len(seen) == 2:
                    await until(lambda: work.ran, "the first shard works")
                    raise ShardUnavailable("shard 2: for the test")
                await original(self, patience=patience)

            monkeypatch.setattr(Dispatcher, "start", start)
            engine = EngineUnderTest(work.app(), "x", dsns=[one, two])
            with pytest.raises(ShardUnavailable, match="shard 2"):
                await engine.start()
            monkeypatch.undo()
            await until(lambda: connections(one) == connections(two) == 0, "no connection is left", seconds=5)
            assert owned(one) == 0, "what it had claimed waits for the end of its session"
            async with EngineUnderTest(work.app(), "x", dsns=[one]) as second:
                assert (await second.wait(key, 20)).status is Status.COMPLETED

    run(test())


# ---- with the database out of reach ----


@pytest.mark.parametrize("how", ["down", "frozen"])
def test_closing_while_the_database_is_out_of_reach_ends(shaky: Server, how: str) -> None:
    work = Work()
    dsn = create_database(shaky, "out_of_reach", template=template_database(shaky))

    async def test() -> None:
        engine = EngineUnderTest(work.app(), "x", dsns=[dsn], grace=0.5)
        await engine.start()
        await engine.create_many([("line",)] * 20 + [("sleeper",)])
        await until(lambda: work.ran, "it runs")
        with frozen(shaky) if how == "frozen" else down(shaky):
            await closed(engine)
        await until(lambda: connections(dsn) == 0, "no connection is left", seconds=20)
        assert broken(dsn) == []

    run(test())
