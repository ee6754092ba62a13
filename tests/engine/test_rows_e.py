"""Group E: subgraphs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import App, Flow, FlowOptions, Graph, NotFound, Query, SubgraphError, TaskError
from dwarf.hosts.host import loading_baggage
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    RUNNING,
    TERMINATED,
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
    until,
    walk,
)
from tests.strategies import sketch


def calls(url: str, given: Any = None, *, swallow: bool = False) -> Any:
    def task(flow: Flow) -> None:
        try:
            flow["got"] = flow.subgraph(url, given)
        except SubgraphError as error:
            flow["failure"] = str(error)
            if not swallow:
                raise

    return task


def fails(flow: Flow) -> None:
    raise TaskError("the child is broken", status=418)


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.row("E1", "E2", "E4", "E23")
@on_loop
async def test_a_child_gets_its_input_alone_and_the_options_of_its_parent(dwarf_engine: Make, style: str) -> None:
    seen: list[Any] = []

    def given(flow: Flow) -> Any:
        return {"none": None, "object": {"x": [1], "big": 2**70, "nul": "\x00"}, "empty": {}}[flow["item"]]

    def call(flow: Flow) -> None:
        before = dict(flow.snapshot())
        flow["writes"] = 1
        result = flow.subgraph("child", given(flow))
        assert dict(flow.snapshot()) == {**before, "writes": 1}  # nothing merged
        flow["out"] = [result]

    async def async_call(flow: Flow) -> None:
        call(flow)

    def child(flow: Flow) -> None:
        seen.append((dict(flow.snapshot()), flow.priority, flow.fairness_key, dict(flow.baggage), flow.flow_key, flow.workflow_url))
        flow["mine"] = 1

    graph = sketch("S-*xs->P->J J⊕ J->END").set_reducer("out", "append")
    app = make_app({"g": graph, "child": "C->END"}, {"P": async_call if style == "async" else call, "C": child})
    async with dwarf_engine(app, shards=3) as engine:
        options = FlowOptions(priority=2, fairness_key="team", fairness_weight=7, time_budget=33, baggage={"who": "me"})
        key, outcome = await engine.run("g", {"xs": ["none", "object", "empty"], "secret": 1}, options)
        assert outcome.state["out"] == [{"mine": 1}, {"x": [1], "big": 2**70, "nul": "\x00", "mine": 1}, {"mine": 1}]
        assert "writes" in outcome.state  # the parent's own
        assert sorted(str(state) for state, *_ in seen) == sorted(str(state) for state in ({}, {"x": [1], "big": 2**70, "nul": "\x00"}, {}))
        assert {(priority, fairness, str(baggage), url) for _, priority, fairness, baggage, _, url in seen} == {
            (2, "team", "{'who': 'me'}", "child")
        }
        children = {flow_key for *_, flow_key, _ in seen}
        assert len(children) == 3
        assert {child.split("-")[0] for child in children} == {key.split("-")[0]}
        shard = int(key.split("-")[0])
        import psycopg

        with psycopg.connect(engine.dsns[shard - 1]) as connection:
            rows = connection.execute(
                "select weight, budget_ms, flow_id = thread_id from dwarf.flows where caller_flow is not null"
            ).fetchall()
        assert rows == [(7.0, 33_000, True)] * 3


@pytest.mark.row("E5", "E6", "E24", "I-42")
@on_loop
async def test_children_are_hidden_from_lists_unless_asked_for(dwarf_engine: Make) -> None:
    gate = Gate()
    graphs = {"g": "P->END", "child": "C->END"}
    async with dwarf_engine(make_app(graphs, {"P": calls("child"), "C": gate})) as engine:
        key = await engine.create("g")
        await gate.reached()
        for is_open in (True, False):
            listing = engine.list_open if is_open else engine.list_closed
            assert [(item.flow_key, item.subgraph) for item in await listing()] == [(key, False)]
            page = await listing(Query(include_subgraphs=True))
            assert sorted((item.workflow_url, item.subgraph) for item in page) == [("child", True), ("g", False)]
            assert all(item.thread_key == item.flow_key for item in page)
            if is_open:
                gate.open()
                await engine.wait(key)


@pytest.mark.row("E9", "E12")
@on_loop
async def test_a_failed_child_raises_in_its_caller(dwarf_engine: Make) -> None:
    """Swallowed, escaping, handled; on the trunk, in branches, in a grandchild."""
    graphs = {
        "bad": "F->END", "escapes": "P->Z->END", "handled": "P->Z->END P-e->H->END", "swallows": "W->Z->END", "above": "Q->END",
        "branches": "S->P->J S->B->J J⊕ J->END", "swallowing": "S->W->J S->B->J J⊕ J->END", "gone": "N->END", "invalid": "I->END",
    }  # fmt: skip
    app = make_app(graphs, {"F": fails, "P": calls("bad"), "W": calls("bad", swallow=True), "Q": calls("escapes"), "N": calls("nowhere"),
                            "I": calls("half")})  # fmt: skip
    app.add_graph("half", Graph("half"))
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("escapes")
        assert (outcome.status, outcome.error) == (FAILED, "the child is broken")
        [caller] = await engine.history(key)
        assert (str(caller.status), caller.error, shape(caller.sub_history)) == ("failed", "the child is broken", [("F", "failed")])
        assert (await engine.snapshot(caller.sub_flow_key)).status is FAILED
        _, outcome = await engine.run("handled")
        assert outcome.status is COMPLETED
        assert outcome.state["onErr"]["error"] == "the child is broken"
        assert outcome.state["onErr"]["statusCode"] == 500
        _, outcome = await engine.run("swallows")
        assert (outcome.status, outcome.state) == (COMPLETED, {"failure": "the child is broken"})
        _, outcome = await engine.run("above")
        assert (outcome.status, outcome.error) == (FAILED, "the child is broken")
        key, outcome = await engine.run("branches")
        assert (outcome.status, outcome.error) == (FAILED, "the child is broken")
        assert {path: str(step.status) for path, step in paths(await engine.history(key)).items()} == {
            "1": "completed", "1/0.1": "failed", "1/0.1>1": "failed", "1/1.1": "completed"
        }  # fmt: skip
        _, outcome = await engine.run("swallowing")
        assert (outcome.status, outcome.state) == (COMPLETED, {"failure": "the child is broken"})
        for url, text in (("gone", "nowhere"), ("invalid", "half")):
            key, outcome = await engine.run(url)
            assert outcome.status is FAILED
            assert text in outcome.error
            assert shape(await engine.history(key))[0][1] == "failed"
        assert await invariants(engine) == []


@pytest.mark.row("E8")
@on_loop
async def test_a_load_that_hangs_is_cut_at_the_budget(dwarf_engine: Make) -> None:
    class Host(App):
        cut = 0

        async def load_graph(self, url: str) -> Graph:
            if url != "hangs":
                return await super().load_graph(url)
            try:
                await asyncio.Event().wait()
            finally:
                self.cut += 1
            raise NotFound("never")

    app = Host()
    app.add_graph("g", line("P"))
    app.task("P")(calls("hangs"))
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", None, FlowOptions(time_budget=0.3))
        assert (outcome.status, app.cut) == (FAILED, 1)
        assert shape(await engine.history(key)) == [("P", "failed")]
        assert await one(engine, "select count(*) from dwarf.live") == 0


@pytest.mark.row("E11")
@on_loop
async def test_a_child_that_fails_by_its_last_arrival_releases_its_waiters(dwarf_engine: Make) -> None:
    gate, keys = Gate(), list[str]()

    async def last(flow: Flow) -> None:
        keys.append(flow.flow_key)
        await gate(flow)

    def boom(flow: Flow) -> None:
        raise TaskError(f"branch {flow['n']} broke")

    child = sketch("S->A->J S->B->J S->C->J J⊕ J->END")
    async with dwarf_engine(
        make_app({"g": "P->END", "child": child}, {"P": calls("child", {"n": 1}), "A": boom, "B": boom, "C": last})
    ) as engine:
        key = await engine.create("g")
        await gate.reached()
        waits = [asyncio.create_task(engine.wait(each)) for each in (keys[0], key)]
        await until(lambda: engine.hub(1).waiting == 2)
        gate.open()
        for outcome in await asyncio.gather(*waits):
            assert (outcome.status, outcome.error) == (FAILED, "branch 1 broke")


@pytest.mark.row("E13")
@on_loop
async def test_instant_children_of_many_siblings_strand_nobody(dwarf_engine: Make) -> None:
    graph = sketch("S-*xs->P->J J⊕ J->END").set_reducer("got", "append")

    def call(flow: Flow) -> None:
        flow["got"] = [flow.subgraph("child", {"n": flow["item"]})["n"]]

    async with dwarf_engine(make_app({"g": graph, "child": "C->END"}, {"P": call})) as engine:
        keys = await engine.create_many([("g", {"xs": list(range(6))})] * 50)
        for outcome in await asyncio.gather(*map(engine.wait, keys)):
            assert (outcome.status, outcome.state["got"]) == (COMPLETED, list(range(6)))
        assert await invariants(engine) == []


@pytest.mark.row("E19", "E2")
@on_loop
async def test_depths_go_on_into_children_and_hundreds_of_levels_work(dwarf_engine: Make) -> None:
    gate = Gate()

    def down(flow: Flow) -> None:
        if flow["left"] > 1:
            flow["sum"] = flow.subgraph("g", {"left": flow["left"] - 1})["sum"] + 1
        else:
            flow["sum"] = 1

    async def bottom(flow: Flow) -> None:
        if flow["left"] > 1:
            flow.subgraph("held", {"left": flow["left"] - 1})
        await gate(flow)

    async with dwarf_engine(make_app({"g": "A->P->B->END", "held": "H->END"}, {"P": down, "H": bottom})) as engine:
        key, outcome = await engine.run("g", {"left": 5})
        assert outcome.state == {"left": 5, "sum": 5}
        steps = await engine.history(key)
        for depth in range(5):
            a, p, b = steps
            assert [step.step_depth for step in (a, p, b)] == [2 * depth + 1, 2 * depth + 2, 2 * depth + 3]
            steps = p.sub_history
        assert steps == []
        deep, outcome = await engine.run("g", {"left": 100})
        assert outcome.state["sum"] == 100
        assert len(walk(await engine.history(deep))) == 300
        held = await engine.create("held", {"left": 100})
        await gate.reached()
        await engine.terminate(held, "deep")
        assert (await engine.snapshot(held)).status is TERMINATED
        statuses = await sql(engine, "select status, count(*) as n from dwarf.flows where workflow = 'held' group by status")
        assert statuses == [(9, 100)]
        assert await invariants(engine) == []


@pytest.mark.row("E21")
@on_loop
async def test_two_calls_need_two_steps(dwarf_engine: Make) -> None:
    def twice(flow: Flow) -> None:
        flow["first"] = flow.subgraph("child")
        flow["second"] = flow.subgraph("child")

    def swallowing(flow: Flow) -> None:
        flow.subgraph("child")
        try:
            flow.subgraph("child")
        except Exception:
            flow["swallowed"] = True

    graphs = {"two": "P->Q->END", "one": "T->END T-e->H->END", "hush": "S->END", "child": "C->END"}
    tasks = {"P": calls("child"), "Q": calls("child"), "T": twice, "S": swallowing}
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        key, outcome = await engine.run("two")
        assert outcome.status is COMPLETED
        assert [len(step.sub_history) for step in await engine.history(key)] == [1, 1]
        for url, name in (("one", "T"), ("hush", "S")):
            key, outcome = await engine.run(url)
            assert (outcome.status, f"{name!r}" in outcome.error) == (FAILED, True), outcome
            assert shape(await engine.history(key)) == [(name, "failed")]


@pytest.mark.row("E23")
@on_loop
async def test_loader_and_tasks_of_a_child_see_the_parents_baggage(dwarf_engine: Make) -> None:
    seen: list[Any] = []

    class Host(App):
        async def load_graph(self, url: str) -> Graph:
            if url.startswith("child"):
                seen.append((url, dict(loading_baggage.get())))
                return line("C" if url == "child" else "D")
            return await super().load_graph(url)

    app = Host()
    app.add_graph("g", line("P"))
    app.task("P")(calls("child"))
    app.task("C")(calls("child of child"))
    app.task("D")(lambda flow: seen.append(("D", dict(flow.baggage))))
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("g", None, FlowOptions(baggage={"tenant": "t1", "n": 2**60}))
        assert outcome.status is COMPLETED, outcome
        bag = {"tenant": "t1", "n": 2**60}
        assert seen[0] == ("child", bag)
        assert {url for url, _ in seen} == {"child", "child of child", "D"}
        assert all(each == bag for _, each in seen)
        if hasattr(engine, "continue_flow"):
            seen.clear()
            again = await engine.continue_flow(key)
            assert (await engine.wait(again)).status is COMPLETED
            assert all(each == bag for _, each in seen)
            assert ("D", bag) in seen


@pytest.mark.row("E24", "I10")
@on_loop
async def test_children_vanish_with_a_root_that_is_deleted_on_completion(dwarf_engine: Make) -> None:
    keys: list[str] = []
    graphs = {"g": "P->END", "child": "C->END"}
    app = make_app(graphs, {"P": calls("child"), "C": lambda flow: keys.append(flow.flow_key)})
    async with dwarf_engine(app, sweep_seconds=1) as engine:
        key, outcome = await engine.run("g", None, FlowOptions(delete_on_completion=True))
        assert outcome.status is COMPLETED
        rows = await sql(engine, "select delete_on_completion from dwarf.flows order by flow_id")
        assert rows == [(True,), (False,)]
        await removed(engine, key, *keys)
        for each in (key, *keys):
            await refused(engine.snapshot(each), 404)
        assert await one(engine, "select (select count(*) from dwarf.flows) + (select count(*) from dwarf.history)") == 0


@pytest.mark.row("E1", "E2")
@on_loop
async def test_a_child_call_in_every_place(dwarf_engine: Make) -> None:
    """On the trunk, in branches, in nested branches, in a child; after a retry; beside a sleep."""
    runs: list[str] = []

    def call(flow: Flow) -> None:
        runs.append(flow.step_key)
        if flow.attempt == 0 and flow.retry(0):
            return
        flow.sleep(60)  # beside a call it delays nothing but what comes after the answer
        flow["out"] = [flow.subgraph("leaf", {"n": flow.get("item", 9)})["n"]]

    def outer(flow: Flow) -> None:
        flow["out"] = flow.subgraph("fan", {"xs": [7, 8]})["out"]

    graphs = {
        "line": "P->END", "fan": "S-*xs->P->J J⊕ J->END", "nested": "S-*ys->T T-*xs->P->J J⊕ J->K K⊕ K->END", "deep": "O->END", "leaf": "L->END"
    }  # fmt: skip
    made = {url: sketch(text, url).set_reducer("out", "append") for url, text in graphs.items()}
    async with dwarf_engine(make_app(made, {"P": call, "O": outer})) as engine:
        expected = {"line": [9], "fan": [1, 2, 3], "nested": [1, 2, 3, 1, 2, 3], "deep": [7, 8]}
        keys = {url: await engine.create(url, {"xs": [1, 2, 3], "ys": [1, 2]}) for url in expected}
        for url, out in expected.items():
            outcome = await settle(engine, keys[url])
            assert (outcome.status, outcome.state.get("out")) == (COMPLETED, out), (url, outcome)
        assert len(runs) == 3 * len(set(runs))  # first attempt, second attempt up to the call, and with its answer
        assert await invariants(engine) == []


@pytest.mark.row("E6")
@on_loop
async def test_a_child_in_progress_is_untouched_by_refused_verbs(dwarf_engine: Make) -> None:
    gate, keys = Gate(), list[str]()

    async def held(flow: Flow) -> None:
        keys.append(flow.flow_key)
        await gate(flow)

    async with dwarf_engine(make_app({"g": "P->END", "child": "C->END"}, {"P": calls("child"), "C": held})) as engine:
        key = await engine.create("g")
        await gate.reached()
        [child] = keys
        before = await engine.fingerprint(key)
        verbs = ["resume", "cancel", "terminate", "delete", *(name for name in ("continue_flow",) if hasattr(engine, name))]
        for name in verbs:
            error = await refused(getattr(engine, name)(child), 400)
            assert child.rsplit("-", 1)[1] not in str(error)
        await refused(engine.create("g", None, FlowOptions(thread_key=child)), 400)
        assert await engine.fingerprint(key) == before
        assert (await engine.snapshot(child)).status is RUNNING
        gate.open()
        assert (await engine.wait(key)).status is COMPLETED
