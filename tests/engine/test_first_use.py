"""What a first use has shown: mistakes that are easily made, and what comes of them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dwarf import END, App, Conflict, Engine, Flow, Graph, InvalidArgument, Shard, Status
from dwarf.testing import EngineUnderTest
from dwarf.values import encode
from tests.engine.rows_support import line, on_loop

Make = Callable[..., EngineUnderTest]


def app_of(**tasks: Callable[[Flow], Any]) -> App:
    app = App()
    for name, task in tasks.items():
        app.task(name)(task)
        app.add_graph(name, Graph(name).add_transition(name, END))
    return app


@on_loop
async def test_threads_that_wait_for_flows_that_wait_for_threads_are_let_go_when_their_time_is_up() -> None:
    def parent(flow: Flow) -> None:
        flow.client.run("child")

    def child(flow: Flow) -> None: ...

    async with EngineUnderTest(app_of(parent=parent, child=child), "threads", threads=2, time_budget=1) as engine:
        keys = await engine.create_many([("parent", None, None)] * 4)
        outcomes = await asyncio.gather(*(engine.wait(key, 60) for key in keys))
        assert all(outcome.status in (Status.FAILED, Status.COMPLETED) for outcome in outcomes)
        assert any("its time budget passed, during a call of flow.client" in outcome.error for outcome in outcomes)
        assert (await engine.run("child", timeout=60))[1].status is Status.COMPLETED


@pytest.mark.parametrize("dsn", ["mysql://u:secretpw@localhost/x", "postgresql+psycopg://u:secretpw@localhost/x"])
@on_loop
async def test_no_error_shows_a_password(dsn: str) -> None:
    with pytest.raises(InvalidArgument, match="shard 1: its dsn") as raised:
        await Engine(App(), [Shard(1, dsn)]).start()
    assert "secretpw" not in str(raised.value)


def test_a_shard_with_its_arguments_swapped_does_not_show_the_dsn() -> None:
    with pytest.raises(InvalidArgument, match="a shard's index is text") as raised:
        Shard("host=db password=secretpw", 1)  # type: ignore[arg-type]
    assert "secretpw" not in str(raised.value)


@pytest.mark.parametrize(("app", "shards"), [(App, [Shard(1, "host=x")]), (App(), Shard(1, "host=x")), (None, [Shard(1, "host=x")])])
def test_an_engine_of_the_wrong_things_is_refused(app: Any, shards: Any) -> None:
    with pytest.raises(InvalidArgument):
        Engine(app, shards)


@on_loop
async def test_entering_an_engine_twice_leaves_the_running_one_its_database() -> None:
    engine = EngineUnderTest(app_of(it=lambda flow: None), "twice")
    async with engine:
        with pytest.raises(Conflict):
            await engine.__aenter__()
        assert (await engine.run("it", timeout=60))[1].status is Status.COMPLETED


def test_a_set_is_stored_in_the_same_order_by_every_process() -> None:
    code = "from dwarf.values import encode; print(bytes(encode({'a': [{'red', 'green', 'blue', 'white'}]}, 'x')).decode())"
    seen = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, check=True).stdout
        for seed in range(3)
    }
    assert seen == {b'{"a":[["blue","green","red","white"]]}\n'}
    assert bytes(encode({"b": 1, "a": 2}, "x")) == b'{"b":1,"a":2}', "where there is no set, the order is the writer's"
    assert sorted(bytes(encode({1, "x"}, "x"))) == sorted(b'[1,"x"]')


@on_loop
async def test_what_a_task_raises_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    def broken(flow: Flow) -> None:
        flow.no_such_thing()  # type: ignore[attr-defined]

    async with EngineUnderTest(app_of(broken=broken), "logged") as engine:
        with caplog.at_level(logging.INFO, "dwarf.executor"):
            key, outcome = await engine.run("broken", timeout=60)
    assert outcome.status is Status.FAILED
    assert "task 'broken' of flow" in caplog.text
    assert "no_such_thing" in caplog.text
    assert "Traceback" in caplog.text
    assert key.rpartition("-")[2] not in caplog.text, "no token in a log"


@on_loop
async def test_settled_waits_for_what_is_due_and_not_for_what_sleeps() -> None:
    app = App()
    app.add_graph("it", line("A", "B"))
    app.task("A")(lambda flow: flow.sleep(3600))
    app.task("B")(lambda flow: flow.set("done", True))
    async with EngineUnderTest(app, "settled") as engine:
        key = await engine.create("it")
        await engine.settled()
        assert not (await engine.snapshot(key)).stopped
        await engine.advance(3600)
        assert (await engine.wait(key, 60)).state["done"]
        with pytest.raises(InvalidArgument):
            await engine.advance(-1)
