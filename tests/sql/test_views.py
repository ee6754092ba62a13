"""The views show an operator what there is, open and ended, and say when a shard is not well."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dwarf.keys import FlowKey
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, play, scene

RESUME = """select dwarf.resume_v1(%s, '{"a": 1}', %s) as done"""


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    """A player whose clock the views see too."""
    with closing(scene(database)) as made:
        set_clock(made, NOON)
        yield made


def set_clock(player: Player, now: datetime.datetime) -> None:
    player.now = now
    player.connection.execute(
        f"create or replace function dwarf.now() returns timestamptz language sql stable parallel safe return '{now.isoformat()}'::timestamptz"
    )


def health(player: Player) -> dict[str, Any]:
    return {row.question: row for row in player.all("select * from dwarf.v_health")}


def test_flows(player: Player) -> None:
    done, asking = player.create("call"), player.create("call", {"child": "ask"})
    play(player)
    player.create("line")
    rows = {row.flow_id: row for row in player.all("select * from dwarf.v_flows")}
    assert len(rows) == 5
    assert Counter(row.status for row in rows.values()) == {"completed": 2, "interrupted": 2, "running": 1}
    assert (rows[done].task, rows[asking].task) == ("Z", "P")
    assert sum(row.is_child for row in rows.values()) == 2
    assert FlowKey.parse(rows[done].flow_key).name == rows[done].flow
    assert (rows[done].ended_at, rows[asking].ended_at) == (NOON, None)


def test_a_flow_in_a_fan_out_has_no_single_task(player: Player) -> None:
    flow_id = player.create("deep", {"xs": [1, 2]})
    play(player)
    assert player.one("select task from dwarf.v_flows where flow_id = %s", flow_id).task is None


def test_steps(player: Player) -> None:
    flow_id = player.create("deep", {"xs": [0, 1, 5]})
    play(player)
    rows = player.all("select * from dwarf.v_steps where flow_id = %s order by depth, step_id", flow_id)
    assert [(row.task, row.status, row.is_live) for row in rows] == [
        ("S", "completed", False), ("X", "completed", False), ("X", "interrupted", True), ("X", "failed", False), ("J", "joining", True),
    ]  # fmt: skip
    assert (rows[3].error, rows[3].left_by, rows[0].left_by) == ("no", "error", "normal")
    assert player.one(RESUME, flow_id, NOON).done
    play(player)
    rows = player.all("select * from dwarf.v_steps where flow_id = %s", flow_id)
    assert Counter(row.task for row in rows) == {"S": 1, "X": 3}, "a fan-in that never ran is not shown"


def test_backlog_and_tenants(player: Player) -> None:
    for key, count in (("a", 3), ("b", 1)):
        for _ in range(count):
            player.create("line", key=key)
    player.connection.execute("update dwarf.live set tenant = fairness_key")
    set_clock(player, NOON + datetime.timedelta(seconds=5))
    rows = player.all("select * from dwarf.v_backlog order by fairness_key")
    assert [(row.priority, row.fairness_key, row.pending, row.oldest_due_seconds) for row in rows] == [(3, "a", 3, 5), (3, "b", 1, 5)]
    player.claim(1, keys=["a"])
    tenants = player.all("select * from dwarf.v_tenants order by tenant")
    assert [(row.tenant, row.flows_open) for row in tenants] == [("a", 3), ("b", 1)]
    assert sum(row.steps_due for row in tenants) + sum(row.steps_running for row in tenants) == 4


def test_running_and_sessions(player: Player) -> None:
    player.create("line")
    [row] = player.claim()
    running = player.one("select * from dwarf.v_running")
    assert (running.session, running.task, running.workflow, running.is_recoverable) == (player.session, "A", "line", False)
    assert player.one("select state, steps_running from dwarf.v_sessions") == ("alive", 1)
    set_clock(player, NOON + datetime.timedelta(seconds=31))
    assert player.one("select is_recoverable from dwarf.v_running").is_recoverable
    assert player.one("select state, steps_running from dwarf.v_sessions") == ("expired", 1)
    player.connection.execute("delete from dwarf.peers")
    assert player.one("select session, state from dwarf.v_sessions") == (player.session, "missing")
    assert row.flow_id == running.flow_id


def test_a_well_shard_is_well(player: Player) -> None:
    player.one("select dwarf.ensure_partitions(2, %s)", NOON)
    player.one("select dwarf.renew_session_v1(%s, 30000, true, %s)", player.session, NOON)
    player.create("line")
    player.claim()
    assert [row.question for row in player.all("select question from dwarf.v_health where not is_well")] == []


def test_health_names_what_is_wrong(player: Player, database: str) -> None:
    ended = player.create("line")
    play(player)
    player.one("select dwarf.delete_v1(%s, p_now => %s)", ended, NOON)
    player.create("again")
    play(player)  # it sleeps
    player.create("line")
    assert len(player.claim(1)) == 1
    player.create("line")
    with psycopg.connect(database) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 1")
        player.connection.execute(f"alter table dwarf.flows detach partition dwarf.flows_d{(NOON + DAY).date().toordinal() - 730120}")
        set_clock(player, NOON + DAY)
        found = health(player)
        unwell = {question for question, row in found.items() if not row.is_well}
    assert unwell == {
        "seconds the oldest due step has waited", "seconds the oldest sleeper is overdue", "lost sessions that still hold steps",
        "dispatchers alive", "partitions missing for today and tomorrow", "partitions half dropped",
        "seconds the oldest deleted flow waits for its removal",
    }  # fmt: skip
    assert all(row.otherwise for row in found.values() if not row.is_well)
    assert found["seconds the oldest due step has waited"].answer == "86400.0"
    assert float(found["seconds the oldest snapshot has been held"].answer) >= 0


@pytest.mark.row("K6", "K7")
def test_gauges_count_what_is_due_up_to_a_limit_and_tell_the_exact_age_of_the_oldest(player: Player) -> None:
    for minutes, key in ((0, "a"), (1, "b"), (2, "a")):
        player.now = NOON + datetime.timedelta(minutes=minutes)
        for _ in range(4):
            player.create("line", key=key)
    player.create("ask", key="c")
    player.create("again", key="c")
    for _ in range(3):
        rows = player.claim(2, keys=["c"])
        assert player.record(player.work(rows)) == []
    parked = {row.status for row in player.all("select status from dwarf.active where fairness_key = 'c'")}
    assert parked == {1, 4}, "one sleeps, one is interrupted"
    call = "select priority, pending, oldest_due_at, fairness_keys from dwarf.gauges_v1(%s)"
    assert player.all(call, None) == [(3, 12, NOON, 2)]
    assert player.all(call, 5) == [(3, 5, NOON, 2)]
    player.connection.execute("update dwarf.active set priority = 1 where fairness_key = 'b'")
    assert player.all(call, 10_000) == [(1, 4, NOON + datetime.timedelta(minutes=1), 1), (3, 8, NOON, 1)]
    player.now = NOON + datetime.timedelta(hours=1)
    player.one("select dwarf.wake_v1(10, %s)", player.now)
    woken = player.one("select oldest_due_at from dwarf.gauges_v1() where priority = 3")
    assert woken.oldest_due_at == NOON, "a sleeper counts from when it was due, not from its creation"


def test_gauges_are_stored_for_all_to_report(player: Player) -> None:
    store = "select dwarf.store_gauges_v1(%s, %s, %s, %s)"
    player.one(store, 1, ["pending", "oldest"], [5.0, 0.5], NOON)
    player.one(store, 2, ["pending"], [6.0], NOON + DAY)
    rows = player.all("select name, value, measured_at, session from dwarf.gauges order by name")
    assert rows == [("oldest", 0.5, NOON, 1), ("pending", 6, NOON + DAY, 2)]


def test_statuses_of_many_flows_at_once(player: Player) -> None:
    done, failed, asking, running = (player.create(url, state) for url, state in (
        ("line", {}), ("deep", {"xs": [5]}), ("call", {"child": "ask"}), ("again", {}),
    ))  # fmt: skip
    play(player)
    child = player.one("select flow_id from dwarf.live where root_id = %s and root_id <> flow_id", asking).flow_id
    ids = [done, failed, asking, running, child, 12345, done]
    found = dict(player.all("select * from dwarf.statuses_v1(%s)", ids))
    assert found == {done: 6, failed: 7, asking: 4, running: 1, child: 4}
    player.one("select dwarf.move_trees_v1(%s, %s)", [done], (NOON.date() - datetime.date(2000, 1, 1)).days)
    assert dict(player.all("select * from dwarf.statuses_v1(%s)", [done, failed])) == {done: 6, failed: 7}
    assert player.all("select * from dwarf.statuses_v1('{}')") == []


@pytest.mark.row("A40", "A41", "B12", "B13")
def test_the_first_interrupt_is_the_one_an_outcome_shows(player: Player) -> None:
    flow_id = player.create("deep", {"xs": [1, 4, 1]})
    play(player)
    parks = player.all("select flow_id, branch, seq from dwarf.parks where kind = 1 order by parked_at, branch, seq")
    assert len(parks) == 3
    query = "select park_flow, park_branch, park_seq, status, payload from dwarf.outcome_v1(%s)"
    for park in parks:
        shown = player.one(query, flow_id)
        assert tuple(shown[:4]) == (*park, 4)
        assert shown.payload in ({"question": 1}, {"question": 4})
        assert player.one(RESUME, flow_id, NOON).done
    assert player.one(query, flow_id).status == 1
