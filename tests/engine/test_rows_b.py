"""Group B: interrupt and resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import Flow, SignalError, TaskError
from dwarf.flow import Parked
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    Gate,
    Make,
    calm,
    invariants,
    make_app,
    on_loop,
    one,
    paths,
    refused,
    settle,
    shape,
    sql,
    unknown,
)


class Asking:
    """A task that asks, and notes each of its runs."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.answers: list[Any] = []

    def __call__(self, flow: Flow) -> None:
        self.runs.append(dict(flow.snapshot()))
        if "sent" not in flow:
            flow["sent"] = len(self.runs)
        flow["mine"] = [flow.get("x", 0)]
        answer = flow.interrupt({"ask": flow.get("x", 0), "run": len(self.runs)})
        self.answers.append(answer)
        flow["answer"] = answer.get("a")


@pytest.mark.row("B1", "B2", "B3")
@on_loop
async def test_an_interrupt_waits_holding_nothing_and_runs_again_with_the_answer(dwarf_engine: Make) -> None:
    ask = Asking()
    async with dwarf_engine(make_app({"g": "A->B->C->END", "other": "X->END"}, {"B": ask}), workers=1) as engine:
        key = await engine.create("g", {"n": 1})
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.interrupt_payload) == (INTERRUPTED, {"ask": 0, "run": 1})
        a, b = await engine.history(key)
        assert (str(a.status), str(b.status), b.parked) == ("completed", "interrupted", True)
        assert (await engine.step(b.step_key)).interrupt_payload == {"ask": 0, "run": 1}
        [row] = await sql(engine, "select owner, claimable, wake_at from dwarf.active")
        assert row == (None, None, None)
        assert (await engine.run("other"))[1].status is COMPLETED  # the only slot is free
        await engine.resume(key, {"a": [1, {"b": 2}], "mine": "not merged"})
        outcome = await engine.wait(key)
        assert (outcome.status, dict(outcome.state)) == (COMPLETED, {"n": 1, "sent": 1, "mine": [0], "answer": [1, {"b": 2}]})
        assert ask.runs == [{"n": 1}, {"n": 1, "sent": 1, "mine": [0]}]
        assert ask.answers == [{"a": [1, {"b": 2}], "mine": "not merged"}]
        _, b, c = await engine.history(key)
        assert (b.attempt, str(b.status), b.parked) == (0, "completed", False)
        assert (await engine.step(c.step_key)).state == outcome.state


@pytest.mark.row("B4", "B5", "B6", "B7")
@on_loop
async def test_what_a_resume_takes(dwarf_engine: Make) -> None:
    ask, gate = Asking(), Gate()
    async with dwarf_engine(make_app({"g": "B->END", "run": "G->END"}, {"B": ask, "G": gate})) as engine:
        key, _ = await engine.run("g")
        for data in ([1], "text", 5, True, {"n": float("nan")}, {"h": object()}, {1: 2}, {"x": "\ud800"}):
            await refused(engine.resume(key, data), 400)
            assert (await engine.snapshot(key)).status is INTERRUPTED
        await refused(engine.resume(unknown(key)), 404)
        await engine.resume(key)
        assert (await engine.wait(key)).status is COMPLETED
        assert ask.answers == [{}]
        error = await refused(engine.resume(key), 409)
        assert key.rsplit("-", 1)[1] not in str(error)
        running = await engine.create("run")
        await gate.reached()
        await refused(engine.resume(running), 409)
        gate.open()
        # a task that is not over takes no answer in advance
        assert (await engine.wait(running)).status is COMPLETED
        typed, _ = await engine.run("g")
        await engine.resume(typed, {"a": 2**70})
        assert (await engine.wait(typed)).state["answer"] == 2**70


