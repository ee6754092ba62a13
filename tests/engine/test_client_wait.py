"""Waiting for flows: who is told what, and when. Nothing here depends on how long anything takes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from dwarf import FlowKey, InvalidArgument, NotFound, Status, TaskError, WaitTimeout
from dwarf.errors import ShardUnavailable
from dwarf.flow import Flow
from dwarf.pool import Unreached
from dwarf.shard_client import ShardClient
from dwarf.waits import Ended
from tests.engine.conftest import MakeStage
from tests.engine.stage import Stage, line


def write(flow: Flow) -> None:
    flow["ran"] = [*flow.get_list("ran"), flow.task_name]


def ask(flow: Flow) -> None:
    flow["asked"] = True
    flow["answer"] = flow.interrupt({"question": "?"})


def fail(flow: Flow) -> None:
    raise TaskError("out of paper")


def call(flow: Flow) -> None:
    flow["got"] = flow.subgraph(flow.get_str("child") or "line", {})


TASKS = {"A": write, "B": write, "C": write, "Q": ask, "F": fail, "P": call}
GRAPHS = {
    "line": line("A", "B"), "long": line("A", "B", "C", name="long"), "ask": line("Q", "B", name="ask"), "fail": line("F", name="fail"),
    "call": line("P", name="call"),
}  # fmt: skip


def step(on: Stage) -> None:
    """Run every due step once."""
    for player in on.players:
        player.record(player.work(player.claim()))


@pytest.mark.row("A24")
def test_a_flow_that_has_stopped_is_answered_without_a_look_at_those_who_wait(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    keys = [on.do(on.client.create(url)) for url in ("line", "fail", "ask")]
    on.play()

    async def never(flow_ids: Any) -> Any:
        raise AssertionError(flow_ids)

    monkeypatch.setattr(on.client.hub(1), "_look", never)
    assert [on.do(on.client.wait(key)).status for key in keys] == [Status.COMPLETED, Status.FAILED, Status.INTERRUPTED]
    assert [on.do(on.client.poll(key, 0)).stopped for key in keys] == [True, True, True]


@pytest.mark.row("A25", "A26", "A27")
@pytest.mark.parametrize("timeout", [0.05, 0, -1])
def test_a_wait_that_is_too_short_times_out_and_a_poll_says_running(stage: MakeStage, timeout: float) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    with pytest.raises(WaitTimeout, match=FlowKey.parse(key).name) as caught:
        on.do(on.client.wait(key, timeout))
    assert (caught.value.status, caught.value.flow_key, isinstance(caught.value, TimeoutError)) == (408, key, True)
    assert FlowKey.parse(key).token not in str(caught.value)
    outcome = on.do(on.client.poll(key, timeout))
    assert (outcome.status, outcome.stopped, dict(outcome.state)) == (Status.RUNNING, False, {})
    on.play()
    assert on.do(on.client.poll(key, timeout)).state == {"ran": ["A", "B"]}


@pytest.mark.row("A27")
def test_a_first_read_that_takes_too_long_is_a_flow_that_runs(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    monkeypatch.setattr("dwarf.shard_client.READ_SECONDS_MIN", 0.0)
    on.do(on.client.poll(key, -1))
    assert not on.do(on.client.poll(key, -1)).stopped
    with pytest.raises(WaitTimeout):
        on.do(on.client.wait(key, -1))


@pytest.mark.row("A22")
def test_arguments_of_a_wait_are_checked(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    for timeout in ("1", float("nan"), True, object()):
        with pytest.raises(InvalidArgument, match="timeout"):
            on.do(on.client.wait(key, timeout))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="timeout"):
            on.do(on.client.run("line", timeout=timeout))  # type: ignore[arg-type]
    assert on.count() == 1
    with pytest.raises(NotFound):
        on.do(on.client.wait(key[:-16] + "f" * 16))
    with pytest.raises(NotFound):
        on.do(on.client.poll(str(FlowKey(7, 1, "0" * 16)), 1))


@pytest.mark.row("A29", "A32")
def test_a_waiter_hears_of_a_stop_that_another_process_committed(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("long", {"ran": ["0"]}))
    waiting = [on.spawn(on.client.wait(key)), on.spawn(on.client.poll(key, 60))]
    for _ in range(2):
        step(on)
        on.turn(0.2)
        assert not any(task.done() for task in waiting)
    step(on)
    for task in waiting:
        outcome = on.do(task)
        assert (outcome.status, outcome.state) == (Status.COMPLETED, {"ran": ["0", "A", "B", "C"]})
    assert on.client.hub(1).waiting == 0


@pytest.mark.row("A31", "B1")
def test_an_interrupt_ends_a_wait_with_its_payload(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("ask", {"n": 1}))
    waiting = on.spawn(on.client.wait(key))
    on.play()
    outcome = on.do(waiting)
    assert (outcome.status, outcome.stopped, outcome.interrupt_payload) == (Status.INTERRUPTED, True, {"question": "?"})
    assert outcome.state == {"n": 1, "asked": True}
    on.do(on.client.resume(key, {"a": 1}))
    waiting = on.spawn(on.client.wait(key))
    assert not waiting.done()
    on.play()
    assert on.do(waiting).state == {"n": 1, "asked": True, "answer": {"a": 1}, "ran": ["B"]}


def test_an_interrupt_that_is_answered_before_the_waiter_looks_is_passed_over(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("ask"))
    flow_id = FlowKey.parse(key).flow_id
    waiting = on.spawn(on.client.wait(key))
    hub = on.client.hub(1)

    async def blind(flow_ids: Any) -> Any:
        return dict.fromkeys(flow_ids, False)

    with monkeypatch.context() as patched:
        patched.setattr(hub, "_look", blind)
        on.turn()  # a look that was under way has ended
        on.play()
        hub._resolve(flow_id, None)  # it has been seen interrupted …
        on.player.one("select dwarf.resume_v1(%s, '{}')", flow_id)  # … and goes on before anybody reads it
        on.turn(0.2)
        assert not waiting.done()
    on.play()
    assert on.do(waiting).status is Status.COMPLETED


@pytest.mark.row("A33")
def test_a_flow_that_is_removed_ends_a_wait(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    waiting = on.spawn(on.client.wait(key))
    on.player.all("with a as (delete from dwarf.active) delete from dwarf.live returning 1")
    with pytest.raises(NotFound, match=FlowKey.parse(key).name):
        on.do(waiting)
    with pytest.raises(NotFound):
        on.do(on.client.wait(key))
    assert on.client.hub(1).waiting == 0


@pytest.mark.row("A36")
def test_fifteen_hundred_waiters_on_one_shard(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = on.do(on.client.create_many([("fail",)] * 1_500))

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(on.client.wait(key) for key in keys))

    waiting = on.spawn(all_of_them())
    on.turn(0.5)
    for key in keys[:1_000]:
        on.do(on.client.terminate(key, "x"))
    for _ in range(20):
        rows = on.player.claim(50)
        on.player.record(on.player.work(rows))
    statuses = [outcome.status for outcome in on.do(waiting)]
    assert statuses == [Status.TERMINATED] * 1_000 + [Status.FAILED] * 500
    assert on.client.hub(1).waiting == 0


def test_looks_never_ask_for_more_than_512_flows_at_once(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    asked: list[int] = []
    hub = on.client.hub(1)
    look = hub._look

    async def counted(flow_ids: Any) -> Any:
        asked.append(len(flow_ids))
        return await look(flow_ids)

    monkeypatch.setattr(hub, "_look", counted)
    keys = on.do(on.client.create_many([("line",)] * 1_100))
    flow_ids = [FlowKey.parse(key).flow_id for key in keys]

    async def watch_all() -> None:
        with ExitStack() as stack:
            for flow_id in flow_ids:
                stack.enter_context(hub.watching(flow_id))()
            await hub._look_at(flow_ids)
            assert hub.waiting == 1_100

    on.do(watch_all())
    assert max(asked) == 512
    assert 76 in asked
    assert hub.waiting == 0


@pytest.mark.row("A37")
def test_closing_tells_those_who_wait(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    client = on.open(host=on.app)
    running, ended, asked, cut = [on.do(client.create(url)) for url in ("long", "line", "ask", "long")]
    waiting = {key: on.spawn(client.wait(key)) for key in (running, ended, asked, cut)}
    step(on)
    step(on)
    on.do(on.client.terminate(cut, "stop"))
    on.do(client.close())
    assert on.do(waiting[ended]).state == {"ran": ["A", "B"]}
    assert on.do(waiting[asked]).interrupt_payload == {"question": "?"}
    assert on.do(waiting[cut]).reason == "stop"
    with pytest.raises(ShardUnavailable, match=FlowKey.parse(running).name) as caught:
        on.do(waiting[running])
    assert caught.value.status == 503
    on.play()
    assert on.do(on.client.wait(running)).status is Status.COMPLETED
    with pytest.raises(ShardUnavailable):
        on.do(client.wait(running))


@pytest.mark.row("A38")
def test_a_run_that_is_too_short_names_the_flow(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    with pytest.raises(WaitTimeout) as caught:
        on.do(on.client.run("line", {"ran": []}, timeout=0.05))
    key = caught.value.flow_key
    assert caught.value.status == 408
    on.play()
    assert on.do(on.client.wait(key)).state == {"ran": ["A", "B"]}


@pytest.mark.row("A39")
def test_a_run_that_fails_raises_nothing(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    running = on.spawn(on.client.run("fail"))
    on.turn_until(on.count)
    on.play()
    key, outcome = on.do(running)
    assert (outcome.status, outcome.error, outcome.reason) == (Status.FAILED, "out of paper", "")
    assert on.do(on.client.snapshot(key)) == outcome


@pytest.mark.row("A46", "C3")
def test_a_child_can_be_waited_for(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    first, second = [on.do(on.client.create("call", {"child": url})) for url in ("line", "long")]
    step(on)
    done, cut = (on.spawn(on.client.wait(on.child(key))) for key in (first, second))
    step(on)
    step(on)
    on.do(on.client.terminate(second, "enough"))
    assert on.do(done).state == {"ran": ["A", "B"]}
    assert (on.do(cut).status, on.do(cut).reason) == (Status.TERMINATED, "enough")


def test_a_local_word_ends_a_wait_without_a_look(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    waiting = [on.spawn(on.client.wait(key)) for _ in range(3)]
    hub = on.client.hub(1)

    async def never(flow_ids: Any) -> Any:
        raise AssertionError(flow_ids)

    monkeypatch.setattr(hub, "_look", never)
    hub.notify(FlowKey.parse(key).flow_id, Ended(Status.FAILED, b'{"n":12345678901234567890}', "no luck"))
    for task in waiting:
        outcome = on.do(task)
        assert (outcome.status, outcome.state, outcome.error) == (Status.FAILED, {"n": 12345678901234567890}, "no luck")
    hub.notify(FlowKey.parse(key).flow_id, Ended(Status.FAILED))  # nobody is there any more
    hub.notify(1)


def test_a_word_without_an_outcome_is_looked_at_at_once(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    for name in ("LOOK_SECONDS_MIN", "LOOK_SECONDS_MAX"):
        monkeypatch.setattr(f"dwarf.waits.{name}", 3600.0)
    keys = on.do(on.client.create_many([("line",), ("long",)]))
    waiting = [on.spawn(on.client.wait(key)) for key in keys]
    on.play()
    on.client.hub(1).notify(FlowKey.parse(keys[0]).flow_id)
    assert on.do(waiting[0]).status is Status.COMPLETED
    assert not waiting[1].done()
    on.client.hub(1).notify(FlowKey.parse(keys[1]).flow_id)
    assert on.do(waiting[1]).status is Status.COMPLETED


def test_a_caller_that_is_cancelled_leaves_nothing(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    hub = on.client.hub(1)
    waiting = [on.spawn(on.client.wait(key)) for _ in range(5)]
    assert hub.waiting == 5
    for task in waiting[:-1]:
        task.cancel()
    on.turn()
    assert hub.waiting == 1
    on.play()
    assert on.do(waiting[-1]).stopped
    assert hub.waiting == 0
    on.turn(0.1)
    assert hub._task is None or hub._task.done()


def test_a_database_that_is_away_ends_no_wait(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    keys = on.do(on.client.create_many([("line",), ("ask",)]))
    waiting = [on.spawn(on.client.wait(key)) for key in keys]
    [shard] = on.client._shards.values()
    run = shard.pool.run
    refused = []

    async def away(work: Any, **named: Any) -> Any:
        refused.append(work)
        raise Unreached("away")

    monkeypatch.setattr(shard.pool, "run", away)
    on.play()
    on.turn_until(lambda: len(refused) >= 3)
    assert not any(task.done() for task in waiting)
    monkeypatch.setattr(shard.pool, "run", run)
    assert [on.do(task).status for task in waiting] == [Status.COMPLETED, Status.INTERRUPTED]


def test_connections_that_are_cut_end_no_wait(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    waiting = on.spawn(on.client.wait(key))
    for _ in range(3):
        on.player.all("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'dwarf client'")
        on.turn(0.1)
    on.play()
    assert on.do(waiting).status is Status.COMPLETED


def test_an_error_that_no_time_will_mend_reaches_those_who_wait(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    waiting = on.spawn(on.client.wait(key))

    async def broken(flow_ids: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(on.client.hub(1), "_look", broken)
    with pytest.raises(ZeroDivisionError):
        on.do(waiting)


@pytest.mark.row("J15")
def test_flows_of_the_same_number_on_two_shards_are_two(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    for player in on.players:
        player.one("select setval('dwarf.flow_seq', 1000)")
    keys = on.do(on.client.create_many([("line", {"ran": ["0"]})] * 60))
    parsed = [FlowKey.parse(key) for key in keys]
    ids = [{key.flow_id for key in parsed if key.shard == shard} for shard in (1, 2)]
    twins = ids[0] & ids[1]
    assert twins
    flow_id = min(twins)
    one, two = (next(str(key) for key in parsed if (key.shard, key.flow_id) == (shard, flow_id)) for shard in (1, 2))
    waiting = [on.spawn(on.client.wait(key)) for key in (one, two)]
    on.players[0].run()
    assert on.do(waiting[0]).status is Status.COMPLETED
    assert not waiting[1].done()
    assert on.do(on.client.snapshot(two)).status is Status.RUNNING
    with pytest.raises(NotFound):
        on.do(on.client.snapshot(str(FlowKey(2, flow_id, FlowKey.parse(one).token))))
    on.play()
    assert on.do(waiting[1]).status is Status.COMPLETED


def test_a_ceiling_bounds_every_wait(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    client = on.open(host=on.app, wait_ceiling=0.05)
    key = on.do(client.create("line"))
    for timeout in (None, 60):
        with pytest.raises(WaitTimeout):
            on.do(client.wait(key, timeout))
    assert isinstance(client._shards[1], ShardClient)
