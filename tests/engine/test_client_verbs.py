"""Resume, cancel, terminate, delete: what they refuse, what they change, and that each reports truthfully."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dwarf import END, Conflict, DwarfError, FlowKey, Graph, InvalidArgument, NotFound, Status, StepStatus
from dwarf.flow import Flow
from tests.engine.conftest import MakeStage
from tests.engine.stage import Stage, line


def write(flow: Flow) -> None:
    flow["ran"] = flow.task_name


def ask(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"question": "?"})


def call(flow: Flow) -> None:
    flow["got"] = flow.subgraph(flow.get_str("child"), {"child": flow.get_str("below"), "below": "line"})


def sleep(flow: Flow) -> None:
    flow.sleep(3_600)


def handle(flow: Flow) -> None:
    flow["why"] = flow["onErr"]["error"]


TASKS = {"A": write, "B": write, "Q": ask, "P": call, "S": sleep, "H": handle}
GRAPHS = {
    "line": line("A", "B"),
    "ask": line("Q", "B", name="ask"),
    "call": line("P", name="call"),
    "sleep": line("S", "B", name="sleep"),
    "guarded": line("Q", "B", name="guarded").add_transition_on_error("Q", "H").add_transition("H", END),
    "asks": Graph("asks").add_transition_for_each("A", "Q", "xs", "x").add_transition("Q", "B").set_fan_in("B").add_transition("B", END),
}


def refused(on: Stage, error: type[DwarfError], verb: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(error) as caught:
        on.do(verb(*args))
    return str(caught.value)


def status(on: Stage, key: str) -> Status:
    return on.do(on.client.snapshot(key)).status


# Resume


@pytest.mark.row("B3", "B4")
def test_the_answer_reaches_the_task_and_is_not_merged(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    with_data, without = on.do(on.client.create_many([("ask", {"a": 0})] * 2))
    on.play()
    on.do(on.client.resume(with_data, {"a": 1, "b": [2]}))
    on.do(on.client.resume(without))
    on.play()
    assert on.do(on.client.wait(with_data)).state == {"a": 0, "answer": {"a": 1, "b": [2]}, "ran": "B"}
    assert on.do(on.client.wait(without)).state == {"a": 0, "answer": {}, "ran": "B"}


@pytest.mark.row("B5")
def test_an_answer_that_is_no_object_leaves_the_flow_interrupted(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("ask"))
    on.play()
    for data in ([1], "text", 7, True, {"a": float("nan")}, {"a": object()}, {1: 2}):
        with pytest.raises(DwarfError) as caught:
            on.do(on.client.resume(key, data))
        assert caught.value.status == 400
        assert status(on, key) is Status.INTERRUPTED
    on.do(on.client.resume(key, {"a": 1}))
    assert status(on, key) is Status.RUNNING


@pytest.mark.row("B6", "C8")
def test_only_an_interrupted_flow_is_resumed(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    running, ended, cut, asked = on.do(on.client.create_many([("sleep",), ("line",), ("ask",), ("ask",)]))
    for _ in range(2):
        on.player.record(on.player.work(on.player.claim()))
    on.do(on.client.terminate(cut))
    on.do(on.client.resume(asked))
    for key in (running, ended, cut, asked):
        assert FlowKey.parse(key).name in refused(on, Conflict, on.client.resume, key)
    assert "running" not in str(status(on, cut))
    assert [step.task_name for step in on.do(on.client.history(cut))] == ["Q"]


@pytest.mark.row("B7", "C2", "I13", "E6")
def test_a_child_is_driven_by_its_root_alone(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("call", {"child": "ask"}))
    on.play()
    child = on.child(key)
    for verb in (on.client.resume, on.client.cancel, on.client.terminate, on.client.delete):
        text = refused(on, InvalidArgument, verb, child)
        assert FlowKey.parse(child).name in text
        assert "root" in text
        for unknown in (child[:-1] + "f", str(FlowKey(1, 1 << 40, "0" * 16)), str(FlowKey(4, 7, "0" * 16))):
            refused(on, NotFound, verb, unknown)
        for malformed in ("", "x", child + "-1", None):
            refused(on, InvalidArgument, verb, malformed)
    assert [status(on, each) for each in (key, child)] == [Status.INTERRUPTED] * 2
    on.do(on.client.resume(key))
    on.play()
    for verb in (on.client.resume, on.client.cancel, on.client.terminate, on.client.delete):
        refused(on, InvalidArgument, verb, child)
    assert status(on, child) is Status.COMPLETED


@pytest.mark.row("B8")
def test_of_two_resumes_one_succeeds(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = on.do(on.client.create_many([("ask",)] * 10))
    on.play()

    async def race(key: str) -> list[Any]:
        return await asyncio.gather(*(on.client.resume(key, {"by": n}) for n in range(4)), return_exceptions=True)

    for key in keys:
        results = on.do(race(key))
        assert [type(result) for result in results].count(type(None)) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 3
        on.play()
        assert on.do(on.client.wait(key)).state["answer"] == {"by": results.index(None)}


# Cancel and terminate


@pytest.mark.row("C1", "C3", "C7", "C17")
def test_terminate_ends_the_whole_tree_with_its_reason(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("call", {"child": "call", "below": "sleep"}))
    for _ in range(3):
        on.player.record(on.player.work(on.player.claim()))
    tree = [key, on.child(key, 0), on.child(key, 1)]
    waiting = [on.spawn(on.client.wait(each)) for each in tree]
    on.do(on.client.terminate(key, "  too \x00late\n now  "))
    for task in waiting:
        outcome = on.do(task)
        assert (outcome.status, outcome.reason, outcome.error) == (Status.TERMINATED, "too �late  now", "")
    on.play()
    steps = on.do(on.client.history(key))
    while steps:
        assert steps[-1].status is StepStatus.TERMINATED
        steps = steps[-1].sub_history
    assert on.count("active") == on.count("live") == 0


@pytest.mark.row("C2")
def test_a_closed_flow_is_neither_cancelled_nor_terminated(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    done, cut, cancelled = on.do(on.client.create_many([("line",), ("ask",), ("ask",)]))
    on.play()
    on.do(on.client.terminate(cut))
    on.do(on.client.cancel(cancelled))
    on.play()
    before = [on.do(on.client.snapshot(key)) for key in (done, cut, cancelled)]
    assert [outcome.status for outcome in before] == [Status.COMPLETED, Status.TERMINATED, Status.CANCELLED]
    for key, was in zip((done, cut, cancelled), before, strict=True):
        for verb in (on.client.cancel, on.client.terminate):
            assert was.status in refused(on, Conflict, verb, key, "again")
        assert on.do(on.client.snapshot(key)) == was


@pytest.mark.row("C17")
def test_a_reason_is_text_and_may_be_empty(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    for verb in (on.client.cancel, on.client.terminate):
        refused(on, InvalidArgument, verb, key, 7)
        refused(on, InvalidArgument, verb, key, None)
    on.do(on.client.terminate(key, "   "))
    assert on.do(on.client.snapshot(key)).reason == ""


@pytest.mark.row("C18", "C19", "C24", "C21", "C28")
def test_cancel_takes_the_error_edge_where_there_is_one(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    guarded, bare = on.do(on.client.create_many([("guarded",), ("ask",)]))
    on.play()
    for key in (guarded, bare):
        on.do(on.client.cancel(key, "changed my mind"))
    assert status(on, guarded) is Status.RUNNING
    assert on.do(on.client.snapshot(guarded)).interrupt_payload == {}
    on.play()
    handled, cancelled = (on.do(on.client.wait(key)) for key in (guarded, bare))
    assert (handled.status, handled.reason) == (Status.COMPLETED, "")
    assert "changed my mind" in handled.state["why"]
    assert (cancelled.status, cancelled.reason) == (Status.CANCELLED, "changed my mind")
    found = on.do(on.client.list_closed()).items
    assert {flow.flow_key: flow.reason for flow in found} == {guarded: "", bare: "changed my mind"}


@pytest.mark.row("C29")
def test_a_second_cancel_is_accepted(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("guarded"))
    on.play()
    on.do(on.client.cancel(key, "once"))
    on.player.record(on.player.work(on.player.claim()))  # the handler's turn has come
    on.do(on.client.cancel(key, "twice"))
    on.play()
    outcome = on.do(on.client.wait(key))
    assert (outcome.status, outcome.reason) == (Status.CANCELLED, "twice")


# Delete


@pytest.mark.row("I12", "I13")
def test_delete_takes_what_has_stopped(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    running, ended, asked = on.do(on.client.create_many([("sleep",), ("line",), ("ask",)]))
    for _ in range(3):
        on.player.record(on.player.work(on.player.claim()))
    assert FlowKey.parse(running).name in refused(on, Conflict, on.client.delete, running)
    assert status(on, running) is Status.RUNNING
    for _ in range(2):
        on.do(on.client.delete(ended))
        on.do(on.client.delete(asked))
    assert status(on, asked) is Status.TERMINATED
    refused(on, Conflict, on.client.resume, asked)
    assert on.do(on.client.list_closed()).items == []
    on.player.one("select dwarf.reap_v1(100)")
    for key in (ended, asked):
        refused(on, NotFound, on.client.delete, key)
        refused(on, NotFound, on.client.snapshot, key)


@pytest.mark.row("C16", "M35")
def test_a_race_of_delete_terminate_and_resume_has_one_winner(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = on.do(on.client.create_many([("ask",)] * 12))
    on.play()

    async def race(key: str) -> list[Any]:
        calls = [on.client.resume(key), on.client.terminate(key, "t"), on.client.delete(key)]
        return await asyncio.gather(*calls, return_exceptions=True)

    for key in keys:
        resumed, terminated, deleted = on.do(race(key))
        assert all(result is None or isinstance(result, Conflict) for result in (resumed, terminated, deleted))
        if resumed is None and terminated is None:
            assert status(on, key) is Status.TERMINATED  # it was resumed first
        elif resumed is None:
            assert status(on, key) is Status.RUNNING
        else:
            assert status(on, key) is Status.TERMINATED
    on.play()
    assert on.count("live") == on.count("active") == on.count("parks") == 0
