"""Lists: whole, in order, filtered as the query says, and never longer on their way than they may be."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dwarf.keys import FlowKey
from dwarf.query import FlowSummary, Query
from dwarf.status import Status
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, TODAY, play, scene

RESUME = """select dwarf.resume_v1(%s, '{"a": 1}', %s) as done"""
STATUS = {Status.RUNNING: 1, Status.INTERRUPTED: 4, Status.COMPLETED: 6, Status.FAILED: 7, Status.CANCELLED: 8, Status.TERMINATED: 9}
STATUS_OF = {code: status for status, code in STATUS.items()}


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        yield made


def populate(player: Player) -> None:
    """Leave flows of every status, over three days, with two keys, a thread and children."""
    for day in range(3):
        player.now = NOON + day * DAY
        player.one("select dwarf.ensure_partitions(1, %s)", player.now)
        for key in ("", "gold"):
            for url, state in (
                ("line", {}),
                ("call", {}),
                ("ask", {}),
                ("call", {"child": "ask"}),
                ("deep", {"xs": [5]}),
                ("again", {}),
                ("line", {}),
            ):
                player.create(url, state, key=key)
                player.now += datetime.timedelta(minutes=1)
        for _ in range(20):
            entries = player.work(player.claim(50, keys=["", "gold"]))
            if not entries:
                break
            assert player.record(entries) == []
    flows = [row.flow_id for row in player.all("select flow_id from dwarf.live where workflow = 'ask' and root_id = flow_id order by 1")]
    player.one("select dwarf.terminate_v1(%s, 'Not Wanted', %s)", flows[0], player.now)
    player.one("select dwarf.cancel_v1(%s, 'called off', %s)", flows[1], player.now)
    assert player.record(player.work(player.claim(50, keys=["", "gold"]))) == []
    player.connection.execute("update dwarf.live set thread_id = %s where flow_id = %s", (flows[0], flows[2]))


def call(player: Player, function: str, **given: Any) -> list[Any]:
    names = ", ".join(f"{name} => %({name})s" for name in given)
    return player.connection.execute(f"select * from dwarf.{function}({names})", given).fetchall()


def summary(row: Any) -> FlowSummary:
    return FlowSummary(
        flow_key=f"1-{row.flow_id >> 36}-{row.flow_id & (1 << 36) - 1}-{row.token}",
        thread_key=f"1-{row.thread_id >> 36}-{row.thread_id & (1 << 36) - 1}-{row.thread_token}",
        workflow_url=row.workflow, workflow_name=row.name, status=STATUS_OF[row.status], task_name=row.task or "", error=row.error or "",
        reason=row.reason or "", created_at=row.created_at, started_at=row.started_at, updated_at=row.updated_at, ended_at=row.ended_at,
        priority=row.priority, fairness_key=row.fairness_key, subgraph=row.is_child,
    )  # fmt: skip


def whole(player: Player, function: str, limit: int = 1000, **given: Any) -> list[FlowSummary]:
    """Follow the places to the end of the list."""
    found: list[FlowSummary] = []
    while True:
        rows = call(player, function, p_limit=limit, **given)
        assert len([row for row in rows if not row.is_place]) <= limit
        found += [summary(row) for row in rows if not row.is_place]
        if not rows or not rows[-1].is_place:
            return found
        place = (
            {"p_before": rows[-1].flow_id}
            if function == "list_open_v1"
            else {"p_before_at": rows[-1].ended_at, "p_before_id": rows[-1].flow_id}
        )
        given |= place


def ids(flows: list[FlowSummary]) -> list[int]:
    return [FlowKey.parse(flow.flow_key).flow_id for flow in flows]


@pytest.mark.row("I24", "I32")
def test_every_flow_is_in_one_of_the_lists_once_and_in_order_whatever_the_size_of_a_page(player: Player) -> None:
    populate(player)
    opened = [row.flow_id for row in player.all("select flow_id from dwarf.live order by flow_id desc")]
    closed = [row.flow_id for row in player.all("select flow_id from dwarf.flows order by ended_at desc, flow_id desc")]
    assert len(opened) + len(closed) == 54
    for limit in (1, 7, 1000):
        assert ids(whole(player, "list_open_v1", limit, p_with_children=True)) == opened
        assert ids(whole(player, "list_closed_v1", limit, p_with_children=True)) == closed
    for scan in (1, 5):
        assert ids(whole(player, "list_open_v1", p_with_children=True, p_scan=scan)) == opened
        assert ids(whole(player, "list_closed_v1", p_with_children=True, p_scan=scan)) == closed
    assert all(not flow.subgraph for name in ("list_open_v1", "list_closed_v1") for flow in whole(player, name))


@pytest.mark.row("I24", "I28", "I30", "I32")
def test_filters_mean_what_a_query_means(player: Player) -> None:
    populate(player)
    everything = [flow for name in ("list_open_v1", "list_closed_v1") for flow in whole(player, name, p_with_children=True)]
    thread = player.one("select thread_id from dwarf.live where thread_id <> flow_id").thread_id
    threads = {flow.thread_key for flow in everything if FlowKey.parse(flow.thread_key).flow_id == thread}
    assert len(threads) == 1, "the thread's key has the token of its first flow"
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"include_subgraphs": True}, {"p_with_children": True}),
        ({"workflow_url": "call"}, {"p_workflow": "call"}),
        ({"workflow_name": "deep"}, {"p_name": "deep"}),
        ({"task_name": "Z"}, {"p_task": "Z"}),
        ({"task_name": "Q", "include_subgraphs": True}, {"p_task": "Q", "p_with_children": True}),
        ({"fairness_key": "gold"}, {"p_fairness_key": "gold"}),
        ({"priority": 3}, {"p_priority": 3}), ({"priority": 1}, {"p_priority": 1}),
        ({"thread_key": threads.pop()}, {"p_thread_id": thread}),
        ({"older_than": NOON + DAY}, {"p_older_than": NOON + DAY}),
        ({"newer_than": NOON + DAY}, {"p_newer_than": NOON + DAY}),
        ({"older_than": NOON + 2 * DAY, "newer_than": NOON + DAY, "workflow_url": "line"},
         {"p_older_than": NOON + 2 * DAY, "p_newer_than": NOON + DAY, "p_workflow": "line"}),
        ({"search": "NOT want"}, {"p_search": "not want"}), ({"search": "gold"}, {"p_search": "gold"}), ({"search": "zzz"}, {"p_search": "zzz"}),
    ]  # fmt: skip
    asked += [({"status": status}, {"p_status": code}) for status, code in STATUS.items()]
    for query, given in asked:
        for is_closed, name in ((False, "list_open_v1"), (True, "list_closed_v1")):
            checked = Query(**query).check(closed=is_closed)
            expected = {flow.flow_key for flow in everything if checked.matches(flow, now=NOON)}
            found = whole(player, name, 4, **given)
            assert {flow.flow_key for flow in found} == expected, (query, name)
            assert len(found) == len(expected)


def test_a_summary_is_complete(player: Player) -> None:
    player.create("line")
    player.now = NOON + datetime.timedelta(minutes=1)
    play(player)
    [flow] = whole(player, "list_closed_v1")
    assert (flow.workflow_url, flow.workflow_name, flow.task_name, flow.status, flow.priority) == ("line", "line", "C", Status.COMPLETED, 3)
    assert (flow.created_at, flow.started_at, flow.updated_at, flow.ended_at) == (NOON, player.now, player.now, player.now)
    assert flow.thread_key == flow.flow_key
    asking = player.create("deep", {"xs": [1]})
    play(player)
    [flow] = whole(player, "list_open_v1")
    assert (flow.status, flow.task_name, flow.started_at, ids([flow])) == (Status.INTERRUPTED, "", player.now, [asking])


def test_started_at_of_a_moved_flow_is_found(player: Player) -> None:
    flow_id = player.create("line")
    play(player)
    player.one("select dwarf.move_trees_v1(%s, %s)", [flow_id], TODAY)
    assert [flow.started_at for flow in whole(player, "list_closed_v1")] == [NOON]


@pytest.mark.row("I10", "I12")
def test_deleted_flows_and_their_children_are_not_listed(player: Player) -> None:
    root = player.create("call")
    play(player)
    assert len(whole(player, "list_closed_v1", p_with_children=True)) == 2
    player.one("select dwarf.delete_v1(%s, p_now => %s)", root, NOON)
    assert whole(player, "list_closed_v1", p_with_children=True) == []


@pytest.mark.row("I34")
def test_a_list_goes_on_while_a_day_is_dropped(player: Player) -> None:
    populate(player)
    [*_, place] = call(player, "list_closed_v1", p_limit=3)
    assert place.is_place
    player.one("select dwarf.drop_partitions(%s, %s)", NOON.date() + DAY, NOON + 40 * DAY)
    rest = whole(player, "list_closed_v1", 5, p_before_at=place.ended_at, p_before_id=place.flow_id)
    expected = player.all(
        "select flow_id from dwarf.flows where root_id = flow_id and (ended_at, flow_id) < (%s, %s) order by ended_at desc, flow_id desc",
        place.ended_at, place.flow_id,
    )  # fmt: skip
    assert ids(rest) == [row.flow_id for row in expected]


def test_a_page_gives_up_after_its_budget_and_says_where(player: Player) -> None:
    for _ in range(12):
        player.create("line")
    rows = call(player, "list_open_v1", p_limit=5, p_search="zzz", p_scan=4)
    assert [row.is_place for row in rows] == [True]
    play(player)
    rows = call(player, "list_closed_v1", p_limit=5, p_search="zzz", p_scan=4)
    assert [row.is_place for row in rows] == [True]
    assert call(player, "list_closed_v1", p_limit=5, p_search="zzz", p_scan=4, p_ms=0)[0].is_place
    assert call(player, "list_closed_v1", p_limit=5, p_search="zzz") == []


@pytest.mark.row("I18")
def test_what_a_purge_takes_oldest_first(player: Player) -> None:
    populate(player)
    interrupted = {row.root_id for row in player.all("select root_id from dwarf.parks where kind = 1 and answer is null")}
    ended = {row.flow_id for row in player.all("select flow_id from dwarf.flows where root_id = flow_id")}
    for wanted, status in ((ended, None), (interrupted, 4)):
        for scan in (3, 20_000):
            found: list[tuple[int, bool]] = []
            after = 0
            while True:
                rows = call(player, "stopped_v1", p_limit=5, p_after=after, p_scan=scan, p_status=status)
                found += [(row.flow_id, row.parked_at is not None) for row in rows if not row.is_place]
                if not rows or not rows[-1].is_place:
                    break
                after = rows[-1].flow_id
            assert found == sorted((flow, status is not None) for flow in wanted)
    assert {row.flow_id for row in call(player, "stopped_v1", p_limit=1000, p_search="not want")} < ended
    assert player.one("select dwarf.delete_closed_v1(%s, %s) as n", list(ended), player.now).n == len(ended)
    assert call(player, "stopped_v1", p_limit=1000) == []
    for flow in interrupted:
        assert player.one("select dwarf.delete_v1(%s, p_now => %s) as state", flow, player.now).state == "terminated"
    assert call(player, "stopped_v1", p_limit=1000, p_status=4) == []
    assert call(player, "stopped_v1", p_limit=1000, p_status=9) == [], "they are deleted already"
