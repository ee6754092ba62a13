"""Forks: a new flow goes on at a step of one that has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from dwarf import END, Flow, FlowOptions, ForkPreview, Graph, Reducer, Step, TaskError
from dwarf.keys import FlowKey, branch_seq
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    Gate,
    Make,
    invariants,
    line,
    make_app,
    on_loop,
    one,
    paths,
    refused,
    removed,
    settle,
    shape,
    sql,
    unknown,
    until,
    walk,
    wrong_token,
)

HISTORY = "select * from dwarf.history where flow_id = any (%s) order by 1, 2, 3"


def write(field: str, value: Any) -> Any:
    def task(flow: Flow) -> None:
        flow[field] = value

    return task


def call(url: str) -> Any:
    def task(flow: Flow) -> None:
        flow["got"] = flow.subgraph(url, {"x": flow.get("x")}).get("y")

    return task


def double(flow: Flow) -> None:
    flow["y"] = flow.get_int("x") * 2


async def step_at(engine: EngineUnderTest, key: str, path: str) -> Step:
    return paths(await engine.history(key))[path]


async def fork_at(engine: EngineUnderTest, key: str, path: str, overrides: Any = None) -> str:
    return await engine.fork((await step_at(engine, key, path)).step_key, overrides)


# ---- a chain ----


def checkout() -> Any:
    def check(flow: Flow) -> None:
        if flow.get_int("amount") < 0:
            raise TaskError("negative", status=422)
        flow["checked"] = flow["amount"]

    return make_app({"pay": line("Read", "Check", "Pay")}, {"Read": write("amount", -5), "Check": check, "Pay": write("paid", True)})


@on_loop
@pytest.mark.row("D1", "D2", "D6", "D19")
async def test_a_failed_flow_goes_on_with_a_repaired_input(dwarf_engine: Make) -> None:
    async with dwarf_engine(checkout()) as engine:
        key, outcome = await engine.run("pay", {"customer": 7, "note": "x"})
        assert outcome.status is FAILED
        ids = [FlowKey.parse(key).flow_id]
        before = await sql(engine, HISTORY, ids), await sql(engine, "select * from dwarf.flows")
        origin = await engine.history(key)
        fork = await engine.fork(origin[1].step_key, {"amount": 5, "note": None})
        assert fork != key
        assert (await engine.wait(fork, 20)).state == {"customer": 7, "amount": 5, "checked": 5, "paid": True}
        steps = await engine.history(fork)
        assert shape(steps) == [("Read", "completed"), ("Check", "completed"), ("Pay", "completed")]
        assert (await engine.snapshot(key)).status is FAILED
        assert await sql(engine, HISTORY, ids) == before[0]
        assert await sql(engine, "select * from dwarf.flows where flow_id = any (%s)", ids) == before[1]
        assert (steps[0].created_at, steps[0].updated_at) == (origin[0].created_at, origin[0].updated_at)
        assert steps[1].created_at is not None
        assert steps[1].created_at > origin[1].updated_at  # type: ignore[operator]
        assert not {step.step_key for step in steps} & {step.step_key for step in origin}
        assert (await engine.step(steps[1].step_key)).state == {"customer": 7, "amount": 5}
        assert (await engine.step(steps[0].step_key)).changes == {"amount": -5}
        assert await invariants(engine) == []


@on_loop
@pytest.mark.row("D1", "A52")
async def test_a_fork_at_the_first_step_is_the_flow_anew(dwarf_engine: Make) -> None:
    async with dwarf_engine(checkout()) as engine:
        big = 2**70 + 1
        key, _ = await engine.run("pay", {"big": big, "s": "nul\0 🧌"})
        fork = await fork_at(engine, key, "1", {"more": -big})
        assert (await engine.wait(fork, 20)).status is FAILED
        first = await engine.step((await engine.history(fork))[0].step_key)
        assert first.state == {"big": big, "s": "nul\0 🧌", "more": -big}
        again = await fork_at(engine, fork, "2", {"amount": big})
        assert (await engine.wait(again, 20)).state == {
            "big": big, "s": "nul\0 🧌", "more": -big, "amount": big, "checked": big, "paid": True,
        }  # fmt: skip


@on_loop
@pytest.mark.row("D2")
async def test_overrides_reach_forks_of_forks_and_flows_that_are_ended_from_outside(dwarf_engine: Make) -> None:
    gate = Gate()

    async def second(flow: Flow) -> None:
        if "hold" in flow:
            await gate(flow)
        flow["list"] = ["B"]

    app = make_app(
        {"g": line("A", "B", "C").set_reducer("list", Reducer.APPEND)}, {"A": write("list", ["A"]), "B": second, "C": write("list", ["C"])}
    )
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g")
        assert outcome.state == {"list": ["A", "B", "C"]}
        fork = await fork_at(engine, key, "2", {"list": ["z"]})
        assert (await engine.wait(fork, 20)).state == {"list": ["z", "B", "C"]}
        again = await fork_at(engine, fork, "3")
        assert (await engine.wait(again, 20)).state == {"list": ["z", "B", "C"]}
        assert (await engine.step((await step_at(engine, again, "3")).step_key)).state == {"list": ["z", "B"]}
        assert (await engine.step((await step_at(engine, fork, "2")).step_key)).state == {"list": ["z"]}
        assert (await engine.step((await step_at(engine, fork, "1")).step_key)).state == {}
        held = await fork_at(engine, key, "2", {"hold": True, "list": ["z"]})
        await gate.reached()
        await engine.terminate(held, "enough")
        assert (await engine.snapshot(held)).state == {"list": ["z"], "hold": True}
        gate.open()


# ---- who may be forked ----


@on_loop
@pytest.mark.row("D3", "B21")
async def test_an_open_tree_cannot_be_forked(dwarf_engine: Make) -> None:
    def ask(flow: Flow) -> None:
        flow.interrupt({"q": 1})

    def fail(flow: Flow) -> None:
        raise TaskError("no")

    graph = Graph("g").add_transition_fan_out("Split", "Ask", "Fail").add_transition("Ask", "Join").add_transition("Fail", "Join")
    graph.set_fan_in("Join").add_transition("Join", END)
    app = make_app(
        {"g": graph, "calls": line("Call", "Ask"), "child": line("Double")},
        {"Ask": ask, "Fail": fail, "Call": call("child"), "Double": double},
    )
    async with dwarf_engine(app) as engine:
        key, called = await engine.create("g"), await engine.create("calls", {"x": 2})
        assert (await settle(engine, key)).status is INTERRUPTED
        failed = next(step for step in await engine.history(key) if step.task_name == "Fail")
        await refused(engine.fork(failed.step_key), 409, "interrupted")
        await settle(engine, called)
        child = next(step for step in walk(await engine.history(called)) if step.task_name == "Double")
        assert child.status == "completed"
        await refused(engine.fork(child.step_key), 409, "interrupted")
        await refused(engine.fork(child.step_key, preview=True), 409, "interrupted")
        assert await one(engine, "select count(*) from dwarf.live") == 2


@on_loop
@pytest.mark.row("D4", "D5", "I23")
async def test_what_cannot_be_forked(dwarf_engine: Make) -> None:
    async with dwarf_engine(checkout()) as engine:
        key, _ = await engine.run("pay")
        step = (await engine.history(key))[1]
        for broken in ("", "x", key, "0-1-2-3-0000000000000000", step.step_key + "0"):
            await refused(engine.fork(broken), 400)
        await refused(engine.fork(wrong_token(step.step_key)), 404)
        flow = FlowKey.parse(key)
        await refused(engine.fork(str(flow.step(9 << 20 | 1))), 404)
        await refused(engine.fork(str(flow.step(17))), 404)
        await refused(engine.fork(str(FlowKey.parse(unknown(key)).step(1))), 404)
        for wrong in ([1], "text", 7, True):
            await refused(engine.fork(step.step_key, wrong), 400, "overrides")
        await refused(engine.fork(step.step_key, {"x": float("nan")}), 400, "x")
        await refused(engine.fork(step.step_key, preview=1), 400, "preview")  # type: ignore[call-overload]
        await engine.delete(key)
        await refused(engine.fork(step.step_key), 409, "deleted")
        assert (await engine.snapshot(key)).status is FAILED
        assert await one(engine, "select count(*) from dwarf.live") == 0


@on_loop
@pytest.mark.row("D7", "F1")
async def test_a_fork_has_the_options_of_its_origin(dwarf_engine: Make) -> None:
    def end(flow: Flow) -> None:
        if flow["x"] == 4:
            raise TaskError("four")

    app = make_app({"g": line("Call", "End"), "child": line("Double")}, {"Call": call("child"), "Double": double, "End": end})
    async with dwarf_engine(app, sweep_seconds=1) as engine:
        first = await engine.create("g", {"x": 1})
        options = FlowOptions(
            priority=2, fairness_key="t", fairness_weight=3, time_budget=7, baggage={"b": 1}, thread_key=first, delete_on_completion=True
        )
        key, outcome = await engine.run("g", {"x": 4}, options)
        assert outcome.status is FAILED
        fork = await fork_at(engine, key, "2", {"x": 5})
        assert (await engine.wait(fork, 20)).state == {"x": 5, "got": 8}
        columns = "priority, fairness_key, weight, budget_ms, baggage::text, workflow, nesting, graph_id, tenant"
        query = f"select {columns} from dwarf.flows where root_id = %s order by nesting"
        mine = await sql(engine, query, FlowKey.parse(fork).flow_id)
        assert mine == await sql(engine, query, FlowKey.parse(key).flow_id)
        assert len(mine) == 2
        [summary] = [each for each in (await engine.list_closed()).items if each.flow_key == fork]
        assert summary.thread_key == first
        assert await one(engine, "select array_agg(flow_id) from dwarf.flows where delete_on_completion") == [FlowKey.parse(key).flow_id]
        assert await one(engine, "select count(*) from dwarf.doomed") == 0


# ---- callers, parks, retries ----


@on_loop
@pytest.mark.row("D9", "E9")
async def test_a_caller_that_is_forked_calls_its_child_anew(dwarf_engine: Make) -> None:
    app = make_app(
        {"g": line("Set", "Call", "End"), "child": line("Double")}, {"Set": write("x", 3), "Call": call("child"), "Double": double}
    )
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g")
        assert outcome.state == {"x": 3, "got": 6}
        fork = await fork_at(engine, key, "2", {"x": 10})
        assert (await engine.wait(fork, 20)).state == {"x": 10, "got": 20}
        mine, theirs = await step_at(engine, fork, "2"), await step_at(engine, key, "2")
        assert mine.sub_flow_key != theirs.sub_flow_key
        assert await one(engine, "select count(*) from dwarf.flows where root_id <> flow_id") == 2
        copied = await fork_at(engine, key, "3")  # a child of a copied step is copied with it
        await engine.wait(copied, 20)
        kept = await step_at(engine, copied, "2")
        assert kept.sub_flow_key not in (mine.sub_flow_key, theirs.sub_flow_key)
        assert (kept.sub_history[0].created_at, shape(kept.sub_history)) == (theirs.sub_history[0].created_at, shape(theirs.sub_history))
        assert (await engine.snapshot(kept.sub_flow_key)).state == {"x": 3, "y": 6}


@on_loop
@pytest.mark.row("D9", "D3", "E19")
async def test_a_step_deep_inside_children_is_forked_with_all_callers_above_it(dwarf_engine: Make) -> None:
    depth = 5
    told: list[str] = []

    def enter(flow: Flow) -> None:
        level = flow.get_int("level")
        told.append(f"enter {level} {flow.get_int('ticket')}")
        flow["ticket"] = flow.get_int("ticket") + 1
        flow["deep"] = flow.subgraph("g" if level < depth else "leaf", {"level": level + 1})["deep"]

    def leaf(flow: Flow) -> None:
        flow["deep"] = flow.get_str("word", "none")

    app = make_app({"g": line("Enter", "After"), "leaf": line("Leaf")}, {"Enter": enter, "Leaf": leaf})
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", {"level": 1})
        assert outcome.state["deep"] == "none"
        steps = walk(await engine.history(key))
        chosen = next(step for step in steps if step.task_name == "Leaf")
        told.clear()
        fork = await engine.fork(chosen.step_key, {"word": "gold"})
        assert (await engine.wait(fork, 20)).state == {"level": 1, "deep": "gold", "ticket": 2}
        # Each caller ran once more, with what it had written when it called.
        assert told == [f"enter {level} 1" for level in range(depth, 0, -1)]
        assert shape(walk(await engine.history(fork))) == shape(steps)
        assert await invariants(engine) == []


@on_loop
@pytest.mark.row("D11")
async def test_a_forked_step_begins_at_its_beginning(dwarf_engine: Make) -> None:
    attempts: list[int] = []

    def ask(flow: Flow) -> None:
        attempts.append(flow.attempt)
        if flow.attempt == 0 and flow.retry(1, give_up_after=3600):
            return
        flow["answer"] = flow.interrupt({"q": 1})["a"]

    async with dwarf_engine(make_app({"g": line("Ask", "End")}, {"Ask": ask})) as engine:
        key = await engine.create("g")
        await settle(engine, key)
        await engine.resume(key, {"a": 1})
        assert (await settle(engine, key)).state == {"answer": 1}
        await engine.advance(7200)
        attempts.clear()
        fork = await fork_at(engine, key, "1")
        outcome = await settle(engine, fork)
        assert (outcome.status, dict(outcome.interrupt_payload)) == (INTERRUPTED, {"q": 1})
        assert attempts == [0, 1]
        await engine.resume(fork, {"a": 2})
        assert (await settle(engine, fork)).state == {"answer": 2}


# ---- cohorts ----


def cohort() -> Any:
    """Ten elements, two steps each; the second fails for the elements named in `bad`, and waits for a gate in `slow`."""
    graph = Graph("g").add_transition_for_each("Split", "One", "items", "item").add_transition_chain("One", "Two", "Join", END)
    graph.set_fan_in("Join").set_reducer("found", Reducer.APPEND).set_reducer("sum", Reducer.ADD)
    gate = Gate()

    def first(flow: Flow) -> None:
        flow["one"] = flow["item"]
        flow["sum"] = 0.1

    async def second(flow: Flow) -> None:
        if flow["item"] in flow.get_list("slow"):
            await gate(flow)
        if flow["item"] in flow.get_list("bad"):
            raise TaskError(f"bad {flow['item']}")
        flow["found"] = f"{flow['one']}{flow['item']}"

    def joined(flow: Flow) -> None:
        flow["joined"] = len(flow.get_list("found"))

    return make_app({"g": graph}, {"One": first, "Two": second, "Join": joined}), gate


ITEMS = [f"i{n}" for n in range(10)]


def found(*, changed: str | None = None, but: tuple[int, ...] = ()) -> list[str]:
    return [f"i{n}{'x' if n == 3 and changed else f'i{n}'}" for n in range(10) if n not in but]


@on_loop
@pytest.mark.row("D13", "H-02")
@pytest.mark.parametrize("place", ["1", "2"])
async def test_one_branch_of_a_cohort_runs_again(dwarf_engine: Make, place: str) -> None:
    app, _ = cohort()
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", {"items": ITEMS})
        assert outcome.state["found"] == found()
        fork = await fork_at(engine, key, f"1/3.{place}")
        assert (await engine.wait(fork, 20)).state == outcome.state
        mine, theirs = paths(await engine.history(fork)), paths(await engine.history(key))
        assert {path: step.task_name for path, step in mine.items()} == {path: step.task_name for path, step in theirs.items()}
        again = [path for path, step in mine.items() if step.created_at != theirs[path].created_at]
        assert again == (["1/3.1", "1/3.2", "2"] if place == "1" else ["1/3.2", "2"])
        changed = await fork_at(engine, key, f"1/3.{place}", {"item": "x"})
        state = (await engine.wait(changed, 20)).state
        assert state["found"] == [each if n != 3 else "xx" if place == "1" else "i3x" for n, each in enumerate(found())]
        assert state["items"] == ITEMS
        assert state["sum"] == outcome.state["sum"]
        assert (await engine.step((await step_at(engine, changed, f"1/3.{place}")).step_key)).state["item"] == "x"  # type: ignore[index]
        assert await invariants(engine) == []


@on_loop
@pytest.mark.row("D13")
async def test_a_fan_in_runs_again_on_what_was_folded(dwarf_engine: Make) -> None:
    app, _ = cohort()
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", {"items": ITEMS})
        fork = await fork_at(engine, key, "2")
        assert (await engine.wait(fork, 20)).state == outcome.state
        changed = await fork_at(engine, key, "2", {"found": ["a", "b"]})
        state = (await engine.wait(changed, 20)).state
        assert (state["found"], state["joined"]) == (["a", "b"], 2)
        again = await fork_at(engine, changed, "1/0.2", {"item": "y"})  # the other was chosen after the cohort: it is gone
        assert (await engine.wait(again, 20)).state["found"] == ["i0y", *found()[1:]]


@on_loop
@pytest.mark.row("D6", "H-20")
async def test_siblings_that_failed_stay_failed_and_a_preview_says_so(dwarf_engine: Make) -> None:
    app, _ = cohort()
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", {"items": ITEMS, "bad": ["i3", "i7"]})
        assert outcome.status is FAILED
        chosen, other = await step_at(engine, key, "1/3.2"), await step_at(engine, key, "1/7.2")
        preview = await engine.fork(chosen.step_key, {"bad": []}, preview=True)
        assert isinstance(preview, ForkPreview)
        assert [step.step_key for step in preview.reruns] == [chosen.step_key]
        assert (preview.kept, preview.failed, preview.cancelled) == (20, [other.step_key], [])
        fork = await engine.fork(chosen.step_key, {"bad": []})
        again = await engine.wait(fork, 20)
        assert (again.status, "bad i7" in again.error) == (FAILED, True)
        last = await fork_at(engine, fork, "1/7.2", {"bad": []})
        assert (await engine.wait(last, 20)).state["found"] == found()


@on_loop
@pytest.mark.row("D15")
async def test_siblings_that_never_settled_are_cancelled_and_the_fan_in_fires(dwarf_engine: Make) -> None:
    app, gate = cohort()
    async with dwarf_engine(app) as engine:
        key = await engine.create("g", {"items": ITEMS, "slow": ["i2", "i3", "i4"]})
        await gate.reached(3)
        await until(lambda: one(engine, "select arrived = 7 from dwarf.active where size is not null"), "the others have arrived")
        await engine.terminate(key, "stop")
        gate.open()
        chosen = await step_at(engine, key, "1/3.2")
        assert chosen.status == "terminated"
        preview = await engine.fork(chosen.step_key, {"slow": []}, preview=True)
        assert len(preview.cancelled) == 2
        fork = await engine.fork(chosen.step_key, {"slow": []})
        outcome = await engine.wait(fork, 20)
        assert outcome.status is COMPLETED
        assert outcome.state["found"] == found(but=(2, 4))
        assert outcome.state["sum"] == (await settle(engine, fork)).state["sum"] == pytest.approx(1.0)
        steps = paths(await engine.history(fork))
        assert [str(steps[f"1/{n}.2"].status) for n in (1, 2, 3, 4)] == ["completed", "cancelled", "completed", "cancelled"]
        assert await invariants(engine) == []


@on_loop
@pytest.mark.row("D13", "D15")
async def test_a_cohort_that_was_still_being_made_is_as_wide_as_it_was(dwarf_engine: Make) -> None:
    app, _ = cohort()
    async with dwarf_engine(app, workers=0) as engine:
        key = await engine.create("g", {"items": [f"n{n}" for n in range(2_500)], "slow": ["n1"]})
        async with dwarf_engine(app, dsns=engine.dsns, workers=1) as worker:
            await until(lambda: one(worker, "select count(*) > 0 from dwarf.active where size is not null"), "branches are made")
            await worker.kill()
        await engine.terminate(key)
        made = await one(engine, "select count(*) from dwarf.history where branch <> 0")
        async with dwarf_engine(app, dsns=engine.dsns) as worker:
            chosen = next(step for step in await worker.history(key) if branch_seq(step.step_id)[0] and branch_seq(step.step_id)[1] == 1)
            fork = await worker.fork(chosen.step_key, {"slow": []})
            outcome = await worker.wait(fork, 30)
            assert (outcome.status, made <= 2_500) == (COMPLETED, True)
            assert len(outcome.state["found"]) >= 1
            assert await invariants(worker) == []


@on_loop
@pytest.mark.row("D13")
async def test_branches_inside_branches_and_children_inside_them(dwarf_engine: Make) -> None:
    inner = "Outer"
    graph = Graph("g").add_transition_for_each("Split", inner, "rows", "row").add_transition_for_each(inner, "Cell", "cells", "cell")
    graph.add_transition("Cell", "InnerJoin").add_transition("InnerJoin", "Join").add_transition("Join", END)
    graph.set_fan_in("InnerJoin").set_fan_in("Join").set_reducer("all", Reducer.APPEND)

    def outer(flow: Flow) -> None:
        flow["cells"] = [f"{flow['row']}{n}" for n in range(3)]

    def cell(flow: Flow) -> None:
        flow["all"] = flow.subgraph("child", {"x": flow["cell"]})["y"]

    def child(flow: Flow) -> None:
        flow["y"] = flow["x"] + "!"

    app = make_app({"g": graph, "child": line("Child")}, {inner: outer, "Cell": cell, "Child": child})
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", {"rows": ["a", "b", "c"]})
        whole = [f"{row}{n}!" for row in "abc" for n in range(3)]
        assert outcome.state["all"] == whole
        theirs = paths(await engine.history(key))
        for path, step in theirs.items():
            fork = await engine.fork(step.step_key)
            assert (await engine.wait(fork, 20)).state == outcome.state, path
            assert paths(await engine.history(fork)).keys() == theirs.keys(), path
        changed = await fork_at(engine, key, "1/1.1/2.1>1", {"x": "deep"})
        assert (await engine.wait(changed, 20)).state["all"] == ["deep!" if each == "b2!" else each for each in whole]
        assert await invariants(engine) == []


# ---- crashes, damage, retention ----


@on_loop
@pytest.mark.row("D16")
async def test_damage_is_not_copied(dwarf_engine: Make) -> None:
    async with dwarf_engine(checkout()) as engine:
        key, _ = await engine.run("pay")
        step = (await engine.history(key))[1]
        await sql(engine, "update dwarf.history set status = 4 where seq = 1")
        await refused(engine.fork(step.step_key), 409, "interrupted")
        assert await one(engine, "select count(*) from dwarf.live") == 0
        assert await one(engine, "select count(*) from dwarf.history") == 2


@on_loop
@pytest.mark.row("D17", "M18")
async def test_a_kill_in_the_middle_of_a_fork_leaves_nothing(dwarf_engine: Make) -> None:
    """Its backend is ended when everything but the last rows has been written."""
    async with dwarf_engine(checkout()) as engine:
        key, _ = await engine.run("pay")
        step = (await engine.history(key))[1]
        counts = "select (select count(*) from dwarf.history) as steps, (select count(*) from dwarf.live) as flows, (select count(*) from dwarf.active) as rows"
        before = await sql(engine, counts)
        with psycopg.connect(engine.dsn) as blocker:
            blocker.execute("lock table dwarf.forks in exclusive mode")
            forking = asyncio.create_task(engine.fork(step.step_key, {"amount": 1}))
            waiting = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%%fork_v1%%' and datname = current_database()"
            [(pid,)] = await until(lambda: sql(engine, waiting), "the fork waits")
            await sql(engine, "select pg_terminate_backend(%s)", pid)
            await refused(forking, 503)
        assert await sql(engine, counts) == before
        fork = await engine.fork(step.step_key, {"amount": 1})
        assert (await engine.wait(fork, 20)).status is COMPLETED


@on_loop
@pytest.mark.row("D20", "I8")
async def test_what_retention_keeps_can_be_forked_and_what_it_drops_takes_its_forks_along(dwarf_engine: Make) -> None:
    app = make_app({"g": line("Call", "End"), "child": line("Double")}, {"Call": call("child"), "Double": double})
    async with dwarf_engine(app, sweep_seconds=1) as engine:
        key, _ = await engine.run("g", {"x": 1})
        flow_id = FlowKey.parse(key).flow_id
        await sql(engine, "select dwarf.move_trees_v1(array[%s::bigint], dwarf.day_of_id(%s))", flow_id, flow_id)
        assert await one(engine, "select bool_and(day = -1) from dwarf.flows")
        fork = await fork_at(engine, key, "2")
        assert (await engine.wait(fork, 20)).state == {"x": 1, "got": 2}
        inside = await fork_at(engine, key, "1>1", {"x": 5})
        assert (await engine.wait(inside, 20)).state == {"x": 1, "got": 10}
        assert await one(engine, "select count(*) from dwarf.forks") == 2
        await engine.delete(fork)
        await removed(engine, fork)
        assert await one(engine, "select count(*) from dwarf.forks") == 1
        await engine.advance(86_400 * 2)
        await sql(engine, "select dwarf.drop_partitions((dwarf.now() at time zone 'utc')::date)")
        assert await one(engine, "select count(*) from dwarf.forks") == 0
        await refused(engine.snapshot(inside), 404)


@on_loop
@pytest.mark.row("D1", "D3")
async def test_forks_race_with_deletes(dwarf_engine: Make) -> None:
    """Each call answers truthfully, and whatever was forked is whole."""
    app, _ = cohort()
    async with dwarf_engine(app) as engine:
        keys = await engine.create_many([("g", {"items": ITEMS})] * 8)
        for key in keys:
            await engine.wait(key, 20)
        steps = [await step_at(engine, key, "1/3.2") for key in keys]
        forks = [engine.fork(step.step_key) for step in steps for _ in range(3)]
        answers = await asyncio.gather(*forks, *map(engine.delete, keys), return_exceptions=True)
        made = [each for each in answers if isinstance(each, str)]
        assert all(each is None or isinstance(each, str) or getattr(each, "status", 0) == 409 for each in answers), answers
        for fork in made:
            assert (await engine.wait(fork, 20)).state["found"] == found()
        assert await invariants(engine) == []


@on_loop
@pytest.mark.row("D26", "D27")
async def test_a_fork_in_a_thread_is_never_continued_for_another(dwarf_engine: Make) -> None:
    """A continue names the flow it means: neither a fork that ended later nor an older turn takes the place of it."""
    app = make_app({"g": line("A").set_reducer("turns", Reducer.APPEND)}, {"A": write("turns", ["a"])})
    async with dwarf_engine(app) as engine:
        first, _ = await engine.run("g")
        second = await engine.continue_flow(first)
        assert (await engine.wait(second, 20)).state == {"turns": ["a", "a"]}
        fork = await fork_at(engine, first, "1", {"turns": ["z"]})
        assert (await engine.wait(fork, 20)).state == {"turns": ["z", "a"]}
        assert {each.thread_key for each in (await engine.list_closed()).items} == {first}
        third = await engine.continue_flow(second)
        assert (await engine.wait(third, 20)).state == {"turns": ["a", "a", "a"]}
        await engine.delete(third)
        await refused(engine.continue_flow(third), 409)
        assert (await engine.wait(await engine.continue_flow(second), 20)).state == {"turns": ["a", "a", "a"]}


@on_loop
async def test_forks_are_open_to_tasks_and_threads(dwarf_engine: Make) -> None:
    def mend(flow: Flow) -> None:
        key = flow.get_str("step")
        flow["steps"] = len(flow.client.fork(key, preview=True).reruns)
        flow["fork"] = flow.client.fork(key, {"amount": 2})

    app = checkout()
    app.add_graph("mend", line("Mend"))
    app.task("Mend")(mend)
    async with dwarf_engine(app) as engine:
        key, _ = await engine.run("pay")
        _, outcome = await engine.run("mend", {"step": (await engine.history(key))[1].step_key})
        assert outcome.status is COMPLETED, outcome
        assert outcome.state["steps"] == 1
        assert (await engine.wait(outcome.state["fork"], 20)).state == {"amount": 2, "checked": 2, "paid": True}
