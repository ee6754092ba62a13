"""Which bands and keys have due work, and what a claim takes of them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.sql.player import Player


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
        connection.execute(
            """insert into dwarf.graphs (hash, name, entry_task, definition, created_at) values ('x', 'g', 'A', '{}', now());
            """
        )
    made = Player(database, {}, {})
    yield made
    made.close()


def fill(player: Player, rows: list[tuple[int, int, str, float, int]]) -> None:
    """Insert pending rows: (half, priority, key, weight, how many)."""
    for half, priority, key, weight, count in rows:
        player.connection.execute(
            """with f as (
                insert into dwarf.live (flow_id, root_id, priority, graph_id, budget_ms, day, weight, created_at, thread_id, token, workflow, fairness_key)
                select i, i, %(priority)s, 1, 1000, 1, %(weight)s, now(), i, '0', 'w', %(key)s
                from (select nextval('dwarf.flow_seq') as i from generate_series(1, %(count)s)) s
                returning flow_id
            )
            insert into dwarf.active (flow_id, branch, seq, depth, status, priority, half, budget_ms, day, weight, created_at, claimable, task, fairness_key)
            select flow_id, 0, 1, 1, 1, %(priority)s, %(half)s, 1000, 1, %(weight)s, now(), now(), 'A', %(key)s from f""",
            {"half": half, "priority": priority, "key": key, "weight": weight, "count": count},
        )


def test_nothing_is_due(player: Player) -> None:
    assert player.do(player.store.due_bands(0)) == []
    assert player.do(player.store.due_keys(half=0, priority=3)) == {}


@pytest.mark.row("F8", "F13")
def test_keys_are_found_in_order_with_their_lowest_weight(player: Player) -> None:
    rows = [
        (0, 3, "b", 2.0, 5),
        (0, 3, "b", 0.5, 1),
        (0, 3, "", 1.0, 2),
        (0, 3, "B", 4.0, 1),
        (0, 3, "a.b-c_9", 1.0, 3),
        (0, 1, "z", 1.0, 1),
        (1, 3, "c", 1.0, 1),
    ]
    fill(player, rows)
    assert player.do(player.store.due_bands(0)) == [1, 3]
    assert player.do(player.store.due_bands(1)) == [3]
    keys = player.do(player.store.due_keys(half=0, priority=3))
    assert list(keys.items()) == [("", 1.0), ("B", 4.0), ("a.b-c_9", 1.0), ("b", 0.5)]
    pages = []
    after = None
    while page := player.do(player.store.due_keys(half=0, priority=3, after=after, limit=1)):
        pages.append(page)
        (after,) = page
    assert {key: weight for page in pages for key, weight in page.items()} == keys
    claimed = player.do(player.store.claim(player.session, {"b": 2, "": 9, "none": 3}, half=0, priority=3))
    assert sorted(row.fairness_key for row in claimed) == ["", "", "b", "b"]
    assert list(player.do(player.store.due_keys(half=0, priority=3))) == ["B", "a.b-c_9", "b"]


@pytest.mark.row("F11")
def test_a_claim_takes_the_oldest_of_a_key_and_ties_by_id(player: Player) -> None:
    fill(player, [(0, 3, "k", 1.0, 6)])
    player.connection.execute("update dwarf.active set claimable = now() - interval '1 s' where flow_id % 2 = 0")
    order = [row.flow_id for row in player.all("select flow_id from dwarf.active order by claimable, flow_id")]
    taken = [row.flow_id for quota in (1, 2, 3) for row in player.do(player.store.claim(player.session, {"k": quota}, half=0, priority=3))]
    assert taken == order
