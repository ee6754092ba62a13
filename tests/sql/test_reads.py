"""What clients read is found wherever a flow's day has gone, by look-ups alone, and beside a year of partitions at the cost of few."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dwarf.database import Connection
from dwarf.reads import Reads
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.player import Player
from tests.sql.plays import TODAY, play, scene

DAYS = 365
RELATIONS_MAX = 60  # that one read may lock, its tables, indexes and partitions together; a year of them has more than a thousand
CALLS = {
    "statuses": "select * from dwarf.statuses_v1(array[%(flow)s, %(gone)s]::bigint[])",
    "outcome": "select * from dwarf.outcome_v1(%(flow)s)",
    "ended": "select * from dwarf.ended_v1(array[%(flow)s, %(gone)s]::bigint[], 1000)",
    "find_flows": "select * from dwarf.find_flows_v1(array[%(flow)s, %(gone)s]::bigint[])",
    "fingerprint": "select * from dwarf.fingerprint_v1(%(flow)s)",
    "history": "select * from dwarf.history_v1(%(flow)s)",
    "replay": "select * from dwarf.replay_v1(%(flow)s)",
    "origin": "select * from dwarf.origin_v1(%(flow)s)",
    "writes": "select * from dwarf.writes_v1(%(flow)s, 0, 1)",
    "parked": "select * from dwarf.parked_v1(%(flow)s, 0, 1)",
}
UNKNOWN = {"flow": 77 << 36, "gone": 78 << 36}


class Cast:
    """Flows of every kind: one that ended, one with a child, one that fanned out, one interrupted below, one not begun."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.line = player.create("line", {"a": 1})
        self.call = player.create("call", {"child": "line"})
        self.fan = player.create("fan", {"xs": [1, 2, 3]})
        self.asks = player.create("call", {"child": "ask"})
        play(player)
        self.waits = player.create("line")
        self.all = (self.line, self.call, self.fan, self.asks, self.waits)

    @property
    def closed(self) -> tuple[int, ...]:
        return self.line, self.call, self.fan

    def read(self, name: str, *args: Any, **named: Any) -> Any:
        return self.player.do(getattr(Reads(self.player.link), name)(*args, **named))

    def everything(self) -> list[Any]:
        """All that there is to read of the flows, in an order."""
        seen: list[Any] = [self.read("statuses", self.all), sorted(self.read("find_flows", self.all), key=lambda row: row.flow_id)]
        seen.append(sorted(self.read("ended", self.all, bytes_max=1 << 20), key=lambda row: row.flow_id))
        for flow_id in self.all:
            history = sorted(self.read("history", flow_id), key=lambda row: (row.flow_id, row.branch, row.seq))
            replay = sorted(self.read("replay", flow_id), key=lambda row: (row.branch, row.seq))
            seen += [history, replay, self.read("origin", flow_id), self.read("outcome", flow_id), self.read("writes", flow_id, 0, 1)]
            seen.append(self.read("fingerprint", flow_id))
        return seen


@pytest.fixture
def cast(database: str) -> Iterator[Cast]:
    with closing(scene(database)) as player:
        yield Cast(player)


def test_what_is_read_is_what_is_there(cast: Cast) -> None:
    assert cast.read("statuses", [*cast.all, 77]) == {cast.line: 6, cast.call: 6, cast.fan: 6, cast.asks: 4, cast.waits: 1}
    found = {row.flow_id: row for row in cast.read("find_flows", [*cast.all, 77])}
    assert found.keys() == set(cast.all)
    assert {flow_id: row.status for flow_id, row in found.items()} == cast.read("statuses", cast.all)
    assert all(
        (row.root_id, row.thread_id, row.token, row.is_hidden) == (flow_id, flow_id, "0" * 16, False) for flow_id, row in found.items()
    )
    assert [found[flow_id].name for flow_id in cast.all] == ["line", "call", "fan", "call", "line"]
    assert [found[flow_id].ended_at is None for flow_id in cast.all] == [False, False, False, True, True]
    ended = {row.flow_id: row for row in cast.read("ended", [*cast.all, 77], bytes_max=1 << 20)}
    assert ended.keys() == set(cast.closed)
    assert all(row.final_state is not None for row in ended.values())
    assert all(row.final_state is None for row in cast.read("ended", cast.all, bytes_max=1))
    assert cast.read("origin", cast.line).input == b'{"a":1}'
    assert [len(cast.read("replay", flow_id)) for flow_id in cast.all] == [3, 2, 8, 0, 0]
    assert [len(cast.read("history", flow_id)) for flow_id in cast.all] == [3, 5, 8, 2, 1]


def test_a_history_holds_the_children_and_no_row_that_is_no_step(cast: Cast) -> None:
    rows = cast.read("history", cast.call)
    [caller] = [row for row in rows if row.child_id is not None]
    assert {row.flow_id for row in rows} == {cast.call, caller.child_id}
    assert len(cast.read("history", caller.child_id)) == 3
    waiting = {row.flow_id: row for row in cast.read("history", cast.asks)}
    parked, asking = waiting.pop(cast.asks), *waiting.values()
    assert (parked.status, asking.status, parked.child_id) == (5, 4, asking.flow_id)
    assert asking.updated_at >= asking.started_at
    assert cast.read("writes", asking.flow_id, 0, 1).payload == b'{"question":0}'
    stands = cast.read("parked", asking.flow_id, 0, 1)
    assert (stands.base_branch, stands.base_seq, stands.kept, stands.is_fan_in) == (0, 0, b'{"asked":true}', False)
    assert cast.read("parked", cast.asks, 0, 1) is None
    fan = cast.read("history", cast.fan)
    [source] = [row for row in fan if row.fan_size]
    firsts = [row for row in fan if row.seq == 1 and row.branch]
    assert {(row.parent_branch, row.parent_seq) for row in firsts} == {(source.branch, source.seq)}
    assert sorted(row.branch for row in firsts) == list(range(source.fan_first, source.fan_first + 3))


