"""Deletes hide at once and remove soon, whole trees or nothing; expiration ends what is too old; outcomes are told throughout."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, TODAY, beside, broken, play, scene

Until = Callable[[Callable[[], object], str], None]
DELETE = "select dwarf.delete_v1(%s, p_now => %s) as state"
RESUME = """select dwarf.resume_v1(%s, '{"a": 1}', %s) as done"""
TABLES = ("live", "active", "parks", "flows", "history", "idempotency", "doomed")


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        yield made


def delete(player: Player, flow_id: int) -> str:
    return str(player.one(DELETE, flow_id, player.now).state)


def reap(player: Player, limit: int = 100) -> int:
    return int(player.one("select dwarf.reap_v1(%s, %s) as n", limit, player.now).n)


def counts(player: Player) -> dict[str, int]:
    return {table: player.one(f"select count(*) as n from dwarf.{table}").n for table in TABLES}


def listed(player: Player) -> set[int]:
    return {row.flow_id for row in player.all("select flow_id from dwarf.v_flows")}


# ---- delete ----


DAMAGE = """
create function dwarf.trouble() returns trigger language plpgsql as $$ begin raise exception using errcode = '{code}', message = 'trouble'; end $$;
create trigger trouble before delete on dwarf.history_d{day} for each row when (old.flow_id = {flow}) execute function dwarf.trouble()"""


@pytest.mark.row("I21")
def test_a_tree_that_cannot_be_removed_is_put_off_whole_and_keeps_no_other_from_it(player: Player) -> None:
    flows = [player.create("call") for _ in range(4)]
    play(player)
    for flow_id in flows:
        delete(player, flow_id)
    before = counts(player)
    player.connection.execute(DAMAGE.format(code="P0001", day=TODAY, flow=flows[1]).encode())
    assert reap(player) == 3
    left = {row.flow_id for row in player.all("select flow_id from dwarf.flows where root_id = flow_id")}
    assert left == {flows[1]}
    assert counts(player) == {name: number // 4 for name, number in before.items()}, "nothing of it is gone"
    assert reap(player) == 0
    player.connection.execute(f"drop trigger trouble on dwarf.history_d{TODAY}".encode())
    assert reap(player) == 0, "it is put off"
    player.now = NOON + datetime.timedelta(minutes=10)
    assert reap(player) == 1
    assert set(counts(player).values()) == {0}


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_a_removal_that_met_another_session_is_tried_again_whole(player: Player, code: str) -> None:
    flows = [player.create("line") for _ in range(2)]
    play(player)
    for flow_id in flows:
        delete(player, flow_id)
    before = counts(player)
    player.connection.execute(DAMAGE.format(code=code, day=TODAY, flow=flows[1]).encode())
    with pytest.raises(psycopg.Error, match="trouble") as caught:
        reap(player)
    assert caught.value.sqlstate == code
    assert counts(player) == before


@pytest.mark.row("I12", "I23")
def test_a_closed_tree_is_hidden_at_once_and_removed_by_the_reaper(player: Player) -> None:
    flow_id, other = player.create("call"), player.create("line")
    play(player)
    assert len(listed(player)) == 3
    assert delete(player, flow_id) == "deleted"
    assert listed(player) == {other}
    assert player.one("select status from dwarf.statuses_v1(%s)", [flow_id]).status == 6, "its outcome is told until it is gone"
    assert delete(player, flow_id) == "deleted", "again, until it is gone"
    assert reap(player) == 1
    assert {row.flow_id for table in ("flows", "history") for row in player.all(f"select flow_id from dwarf.{table}")} == {other}
    assert counts(player)["doomed"] == 0
    assert delete(player, flow_id) == "missing"
    assert player.all("select from dwarf.statuses_v1(%s)", [flow_id]) == []
    assert broken(player.connection.info.dsn) == []


@pytest.mark.row("I12")
def test_children_that_a_retried_caller_had_before_go_too(player: Player) -> None:
    flow_id = player.create("call")
    play(player)
    # Its step's history names only the last child: an earlier one is found by its root alone.
    player.one(
        """insert into dwarf.flows (flow_id, day, root_id, status, priority, graph_id, budget_ms, weight, created_at, ended_at, thread_id
        , token, workflow, fairness_key, caller_flow)
        select flow_id + 1000, day, root_id, 7, priority, graph_id, budget_ms, weight, created_at, ended_at, thread_id, token, workflow
        , fairness_key, caller_flow from dwarf.flows where root_id = %s and root_id <> flow_id returning flow_id""",
        flow_id,
    )
    delete(player, flow_id)
    assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


@pytest.mark.row("I13")
@pytest.mark.parametrize("url", ["line", "again", "call", "fan"])
def test_a_running_flow_is_not_deleted(player: Player, url: str) -> None:
    flow_id = player.create(url, {"xs": [1]})
    before = counts(player)
    assert delete(player, flow_id) == "running"
    rows = player.claim(50)
    assert delete(player, flow_id) == "running"
    assert player.record(player.work(rows)) == []
    assert delete(player, flow_id) == "running"
    assert counts(player)["doomed"] == before["doomed"] == 0
    player.run(50)
    assert player.ended(flow_id) is not None


@pytest.mark.row("I13", "C16", "B9")
@pytest.mark.parametrize(("url", "state"), [("ask", {}), ("call", {"child": "ask"}), ("deep", {"xs": [0, 1, 2, 4, 6]})])
def test_an_interrupted_flow_is_terminated_and_removed_and_cannot_be_resumed(player: Player, url: str, state: dict[str, object]) -> None:
    flow_id = player.create(url, state)
    play(player)
    assert delete(player, flow_id) == "terminated"
    assert player.one("select status, reason from dwarf.outcome_v1(%s)", flow_id) == (9, "deleted")
    assert not player.one(RESUME, flow_id, NOON).done
    assert delete(player, flow_id) == "deleted", "counted once"
    assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


@pytest.mark.row("I13")
def test_a_child_and_an_unknown_flow_are_refused(player: Player) -> None:
    root = player.create("call", {"child": "ask"})
    play(player)
    child = player.one("select flow_id from dwarf.live where root_id = %s and root_id <> flow_id", root).flow_id
    assert delete(player, child) == "child"
    assert player.one(RESUME, root, NOON).done
    play(player)
    assert delete(player, child) == "child"
    assert delete(player, root + 999) == "missing"
    assert counts(player)["doomed"] == 0


@pytest.mark.row("C16")
@pytest.mark.parametrize("delete_first", [True, False])
def test_a_delete_and_a_resume_at_once(player: Player, database: str, until: Until, delete_first: bool) -> None:
    flow_id = player.create("call", {"child": "ask"})
    play(player)
    calls = [(DELETE, (flow_id, NOON)), (RESUME, (flow_id, NOON))]
    first, second = calls if delete_first else calls[::-1]
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        answers = [one.execute(*first).fetchall()[0][0]]
        with beside(database, lambda: two.execute(*second).fetchall()[0][0], until, two.info.backend_pid) as answer:
            one.commit()
        answers += answer
    assert answers == (["terminated", False] if delete_first else [True, "running"])
    player.run(50)
    assert broken(database) == []
    ended = player.ended(flow_id)
    assert ended is not None
    assert ended.status == ("terminated" if delete_first else "completed")


@pytest.mark.row("C16")
@pytest.mark.parametrize("delete_first", [True, False])
def test_a_delete_and_a_terminate_at_once(player: Player, database: str, until: Until, delete_first: bool) -> None:
    flow_id = player.create("deep", {"xs": [1, 4, 0]})
    play(player)
    calls = [(DELETE, (flow_id, NOON)), ("select dwarf.terminate_v1(%s, 'enough', %s)", (flow_id, NOON))]
    first, second = calls if delete_first else calls[::-1]
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        answers = [one.execute(*first).fetchall()[0][0]]
        with beside(database, lambda: two.execute(*second).fetchall()[0][0], until, two.info.backend_pid) as answer:
            one.commit()
        answers += answer
    assert answers == (["terminated", False] if delete_first else [True, "deleted"])
    assert broken(database) == []


@pytest.mark.row("I18")
def test_a_purge_counts_the_closed_roots_that_were_not_deleted_before(player: Player) -> None:
    roots = [player.create("call") for _ in range(3)] + [player.create("line")]
    play(player)
    child = player.one("select flow_id from dwarf.flows where root_id = %s and root_id <> flow_id", roots[0]).flow_id
    open_flow = player.create("ask")
    play(player)
    delete(player, roots[3])
    call = "select dwarf.delete_closed_v1(%s, %s) as n"
    assert player.one(call, [*roots, child, open_flow, 12345], NOON).n == 3
    assert player.one(call, [*roots, child, open_flow], NOON).n == 0
    assert reap(player, 2) == 2
    assert reap(player) == 2
    assert listed(player) == {open_flow}


@pytest.mark.row("I10")
def test_an_outcome_that_is_kept_shortly_is_removed_after_a_minute(player: Player) -> None:
    flow_id = player.create("line")
    player.one("update dwarf.live set delete_on_completion = true returning 1")
    play(player)
    assert listed(player) == set()
    assert player.one("select status from dwarf.outcome_v1(%s)", flow_id).status == 6
    assert reap(player) == 0
    player.now = NOON + datetime.timedelta(seconds=59)
    assert reap(player) == 0
    player.now = NOON + datetime.timedelta(seconds=60)
    assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


@pytest.mark.row("I11")
@pytest.mark.parametrize("verb", ["terminate", "cancel"])
def test_a_flow_that_did_not_complete_is_kept(player: Player, verb: str) -> None:
    flow_id = player.create("ask")
    player.one("update dwarf.live set delete_on_completion = true returning 1")
    play(player)
    assert player.one(f"select dwarf.{verb}_v1(%s, 'enough', %s) as done", flow_id, NOON).done
    play(player)
    player.now = NOON + DAY
    assert reap(player) == 0
    assert listed(player) == {flow_id}


@pytest.mark.row("I10")
def test_deleting_an_outcome_that_is_kept_shortly_hurries_its_removal(player: Player) -> None:
    flow_id = player.create("line")
    player.one("update dwarf.live set delete_on_completion = true returning 1")
    play(player)
    assert delete(player, flow_id) == "deleted"
    assert reap(player) == 1


@pytest.mark.row("I21", "M19")
def test_a_reaper_that_is_cut_short_has_removed_nothing(player: Player, database: str) -> None:
    player.create("call")
    play(player)
    flow_id = player.create("call")
    play(player)
    delete(player, flow_id)
    before = counts(player)
    with psycopg.connect(database) as cut:
        cut.execute("select dwarf.reap_v1(10, %s)", (NOON,))
        cut.rollback()
    assert counts(player) == before
    assert reap(player) == 1
    assert counts(player)["flows"] == 2


def test_two_reapers_share_the_work(player: Player, database: str) -> None:
    for _ in range(4):
        player.create("line")
    play(player)
    for flow_id in listed(player):
        delete(player, flow_id)
    with psycopg.connect(database) as other:
        assert other.execute("select dwarf.reap_v1(3, %s)", (NOON,)).fetchall() == [(3,)]
        assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


@pytest.mark.row("I22")
def test_what_a_damaged_tree_still_has_open_goes_too(player: Player) -> None:
    root = player.create("call", {"child": "ask"})
    play(player)
    with player.connection.transaction():
        player.one("delete from dwarf.active where flow_id = %s returning 1", root)
        player.one("delete from dwarf.parks where flow_id = %s returning 1", root)
        player.one("delete from dwarf.live where flow_id = %s returning 1", root)
        player.one(
            """insert into dwarf.flows (flow_id, day, root_id, status, priority, graph_id, budget_ms, weight, created_at, ended_at, thread_id
            , token, workflow, fairness_key) values (%s, %s, %s, 7, 3, 1, 1, 1, %s, %s, %s, '', '', '') returning 1""",
            root, TODAY, root, NOON, NOON, root,
        )  # fmt: skip
    assert broken(player.connection.info.dsn) != []
    assert delete(player, root) == "deleted"
    assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


def test_a_deleted_flow_that_was_moved_to_kept_is_removed(player: Player) -> None:
    flow_id = player.create("call")
    play(player)
    delete(player, flow_id)
    assert player.one("select dwarf.move_trees_v1(%s, %s) as n", [flow_id], TODAY).n == 2
    assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


@pytest.mark.parametrize("move_first", [True, False])
def test_a_reaper_and_a_move_at_once(player: Player, database: str, until: Until, move_first: bool) -> None:
    flow_id = player.create("call")
    play(player)
    delete(player, flow_id)
    move = ("select dwarf.move_trees_v1(%s, %s)", ([flow_id], TODAY))
    reaping = ("select dwarf.reap_v1(10, %s)", (NOON,))
    first, second = (move, reaping) if move_first else (reaping, move)
    moved_away = None
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        one.execute(*first)
        try:
            with beside(database, lambda: two.execute(*second).fetchall(), until, two.info.backend_pid):
                one.commit()
        except psycopg.errors.SerializationFailure as error:
            moved_away = error
    assert (moved_away is not None) == move_first, "a reaper whose rows were moved away tries again"
    if move_first:
        assert reap(player) == 1
    assert counts(player) == dict.fromkeys(TABLES, 0)


# ---- expiration ----


def expired(player: Player, age: datetime.timedelta, limit: int = 100, after: int = 0) -> list[int]:
    query = "select flow_id from dwarf.expired_v1(%s, %s, %s, %s)"
    return [row.flow_id for row in player.all(query, age // datetime.timedelta(milliseconds=1), limit, after, player.now)]


@pytest.mark.row("I6")
def test_open_roots_older_than_an_age_are_found_oldest_first(player: Player) -> None:
    made = []
    for minutes in (0, 10, 59, 61, 130):
        player.now = NOON + datetime.timedelta(minutes=minutes)
        made.append(player.create("call", {"child": "ask"}))
        player.create("line")
        play(player)
    player.now = NOON + datetime.timedelta(minutes=140)
    assert expired(player, datetime.timedelta(minutes=139, seconds=59)) == made[:1]
    assert expired(player, datetime.timedelta(minutes=140)) == [], "older, not as old"
    assert expired(player, datetime.timedelta(minutes=70)) == made[:4]
    assert expired(player, datetime.timedelta(minutes=70), limit=2) == made[:2]
    assert expired(player, datetime.timedelta(minutes=70), limit=2, after=made[1]) == made[2:4]
    assert expired(player, datetime.timedelta()) == made


@pytest.mark.row("I6", "I7", "B30")
def test_an_expired_tree_is_terminated_without_running_anything(player: Player) -> None:
    flow_id, sleeper = player.create("deep", {"xs": [1, 4, 0, 6]}), player.create("again")
    play(player)
    runs = player.runs
    call = "select dwarf.expire_v1(%s, %s, %s) as done"
    player.now = NOON + datetime.timedelta(hours=1)
    assert not player.one(call, flow_id, 3_600_001, player.now).done
    assert player.one(call, flow_id, 3_599_999, player.now).done
    assert not player.one(call, flow_id, 3_599_999, player.now).done, "one status wins"
    assert player.one(call, sleeper, 60_000, player.now).done
    assert not player.one(call, 12345, 60_000, player.now).done
    assert player.runs == runs
    for each in (flow_id, sleeper):
        row = player.one("select status, reason from dwarf.outcome_v1(%s)", each)
        assert row.status == 9
        assert row.reason.startswith("expired: open for more than ")
    assert broken(player.connection.info.dsn) == []


# ---- sessions ----


def test_sessions_that_ended_long_ago_and_hold_nothing_are_forgotten(player: Player) -> None:
    holding = player.session
    player.create("line")
    assert len(player.claim(1)) == 1
    idle, fresh = (player.one("select dwarf.start_session_v1(1, 30000, %s) as n", NOON + late * DAY).n for late in (0, 1))
    player.one("select dwarf.open_lane_v1(%s, 0::smallint) as n", idle)
    player.one("insert into dwarf.signals (session, flow_id, branch, seq, lease, kind) values (%s, 1, 0, 1, 1, 1) returning 1", idle)
    call = "select dwarf.forget_sessions_v1(300000, %s) as n"
    assert player.one(call, NOON + DAY).n == 1
    assert {row.session for row in player.all("select session from dwarf.peers")} == {holding, fresh}
    assert player.all("select from dwarf.signals") == []
    assert idle not in {row.session for row in player.all("select session from dwarf.lanes")}
    assert player.one(call, NOON + DAY).n == 0