@pytest.mark.parametrize("racers", [2, 12])
@pytest.mark.row("B8")
@on_loop
async def test_of_racing_resumes_one_wins(dwarf_engine: Make, racers: int) -> None:
    ask = Asking()
    app = make_app({"g": "B->END"}, {"B": ask})
    async with dwarf_engine(app) as engine, dwarf_engine(app, dsns=engine.dsns) as other:
        for _ in range(5):
            ask.answers.clear()
            key, _ = await engine.run("g")
            calls = [(engine, other)[n % 2].resume(key, {"a": n}) for n in range(racers)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            won = [n for n, answer in enumerate(answers) if answer is None]
            assert len(won) == 1, answers
            assert {getattr(answer, "status", None) for answer in answers if answer is not None} == {409}
            assert (await engine.wait(key)).state["answer"] == won[0]
            assert ask.answers == [{"a": won[0]}]


@pytest.mark.row("B9", "B11", "E19")
@on_loop
async def test_an_interrupt_five_subgraphs_deep_shows_at_the_root(dwarf_engine: Make) -> None:
    ask = Asking()

    def call(flow: Flow) -> None:
        depth = flow.get_int("depth")
        flow["got"] = flow.subgraph("leaf" if depth == 5 else "g", {"depth": depth + 1, "x": depth})

    async with dwarf_engine(make_app({"g": "P->Q->END", "leaf": "B->END"}, {"P": call, "B": ask})) as engine:
        root = await engine.create("g", {"depth": 1})
        outcome = await engine.wait(root)
        assert (outcome.status, outcome.interrupt_payload) == (INTERRUPTED, {"ask": 5, "run": 1})
        keys, steps = [root], await engine.history(root)
        for depth in range(1, 6):
            [caller] = steps
            assert (str(caller.status), caller.parked, caller.step_depth) == ("parked", True, depth)
            keys.append(caller.sub_flow_key)
            steps = caller.sub_history
        [leaf] = steps
        assert (str(leaf.status), leaf.step_depth) == ("interrupted", 6)
        for key in keys:
            each = await engine.snapshot(key)
            assert (each.status, each.interrupt_payload) == (INTERRUPTED, {"ask": 5, "run": 1})
        for key in keys[1:]:
            await refused(engine.resume(key, {"a": 1}), 400)
        await engine.resume(root, {"a": "leaf only"})
        outcome = await engine.wait(root)
        got: Any = outcome.state
        for _ in range(5):
            assert "answer" not in got
            got = got["got"]
        assert got["answer"] == "leaf only"
        assert ask.answers == [{"a": "leaf only"}]
        assert all([(await engine.snapshot(key)).status is COMPLETED for key in keys])


@pytest.mark.row("B12", "B13", "B14", "A41")
@on_loop
async def test_branches_are_asked_one_after_the_other(dwarf_engine: Make) -> None:
    """The earlier interrupt is shown first; one branch is made to park before the other."""
    ask, gate = Asking(), Gate()

    async def late(flow: Flow) -> None:
        await gate(flow)
        ask(flow)

    from tests.strategies import sketch

    graph = sketch("S->A->J S->B->J J⊕ J->END").set_reducer("mine", "append").set_reducer("answer", "append")
    graph.set_reducer("sent", "add")
    joins: list[Any] = []

    def join(flow: Flow) -> None:
        joins.append(dict(flow.snapshot()))

    def second(flow: Flow) -> None:
        flow["x"] = 2
        ask(flow)

    async with dwarf_engine(make_app({"g": graph}, {"A": late, "B": second, "J": join})) as engine:
        key = await engine.create("g", {"n": 1})
        outcome = await engine.wait(key)  # B, the later branch, parked first
        assert (outcome.status, outcome.interrupt_payload["ask"]) == (INTERRUPTED, 2)
        await gate.reached()
        gate.open()
        await calm(engine)
        outcome = await engine.snapshot(key)
        assert outcome.interrupt_payload["ask"] == 2
        assert outcome.state == {"n": 1, "x": 2, "sent": 1, "mine": [2]}
        await engine.resume(key, {"a": [20]})
        outcome = await engine.snapshot(key)
        assert (outcome.status, outcome.interrupt_payload["ask"]) == (INTERRUPTED, 0)
        await engine.resume(key, {"a": [10]})
        outcome = await engine.wait(key)
        assert outcome.status is COMPLETED
        assert outcome.state["answer"] == [10, 20]  # in branch order
        assert outcome.state["mine"] == [0, 2]
        assert len(joins) == 1
        assert await invariants(engine) == []


@pytest.mark.row("B12", "B14")
@on_loop
async def test_a_hundred_branches_ask_and_each_gets_one_answer(dwarf_engine: Make) -> None:
    from tests.strategies import sketch

    def ask(flow: Flow) -> None:
        flow["out"] = [[flow["item"], flow.interrupt({"item": flow["item"]})["echo"]]]

    graph = sketch("S-*xs->W->J J⊕ J->END").set_reducer("out", "append")
    async with dwarf_engine(make_app({"g": graph}, {"W": ask})) as engine:
        key = await engine.create("g", {"xs": list(range(100))})
        await calm(engine)
        for _ in range(100):
            shown = (await engine.snapshot(key)).interrupt_payload["item"]
            await engine.resume(key, {"echo": shown})
        await refused(engine.resume(key), 409)
        outcome = await engine.wait(key)
        assert outcome.state["out"] == [[n, n] for n in range(100)]


@pytest.mark.row("B16")
@on_loop
async def test_two_branches_of_one_child_ask_and_the_first_stays(dwarf_engine: Make) -> None:
    gate = Gate()

    def call(flow: Flow) -> None:
        flow["got"] = flow.subgraph("child")["answers"]

    def first(flow: Flow) -> None:
        flow["answers"] = [flow.interrupt({"from": "A"})["a"]]

    async def second(flow: Flow) -> None:
        await gate(flow)
        flow["answers"] = [flow.interrupt({"from": "B"})["a"]]

    from tests.strategies import sketch

    child = sketch("S->A->J S->B->J J⊕ J->END").set_reducer("answers", "append")
    async with dwarf_engine(make_app({"g": "P->END", "child": child}, {"P": call, "A": first, "B": second})) as engine:
        key = await engine.create("g")
        assert (await engine.wait(key)).interrupt_payload == {"from": "A"}
        gate.open()
        await calm(engine)
        [caller] = await engine.history(key)
        for each in (key, caller.sub_flow_key):
            assert (await engine.snapshot(each)).interrupt_payload == {"from": "A"}
        await engine.resume(key, {"a": 1})
        assert (await engine.snapshot(key)).interrupt_payload == {"from": "B"}
        await engine.resume(key, {"a": 2})
        assert (await engine.wait(key)).state["got"] == [1, 2]


@pytest.mark.row("B18", "B20")
@on_loop
async def test_siblings_of_an_interrupted_branch_go_on_and_may_fail(dwarf_engine: Make) -> None:
    ask = Asking()

    def boom(flow: Flow) -> None:
        raise TaskError("one branch is broken")

    def call(flow: Flow) -> None:
        try:
            flow.subgraph("bad")
        except Exception as error:
            flow["error"] = str(error)
            raise

    graphs = {"good": "S->A->J S->B->C->J J⊕ J->END", "bad": "S->A->J S->F->J J⊕ J->END", "g": "P->END"}
    async with dwarf_engine(make_app(graphs, {"A": ask, "F": boom, "P": call})) as engine:
        key = await engine.create("good")
        await calm(engine)
        assert (await engine.snapshot(key)).status is INTERRUPTED
        steps = paths(await engine.history(key))
        assert {path: str(step.status) for path, step in steps.items()} == {
            "1": "completed", "1/0.1": "interrupted", "1/1.1": "completed", "1/1.2": "completed"
        }  # fmt: skip
        await engine.resume(key)
        assert (await engine.wait(key)).status is COMPLETED

        key = await engine.create("bad")
        await calm(engine)
        assert (await engine.snapshot(key)).status is INTERRUPTED  # the failure waits for the branch that asks
        if hasattr(engine, "fork"):
            await refused(engine.fork(paths(await engine.history(key))["1/1.1"].step_key), 409)
        await engine.resume(key)
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.error) == (FAILED, "one branch is broken")

        key = await engine.create("g")
        await calm(engine)
        [caller] = await engine.history(key)
        assert (await engine.snapshot(caller.sub_flow_key)).status is INTERRUPTED
        await engine.resume(key)
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.error) == (FAILED, "one branch is broken")
        assert (await engine.snapshot(caller.sub_flow_key)).status is FAILED


