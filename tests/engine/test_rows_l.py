"""Group L: errors, as tasks raise them, as handlers read them, as outcomes and lists show them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import dwarf
from dwarf import App, Flow, FlowOptions, Query, Retry, StateValueError, TaskError, cohorts, decide, reducers, values
from dwarf.limits import VALUE_BYTES_MAX
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    Make,
    calm,
    invariants,
    make_app,
    on_loop,
    one,
    paths,
    refused,
    shape,
    sql,
)
from tests.strategies import sketch


class Unwell(Exception):
    status = 429
    properties = {"after": 5, "odd": {1, 2}, "secret": object()}  # noqa: RUF012


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("cannot even say it")


def raising(error: BaseException) -> Any:
    def task(flow: Flow) -> None:
        flow["lost"] = 1
        raise error

    return task


def raising_async(error: BaseException) -> Any:
    async def task(flow: Flow) -> None:
        flow["lost"] = 1
        raise error

    return task


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.row("L1", "L3", "L4", "L7", "L23")
@on_loop
async def test_what_a_task_raises_reaches_its_handler_or_fails_the_flow(dwarf_engine: Make, style: str) -> None:
    errors: list[tuple[BaseException, str, int, dict[str, Any]]] = [
        (TaskError("no card", status=402, card=7, tried=[1, {"a": None}]), "no card", 402, {"card": 7, "tried": [1, {"a": None}]}),
        (AssertionError("must hold"), "must hold", 500, {}),
        (TypeError("not a number"), "not a number", 500, {}),
        (KeyError("field"), "KeyError: 'field'", 500, {}),
        (ValueError(), "ValueError", 500, {}),
        (ZeroDivisionError('ä 🧌 "quoted"'), 'ä 🧌 "quoted"', 500, {}),
        (SystemExit("out"), "out", 500, {}),
        (GeneratorExit("gone"), "gone", 500, {}),
        (TimeoutError("late"), "late", 500, {}),
        (dwarf.NotFound("nothing there"), "nothing there", 404, {}),
    ]  # fmt: skip
    make = raising if style == "sync" else raising_async
    graphs: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    for n in range(len(errors)):
        graphs |= {f"fails{n}": sketch(f"X{n}->Z->END"), f"handled{n}": sketch(f"X{n}->Z->END X{n}-e->H->END")}
        tasks[f"X{n}"] = make(errors[n][0])
    async with dwarf_engine(make_app({**graphs, "good": "Z->END"}, tasks)) as engine:
        for n, (_, text, status, properties) in enumerate(errors):
            key, outcome = await engine.run(f"fails{n}", {"n": 1})
            assert (outcome.status, outcome.error, outcome.state) == (FAILED, text, {"n": 1})
            [step] = await engine.history(key)
            assert (str(step.status), step.error) == ("failed", text)
            key, outcome = await engine.run(f"handled{n}", {"n": 1})
            assert (outcome.status, outcome.error) == (COMPLETED, "")
            assert outcome.state == {"n": 1, "onErr": {"error": text, "statusCode": status, **properties}}
            failed, handler = await engine.history(key)
            assert (failed.task_name, str(failed.status), failed.error, handler.task_name) == (f"X{n}", "completed", text, "H")
            assert (await engine.step(handler.step_key)).state == outcome.state
        assert (await engine.run("good"))[1].status is COMPLETED
        stored = await sql(engine, "select h::text as text from dwarf.history h")
        assert not any("Traceback" in row.text or "test_rows_l" in row.text for row in stored)


@pytest.mark.row("L1", "L7", "L14")
@on_loop
async def test_odd_errors_and_odd_texts_are_stored_all_the_same(dwarf_engine: Make) -> None:
    cases: list[tuple[BaseException, str]] = [
        (TaskError("nul\x00 esc\x1b del\x7f tab\t line\nend"), "nul\ufffd esc\ufffd del\ufffd tab\t line\nend"),
        (TaskError("lone \ud800 surrogate"), "lone \ufffd surrogate"),
        (TaskError(""), "TaskError"),
    ]
    tasks = {f"X{n}": raising(error) for n, (error, _) in enumerate(cases)}
    graphs: dict[str, Any] = {f"g{n}": sketch(f"X{n}->END") for n in range(len(cases))}
    graphs |= {"long": "L->END", "mute": "M->END", "unwell": "U->END U-e->H->END", "group": "G->END", "none": "N->END"}

    async def group(flow: Flow) -> None:
        raise ExceptionGroup("several", [TaskError("one"), TaskError("two")])

    def returns(flow: Flow, x: int) -> Any:
        return 5

    tasks |= {"L": raising(TaskError("é" * 100_000)), "M": raising(Mute()), "U": raising(Unwell("too many")), "G": group, "N": returns}
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        for n, (_, text) in enumerate(cases):
            key, outcome = await engine.run(f"g{n}")
            assert (outcome.status, outcome.error) == (FAILED, text)
            assert (await engine.history(key))[0].error == text
            assert text in [item.error for item in await engine.list_closed()]
        _, outcome = await engine.run("long")
        assert len(outcome.error.encode()) <= 64 << 10
        assert "cut" in outcome.error[-60:]
        _, outcome = await engine.run("mute")
        assert (outcome.status, "Mute" in outcome.error) == (FAILED, True)
        _, outcome = await engine.run("unwell")
        assert (outcome.status, outcome.state["onErr"]["statusCode"], outcome.state["onErr"]["after"]) == (COMPLETED, 429, 5)
        assert isinstance(outcome.state["onErr"]["secret"], str)
        _, outcome = await engine.run("group")
        assert (outcome.status, "several" in outcome.error) == (FAILED, True)
        _, outcome = await engine.run("none", {"x": 1})
        assert (outcome.status, "int" in outcome.error) == (FAILED, True)


@pytest.mark.row("L4", "L5")
@on_loop
async def test_a_branch_that_fails_lets_its_siblings_finish(dwarf_engine: Make) -> None:
    ran: list[str] = []

    def note(flow: Flow) -> None:
        ran.append(flow.task_name)

    def late(flow: Flow) -> None:
        note(flow)
        if flow.attempt == 0:
            flow.retry(100)
            return
        raise TaskError("late failure")

    graphs = {
        "g": "S->F->J S->A->B->J J⊕ J->END", "two": "S->F->J S->L->J J⊕ J->END", "first": "S->L->J S->F->J S->A->J J⊕ J->END",
        "nested": "O->S O->N->M S->F->J S->A->J J⊕ J->M M⊕ M->END",
    }  # fmt: skip
    tasks = {"F": raising(TaskError("early failure")), "A": note, "B": note, "J": note, "L": late, "N": note, "M": note}
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        _, outcome = await engine.run("g")
        assert (outcome.status, outcome.error, ran) == (FAILED, "early failure", ["A", "B"])
        for url in ("two", "first"):
            key = await engine.create(url)
            wait = await calm(engine)
            assert wait is not None
            await engine.advance(wait)
            outcome = await engine.wait(key)
            assert (outcome.status, outcome.error) == (FAILED, "late failure")  # the failing last arriver's
        ran.clear()
        _, outcome = await engine.run("nested")
        assert (outcome.status, outcome.error) == (FAILED, "early failure")
        assert sorted(ran) == ["A", "N"]
        assert await invariants(engine) == []


@pytest.mark.row("L5")
@on_loop
async def test_after_a_success_the_failed_step_of_the_lowest_id_is_named(dwarf_engine: Make) -> None:
    def late(flow: Flow) -> None:
        if flow.attempt == 0:
            flow.retry(100)

    tasks = {"A": raising(TaskError("first")), "B": raising(TaskError("second")), "C": late}
    async with dwarf_engine(make_app({"g": "S->A->J S->B->J S->C->J J⊕ J->END"}, tasks)) as engine:
        key = await engine.create("g")
        wait = await calm(engine)
        assert wait is not None
        await engine.advance(wait)
        assert (await engine.wait(key)).error == "first"


@pytest.mark.row("L9", "L20")
@on_loop
async def test_unknown_task_urls_are_errors_of_the_task(dwarf_engine: Make) -> None:
    app = App()
    graphs = {"fails": "A->X->END", "handled": "X->END X-e->H->END", "branch": "S->X->J S->A->J X-e->H->J J⊕ J->END"}
    for url, text in graphs.items():
        graph = sketch(text).set_url("X", "nobody/serves this")
        app.add_graph(url, graph)
    for url in "ASJ":
        app.task(url)(lambda flow: None)
    app.task("H")(lambda flow: flow.set("handled", flow["onErr"]["statusCode"]))
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("fails")
        assert outcome.status is FAILED
        assert "nobody/serves this" in outcome.error
        assert shape(await engine.history(key)) == [("A", "completed"), ("X", "failed")]
        _, outcome = await engine.run("handled")
        assert (outcome.status, outcome.state["handled"]) == (COMPLETED, 404)
        key, outcome = await engine.run("branch")
        assert (outcome.status, outcome.state["handled"]) == (COMPLETED, 404)
        assert [step.task_name for step in await engine.history(key)].count("J") == 1


@pytest.mark.row("L11", "L12")
@on_loop
async def test_what_the_engine_finds_wrong_takes_no_handler(dwarf_engine: Make) -> None:
    def both(*names: str) -> Any:
        def task(flow: Flow) -> None:
            for name in names:
                if name == "retry":
                    flow.retry(0)
                elif name == "goto":
                    flow.goto("Y")
                elif name == "interrupt":
                    flow.interrupt()
                elif name == "subgraph":
                    flow.subgraph("child")
                else:
                    flow.sleep(0)

        return task

    pairs = [("retry", "goto"), ("goto", "interrupt"), ("retry", "interrupt"), ("goto", "subgraph"), ("retry", "subgraph")]
    graphs: dict[str, Any] = {"child": "C->END", "cond": sketch("X-e->H->END"), "each": sketch("S-*xs->W->J J⊕ J->END S-e->H->END")}
    graphs["cond"].add_transition_when("X", "Y", "text =~ pattern").add_transition("Y", "END")
    tasks: dict[str, Any] = {}
    for n, names in enumerate(pairs):
        graphs[f"g{n}"] = sketch(f"T{n}->Y->END T{n}-g->Y T{n}-e->H->END")
        tasks[f"T{n}"] = both(*names)
    graphs["sleepy"] = "T9->Y->END T9-g->Y"
    tasks["T9"] = both("goto", "sleep")
    graphs["nowhere"] = "V->Y->END V-e->H->END"
    tasks["V"] = lambda flow: flow.goto("Nowhere")
    handled: list[str] = []
    tasks["H"] = lambda flow: handled.append(flow.flow_key)
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        for n, names in enumerate(pairs):
            key, outcome = await engine.run(f"g{n}")
            assert (outcome.status, f"T{n}" in outcome.error) == (FAILED, True), (names, outcome)
            assert shape(await engine.history(key)) == [(f"T{n}", "failed")]
        assert (await engine.run("sleepy"))[1].status is COMPLETED
        _, outcome = await engine.run("nowhere")
        assert (outcome.status, "Nowhere" in outcome.error) == (FAILED, True)
        _, outcome = await engine.run("cond", {"text": "x", "pattern": "["})
        assert outcome.status is FAILED
        assert "text =~ pattern" in outcome.error
        _, outcome = await engine.run("each", {"xs": "text"})
        assert (outcome.status, "xs" in outcome.error) == (FAILED, True)
        assert handled == []


@pytest.mark.row("L15", "L7", "A15")
@on_loop
async def test_values_that_cannot_be_stored_fail_the_task_where_they_are_written(dwarf_engine: Make) -> None:
    bad = {
        "nan": float("nan"),
        "inf": [1, float("-inf")],
        "surrogate": {"a": "\ud800"},
        "bytes": b"raw",
        "object": object(),
        "keys": {1: 2},
    }
    seen: dict[str, str] = {}

    def task(flow: Flow) -> None:
        for name, value in bad.items():
            try:
                flow["order"] = {"lines": [value]}
            except StateValueError as error:
                seen[name] = error.path
        flow["nul"] = "a\x00b"
        flow["b64"] = dwarf.b64(b"raw\x00")
        flow["order"] = {"lines": [float("nan")]}

    async with dwarf_engine(
        make_app({"g": "A->END A-e->H->END", "n": "N->END"}, {"A": task, "N": lambda flow: flow.set("nul", "a\x00b")})
    ) as engine:
        _, outcome = await engine.run("g")
        assert outcome.status is COMPLETED
        assert outcome.state["onErr"]["statusCode"] == 400
        assert "order.lines[0]" in outcome.state["onErr"]["error"]
        assert set(seen) == set(bad)
        assert all(path.startswith("order.lines[0]") for path in seen.values()), seen
        _, outcome = await engine.run("n", {"given": "\x00"}, FlowOptions(baggage={"x": "\x00"}))
        assert outcome.state == {"given": "\x00", "nul": "a\x00b"}


@pytest.mark.row("L18")
@on_loop
async def test_a_flow_whose_final_state_cannot_be_folded_still_closes_failed(dwarf_engine: Make) -> None:
    graph = sketch("S->A->J S->B->J J⊕ J->END").set_reducer("sum", "add")
    trunk = sketch("A->B->END").set_reducer("sum", "add")
    async with dwarf_engine(make_app({"g": graph, "t": trunk}, dict.fromkeys("AB", lambda flow: flow.set("sum", 1.7e308)))) as engine:
        for url in ("g", "t"):
            key, outcome = await engine.run(url)
            assert outcome.status is FAILED
            assert "sum" in outcome.error
            assert "add" in outcome.error
            assert await one(engine, "select count(*) from dwarf.active") == 0
            for step in await engine.history(key):
                assert (await engine.step(step.step_key)).step_key == step.step_key
            assert isinstance(dict(outcome.state), dict)


@pytest.mark.row("L19", "F19")
@on_loop
async def test_a_policy_that_gives_up_leaves_the_tasks_own_error(dwarf_engine: Make) -> None:
    runs: list[int] = []

    def task(flow: Flow) -> None:
        runs.append(flow.attempt)
        flow["n"] = len(runs)
        raise ConnectionError(f"refused {flow.attempt}")

    policy = Retry(on=(ConnectionError, KeyError), initial_delay=100, multiplier=2, give_up_after=350)
    async with dwarf_engine(make_app({"g": "A->END A-e->H->END"}, {"A": task}, A={"retry": policy})) as engine:
        key = await engine.create("g")
        while (wait := await calm(engine)) is not None:
            await engine.advance(wait)
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.state["onErr"]["error"], runs) == (COMPLETED, "refused 2", [0, 1, 2])
        assert "n" not in outcome.state


@pytest.mark.row("L20")
@on_loop
async def test_a_routed_branch_joins_without_the_failed_tasks_writes(dwarf_engine: Make) -> None:
    def fails(flow: Flow) -> None:
        flow["log"] = ["never"]
        raise TaskError("x")

    def handler(flow: Flow) -> None:
        flow["log"] = ["handler"]
        flow.delete("onErr")

    graph = sketch("S->X->J S->B->J X-e->H->J J⊕ J->END").set_reducer("log", "append")
    async with dwarf_engine(make_app({"g": graph}, {"X": fails, "H": handler, "B": lambda flow: flow.set("log", ["b"])})) as engine:
        key, outcome = await engine.run("g")
        assert (outcome.status, dict(outcome.state)) == (COMPLETED, {"log": ["handler", "b"]})
        steps = paths(await engine.history(key))
        assert (await engine.step(steps["1/0.1"].step_key)).changes == {"onErr": {"error": "x", "statusCode": 500}}


@pytest.mark.row("L22")
@on_loop
async def test_error_texts_are_listed_and_found_and_payloads_are_not(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"g": "A->B->END", "ask": "Q->END"}, {
        "B": raising(TaskError("the Gateway refused")), "Q": lambda flow: flow.interrupt({"payload": "s3cret"}),
    })) as engine:  # fmt: skip
        key, outcome = await engine.run("g", {"password": "s3cret"})
        await engine.run("ask", {"password": "s3cret"})
        assert outcome.error == "the Gateway refused"
        [item] = await engine.list_closed(Query(search="gateway REFUSED"))
        assert (item.flow_key, item.error, item.task_name) == (key, outcome.error, "B")
        assert not list(await engine.list_closed(Query(search="s3cret")))
        assert not list(await engine.list_open(Query(search="s3cret")))
        assert [step.error for step in await engine.history(key)] == ["", "the Gateway refused"]
        import msgspec

        for shown in (await engine.history(key), list(await engine.list_open()), list(await engine.list_closed())):
            assert "s3cret" not in repr(shown)
            assert b"s3cret" not in msgspec.json.encode(shown)
        assert "s3cret" not in await engine.history_mermaid(key)


@pytest.mark.row("L24")
@on_loop
async def test_each_class_of_error_has_its_status(dwarf_engine: Make) -> None:
    statuses = {
        "InvalidArgument": 400, "Unauthenticated": 401, "PermissionDenied": 403, "NotFound": 404, "WaitTimeout": 408, "Conflict": 409,
        "GraphError": 400, "ShardUnavailable": 503, "DwarfError": 500, "TaskError": 500, "StateTypeError": 500, "SubgraphError": 500,
        "StateValueError": 400,
    }  # fmt: skip
    for name, status in statuses.items():
        kind = getattr(dwarf, name)
        assert issubclass(kind, dwarf.DwarfError)
        assert kind("text").status == status, name
    gate_app = make_app({"g": "A->END"})
    async with dwarf_engine(gate_app) as engine:
        key, _ = await engine.run("g")
        assert isinstance(await refused(engine.create(""), 400), dwarf.InvalidArgument)
        assert isinstance(await refused(engine.create("none"), 404), dwarf.NotFound)
        assert isinstance(await refused(engine.resume(key), 409), dwarf.Conflict)
        # the engine went down: everything else is 503
    assert isinstance(await refused(engine.snapshot(key), 503), dwarf.ShardUnavailable)


@pytest.mark.row("L4", "L7")
@on_loop
async def test_a_typed_task_that_cannot_read_its_input_fails_alone(dwarf_engine: Make) -> None:
    @dataclasses.dataclass
    class Line:
        sku: str
        count: int

    def typed(line: Line, note: str = "none") -> dict[str, Any]:
        return {"total": line.count, "note": note}

    async with dwarf_engine(make_app({"g": "A->END A-e->H->END"}, {"A": typed})) as engine:
        _, outcome = await engine.run("g", {"line": {"sku": "a", "count": 3}})
        assert outcome.state == {"line": {"sku": "a", "count": 3}, "total": 3, "note": "none"}
        for state, text in (
            ({}, "line"),
            ({"line": {"sku": "a"}}, "count"),
            ({"line": {"sku": 1, "count": 1}}, "sku"),
            ({"line": []}, "line"),
        ):
            _, outcome = await engine.run("g", state)
            assert outcome.status is COMPLETED
            assert text in outcome.state["onErr"]["error"], outcome.state


@pytest.mark.row("L16")
@on_loop
async def test_a_value_that_is_too_large_is_refused(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered: what it takes to hold one of its true size is no matter of this rule."""
    assert VALUE_BYTES_MAX == 256 << 20
    for module in (values, decide, cohorts, reducers):
        monkeypatch.setattr(module, "VALUE_BYTES_MAX", 1 << 20)
    runs: list[int] = []

    def grow(flow: Flow) -> None:
        runs.append(1)
        flow["text"] = "x" * (flow.get_int("size") - 2)

    def both(flow: Flow) -> None:
        flow["a"] = flow["b"] = "x" * (600 << 10)

    async with dwarf_engine(make_app({"grow": "A->END", "both": "B->END"}, {"A": grow, "B": both})) as engine:
        await refused(engine.create("grow", {"text": "x" * (1 << 20)}), 400, "text", str(1 << 20))
        await refused(engine.create("grow", {"a": "x" * (600 << 10), "b": "x" * (600 << 10)}), 400, str(1 << 20))
        assert await one(engine, "select count(*) from dwarf.live") == 0
        _, outcome = await engine.run("grow", {"size": (1 << 20) - 100})
        assert (outcome.status, len(outcome.state["text"])) == (COMPLETED, (1 << 20) - 102)
        runs.clear()
        _, outcome = await engine.run("grow", {"size": (1 << 20) + 1})
        assert (outcome.status, "text" in outcome.error, str(1 << 20) in outcome.error) == (FAILED, True, True)
        assert len(runs) == 1
        _, outcome = await engine.run("both")
        assert (outcome.status, "final state" in outcome.error) == (FAILED, True)
