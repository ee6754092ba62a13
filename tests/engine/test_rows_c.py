"""Group C: cancel, which asks the handlers, and terminate, which does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import Flow, TaskError
from tests.engine.rows_support import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    Gate,
    Make,
    calm,
    done,
    invariants,
    make_app,
    on_loop,
    one,
    paths,
    play,
    refused,
    shape,
    sql,
    unknown,
    until,
    walk,
)

SIGNALLED = 90.0  # until a running task has been told; never waited out


class Held:
    """A task that runs until it is told to stop, and notes whether it was."""

    def __init__(self, *, style: str = "async") -> None:
        self.gate = Gate()
        self.told: list[str] = []
        self.style = style

    async def __call__(self, flow: Flow) -> None:
        self.gate.entered += 1
        flow["late"] = True
        try:
            await asyncio.wait_for(flow.cancelled.wait(), SIGNALLED)
        finally:
            self.told.append(flow.step_key)
        flow["later"] = True


def calls(url: str) -> Any:
    def task(flow: Flow) -> None:
        flow["got"] = flow.subgraph(url, {"x": flow.get("x")})

    return task


def asks(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"q": flow.get("x")})


def sleeps(flow: Flow) -> None:
    flow.sleep(3600)


def backs_off(flow: Flow) -> None:
    flow.retry(86_400)


@pytest.mark.row("C1", "C17")
@on_loop
async def test_terminate_ends_a_whole_tree_at_once(dwarf_engine: Make) -> None:
    """Three levels with a running task, a sleeper, an interrupt and a retry in them."""
    held = Held()
    graphs = {"g": "P->Z->END", "child": "S->A->J S->B->J S->Q->J J⊕ J->END", "grand": "D->X->END"}
    tasks = {"P": calls("child"), "Q": calls("grand"), "A": held, "B": asks, "D": sleeps}
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        root = await engine.create("g", {"x": 1})
        await held.gate.reached()
        await until(lambda: one(engine, "select count(*) = 1 from dwarf.active where wake_at is not null"))
        await until(lambda: one(engine, "select count(*) = 1 from dwarf.parks where kind = 1"))
        [caller] = await engine.history(root)
        child = caller.sub_flow_key
        grand = paths(await engine.history(child))["1/2.1"].sub_flow_key
        keys = [root, child, grand]
        waiting = asyncio.create_task(engine.wait(grand))  # the flows above read interrupted, for B asks
        await engine.terminate(root, "  no more of this \n")
        assert (await waiting).status is TERMINATED
        for key in keys:
            outcome = await engine.wait(key)
            assert (outcome.status, outcome.reason, outcome.error) == (TERMINATED, "no more of this", ""), key
        steps = walk(await engine.history(root))
        assert {step.task_name: str(step.status) for step in steps} == {
            "P": "terminated", "S": "completed", "A": "terminated", "B": "terminated", "Q": "terminated", "D": "completed", "X": "terminated"
        }  # fmt: skip
        await until(lambda: held.told)  # it was signalled, and what it wrote afterwards counts for nothing
        await engine.advance(7200)
        await calm(engine)
        assert walk(await engine.history(root)) == steps
        assert (await engine.snapshot(child)).state == {"x": 1}
        assert await one(engine, "select (select count(*) from dwarf.live) + (select count(*) from dwarf.active)") == 0
        assert await invariants(engine) == []


@pytest.mark.row("C3")
@on_loop
async def test_waiters_at_every_depth_are_released(dwarf_engine: Make) -> None:
    gate, keys = Gate(), list[str]()

    def call(url: str) -> Any:
        def task(flow: Flow) -> None:
            keys.append(flow.flow_key)
            flow.subgraph(url)

        return task

    async def held(flow: Flow) -> None:
        keys.append(flow.flow_key)
        await gate(flow)

    graphs = {"g": "P->END", "child": "Q->END", "grand": "D->END"}
    async with dwarf_engine(make_app(graphs, {"P": call("child"), "Q": call("grand"), "D": held})) as engine:
        root = await engine.create("g")
        await gate.reached()
        assert keys[0] == root
        waits = [asyncio.create_task(engine.wait(key)) for key in keys]
        await until(lambda: engine.hub(1).waiting == 3)
        await engine.terminate(root, "over")
        for wait in waits:
            outcome = await wait
            assert (outcome.status, outcome.reason) == (TERMINATED, "over")


@pytest.mark.row("C14")
@on_loop
async def test_the_fan_in_of_an_empty_fan_out_does_not_run_once_its_flow_has_ended(dwarf_engine: Make) -> None:
    joined: list[int] = []
    graph = "S-*xs->W->J J⊕ J->END"
    async with dwarf_engine(make_app({"g": graph}, {"S": sleeps, "J": lambda flow: joined.append(1)})) as engine:
        key = await engine.create("g", {"xs": []})
        await calm(engine)
        assert shape(await engine.history(key)) == [("S", "completed"), ("J", "pending")]
        await engine.terminate(key)
        await engine.advance(7200)
        await calm(engine)
        assert joined == []
        assert shape(await engine.history(key)) == [("S", "completed"), ("J", "terminated")]


@pytest.mark.row("C2", "C17", "C28")
@on_loop
async def test_what_terminate_and_cancel_refuse_and_how_reasons_are_kept(dwarf_engine: Make) -> None:
    graphs = {"g": "A->END", "ask": "B->END", "call": "P->END"}
    async with dwarf_engine(make_app(graphs, {"B": asks, "P": calls("ask")})) as engine:
        done, _ = await engine.run("g")
        parent, _ = await engine.run("call")
        [caller] = await engine.history(parent)
        for verb in (engine.terminate, engine.cancel):
            await refused(verb(done, "why"), 409)
            await refused(verb(unknown(done)), 404)
            await refused(verb(caller.sub_flow_key), 400)
            await refused(verb(parent, 5), 400)  # type: ignore[arg-type]
        assert (await engine.snapshot(parent)).status is INTERRUPTED
        kept = [("", ""), ("  ", ""), (" why \t", "why"), ("nul\x00 esc\x1b", "nul\ufffd esc\ufffd"), ("ä🧌'\"", "ä🧌'\""), ("a\nb", "a b")]
        for verb, status in ((engine.terminate, TERMINATED), (engine.cancel, CANCELLED)):
            for reason, stored in kept:
                key, _ = await engine.run("ask")
                await verb(key, reason)
                outcome = await engine.wait(key)
                assert (outcome.status, outcome.reason) == (status, stored)
        from dwarf import Query

        key, _ = await engine.run("ask")
        await engine.cancel(key, "Too Expensive")
        await engine.wait(key)
        page = await engine.list_closed(Query(search="too exp"))
        assert [(item.flow_key, item.reason) for item in page] == [(key, "Too Expensive")]
        long, _ = await engine.run("ask")
        await engine.terminate(long, "x" * 10_000)
        assert len((await engine.snapshot(long)).reason.encode()) <= 4096


@pytest.mark.row("C5", "C7", "C8")
@on_loop
async def test_what_waits_for_a_time_never_runs_after_its_flow_ended(dwarf_engine: Make) -> None:
    runs: list[str] = []

    def note(flow: Flow) -> None:
        runs.append(flow.task_name)

    def noted(task: Any) -> Any:
        def run(flow: Flow) -> None:
            note(flow)
            task(flow)

        return run

    graphs = {"sleep": "S->N->END", "retry": "R->N->END", "ask": "B->N->END"}
    tasks = {"S": noted(sleeps), "R": noted(backs_off), "B": noted(asks), "N": note}
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        for verb, status in (("terminate", TERMINATED), ("cancel", CANCELLED)):
            runs.clear()
            keys = [await engine.create(url) for url in graphs]
            await calm(engine)
            for key in keys:
                await getattr(engine, verb)(key)
                assert (await engine.wait(key)).status is status
            await engine.advance(10 * 86_400)
            await calm(engine)
            assert sorted(runs) == ["B", "R", "S"]
            for key, names in zip(keys, (["S", "N"], ["R"], ["B"]), strict=True):
                steps = await engine.history(key)
                assert [step.task_name for step in steps] == names
                assert str(steps[-1].status) == str(status)
                await refused(engine.resume(key), 409)


@pytest.mark.row("C6", "C33")
@on_loop
async def test_pending_branches_of_an_ended_flow_never_run(dwarf_engine: Make) -> None:
    gate, runs = Gate(), list[int]()

    async def branch(flow: Flow) -> None:
        runs.append(flow["item"])
        await gate(flow)

    for verb, status in (("terminate", TERMINATED), ("cancel", CANCELLED)):
        gate, runs = Gate(), []
        async with dwarf_engine(make_app({"g": "S-*xs->W->J J⊕ J->END"}, {"W": branch}), workers=1) as engine:
            key = await engine.create("g", {"xs": [0, 1, 2, 3]})
            await gate.reached()
            await getattr(engine, verb)(key, "stop")
            gate.open()
            assert (await engine.wait(key)).status is status
            await calm(engine)
            assert len(runs) == 1
            steps = paths(await engine.history(key))
            assert {path: str(step.status) for path, step in steps.items()} == {
                "1": "completed", **{f"1/{n}.1": str(status) for n in range(4)}
            }  # fmt: skip
            assert await invariants(engine) == []


@pytest.mark.row("C10", "C32")
@pytest.mark.parametrize("verb", ["terminate", "cancel"])
@on_loop
async def test_ending_races_completion_and_one_of_both_wins(dwarf_engine: Make, verb: str) -> None:
    async with dwarf_engine(make_app({"g": "A->B->C->END"})) as engine:
        won = {True: 0, False: 0}
        for round_ in range(40):
            key = await engine.create("g")
            for _ in range(round_ % 8):
                await asyncio.sleep(0)
            stopped = await done(getattr(engine, verb)(key, "race"))
            won[stopped] += 1
            outcome = await engine.wait(key)
            ended = {"terminate": TERMINATED, "cancel": CANCELLED}[verb]
            assert (outcome.status, outcome.reason) == ((ended, "race") if stopped else (COMPLETED, ""))
            statuses = {str(step.status) for step in await engine.history(key)}
            assert statuses <= ({"completed", str(ended)} if stopped else {"completed"})
        assert await invariants(engine) == []


@pytest.mark.row("C12")
@on_loop
async def test_a_child_that_ends_while_its_root_is_terminated(dwarf_engine: Make) -> None:
    gates = [Gate() for _ in range(10)]

    def call(flow: Flow) -> None:
        flow.subgraph("child", {"round": flow["round"]})

    async def held(flow: Flow) -> None:
        await gates[flow["round"]](flow)

    async with dwarf_engine(make_app({"g": "P->Z->END", "child": "C->END"}, {"P": call, "C": held})) as engine:
        for number, gate in enumerate(gates):
            key = await engine.create("g", {"round": number})
            await gate.reached()
            ends = engine.terminate(key, "race")
            gate.open()
            await ends
            assert (await engine.wait(key)).status is TERMINATED
            await calm(engine)
            [caller, *rest] = await engine.history(key)
            assert str([caller, *rest][-1].status) == "terminated"
            assert (await engine.snapshot(caller.sub_flow_key)).status in (TERMINATED, COMPLETED)
        assert await invariants(engine) == []


@pytest.mark.row("C15")
@on_loop
async def test_a_terminate_that_was_rolled_back_changed_nothing(dwarf_engine: Make) -> None:
    import psycopg

    from dwarf.keys import FlowKey

    async with dwarf_engine(make_app({"g": "P->END", "child": "B->END"}, {"P": calls("child"), "B": asks})) as engine:
        key, before = await engine.run("g")
        tree = await engine.history(key)

        def crash() -> None:
            with psycopg.connect(engine.dsn) as connection:
                connection.execute("select dwarf.terminate_v1(%s, 'crash')", (FlowKey.parse(key).flow_id,))
                connection.rollback()

        await asyncio.to_thread(crash)
        assert (await engine.snapshot(key), await engine.history(key)) == (before, tree)
        await engine.terminate(key)
        assert (await engine.snapshot(key)).status is TERMINATED


@pytest.mark.row("C16")
@on_loop
async def test_terminate_and_delete_race_a_resume(dwarf_engine: Make) -> None:
    """What is resumed runs on and is held, so that a delete which lost finds it running."""
    gate = Gate()
    async with dwarf_engine(make_app({"g": "B->G->END"}, {"B": asks, "G": gate})) as engine:
        keys = []
        for verb in ("terminate", "delete", "cancel"):
            for round_ in range(8):
                key, _ = await engine.run("g")
                racing = [getattr(engine, verb)(key), engine.resume(key)]
                answers = await asyncio.gather(*(racing[::-1] if round_ % 2 else racing), return_exceptions=True)
                ended, resumed = answers[::-1] if round_ % 2 else answers
                assert {getattr(answer, "status", 0) for answer in answers if answer is not None} <= {409}, answers
                assert ended is None or resumed is None
                if verb == "delete":
                    assert (ended is None) != (resumed is None), answers
                if ended is None and verb != "delete":
                    assert (await engine.wait(key)).status is {"terminate": TERMINATED, "cancel": CANCELLED}[verb]
                elif ended is None:
                    await refused(engine.history(key), 404)
                else:
                    keys.append(key)
        gate.open()
        assert all([(await engine.wait(key)).status is COMPLETED for key in keys])
        strays = "select count(*) from dwarf.live l where not exists (select from dwarf.active a where a.flow_id = l.flow_id)"
        assert await one(engine, strays) == 0
        assert await invariants(engine) == []


@pytest.mark.row("C18", "C19", "C20", "C28")
@pytest.mark.parametrize("standing", ["pending", "running", "sleeping", "backoff", "interrupted", "parked"])
@on_loop
async def test_a_cancellation_goes_to_the_handler_of_what_is_in_progress(dwarf_engine: Make, standing: str) -> None:
    """The step in progress is N: its handler H runs next, whatever N was doing, and the flow ends as the handler's path does."""
    held, ran, seen = Held(), [], []

    def ready(flow: Flow) -> None:
        ran.append(flow.task_name)

    def handler(flow: Flow) -> None:
        seen.append(dict(flow["onErr"]))
        if flow.get("raise"):
            raise TaskError("the handler fails")

    before = {"sleeping": sleeps}.get(standing, ready)
    doing = {"running": held, "backoff": backs_off, "interrupted": asks, "parked": calls("child"), "pending": ready, "sleeping": ready}
    graphs = {"g": "A->N->Z->END N-e->H->K->END", "child": "B->END"}
    app = make_app(graphs, {"A": before, "N": doing[standing], "H": handler, "B": asks, "Z": ready})
    async with dwarf_engine(app, workers=0 if standing == "pending" else 100) as engine:
        for fails in (False, True):
            seen.clear()
            if standing == "pending":
                await check_pending(engine, dwarf_engine, app, fails)
                continue
            key = await engine.create("g", {"raise": fails, "n": 1})
            if standing == "running":
                await held.gate.reached(1 + fails)
                assert len(held.told) == fails
            else:
                await calm(engine)
            await engine.cancel(key, " changed my mind ")
            outcome = await engine.wait(key)
            if fails:
                assert (outcome.status, outcome.error, outcome.reason) == (FAILED, "the handler fails", "")
            else:
                assert (outcome.status, outcome.error, outcome.reason, outcome.interrupt_payload) == (COMPLETED, "", "", {})
                assert "late" not in outcome.state
            [given] = seen
            assert "changed my mind" in given["error"]
            assert isinstance(given["statusCode"], int)
            names = [step.task_name for step in await engine.history(key)]
            assert names == ["A", "N", "H", *([] if fails else ["K"])]
        if standing == "parked":
            closed = await sql(engine, "select status from dwarf.flows where caller_flow is not null")
            assert {row.status for row in closed} == {8}  # the child ended cancelled
        if standing in ("pending", "sleeping"):
            assert "N" not in ran
        if standing == "running":
            await until(lambda: len(held.told) == 2)
        assert "Z" not in ran
        assert await invariants(engine) == []


