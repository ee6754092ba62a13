"""What must not change with size: hot updates, locks beside many partitions, wide fan-outs, old snapshots, poolers.

DWARF_SCALE=1 has a year of partitions instead of two months. DWARF_TEST_HEAVY=1 opens cohorts of 1 x 50,000 and 1,000 x 50
instead of 1 x 5,000 and 100 x 50, and holds an old snapshot for 20,000 claims instead of 2,000.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from dwarf.arrays import micros
from dwarf.batch import Entry
from dwarf.cursors import Cursors
from dwarf.record import Kind, NewBranch
from dwarf.rows import ClaimedRow
from dwarf.status import StepStatus
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import QUICK, Server, find_bindir
from tests.sql.desk import NOON, PRIORITY, Desk, entry, minute
from tests.sql.player import Player
from tests.sql.stops import INVARIANTS
from tests.sql.test_storm import TASKS, Storm, graphs

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
SLICE = 1_000
BATCH = 200
LOCKS_MAX = 60  # relations locked by one record of all kinds, its tables with all their indexes
DAYS = 365 if "DWARF_SCALE" in os.environ else 60


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    with Desk(database) as desk:
        yield desk


def updates(desk: Desk, call: Callable[[], Any]) -> tuple[int, int]:
    """Make a call, and count the updates of `active` and those of them that changed no index."""
    query = (
        "select pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) from (select 'dwarf.active'::regclass::oid) t(c)"
    )
    desk.do(desk.link.execute(b"begin"))
    before = numbers(desk, query)
    call()
    after = numbers(desk, query)
    desk.do(desk.link.execute(b"commit"))
    return after[0] - before[0], after[1] - before[1]


def numbers(desk: Desk, query: str) -> list[int]:
    """Run a query on the connection of the calls, and read its one row."""
    result = desk.do(desk.link.execute(query.encode(), result_format=0))
    return [int(result.get_value(0, column) or 0) for column in range(result.nfields)]


@pytest.fixture(scope="module")
def alone(version: str) -> Iterator[Desk]:
    """A desk on a server that nobody else connects to: a backend that starts, in whatever database, keeps dead rows for a moment."""
    settings = {**QUICK, "autovacuum": "off"}
    with (
        Server(find_bindir(version), settings=settings, in_memory=True) as server,
        fresh_database(server, "alone") as dsn,
        Desk(dsn) as desk,
    ):
        yield desk


def test_a_linear_run_updates_its_rows_in_place(alone: Desk) -> None:
    desk = alone
    steps, total, hot = 30, 0, 0
    flows = desk.create(BATCH)
    for seq in range(1, steps + 1):
        entries = [entry(flow_id, Kind.ADVANCE, task="B", seq=seq, lease=seq, changes=b'{"a":1}', hot=True) for flow_id in flows]
        made = updates(desk, partial(desk.applied, *entries))
        total, hot = total + made[0], hot + made[1]
    assert total == steps * BATCH
    assert hot == total, f"{hot} of {total} updates of active were hot"
    desk.applied(*[entry(flow_id, Kind.CLOSE, seq=steps + 1, lease=steps + 1, final_state=b"{}") for flow_id in flows])
    assert not desk.all("select 1 from dwarf.active where flow_id = any (%s)", flows)


def test_a_linear_run_beside_another_lane_updates_its_rows_in_place(alone: Desk) -> None:
    """Another lane always has a transaction open that began during the batch before, so that only what is older can be pruned."""
    desk = alone
    flows, total, hot = desk.create(BATCH), 0, 0
    others = [psycopg.connect(desk.dsn) for _ in range(2)]
    for seq in range(1, 21):
        others[seq % 2].isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        others[seq % 2].execute("select txid_current()")
        entries = [entry(flow_id, Kind.ADVANCE, task="B", seq=seq, lease=seq, changes=b'{"a":1}', hot=True) for flow_id in flows]
        made = updates(desk, partial(desk.applied, *entries))
        total, hot = total + made[0], hot + made[1]
        others[(seq + 1) % 2].rollback()
    for other in others:
        other.close()
    assert total == 20 * BATCH
    assert hot >= 0.95 * total, f"{hot} of {total} updates of active were hot"


def test_a_joining_row_is_counted_down_in_place(alone: Desk) -> None:
    desk = alone
    total = hot = 0
    sources = [fan_out(desk, flow_id, 40) for flow_id in desk.create(20)]
    desk.applied(*sources)
    for place in range(39):  # but the last, which makes it claimable
        entries = [entry(each.flow_id, Kind.ARRIVE, branch=(each.first_branch or 0) + place, join_branch=0) for each in sources]
        made = updates(desk, partial(desk.applied, *entries))
        total, hot = total + made[0], hot + made[1]
    assert (total, hot) == (39 * 20, 39 * 20)


# ---- partitions ----


def locks(desk: Desk, call: Callable[[], Any]) -> int:
    """Make a call, and count the relations that its transaction has locked."""
    desk.do(desk.link.execute(b"begin"))
    call()
    query = "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'relation' and relation > 16383"
    [count] = numbers(desk, query)
    desk.do(desk.link.execute(b"commit"))
    return count


def one_of_each(desk: Desk) -> list[Entry]:
    """A record of every kind."""
    closing, failing, waiting, asking, opening, cohort = desk.create(6)
    opened = fan_out(desk, cohort, 2)
    desk.applied(opened)
    return [
        entry(closing, Kind.CLOSE, final_state=b"{}"),
        entry(failing, Kind.CLOSE, final_state=b"{}", status=StepStatus.FAILED),
        entry(waiting, Kind.RETRY, status=StepStatus.PENDING, kept=b"{}"),
        entry(asking, Kind.PARK, status=StepStatus.INTERRUPTED, kept=b"{}", payload=b"{}"),
        entry(cohort, Kind.ARRIVE, branch=opened.first_branch or 0, join_branch=0),
        fan_out(desk, opening, 2),
    ]


@pytest.fixture(scope="module")
def year(pg: Server) -> Iterator[str]:
    """A database with a year of partitions."""
    with fresh_database(pg, "year") as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select dwarf.ensure_partitions(%s, %s)", (DAYS, NOON))
            # Before PostgreSQL 18, compiling the query of the invariants for so many partitions takes minutes.
            connection.execute(sql.SQL("alter database {} set jit = off").format(sql.Identifier(connection.info.dbname)))
        yield dsn


def writes(desk: Desk) -> dict[str, Callable[[], Any]]:
    linear, closing, due = desk.create(BATCH), desk.create(BATCH), desk.create(BATCH, claimed=False)
    mixed = one_of_each(desk)
    return {
        "create": lambda: desk.create(BATCH),
        "claim": lambda: desk.claim(BATCH),
        "claim by name": lambda: desk.claim_these(*[(flow_id, 0) for flow_id in due]),
        "linear": lambda: desk.applied(*[entry(flow_id, Kind.ADVANCE, task="B") for flow_id in linear]),
        "closes": lambda: desk.applied(*[entry(flow_id, Kind.CLOSE, final_state=b"{}") for flow_id in closing]),
        "every kind": lambda: desk.applied(*mixed),
        "resume": lambda: desk.do(desk.store.resume_flow(mixed[3].flow_id, b"{}")),
        "cancel": lambda: desk.do(desk.store.cancel_flow(mixed[5].flow_id, "")),
        "terminate": lambda: desk.do(desk.store.terminate_flow(mixed[5].flow_id, "")),
    }


def reads(desk: Desk) -> dict[str, Callable[[], Any]]:
    [flow_id] = desk.create()
    opened = fan_out(desk, flow_id, 3)
    desk.applied(opened)
    store, day = desk.store, desk.row(flow_id)["day"]
    return {
        "documents": lambda: desk.do(store.load_documents([(flow_id, 0, 1, day)])),
        "changes": lambda: desk.do(store.load_changes([(flow_id, 0, 0, 2, day)])),
        "sources": lambda: desk.do(store.load_sources([(flow_id, 0, 2, day)])),
        "members": lambda: desk.do(store.load_members(flow_id, opened.first_branch or 0, 3, day)),
        "parks": lambda: desk.do(store.load_parks([(flow_id, 0)])),
        "statuses": lambda: desk.do(desk.link.execute(f"select from dwarf.statuses_v1('{{{flow_id},1}}')".encode())),
        "outcome": lambda: desk.do(desk.link.execute(f"select from dwarf.outcome_v1({flow_id})".encode())),
    }


@pytest.mark.parametrize("calls", [writes, reads])
def test_a_year_of_partitions_costs_no_locks(year: str, calls: Callable[[Desk], dict[str, Callable[[], Any]]]) -> None:
    with Desk(year) as desk:
        for _ in range(6):  # plans are cached from here on
            held = {name: locks(desk, call) for name, call in calls(desk).items()}
    assert {name: count for name, count in held.items() if count > LOCKS_MAX} == {}


@pytest.mark.row("F23", "F24")
def test_flows_are_played_beside_a_year_of_partitions(year: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sql.test_storm.FLOWS", 5)
    with psycopg.connect(year, autocommit=True) as connection:
        connection.execute("delete from dwarf.live; delete from dwarf.active; delete from dwarf.parks; delete from dwarf.flows")
    storm = Storm(year, "calm", 1)
    storm.blow()
    storm.check()


# ---- wide fan-outs ----


def fan_out(desk: Desk, flow_id: int, width: int, *, expanded: int = 0, first: int | None = None, **parts: Any) -> Entry:
    """The fan-out of a flow's first step, or its next slice: `expanded` branches exist."""
    branches = [NewBranch(number, "W") for number in range(expanded, min(width, expanded + SLICE))]
    if not expanded:
        first, parts = desk.do(desk.store.branch_block()), {"snapshot": b"{}", **parts}
    parts |= {"size": width, "expanded": expanded + len(branches), "first_branch": first, "branches": branches, "task": "J"}
    return entry(
        flow_id, Kind.FAN_OUT, **{"hot_branches": frozenset(each.ordinal for each in branches) if width <= SLICE else frozenset(), **parts}
    )


