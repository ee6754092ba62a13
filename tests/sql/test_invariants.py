"""invariants.sql says nothing of sound data, at any moment, and names whatever was broken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from dwarf.record import Kind
from tests.sql.player import Player
from tests.sql.plays import NOON, TODAY, broken, invariants, is_kind, play, scene, stop_before
from tests.sql.test_storm import Storm

RESUME = """select dwarf.resume_v1(%s, '{"a": 1}', %s) as done"""


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        yield made


def populate(player: Player) -> None:
    """Leave flows in every state there is: due, running, joining, expanding, asleep, interrupted, parked, resumed, ended."""
    ended = player.create("call")
    player.create("fan", {"xs": [1, 2]})
    play(player)
    assert player.ended(ended) is not None
    player.create("deep", {"xs": [0, 1, 2, 3, 4, 5, 6]})
    player.create("call", {"child": "ask"})
    resumed = player.create("ask")
    player.create("again")
    play(player)
    assert player.one(RESUME, resumed, NOON).done
    assert len(player.claim(1)) >= 1
    player.create("fan", {"xs": list(range(1500))})
    [slice_one] = stop_before(player, is_kind(Kind.FAN_OUT))
    assert player.record([slice_one]) == []
    player.create("line")
    player.one("select dwarf.create_keyed_v1('k', '0123456789abcdef', 'line', 1, 'A', '{}', 3::smallint, 1000, p_now => %s)", NOON)


@pytest.mark.row("M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8")
def test_nothing_is_said_of_sound_data_in_every_state(player: Player) -> None:
    populate(player)
    states = {(row.status, row.todo) for row in player.all("select status, todo from dwarf.active")}
    assert {(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (1, 4)} <= states, "every state is there"
    assert broken(player.connection.info.dsn) == []


@pytest.mark.parametrize("mix", ["calm", "verbs", "sweep"])
@pytest.mark.row("M20", "M35")
def test_nothing_is_said_while_it_storms(database: str, mix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
    storm, over, found, looks = Storm(database, mix, 1), threading.Event(), list[Any](), [0]

    def look() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not over.is_set():
                found.extend(connection.execute(invariants().encode()).fetchall())
                looks[0] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        storm.blow()
    finally:
        over.set()
        thread.join()
    storm.check()
    assert found == []
    assert looks[0] > 0


DAMAGE = {
    "an ended flow has a live branch": "delete from dwarf.live where flow_id = (select flow_id from dwarf.active where status = 1 limit 1)",
    "an ended flow has a park": """insert into dwarf.parks (flow_id, branch, seq, kind, root_id, parked_at) values (1, 0, 1, 1, 1, now())""",
    "an open flow has no live branch": """delete from dwarf.active where flow_id =
        (select flow_id from dwarf.live where workflow = 'line' and root_id = flow_id limit 1)""",
    "a flow is open and ended at once": f"""insert into dwarf.flows (flow_id, day, root_id, status, priority, graph_id, budget_ms, weight
        , created_at, ended_at, thread_id, token, workflow, fairness_key)
        select flow_id, {TODAY}, root_id, 6, priority, graph_id, budget_ms, weight, created_at, created_at, thread_id, token, workflow
        , fairness_key from dwarf.live where root_id = flow_id limit 1""",
    "an open flow is being closed for ever": "update dwarf.live set status = 2 where flow_id = (select min(flow_id) from dwarf.live)",
    "a day does not fit": "update dwarf.active set day = day + 1 where branch = 0 and status = 2",
    "a row has not the priority and half of its tree": "update dwarf.active set half = 1 - half where branch = 0 and status = 4",
    "the root of an open flow is not an open root": "update dwarf.live set root_id = 17 where root_id <> flow_id",
    "the root of an ended flow does not exist": "delete from dwarf.flows where root_id = flow_id",
    "an open child has no caller that waits for it": "update dwarf.live set caller_seq = caller_seq + 1 where caller_seq is not null",
    "the counts of a cohort are out of order": "update dwarf.active set failed = arrived + 1 where size is not null",
    "arrivals and live branches are not the branches made": "update dwarf.active set arrived = arrived + 1 where todo = 4",
    "a branch points at no joining row": "update dwarf.active set ordinal = 5000 where ordinal = 0",
    "a joining row has not the status its counts ask for": "update dwarf.active set status = 3, claimable = null where size is null and status = 1",
    "a row has an owner and does not run, or runs without": "update dwarf.active set owner = null where status = 2",
    "a row that should wait for a claim cannot be found, or one that should not can": """update dwarf.active set claimable = null
        where status = 1 and claimable is not null""",
    "parked, without its park or against it": "update dwarf.active set status = 1, claimable = now() where status = 4",
    "a park belongs to no live branch, or to another tree": "update dwarf.parks set root_id = 17",
    "the history of a live branch has gaps, or goes beyond it": "delete from dwarf.history where branch = 0 and seq = 1",
    "a row stands on a state that is not there": "update dwarf.history set state = null",
    "the history of an ended flow has gaps, or none": "delete from dwarf.history h using dwarf.flows f where h.flow_id = f.flow_id",
    "an ended flow has a branch without a beginning": "update dwarf.history set ordinal = ordinal + 1 where ordinal is not null",
    "an open flow is marked as deleted": "insert into dwarf.doomed select flow_id, day, now(), now() from dwarf.live limit 1",
    "an idempotency key leads nowhere": "update dwarf.idempotency set flow_id = 17",
}


def test_every_fault_is_named(player: Player, database: str) -> None:
    populate(player)
    with psycopg.connect(database) as connection:
        for rule, damage in DAMAGE.items():
            connection.execute(damage.encode())
            found = {row[0] for row in connection.execute(invariants().encode()).fetchall()}
            assert rule in found, f"{damage} is found as {found}"
            connection.rollback()
    assert broken(database) == []


def test_every_rule_has_its_damage() -> None:
    text = (files("dwarf.sql") / "functions" / "faults_v1.sql").read_text("utf-8")
    assert [rule for rule in DAMAGE if f"'{rule}'" not in text] == []
    assert text.count("union all") + 1 == len(DAMAGE)