async def check_pending(engine: Any, dwarf_engine: Make, app: Any, fails: bool) -> None:
    """The entry step waits for a worker: there, the flow's first node is N itself."""
    key = await engine.create("g", {"raise": fails, "n": 1})
    # A is pending and has no handler: cancelled at once, its task never runs
    await engine.cancel(key, " changed my mind ")
    async with dwarf_engine(app, dsns=engine.dsns) as worker:
        outcome = await worker.wait(key)
        assert (outcome.status, outcome.reason) == (CANCELLED, "changed my mind")
        assert shape(await worker.history(key)) == [("A", "cancelled")]
        assert await one(worker, "select count(*) from dwarf.active") == 0


@pytest.mark.row("C21", "C28", "C33")
@on_loop
async def test_without_a_handler_a_cancellation_ends_step_and_flow(dwarf_engine: Make) -> None:
    held, handled = Held(), []
    graphs = {"g": "A->N->Z->END A-e->H->END Z-e->H", "ask": "B->Z->END"}
    async with dwarf_engine(make_app(graphs, {"N": held, "B": asks, "H": lambda flow: handled.append(1)})) as engine:
        key = await engine.create("g", {"n": 1})
        await held.gate.reached()
        waiting = asyncio.create_task(engine.wait(key))
        await engine.cancel(key, "why")
        outcome = await waiting
        assert (outcome.status, outcome.reason, outcome.error, outcome.state) == (CANCELLED, "why", "", {"n": 1})
        assert shape(await engine.history(key)) == [("A", "completed"), ("N", "cancelled")]
        await until(lambda: held.told)
        asking, _ = await engine.run("ask")
        await engine.cancel(asking)
        outcome = await engine.wait(asking)
        assert (outcome.status, outcome.reason, outcome.interrupt_payload) == (CANCELLED, "", {})
        assert handled == []
        page = await engine.list_closed()
        assert {(item.flow_key, str(item.status), item.reason) for item in page} == {(key, "cancelled", "why"), (asking, "cancelled", "")}
        for each in (key, asking):
            await refused(engine.cancel(each), 409)
            await refused(engine.resume(each), 409)


