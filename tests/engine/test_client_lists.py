"""Lists over one shard and over several: what they show, how their pages join, what a shard that is down does to them."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from dwarf import FlowKey, FlowOptions, FlowSummary, InvalidArgument, NotFound, Page, Query, Status, TaskError
from dwarf.flow import Flow
from dwarf.pool import Unreached
from tests.engine.conftest import MakeStage
from tests.engine.stage import Stage, line

HOUR = datetime.timedelta(hours=1)


def write(flow: Flow) -> None:
    flow["secret"] = "do not show"


def ask(flow: Flow) -> None:
    flow.interrupt({"secret": "do not show"})


def call(flow: Flow) -> None:
    flow.subgraph("ask")


def fail(flow: Flow) -> None:
    raise TaskError("Out Of Paper")


def sleep(flow: Flow) -> None:
    flow.sleep(3_600)


TASKS = {"A": write, "B": write, "Q": ask, "P": call, "F": fail, "S": sleep}
GRAPHS = {
    "line": line("A", "B", name="Straight"),
    "ask": line("Q", "B", name="ask"),
    "call": line("P", name="call"),
    "fail": line("F", name="fail"),
    "sleep": line("S", "B", name="sleep"),
}


def pages(on: Stage, query: Query, *, closed: bool = False) -> list[Page]:
    """Every page of a list."""
    found = []
    while True:
        page = on.do(on.client.list_closed(query) if closed else on.client.list_open(query))
        found.append(page)
        if not page.cursor:
            return found
        query = msgspec.structs.replace(query, cursor=page.cursor)


def items(on: Stage, query: Query | None = None, *, closed: bool = False) -> list[FlowSummary]:
    return [flow for page in pages(on, query or Query(), closed=closed) for flow in page]


def keys(on: Stage, query: Query | None = None, *, closed: bool = False) -> set[str]:
    return {flow.flow_key for flow in items(on, query, closed=closed)}


@pytest.mark.row("I24", "E5")
def test_a_list_shows_roots_newest_first_and_at_most_a_hundred(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    parent = on.do(on.client.create("call"))
    on.play()
    made = [on.do(on.client.create("line")) for _ in range(120)]
    first = on.do(on.client.list_open())
    assert [flow.flow_key for flow in first] == made[:19:-1]
    assert first.cursor
    assert first.errors == {}
    rest = on.do(on.client.list_open(Query(cursor=first.cursor)))
    assert [flow.flow_key for flow in rest] == [*made[19::-1], parent]
    with_children = items(on, Query(include_subgraphs=True))
    assert {flow.flow_key for flow in with_children if flow.subgraph} == {on.child(parent)}
    assert len(with_children) == 122


@pytest.mark.row("I32", "L22")
def test_a_summary_says_what_a_flow_is(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    first = on.do(on.client.create("line"))
    key = on.do(on.client.create("line", None, FlowOptions(priority=3, fairness_key="", thread_key=first)))
    failing = on.do(on.client.create("fail"))
    asked = on.do(on.client.create("ask"))
    [flow] = [flow for flow in items(on) if flow.flow_key == key]
    assert (flow.thread_key, flow.workflow_url, flow.workflow_name, flow.status, flow.task_name) == (
        first,
        "line",
        "Straight",
        Status.RUNNING,
        "A",
    )
    assert (flow.priority, flow.fairness_key, flow.error, flow.reason, flow.ended_at, flow.started_at) == (3, "", "", "", None, None)
    on.play()
    closed = {flow.flow_key: flow for flow in items(on, closed=True)}
    done, failed = closed[key], closed[failing]
    assert (done.status, done.task_name, done.thread_key) == (Status.COMPLETED, "B", first)
    assert done.created_at <= done.started_at <= done.ended_at == done.updated_at  # type: ignore[operator]
    assert (failed.status, failed.error, failed.thread_key) == (Status.FAILED, "Out Of Paper", failing)
    [waiting] = items(on)
    assert (waiting.flow_key, waiting.status, waiting.task_name) == (asked, Status.INTERRUPTED, "Q")
    everything = msgspec.json.encode([*closed.values(), waiting])
    assert b"do not show" not in everything


@pytest.mark.row("I27", "I33")
def test_a_list_that_cannot_be_meant_is_refused(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = FlowKey.parse(on.do(on.client.create("line")))
    wrong: list[Any] = [
        Query(cursor="x"), Query(cursor="AAAA"), Query(status="odd"), Query(shard=2), Query(thread_key="1-2"), Query(limit=1_001), Query(limit=-1),
        Query(priority=101), Query(older_than=-1), {"limit": 1}, "x",
    ]  # fmt: skip
    for query in wrong:
        for read in (on.client.list_open, on.client.list_closed):
            with pytest.raises(InvalidArgument) as refused:
                on.do(read(query))
            assert refused.value.status == 400
    for other in (FlowKey(1, key.flow_id, "f" * 16), FlowKey(1, 77, key.token), FlowKey(2, key.flow_id, key.token)):
        for read in (on.client.list_open, on.client.list_closed):
            with pytest.raises(NotFound) as missing:
                on.do(read(Query(thread_key=str(other))))
            assert other.token not in str(missing.value)
    cursor = on.do(on.client.list_open(Query(limit=1))).cursor
    with pytest.raises(InvalidArgument, match="cursor"):
        on.do(on.client.list_closed(Query(cursor=cursor)))
    with pytest.raises(InvalidArgument, match="cursor"):
        on.do(on.client.list_open(Query(cursor=cursor, workflow_url="line")))


@pytest.mark.row("I28", "I30")
def test_filters_join_with_and(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    plain, urgent, asked, failed = (
        on.do(on.client.create(url, None, options))
        for url, options in (
            ("line", FlowOptions(fairness_key="Tenant")), ("line", FlowOptions(priority=1)), ("ask", None), ("fail", None),
        )
    )  # fmt: skip
    joined = on.do(on.client.create("ask", None, FlowOptions(thread_key=plain)))
    on.play()
    assert keys(on, Query(status="interrupted")) == {asked, joined}
    assert keys(on, Query(status="running")) == {plain, urgent}
    assert keys(on, Query(workflow_url="line")) == {plain, urgent}
    assert keys(on, Query(workflow_name="Straight")) == {plain, urgent}
    assert keys(on, Query(task_name="Q")) == {asked, joined}
    assert keys(on, Query(fairness_key="Tenant")) == {plain}
    assert keys(on, Query(fairness_key="tenant")) == set()
    assert keys(on, Query(priority=1)) == {urgent}
    assert keys(on, Query(thread_key=plain)) == keys(on, Query(thread_key=joined)) == {plain, joined}
    assert keys(on, Query(thread_key=plain, task_name="Q")) == {joined}
    assert keys(on, Query(status="failed"), closed=True) == {failed}
    assert keys(on, Query(status="completed"), closed=True) == set()
    assert keys(on, Query(search="out of"), closed=True) == {failed}
    for shard in (1, 2):
        assert keys(on, Query(shard=shard)) == {key for key in keys(on) if FlowKey.parse(key).shard == shard}
    assert keys(on, Query(workflow_url="line", priority=1, search="STRAIGHT")) == {urgent}
    assert keys(on, Query(newer_than=HOUR)) == keys(on)
    assert keys(on, Query(older_than=HOUR)) == set()
    now = datetime.datetime.now(datetime.UTC)
    assert keys(on, Query(newer_than=now - HOUR, older_than=now + HOUR)) == keys(on)
    assert keys(on, Query(newer_than=now + HOUR, older_than=now + 2 * HOUR)) == set()
    assert keys(on, Query(newer_than=HOUR, older_than=0), closed=True) == {failed}


def test_a_key_is_searched_for_as_a_key(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    made = on.do(on.client.create_many([("line",)] * 10))
    parent = on.do(on.client.create("call"))
    ended = [on.do(on.client.create("fail")) for _ in range(5)]
    for key in (*made, parent):
        parsed = FlowKey.parse(key)
        for text in (key, str(parsed.step(1)), parsed.name):
            assert keys(on, Query(search=text)) == {key}
            assert keys(on, Query(search=text), closed=True) == set()
        assert keys(on, Query(search=key, workflow_url="ask")) == set()
        assert keys(on, Query(search=str(FlowKey(parsed.shard, parsed.flow_id, "f" * 16)))) == set()
    on.play()
    child = on.child(parent)
    assert keys(on, Query(search=child)) == set()
    assert keys(on, Query(search=child, include_subgraphs=True)) == {child}
    for key in ended:
        assert keys(on, Query(search=key)) == set()
        assert keys(on, Query(search=key), closed=True) == {key}
        assert keys(on, Query(search=FlowKey.parse(key).name, status="completed"), closed=True) == set()
    assert keys(on, Query(search=str(FlowKey(3, 7, "0" * 16)))) == set()


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_over_several_shards_join_without_gap_or_overlap(stage: MakeStage, limit: int) -> None:
    on = stage(GRAPHS, TASKS, shards=3)
    on.do(on.client.create_many([("fail",)] * 20))
    on.play()
    opened = on.do(on.client.create_many([("sleep",)] * 20))
    for closed in (False, True):
        found = items(on, Query(limit=limit), closed=closed)
        assert len(found) == len({flow.flow_key for flow in found}) == 20
        for shard in (1, 2, 3):
            ids = [FlowKey.parse(flow.flow_key).flow_id for flow in found if FlowKey.parse(flow.flow_key).shard == shard]
            if closed:
                assert [flow.ended_at for flow in found] == sorted((flow.ended_at for flow in found), reverse=True)  # type: ignore[type-var]
            else:
                assert ids == sorted(ids, reverse=True)
    assert keys(on, Query(limit=limit)) == set(opened)
    *_, last = pages(on, Query(limit=limit))
    assert last.cursor == ""


@pytest.mark.row("I33")
def test_a_shard_that_is_down_is_named_and_taken_up_later(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    made = set(on.do(on.client.create_many([("line",)] * 30)))
    here = {key for key in made if FlowKey.parse(key).shard == 1}
    pool = on.client._shards[2].pool
    run = pool.run

    async def away(work: Any, **named: Any) -> Any:
        raise Unreached("shard 2 cannot be reached")

    monkeypatch.setattr(pool, "run", away)
    first = on.do(on.client.list_open(Query(limit=5)))
    assert {FlowKey.parse(flow.flow_key).shard for flow in first} == {1}
    assert list(first.errors) == [2]
    found = {flow.flow_key for flow in first}
    page = first
    while found != here:
        page = on.do(on.client.list_open(Query(limit=5, cursor=page.cursor)))
        found |= {flow.flow_key for flow in page}
    page = on.do(on.client.list_open(Query(limit=5, cursor=page.cursor)))
    assert (page.items, list(page.errors)) == ([], [2])
    assert page.cursor
    assert on.do(on.client.list_open(Query(shard=1))).errors == {}
    monkeypatch.setattr(pool, "run", run)
    while page.cursor:
        page = on.do(on.client.list_open(Query(limit=5, cursor=page.cursor)))
        assert page.errors == {}
        found |= {flow.flow_key for flow in page}
    assert found == made


@pytest.mark.row("I34")
def test_a_list_goes_on_where_a_day_has_been_dropped(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    on.do(on.client.create_many([("fail",)] * 10))
    on.play()
    first = on.do(on.client.list_closed(Query(limit=4)))
    on.player.all("delete from dwarf.flows returning 1")
    page = on.do(on.client.list_closed(Query(limit=4, cursor=first.cursor)))
    assert (page.items, page.cursor) == ([], "")