@pytest.mark.row("B25", "B26", "B27")
@on_loop
async def test_a_second_signal_in_one_run_is_an_error_to_the_task(dwarf_engine: Make) -> None:
    seen: list[str] = []

    def twice(flow: Flow) -> None:
        try:
            flow.interrupt({"n": 1})
        except Parked:
            for again in (lambda: flow.interrupt({"n": 2}), lambda: flow.subgraph("child")):
                try:
                    again()
                except SignalError as error:
                    seen.append(str(error))
            raise

    def mistyped(flow: Flow) -> None:
        for payload in ([1], "text", 5, {"n": float("nan")}):
            try:
                flow.interrupt(payload)
            except Exception as error:
                seen.append(type(error).__name__)
        flow["went"] = "on"

    def dropped(flow: Flow) -> None:
        try:
            flow.interrupt({"n": 1})
        except Parked:
            raise TaskError("after all, no") from None

    graphs = {"twice": "A->END", "mistyped": "M->END", "dropped": "D->END D-e->H->END", "child": "C->END"}
    async with dwarf_engine(make_app(graphs, {"A": twice, "M": mistyped, "D": dropped})) as engine:
        key, outcome = await engine.run("twice")
        assert (outcome.status, outcome.interrupt_payload, len(seen)) == (INTERRUPTED, {"n": 1}, 2)
        seen.clear()
        await engine.resume(key)
        assert (await engine.wait(key)).status is COMPLETED
        key, outcome = await engine.run("mistyped")
        assert (outcome.status, outcome.state) == (COMPLETED, {"went": "on"})
        assert len(seen) == 4
        key, outcome = await engine.run("dropped")
        assert outcome.status is COMPLETED
        assert outcome.state["onErr"]["error"] == "after all, no"


