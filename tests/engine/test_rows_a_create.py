"""Group A, first half: creating flows, the options they are created with, keys, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from dwarf import END, App, DwarfError, Flow, FlowOptions, Graph, NotFound, TaskError
from dwarf.hosts.host import loading_baggage
from tests.engine.rows_support import (
    COMPLETED,
    RUNNING,
    Gate,
    Make,
    line,
    make_app,
    on_loop,
    one,
    refused,
    sql,
    unknown,
    until,
    wrong_token,
)

FLOWS = "select (select count(*) from dwarf.live) + (select count(*) from dwarf.flows) + (select count(*) from dwarf.active)"


@pytest.mark.row("A1")
@on_loop
async def test_a_create_returns_at_once_and_leaves_one_entry_step(dwarf_engine: Make) -> None:
    gate = Gate()
    async with dwarf_engine(make_app({"g": line("A", "B")}, {"A": gate})) as engine:
        key = await engine.create("g", {"n": 1})
        assert (await engine.snapshot(key)).status is RUNNING
        [entry] = await engine.history(key)
        assert (entry.task_name, entry.step_depth, entry.predecessor_key) == ("A", 1, "")
        assert str(entry.status) in ("pending", "running")
        await gate.reached()
        assert len(await engine.history(key)) == 1
        gate.open()
        assert (await engine.wait(key)).status is COMPLETED


@pytest.mark.row("A1", "A19")
@on_loop
async def test_a_committed_create_runs_once_somebody_runs(dwarf_engine: Make) -> None:
    """Every process dies before the dispatch: an engine without workers creates, and is killed."""
    app = make_app({"g": "A->B->END"})
    creator = dwarf_engine(app, workers=0)
    await creator.start()
    key = await creator.create("g", {"n": 1})
    [entry] = await creator.history(key)
    assert (str(entry.status), entry.started_at) == ("pending", None)
    await creator.kill()
    async with dwarf_engine(app, dsns=creator.dsns) as engine:
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.state) == (COMPLETED, {"n": 1})
        assert [step.attempt for step in await engine.history(key)] == [0, 0]


def reading_app(seen: list[Any]) -> App:
    def read(flow: Flow) -> None:
        seen.append((flow.priority, flow.fairness_key, dict(flow.baggage), flow.deadline))

    return make_app({"g": "A->END"}, {"A": read})


@pytest.mark.row("A2")
@on_loop
async def test_a_flow_without_options_gets_the_defaults(dwarf_engine: Make) -> None:
    seen: list[Any] = []
    async with dwarf_engine(reading_app(seen), time_budget=90, workers=0) as engine:
        key = await engine.create("g")
        [flow] = await sql(engine, "select priority, fairness_key, weight, budget_ms, baggage, cast(thread_id as text) t from dwarf.live")
        assert (flow.priority, flow.fairness_key, flow.weight, flow.budget_ms, flow.baggage) == (3, "", 1.0, 90_000, None)
        [step] = await sql(engine, "select priority, fairness_key, weight, budget_ms from dwarf.active")
        assert step == (3, "", 1.0, 90_000)
        [summary] = await engine.list_open()
        assert (summary.priority, summary.fairness_key, summary.thread_key) == (3, "", key)


@pytest.mark.parametrize(("priority_max", "midpoint"), [(5, 3), (9, 5), (4, 2)])
@pytest.mark.row("A7")
@on_loop
async def test_a_priority_of_zero_is_the_midpoint(dwarf_engine: Make, priority_max: int, midpoint: int) -> None:
    seen: list[Any] = []
    async with dwarf_engine(reading_app(seen), max_priority=priority_max) as engine:
        await engine.run("g", options=FlowOptions(priority=0))
        await engine.run("g", options=FlowOptions(priority=priority_max))
        for verb in (engine.create, engine.run):
            await refused(verb("g", None, FlowOptions(priority=priority_max + 1)), 400, "priority", str(priority_max))
        assert [priority for priority, *_ in seen] == [midpoint, priority_max]


@pytest.mark.row("A3", "A5", "A6", "A8", "A9", "A14", "A15", "A17", "A22")
@on_loop
async def test_what_a_create_refuses_changes_nothing(dwarf_engine: Make) -> None:
    loads: list[str] = []

    class Host(App):
        async def load_graph(self, url: str) -> Graph:
            loads.append(url)
            return await super().load_graph(url)

    app = Host()
    app.add_graph("g", line("A"))
    async with dwarf_engine(app, workers=0) as engine:
        loads.clear()
        await refused(engine.create(""), 400, "workflow_url")
        await refused(engine.create(7), 400)  # type: ignore[arg-type]
        assert loads == []
        bad_options: list[dict[str, Any]] = [
            {"time_budget": 0.0009}, {"time_budget": 2**31 / 1000}, {"time_budget": -1}, {"time_budget": float("nan")},
            {"priority": 6}, {"priority": -1}, {"priority": 1.5}, {"priority": True},
            {"fairness_weight": -1}, {"fairness_weight": float("nan")}, {"fairness_weight": float("inf")}, {"fairness_weight": 1_048_577},
            {"fairness_key": "k" * 257}, {"fairness_key": "a b"}, {"fairness_key": "a/b"}, {"fairness_key": "ä"}, {"fairness_key": None},
            {"baggage": [1]}, {"baggage": "text"}, {"baggage": 5}, {"baggage": {"n": float("nan")}}, {"baggage": {"h": object()}},
            {"baggage": {"x": "y" * (1 << 20)}}, {"baggage": {"x": "\ud800"}}, {"baggage": {1: 2}},
            {"thread_key": "x"}, {"delete_on_completion": "yes"}, {"idempotency_key": " "}, {"idempotency_key": "k" * 257},
            {"start_at": datetime.datetime(2026, 1, 1)}, {"start_at": "soon"},  # noqa: DTZ001
        ]  # fmt: skip
        for members in bad_options:
            [name] = members
            await refused(engine.create("g", None, FlowOptions(**members)), 400, name)
            await refused(engine.create_many([("g", None, None), ("g", None, FlowOptions(**members))]), 400, name)
        bad_states: list[Any] = [
            [], [("a", 1)], "text", 5, True, {"n": float("nan")}, {"n": [{"m": float("inf")}]}, {"h": open}, {"x": "\udc80"}, {1: 2},
            {"b": b"raw"},
        ]  # fmt: skip
        for state in bad_states:
            await refused(engine.create("g", state), 400)
            await refused(engine.run("g", state), 400)
        await refused(engine.create("g", {"order": {"lines": [{"price": float("nan")}]}}), 400, "order.lines[0].price")
        await refused(engine.create("g", None, {"priority": 1}), 400)  # type: ignore[arg-type]
        assert await one(engine, FLOWS) == 0


@pytest.mark.row("A5", "A8", "A9", "A14")
@on_loop
async def test_what_a_create_accepts_at_the_limits(dwarf_engine: Make) -> None:
    @dataclass
    class Order:
        n: int

    class Lines(msgspec.Struct):
        n: int

    async with dwarf_engine(make_app({"g": "A->END"}), workers=0) as engine:
        for state in (None, {}, {"n": 1}, Order(1), Lines(1)):
            await engine.create("g", state)
        inputs = await sql(engine, "select coalesce(input::text, '{}') as text from dwarf.live order by flow_id")
        assert [msgspec.json.decode(row.text) for row in inputs] == [{}, {}, {"n": 1}, {"n": 1}, {"n": 1}]
        for members in (
            {"time_budget": 0.001}, {"time_budget": (2**31 - 1) / 1000}, {"time_budget": datetime.timedelta(days=1)},
            {"fairness_weight": 1_048_576}, {"fairness_weight": 0.01}, {"fairness_key": "k" * 256}, {"fairness_key": "A-z_0.9"},
            {"baggage": {"x": "y" * 1_000_000}},
        ):  # fmt: skip
            await engine.create("g", None, FlowOptions(**members))
        budgets = {row.budget_ms for row in await sql(engine, "select budget_ms from dwarf.live")}
        assert {1, 2**31 - 1, 86_400_000, 120_000} == budgets
        weights = {row.weight for row in await sql(engine, "select weight from dwarf.live")}
        assert weights == {1.0, 1_048_576.0, 0.01}
        for key in ("team", "Team"):
            await engine.create("g", None, FlowOptions(fairness_key=key))
        keys = await sql(engine, "select fairness_key from dwarf.active where lower(fairness_key) = 'team'")
        assert {row.fairness_key for row in keys} == {"team", "Team"}


class Moody(App):
    """A host that answers a load the way the URL says."""

    def __init__(self) -> None:
        super().__init__()
        self.mood: Any = None

    async def load_graph(self, url: str) -> Graph:
        if url != "moody":
            return await super().load_graph(url)
        if isinstance(self.mood, BaseException):
            raise self.mood
        return self.mood  # type: ignore[no-any-return]


class Teapot(Exception):
    status = 418


@pytest.mark.row("A10", "A11", "A12", "A13")
@on_loop
async def test_what_the_loader_raises_reaches_the_caller_and_stores_nothing(dwarf_engine: Make) -> None:
    app = Moody()
    app.add_graph("g", line("A"))
    app.task("A")(lambda flow: None)
    async with dwarf_engine(app) as engine:
        for error, status in ((NotFound("gone fishing"), 404), (TaskError("no", status=402), 402), (Teapot("short and stout"), 418)):
            app.mood = error
            await refused(engine.create("moody"), status, str(error))
            await refused(engine.run("moody"), status, str(error))
        app.mood = None
        await refused(engine.create("moody"), 404, "moody")
        app.mood = ZeroDivisionError("by zero")
        with pytest.raises(ZeroDivisionError, match="by zero"):
            await engine.create("moody")
        await refused(engine.create("not there"), 404, "not there")
        unreachable = line("A").add_transition("X", END)
        endless = Graph("E").add_transition("A", "B").add_transition_goto("B", "A")
        crossed = Graph("C").add_transition_fan_out("S", "A", "B").add_transition("A", "J").add_transition("B", "K")
        crossed.set_fan_in("J").set_fan_in("K").add_transition("J", END).add_transition("K", END)
        for graph in (unreachable, endless, crossed, Graph("Empty")):
            app.mood = graph
            await refused(engine.create("moody"), 400, "moody")
        assert await one(engine, FLOWS) == 0
        key, outcome = await engine.run("g")
        assert outcome.status is COMPLETED
        assert key


@pytest.mark.row("A12")
@on_loop
async def test_an_app_whose_graph_function_raises_serves_its_other_graphs(dwarf_engine: Make) -> None:
    app = make_app({"g": "A->END"})

    @app.graph("broken")
    def broken() -> Graph:
        raise LookupError("the catalogue is gone")

    async with dwarf_engine(app) as engine:
        with pytest.raises(LookupError, match="the catalogue is gone"):
            await engine.create("broken")
        assert (await engine.run("g"))[1].status is COMPLETED


@pytest.mark.row("A16")
@on_loop
async def test_the_loader_sees_the_baggage_as_tasks_do(dwarf_engine: Make) -> None:
    seen: list[Any] = []

    class Host(App):
        async def load_graph(self, url: str) -> Graph:
            bag = loading_baggage.get(None)
            if bag is not None and bag:
                seen.append(dict(bag))
            return await super().load_graph(url)

    app = Host()
    app.add_graph("g", line("A"))
    app.task("A")(lambda flow: seen.append(dict(flow.baggage)))
    given = {"who": {"id": 2**60 + 1, "roles": ("a", "b")}, "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "none": None}
    async with dwarf_engine(app) as engine:
        seen.clear()
        await engine.run("g", None, FlowOptions(baggage=given))
        loaded, read = seen
        assert loaded == read
        assert loaded["who"] == {"id": 2**60 + 1, "roles": ["a", "b"]}
        assert loaded["at"] == "2026-01-02T00:00:00Z"


@pytest.mark.row("A18")
@on_loop
async def test_a_flow_follows_the_graph_it_was_created_with(dwarf_engine: Make) -> None:
    app, gate, ran = Moody(), Gate(), []
    app.mood = line("A", "Old")
    app.task("A")(gate)
    app.task("Old")(lambda flow: ran.append("old"))
    app.task("New")(lambda flow: ran.append("new"))
    async with dwarf_engine(app) as engine:
        first = await engine.create("moody")
        await gate.reached()
        app.mood.add_transition("Old", "New")  # the very object is changed
        app.mood = line("A", "New")
        gate.open()
        assert (await engine.wait(first)).status is COMPLETED
        assert ran == ["old"]
        await engine.run("moody")
        assert ran == ["old", "new"]


@pytest.mark.row("A18")
@on_loop
async def test_the_frozen_graph_holds_for_another_process_with_another_graph(dwarf_engine: Make) -> None:
    first = dwarf_engine(make_app({"g": "A->Old->END"}), workers=0)
    await first.start()
    key = await first.create("g")
    ran: list[str] = []
    app = make_app({"g": "A->New->END"}, {"Old": lambda flow: ran.append("old"), "New": lambda flow: ran.append("new")})
    async with dwarf_engine(app, dsns=first.dsns) as engine:
        await engine.wait(key)
        await engine.run("g")
        assert ran == ["old", "new"]
    await first.close()


@pytest.mark.row("A22")
@on_loop
async def test_malformed_keys_are_refused_by_every_verb(dwarf_engine: Make) -> None:
    async with dwarf_engine(make_app({"g": "A->END"})) as engine:
        key, _ = await engine.run("g")
        shard, hour, low, token = key.split("-")
        bad: list[Any] = ["", "x", "1", f"{hour}-{low}-{token}", f"{key}-1", f"0-{hour}-{low}-{token}", f"-1-{hour}-{low}-{token}", f"a-{hour}-{low}-{token}",
               f"{shard}-b-{low}-{token}", f"{shard}-{hour}-c-{token}", f"{shard}-{hour}-{low}-", key.upper() + "G", f" {key}", f"{key} ", None, 7,
               f"01-{hour}-{low}-{token}", f"{shard}-{hour}-{low}-{token[:15]}", f"{shard}-{hour}-{10**30}-{token}"]  # fmt: skip
        verbs: list[Any] = [engine.wait, engine.poll, engine.snapshot, engine.fingerprint, engine.history, engine.history_mermaid, engine.resume,
                 engine.cancel, engine.terminate, engine.delete, engine.step]  # fmt: skip
        for name in ("fork", "continue_flow"):
            verbs += [getattr(engine, name)] if hasattr(engine, name) else []
        for verb in verbs:
            for text in bad:
                await refused(verb(text), 400)
        for verb in verbs:
            if verb in (engine.step, getattr(engine, "fork", None)):
                continue
            for text in (unknown(key), wrong_token(key), f"7-{hour}-{low}-{token}"):
                error = await refused(verb(text), 404)
                assert token not in str(error)
                assert text.rsplit("-", 1)[1] not in str(error)


@pytest.mark.row("A50", "A51", "A52", "L15")
@on_loop
async def test_texts_and_numbers_come_back_exactly_from_everywhere(dwarf_engine: Make) -> None:
    texts = {
        "emoji": "🧌👩‍👩‍👧 é", "quotes": "\"'`\\\\ \\u0041 $1 %s {}", "scripts": "汉字 עברית العربية ไทย", "controls": "\t\n\r\x01\x1f\x7f\u2028",
        "nul": "a\x00b\x00", "empty": "", "long": "ß" * 70_000, "json": '{"x": [1, null]}', "sql": "'; drop table dwarf.live; --",
    }  # fmt: skip
    numbers = {"big": 2**53 + 1, "negative": -(2**63) - 1, "huge": 10**40 + 7, "fraction": 0.1, "tiny": 5e-324, "whole": 1.0, "minus": -0.0}
    everything = {**texts, **numbers, "nested": [texts, [numbers]], "ключ": 1, "a-b": 2}
    seen: list[Any] = []

    def ask(flow: Flow) -> None:
        seen.append((dict(flow.baggage), dict(flow.snapshot())))
        answer = flow.interrupt(everything)
        flow["answer"] = answer
        flow["again"] = dict(flow.snapshot())["nested"]

    graph = Graph('Näme "🧌" \\').add_transition_chain("Ask ✓", "Done", END)
    async with dwarf_engine(make_app({"g/ä": graph}, {"Ask ✓": ask})) as engine:
        key = await engine.create("g/ä", everything, FlowOptions(baggage=everything))
        outcome = await engine.wait(key)
        assert outcome.interrupt_payload == everything
        assert outcome.state == everything
        await engine.resume(key, everything)
        outcome = await engine.wait(key)
        assert outcome.state == {**everything, "answer": everything, "again": everything["nested"]}
        assert [type(outcome.state[name]) for name in ("big", "huge", "whole")] == [int, int, float]
        assert outcome.state.get_int("huge") == 10**40 + 7  # type: ignore[attr-defined]
        assert seen == [(everything, everything)] * 2
        assert (await engine.snapshot(key)).state == outcome.state
        first, second = await engine.history(key)
        assert (first.task_name, second.task_name) == ("Ask ✓", "Done")
        whole = await engine.step(first.step_key)
        assert whole.state == everything
        assert whole.changes == {"answer": everything, "again": everything["nested"]}
        assert (await engine.step(second.step_key)).state == outcome.state
        [summary] = await engine.list_closed()
        assert (summary.workflow_url, summary.workflow_name) == ("g/ä", 'Näme "🧌" \\')


@pytest.mark.row("A1")
@on_loop
async def test_a_batch_is_created_in_order_and_all_or_nothing(dwarf_engine: Make) -> None:
    app = make_app({"g": "A->END", "h": "B->END"})
    async with dwarf_engine(app) as engine:
        calls = [("g" if n % 2 else "h", {"n": n}, FlowOptions(priority=1 + n % 5)) for n in range(300)]
        keys = await engine.create_many(calls)
        assert len(set(keys)) == 300
        outcomes = await asyncio.gather(*map(engine.wait, keys))
        assert [outcome.state["n"] for outcome in outcomes] == list(range(300))
        assert await engine.create_many([]) == []
        before = await one(engine, FLOWS)
        await refused(engine.create_many([("g", None, None), ("none", None, None)]), 404)
        await refused(engine.create_many("g"), 400)  # type: ignore[arg-type]
        assert await one(engine, FLOWS) == before


@pytest.mark.row("A1")
@on_loop
async def test_start_at_and_idempotency_keys(dwarf_engine: Make) -> None:
    ran: list[int] = []
    async with dwarf_engine(make_app({"g": "A->END", "h": "A->END"}, {"A": lambda flow: ran.append(flow.get_int("n"))})) as engine:
        now = await one(engine, "select dwarf.now()")
        later = await engine.create("g", {"n": 1}, FlowOptions(start_at=now + datetime.timedelta(hours=1)))
        past = await engine.create("g", {"n": 2}, FlowOptions(start_at=now - datetime.timedelta(hours=1)))
        assert (await engine.wait(past)).status is COMPLETED
        [entry] = await engine.history(later)
        assert (str(entry.status), entry.started_at) == ("pending", None)
        assert ran == [2]
        await engine.advance(3600)
        assert (await engine.wait(later)).status is COMPLETED
        assert ran == [2, 1]
        options = FlowOptions(idempotency_key="order 7")
        first = await engine.create("g", {"n": 3}, options)
        assert await engine.create("g", {"n": 3}, options) == first
        assert (await engine.run("g", {"n": 3}, options))[0] == first
        await refused(engine.create("g", {"n": 4}, options), 409)
        assert await engine.create("h", {"n": 5}, options) != first
        await engine.wait(first)
        assert await engine.create("g", {"n": 3}, options) == first
        await until(lambda: sorted(ran) == [1, 2, 3, 5])


@pytest.mark.row("A1")
@on_loop
async def test_racing_creates_of_one_idempotency_key_make_one_flow(dwarf_engine: Make) -> None:
    ran: list[int] = []
    async with dwarf_engine(make_app({"g": "A->END"}, {"A": lambda flow: ran.append(1)})) as engine:
        options = FlowOptions(idempotency_key="once")
        answers = await asyncio.gather(*(engine.create("g", {"n": 1}, options) for _ in range(12)), return_exceptions=True)
        keys = {answer for answer in answers if isinstance(answer, str)}
        assert len(keys) == 1
        assert all(isinstance(answer, str) or (isinstance(answer, DwarfError) and answer.status == 409) for answer in answers)
        await engine.wait(keys.pop())
        assert ran == [1]


@pytest.mark.row("I-13", "I-14")
@on_loop
async def test_thread_keys_group_flows(dwarf_engine: Make) -> None:
    def call(flow: Flow) -> None:
        flow["got"] = flow.subgraph("child")

    async with dwarf_engine(make_app({"g": "A->END", "parent": "P->END", "child": "C->END"}, {"P": call}), shards=2) as engine:
        first, _ = await engine.run("g")
        joined = [(await engine.run("g", None, FlowOptions(thread_key=first)))[0] for _ in range(6)]
        assert {key.split("-")[0] for key in joined} == {first.split("-")[0]}
        nested, _ = await engine.run("g", None, FlowOptions(thread_key=joined[0]))
        from dwarf import Query

        page = await engine.list_closed(Query(thread_key=first))
        assert {item.flow_key for item in page} == {first, *joined, nested}
        assert {item.thread_key for item in page} == {first}
        parent, _ = await engine.run("parent")
        [caller] = await engine.history(parent)
        await refused(engine.create("g", None, FlowOptions(thread_key=unknown(first))), 404)
        await refused(engine.create("g", None, FlowOptions(thread_key=wrong_token(first))), 404)
        await refused(engine.create("g", None, FlowOptions(thread_key="1-2-3")), 400)
        await refused(engine.create("g", None, FlowOptions(thread_key=caller.sub_flow_key)), 400)
