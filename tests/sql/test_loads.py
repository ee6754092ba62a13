"""What inputs stand on is found wherever its day has gone, at the same cost beside a year of partitions and whatever they hold."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from dwarf.arrays import EPOCH
from dwarf.batch import ChildStart
from dwarf.record import Child, Kind, NewBranch
from dwarf.rows import SourceRow
from dwarf.status import StepStatus
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.desk import NOON, Desk, entry
from tests.sql.plays import TODAY, play, scene, stop_before

DAYS = 365
STEPS = 4
FLOWS = 2_000
EACH = 100
FILL = """
insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, created_at, ended_at, task, changes, state, fan_first, fan_size)
select (dwarf.hour_of({now})::bigint << 36) + 3000000000 + n / {steps}, 0, 1 + n % {steps}, dwarf.day_of({now}), 1, 0, 6, {now}, {now}, 'A', '{{}}'
, '{{}}', 1, 1
from generate_series(0, {rows} - 1) n;
insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, created_at, ended_at, task, changes)
select (dwarf.hour_of({now})::bigint << 36) + 2000000000, n / 2, 1 + n % 2, dwarf.day_of({now}), 1, 0, 6, {now}, {now}, 'W', '{{}}'
from generate_series(0, {rows} - 1) n;
"""
Calls = dict[str, Callable[[], Sequence[Any]]]


@pytest.fixture(scope="module")
def desk(pg: Server) -> Iterator[Desk]:
    """A desk on a database with a year of partitions."""
    with fresh_database(pg, "year") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(%s, %s)", (DAYS, NOON))
        with Desk(dsn) as made:
            yield made


def numbers(desk: Desk, query: str) -> list[int]:
    """Run a query on the connection of the calls, and read its one row."""
    result = desk.do(desk.link.execute(query.encode(), result_format=0))
    return [int(result.get_value(0, column) or 0) for column in range(result.nfields)]


def tree(desk: Desk) -> tuple[int, int, int]:
    """Return a flow whose trunk opened three branches, the first of them, and a caller whose child has ended."""
    opening, calling = desk.create(2)
    first = desk.do(desk.store.branch_block())
    branches = [NewBranch(number, "W") for number in range(3)]
    beside: dict[str, Any] = {"size": 3, "expanded": 3, "first_branch": first, "hot_branches": frozenset(range(3))}
    call = entry(calling, Kind.PARK, status=StepStatus.PARKED, kept=b"{}", child=ChildStart("0" * 16, desk.graph_id, "C"))
    call.record.child = Child("kid", b"{}")
    opens = entry(opening, Kind.FAN_OUT, task="J", snapshot=b"{}", branches=branches, **beside)
    child = next(filter(None, desk.applied(opens, call).children))
    desk.applied(entry(opening, Kind.ARRIVE, branch=first, join_branch=0, changes=b"{}"))
    desk.claim_these((child, 0))
    desk.applied(entry(child, Kind.CLOSE, final_state=b"{}", root=calling, caller=(calling, 0)))
    return opening, first, calling


def test_a_load_locks_a_handful_of_relations_beside_a_year_of_partitions(desk: Desk) -> None:
    flow_id, first, calling = tree(desk)
    store, day = desk.store, desk.row(flow_id)["day"]
    calls: Calls = {
        "documents": lambda: desk.do(store.load_documents([(flow_id, 0, 1, day), (flow_id, 0, 0, day)])),
        "changes": lambda: desk.do(store.load_changes([(flow_id, 0, 0, 2, day)])),
        "sources": lambda: desk.do(store.load_sources([(flow_id, 0, 2, day)])),
        "members": lambda: desk.do(store.load_members(flow_id, first, 3, day)),
        "parks": lambda: desk.do(store.load_parks([(calling, 0), (calling, 0)])),
    }
    held: dict[str, int] = {}
    for _ in range(7):  # after five executions a plan is generic, where it is let to be
        for name, call in calls.items():
            desk.do(desk.link.execute(b"begin"))
            assert call(), name
            [held[name]] = numbers(
                desk, "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'relation' and relation > 16383"
            )
            desk.do(desk.link.execute(b"commit"))
    # A partitioned table and its partition, each with its indexes; live and parks with theirs.
    assert {name: count for name, count in held.items() if count > (12 if name == "parks" else 8)} == {}


def reads(desk: Desk, call: Callable[[], Sequence[Any]]) -> tuple[int, int, int]:
    """Make a call; return its rows, the index entries it read, and the tables that it read whole."""
    query = (
        "select sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relkind = 'i')"
        ", sum(pg_stat_get_xact_numscans(c.oid)) filter (where c.relkind = 'r')"
        " from pg_class c where c.relnamespace = 'dwarf'::regnamespace"
    )
    desk.do(desk.link.execute(b"begin"))
    before = numbers(desk, query)
    rows = call()
    after = numbers(desk, query)
    desk.do(desk.link.execute(b"commit"))
    return len(rows), after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("statistics", ["", "analyze"])
def test_a_load_reads_the_rows_it_returns_by_their_key_with_statistics_and_without(pg: Server, statistics: str) -> None:
    with fresh_database(pg, "filled") as dsn, Desk(dsn) as desk:
        tree(desk)
        named = {"now": sql.Literal(NOON), "steps": sql.Literal(STEPS), "rows": sql.Literal(FLOWS * STEPS)}
        desk.view.cursor().execute(sql.SQL(FILL).format(**named))
        if statistics:
            desk.view.execute(statistics.encode())
        base = (NOON - EPOCH) // datetime.timedelta(hours=1) << 36
        day = (NOON.date() - datetime.date(2000, 1, 1)).days
        flows = [base + 3_000_000_000 + number for number in range(0, FLOWS, FLOWS // EACH)]
        store = desk.store
        calls: Calls = {
            "documents": lambda: desk.do(store.load_documents([(flow_id, 0, 3, day) for flow_id in flows])),
            "changes": lambda: desk.do(store.load_changes([(flow_id, 0, 1, 4, day) for flow_id in flows])),
            "sources": lambda: desk.do(store.load_sources([(flow_id, 0, 2, day) for flow_id in flows])),
            "members": lambda: desk.do(store.load_members(base + 2_000_000_000, 7, EACH, day)),
        }
        found = {name: reads(desk, call) for name, call in calls.items()}
    assert {name: rows for name, (rows, _, _) in found.items()} == {
        "documents": EACH,
        "changes": 2 * EACH,
        "sources": EACH,
        "members": EACH,
    }
    assert {name: cost for name, cost in found.items() if cost[1] > 2 * cost[0] or cost[2]} == {}


@pytest.mark.parametrize("is_told", [False, True])
def test_rows_of_a_moved_tree_are_found_under_the_old_day_and_the_new_one_beside_others(database: str, is_told: bool) -> None:
    with closing(scene(database)) as player:
        moved, stays = (player.create("deep", {"xs": [1, 4]}) for _ in range(2))
        play(player)
        source = player.one("select branch, fan_first, fan_size from dwarf.history where flow_id = %s and fan_first is not null", moved)
        calls = player.one("select branch from dwarf.parks where flow_id = %s and child_id is not null", moved)
        beside = player.one("select branch, fan_first from dwarf.history where flow_id = %s and fan_first is not null", stays)
        assert player.one("select dwarf.move_trees_v1(%s, %s) as n", [moved], TODAY).n == 2
        day, store = (-1 if is_told else TODAY), player.store
        both = [(moved, 0, 1, day), (stays, 0, 1, TODAY)]
        assert {(row.flow_id, row.seq) for row in player.do(store.load_documents([*both, (moved, 0, 0, day)]))} == {
            (moved, 1), (moved, 0), (stays, 1),
        }  # fmt: skip
        changes = player.do(store.load_changes([(moved, 0, 0, 2, day), (stays, 0, 0, 2, TODAY)]))
        assert {(row.flow_id, row.seq) for row in changes} == {(moved, 1), (stays, 1)}
        assert sorted(player.do(store.load_sources([(moved, 0, 2, day), (stays, 0, 2, TODAY)])), key=lambda row: row.flow_id) == [
            SourceRow(moved, 0, "S", source.fan_first, 2), SourceRow(stays, 0, "S", beside.fan_first, 2),
        ]  # fmt: skip
        [park] = player.do(store.load_parks([(moved, calls.branch)]))
        assert park.child_id is not None
        assert (park.child_status, park.result) == (None, None), "its child is open"
        assert player.one("select dwarf.terminate_v1(%s, 'enough', %s) as done", moved, player.now).done
        members = player.do(store.load_members(moved, source.fan_first, 2, day))
        assert [(row.ordinal, row.status) for row in members] == [(0, 9), (1, 9)]


def test_an_ended_child_is_found_when_it_was_moved(database: str) -> None:
    with closing(scene(database)) as player:
        root = player.create("call", {})
        [last] = stop_before(player, lambda entry: entry.record.kind is Kind.CLOSE and entry.caller is not None)
        assert player.record([last]) == []
        [before] = player.do(player.store.load_parks([(root, 0)]))
        assert (before.child_status, before.result) == (6, b'{"child":"ask"}')
        assert player.one("select dwarf.move_trees_v1(%s, %s) as n", [root], TODAY).n == 2
        assert player.do(player.store.load_parks([(root, 0)])) == [before]
        player.connection.execute("update dwarf.parks set child_day = %s", (TODAY,))
        assert player.do(player.store.load_parks([(root, 0), (root, 7)])) == [before], "the park's day is no more than where to begin"