@pytest.mark.row("C24", "C27", "C28")
@on_loop
async def test_every_branch_handles_its_own_cancellation(dwarf_engine: Make) -> None:
    """Running, interrupted, asleep and parked branches reach the fan-in by their handlers; nested ones too."""
    held = Held()

    def handler(flow: Flow) -> None:
        flow["log"] = [flow.task_name]
        assert "stop it" in flow["onErr"]["error"]
        flow.delete("onErr")

    from tests.strategies import sketch

    arms = {"A": held, "B": asks, "D": backs_off, "P": calls("child")}
    text = " ".join(f"S->{name}->J {name}-e->H{name}->J" for name in arms) + " J⊕ J->END"
    nested = "O->S O->X->M J->M M⊕ M->END X-e->HX->M " + text.replace("J->END", "")
    graphs = {"flat": text, "nested": nested, "child": "C->END"}
    made = {url: sketch(each, url).set_reducer("log", "append") for url, each in graphs.items()}
    tasks = {**arms, "C": asks, "X": asks, **{f"H{name}": handler for name in (*arms, "X")}}
    async with dwarf_engine(make_app(made, tasks)) as engine:
        for count, (url, log) in enumerate({"flat": ["HA", "HB", "HD", "HP"], "nested": ["HA", "HB", "HD", "HP", "HX"]}.items(), 1):
            key = await engine.create(url)
            await held.gate.reached(count)
            await until(lambda: one(engine, "select count(*) = 1 from dwarf.active where wake_at is not null"))
            await until(lambda: one(engine, "select count(*) >= 2 from dwarf.parks where kind = 1"))
            await engine.cancel(key, "stop it")
            outcome = await engine.wait(key)
            assert (outcome.status, outcome.reason, dict(outcome.state)) == (COMPLETED, "", {"log": log})
        assert await invariants(engine) == []


