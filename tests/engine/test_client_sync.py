"""`SyncClient`: the same verbs from threads; and what a task is given as `flow.client`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dwarf
from dwarf import Conflict, FlowKey, FlowOptions, InvalidArgument, NotFound, Query, Shard, Status, SyncClient, WaitTimeout
from dwarf.blocking import BlockingVerbs, Verbs
from dwarf.client import Client
from dwarf.errors import DwarfError, ShardUnavailable
from dwarf.flow import Flow
from dwarf.task_client import BlockingTaskClient, TaskClient
from tests.engine.conftest import MakeStage
from tests.engine.stage import line


def write(flow: Flow) -> None:
    flow["ran"] = flow.task_name


def ask(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"question": "?"})


TASKS = {"A": write, "B": write, "Q": ask}
GRAPHS = {"line": line("A", "B"), "ask": line("Q", "B", name="ask")}
VERBS = [name for name in vars(Verbs) if not name.startswith("_")]


def test_every_client_has_the_same_verbs() -> None:
    for kind in (BlockingVerbs, TaskClient, SyncClient, BlockingTaskClient):
        for name in VERBS:
            mine, theirs = inspect.signature(getattr(kind, name)), inspect.signature(getattr(Client, name))
            assert mine == theirs, (kind, name)
    assert dwarf.Client is Client
    assert set(inspect.signature(SyncClient).parameters) == set(inspect.signature(Client).parameters)


def test_the_verbs_block_until_they_are_done(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    with SyncClient(on.shards, host=on.app) as client:
        key = client.create("line", {"n": 1})
        [asked] = client.create_many([("ask",)])
        assert client.poll(key, 0).status is Status.RUNNING
        with pytest.raises(WaitTimeout) as caught:
            client.wait(key, timeout=0.05)
        assert caught.value.flow_key == key
        on.play()
        assert client.wait(key).state == {"n": 1, "ran": "B"}
        assert client.snapshot(asked).interrupt_payload == {"question": "?"}
        client.resume(asked, {"a": 1})
        on.play()
        assert client.wait(asked).state["answer"] == {"a": 1}
        steps = client.history(key)
        assert client.step(steps[0].step_key).changes == {"ran": "A"}
        assert "s1" in client.history_mermaid(key)
        assert client.fingerprint(key)[1] is Status.COMPLETED
        assert len(client.list_closed(Query(limit=1))) == 1
        assert len(client.list_open()) == 0
        for verb in (client.cancel, client.terminate):
            with pytest.raises(Conflict):
                verb(key)
        client.delete(key)
        with pytest.raises(NotFound):
            client.history(key)
        assert [info.index for info in client.shard_info()] == [1]
        with pytest.raises(InvalidArgument):
            client.create("")


def test_threads_may_share_a_client(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    with SyncClient(on.shards, host=on.app) as client, ThreadPoolExecutor(8) as threads:
        keys = list(threads.map(lambda n: client.create("line", {"n": n}), range(40)))
        waiting = [threads.submit(client.wait, key) for key in keys]
        on.play()
        assert [future.result().state["n"] for future in waiting] == list(range(40))
        key_of_run = threads.submit(client.run, "line")
        on.turn_until(on.count)
        on.play()
        assert key_of_run.result()[1].status is Status.COMPLETED


def test_it_works_in_a_thread_that_has_a_loop_of_its_own(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    with SyncClient(on.shards, host=on.app) as client:

        async def inside() -> str:
            return client.create("line")

        assert on.do(inside())


def test_after_close_every_verb_says_so(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    client = SyncClient(on.shards, host=on.app)
    client.close()
    with pytest.raises(ShardUnavailable, match="not open"):
        client.create("line")
    with client:
        client.start()
        key = client.create("line")
    client.close()
    for call in (lambda: client.snapshot(key), lambda: client.create("line"), lambda: client.shard_info()):
        with pytest.raises(ShardUnavailable, match="not open"):
            call()
    assert not [thread for thread in threading.enumerate() if thread.name == "dwarf client"]
    with client:
        assert client.snapshot(key).status is Status.RUNNING


def test_closing_ends_the_waits_of_other_threads(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    client = SyncClient(on.shards, host=on.app)
    client.start()
    key = client.create("line")
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(client.wait, key) for _ in range(3)]
        on.turn_until(lambda: client._client.hub(1).waiting == 3)
        client.close()
        for future in waiting:
            with pytest.raises(ShardUnavailable):
                future.result()


def test_a_start_that_fails_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dwarf.shard_client.START_PATIENCE_SECONDS", 0.0)
    client = SyncClient([Shard(1, "host=127.0.0.1 port=1 connect_timeout=2")])
    for _ in range(2):
        with pytest.raises(ShardUnavailable):
            client.start()
    assert not [thread for thread in threading.enumerate() if thread.name == "dwarf client"]


# flow.client


def test_a_step_that_runs_again_creates_its_flows_once(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    step_key = str(FlowKey(1, 5, "a" * 16).step(3))

    async def run(client: TaskClient) -> list[str]:
        first = await client.create("line", {"n": 1})
        second = await client.create("line", {"n": 1})
        return [
            first,
            second,
            *await client.create_many([("line",), ("ask", {"n": 2})]),
            await client.create("line", options=FlowOptions(priority=1)),
        ]

    keys = on.do(run(TaskClient(on.client, step_key)))
    assert len(set(keys)) == 5
    assert on.do(run(TaskClient(on.client, step_key))) == keys
    assert on.count() == 5
    others = on.do(run(TaskClient(on.client, str(FlowKey(1, 5, "a" * 16).step(4)))))
    assert not set(others) & set(keys)
    stored = [row.key for row in on.player.all("select key from dwarf.idempotency")]
    assert all(key.startswith("step:") and step_key[-16:] not in key for key in stored)


def test_a_key_of_ones_own_is_left_alone(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    client = TaskClient(on.client, "1-0-5-3-" + "a" * 16)
    own = on.do(client.create("line", None, FlowOptions(idempotency_key="mine")))
    assert on.do(on.client.create("line", None, FlowOptions(idempotency_key="mine"))) == own
    with pytest.raises(InvalidArgument):
        on.do(client.create("line", None, {"priority": 1}))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        on.do(client.create_many([7]))  # type: ignore[list-item]


def test_another_state_in_the_same_place_is_refused(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    on.do(TaskClient(on.client, "1-0-5-3-" + "a" * 16).create("line", {"n": 1}))
    with pytest.raises(Conflict):
        on.do(TaskClient(on.client, "1-0-5-3-" + "a" * 16).create("line", {"n": 2}))
    assert on.count() == 1


def test_run_inside_a_task_finds_the_flow_of_an_earlier_run(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    running = on.spawn(TaskClient(on.client, "k").run("line"))
    on.turn_until(on.count)
    on.play()
    first = on.do(running)
    assert on.do(TaskClient(on.client, "k").run("line")) == first
    client = TaskClient(on.client, "k")
    assert on.do(client.snapshot(first[0])) == on.do(client.wait(first[0])) == on.do(client.poll(first[0], 0)) == first[1]


def test_the_blocking_form_serves_a_thread(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    loop = on.runner.get_loop()
    client = BlockingTaskClient(on.client, "k", loop)

    def task() -> list[Any]:
        key = client.create("line")
        return [key, client.snapshot(key).status, client.create_many([("line",)])]

    async def scene() -> list[Any]:
        return await asyncio.to_thread(task)

    key, status, [other] = on.do(scene())
    assert (status, key == other) == (Status.RUNNING, False)

    async def on_its_own_loop() -> str:
        return client.create("line")

    with pytest.raises(DwarfError, match="another thread"):
        on.do(on_its_own_loop())
    assert on.count() == 2
