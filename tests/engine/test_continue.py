"""Continues: a new flow begins with what a completed one has come to, under that one's graph, thread and options."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from msgspec import Struct

from dwarf import (
    END,
    Client,
    Conflict,
    Flow,
    FlowOptions,
    Graph,
    Query,
    Reducer,
    ReducerError,
    Shard,
    StateValueError,
    SyncClient,
    TaskError,
)
from dwarf.keys import FlowKey
from tests.engine.conftest import MakeStage
from tests.engine.rows_support import (
    COMPLETED,
    Gate,
    Make,
    invariants,
    line,
    make_app,
    on_loop,
    one,
    refused,
    shape,
    sql,
    unknown,
    wrong_token,
)
from tests.engine.stage import line as chain
from tests.sql.plays import beside

BIG = 2**53 + 1
HUGE = 10**30 + 7


def folding(name: str = "Turn") -> Graph:
    graph = Graph(name).add_transition("Say", END)
    for field, reducer in (
        ("log", Reducer.APPEND), ("total", Reducer.ADD), ("tags", Reducer.UNION), ("facts", Reducer.MERGE), ("text", Reducer.CONCAT)
    ):  # fmt: skip
        graph.set_reducer(field, reducer)
    return graph


def say(flow: Flow) -> None:
    flow["log"] = [f"said {flow.get_int('total')}"]


async def count(engine: Any, table: str = "live") -> int:
    return int(await one(engine, f"select count(*) from dwarf.{table}"))


# ---- the state ----


@on_loop
@pytest.mark.row("D21", "F-36", "A52")
async def test_a_completed_flow_goes_on_with_what_is_folded_into_its_state(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"turn": folding()}, {"Say": say})) as engine:
        first = {"log": ["a"], "total": BIG, "tags": [1, True], "facts": {"x": 1, "y": 1}, "text": "un", "v": 1, "gone": 1, "kept": HUGE}
        key, outcome = await engine.run("turn", first)
        assert outcome.state["log"] == ["a", f"said {BIG}"]
        more = {"log": ["b"], "total": 2, "tags": [1.0, 2], "facts": {"y": HUGE}, "text": "do", "v": 2, "gone": None, "new": -BIG}
        going_on = await engine.continue_flow(key, more)
        state = (await engine.wait(going_on)).state
        assert state == {
            "log": ["a", f"said {BIG}", "b", f"said {BIG + 2}"], "total": BIG + 2, "tags": [1, True, 2], "facts": {"x": 1, "y": HUGE},
            "text": "undo", "v": 2, "kept": HUGE, "new": -BIG,
        }  # fmt: skip
        assert [type(value) for value in (state["total"], state["kept"], *state["tags"])] == [int, int, int, bool, int]
        assert shape(await engine.history(going_on)) == [("Say", "completed")]
        assert (await engine.snapshot(key)).state == outcome.state, "what it goes on from stays as it is"
        [step] = await engine.history(going_on)
        given = (await engine.step(step.step_key)).state or {}
        assert given["log"] == ["a", f"said {BIG}", "b"]
        assert await invariants(engine) == []


@dataclass
class Extra:
    n: int


class Given(Struct):
    n: int


@on_loop
@pytest.mark.row("D21")
@pytest.mark.parametrize(
    ("extra", "expected"), [(None, 1), ({}, 1), ({"n": 2}, 2), (Extra(3), 3), (Given(4), 4), ({"n": None}, None)]
)  # fmt: skip
async def test_what_is_added_may_be_anything_with_fields_and_nothing(dwarf_engine: Make, extra: Any, expected: int | None) -> None:
    async with dwarf_engine(make_app({"line": line("A")})) as engine:
        key, _ = await engine.run("line", {"n": 1})
        state = (await engine.wait(await engine.continue_flow(key, extra))).state
        assert state.get("n") == expected
        assert ("n" in state) == (expected is not None), "None takes it away"
        outcome = await engine.snapshot(key)
        assert dict((await engine.wait(await engine.continue_flow(key, outcome.state))).state) == {"n": 1}, "an outcome's state too"


@on_loop
@pytest.mark.row("D21", "A52")
async def test_a_chain_of_turns_of_which_each_goes_on_from_the_one_before(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"turn": folding()}, {"Say": say})) as engine:
        key, _ = await engine.run("turn", {"total": 2**60})
        keys = [key]
        for turn in range(1, 6):
            keys.append(await engine.continue_flow(keys[-1], {"total": 1}))
            assert (await engine.wait(keys[-1])).state["total"] == 2**60 + turn
        assert (await engine.snapshot(keys[-1])).state["log"] == [f"said {2**60 + turn}" for turn in range(6)]
        listed = {flow.flow_key: flow for flow in await engine.list_closed(Query(thread_key=keys[3]))}
        assert set(listed) == set(keys)
        assert {flow.thread_key for flow in listed.values()} == {key}, "they share the first one's thread"


@on_loop
@pytest.mark.row("D21", "L15", "A50")
async def test_states_come_through_to_the_last_character_whatever_their_size(dwarf_engine: Make) -> None:
    text = 'NUL \0, 😀, \\u0000, "quoted", \x1f, מילה'
    async with dwarf_engine(make_app({"turn": folding()}, {"Say": say})) as engine:
        key, _ = await engine.run("turn", {"text": text, "big": "x" * 300_000, "f": 1e300, "z": -0.0, text: 1})
        state = (await engine.wait(await engine.continue_flow(key, {"text": text, "more": [text] * 1000}))).state
        assert (state["text"], len(state["big"]), state["more"][999], state["f"], state[text]) == (text * 2, 300_000, text, 1e300, 1)
        assert math.copysign(1, state["z"]) == -1


@on_loop
@pytest.mark.row("D21", "C-40", "A18")
async def test_the_graph_is_that_of_the_completed_flow_whatever_the_host_has_now(dwarf_engine: Make) -> None:
    first = dwarf_engine(make_app({"w": line("A", "B")}))
    await first.start()
    key, _ = await first.run("w")
    await first.close()
    async with dwarf_engine(make_app({"w": line("C", "D"), "spare": line("A", "B")}), dsns=first.dsns) as engine:
        assert shape(await engine.history((await engine.run("w"))[0])) == [("C", "completed"), ("D", "completed")]
        going_on = await engine.continue_flow(key)
        await engine.wait(going_on)
        assert shape(await engine.history(going_on)) == [("A", "completed"), ("B", "completed")]


@on_loop
@pytest.mark.row("D21")
async def test_a_flow_that_completed_after_a_cancellation_can_be_continued(dwarf_engine: Make) -> None:
    graph = Graph("Guarded").add_transition_chain("Ask", END).add_transition_on_error("Ask", "Tidy").add_transition("Tidy", END)

    def ask(flow: Flow) -> None:
        if not flow.get_bool("tidy"):
            flow.interrupt()

    def tidy(flow: Flow) -> None:
        flow["tidy"] = True

    async with dwarf_engine(make_app({"guarded": graph}, {"Ask": ask, "Tidy": tidy})) as engine:
        key, _ = await engine.run("guarded")
        await engine.cancel(key)
        assert (await engine.wait(key)).status is COMPLETED
        outcome = await engine.wait(await engine.continue_flow(key, {"again": 1}))
        assert (outcome.status, outcome.state["tidy"], outcome.state["again"]) == (COMPLETED, True, 1)
        assert outcome.state["onErr"]["error"]


# ---- what it takes over ----


@on_loop
@pytest.mark.row("D24", "I-14", "E-43")
async def test_options_are_those_of_the_completed_flow_but_for_its_deletion(dwarf_engine: Make) -> None:
    gate, seen = Gate(), []

    async def held(flow: Flow) -> None:
        seen.append((flow.priority, flow.fairness_key, dict(flow.baggage)))
        if flow.get_bool("hold"):
            await gate(flow)

    options = FlowOptions(priority=1, fairness_key="ada", fairness_weight=2.5, time_budget=77, baggage={"actor": "ada", "n": BIG})
    async with dwarf_engine(make_app({"w": line("A")}, {"A": held})) as engine:
        key, _ = await engine.run("w", None, options)
        await sql(engine, "update dwarf.flows set tenant = 'acme', delete_on_completion = true")
        going_on = await engine.continue_flow(key, {"hold": True})
        await gate.reached()
        [flow] = await sql(engine, "select * from dwarf.live")
        assert (flow.priority, flow.fairness_key, flow.weight, flow.budget_ms, flow.tenant) == (1, "ada", 2.5, 77_000, "acme")
        assert (flow.delete_on_completion, flow.workflow, flow.baggage) == (False, "w", {"actor": "ada", "n": BIG})
        assert flow.flow_id == flow.root_id == FlowKey.parse(going_on).flow_id
        [row] = await sql(engine, "select * from dwarf.active")
        assert (row.priority, row.fairness_key, row.weight, row.budget_ms, row.depth) == (1, "ada", 2.5, 77_000, 1)
        gate.open()
        await engine.wait(going_on)
        assert seen == [(1, "ada", {"actor": "ada", "n": BIG})] * 2
        assert shape(await engine.history(going_on)) == [("A", "completed")], "it is kept"
        assert [flow.tenant for flow in await sql(engine, "select tenant from dwarf.flows")] == ["acme", "acme"]


@on_loop
@pytest.mark.row("E23", "E-43")
async def test_baggage_is_read_in_a_continued_turn_and_in_its_children(dwarf_engine: Make) -> None:
    seen: list[Any] = []

    def call(flow: Flow) -> None:
        flow.subgraph("inner")
        seen.append(flow.baggage["actor"])

    def inner(flow: Flow) -> None:
        seen.append(flow.baggage["actor"])

    async with dwarf_engine(make_app({"outer": line("Call"), "inner": line("Inner")}, {"Call": call, "Inner": inner})) as engine:
        key, _ = await engine.run("outer", None, FlowOptions(baggage={"actor": "ada"}))
        assert (await engine.wait(await engine.continue_flow(key))).status is COMPLETED
        assert seen == ["ada"] * 4


@pytest.mark.row("J6", "J4")
def test_it_lives_where_the_completed_flow_does_also_when_that_shard_is_cordoned(stage: MakeStage) -> None:
    on = stage({"line": chain("A")}, {"A": lambda flow: None}, shards=3)
    keys = [on.do(on.client.create("line")) for _ in range(12)]
    on.play()
    on.client = on.open(shards=[Shard(shard.index, shard.dsn, cordoned=shard.index != 2) for shard in on.shards])
    for key in keys:
        going_on = on.do(on.client.continue_flow(key))
        assert FlowKey.parse(going_on).shard == FlowKey.parse(key).shard
    assert len({FlowKey.parse(key).shard for key in keys}) == 3
    on.play()
    assert on.count("live") == 0


@on_loop
@pytest.mark.row("D29", "I-13")
async def test_a_thread_holds_what_continues_and_what_is_created_into_it(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"w": line("A")})) as engine:
        first, _ = await engine.run("w", None, FlowOptions(priority=1))
        second = await engine.continue_flow(first)
        await engine.wait(second)
        own = FlowOptions(thread_key=second, priority=2, fairness_key="own")
        third, _ = await engine.run("w", None, own)
        fourth = await engine.continue_flow(third)
        await engine.wait(fourth)
        alone, _ = await engine.run("w")
        page = await engine.list_closed(Query(thread_key=fourth))
        assert {flow.flow_key: flow.priority for flow in page} == {first: 1, second: 1, third: 2, fourth: 2}
        assert {flow.thread_key for flow in page} == {first}
        assert alone not in {flow.flow_key for flow in page}
        # What began the thread is gone: the others still have it.
        await engine.delete(first)
        await sql(engine, "select dwarf.reap_v1(10)")
        assert {flow.flow_key for flow in await engine.list_closed(Query(thread_key=third))} == {second, third, fourth}
        fifth = await engine.continue_flow(second)
        await engine.wait(fifth)
        assert {flow.flow_key for flow in await engine.list_closed(Query(thread_key=fifth))} == {second, third, fourth, fifth}
        await refused(engine.create("w", None, FlowOptions(thread_key=first)), 404)


@on_loop
@pytest.mark.row("D28")
async def test_any_number_at_once_make_as_many_siblings(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"turn": folding()}, {"Say": say})) as engine:
        key, _ = await engine.run("turn", {"total": 1})
        keys = await asyncio.gather(*(engine.continue_flow(key, {"total": each}) for each in range(12)))
        assert len(set(keys)) == 12
        assert [(await engine.wait(each)).state["total"] for each in keys] == [1 + each for each in range(12)]
        assert await invariants(engine) == []


# ---- refusals ----


@on_loop
@pytest.mark.row("D23", "E6", "I-42", "E-38", "A22")
async def test_what_cannot_be_continued_is_refused_and_nothing_is_created(dwarf_engine: Make) -> None:
    gate = Gate()

    def ask(flow: Flow) -> None:
        flow.interrupt()

    def fail(flow: Flow) -> None:
        raise TaskError("no")

    def call(flow: Flow) -> None:
        flow.subgraph("line")

    graphs = {"line": line("A"), "ask": line("Ask"), "fail": line("Fail"), "call": line("Call"), "held": line("Held")}
    async with dwarf_engine(make_app(graphs, {"Ask": ask, "Fail": fail, "Call": call, "Held": gate})) as engine:
        held = await engine.create("held")
        asked, _ = await engine.run("ask")
        failed, _ = await engine.run("fail")
        ended, cancelled = (await engine.run("ask"))[0], (await engine.run("ask"))[0]
        await engine.terminate(ended)
        await engine.cancel(cancelled)
        called, _ = await engine.run("call")
        [caller] = await engine.history(called)
        child = caller.sub_flow_key
        line_key, _ = await engine.run("line")
        await gate.reached()
        statuses = {held: "running", asked: "interrupted", failed: "failed", ended: "terminated", cancelled: "cancelled"}
        before = await count(engine), await count(engine, "flows")
        for key, status in statuses.items():
            assert (await settle_status(engine, key)) == status
            await refused(engine.continue_flow(key), 409, f"is {status}", FlowKey.parse(key).name)
        await refused(engine.continue_flow(child), 400, "is a child")
        await refused(engine.continue_flow(unknown(line_key)), 404)
        await refused(engine.continue_flow(wrong_token(line_key)), 404)
        await refused(engine.continue_flow("2" + line_key[1:]), 404, "not configured")
        for malformed in ("", "nonsense", line_key + "0", None, 7, caller.step_key):
            await refused(engine.continue_flow(malformed), 400)  # type: ignore[arg-type]
        for extra in ([1], "x", 7, True, [("a", 1)]):
            await refused(engine.continue_flow(line_key, extra), 400, "state must be an object")
        for value in (math.nan, math.inf, "\ud800", {1: 2}, b"x", object(), {"deep": [math.nan]}):
            error = await refused(engine.continue_flow(line_key, {"a": value}), 400)
            assert isinstance(error, StateValueError)
        for bad_key in (7, "\n", "x" * 257, " "):
            await refused(engine.continue_flow(line_key, idempotency_key=bad_key), 400, "idempotency_key")  # type: ignore[arg-type]
        assert (await count(engine), await count(engine, "flows")) == before
        gate.open()


async def settle_status(engine: Any, key: str) -> str:
    return str((await engine.snapshot(key)).status)


@on_loop
@pytest.mark.row("D23")
async def test_an_addition_that_does_not_fit_its_reducer_names_field_and_reducer(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"turn": folding()}, {"Say": say})) as engine:
        key, _ = await engine.run("turn", {"total": 1, "odd": 1, "text": 5})
        for field, value, reducer in (("total", "x", "add"), ("facts", [1], "merge"), ("text", "a", "concat"), ("total", [1], "add")):
            error = await refused(engine.continue_flow(key, {field: value}), 400, repr(field), reducer)
            assert isinstance(error, ReducerError)
            assert (error.field, error.reducer) == (field, reducer)
        assert (await count(engine), await count(engine, "flows")) == (0, 1)


@on_loop
@pytest.mark.row("I23", "D23")
async def test_a_flow_that_is_marked_for_deletion_is_not_continued(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"w": line("A")})) as engine:
        key, _ = await engine.run("w", {"n": 1})
        soon, _ = await engine.run("w", {"n": 1}, FlowOptions(delete_on_completion=True))
        going_on = await engine.continue_flow(key)
        await engine.wait(going_on)
        await engine.delete(key)
        for each in (key, soon):
            await refused(engine.continue_flow(each), 409, "deleted")
            assert (await engine.snapshot(each)).state == {"n": 1}, "its outcome is told until it is gone"
        await sql(engine, "select dwarf.reap_v1(10)")
        await refused(engine.continue_flow(key), 404)
        assert (await engine.snapshot(going_on)).status is COMPLETED, "what went on stays"
        assert await invariants(engine) == []


# ---- asked again ----


@on_loop
async def test_under_an_idempotency_key_it_may_be_asked_again(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"w": line("A")})) as engine:
        key, _ = await engine.run("w", {"n": BIG}, FlowOptions(baggage={"a": 1}, priority=1))
        once = await engine.continue_flow(key, {"m": 1}, idempotency_key="turn 2")
        assert await engine.continue_flow(key, {"m": 1}, idempotency_key="turn 2") == once
        await engine.wait(once)
        assert await engine.continue_flow(key, {"m": 1}, idempotency_key="turn 2") == once
        await refused(engine.continue_flow(key, {"m": 2}, idempotency_key="turn 2"), 409, "turn 2")
        assert await engine.continue_flow(key, {"m": 1}) != once
        both = await asyncio.gather(*(engine.continue_flow(key, {"m": 1}, idempotency_key="turn 3") for _ in range(8)))
        assert len(set(both)) == 1
        [flow] = await sql(engine, "select * from dwarf.idempotency where key = 'turn 3'")
        assert flow.workflow == "w"


@on_loop
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_task_that_runs_again_does_not_continue_twice(dwarf_engine: Make, is_sync: bool) -> None:
    made: list[str] = []

    def synchronous(flow: Flow) -> None:
        made.append(flow.client.continue_flow(flow["of"], {"n": 2}))
        if len(made) < 3:
            flow.retry(0)
            return
        flow["made"] = flow.client.continue_flow(flow["of"], {"n": 3})

    async def asynchronous(flow: Flow) -> None:
        made.append(await flow.client.continue_flow(flow["of"], {"n": 2}))
        if len(made) < 3:
            flow.retry(0)
            return
        flow["made"] = await flow.client.continue_flow(flow["of"], {"n": 3})

    async with dwarf_engine(make_app({"w": line("A"), "go": line("Go")}, {"Go": synchronous if is_sync else asynchronous})) as engine:
        key, _ = await engine.run("w", {"n": 1})
        _, outcome = await engine.run("go", {"of": key})
        assert outcome.status is COMPLETED, outcome
        assert len(made) == 3
        assert len(set(made)) == 1
        assert outcome.state["made"] not in made
        assert [(await engine.wait(each)).state["n"] for each in (made[0], outcome.state["made"])] == [2, 3]


# ---- beside others ----


@on_loop
@pytest.mark.row("D20")
async def test_a_flow_that_was_moved_is_continued_as_before(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"turn": folding()}, {"Say": say})) as engine:
        key, before = await engine.run("turn", {"total": 1})
        await engine.advance(40 * 86_400)
        await sql(engine, "select dwarf.move_trees_v1(%s, dwarf.day_of_id(%s))", [FlowKey.parse(key).flow_id], FlowKey.parse(key).flow_id)
        going_on = await engine.continue_flow(key, {"total": 1})
        assert (await engine.wait(going_on)).state["total"] == 2
        assert (await engine.snapshot(key)).state == before.state
        days = await sql(engine, "select day, dwarf.day_of_id(flow_id) as made from dwarf.flows order by flow_id")
        assert [day.day for day in days] == [-1, days[1].made]
        assert days[1].made == days[0].made + 40
        assert await invariants(engine) == []


@on_loop
@pytest.mark.row("M18")
async def test_one_that_is_aborted_has_changed_nothing_and_a_repeat_succeeds(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"w": line("A")})) as engine:
        key, _ = await engine.run("w", {"n": 1})
        await sql(
            engine,
            """create function dwarf.trouble() returns trigger language plpgsql as $$ begin raise 'trouble'; end $$;
            create trigger trouble before insert on dwarf.active for each row execute function dwarf.trouble()""",
        )
        with pytest.raises(psycopg.Error, match="trouble"):
            await engine.continue_flow(key)
        await sql(engine, "drop trigger trouble on dwarf.active")
        assert (await count(engine), await count(engine, "active"), await count(engine, "audit")) == (0, 0, 0)
        going_on = await engine.continue_flow(key)
        assert (await engine.wait(going_on)).status is COMPLETED
        [act] = await sql(engine, "select verb, flow_id, detail from dwarf.audit")
        assert tuple(act) == ("continue", FlowKey.parse(going_on).flow_id, {"origin": FlowKey.parse(key).flow_id})


@pytest.mark.row("I23")
@pytest.mark.parametrize("first", ["reap", "move"])
def test_one_that_meets_a_removal_or_a_move_comes_after_it(stage: MakeStage, first: str, until: Any) -> None:
    on = stage({"line": chain("A")}, {"A": lambda flow: None})
    key = on.do(on.client.create("line"))
    on.play()
    flow_id, dsn = FlowKey.parse(key).flow_id, on.shards[0].dsn
    call = "select state from dwarf.continue_v1(%s, '0123456789abcdef', '{}')"
    with psycopg.connect(dsn) as one_side, psycopg.connect(dsn, autocommit=True) as other:
        if first == "reap":
            one_side.execute("select dwarf.reap_trees_v1(array[%s])", (flow_id,))
        else:
            one_side.execute("select dwarf.move_trees_v1(array[%s], dwarf.day_of_id(%s))", (flow_id, flow_id))

        def ask() -> str:
            try:
                [(state,)] = other.execute(call, (flow_id,)).fetchall()
            except psycopg.errors.SerializationFailure:  # which the pool tries again
                [(state,)] = other.execute(call, (flow_id,)).fetchall()
            return str(state)

        with beside(dsn, ask, until, other.info.backend_pid) as answers:
            one_side.commit()
    assert answers == ["missing" if first == "reap" else "created"]


@on_loop
async def test_from_a_client_without_a_loop_and_from_one_that_runs_nothing(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"w": line("A")})) as engine:
        key, _ = await engine.run("w", {"n": 1})

        def sync() -> str:
            with SyncClient([Shard(1, engine.dsn)]) as client:
                return client.continue_flow(key, {"n": 2})

        assert (await engine.wait(await asyncio.to_thread(sync))).state["n"] == 2
        async with Client([Shard(1, engine.dsn)]) as client:
            assert (await client.wait(await client.continue_flow(key, {"n": 3}))).state["n"] == 3
        await refused(client.continue_flow(key), 503)


@on_loop
async def test_racing_with_deletes_each_call_tells_the_truth(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"w": line("A")})) as engine:
        keys = [(await engine.run("w", {"n": n}))[0] for n in range(10)]

        async def go_on(key: str) -> str:
            try:
                return await engine.continue_flow(key)
            except Conflict:
                return ""

        results = await asyncio.gather(*(call for key in keys for call in (go_on(key), engine.delete(key), go_on(key))))
        made = [key for key in results if key]
        outcomes = [await engine.wait(key) for key in made]
        assert {outcome.status for outcome in outcomes} <= {COMPLETED}
        for key in keys:
            await refused(engine.continue_flow(key), 409, "deleted")
        assert await count(engine, "flows") == len(keys) + len(made)
        assert await invariants(engine) == []
