"""Creating flows through a client: what is stored, what is refused, and that a refusal stores nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import math
from typing import Any

import msgspec
import psycopg
import pytest

from dwarf import (
    END,
    Conflict,
    DwarfError,
    FlowKey,
    FlowOptions,
    Graph,
    GraphError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Shard,
    Status,
)
from dwarf.client import Client
from dwarf.errors import ShardUnavailable
from dwarf.flow import Flow
from dwarf.hosts.host import loading_baggage
from dwarf.reads import Reads
from tests.engine.conftest import MakeStage
from tests.engine.stage import Stage, line


def nothing(flow: Flow) -> None:
    pass


LINE = {"line": line("A", "B")}
TASKS = {"A": nothing, "B": nothing}
SOON = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)


class Loader:
    """A host whose `load_graph` does what a test says."""

    def __init__(self, load: Any) -> None:
        self.load = load
        self.asked: list[str] = []

    async def load_graph(self, url: str) -> Any:
        self.asked.append(url)
        return self.load(url) if callable(self.load) else self.load

    async def execute_task(self, url: str, flow: Flow) -> None:
        raise AssertionError(url)


def refused(stage: Stage, error: type[Exception], *args: Any, match: str | None = None, client: Client | None = None) -> Any:
    """A create that is refused, by itself and as part of a batch, leaves nothing behind."""
    on = client or stage.client
    with pytest.raises(error, match=match) as caught:
        stage.do(on.create(*args))
    with pytest.raises(error, match=match):
        stage.do(on.create_many([("line",), args]))
    assert stage.count("live") == stage.count("active") == stage.count("flows") == 0
    return caught.value


@pytest.mark.row("A1", "A2")
def test_a_new_flow_runs_and_has_one_entry_step(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    key = on.do(on.client.create("line"))
    assert on.do(on.client.snapshot(key)).status is Status.RUNNING
    live, active = on.row(key), on.row(key, "active")
    assert (live.workflow, live.priority, live.fairness_key, live.weight, live.budget_ms, live.baggage) == ("line", 3, "", 1, 120_000, None)
    assert (active.task, active.branch, active.seq, active.status, active.priority, active.fairness_key) == ("A", 0, 1, 1, 3, "")
    assert (active.weight, active.budget_ms) == (1, 120_000)
    assert on.count("active") == 1
    assert FlowKey.parse(key).token == live.token


@pytest.mark.row("A2", "A5", "A7", "A8", "A9")
def test_options_are_stored_with_the_flow_and_its_entry_step(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, max_priority=9, time_budget=30)
    options = FlowOptions(
        priority=9,
        fairness_key="k" * 256,
        fairness_weight=0.01,
        time_budget=0.001,
        baggage={"who": "me"},
        delete_on_completion=True,
        start_at=SOON,
    )
    key, other, default = on.do(
        on.client.create_many([("line", {"a": 1}, options), ("line", None, FlowOptions(fairness_weight=1 << 20)), ("line",)])
    )
    live, active = on.row(key), on.row(key, "active")
    assert (live.priority, live.fairness_key, live.weight, live.budget_ms, live.baggage) == (9, "k" * 256, 0.01, 1, {"who": "me"})
    assert (live.delete_on_completion, live.input) == (True, {"a": 1})
    assert (active.priority, active.fairness_key, active.weight, active.budget_ms) == (9, "k" * 256, 0.01, 1)
    assert (active.claimable, active.wake_at) == (None, SOON.replace(microsecond=SOON.microsecond))
    assert on.row(other).weight == 1 << 20
    assert (on.row(default).priority, on.row(default).budget_ms) == (5, 30_000)


@pytest.mark.row("A3")
def test_an_empty_url_is_refused_before_the_loader_is_asked(stage: MakeStage) -> None:
    host = Loader(LINE["line"])
    on = stage(LINE, TASKS, host=host)
    for url in ("", None, 7, "x" * 513, "a\0b"):
        with pytest.raises(InvalidArgument, match="workflow_url"):
            on.do(on.client.create(url))  # type: ignore[arg-type]
    assert host.asked == []
    assert on.count() == 0


@pytest.mark.row("A5", "A6", "A7", "A8", "A9", "A17", "D29", "A22")
def test_options_outside_their_rules_are_refused(stage: MakeStage) -> None:
    cases: list[tuple[Any, str]] = [
        (FlowOptions(time_budget=0.0009), "time_budget"),
        (FlowOptions(time_budget=-1), "time_budget"),
        (FlowOptions(time_budget=2**31 / 1000), "time_budget"),
        (FlowOptions(priority=6), "priority"),
        (FlowOptions(priority=-1), "priority"),
        (FlowOptions(fairness_weight=-1), "fairness_weight"),
        (FlowOptions(fairness_weight=math.nan), "fairness_weight"),
        (FlowOptions(fairness_weight=math.inf), "fairness_weight"),
        (FlowOptions(fairness_weight=(1 << 20) + 1), "fairness_weight"),
        (FlowOptions(fairness_key="k" * 257), "fairness_key"),
        (FlowOptions(fairness_key="a b"), "fairness_key"),
        (FlowOptions(fairness_key="a/b"), "fairness_key"),
        (FlowOptions(fairness_key="ä"), "fairness_key"),
        (FlowOptions(baggage=[1]), "baggage"),
        (FlowOptions(thread_key="1-2-3"), "thread_key"),
        ({"priority": 1}, "options"),
    ]
    on = stage(LINE, TASKS)
    for options, match in cases:
        assert refused(on, InvalidArgument, "line", None, options, match=match).status == 400


@pytest.mark.row("A9")
def test_keys_that_differ_in_case_are_two(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    keys = on.do(on.client.create_many([("line", None, FlowOptions(fairness_key=name)) for name in ("Key", "key")]))
    assert [on.row(key).fairness_key for key in keys] == ["Key", "key"]


@pytest.mark.row("A10", "A12")
def test_what_the_loader_raises_reaches_the_caller(stage: MakeStage) -> None:
    class Teapot(Exception):
        status = 418

    errors = {
        "403": PermissionDenied("no"),
        "404": NotFound("no"),
        "409": Conflict("no"),
        "418": Teapot("no"),
        "defect": ZeroDivisionError("no"),
    }

    def load(url: str) -> Graph:
        if url in errors:
            raise errors[url]
        return LINE["line"]

    on = stage(LINE, TASKS, host=Loader(load))
    for url, error in errors.items():
        assert refused(on, type(error), url) is error
    assert on.do(on.client.create("line"))


@pytest.mark.row("A11")
def test_a_loader_without_a_graph_is_not_found(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, host=Loader(lambda url: LINE["line"] if url == "line" else None))
    assert refused(on, NotFound, "gone", match="gone").status == 404


def test_a_loader_that_returns_something_else_is_refused(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, host=Loader(lambda url: LINE["line"] if url == "line" else {"name": "x"}))
    refused(on, InvalidArgument, "odd", match="dict")


@pytest.mark.row("A13", "D-21")
def test_an_invalid_graph_is_refused_by_its_workflow(stage: MakeStage) -> None:
    parted = Graph("fan-ins").add_transition_fan_out("A", "B", "C").set_fan_in("J").set_fan_in("K")
    bad = {
        "no.end": Graph("no end").add_transition("A", "B"),
        "un.reached": Graph("unreached").add_transition("A", END).add_transition("X", END),
        "fan.ins": parted.add_transition_chain("B", "J", END).add_transition_chain("C", "K", END),
    }
    on = stage(LINE, TASKS, host=Loader(lambda url: bad.get(url, LINE["line"])))
    for url, graph in bad.items():
        error = refused(on, GraphError, url, match=url)
        assert (error.status, error.graph) == (400, graph.name)
        assert error.rule
    assert on.count("graphs") == 1


class Order(msgspec.Struct):
    total: int
    name: str = "x"


@dataclasses.dataclass
class Bill:
    total: int


@pytest.mark.row("A14")
def test_an_initial_state_is_an_object_or_nothing(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    states: list[Any] = [{"a": 1}, Order(5), Bill(6), None, {}]
    keys = on.do(on.client.create_many([("line", state) for state in states]))
    assert [on.row(key).input for key in keys] == [{"a": 1}, {"total": 5, "name": "x"}, {"total": 6}, {}, {}]


@pytest.mark.row("A14", "A15")
def test_a_state_that_cannot_be_stored_is_refused(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    for state in ([1], "text", 7, True, {"a": math.nan}, {"a": math.inf}, {"a": object()}, {"a": b"x"}, {1: 2}, {"a": "\ud800"}):
        assert refused(on, DwarfError, "line", state).status == 400


@pytest.mark.row("A15")
def test_baggage_that_cannot_be_stored_is_refused(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    for baggage in ({"a": math.nan}, {"a": object()}, {"a": open}):
        assert refused(on, DwarfError, "line", None, FlowOptions(baggage=baggage)).status == 400


@pytest.mark.row("A16")
def test_the_loader_sees_the_baggage_as_tasks_will(stage: MakeStage) -> None:
    seen = []

    def load(url: str) -> Graph:
        seen.append(dict(loading_baggage.get()))
        return LINE["line"]

    on = stage(LINE, TASKS, host=Loader(load))
    on.do(on.client.create("line", None, FlowOptions(baggage=Bill(7))))
    on.do(on.client.create("line"))
    on.do(on.client.create_many([("line", None, FlowOptions(baggage={"n": n})) for n in (1, 2, 1)]))
    assert seen == [{"total": 7}, {}, {"n": 1}, {"n": 2}]
    assert loading_baggage.get() == {}


@pytest.mark.row("A18")
def test_a_flow_follows_the_graph_it_was_created_with(stage: MakeStage) -> None:
    graphs = {"line": line("A", "B")}
    ran: list[str] = []
    on = stage(graphs, {name: lambda flow: ran.append(flow.task_name) for name in "ABC"})
    graph = line("A", "B")
    client = on.open(host=Loader(graph))
    key = on.do(client.create("line"))
    graph.add_transition_when("A", "C", "true")
    graph.add_transition("C", "END")
    on.play()
    assert ran == ["A", "B"]
    assert on.do(client.wait(key)).status is Status.COMPLETED


def test_a_changed_graph_is_stored_anew_and_an_unchanged_one_once(stage: MakeStage) -> None:
    graph = line("A", "B")
    on = stage(LINE, TASKS, host=Loader(graph))
    first = [on.row(on.do(on.client.create("line"))).graph_id for _ in range(3)]
    graph.set_reducer("n", "add")
    assert on.row(on.do(on.client.create("line"))).graph_id not in first
    assert len(set(first)) == 1
    assert on.count("graphs") == 2


def test_without_a_host_workflows_are_those_that_are_registered(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, host=None)
    with pytest.raises(NotFound, match="'line'"):
        on.do(on.client.create("line"))
    on.register()
    key, outcome = on.do(on.client.create("line")), None
    on.play()
    outcome = on.do(on.client.wait(key))
    assert outcome.status is Status.COMPLETED


def test_a_create_of_a_known_graph_is_one_statement(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    from dwarf.database import Connection

    on = stage(LINE, TASKS)
    on.do(on.client.create("line"))
    sent = []
    execute = Connection.execute

    async def counted(self: Connection, statement: bytes, *args: Any, **named: Any) -> Any:
        sent.append(statement)
        return await execute(self, statement, *args, **named)

    monkeypatch.setattr(Connection, "execute", counted)
    on.do(on.client.create("line"))
    assert len(sent) == 1
    on.do(on.client.create_many([("line", {"n": n}) for n in range(1_000)]))
    assert len(sent) == 2
    assert on.count() == 1_002


def test_a_batch_keeps_its_order(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=2)
    keys = on.do(on.client.create_many([("line", {"n": n}) for n in range(50)]))
    assert [on.row(key).input["n"] for key in keys] == list(range(50))
    assert len(set(keys)) == 50
    assert on.do(on.client.create_many([])) == []


def test_a_batch_of_another_form_is_refused(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    batches: list[Any] = ["line", 7, ["line"], [()], [("line", {}, None, None)], [("line",)] * 10_001]
    for flows in batches:
        with pytest.raises(InvalidArgument):
            on.do(on.client.create_many(flows))
    assert on.count() == 0


# Threads


@pytest.mark.row("D29", "J6")
def test_a_flow_joins_the_thread_of_another(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=3)
    first = on.do(on.client.create("line"))
    keys = on.do(on.client.create_many([("line", None, FlowOptions(thread_key=first, priority=1))] * 5))
    assert {FlowKey.parse(key).shard for key in keys} == {FlowKey.parse(first).shard}
    assert {on.row(key).thread_id for key in keys} == {FlowKey.parse(first).flow_id}
    assert {on.row(key).priority for key in keys} == {1}
    further = on.do(on.client.create("line", None, FlowOptions(thread_key=keys[0])))
    assert on.row(further).thread_id == FlowKey.parse(first).flow_id


@pytest.mark.row("D29", "E6", "J7")
def test_a_thread_that_cannot_be_joined_is_refused(stage: MakeStage) -> None:
    on = stage({**LINE, "call": line("P", name="call")}, {**TASKS, "P": lambda flow: flow.subgraph("line")})
    key = FlowKey.parse(on.do(on.client.create("call")))
    on.player.record(on.player.work(on.player.claim()))
    child = on.child(str(key))
    before = on.count()
    wrong_token = str(FlowKey(key.shard, key.flow_id, "f" * 16))
    unknown = str(FlowKey(1, key.flow_id + 999, key.token))
    elsewhere = str(FlowKey(9, key.flow_id, key.token))
    for thread, error in ((wrong_token, NotFound), (unknown, NotFound), (elsewhere, NotFound), (child, InvalidArgument)):
        with pytest.raises(error) as caught:
            on.do(on.client.create("line", None, FlowOptions(thread_key=thread)))
        assert thread[-16:] not in str(caught.value)
        with pytest.raises(error):
            on.do(on.client.create_many([("line",), ("line", None, FlowOptions(thread_key=thread))]))
    assert on.count() == before


# Idempotency keys


def keyed(key: str = "k") -> FlowOptions:
    return FlowOptions(idempotency_key=key)


def test_a_second_create_with_the_same_key_finds_the_first(stage: MakeStage) -> None:
    on = stage({**LINE, "other": line("A", name="other")}, TASKS, shards=3)
    first = on.do(on.client.create("line", {"a": 1, "b": 2}, keyed()))
    assert on.do(on.client.create("line", {"b": 2, "a": 1}, keyed())) == first
    assert on.do(on.client.create_many([("line", {"a": 1, "b": 2}, keyed())] * 3)) == [first] * 3
    assert on.do(on.client.create("other", {"a": 1, "b": 2}, keyed())) != first
    assert on.do(on.client.create("line", {"a": 1, "b": 2}, keyed("k2"))) != first
    assert on.count() == 3
    on.play()
    assert on.do(on.client.create("line", {"a": 1, "b": 2}, keyed())) == first
    key, outcome = on.do(on.client.run("line", {"a": 1, "b": 2}, keyed()))
    assert (key, outcome.status) == (first, Status.COMPLETED)


def test_the_same_key_with_another_state_is_a_conflict(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=2)
    on.do(on.client.create("line", {"a": 1}, keyed()))
    with pytest.raises(Conflict, match="'k'.*'line'"):
        on.do(on.client.create("line", {"a": 2}, keyed()))
    with pytest.raises(Conflict):
        on.do(on.client.create_many([("line",), ("line", {"a": 2}, keyed())]))
    assert on.count() == 1


def test_a_key_is_found_on_a_shard_that_has_been_cordoned_since(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=3)
    keys = {name: on.do(on.client.create("line", None, keyed(name))) for name in map(str, range(30))}
    assert {FlowKey.parse(key).shard for key in keys.values()} == {1, 2, 3}
    shards = [on.shards[0], *(msgspec.structs.replace(shard, cordoned=True) for shard in on.shards[1:])]
    client = on.open(host=on.app, shards=shards)
    assert {name: on.do(client.create("line", None, keyed(name))) for name in keys} == keys
    fresh = [on.do(client.create("line", None, keyed(f"new {n}"))) for n in range(9)]
    assert {FlowKey.parse(key).shard for key in fresh} == {1}


def test_keys_and_threads_go_together(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=3)
    first = on.do(on.client.create("line"))
    options = [FlowOptions(thread_key=first, idempotency_key=str(n)) for n in range(9)]
    keys = [on.do(on.client.create("line", None, each)) for each in options]
    assert {FlowKey.parse(key).shard for key in keys} == {FlowKey.parse(first).shard}
    assert [on.do(on.client.create("line", None, each)) for each in options] == keys


# Shards


@pytest.mark.row("J3")
def test_flows_spread_by_weight(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=3)
    weighted = [msgspec.structs.replace(shard, weight=weight) for shard, weight in zip(on.shards, (1, 2, 1), strict=True)]
    client = on.open(host=on.app, shards=weighted)
    keys = on.do(client.create_many([("line",)] * 2_000))
    counts = [sum(FlowKey.parse(key).shard == index for key in keys) for index in (1, 2, 3)]
    assert abs(counts[1] - 1_000) < 150
    assert abs(counts[0] - counts[2]) < 200
    even = on.do(on.client.create_many([("line",)] * 900))
    assert all(abs(sum(FlowKey.parse(key).shard == index for key in even) - 300) < 100 for index in (1, 2, 3))


@pytest.mark.row("J4")
def test_a_cordoned_shard_takes_no_new_flow_but_those_of_its_threads(stage: MakeStage) -> None:
    on = stage(LINE, TASKS, shards=2)
    thread = next(key for key in on.do(on.client.create_many([("line",)] * 40)) if FlowKey.parse(key).shard == 2)
    client = on.open(host=on.app, shards=[on.shards[0], msgspec.structs.replace(on.shards[1], cordoned=True)])
    assert {FlowKey.parse(key).shard for key in on.do(client.create_many([("line",)] * 40))} == {1}
    assert FlowKey.parse(on.do(client.create("line", None, FlowOptions(thread_key=thread)))).shard == 2
    on.play()
    assert on.do(client.wait(thread)).status is Status.COMPLETED


def test_with_every_shard_cordoned_there_is_no_place(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    client = on.open(host=on.app, shards=[Shard(1, on.shards[0].dsn, cordoned=True)])
    for options in (None, keyed()):
        with pytest.raises(ShardUnavailable, match="cordoned"):
            on.do(client.create("line", None, options))
    assert on.count() == 0


# Many callers at one time


def test_callers_share_statements_and_get_their_own_flows(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(LINE, TASKS)
    on.do(on.client.create("line"))
    sent = []
    create = Reads.create_flows

    async def counted(self: Reads, *args: Any, **named: Any) -> Any:
        sent.append(1)
        return await create(self, *args, **named)

    monkeypatch.setattr(Reads, "create_flows", counted)

    async def all_of_them() -> list[str]:
        made = [on.client.create("line", {"n": n}) for n in range(200)]
        batch = on.client.create_many([("line", {"n": n}) for n in range(200, 210)])
        results: list[Any] = await asyncio.gather(*made, batch)
        return [*results[:-1], *results[-1]]

    keys = on.do(all_of_them())
    assert [on.row(key).input["n"] for key in keys] == list(range(210))
    assert len(sent) < 20


def test_a_caller_that_is_cancelled_takes_no_other_with_it(stage: MakeStage) -> None:
    on = stage(LINE, TASKS)
    on.do(on.client.create("line"))

    async def scene() -> list[Any]:
        tasks = [asyncio.ensure_future(on.client.create("line", {"n": n})) for n in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = on.do(scene())
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert [on.row(key).input["n"] for key in results[1::2]] == list(range(1, 100, 2))
    assert on.do(on.client.create("line"))


def test_a_value_that_cannot_be_stored_fails_its_caller_alone(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(LINE, TASKS)
    on.do(on.client.create("line"))
    create = Reads.create_flows

    async def picky(self: Reads, new: Any, **named: Any) -> Any:
        if any(b"poison" in given for given in new.inputs):
            raise psycopg.errors.ProgramLimitExceeded("too much")
        return await create(self, new, **named)

    monkeypatch.setattr(Reads, "create_flows", picky)

    async def scene() -> list[Any]:
        return await asyncio.gather(
            *(on.client.create("line", {"n": n if n != 7 else "poison"}) for n in range(20)), return_exceptions=True
        )

    results = on.do(scene())
    assert [n for n, result in enumerate(results) if isinstance(result, Exception)] == [7]
    assert on.count() == 20
