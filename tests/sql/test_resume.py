"""Resumes and signals: they take what is next by its key, however they were planned, and damage is named instead of waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.sql.desk import Desk
from tests.sql.plays import NOON

OPEN = 2_000
BRANCHES = 300
# Flows with one open interrupt each, and one more with many; signals of two sessions, in turn.
FILL = (
    """
insert into dwarf.live(flow_id, root_id, priority, graph_id, budget_ms, day, weight, created_at, thread_id, token, workflow, fairness_key)
select i, i, 3, 1, 1000, 9565, 1, NOW, i, '0', 'w', '' from generate_series(1, OPEN) i;
insert into dwarf.active(flow_id, branch, seq, depth, status, priority, half, budget_ms, day, weight, created_at, parked, lease, task, fairness_key)
select i, 0, 1, 1, 4, 3, 0, 1000, 9565, 1, NOW, true, 1, 'A', '' from generate_series(1, OPEN - 1) i
union all
select OPEN, b, 1, 1, 4, 3, 0, 1000, 9565, 1, NOW, true, 1, 'A', '' from generate_series(0, BRANCHES - 1) b;
insert into dwarf.parks(flow_id, branch, seq, kind, root_id, parked_at, path)
select a.flow_id, a.branch, 1, 1, a.flow_id, NOW, array[a.flow_id] from dwarf.active a;
insert into dwarf.signals(session, flow_id, branch, seq, lease, kind) select n % 2, n, 0, 1, 1, 1 from generate_series(1, OPEN) n;
""".replace("NOW", f"timestamptz '{NOON.isoformat()}'")
    .replace("OPEN", str(OPEN))
    .replace("BRANCHES", str(BRANCHES))
)
TOUCHED = """
select sum(pg_stat_get_xact_tuples_returned(c.oid)) filter (where c.relkind = 'i')
, sum(pg_stat_get_xact_numscans(c.oid)) filter (where c.relkind = 'r')
from pg_class c where c.relnamespace = 'dwarf'::regnamespace
"""


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as made:
        yield made


def resume(connection: psycopg.Connection, root: int) -> bool:
    [(done,)] = connection.execute("""select dwarf.resume_v1(%s, '{"a": 1}', %s)""", (root, NOON)).fetchall()
    return bool(done)


def take(connection: psycopg.Connection, session: int, limit: int) -> list[int]:
    return [flow for (flow,) in connection.execute("select flow_id from dwarf.take_signals_v1(%s, %s)", (session, limit)).fetchall()]


def entries_read(connection: psycopg.Connection, call: Callable[[], object]) -> int:
    """Make a call and count the index entries that it read; a table that is read whole counts as very many."""
    with connection.transaction():
        before = connection.execute(TOUCHED).fetchall()[0]
        assert call()
        after = connection.execute(TOUCHED).fetchall()[0]
    return int(after[0] - before[0] + 1_000_000 * (after[1] - before[1]))


@pytest.mark.parametrize("moment", ["planned on empty tables", "planned on full ones", "planned with statistics"])
def test_what_a_resume_and_a_look_for_signals_read_does_not_grow(connection: psycopg.Connection, moment: str) -> None:
    if moment == "planned on empty tables":
        for _ in range(6):
            assert not resume(connection, 1)
            assert take(connection, 1, 10) == []
    connection.cursor().execute(FILL.encode())
    if moment == "planned with statistics":
        connection.execute("analyze")
    assert entries_read(connection, lambda: resume(connection, 7)) <= 10
    assert entries_read(connection, lambda: resume(connection, OPEN)) <= 10, "the branches of its tree are not walked through"
    assert entries_read(connection, lambda: take(connection, 1, 20) == list(range(1, 40, 2))) <= 100
    assert take(connection, 1, 2) == [41, 43]


def test_signals_that_another_takes_are_passed_over(database: str, connection: psycopg.Connection) -> None:
    connection.cursor().execute(FILL.encode())
    with psycopg.connect(database) as other:
        assert take(other, 0, 2) == [2, 4]
        assert take(connection, 0, 2) == [6, 8]
        other.rollback()
    assert take(connection, 0, 3) == [2, 4, 10]
    assert take(connection, 0, 0) == []


@pytest.mark.parametrize(("damage", "told"), [
    ("delete from dwarf.active", "is parked at step 1 for an answer, and its row does not wait for one"),
    ("update dwarf.active set status = 1, claimable = now()", "is parked at step 1 for an answer, and its row does not wait for one"),
    ("update dwarf.active set seq = 2", "is parked at step 1 for an answer, and its row does not wait for one"),
    ("update dwarf.parks set flow_id = 7777 where flow_id = 5", "is parked at step 1 for an answer, and its row does not wait for one"),
])  # fmt: skip
def test_a_park_that_no_row_belongs_to_is_named_and_nothing_is_changed(connection: psycopg.Connection, damage: str, told: str) -> None:
    connection.cursor().execute(FILL.encode())
    connection.execute(damage.encode())
    with pytest.raises(psycopg.Error, match=told) as caught:
        resume(connection, 5)
    assert caught.value.sqlstate == "DW901"
    assert connection.execute("select count(*) from dwarf.parks where answer is not null").fetchall() == [(0,)]


def test_two_resumes_of_one_tree_answer_two_interrupts(desk_of_two: tuple[psycopg.Connection, psycopg.Connection]) -> None:
    one, two = desk_of_two
    one.cursor().execute(FILL.encode())
    assert [resume(one, OPEN) for _ in range(BRANCHES // 2)] == [True] * (BRANCHES // 2)
    assert [resume(two, OPEN) for _ in range(BRANCHES // 2 + 1)] == [True] * (BRANCHES // 2) + [False]


@pytest.fixture
def desk_of_two(database: str) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as two:
        yield one, two


def test_the_store_takes_signals_in_order(database: str) -> None:
    with Desk(database) as desk:
        ids = desk.create(30)
        for flow_id in ids:
            desk.do(desk.store.terminate_flow(flow_id, ""))
        assert [row.flow_id for row in desk.do(desk.store.take_signals(desk.session, 10))] == ids[:10]
