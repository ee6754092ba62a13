"""Group A, second half: waiting, polling, snapshots, fingerprints, histories."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import Flow, FlowOptions, ShardUnavailable, Status, TaskError, WaitTimeout
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    RUNNING,
    TERMINATED,
    Gate,
    Make,
    is_recent,
    make_app,
    on_loop,
    one,
    refused,
    settle,
    shape,
    until,
)

SHORT = 0.05
NO_ROOM = 30.0  # a wait that only comes back because it is told, never because its time is up


def asks(flow: Flow) -> None:
    flow["seen"] = 1
    flow["answer"] = flow.interrupt({"ask": flow.get("n", 0)}).get("a")


def fails(flow: Flow) -> None:
    raise TaskError("the card has expired", status=402)


@pytest.mark.row("A24", "A25", "A26", "A27", "A38", "I-21")
@on_loop
async def test_deadlines_of_waits_leave_the_flow_alone(dwarf_engine: Make) -> None:
    gate = Gate()
    async with dwarf_engine(make_app({"g": "A->B->END"}, {"A": gate})) as engine:
        with pytest.raises(WaitTimeout) as late:
            await engine.run("g", timeout=SHORT)
        key = late.value.flow_key
        assert (late.value.status, isinstance(late.value, TimeoutError)) == (408, True)
        assert key.rsplit("-", 1)[1] not in str(late.value)
        for timeout in (SHORT, 0, -1):
            error = await refused(engine.wait(key, timeout), 408)
            assert isinstance(error, WaitTimeout)
            assert error.flow_key == key
            outcome = await engine.poll(key, timeout)
            assert (outcome.status, outcome.stopped, outcome.state, outcome.error) == (RUNNING, False, {}, "")
        assert (await engine.snapshot(key)).status is RUNNING
        polled = asyncio.create_task(engine.poll(key, NO_ROOM))
        gate.open()
        assert (await polled).status is COMPLETED
        for spent in (None, 0, SHORT):  # stopped already: even a spent deadline has the outcome
            assert (await engine.poll(key, spent)).status is COMPLETED
        assert (await engine.wait(key)).status is COMPLETED
        assert gate.entered == 1


@pytest.mark.row("A29", "A31", "A32")
@on_loop
async def test_a_waiter_in_another_process_hears_of_each_stop_and_of_nothing_else(dwarf_engine: Make) -> None:
    app = make_app({"g": "A->B->C->D->END"}, {"B": asks})
    async with dwarf_engine(app) as worker:
        from dwarf import Client, Shard

        async with Client([Shard(1, worker.dsn)]) as client:
            key = await client.create("g", {"n": 7})
            outcomes = await asyncio.gather(client.wait(key, NO_ROOM), client.poll(key, NO_ROOM), worker.wait(key, NO_ROOM))
            for outcome in outcomes:
                assert (outcome.status, outcome.stopped, outcome.interrupt_payload) == (INTERRUPTED, True, {"ask": 7})
            waits = [asyncio.create_task(each.wait(key, NO_ROOM)) for each in (client, worker)]
            await client.resume(key, {"a": 1})
            ended = [await wait for wait in waits]
            # a wait that began before the resume may still have found the interrupt; nobody is told of a running flow
            assert {outcome.status for outcome in ended} <= {INTERRUPTED, COMPLETED}
            assert (await client.wait(key, NO_ROOM)).state == {"n": 7, "seen": 1, "answer": 1}


@pytest.mark.row("A33", "A37")
@on_loop
async def test_waiters_hear_of_removal_and_of_shutdown(dwarf_engine: Make) -> None:
    gate = Gate()
    app = make_app({"g": "A->END", "h": "B->END"}, {"A": gate})
    async with dwarf_engine(app, grace=0) as engine:
        key = await engine.create("g")
        await gate.reached()
        removed = asyncio.create_task(engine.wait(key, NO_ROOM))
        await until(lambda: engine.hub(1).waiting)
        await one_row_gone(engine, key)
        error = await refused(removed, 404)
        assert key.rsplit("-", 1)[1] not in str(error)
        held = await engine.create("g")
        await gate.reached(2)
        waits = [asyncio.create_task(verb(held, NO_ROOM)) for verb in (engine.wait, engine.poll)]
        done, _ = await engine.run("h")
        await until(lambda: engine.hub(1).waiting >= 2)
        just_stopped = asyncio.create_task(engine.wait(done, NO_ROOM))
        await asyncio.sleep(0)
        await engine.close()
        for wait in waits:
            assert isinstance(await refused(wait, 503), ShardUnavailable)
        assert (await just_stopped).status is COMPLETED
        await refused(engine.wait(held), 503)
        await refused(engine.create("h"), 503)


async def one_row_gone(engine: Any, key: str) -> None:
    from dwarf.keys import FlowKey

    flow_id = FlowKey.parse(key).flow_id
    await one(engine, "with a as (delete from dwarf.active where flow_id = %s) select 1", flow_id)
    await one(engine, "with a as (delete from dwarf.live where flow_id = %s) select 1", flow_id)


@pytest.mark.row("A36")
@on_loop
async def test_fifteen_hundred_waiters_all_return(dwarf_engine: Make) -> None:
    gate = Gate()
    async with dwarf_engine(make_app({"g": "A->END"}, {"A": gate}), workers=5_000) as engine:
        from dwarf import Client, Shard

        keys = await engine.create_many([("g", {"n": n}) for n in range(1_500)])
        async with Client([Shard(1, engine.dsn)]) as client:
            waits = [asyncio.create_task((client, engine)[n % 2].wait(key, 100)) for n, key in enumerate(keys)]
            await gate.reached(1_500)
            gate.open()
            outcomes = await asyncio.gather(*waits)
        assert [outcome.state["n"] for outcome in outcomes] == list(range(1_500))


@pytest.mark.row("A39", "A40", "A41", "A42")
@on_loop
async def test_an_outcome_shows_what_its_status_is_about(dwarf_engine: Make) -> None:
    gate = Gate()

    def writes(flow: Flow) -> None:
        flow["kept"], flow["lost"] = 1, 2
        flow.delete("gone", "never there")

    def parks(flow: Flow) -> None:
        flow["mine"] = [1]
        flow.delete("kept")
        flow.interrupt({"ask": 1})

    graphs = {"run": "G->END", "fail": "W->F->END", "ask": "W->P->END", "done": "W->END"}
    async with dwarf_engine(make_app(graphs, {"G": gate, "W": writes, "F": fails, "P": parks})) as engine:
        state = {"gone": 1, "n": 1}
        running = await engine.create("run", state)
        await gate.reached()
        outcome = await engine.snapshot(running)
        assert (outcome.status, outcome.state, outcome.error, outcome.reason, outcome.interrupt_payload) == (RUNNING, {}, "", "", {})
        _, outcome = await engine.run("fail", state)
        assert (outcome.status, outcome.error, outcome.reason) == (FAILED, "the card has expired", "")
        assert outcome.state == {"n": 1, "kept": 1, "lost": 2}
        asking, outcome = await engine.run("ask", state)
        assert (outcome.status, outcome.state) == (INTERRUPTED, {"n": 1, "lost": 2, "mine": [1]})
        assert (outcome.interrupt_payload, outcome.error, outcome.reason) == ({"ask": 1}, "", "")
        await engine.terminate(asking, " enough ")
        outcome = await engine.snapshot(asking)
        assert (outcome.status, outcome.reason, outcome.error, outcome.interrupt_payload) == (TERMINATED, "enough", "", {})
        _, outcome = await engine.run("done", state)
        assert dict(outcome.state) == {"n": 1, "kept": 1, "lost": 2}
        assert "gone" not in outcome.state
        assert (outcome.error, outcome.reason, outcome.interrupt_payload) == ("", "", {})
        gate.open()


@pytest.mark.row("A43")
@on_loop
async def test_a_fingerprint_changes_with_every_step_below(dwarf_engine: Make) -> None:
    """A flow, its child and its grandchild each stand still before every step of theirs."""
    gates = {name: Gate() for name in ("A", "C", "D", "B")}

    def call(url: str) -> Any:
        async def task(flow: Flow) -> None:
            flow["got"] = flow.subgraph(url)

        return task

    graphs = {"g": "A->P->B->END", "child": "C->Q->END", "grand": "D->END"}
    async with dwarf_engine(make_app(graphs, {**gates, "P": call("child"), "Q": call("grand")})) as engine:
        key = await engine.create("g")
        seen = []
        for name in ("A", "C", "D", "B"):
            await gates[name].reached()
            first, second = await engine.fingerprint(key), await engine.fingerprint(key)
            assert first == second
            assert first[1] is RUNNING
            seen.append(first[0])
            gates[name].open()
        await engine.wait(key)
        text, status = await engine.fingerprint(key)
        assert status is COMPLETED
        assert await engine.fingerprint(key) == (text, status)
        assert len({*seen, text}) == 5
        assert key.rsplit("-", 1)[1] not in text


@pytest.mark.row("A43")
@on_loop
async def test_a_fingerprint_changes_with_retries_interrupts_and_resumes(dwarf_engine: Make) -> None:
    def task(flow: Flow) -> None:
        if flow.attempt == 0 and flow.retry(60):
            return
        flow.interrupt()

    async with dwarf_engine(make_app({"g": "A->END"}, {"A": task})) as engine:
        key = await engine.create("g")
        await until(lambda: one(engine, "select count(*) from dwarf.active where wake_at is not null and attempt = 1"))
        seen = [(await engine.fingerprint(key))]
        await engine.advance(60)
        await engine.wait(key)
        seen.append(await engine.fingerprint(key))
        await engine.resume(key)
        await engine.wait(key)
        seen.append(await engine.fingerprint(key))
        assert [status for _, status in seen] == [RUNNING, INTERRUPTED, COMPLETED]
        assert len({text for text, _ in seen}) == 3


@pytest.mark.row("A44", "A45", "I-26", "I-27")
@on_loop
async def test_a_history_tells_what_happened_in_order(dwarf_engine: Make) -> None:
    def flaky(flow: Flow) -> None:
        if flow.attempt < 2:
            flow.retry(0)

    def call(flow: Flow) -> None:
        flow["got"] = flow.subgraph("child")
        if flow.attempt == 0:
            flow.retry(0)

    def handled(flow: Flow) -> None:
        raise TaskError("no luck")

    graphs = {"g": "S->A->J S->B->J J⊕ J->P->X->END X-e->Y->END", "child": "C1->C2->END"}
    async with dwarf_engine(make_app(graphs, {"A": flaky, "P": call, "X": handled}), engine_id=77) as engine:
        key, outcome = await engine.run("g", {"secret": "s3cret"})
        assert outcome.status is COMPLETED
        now = await one(engine, "select dwarf.now()")
        steps = await engine.history(key)
        assert shape(steps) == [(name, "completed") for name in "SABJPXY"]
        assert [step.step_depth for step in steps][:4] == [1, 2, 2, 3]
        assert [(step.step_depth, step.step_id) for step in steps] == sorted((step.step_depth, step.step_id) for step in steps)
        s, a, b, j, p, x, y = steps
        assert [step.attempt for step in steps] == [0, 2, 0, 0, 1, 0, 0]
        assert len({step.step_key for step in steps}) == 7
        for step in steps:
            assert (step.task_url, step.engine_id) == (step.task_name, 77)
            assert all(is_recent(time, now) for time in (step.created_at, step.started_at, step.updated_at))
            assert step.created_at <= step.started_at <= step.updated_at  # type: ignore[operator]
            assert (step.state, step.changes, step.interrupt_payload, step.parked) == (None, None, None, False)
            assert "s3cret" not in repr(step)
        assert (x.error, y.error) == ("no luck", "")
        assert s.predecessor_key == ""
        assert (a.predecessor_key, b.predecessor_key) == (s.step_key, s.step_key)
        assert (p.predecessor_key, j.successor_key, x.successor_key, y.successor_key) == (j.step_key, p.step_key, y.step_key, "")
        assert (a.successor_key, b.successor_key) == (j.step_key, j.step_key)
        assert [step.subgraph for step in steps] == [False] * 4 + [True, False, False]
        assert (p.sub_workflow_url, p.sub_workflow_name) == ("child", "child")
        assert shape(p.sub_history) == [("C1", "completed"), ("C2", "completed")]  # the latest child alone
        c1, c2 = p.sub_history
        assert [c1.step_depth, c2.step_depth, x.step_depth] == [p.step_depth + 1, p.step_depth + 2, p.step_depth + 1]
        assert (p.previous_key, c1.previous_key, c2.previous_key, x.previous_key) == (j.step_key, j.step_key, c1.step_key, c2.step_key)
        assert (j.next_key, c1.next_key, c2.next_key, x.next_key) == (c1.step_key, c2.step_key, x.step_key, y.step_key)
        text = await engine.history_mermaid(key)
        assert all(name in text for name in ("S", "C1", "C2", "X"))
        assert key.rsplit("-", 1)[1] not in text


@pytest.mark.row("I-27")
@on_loop
async def test_a_middle_step_knows_its_neighbours(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"g": "A->B->C->END"})) as engine:
        key, _ = await engine.run("g")
        a, b, c = [await engine.step(step.step_key) for step in await engine.history(key)]
        assert (a.step_depth, a.predecessor_key, a.previous_key, a.next_key) == (1, "", "", b.step_key)
        assert (b.previous_key, b.next_key) == (a.step_key, c.step_key)
        assert (b.predecessor_key, b.successor_key) == (a.step_key, c.step_key)
        assert (c.previous_key, c.next_key, c.successor_key) == (b.step_key, "", "")
        await refused(engine.step(b.step_key[:-1] + ("0" if b.step_key[-1] != "0" else "1")), 404)
        await refused(engine.step(key), 400)


@pytest.mark.row("A45")
@on_loop
async def test_a_child_of_an_earlier_attempt_is_still_the_latest_child(dwarf_engine: Make) -> None:
    def call(flow: Flow) -> None:
        if flow.attempt == 0:
            flow.subgraph("child")
            flow.retry(0)

    async with dwarf_engine(make_app({"g": "P->END", "child": "C->END"}, {"P": call})) as engine:
        key, _ = await engine.run("g")
        [caller] = await engine.history(key)
        assert (caller.attempt, caller.subgraph, shape(caller.sub_history)) == (1, True, [("C", "completed")])


@pytest.mark.row("A46", "I-42", "E6")
@on_loop
async def test_a_child_key_reads_its_own_subtree_and_drives_nothing(dwarf_engine: Make) -> None:
    gate = Gate()
    done_keys: list[str] = []

    def call(flow: Flow) -> None:
        flow["got"] = flow.subgraph("child", {"x": 1})

    async def deep(flow: Flow) -> None:
        done_keys.append(flow.flow_key)
        await gate(flow)
        flow["deep"] = flow.get("x")

    def ask(flow: Flow) -> None:
        flow.interrupt({"q": 1})

    graphs = {"g": "P->Z->END", "child": "C->D->E->END"}
    async with dwarf_engine(make_app(graphs, {"P": call, "D": deep, "E": ask})) as engine:
        root = await engine.create("g", {"secret": 1})
        await gate.reached()
        [child] = done_keys
        assert child != root
        assert (await engine.snapshot(child)).status is RUNNING
        text, status = await engine.fingerprint(child)
        assert status is RUNNING
        [caller] = await engine.history(root)
        assert (str(caller.status), caller.parked, caller.sub_flow_key) == ("parked", True, child)
        assert [step.task_name for step in await engine.history(child)] == ["C", "D"]
        waits = [asyncio.create_task(engine.wait(key, NO_ROOM)) for key in (child, root)]
        gate.open()
        for outcome in await asyncio.gather(*waits):
            assert (outcome.status, outcome.interrupt_payload) == (INTERRUPTED, {"q": 1})
        assert (await engine.fingerprint(child))[0] != text

        async def drive() -> None:
            verbs: list[Any] = [engine.resume, engine.cancel, engine.terminate, engine.delete]
            verbs += [getattr(engine, name) for name in ("continue_flow",) if hasattr(engine, name)]
            for verb in verbs:
                before = await engine.fingerprint(child)
                await refused(verb(child), 400)
                assert await engine.fingerprint(child) == before
            await refused(engine.create("g", None, FlowOptions(thread_key=child)), 400)

        await drive()
        await engine.resume(root, {"a": 1})
        assert (await engine.wait(child)).state == {"x": 1, "deep": 1}
        outcome = await engine.wait(root)
        assert (outcome.status, outcome.state) == (COMPLETED, {"secret": 1, "got": {"x": 1, "deep": 1}})
        await drive()
        inner = await engine.history(child)
        assert shape(inner) == [("C", "completed"), ("D", "completed"), ("E", "completed")]
        assert (await engine.step(inner[1].step_key)).state == {"x": 1}
        assert await engine.history_mermaid(child)


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.row("A49")
@on_loop
async def test_a_task_calls_back_with_its_own_keys(dwarf_engine: Make, style: str) -> None:
    seen: list[tuple[str, str, int]] = []

    def look(flow: Flow, status: Status, task: str) -> None:
        assert (status, task) == (RUNNING, "A")
        seen.append((flow.flow_key, flow.step_key, flow.attempt))
        if len(seen) < 3 and flow.retry(0):
            return
        flow.interrupt()

    async def calls(flow: Flow) -> None:
        outcome, step = await flow.client.snapshot(flow.flow_key), await flow.client.step(flow.step_key)
        look(flow, outcome.status, step.task_name)

    def blocking(flow: Flow) -> None:
        outcome, step = flow.client.snapshot(flow.flow_key), flow.client.step(flow.step_key)
        look(flow, outcome.status, step.task_name)

    async with dwarf_engine(make_app({"g": "A->B->END"}, {"A": calls if style == "async" else blocking})) as engine:
        key = await engine.create("g")
        assert (await settle(engine, key)).status is INTERRUPTED
        await engine.resume(key)
        assert (await engine.wait(key)).status is COMPLETED
        assert {(flow_key, step_key) for flow_key, step_key, _ in seen} == {(key, (await engine.history(key))[0].step_key)}
        assert [attempt for *_, attempt in seen] == [0, 1, 2, 2]


@pytest.mark.row("A51")
@on_loop
async def test_large_states_stay_intact(dwarf_engine: Make) -> None:
    """Beyond 64 KB, beyond what a snapshot's threshold keeps in a delta, and beyond a megabyte."""

    def grow(flow: Flow) -> None:
        flow["log"] = ["é" * flow.get_int("size")]

    graph = "A->B->C->D->END"
    from tests.strategies import sketch

    graphs = {"g": sketch(graph).set_reducer("log", "append")}
    async with dwarf_engine(make_app(graphs, dict.fromkeys("ABCD", grow))) as engine:
        for size in (1, 5_000, 70_000, 700_000):
            key, outcome = await engine.run("g", {"size": size, "text": "x\x00" * size})
            assert outcome.state == {"size": size, "text": "x\x00" * size, "log": ["é" * size] * 4}
            assert (await engine.snapshot(key)).state == outcome.state
            last = (await engine.history(key))[-1]
            assert len((await engine.step(last.step_key)).state["log"]) == 3  # type: ignore[index]
