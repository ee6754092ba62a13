"""Rare interleavings, one by one: what is taken away, lost or late at the worst moment costs no slot, no step and no stranger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from dwarf import END, App, Flow, FlowOptions, Graph, ShardUnavailable, Status, faults
from dwarf.channel import MemoryEnd, memory_pair
from dwarf.dispatch import ledger
from dwarf.dispatch.dispatcher import Dispatcher
from dwarf.dispatch.session import Terms
from dwarf.executor.executor import Executor
from dwarf.keys import FlowKey
from dwarf.lanes import LaneWriter
from dwarf.new_flow import freeze
from dwarf.status import StepStatus
from dwarf.store import Store
from dwarf.testing import EngineUnderTest
from dwarf.waits import Found, WaitHub
from dwarf.wire import Assign, Assignment, Freed, GraphForm, Reports, Withdraw
from tests.engine.rows_support import Gate, Make, line, make_app, on_loop, until

URLS = ("async", "capped", "thread", "capped thread")


class Play:
    """An executor at the other end of a channel, whose dispatcher is the test. Every task is held at its gate, or ends at once."""

    def __init__(self, **settings: Any) -> None:
        self.gate = Gate()
        self.app = App()
        self.app.task("async")(self.gate.__call__)
        self.app.task("capped", concurrency=1)(self.gate.__call__)
        self.app.task("thread")(lambda flow: None)
        self.app.task("capped thread", concurrency=1)(lambda flow: None)
        frozen = {url: freeze(url, Graph(url).add_transition(url, END)) for url in URLS}
        self.forms = [GraphForm(nth, each.hash, each.name, each.entry_task, each.definition) for nth, each in enumerate(frozen.values())]
        self.near: MemoryEnd[Any, Any]
        self.near, far = memory_pair()
        self.executor = Executor(self.app, far, **{"shard": 1, "slots": 1000, "threads": 32, **settings})
        self.running = asyncio.get_running_loop().create_task(self.executor.run())
        self.freed: list[int] = []
        self.reported: dict[int, StepStatus] = {}

    def send(self, url: str, *tickets: int, baggage: bytes | None = None) -> None:
        steps = [
            Assignment(
                ticket, ticket, 0, 1, 1, url, 0, 0, URLS.index(url), [(0, 0)], [0], None, [], False, 0, None, None, None, "",
                "0" * 16, url, 3, "", 60_000, 0, 0, 0, baggage,
            )
            for ticket in tickets
        ]  # fmt: skip
        self.near.send(Assign(steps, [b"{}"], self.forms))

    async def heard(self) -> None:
        """Take in the next messages."""
        for message in await self.near.receive():
            match message:
                case Freed(tickets=tickets):
                    self.freed += tickets
                case Reports(items=items):
                    self.reported.update({each.ticket: each.record.status for each in items})

    async def hear(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                await self.heard()

    async def end(self) -> None:
        self.near.close()
        await self.running


@pytest.mark.parametrize("url", ["async", "capped"])
@on_loop
async def test_a_step_that_is_withdrawn_before_its_task_has_begun_frees_its_slot(url: str) -> None:
    play = Play()
    play.send(url, 1)
    play.near.send(Withdraw([1]))
    await play.hear(lambda: play.freed == [1])
    play.send(url, 2)
    await play.gate.reached()
    await play.end()


@on_loop
async def test_a_step_that_cannot_be_started_takes_no_thread_with_it() -> None:
    play = Play(threads=1)
    play.send("thread", 1, 2)
    play.send("thread", 3, 4, baggage=b"[1]")
    play.send("thread", 5)
    await play.hear(lambda: len(play.reported) == 5)
    assert {ticket for ticket, status in play.reported.items() if status is StepStatus.COMPLETED} == {1, 2, 5}
    await play.end()


@on_loop
async def test_those_who_wait_for_a_thread_get_it_in_turn() -> None:
    """A task with a cap is not passed over for as long as there are others."""
    play = Play(threads=1)
    play.send("thread", *range(1, 4))
    play.send("capped thread", 100)
    for ticket in range(101, 400):
        before = len(play.reported)
        await play.hear(lambda before=before: len(play.reported) > before)  # type: ignore[misc]
        if 100 in play.reported:
            break
        play.send("thread", ticket)
    assert 100 in play.reported
    await play.end()


# ---- signals ----


class Told:
    """A task that runs until it is cancelled."""

    def __init__(self) -> None:
        self.began = self.told = 0

    async def __call__(self, flow: Flow) -> None:
        self.began += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.told += 1
            raise


def spoil(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., Awaitable[Any]]) -> None:
    """Let `change(original, self, *arguments)` do what a method does."""
    original = getattr(owner, name)

    async def call(self: Any, *args: Any, **named: Any) -> Any:
        return await change(original, self, *args, **named)

    monkeypatch.setattr(owner, name, call)


@on_loop
async def test_a_task_whose_signal_was_lost_is_stopped_all_the_same(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Told()
    lost: list[Any] = []

    async def lose(original: Any, store: Store, *args: Any) -> Any:
        signals = await original(store, *args)
        if not lost:
            lost.extend(signals)
            store._connection.close()
            raise psycopg.OperationalError("the answer is lost")
        return signals

    async with dwarf_engine(make_app({"line": line("A")}, {"A": task}), session_seconds=1) as engine:
        key = await engine.create("line")
        await until(lambda: task.began)
        spoil(monkeypatch, Store, "take_signals", lose)
        await engine.terminate(key)
        await until(lambda: task.told, "it is told")
        assert len(lost) == 1
        await until(lambda: not engine._embedded[1].dispatcher.running)


@pytest.mark.parametrize("verb", ["terminate", "cancel"])
@on_loop
async def test_a_successor_that_is_taken_away_before_its_record_is_known_does_not_start(
    verb: str, dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Told()
    committed, answered, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(original: Any, *args: Any) -> Any:
        recorded = await original(*args)
        committed.set()
        await answered.wait()
        return recorded

    async def tell(original: Any, *args: Any) -> Any:
        signals = await original(*args)
        taken.set()
        return signals

    async with dwarf_engine(make_app({"line": line("A", "B")}, {"B": task})) as engine:
        spoil(monkeypatch, LaneWriter, "_record", late)
        spoil(monkeypatch, Store, "take_signals", tell)
        key = await engine.create("line")
        await committed.wait()
        await getattr(engine, verb)(key)
        await taken.wait()
        await asyncio.sleep(0)
        answered.set()
        assert (await engine.wait(key, 20)).status.closed
        await until(lambda: not engine._embedded[1].dispatcher.running)
        assert task.began == 0


@on_loop
async def test_a_flow_that_is_terminated_while_the_engine_closes_is_not_waited_for(dwarf_engine: Make) -> None:
    task = Told()
    engine = dwarf_engine(make_app({"line": line("A")}, {"A": task}), grace=100)
    await engine.start()
    key = await engine.create("line")
    await until(lambda: task.began)
    closing = asyncio.create_task(engine.close())
    await until(lambda: engine._embedded[1].dispatcher._draining)
    await engine.terminate(key)
    async with asyncio.timeout(20):
        await closing
    assert task.told == 1


# ---- what is claimed, loaded and recorded ----


@on_loop
async def test_rows_whose_claim_goes_on_are_no_strays(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement of a claim has brought rows, and the next one takes longer than it takes to look for strays twice."""
    looks: list[Any] = []
    claims: list[Any] = []

    async def look(original: Any, *args: Any) -> Any:
        owned = await original(*args)
        if owned:
            looks.append(owned)
        return owned

    async def claim(original: Any, *args: Any, **named: Any) -> Any:
        claims.append(args)
        if len(claims) == 2:
            await until(lambda: len(looks) >= 3)
        return await original(*args, **named)

    app = make_app({"line": line("A")})
    async with dwarf_engine(app, workers=0) as creator:
        keys = [await creator.create("line", options=FlowOptions(priority=band)) for band in (1, 2)]
        spoil(monkeypatch, Store, "claim", claim)
        spoil(monkeypatch, Store, "owned", look)
        async with dwarf_engine(app, dsns=creator.dsns, session_seconds=1) as engine:
            for key in keys:
                assert (await engine.wait(key, 20)).status is Status.COMPLETED
            assert engine.counters(1).released == 0