def as_arrival(row: ClaimedRow) -> Entry:
    return entry(row.flow_id, Kind.ARRIVE, branch=row.branch, lease=row.lease, join_branch=row.join_branch, changes=b"{}")


@pytest.mark.row("M4", "F24")
def test_a_wide_cohort(database: str) -> None:
    """Slices, claims and arrivals by two sessions in turn: each branch once, and the fan-in once."""
    width = 50_000 if HEAVY else 5_000
    with Desk(database) as one, Desk(database, engine=2) as two:
        [flow_id] = one.create()
        source = fan_out(one, flow_id, width)
        one.applied(source)
        turn = arrived = 0
        woke: list[tuple[int, int]] = []
        while not woke:
            desk, turn = (one, two)[turn % 2], turn + 1
            rows = desk.claim(BATCH)
            entries = [as_arrival(row) for row in rows if row.todo == 0]
            arrived += len(entries)
            for row in rows:
                if row.todo == 4:
                    part = {"seq": row.seq, "lease": row.lease, "joining": True}
                    entries.append(fan_out(desk, flow_id, width, expanded=row.expanded or 0, first=source.first_branch, **part))
            woke = [place for place in desk.applied(*entries).woke if desk.row(*place)["todo"] == 1]
        assert (arrived, woke) == (width, [(flow_id, 0)])
        [fan_in] = one.claim()
        assert (fan_in.todo, fan_in.size, fan_in.expanded) == (1, width, width)
        assert one.all(INVARIANTS) == []
        members = one.do(one.store.load_members(flow_id, source.first_branch or 0, width, fan_in.day))
        assert [member.ordinal for member in members] == list(range(width))
        assert two.claim() == []
        one.applied(entry(flow_id, Kind.CLOSE, seq=2, lease=fan_in.lease, joining=True, final_state=b"{}"))
        assert one.count("history") == width + 2
        assert one.count("active") == one.count("live") == 0