@pytest.mark.row("C27", "C21")
@on_loop
async def test_a_branch_without_a_handler_ends_the_flow_cancelled_after_the_others(dwarf_engine: Make) -> None:
    handled: list[str] = []

    def handler(flow: Flow) -> None:
        handled.append(flow.task_name)

    graph = "S->A->J S->B->J A-e->H->J J⊕ J->END"
    async with dwarf_engine(make_app({"g": graph}, {"A": asks, "B": asks, "H": handler})) as engine:
        key = await engine.create("g")
        await calm(engine)
        await engine.cancel(key, "half")
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.reason) == (CANCELLED, "half")
        assert handled == ["H"]
        assert "J" not in [step.task_name for step in await engine.history(key)]


@pytest.mark.row("C29", "C31")
@on_loop
async def test_a_second_cancel_reaches_the_handlers_and_terminate_stops_them(dwarf_engine: Make) -> None:
    gate, seen = Gate(), []

    async def handler(flow: Flow) -> None:
        seen.append(flow["onErr"]["error"])
        await gate(flow)

    def last(flow: Flow) -> None:
        seen.append(flow["onErr"]["error"])

    graphs = {"two": "A->END A-e->H->END H-e->L->END", "one": "A->END A-e->H->END"}
    async with dwarf_engine(make_app(graphs, {"A": asks, "H": handler, "L": last})) as engine:
        key, _ = await engine.run("two")
        await engine.cancel(key, "first")
        await gate.reached(1)
        await engine.cancel(key, "second")
        assert (await engine.wait(key)).status is COMPLETED
        assert ["first" in seen[0], "second" in seen[1], len(seen)] == [True, True, 2]

        key, _ = await engine.run("one")
        await engine.cancel(key, "first")
        await gate.reached(2)
        await engine.cancel(key, "second")
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.reason) == (CANCELLED, "second")

        key, _ = await engine.run("two")
        await engine.cancel(key, "first")
        await gate.reached(3)
        await engine.terminate(key, "at once")
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.reason) == (TERMINATED, "at once")
        assert shape(await engine.history(key)) == [("A", "completed"), ("H", "terminated")]
        gate.open()
        await calm(engine)
        assert len(seen) == 4
        assert (await engine.snapshot(key)) == outcome