@pytest.mark.row("B8", "B3")
@on_loop
async def test_an_interrupt_called_again_in_a_run_has_the_same_answer(dwarf_engine: Make) -> None:
    def task(flow: Flow) -> None:
        flow["both"] = [flow.interrupt({"n": 1}), flow.interrupt({"n": 2})]

    def mixed(flow: Flow) -> None:
        flow.interrupt()
        flow.subgraph("g")

    async with dwarf_engine(make_app({"g": "A->END", "mixed": "M->END M-e->H->END"}, {"A": task, "M": mixed})) as engine:
        key, _ = await engine.run("g")
        await engine.resume(key, {"a": 1})
        assert (await engine.wait(key)).state["both"] == [{"a": 1}, {"a": 1}]
        key, _ = await engine.run("mixed")
        await engine.resume(key)
        outcome = await engine.wait(key)  # found by the engine: no handler
        assert (outcome.status, "M" in outcome.error) == (FAILED, True)


@pytest.mark.row("B28", "B30", "G25")
@on_loop
async def test_waiting_flows_survive_a_restart_of_everything(dwarf_engine: Make) -> None:
    """Pending, sleeping, parked on a child, interrupted: all stop, all finish, each step once."""
    runs: list[str] = []

    def note(flow: Flow) -> None:
        runs.append(flow.task_name)

    def sleeps(flow: Flow) -> None:
        note(flow)
        flow.sleep(3600)

    def asks(flow: Flow) -> None:
        note(flow)
        flow["answer"] = flow.interrupt({"q": 1})

    def calls(flow: Flow) -> None:
        note(flow)
        flow["got"] = flow.subgraph("asks")

    graphs = {"pending": "N1->END", "sleeps": "S->N2->END", "asks": "N3->I->N4->END", "calls": "P->N5->END"}
    tasks = {**dict.fromkeys(("N1", "N2", "N3", "N4", "N5"), note), "S": sleeps, "I": asks, "P": calls}
    app = make_app(graphs, tasks)
    first = dwarf_engine(app)
    await first.start()
    keys = {url: await first.create(url) for url in ("sleeps", "asks", "calls")}
    await calm(first)
    await first.close()
    # somebody creates while nobody runs
    async with dwarf_engine(app, dsns=first.dsns, workers=0) as creator:
        keys["pending"] = await creator.create("pending")
        await creator.advance(40 * 86_400)
        for url in ("asks", "calls"):
            assert (await creator.snapshot(keys[url])).status is INTERRUPTED  # an interrupt has no deadline
    async with dwarf_engine(app, dsns=first.dsns) as engine:
        for url in ("asks", "calls"):
            await engine.resume(keys[url], {"a": 1})
        for key in keys.values():
            assert (await engine.wait(key)).status is COMPLETED
        assert (await engine.snapshot(keys["calls"])).state["got"] == {"answer": {"a": 1}}
        assert await invariants(engine) == []
    twice = {"I": 4, "P": 2, "N3": 2, "N4": 2}  # a wait's task runs again with its answer; "asks" ran as a child too
    assert {name: runs.count(name) for name in set(runs)} == {**dict.fromkeys(("N1", "N2", "N5", "S"), 1), **twice}


