"""Group G, as far as one process shows it: deadlines, leases, crashes and restarts, shutting down, settings."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from dwarf import App, Engine, Flow, FlowOptions, InvalidArgument, Retry, Shard, TaskError
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    RUNNING,
    Gate,
    Make,
    calm,
    invariants,
    line,
    make_app,
    on_loop,
    one,
    refused,
    removed,
    sql,
    until,
)

BUDGET = 0.25


async def hangs(flow: Flow) -> None:
    await asyncio.Event().wait()


def hangs_in_a_thread(flow: Flow) -> None:
    flow.cancelled.wait(60)
    raise TimeoutError("told to stop")


# ---- deadlines ----


@pytest.mark.row("G8", "I-10")
@on_loop
async def test_a_task_ends_at_its_budget(dwarf_engine: Make) -> None:
    """The flow's, the engine's or the task's own, the smallest; a child has its parent's; each task gets all of it."""
    seen: list[float] = []

    async def note(flow: Flow) -> None:
        assert flow.deadline is not None
        seen.append((flow.deadline - flow.updated_at).total_seconds())

    def call(flow: Flow) -> None:
        flow.subgraph("hangs")

    graphs = {
        "hangs": "A->END",
        "handled": "A->END A-e->H->END",
        "thread": "T->END",
        "own": "O->END",
        "child": "P->END",
        "each": "N1->N2->N3->END",
    }
    tasks = {"A": hangs, "O": hangs, "T": hangs_in_a_thread, "P": call, "N1": note, "N2": note, "N3": note}
    async with dwarf_engine(make_app(graphs, tasks, O={"time_budget": BUDGET})) as engine:
        clock = asyncio.get_running_loop().time
        options = FlowOptions(time_budget=BUDGET)
        for url, given in (("hangs", options), ("own", FlowOptions(time_budget=3600)), ("own", None), ("child", options)):
            began = clock()
            _, outcome = await engine.run(url, None, given)
            took = clock() - began
            assert outcome.status is FAILED
            assert "time budget" in outcome.error
            assert took >= BUDGET
            assert took < 25, "a task out of time is not left to its lease"
        _, outcome = await engine.run("handled", None, options)
        assert (outcome.status, outcome.state["onErr"]["statusCode"]) == (COMPLETED, 408)
        _, outcome = await engine.run("thread", None, options)
        assert (outcome.status, outcome.error) == (FAILED, "told to stop")
        engine.time_budget = BUDGET
        assert (await engine.run("hangs"))[1].status is FAILED
        await engine.run("each", None, FlowOptions(time_budget=3600))
        assert len(seen) == 3
        assert all(3590 < left < 3610 for left in seen), seen


@pytest.mark.row("G8", "L9")
@on_loop
async def test_a_policy_may_retry_what_ran_out_of_time(dwarf_engine: Make) -> None:
    runs: list[int] = []

    async def slow_once(flow: Flow) -> None:
        runs.append(flow.attempt)
        if flow.attempt == 0:
            await hangs(flow)

    app = make_app({"g": "A->END"}, {"A": slow_once}, A={"retry": Retry(on=TimeoutError, initial_delay=0)})
    async with dwarf_engine(app) as engine:
        _, outcome = await engine.run("g", None, FlowOptions(time_budget=BUDGET))
        assert (outcome.status, runs) == (COMPLETED, [0, 1])


@pytest.mark.row("G3", "G4")
@on_loop
async def test_a_lease_follows_the_flows_own_budget(dwarf_engine: Make) -> None:
    gate = Gate()
    async with dwarf_engine(make_app({"g": "A->END"}, {"A": gate}), time_budget=1) as engine:
        first = await engine.create("g", None, FlowOptions(time_budget=120))
        await gate.reached()
        [row] = await sql(engine, "select extract(epoch from due_at - started_at) as seconds, budget_ms from dwarf.active")
        assert (round(row.seconds), row.budget_ms) == (150, 120_000)
        engine.time_budget = 60
        second = await engine.create("g")
        await gate.reached(2)
        engine.time_budget = 77
        rows = await sql(engine, "select round(extract(epoch from due_at - started_at)) as seconds from dwarf.active order by flow_id")
        assert [int(row.seconds) for row in rows] == [150, 90]
        gate.open()
        for key in (first, second):
            assert (await engine.wait(key)).status is COMPLETED


# ---- crashes ----


@pytest.mark.row("G2", "G32", "A49")
@on_loop
async def test_what_a_crashed_engine_ran_runs_again_elsewhere(dwarf_engine: Make) -> None:
    """Its session is over once its life has passed; attempt and step key stay as they were, another starts it."""
    runs: list[tuple[str, int]] = []
    gate = Gate()

    async def task(flow: Flow) -> None:
        runs.append((flow.step_key, flow.attempt))
        if len(runs) == 1:
            await gate(flow)
        flow["who"] = len(runs)

    app = make_app({"g": "A->B->END"}, {"B": task})
    first = dwarf_engine(app, sweep_seconds=1, session_seconds=2)
    await first.start()
    key = await first.create("g")
    await gate.reached()
    [_, step] = await first.history(key)
    await first.kill()
    async with dwarf_engine(app, dsns=first.dsns, sweep_seconds=1, session_seconds=2) as engine:
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.state) == (COMPLETED, {"who": 2})
        assert runs == [(step.step_key, 0)] * 2
        [_, again] = await engine.history(key)
        assert (again.step_key, again.attempt, again.engine_id) == (step.step_key, 0, engine.engine_id)
        assert again.created_at == step.created_at
        assert again.started_at > step.started_at  # type: ignore[operator] # G32: a run after a crash is a new start
        gate.open()
        assert await invariants(engine) == []


@pytest.mark.row("G25", "B28", "A19")
@on_loop
async def test_a_crash_with_everything_under_way_loses_nothing(dwarf_engine: Make) -> None:
    ran: list[str] = []

    def note(flow: Flow) -> None:
        ran.append(f"{flow.workflow_url}.{flow.task_name}")
        flow["n"] = flow.get_int("n") + 1

    def parks(flow: Flow) -> None:
        note(flow)
        flow.interrupt()

    def sleeps(flow: Flow) -> None:
        note(flow)
        flow.sleep(5000)

    def calls(flow: Flow) -> None:
        flow.subgraph("sleeps")

    graphs = {"parks": "A->P->B->END", "sleeps": "S->B->END", "calls": "C->B->END", "done": "A->B->END"}
    app = make_app(graphs, {"A": note, "B": note, "P": parks, "S": sleeps, "C": calls})
    first = dwarf_engine(app, session_seconds=2)
    await first.start()
    keys = {url: await first.create(url) for url in graphs}
    await calm(first)
    before = sorted(ran)
    await first.kill()
    async with dwarf_engine(app, dsns=first.dsns, session_seconds=2) as engine:
        await calm(engine)
        assert sorted(ran) == before
        await engine.resume(keys["parks"])
        await engine.advance(5000)
        for key in keys.values():
            assert (await engine.wait(key)).status is COMPLETED
        counts = {name: ran.count(name) for name in set(ran)}
        assert counts == {"parks.A": 1, "parks.P": 2, "parks.B": 1, "sleeps.S": 2, "sleeps.B": 2, "calls.B": 1, "done.A": 1, "done.B": 1}
        assert await invariants(engine) == []


@pytest.mark.row("G32")
@on_loop
async def test_the_lease_rises_with_each_claim_and_the_start_time_stays(dwarf_engine: Make) -> None:
    leases: list[int] = []
    engine_: Any = None

    async def task(flow: Flow) -> None:
        [row] = await sql(engine_, "select lease from dwarf.active where branch = 0 and task = 'A'")
        leases.append(row.lease)
        if flow.attempt < 2:
            flow.retry(100)
            return
        if not flow.get("asked"):
            flow["asked"] = True
        flow.interrupt()

    async with dwarf_engine(make_app({"g": "A->END"}, {"A": task})) as engine:
        engine_ = engine
        key = await engine.create("g")
        while (wait := await calm(engine)) is not None:
            await engine.advance(wait)
        started = (await engine.history(key))[0].started_at
        await engine.resume(key)
        await engine.wait(key)
        assert leases == sorted(set(leases))
        assert len(leases) == 4
        [step] = await engine.history(key)
        assert step.started_at == started
        assert step.updated_at - step.started_at > timedelta(seconds=250)  # type: ignore[operator]


# ---- shutting down ----


@pytest.mark.row("G21", "G24")
@on_loop
async def test_closing_waits_for_running_tasks_and_starts_nothing_new(dwarf_engine: Make) -> None:
    gate, thread_gate, ran = Gate(), threading.Event(), []

    def blocks(flow: Flow) -> None:
        gate.entered += 1
        thread_gate.wait(60)
        flow["thread"] = 1

    async def waits(flow: Flow) -> None:
        await gate(flow)
        flow["loop"] = 1

    graphs = {"async": "A->N->END", "sync": "T->N->END"}
    app = make_app(graphs, {"A": waits, "T": blocks, "N": lambda flow: ran.append(1)})
    engine = dwarf_engine(app, grace=60)
    await engine.start()
    keys = [await engine.create(url) for url in graphs]
    await gate.reached(2)
    closing = asyncio.create_task(engine.close())
    await until(lambda: engine._state == "closing")
    await refused(engine.create("async"), 503)
    gate.open()
    thread_gate.set()
    await closing
    await engine.close()
    await engine.close()
    assert ran == []
    async with dwarf_engine(app, dsns=engine.dsns, workers=0) as reader:
        for key in keys:
            steps = await reader.history(key)
            assert [str(step.status) for step in steps] == ["completed", "pending"]
        sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'dwarf%'"
        assert await one(reader, sessions) < 20
    async with dwarf_engine(app, dsns=engine.dsns) as other:
        states = [(await other.wait(key)).state for key in keys]
        assert states == [{"loop": 1}, {"thread": 1}]
        assert len(ran) == 2


@pytest.mark.row("G21", "G23")
@on_loop
async def test_what_outlives_the_grace_is_handed_back_at_once(dwarf_engine: Make) -> None:
    runs: list[int] = []
    told = asyncio.Event()

    async def task(flow: Flow) -> None:
        runs.append(flow.attempt)
        if len(runs) == 1:
            try:
                await hangs(flow)
            finally:
                told.set()

    app = make_app({"g": "A->END"}, {"A": task})
    engine = dwarf_engine(app, grace=0)
    await engine.start()
    key = await engine.create("g")
    await until(lambda: runs)
    await engine.close()
    assert told.is_set()
    async with dwarf_engine(app, dsns=engine.dsns, sweep_seconds=3600) as other:
        assert (await other.wait(key)).status is COMPLETED
        assert runs == [0, 0]


@pytest.mark.row("G23", "G21")
@on_loop
async def test_one_of_three_engines_leaves_under_load(dwarf_engine: Make) -> None:
    runs: dict[str, int] = {}

    async def note(flow: Flow) -> None:
        runs[flow.step_key] = runs.get(flow.step_key, 0) + 1
        await asyncio.sleep(0.002)

    app = make_app({"g": "A->B->C->D->END"}, dict.fromkeys("ABCD", note))
    async with dwarf_engine(app, workers=8, grace=30) as stays:
        others = [dwarf_engine(app, dsns=stays.dsns, workers=8, grace=30) for _ in range(2)]
        for other in others:
            await other.start()
        keys = await stays.create_many([("g", None, None)] * 150)
        for leaver in others:
            before = len(runs)
            await until(lambda before=before: len(runs) > before + 60 or len(runs) >= 600)  # type: ignore[misc]
            await leaver.close()
        for key in keys:
            assert (await stays.wait(key)).status is COMPLETED
        assert len(runs) == 600
        assert set(runs.values()) == {1}
        assert stays.counters(1).swept == 0


@pytest.mark.row("G21", "G27")
@on_loop
async def test_starting_and_stopping_in_any_order(dwarf_engine: Make) -> None:
    app = make_app({"g": "A->END"})
    engine = dwarf_engine(app)
    await engine.close()  # never started
    await engine.kill()
    await refused(engine.create("g"), 503)
    await engine.start()
    await refused(engine.start(), 409)
    assert (await engine.run("g"))[1].status is COMPLETED
    await engine.close()
    await engine.close()
    await refused(engine.run("g"), 503)
    await refused(engine.snapshot("1-2-3-0123456789abcdef"), 503)
    await refused(engine.start(), 409)


@pytest.mark.row("G27", "G28")
@on_loop
async def test_settings_are_checked_and_rejected_ones_change_nothing(dwarf_engine: Make) -> None:
    app = make_app({"g": "A->END"})
    for settings in (
        {"workers": -1}, {"workers": 1.5}, {"workers": None}, {"engine_id": 0}, {"engine_id": -1}, {"engine_id": 2**63}, {"time_budget": 0.0009},
        {"time_budget": 2**31 / 1000}, {"max_priority": 0}, {"max_priority": 101}, {"grace": -1}, {"session_seconds": 0}, {"sweep_seconds": 0},
        {"takeover": "never"}, {"threads": 0}, {"retention_days": 0},
    ):  # fmt: skip
        [name] = settings
        with pytest.raises(InvalidArgument, match=name):
            dwarf_engine(app, **settings)
    with pytest.raises(InvalidArgument, match="host"):
        Engine(None, [Shard(1, "dbname=x")])
    for index in (0, -1):
        with pytest.raises(InvalidArgument, match="index"):
            Shard(index, "dbname=x") and Engine(app, [Shard(index, "dbname=x")])
    async with dwarf_engine(app, time_budget=50, engine_id=9, workers=3) as engine:
        for value in (0.0009, 0, -1, float("nan"), "text", 2**31 / 1000):
            with pytest.raises(InvalidArgument):
                engine.time_budget = value  # type: ignore[assignment]
            assert engine.time_budget == 50
        for name in ("workers", "engine_id"):
            with pytest.raises(AttributeError):
                setattr(engine, name, 1)
        assert (engine.workers, engine.engine_id) == (3, 9)
        engine.time_budget = timedelta(seconds=7)
        await engine.run("g")
        assert [row.budget_ms for row in await sql(engine, "select budget_ms from dwarf.flows")] == [7000]


@pytest.mark.row("G35")
@on_loop
async def test_a_late_write_into_a_removed_tree_is_nothing(dwarf_engine: Make) -> None:
    """A task that will not stop writes after its flow is terminated, deleted and gone."""
    gate = Gate()

    async def stubborn(flow: Flow) -> None:
        while True:
            try:
                await gate(flow)
                break
            except asyncio.CancelledError:
                continue
        flow["late"] = 1

    def call(flow: Flow) -> None:
        flow.subgraph("child")

    async with dwarf_engine(make_app({"g": "P->END", "child": "C->END"}, {"P": call, "C": stubborn}), sweep_seconds=1) as engine:
        key = await engine.create("g")
        await gate.reached()
        [caller] = await engine.history(key)
        await engine.terminate(key)
        await engine.delete(key)
        await refused(engine.history(key), 404)
        await removed(engine, key, caller.sub_flow_key)
        gate.open()
        await until(lambda: gate.left)
        await calm(engine)
        left = "select (select count(*) from dwarf.live) + (select count(*) from dwarf.flows) + (select count(*) from dwarf.history)"
        assert await one(engine, left) == 0
        for each in (key, caller.sub_flow_key):
            await refused(engine.snapshot(each), 404)


@pytest.mark.row("G17")
@on_loop
async def test_what_waits_for_hours_raises_no_alarm(dwarf_engine: Make) -> None:
    gate = Gate()

    def sleeps(flow: Flow) -> None:
        flow.sleep(50 * 3600)

    def asks(flow: Flow) -> None:
        flow.interrupt()

    def calls(flow: Flow) -> None:
        flow.subgraph("asks")

    graphs = {"runs": "G->END", "sleeps": "S->B->END", "asks": "A->END", "calls": "C->END"}
    app = make_app(graphs, {"G": gate, "S": sleeps, "A": asks, "C": calls})
    async with dwarf_engine(app, sweep_seconds=1) as engine:
        keys = {url: await engine.create(url, None, FlowOptions(time_budget=2_000_000)) for url in graphs}
        await gate.reached()
        await until(lambda: one(engine, "select count(*) = 3 from dwarf.parks"))
        for _ in range(6):
            await engine.advance(3 * 3600)
        renewed = await one(engine, "select max(renewed_at) from dwarf.peers")
        await until(lambda: one(engine, "select max(renewed_at) > %s from dwarf.peers", renewed))  # several sweeps later
        counters = engine.counters(1)
        alarms = {name: getattr(counters, name) for name in ("write_failed", "poisoned", "swept", "missed")}
        assert not any(alarms.values()), alarms
        assert gate.entered == 1
        assert (await engine.snapshot(keys["runs"])).status is RUNNING
        assert await invariants(engine) == []
        gate.open()
        assert (await engine.wait(keys["runs"])).status is COMPLETED


# ---- the App in an engine ----


@pytest.mark.row("G27")
@on_loop
async def test_the_lifespan_opens_once_before_work_and_closes_after_it(dwarf_engine: Make) -> None:
    events: list[str] = []
    app = App()
    app.add_graph("g", line("A", "B"))

    @app.lifespan
    async def lifespan():  # type: ignore[no-untyped-def]
        events.append("open")
        yield {"pool": 7}
        events.append("close")

    @app.task("A")
    async def a(flow: Flow) -> None:
        events.append("run")
        flow["a"] = flow.resources["pool"]

    @app.task("B")
    def b(flow: Flow) -> None:
        flow["b"] = flow.resources["pool"]

    async with dwarf_engine(app) as engine:
        assert events == ["open"]
        _, outcome = await engine.run("g")
        assert outcome.state == {"a": 7, "b": 7}
    assert events == ["open", "run", "close"]

    broken = App()

    @broken.lifespan
    async def fails():  # type: ignore[no-untyped-def]
        raise TaskError("no pool today")
        yield

    with pytest.raises(TaskError, match="no pool today"):
        async with dwarf_engine(broken):
            pass
