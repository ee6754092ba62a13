"""Partitions by day are there before they are needed, whoever makes them, and making them stops nobody."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import errors

from dwarf import partitions
from dwarf.pool import Pool
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, TODAY, broken, play, scene, uncommitted


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database, days_ahead=0)) as made:
        yield made


def days(dsn: str, parent: str) -> list[int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "select day from dwarf.partitions_v1() where parent = %s and is_attached order by day"
        return [day for (day,) in connection.execute(query, (parent,)).fetchall()]


def test_today_and_the_days_ahead_are_made_once(database: str) -> None:
    assert partitions.ensure(database, 3, now=NOON) == 8
    assert partitions.ensure(database, 3, now=NOON) == 0
    assert partitions.ensure(database, 3, now=NOON + DAY) == 2
    expected = list(range(TODAY, TODAY + 5))
    assert days(database, "flows") == days(database, "history") == expected


def test_a_partition_has_the_keys_and_indexes_of_its_parent(database: str) -> None:
    partitions.ensure(database, 0, now=NOON)
    query = """
        select regexp_replace(i.indexdef, '^.* USING ', '') from pg_indexes i
        where i.schemaname = 'dwarf' and i.tablename = %s order by 1"""
    with psycopg.connect(database) as connection:
        for parent in ("flows", "history"):
            made, kept = ([row[0] for row in connection.execute(query, (f"{parent}_{end}",))] for end in (f"d{TODAY}", "kept"))
            assert made == kept
            assert made


def test_there_is_no_default_partition_for_it_would_forbid_detaching_beside_writers(database: str) -> None:
    with psycopg.connect(database) as connection:
        query = "select relname from pg_class where relnamespace = 'dwarf'::regnamespace and pg_get_expr(relpartbound, oid) = 'DEFAULT'"
        assert connection.execute(query).fetchall() == []


def test_making_partitions_waits_for_neither_readers_nor_writers(database: str, player: Player) -> None:
    player.create("line")
    with psycopg.connect(database) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select count(*) from dwarf.history, dwarf.flows")
        entries = player.work(player.claim())
        with uncommitted(player):
            assert player.record(entries) == []
            assert partitions.ensure(database, 3, now=NOON) == 6
    play(player)


def test_nobody_waits_for_a_held_parent_longer_than_the_lock_timeout(database: str) -> None:
    with psycopg.connect(database) as holder, psycopg.connect(database, autocommit=True) as connection:
        holder.execute("lock table only dwarf.flows in share update exclusive mode")
        with pytest.raises(errors.LockNotAvailable):
            connection.execute("select dwarf.ensure_partitions(1, %s)", (NOON,))
        holder.rollback()
        assert connection.execute("select dwarf.ensure_partitions(1, %s)", (NOON,)).fetchall() == [(4,)]
        holder.execute("lock table only dwarf.flows in share update exclusive mode")
        assert connection.execute("select dwarf.ensure_partitions(1, %s)", (NOON,)).fetchall() == [(0,)], "nothing missing, nothing locked"


def test_many_may_make_them_at_once(database: str) -> None:
    made: list[int] = []
    faults: list[BaseException] = []
    start = threading.Barrier(8)

    def one() -> None:
        try:
            start.wait()
            made.append(partitions.ensure(database, 5, now=NOON))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert sorted(made) == [0] * 7 + [12]
    assert days(database, "history") == list(range(TODAY, TODAY + 6))


@pytest.mark.parametrize("ahead", [-1, 3661])
def test_an_absurd_number_of_days_is_refused(database: str, ahead: int) -> None:
    with psycopg.connect(database, autocommit=True) as connection, pytest.raises(psycopg.Error, match=rf"days_ahead is {ahead}") as caught:
        connection.execute("select dwarf.ensure_partitions(%s)", (ahead,))
    assert caught.value.sqlstate == "DW400"


def test_a_flow_can_be_created_without_partitions_and_runs_once_they_are_made(database: str, player: Player) -> None:
    player.now = NOON + 20 * DAY  # nobody has looked after the partitions since
    flow_id = player.create("line")
    entries = player.work(player.claim())
    with pytest.raises(errors.CheckViolation, match="no partition of relation"):
        player.record(entries)
    player.now += 20 * DAY
    partitions.ensure(database, 1, now=player.now)
    assert TODAY + 20 in days(database, "flows"), "an open flow's day is made too, however old"
    assert TODAY + 19 not in days(database, "flows")
    assert player.record(entries) == []
    play(player)
    assert player.ended(flow_id) is not None
    assert broken(database) == []


@pytest.mark.parametrize("ahead", [0, 4_000])
def test_a_verb_of_a_client_makes_the_partition_that_it_needs(database: str, player: Player, ahead: int) -> None:
    player.now = datetime.datetime.now(datetime.UTC) + ahead * DAY
    flow_id = player.create("line")
    pool = Pool(database, size=1)

    async def terminate() -> bool:
        try:
            return await pool.run(lambda reads: reads.terminate_flow(flow_id, "enough", now=player.micros), is_repeatable=False)
        finally:
            pool.close()

    assert player.do(terminate())
    assert player.ended(flow_id) is not None
    assert broken(database) == []


def test_a_flow_created_just_after_midnight_finds_its_partition(database: str, player: Player) -> None:
    midnight = datetime.datetime.combine(NOON.date() + DAY, datetime.time(), datetime.UTC)
    partitions.ensure(database, 1, now=NOON)
    player.now = midnight - datetime.timedelta(microseconds=1)
    before = player.create("line")
    player.now = midnight
    after = player.create("line")
    play(player)
    query = "select day from dwarf.flows where flow_id = %s"
    assert player.one(query, before).day == TODAY
    assert player.one(query, after).day == TODAY + 1


def test_a_partition_whose_detach_was_cut_short_is_attached_again_when_an_open_flow_needs_it(database: str, player: Player) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for parent in ("flows", "history"):
            connection.execute(f"alter table dwarf.{parent} detach partition dwarf.{parent}_d{TODAY}")
    flow_id = player.create("line")
    assert partitions.ensure(database, 0, now=NOON + DAY) == 2, "the other day's tables were there"
    play(player)
    assert player.ended(flow_id) is not None


def test_through_a_pooler(database: str, pgbouncer: Callable[..., Any]) -> None:
    pooled = pgbouncer(default_pool_size=1).dsn(database)
    assert partitions.ensure(pooled, 2, now=NOON) == 6
    assert partitions.drop_before(pooled, NOON.date() + DAY, now=NOON + 2 * DAY) == partitions.Dropped(0, True)
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        assert connection.execute("show lock_timeout").fetchall() == [("0",)], "nothing of it stays in the session"
    assert days(database, "flows") == [TODAY + 1, TODAY + 2]