@pytest.mark.row("B23")
@on_loop
async def test_a_resume_that_was_rolled_back_changed_nothing(dwarf_engine: Make) -> None:
    """A crash inside the transaction: its statement is run by hand and rolled back."""
    import psycopg

    from dwarf.keys import FlowKey

    ask = Asking()
    async with dwarf_engine(make_app({"g": "B->END"}, {"B": ask})) as engine:
        key, before = await engine.run("g")

        def crash() -> None:
            with psycopg.connect(engine.dsn) as connection:
                done = connection.execute("select dwarf.resume_v1(%s, '{\"a\": 1}'::json)", (FlowKey.parse(key).flow_id,)).fetchone()
                assert done is not None
                connection.rollback()

        await asyncio.to_thread(crash)
        assert await engine.snapshot(key) == before
        [step] = await engine.history(key)
        assert str(step.status) == "interrupted"
        await engine.resume(key, {"a": 2})
        assert (await engine.wait(key)).state["answer"] == 2


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.row("B3")
@on_loop
async def test_interrupts_in_every_place(dwarf_engine: Make, style: str) -> None:
    """On the trunk, in a branch, in a nested branch and in a child, and after a retry: the answer goes where the question was."""

    def body(flow: Flow) -> None:
        if flow.attempt == 0 and flow.retry(0):
            return
        flow["out"] = [flow.interrupt({"step": flow.step_key})["echo"] == flow.step_key]

    async def async_body(flow: Flow) -> None:
        await asyncio.sleep(0)
        body(flow)

    def call(flow: Flow) -> None:
        flow["out"] = flow.subgraph("line")["out"]

    from tests.strategies import sketch

    graphs = {
        "line": "W->END", "fan": "S-*xs->W->J J⊕ J->END", "nested": "S->A S->W2->J A-*xs->W->K K⊕ K->J J⊕ J->END", "call": "P->END"
    }  # fmt: skip
    made = {url: sketch(text, url).set_reducer("out", "append") for url, text in graphs.items()}
    task = async_body if style == "async" else body
    async with dwarf_engine(make_app(made, {"W": task, "W2": task, "P": call})) as engine:
        keys = {url: await engine.create(url, {"xs": [1, 2, 3]}) for url in graphs}
        await calm(engine)
        for url, count in (("line", 1), ("fan", 3), ("nested", 4), ("call", 1)):
            for _ in range(count):
                outcome = await engine.snapshot(keys[url])
                assert outcome.status is INTERRUPTED
                await engine.resume(keys[url], {"echo": outcome.interrupt_payload["step"]})
            assert (await settle(engine, keys[url])).state["out"] == [True] * count
        assert await invariants(engine) == []


@pytest.mark.row("B6", "C8")
@on_loop
async def test_an_interrupted_flow_that_is_ended_takes_no_answer(dwarf_engine: Make) -> None:
    ask = Asking()
    async with dwarf_engine(make_app({"g": "B->C->END"}, {"B": ask})) as engine:
        key, _ = await engine.run("g")
        await engine.terminate(key)
        assert (await engine.snapshot(key)).status is TERMINATED
        await refused(engine.resume(key), 409)
        assert shape(await engine.history(key)) == [("B", "terminated")]
        assert len(ask.runs) == 1
        assert await one(engine, "select count(*) from dwarf.parks") == 0