@on_loop
async def test_a_document_that_the_server_cannot_read_holds_up_nobody_else(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def big(flow: Flow) -> None:
        flow["big"] = "x" * 100_000
        flow.sleep(3600)

    async with dwarf_engine(make_app({"line": line("Big", "After")}, {"Big": big})) as engine:
        keys = await engine.create_many([("line",)] * 5)
        with psycopg.connect(engine.dsn, autocommit=True) as connection:
            await until(lambda: connection.execute("select count(*) from dwarf.history").fetchone() == (5,))
        damaged = FlowKey.parse(keys[2]).flow_id

        async def load(original: Any, store: Store, wanted: Sequence[tuple[int, ...]]) -> Any:
            if any(each[0] == damaged for each in wanted):
                raise psycopg.errors.DataCorrupted("invalid page in block 7")
            return await original(store, wanted)

        spoil(monkeypatch, Store, "load_documents", load)
        await engine.advance(3601)
        outcomes = [await engine.wait(key, 20) for key in keys]
        assert [outcome.status is Status.COMPLETED for outcome in outcomes] == [True, True, False, True, True]
        assert "invalid page" in outcomes[2].error


@on_loop
async def test_a_row_that_was_named_twice_is_claimed_once(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"line": line("A")}), workers=0) as engine:
        key = await engine.create("line")
        dispatcher = Dispatcher(engine.dsn, Terms(engine_id=1), lambda stopped: None)
        await dispatcher.start()
        near: MemoryEnd[Any, Any] = memory_pair()[0]
        seat = ledger.Seat(near)
        seat.slots = 10
        dispatcher._ledger.seats.append(seat)
        hint = (FlowKey.parse(key).flow_id, 0)
        dispatcher._hints = [hint, hint]
        rows: list[Any] = []
        await dispatcher.control.run(lambda store: dispatcher._claim(store, rows))
        assert [(row.flow_id, row.branch) for row in rows] == [hint]
        await dispatcher.close()