@pytest.mark.row("C18")
@on_loop
async def test_a_cancelled_child_surfaces_in_its_caller(dwarf_engine: Make) -> None:
    """The deepest active flow hears first; a child that handles it completes, and its caller's own edge still decides."""
    order: list[str] = []

    def handler(flow: Flow) -> None:
        order.append(flow.task_name)
        flow["handled"] = flow.task_name

    graphs = {"g": "P->Z->END P-e->HP->END", "child": "C->END", "handles": "C->END C-e->HC->END", "h": "R->Z->END R-e->HR->END"}
    tasks = {"P": calls("child"), "R": calls("handles"), "C": asks, "HP": handler, "HC": handler, "HR": handler}
    async with dwarf_engine(make_app(graphs, tasks)) as engine:
        key, _ = await engine.run("g")
        [caller] = await engine.history(key)
        await engine.cancel(key, "enough")
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.state["handled"]) == (COMPLETED, "HP")
        assert "enough" in outcome.state["onErr"]["error"]
        inner = await engine.wait(caller.sub_flow_key)
        assert (inner.status, inner.reason) == (CANCELLED, "enough")
        order.clear()
        key, _ = await engine.run("h")
        [caller] = await engine.history(key)
        await engine.cancel(key, "enough")
        outcome = await engine.wait(key)
        inner = await engine.wait(caller.sub_flow_key)
        assert (inner.status, order[0]) == (COMPLETED, "HC")
        assert outcome.status is COMPLETED


