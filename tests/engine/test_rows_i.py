"""Groups I and K, as far as one engine shows them: deleting, delete on completion, logs, counters that stay 0."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dwarf import Flow, FlowOptions, Query, TaskError
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
    refused,
    removed,
    sql,
    unknown,
    until,
    wrong_token,
)

ROWS = "select (select count(*) from dwarf.live) + (select count(*) from dwarf.flows) + (select count(*) from dwarf.history) + (select count(*) from dwarf.active)"


def asks(flow: Flow) -> None:
    flow.interrupt({"q": 1})


def fails(flow: Flow) -> None:
    raise TaskError("no")


def calls(url: str) -> Any:
    def task(flow: Flow) -> None:
        flow["got"] = flow.subgraph(url)

    return task


async def listed(engine: Any) -> set[str]:
    query = Query(include_subgraphs=True)
    return {item.flow_key for page in (await engine.list_open(query), await engine.list_closed(query)) for item in page}


@pytest.mark.row("I10", "I-11", "E24")
@on_loop
async def test_delete_on_completion_keeps_the_outcome_for_a_minute_and_nothing_else(dwarf_engine: Make) -> None:
    children: list[str] = []
    graphs = {"g": "P->END", "child": "C->END"}
    app = make_app(graphs, {"P": calls("child"), "C": lambda flow: children.append(flow.flow_key)})
    async with dwarf_engine(app, sweep_seconds=1) as engine:
        key, outcome = await engine.run("g", {"n": 1}, FlowOptions(delete_on_completion=True))
        assert (outcome.status, outcome.state) == (COMPLETED, {"n": 1, "got": {}})
        for read in (engine.snapshot, engine.wait, engine.poll):
            assert await read(key) == outcome
        assert (await engine.fingerprint(key))[1] is COMPLETED
        await refused(engine.history(key), 404)
        await refused(engine.history_mermaid(key), 404)
        assert await listed(engine) == set()
        await engine.advance(50)
        assert await engine.snapshot(key) == outcome
        waiting = asyncio.create_task(engine.wait(key))
        assert await waiting == outcome
        await removed(engine, key, *children)
        for verb in (engine.snapshot, engine.wait, engine.poll, engine.history, engine.delete):
            for each in (key, *children):
                await refused(verb(each), 404)
        assert await one(engine, ROWS) == 0


@pytest.mark.row("I11", "I-11")
@on_loop
async def test_what_does_not_complete_is_kept(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"bad": "F->END", "ask": "A->END"}, {"F": fails, "A": asks}), sweep_seconds=1) as engine:
        options = FlowOptions(delete_on_completion=True)
        failed, _ = await engine.run("bad", None, options)
        cancelled, _ = await engine.run("ask", None, options)
        terminated, _ = await engine.run("ask", None, options)
        waiting, _ = await engine.run("ask", None, options)
        kept, _ = await engine.run("ask")
        await engine.cancel(cancelled)
        await engine.wait(cancelled)
        await engine.terminate(terminated)
        completed, _ = await engine.run("ask", None, options)
        for key in (completed, kept):
            await engine.resume(key)
            assert (await engine.wait(key)).status is COMPLETED
        await removed(engine, completed)
        statuses = [str((await engine.snapshot(key)).status) for key in (failed, cancelled, terminated, waiting, kept)]
        assert statuses == ["failed", "cancelled", "terminated", "interrupted", "completed"]
        assert await listed(engine) == {failed, cancelled, terminated, waiting, kept}
        for key in (failed, cancelled, terminated, waiting, kept):
            assert await engine.history(key)


@pytest.mark.row("I12", "I13", "C16")
@on_loop
async def test_a_deleted_flow_is_hidden_at_once_and_gone_soon(dwarf_engine: Make) -> None:
    gate, children = Gate(), list[str]()
    graphs = {"g": "P->END", "child": "C->END", "ask": "A->END", "run": "G->END"}

    def child(flow: Flow) -> None:
        children.append(flow.flow_key)

    async with dwarf_engine(make_app(graphs, {"P": calls("child"), "C": child, "A": asks, "G": gate}), sweep_seconds=1) as engine:
        key, outcome = await engine.run("g")
        other, _ = await engine.run("g")
        asking, _ = await engine.run("ask")
        running = await engine.create("run")
        await gate.reached()
        await refused(engine.delete(running), 409)
        await refused(engine.delete(children[0]), 400)
        await refused(engine.delete(unknown(key)), 404)
        await refused(engine.delete(wrong_token(key)), 404)
        assert await listed(engine) == {key, other, asking, running, *children}
        await engine.delete(key)
        assert await listed(engine) == {other, asking, running, children[1]}
        await refused(engine.history(key), 404)
        assert await engine.snapshot(key) == outcome  # until it is removed
        await engine.delete(key)  # again: as good as before
        await engine.delete(asking)
        ended = await engine.snapshot(asking)
        assert ended.status is TERMINATED
        await refused(engine.resume(asking), 409)
        assert asking not in await listed(engine)
        await removed(engine, key, children[0], asking)
        for each in (key, children[0], asking):
            await refused(engine.snapshot(each), 404)
            await refused(engine.delete(each), 404)
        assert (await engine.snapshot(other)).status is COMPLETED
        assert await engine.history(other)
        gate.open()
        assert (await engine.wait(running)).status is COMPLETED
        assert await one(engine, "select count(*) from dwarf.history") == 1 + 2
        assert await invariants(engine) == []


@pytest.mark.row("I12")
@on_loop
async def test_deleting_a_tree_with_closed_children_below_an_interrupt(dwarf_engine: Make) -> None:
    graphs = {"g": "P->Q->END", "child": "C->END", "ask": "A->END"}
    async with dwarf_engine(make_app(graphs, {"P": calls("child"), "Q": calls("ask"), "A": asks}), sweep_seconds=1) as engine:
        key, outcome = await engine.run("g")
        assert outcome.status is INTERRUPTED
        inner = [step.sub_flow_key for step in await engine.history(key)]
        waits = [asyncio.create_task(engine.wait(each)) for each in inner]
        await engine.delete(key)
        assert {(await wait).status for wait in waits} <= {COMPLETED, TERMINATED, INTERRUPTED}
        await removed(engine, key, *inner)
        assert await one(engine, ROWS) == 0
        assert await one(engine, "select (select count(*) from dwarf.parks) + (select count(*) from dwarf.idempotency)") == 0


@pytest.mark.row("I12", "I10")
@on_loop
async def test_an_idempotency_key_is_free_again_once_its_flow_is_removed(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"g": "A->END"}), sweep_seconds=1) as engine:
        options = FlowOptions(idempotency_key="k", delete_on_completion=True)
        key, _ = await engine.run("g", {"n": 1}, options)
        assert await engine.create("g", {"n": 1}, options) == key
        await removed(engine, key)
        again, outcome = await engine.run("g", {"n": 2}, options)
        assert again != key
        assert outcome.state == {"n": 2}


@pytest.mark.row("I6", "I5")
@on_loop
async def test_flows_that_are_too_old_are_terminated(dwarf_engine: Make) -> None:
    ran: list[str] = []
    app = make_app(
        {"ask": "A->B->END", "sleep": "S->B->END"}, {"A": asks, "S": lambda flow: flow.sleep(9e6), "B": lambda flow: ran.append("B")}
    )
    async with dwarf_engine(app, sweep_seconds=1, flow_expiration=86_400) as engine:
        old = [await engine.create(url) for url in ("ask", "sleep")]
        await calm(engine)
        await engine.advance(80_000)
        young, _ = await engine.run("ask")
        await engine.advance(7_000)
        for key in old:
            await until(lambda key=key: one(engine, "select count(*) = 1 from dwarf.live"))  # type: ignore[misc]
            outcome = await engine.snapshot(key)
            assert outcome.status is TERMINATED
            assert outcome.reason
        assert (await engine.snapshot(young)).status is INTERRUPTED
        assert ran == []


@pytest.mark.row("K12")
@on_loop
async def test_an_engine_says_nothing_unless_it_is_asked(dwarf_engine: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a handler nothing reaches the terminal; with one, a shard's trouble is an error line that names the shard."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    async def break_and_mend(engine: Any, until_heard: bool) -> None:
        await sql(engine, "alter table dwarf.active rename to hidden")
        if until_heard:
            await until(lambda: any("shard 1" in each for each in lines), f"a line with the shard, of {lines}")
        else:
            with pytest.raises(Exception, match=r"."):
                await engine.create("g")
        await sql(engine, "alter table dwarf.hidden rename to active")

    async with dwarf_engine(make_app({"g": "A->END", "bad": "F->END"}, {"F": fails})) as engine:
        await break_and_mend(engine, until_heard=False)
        assert (await engine.run("g"))[1].status is COMPLETED
        assert (await engine.run("bad"))[1].status is FAILED
    assert capfd.readouterr() == ("", "")

    handler = Lines(logging.WARNING)
    logging.getLogger("dwarf").addHandler(handler)
    try:
        async with dwarf_engine(make_app({"g": "A->END", "bad": "F->END"}, {"F": fails})) as engine:
            key, _ = await engine.run("bad")
            assert lines == []  # a task's failure is not the engine's
            await break_and_mend(engine, until_heard=True)
            assert (await engine.run("g"))[1].status is COMPLETED
        assert key.rsplit("-", 1)[1] not in "".join(lines)
    finally:
        logging.getLogger("dwarf").removeHandler(handler)


@pytest.mark.row("K4")
@on_loop
async def test_a_fault_free_soak_counts_no_alarm(dwarf_engine: Make) -> None:
    def retries(flow: Flow) -> None:
        if flow.attempt < 2:
            flow.retry(0)

    graphs = {"g": "S->A->J S->R->J S->P->J J⊕ J->Z->END", "child": "C->END", "bad": "S2->F->K S2->B->K K⊕ K->END", "ask": "Q->END"}
    app = make_app(graphs, {"R": retries, "P": calls("child"), "F": fails, "Q": asks})
    async with dwarf_engine(app, sweep_seconds=1) as engine:
        keys = await engine.create_many([(("g", "bad", "ask")[n % 3], None, None) for n in range(240)])
        await calm(engine)
        await asyncio.gather(*(engine.terminate(key) for key in keys[2:120:3]), *(engine.cancel(key) for key in keys[122::3]))
        outcomes = await asyncio.gather(*map(engine.wait, keys))
        assert {str(outcome.status) for outcome in outcomes} == {"completed", "failed", "terminated", "cancelled"}
        counters = engine.counters(1)
        assert (counters.write_failed, counters.poisoned, counters.swept, engine.write_retries(1)) == (0, 0, 0, 0)
        assert await invariants(engine) == []