@on_loop
async def test_no_more_is_claimed_while_too_much_waits_to_be_recorded(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RECORDS_MAX", 20)
    answered = asyncio.Event()

    async def late(original: Any, *args: Any) -> Any:
        await answered.wait()
        return await original(*args)

    async with dwarf_engine(make_app({"line": line("A")}), workers=10) as engine:
        spoil(monkeypatch, LaneWriter, "_record", late)
        keys = await engine.create_many([("line",)] * 100)
        dispatcher = engine._embedded[1].dispatcher
        await until(lambda: dispatcher.running > 20)
        claims = engine.counters(1).claimed
        looks: list[object] = []
        with faults.armed("claim.sent", looks.append):
            await until(lambda: len(looks) > 5)
        assert engine.counters(1).claimed == claims <= 20 + 2 * 10
        answered.set()
        for key in keys:
            assert (await engine.wait(key, 20)).status is Status.COMPLETED
        assert dispatcher._ledger._recording == 0
        assert dispatcher._ledger.free == 10


@on_loop
async def test_an_executor_dies_while_its_successor_is_recorded(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, answered = asyncio.Event(), asyncio.Event()

    async def late(original: Any, *args: Any) -> Any:
        sent.set()
        await answered.wait()
        return await original(*args)

    app = make_app({"line": line("A", "B")})
    async with dwarf_engine(app, workers=0) as engine, asyncio.TaskGroup() as group:

        def add() -> MemoryEnd[Any, Any]:
            near: MemoryEnd[Any, Any]
            near, far = memory_pair()
            group.create_task(Executor(app, far, shard=1, slots=10, threads=2).run())
            group.create_task(engine._embedded[1].dispatcher.serve(near))
            return near

        spoil(monkeypatch, LaneWriter, "_record", late)
        dying = add()
        key = await engine.create("line")
        await sent.wait()
        dying.close()
        await until(lambda: not engine._embedded[1].dispatcher._ledger.seats)
        answered.set()
        last = add()
        assert (await engine.wait(key, 20)).status is Status.COMPLETED
        last.close()


# ---- the end ----


@on_loop
async def test_a_session_that_is_lost_while_the_engine_closes_is_not_followed_by_another(dwarf_engine: Make) -> None:
    gate = Gate()
    engine = dwarf_engine(make_app({"line": line("A")}, {"A": gate}), grace=100, session_seconds=1)
    await engine.start()
    await engine.create("line")
    await gate.reached()
    shard = engine._embedded[1]
    closing = asyncio.create_task(engine.close())
    await until(lambda: shard.dispatcher._draining)
    with psycopg.connect(engine.dsn, autocommit=True) as connection:
        connection.execute("delete from dwarf.peers")
        async with asyncio.timeout(20):
            await closing
        assert connection.execute("select count(*) from dwarf.peers").fetchone() == (0,)
    assert not shard.is_running


@on_loop
async def test_a_hand_back_that_fails_leaves_nothing_running(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> Any:
        raise psycopg.errors.InsufficientPrivilege("for the test")

    gate = Gate()
    engine = dwarf_engine(make_app({"line": line("A")}, {"A": gate}), grace=0)
    await engine.start()
    await engine.create("line")
    await gate.reached()
    shard = engine._embedded[1]
    spoil(monkeypatch, Store, "release", refuse)
    await engine.close()
    assert not shard.is_running
    assert shard._supervisor is None


@on_loop
async def test_a_hand_back_that_fails_is_no_error_that_nobody_hears(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def refuse(*_: Any) -> Any:
        raise ShardUnavailable("for the test")

    async with dwarf_engine(make_app({"line": line("A")})) as engine:
        dispatcher = engine._embedded[1].dispatcher
        spoil(monkeypatch, Store, "release", refuse)
        dispatcher._spawn(dispatcher._release_rows([(1, 0, 1, False)]))
        await until(lambda: not dispatcher._loads)
    assert told == []


# ---- waits ----


@on_loop
async def test_asking_for_a_flow_over_and_over_costs_no_more_than_asking_once() -> None:
    async def look(flow_ids: Sequence[int]) -> Found:
        return dict.fromkeys(flow_ids, False)

    hub = WaitHub(1, look)
    with hub.watching(1) as watch:
        watch()
        for _ in range(50):
            with hub.watching(7) as again:
                again()
                await asyncio.sleep(0.003)
        with hub.watching(7) as again:
            again()
            await until(lambda: sum(len(flow_ids) for *_, flow_ids in hub._plan) == 2)
    await hub.close()


@on_loop
async def test_a_session_that_is_not_renewed_takes_on_nothing_more() -> None:
    async with EngineUnderTest(make_app({"it": line("A")}), "unrenewed", session_seconds=6) as engine:
        session = engine._embedded[1].dispatcher._session
        with psycopg.connect(engine.dsn) as other:
            other.execute("select 1 from dwarf.peers for update")
            await until(lambda: not session.may_take, "its last renewal is half a life ago")
            key = await engine.create("it")
            claims = Counter[str]()
            with faults.armed("claim.sent", lambda _: claims.update(["sent"])):
                await until(lambda: claims["sent"] >= 3, "it goes on looking")
            assert other.execute("select status, owner from dwarf.active").fetchall() == [(1, None)]
        assert (await engine.wait(key, 60)).status is Status.COMPLETED
        assert engine.counters(1).swept == 0