@pytest.mark.row("M4", "F24")
def test_many_cohorts_at_once(database: str) -> None:
    """Arrivals of many cohorts mixed in every batch, by two sessions in turn."""
    cohorts, width = (1_000 if HEAVY else 100), 50
    with Desk(database) as one, Desk(database, engine=2) as two:
        flows = one.create(cohorts)
        for start in range(0, cohorts, SLICE // width):
            batch = [fan_out(one, flow_id, width, hot_branches=frozenset()) for flow_id in flows[start : start + SLICE // width]]
            one.applied(*batch)
        woke: list[tuple[int, int]] = []
        turn = 0
        while rows := (one, two)[turn % 2].claim(BATCH):
            rows.sort(key=lambda row: (row.branch * 7919) % 10_007)
            ready = [row for row in rows if row.todo == 1]
            entries = [as_arrival(row) for row in rows if row.todo == 0]
            entries += [entry(row.flow_id, Kind.CLOSE, seq=2, lease=row.lease, joining=True, final_state=b"{}") for row in ready]
            woke += (one, two)[turn % 2].applied(*entries).woke
            turn += 1
        assert sorted(woke) == [(flow_id, 0) for flow_id in sorted(flows)]
        assert one.count("flows", "status = 6") == cohorts
        assert one.count("history") == cohorts * (width + 2)
        assert one.count("active") == one.count("live") == 0
        assert one.all(INVARIANTS) == []


# ---- snapshots, poolers ----


@pytest.fixture
def held(database: str) -> Iterator[psycopg.Connection]:
    """A transaction that has looked at the database and keeps its snapshot."""
    with psycopg.connect(database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from dwarf.active")
        yield connection


def test_flows_are_played_beside_a_held_snapshot(database: str, held: psycopg.Connection) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
    storm = Storm(database, "verbs", 2)
    storm.blow()
    storm.check()
    assert held.execute("select count(*) from dwarf.active").fetchall() == [(0,)]


def test_a_held_snapshot_makes_claims_no_more_than_five_times_dearer(desk: Desk, held: psycopg.Connection) -> None:
    """Whatever was claimed since the snapshot was taken is dead and cannot be cleared away; a claim that goes on behind what was
    claimed before need not walk through it, and one from the bottom finds what has turned up there meanwhile."""
    query = "select pg_stat_get_xact_tuples_returned('dwarf.active_claim_idx'::regclass)"
    cursors = Cursors()
    desk.create(BATCH, claimed=False)

    def claim(at: float, *, count: int = BATCH) -> tuple[int, list[ClaimedRow]]:
        desk.do(desk.link.execute(b"begin"))
        [before] = numbers(desk, query)
        rows: list[ClaimedRow] = []
        for half in (0, 1):
            since = cursors.since(half, PRIORITY, now=at)
            call = desk.store.claim(desk.session, {"": BATCH}, half=half, priority=PRIORITY, since=since, now=micros(minute(at)))
            found = desk.do(call)
            cursors.note(half, PRIORITY, found, began=at, ended=at + 1)  # as if it had been dear
            rows += found
        [after] = numbers(desk, query)
        desk.do(desk.link.execute(b"commit"))
        assert len(rows) == count
        return after - before, sorted(rows, key=lambda row: row.flow_id)

    costs = []
    for step in range(20_000 // BATCH if HEAVY else 2_000 // BATCH):
        at = step / 1000
        cost, rows = claim(at)
        costs.append(cost)
        if step == 1:  # one is handed back much later, and waits at its place
            late, rows = rows[0], rows[1:]
            desk.create(1, claimed=False, at=at)
        desk.applied(*[entry(row.flow_id, Kind.ADVANCE, task="B", seq=row.seq, lease=row.lease) for row in rows], at=at)
    assert costs[-1] <= 5 * costs[0], f"index entries read by claims of {BATCH}: {costs}"
    assert desk.do(desk.store.release(desk.session, [(late.flow_id, late.branch, late.lease, False)])) == 1
    _, rows = claim(0.5)
    assert late.flow_id not in {row.flow_id for row in rows}
    cursors.restart()
    assert [row.flow_id for row in claim(0.6, count=1)[1]] == [late.flow_id]
    held.rollback()
    cursors.restart()
    desk.applied(*[entry(row.flow_id, Kind.ADVANCE, task="B", seq=row.seq, lease=row.lease) for row in rows], at=1)
    desk.view.execute("vacuum dwarf.active")
    assert claim(10_000)[0] <= 2 * costs[0], "once the snapshot is gone, claims cost what they did"


@pytest.mark.row("M35", "F23")
def test_flows_are_played_through_a_pooler(database: str, pgbouncer: Callable[..., Any]) -> None:
    """Two players and more connections than the pooler has: every statement may find another backend."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
    pooler = pgbouncer(default_pool_size=2)
    for mix in ("verbs", "sweep"):
        storm = Storm(pooler.dsn(database), mix, 3)
        storm.dsn = database  # who meddles is an operator, and goes there directly
        for player in storm.players:
            player.connection.prepare_threshold = None
        storm.blow()
        storm.check()
    assert "prepared statement" not in pooler.log()


def test_a_player_alone_behind_a_pooler_with_one_connection(database: str, pgbouncer: Callable[..., Any]) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
    player = Player(pgbouncer(default_pool_size=1).dsn(database), graphs(), TASKS)
    player.connection.prepare_threshold = None
    flow_id = player.create("parent", {"xs": [0, 1, 4, 6]})
    player.run(3)
    ended = player.ended(flow_id)
    assert ended is not None
    assert ended.status == "completed"
    player.close()
