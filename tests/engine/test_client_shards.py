"""Clients and their shards: starting, closing, shards that are down; and the pool under them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from dwarf import DwarfError, FlowKey, FlowOptions, InvalidArgument, NotFound, Shard, Status
from dwarf.client import Client
from dwarf.errors import Conflict, ShardUnavailable
from dwarf.flow import Flow
from dwarf.pool import Pool, Unreached
from dwarf.reads import Reads
from tests.engine.conftest import MakeStage
from tests.engine.stage import Stage, line
from tests.servers import wait_until

NOWHERE = "host=127.0.0.1 port=1 password=hunter2 connect_timeout=2"


def nothing(flow: Flow) -> None:
    pass


LINE = {"line": line("A", "B")}
TASKS = {"A": nothing, "B": nothing}


# Starting and closing


@pytest.mark.row("J1")
def test_what_is_no_configuration_is_refused() -> None:
    shard = Shard(1, "host=a")
    wrong: list[Any] = [[], [shard, Shard(1, "host=b")], [shard, Shard(2, "host=a")], ["host=a"], [shard, None]]
    for shards in wrong:
        with pytest.raises(InvalidArgument):
            Client(shards)
    assert Client([Shard(99, "host=b"), shard])
    for settings in ({"max_priority": 0}, {"max_priority": 101}, {"time_budget": -1}, {"connections": 0}, {"wait_ceiling": "x"}):
        with pytest.raises(InvalidArgument, match=next(iter(settings))):
            Client([shard], **settings)


def test_a_connection_string_is_never_shown(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    client = Client([Shard(1, "host=a password=hunter2 and some more")])
    with pytest.raises(InvalidArgument, match="shard 1") as caught:
        on.do(client.start())
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(client)


@pytest.mark.row("J2")
def test_a_shard_that_cannot_be_opened_fails_the_start(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dwarf.shard_client.START_PATIENCE_SECONDS", 0.1)
    on = stage(LINE, TASKS)
    client = Client([on.shards[0], Shard(7, NOWHERE)], application="to be closed")
    with pytest.raises(ShardUnavailable, match="shard 7") as caught:
        on.do(client.start())
    assert caught.value.status == 503
    assert "hunter2" not in str(caught.value)
    on.turn()
    left = "select 1 from pg_stat_activity where application_name = 'to be closed'"
    wait_until(lambda: on.player.all(left) == [], "the server has seen that they are closed")
    with pytest.raises(ShardUnavailable):
        on.do(client.create("line"))


def test_a_database_without_the_schema_says_what_to_do(stage: MakeStage, empty_database: str) -> None:
    on = stage(LINE, TASKS)
    with pytest.raises(DwarfError, match="dwarf migrate"):
        on.do(Client([Shard(1, empty_database)]).start())


def test_a_database_of_another_shard_is_refused(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    on.player.do(on.player.store.put_settings({"shard_index": 2}))
    with pytest.raises(InvalidArgument, match="shard 1 is that of shard 2"):
        on.do(Client(on.shards).start())


def test_starting_and_closing_twice_is_fine(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)

    async def life() -> None:
        client = Client(on.shards, host=on.app)
        await client.close()
        with pytest.raises(ShardUnavailable, match="not open"):
            await client.create("line")
        async with client:
            await client.start()
            key = await client.create("line")
        await client.close()
        for call in (
            client.create("line"),
            client.wait(key),
            client.snapshot(key),
            client.list_open(),
            client.shard_info(),
            client.resume(key),
        ):
            with pytest.raises(ShardUnavailable, match="not open"):
                await call
        async with client:
            assert (await client.snapshot(key)).status is Status.RUNNING
            await asyncio.gather(*(client.snapshot(key) for _ in range(20)))
        assert "closed" in repr(client)

    on.do(life())
    on.turn()
    count = "select count(*) as n from pg_stat_activity where application_name = 'dwarf client'"
    wait_until(lambda: on.player.one(count).n == 1, "the server has seen that the others are closed")


@pytest.mark.row("J7")
def test_keys_of_a_shard_that_is_not_configured(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=2)
    keys = on.do(on.client.create_many([("line",)] * 20))
    gone = next(key for key in keys if FlowKey.parse(key).shard == 2)
    client = on.open(host=on.app, shards=on.shards[:1])
    for read in (
        client.snapshot,
        client.wait,
        client.history,
        client.fingerprint,
        client.cancel,
        client.terminate,
        client.resume,
        client.delete,
    ):
        with pytest.raises(NotFound) as caught:
            on.do(read(gone))
        assert FlowKey.parse(gone).token not in str(caught.value)


# Shards that are down


class Flaky:
    """Takes the connections of one shard of a client away, and gives them back."""

    def __init__(self, on: Stage, shard: int) -> None:
        self.pool = on.client._shards[shard].pool
        self.dsn = self.pool._conninfo
        self.on = on

    def go(self) -> None:
        for connection in list(self.pool._all):
            connection.close()
        self.pool._conninfo = NOWHERE

    def come(self) -> None:
        self.pool._conninfo = self.dsn


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dwarf.client.ELSEWHERE_PATIENCE_SECONDS", "dwarf.client.PATIENCE_SECONDS", "dwarf.shard_client.LIST_PATIENCE_SECONDS"):
        monkeypatch.setattr(name, 0.05)


@pytest.mark.usefixtures("impatient")
def test_new_flows_avoid_a_shard_that_cannot_be_reached(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=2)
    thread = next(key for key in on.do(on.client.create_many([("line",)] * 20)) if FlowKey.parse(key).shard == 2)
    flaky = Flaky(on, 2)
    flaky.go()
    keys = on.do(on.client.create_many([("line", {"n": n}) for n in range(30)]))
    assert {FlowKey.parse(key).shard for key in keys} == {1}
    assert [on.row(key).input["n"] for key in keys] == list(range(30))
    assert {FlowKey.parse(on.do(on.client.create("line"))).shard for _ in range(10)} == {1}
    with pytest.raises(ShardUnavailable, match="shard 2"):
        on.do(on.client.create("line", None, FlowOptions(thread_key=thread)))
    flaky.come()
    assert on.do(on.client.snapshot(thread)).status is Status.RUNNING
    assert {FlowKey.parse(key).shard for key in on.do(on.client.create_many([("line",)] * 30))} == {1, 2}


@pytest.mark.usefixtures("impatient")
def test_a_key_that_may_exist_on_a_shard_out_of_reach_is_not_used_elsewhere(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(LINE, TASKS, shards=2)
    monkeypatch.setattr(on.client._shards[2].pool.run.__func__, "__kwdefaults__", {"is_repeatable": True, "patience": 0.05})  # type: ignore[attr-defined]
    Flaky(on, 2).go()
    for n in range(6):
        with pytest.raises(ShardUnavailable):
            on.do(on.client.create("line", None, FlowOptions(idempotency_key=str(n))))
    assert on.players[0].all("select 1 from dwarf.live") == []


@pytest.mark.row("J8")
@pytest.mark.usefixtures("impatient")
def test_shard_info_never_fails(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=3)
    client = on.open(host=on.app, shards=[*on.shards[:2], msgspec.structs.replace(on.shards[2], cordoned=True)])
    on.do(client.create_many([("line",)] * 40))
    on.players[0].claim(1)
    one, two, three = on.do(client.shard_info())
    assert [info.index for info in (one, two, three)] == [1, 2, 3]
    assert {info.status for info in (one, two, three)} == {"ok"}
    assert one.flows_open + two.flows_open == 40
    assert one.steps_pending + one.steps_running == one.flows_open
    assert one.steps_running > 0
    assert (two.steps_pending, two.steps_running) == (two.flows_open, 0)
    assert two.oldest_pending_seconds >= 0
    assert (three.flows_open, three.cordoned, two.cordoned, three.oldest_pending_seconds) == (0, True, False, 0)
    assert all(
        info.latency_ms is not None and info.latency_ms > 0 and info.error == "" and int(info.version) >= 5 for info in (one, two, three)
    )
    assert one.dispatchers == 0
    on.players[0].do(on.players[0].store.renew_session(on.players[0].session, life_ms=60_000, is_dispatcher=True))
    assert on.do(client.shard_info())[0].dispatchers == 1
    pool = client._shards[2].pool
    for connection in list(pool._all):
        connection.close()
    pool._conninfo = NOWHERE
    one, two, three = on.do(client.shard_info())
    assert [(info.index, info.status) for info in (one, two, three)] == [(1, "ok"), (2, "down"), (3, "ok")]
    assert "shard 2" in two.error
    assert "hunter2" not in two.error
    assert (two.latency_ms, two.flows_open, two.version) == (None, 0, "")


def test_a_create_whose_answer_is_lost_is_never_sent_twice(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(LINE, TASKS, shards=2)
    on.do(on.client.create_many([("line",)] * 20))
    before = on.count()
    create = Reads.create_flows
    calls = []

    async def cut(self: Reads, *args: Any, **named: Any) -> Any:
        calls.append(1)
        await create(self, *args, **named)
        self._connection.close()
        raise errors.AdminShutdown("the server goes away")

    monkeypatch.setattr(Reads, "create_flows", cut)
    with pytest.raises(ShardUnavailable, match="may have been done"):
        on.do(on.client.create("line"))
    assert len(calls) == 1
    assert on.count() == before + 1


def test_verbs_whose_answer_is_lost_are_not_sent_twice(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(LINE, TASKS)
    key = on.do(on.client.create("line"))
    terminate = Reads.terminate_flow

    async def cut(self: Reads, *args: Any, **named: Any) -> Any:
        await terminate(self, *args, **named)
        self._connection.close()
        raise errors.AdminShutdown("the server goes away")

    monkeypatch.setattr(Reads, "terminate_flow", cut)
    with pytest.raises(ShardUnavailable):
        on.do(on.client.terminate(key, "x"))
    assert on.do(on.client.snapshot(key)).reason == "x"
    with pytest.raises(Conflict):
        on.do(on.client.terminate(key, "x"))


# The pool


@pytest.fixture
def pool(stage: MakeStage) -> tuple[Stage, Pool]:
    on = stage(LINE, TASKS)
    made = on.client._shards[1].pool
    made.close()
    fresh = Pool(on.shards[0].dsn, size=2, application="pool")
    on.client._shards[1].pool = fresh
    return on, fresh


def test_a_pool_opens_no_more_than_it_may_and_serves_in_order(pool: tuple[Stage, Pool]) -> None:
    on, lent = pool
    order: list[int] = []

    async def work(number: int) -> int:
        async def inside(reads: Reads) -> int:
            order.append(number)
            await asyncio.sleep(0)
            return await reads.now()

        return await lent.run(inside)

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(work(number) for number in range(40)))

    assert len(on.do(all_of_them())) == 40
    order.clear()
    on.do(all_of_them())
    assert order == list(range(40))
    assert lent.connections_open == 2


def test_waiters_that_are_cancelled_lose_nothing(pool: tuple[Stage, Pool]) -> None:
    on, lent = pool

    async def scene() -> int:
        gate, at_work = asyncio.Event(), asyncio.Barrier(3)

        async def held(reads: Reads) -> None:
            await at_work.wait()
            await gate.wait()

        holders = [asyncio.create_task(lent.run(held)) for _ in range(2)]
        await at_work.wait()
        waiters = [asyncio.create_task(lent.run(Reads.now)) for _ in range(10)]
        await asyncio.sleep(0)
        for waiter in waiters[:5]:
            waiter.cancel()
        gate.set()
        await asyncio.sleep(0)
        waiters[5].cancel()  # it may have its turn already
        await asyncio.gather(*holders)
        done = await asyncio.gather(*waiters[6:])
        again = await asyncio.gather(*(lent.run(Reads.now) for _ in range(10)))
        return len(done) + len(again)

    assert on.do(scene()) == 14
    assert lent._turns_taken == 0
    assert not lent._waiters


def test_work_that_is_cancelled_leaves_its_connection_to_others(pool: tuple[Stage, Pool]) -> None:
    on, lent = pool

    async def scene() -> None:
        at_work = asyncio.Barrier(3)

        async def slow(reads: Reads) -> None:
            await at_work.wait()
            await reads._connection.execute(b"select pg_sleep(0.2)")

        tasks = [asyncio.create_task(lent.run(slow)) for _ in range(2)]
        await at_work.wait()
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(lent.run(Reads.now) for _ in range(6)))

    on.do(scene())
    assert lent.connections_open == 2


def test_contention_is_tried_again_and_given_up_in_the_end(pool: tuple[Stage, Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dwarf.pool.CONTENTION_PAUSE_SECONDS", 0)
    on, lent = pool
    tries: list[int] = []

    async def contended(reads: Reads) -> int:
        tries.append(1)
        if len(tries) < wins_at:
            raise errors.DeadlockDetected("deadlock")
        return await reads.now()

    wins_at = 8
    for is_repeatable in (True, False):
        tries.clear()
        assert on.do(lent.run(contended, is_repeatable=is_repeatable))
        assert len(tries) == 8
    wins_at = 9
    tries.clear()
    with pytest.raises(ShardUnavailable, match="busy"):
        on.do(lent.run(contended))
    assert len(tries) == 8


def test_lost_connections_are_replaced_for_what_may_be_repeated(pool: tuple[Stage, Pool]) -> None:
    on, lent = pool
    tries: list[int] = []

    async def lost(reads: Reads) -> int:
        tries.append(1)
        if len(tries) < 3:
            reads._connection.close()
        return await reads.now()

    assert on.do(lent.run(lost))
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(ShardUnavailable) as caught:
        on.do(lent.run(lost, is_repeatable=False))
    assert not isinstance(caught.value, Unreached)
    assert len(tries) == 1
    assert on.do(lent.run(Reads.now))


def test_refusals_and_defects_are_raised_as_what_they_are(pool: tuple[Stage, Pool]) -> None:
    on, lent = pool

    async def refused(reads: Reads) -> None:
        await reads._connection.execute(b"select dwarf.cancel_flow('1-2-3-0123456789abcdef', '')")

    async def wrong(reads: Reads) -> None:
        await reads._connection.execute(b"select 1 / 0")

    with pytest.raises(NotFound, match="there is no flow 1-2-3"):
        on.do(lent.run(refused))
    with pytest.raises(psycopg.errors.DivisionByZero):
        on.do(lent.run(wrong))
    assert lent._turns_taken == 0


def test_patience_ends_for_those_in_the_queue_too(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    nowhere = Pool(NOWHERE, size=1, name="shard 9")

    async def scene() -> list[Any]:
        return await asyncio.gather(*(nowhere.run(Reads.now, patience=0.1) for _ in range(20)), return_exceptions=True)

    results = on.do(scene())
    assert all(isinstance(result, Unreached) and "shard 9" in str(result) for result in results)
    assert nowhere._turns_taken == 0
    nowhere.close()
    with pytest.raises(Unreached, match="closed"):
        on.do(nowhere.run(Reads.now))


def test_closing_a_pool_ends_what_is_under_way(pool: tuple[Stage, Pool]) -> None:
    on, lent = pool

    async def scene() -> list[Any]:
        at_work = asyncio.Barrier(3)

        async def slow(reads: Reads) -> None:
            await at_work.wait()
            await reads._connection.execute(b"select pg_sleep(60)")

        tasks = [asyncio.create_task(lent.run(slow)) for _ in range(5)]
        await at_work.wait()
        await asyncio.sleep(0)
        lent.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(result, ShardUnavailable) for result in on.do(scene()))


def test_the_dsn_may_name_an_application(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    shard = Shard(1, make_conninfo(on.shards[0].dsn, application_name="mine"))
    on.open(host=on.app, shards=[shard])
    assert on.player.all("select 1 from pg_stat_activity where application_name = 'mine'")