@pytest.mark.parametrize("style", ["sync", "async", "late"])
@pytest.mark.row("C18", "C21")
@on_loop
async def test_running_tasks_of_any_kind_are_told(dwarf_engine: Make, style: str) -> None:
    told: list[bool] = []
    entered = Gate()

    def blocking(flow: Flow) -> None:
        entered.entered += 1
        told.append(flow.cancelled.wait(SIGNALLED))
        flow["late"] = 1

    async def waiting(flow: Flow) -> None:
        entered.entered += 1
        await flow.cancelled.wait()
        told.append(flow.cancelled.is_set())
        flow["late"] = 1

    async def asking(flow: Flow) -> None:
        entered.entered += 1
        await until(flow.cancelled.is_set)
        told.append(True)
        raise TaskError("a late error")

    task = {"sync": blocking, "async": waiting, "late": asking}[style]
    async with dwarf_engine(make_app({"g": "A->B->END"}, {"A": task})) as engine:
        for count, (verb, status) in enumerate((("terminate", TERMINATED), ("cancel", CANCELLED)), 1):
            key = await engine.create("g")
            await entered.reached(count)
            await getattr(engine, verb)(key)
            outcome = await engine.wait(key)
            assert (outcome.status, outcome.state, outcome.error) == (status, {}, "")
            await until(lambda count=count: len(told) >= count)  # type: ignore[misc]
        assert all(told)
        await play(engine)
        assert await invariants(engine) == []