def test_a_joining_row_is_no_step_until_it_may_run(cast: Cast) -> None:
    player = cast.player
    flow_id = player.create("fan", {"xs": [1, 2]})
    player.record(player.work(player.claim(50)))
    rows = cast.read("history", flow_id)
    assert sorted(row.task for row in rows) == ["S", "W", "W"]
    play(player)
    assert sorted(row.task for row in cast.read("history", flow_id)) == ["J", "S", "V", "V", "W", "W"]


def test_trees_that_were_moved_read_the_same(cast: Cast) -> None:
    before = cast.everything()
    for root in cast.all:
        cast.player.one("select dwarf.move_trees_v1(%s, %s)", [root], TODAY)
    assert cast.player.one("select count(*) as n from dwarf.flows where day <> -1").n == 0
    assert cast.everything() == before
    play(cast.player)
    assert cast.read("statuses", [cast.waits]) == {cast.waits: 6}
    assert len(cast.read("history", cast.waits)) == 3


def test_unknown_flows_have_no_rows(cast: Cast) -> None:
    for name, call in CALLS.items():
        assert cast.player.connection.execute(call.encode(), UNKNOWN).fetchall() == [], name


def test_a_fingerprint_sees_what_a_verb_does(cast: Cast) -> None:
    flow_id = cast.asks
    seen = [cast.read("fingerprint", flow_id)[2]]
    for call in (
        lambda: cast.player.store.resume_flow(flow_id, b"{}"),
        lambda: cast.player.store.cancel_flow(flow_id, "c"),
        lambda: cast.player.store.terminate_flow(flow_id, "t"),
    ):
        assert cast.player.do(call())
        seen.append(cast.read("fingerprint", flow_id)[2])
    assert len(set(seen)) == 4


def test_gauges_count_what_is_open_and_due(cast: Cast) -> None:
    gauges = cast.read("shard_gauges")
    assert (gauges.flows_open, gauges.steps_running, gauges.dispatchers) == (2, 0, 0)
    assert gauges.steps_pending == 1
    assert gauges.version >= 5
    cast.player.claim()
    gauges = cast.read("shard_gauges")
    assert (gauges.steps_pending, gauges.steps_running, gauges.oldest_pending_seconds) == (0, 1, 0)


# A year of partitions


@pytest.fixture(scope="module")
def year(pg: Server) -> Iterator[Cast]:
    """A cast on a database with a year of partitions."""
    with fresh_database(pg, "year of reads") as dsn, closing(scene(dsn)) as player:
        player.one("select dwarf.ensure_partitions(%s, %s)", DAYS, player.now)
        yield Cast(player)


@pytest.mark.parametrize("name", CALLS)
def test_a_read_opens_few_of_many_partitions(year: Cast, name: str) -> None:
    connection = year.player.connection
    for flow_id in year.all:
        with connection.transaction():
            connection.execute(CALLS[name].encode(), {"flow": flow_id, "gone": UNKNOWN["gone"]}).fetchall()
            locked = connection.execute(
                "select count(distinct relation) as n from pg_locks where pid = pg_backend_pid() and relation is not null"
            ).fetchall()[0][0]
        assert locked < RELATIONS_MAX


@pytest.mark.parametrize("name", CALLS)
def test_a_read_scans_no_table(year: Cast, name: str) -> None:
    connection = year.player.connection
    counted = "select sum(pg_stat_get_xact_numscans(c.oid))::int as n from pg_class c where c.relnamespace = 'dwarf'::regnamespace and c.relkind = 'r'"
    with connection.transaction():
        before = connection.execute(counted.encode()).fetchall()[0][0]
        connection.execute(CALLS[name].encode(), {"flow": year.fan, "gone": UNKNOWN["gone"]}).fetchall()
        after = connection.execute(counted.encode()).fetchall()[0][0]
    assert after == before


def test_lists_of_named_statements_are_those_of_the_files(database: str) -> None:
    """Every statement of clients is accepted by the server with the parameters that its method gives."""

    async def scene_of_calls() -> list[Any]:
        link = await Connection.open(database)
        reads = Reads(link)
        calls: list[Callable[[], Any]] = [
            lambda: reads.find_workflows(["a", "b"]),
            lambda: reads.list_open({"with_children": True}, limit=1, before=None, scan=10),
            lambda: reads.list_open({"status": 1, "search": "x", "priority": 3, "thread_id": 7}, limit=1, before=99, scan=10),
            lambda: reads.list_closed({"with_children": False, "name": "n", "task": "t"}, limit=1, before=None, scan=10),
            lambda: reads.delete_flow(7, "x"),
            lambda: reads.now(),
            lambda: reads.setting("nothing"),
        ]
        answers = [await call() for call in calls]
        link.close()
        return answers

    answers = asyncio.run(scene_of_calls())
    assert answers[:4] == [[], [], [], []]
    assert answers[4] == "missing"
    assert answers[6] is None
