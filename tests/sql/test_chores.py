"""A round of background work does what is due, no more than its bounds, and goes on where one was stopped or a chore failed."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dwarf import chores as module
from dwarf.arrays import moment
from dwarf.chores import Chores, Done, Terms
from dwarf.pool import Pool
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, TODAY, broken, play, scene

MINUTE = datetime.timedelta(minutes=1)
HOUR_MS = 3_600_000


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database, days_ahead=0)) as made:
        yield made


@pytest.fixture
def pool(player: Player, database: str) -> Iterator[Pool]:
    made = Pool(database, size=1)
    yield made

    async def leave() -> None:
        made.close()

    player.do(leave())


def round_of(player: Player, pool: Pool, **terms: Any) -> Done:
    return player.do(Chores(pool, player.connection.info.dsn, Terms(**terms)).do(player.session, now=player.micros))


def count(player: Player, table: str) -> int:
    return int(player.one(f"select count(*) as n from dwarf.{table}").n)


def brief(player: Player, number: int) -> list[int]:
    """Create flows that are to be kept for a minute after they complete."""
    flows = [player.create("line") for _ in range(number)]
    player.connection.execute("update dwarf.live set delete_on_completion = true")
    play(player)
    return flows


def test_a_round_with_nothing_to_do(player: Player, pool: Pool) -> None:
    first = round_of(player, pool)
    assert first == Done(partitions_made=14, has_measured=True)
    assert round_of(player, pool) == Done()


@pytest.mark.row("I10")
def test_flows_kept_for_a_minute_go_after_it(player: Player, pool: Pool) -> None:
    flows = brief(player, 3)
    player.now = NOON + MINUTE - datetime.timedelta(seconds=1)
    assert round_of(player, pool).removed == 0
    assert player.ended(flows[0]) is not None
    player.now = NOON + MINUTE
    done = round_of(player, pool)
    assert (done.removed, done.is_behind, done.faults) == (3, False, {})
    assert [count(player, table) for table in ("live", "active", "flows", "history", "doomed")] == [0] * 5


@pytest.mark.row("I6")
def test_flows_that_are_too_old_are_terminated_with_their_trees_and_the_others_not(player: Player, pool: Pool) -> None:
    old = [player.create("call", {"child": "ask"}), player.create("deep", {"xs": [0, 1, 4, 6]}), player.create("line")]
    play(player)
    old = [flow for flow in old if player.ended(flow) is None]
    player.now = NOON + MINUTE
    young = player.create("ask")
    play(player)
    player.now = NOON + datetime.timedelta(hours=1, seconds=30)
    assert round_of(player, pool).expired == 0, "without the setting nothing expires"
    done = round_of(player, pool, flow_expiration_ms=HOUR_MS)
    assert (done.expired, done.unexpired, done.faults) == (len(old), [], {}) == (2, [], {})
    for flow_id in old:
        ended = player.ended(flow_id)
        assert ended is not None
        assert (ended.status, ended.reason) == ("terminated", "expired: open for more than 01:00:00")
    assert player.ended(young) is None
    assert round_of(player, pool, flow_expiration_ms=HOUR_MS).expired == 0
    assert broken(player.connection.info.dsn) == []


TROUBLE = """
create function dwarf.trouble() returns trigger language plpgsql as $$ begin raise 'trouble'; end $$;
create trigger trouble before update on dwarf.live for each row when (old.flow_id = {}) execute function dwarf.trouble()"""


@pytest.mark.row("I6")
def test_a_flow_that_cannot_be_terminated_is_told_and_keeps_no_other_from_it(
    player: Player, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXPIRATIONS_AT_ONCE", 2)
    flows = [player.create("ask") for _ in range(5)]
    player.connection.cursor().execute(TROUBLE.format(flows[1]).encode())
    player.now = NOON + DAY
    done = round_of(player, pool, flow_expiration_ms=HOUR_MS)
    assert (done.expired, done.unexpired, done.faults, done.is_behind) == (4, [flows[1]], {}, False)
    assert round_of(player, pool, flow_expiration_ms=HOUR_MS).unexpired == [flows[1]], "it is tried again"
    player.connection.execute("drop trigger trouble on dwarf.live")
    assert round_of(player, pool, flow_expiration_ms=HOUR_MS).expired == 1


def test_sessions_that_are_gone_are_forgotten_and_those_that_hold_steps_are_not(player: Player, pool: Pool) -> None:
    holds = player.do(player.store.start_session(2, life_ms=1000, now=player.micros))
    gone = player.do(player.store.start_session(3, life_ms=1000, now=player.micros))
    player.create("line")
    player.connection.execute("update dwarf.active set owner = %s, status = 2, claimable = null", (holds,))
    player.now = NOON + 2 * datetime.timedelta(hours=1)
    player.do(player.store.renew_session(player.session, life_ms=30_000, is_dispatcher=True, now=player.micros))
    assert round_of(player, pool).sessions_forgotten == 1
    assert {row.session for row in player.all("select session from dwarf.peers")} == {holds, player.session} != {gone}


def test_old_acts_are_forgotten(player: Player, pool: Pool) -> None:
    for days in (0, 5, 9):
        player.one("select dwarf.audit_v1('resume', 1, 'ada', p_now => %s)", NOON + days * DAY)
    player.now = NOON + 10 * DAY
    assert round_of(player, pool, audit_days=None).acts_forgotten == 0
    assert round_of(player, pool, audit_days=4).acts_forgotten == 2
    assert count(player, "audit") == 1


@pytest.mark.row("I2", "I5")
def test_days_older_than_the_retention_are_dropped_once_a_day(player: Player, pool: Pool) -> None:
    player.create("line")
    kept = player.create("ask")
    play(player)
    dsn = player.connection.info.dsn
    forever = Chores(pool, dsn, Terms(retention_days=None))
    mine = Chores(pool, dsn, Terms(retention_days=3))
    dropped = []
    for day in range(6):
        player.now = NOON + day * DAY
        assert player.do(forever.do(player.session, now=player.micros)).dropped == 0
        dropped.append(player.do(mine.do(player.session, now=player.micros)).dropped)
    assert dropped == [0, 0, 0, 0, 0, 1], "younger than four days it stays"
    assert player.one("select day from dwarf.live where flow_id = %s", kept).day == -1
    assert min(row.day for row in player.all("select day from dwarf.partitions_v1()")) == TODAY + 1
    player.connection.execute("alter table dwarf.flows rename to gone")
    assert "retention" not in player.do(mine.do(player.session, now=player.micros)).faults, "it is done for today"


@pytest.mark.row("K6")
def test_the_backlog_is_measured_by_one_for_all_to_report(player: Player, pool: Pool) -> None:
    player.create("line", key="a")
    player.create("line", key="b")
    player.now = NOON + MINUTE
    player.create("ask")
    player.create("again", {})
    assert round_of(player, pool).has_measured
    measured = player.do(player.store.gauges())
    assert measured == {"backlog": 4, "fairness_keys/3": 3, "steps_oldest_due/3": NOON.timestamp(), "steps_pending/3": 4}
    player.now = NOON + 1.25 * MINUTE
    play(player)
    assert not round_of(player, pool).has_measured, "another one just has"
    assert player.do(player.store.gauges()) == measured
    player.now = NOON + 2 * MINUTE
    for key in "ab":
        while rows := player.claim(50, keys=[key]):
            player.record(player.work(rows))
    assert round_of(player, pool).has_measured
    assert player.do(player.store.gauges())["backlog"] == player.one("select count(*) as n from dwarf.active where claimable is not null").n


def test_a_chore_that_fails_leaves_the_others_to_be_done(player: Player, pool: Pool) -> None:
    brief(player, 1)
    player.one("select dwarf.audit_v1('resume', 1, 'ada', p_now => %s)", NOON)
    for function in (
        "ensure_partitions(int, timestamptz)",
        "forget_sessions_v1(int, timestamptz)",
        "drop_step_v1(int, timestamptz, int, boolean, timestamptz, int[])",
    ):
        player.connection.execute(f"drop function dwarf.{function}".encode())
    player.now = NOON + 40 * DAY
    done = round_of(player, pool, audit_days=1)
    assert {name: type(error) for name, error in done.faults.items()} == dict.fromkeys(
        ("partitions", "sessions", "retention"), psycopg.errors.UndefinedFunction
    )
    assert (done.removed, done.acts_forgotten, done.has_measured) == (1, 1, True)


def test_a_shard_that_is_down_is_told_and_nothing_is_raised(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dwarf.pool.PATIENCE_SECONDS", 0.0)
    nowhere = "host=/nowhere dbname=x"
    pool = Pool(nowhere, size=1)
    monkeypatch.setattr(Pool, "run", lambda self, work: asyncio.wait_for(asyncio.Event().wait(), 0))
    done = player.do(Chores(pool, nowhere, Terms(flow_expiration_ms=1)).do(player.session))
    assert set(done.faults) == {"partitions", "removal", "expiration", "sessions", "audit", "retention", "gauges"}


def test_a_bound_that_is_reached_is_told(player: Player, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"REMOVALS_AT_ONCE": 2, "REMOVALS_MAX": 4, "EXPIRATIONS_AT_ONCE": 2, "EXPIRATIONS_MAX": 4}.items():
        monkeypatch.setattr(module, name, value)
    brief(player, 5)
    for _ in range(5):
        player.create("ask")
    player.now = NOON + DAY
    rounds = [round_of(player, pool, flow_expiration_ms=HOUR_MS) for _ in range(3)]
    assert [(done.removed, done.expired, done.is_behind) for done in rounds] == [(4, 4, True), (1, 1, False), (0, 0, False)]


def test_a_round_that_is_cancelled_anywhere_is_ended_by_the_next(player: Player, pool: Pool, database: str) -> None:
    brief(player, 3)
    old = player.create("deep", {"xs": [1, 2, 4]})
    play(player)
    player.now = NOON + 5 * DAY
    terms = {"flow_expiration_ms": HOUR_MS, "retention_days": 1, "audit_days": 1}

    async def cut(turns: int) -> bool:
        task = asyncio.ensure_future(Chores(pool, database, Terms(**terms)).do(player.session, now=player.micros))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    cuts = [player.do(cut(turns)) for turns in (1, 2, 3, 5, 8, 13, 21)]
    assert any(cuts)
    done = round_of(player, pool, **terms)
    assert done.faults == {}
    round_of(player, pool, **terms)
    ended = player.ended(old)
    assert ended is not None
    assert ended.status == "terminated"
    assert count(player, "doomed") == 0
    assert broken(database) == []


def test_a_moment_is_what_the_database_means(player: Player) -> None:
    assert moment(player.micros or 0) == NOON
