"""Who did what: every verb leaves a row with the transaction that did it, says no more than it must, and is forgotten in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dwarf.reads import Reads
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, play, scene

VERBS = [
    ("resume", "select dwarf.resume_flow(%s, null, %s)"),
    ("cancel", "select dwarf.cancel_flow(%s, 'secret reason', %s)"),
    ("terminate", "select dwarf.terminate_flow(%s, 'secret reason', %s)"),
]


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        yield made


def acts(player: Player) -> list[tuple[Any, ...]]:
    return [(row.verb, row.actor, row.flow_id, row.at, row.detail) for row in player.all("select * from dwarf.audit order by audit_id")]


def key(player: Player, flow_id: int) -> str:
    query = "select dwarf.flow_key(1, flow_id, token) as key from (select flow_id, token from dwarf.live union all select flow_id, token from dwarf.flows) f"
    return str(player.one(f"{query} where flow_id = %s", flow_id).key)


def asking(player: Player) -> int:
    flow_id = player.create("guarded", {"secret": "word"})
    play(player)
    return flow_id


@pytest.mark.parametrize(("verb", "call"), VERBS)
def test_a_verb_in_sql_is_noted_for_the_user_of_the_session(player: Player, verb: str, call: str) -> None:
    flow_id = asking(player)
    player.one(call, key(player, flow_id), NOON)
    [(who,)] = player.connection.execute("select session_user::text").fetchall()
    assert acts(player) == [(verb, who, flow_id, NOON, None)]
    assert "0" * 16 not in str(player.all("select a::text from dwarf.audit a")), "no token"


@pytest.mark.parametrize(("verb", "call"), VERBS)
def test_what_is_refused_or_rolled_back_is_not_noted(player: Player, verb: str, call: str) -> None:
    flow_id = asking(player)
    place = key(player, flow_id)
    with player.connection.transaction():
        player.one(call, place, NOON)
        raise psycopg.Rollback
    assert acts(player) == []
    player.one("select dwarf.terminate_flow(%s, '', %s)", place, NOON)
    with pytest.raises(psycopg.Error, match="has ended"):
        player.one(call, place, NOON)
    assert [act[0] for act in acts(player)] == ["terminate"]


@pytest.mark.parametrize("actor", [None, "ada", "", "x" * 600])
def test_a_verb_through_an_engine_is_noted_for_whom_it_names(player: Player, actor: str | None) -> None:
    flows = [asking(player) for _ in range(4)]
    reads = Reads(player.link)
    assert player.do(reads.resume_flow(flows[0], b"{}", now=player.micros, actor=actor))
    assert player.do(reads.cancel_flow(flows[1], "", now=player.micros, actor=actor))
    assert player.do(reads.terminate_flow(flows[2], "", now=player.micros, actor=actor))
    assert player.do(reads.delete_flow(flows[3], "deleted", now=player.micros, actor=actor)) == "terminated"
    assert not player.do(reads.terminate_flow(flows[2], "", now=player.micros, actor=actor)), "twice is once"
    [(user,)] = player.connection.execute("select session_user::text").fetchall()
    who = user if actor is None else actor[:512]
    verbs = zip(("resume", "cancel", "terminate", "delete"), flows, strict=True)
    assert acts(player) == ([(verb, who, flow_id, NOON, None) for verb, flow_id in verbs] if who else [])


def test_what_dwarf_does_by_itself_is_not_noted(player: Player) -> None:
    flow_id = asking(player)
    assert player.one("select dwarf.expire_v1(%s, 1000, %s) as done", flow_id, NOON + DAY).done
    assert acts(player) == []


def test_a_purge_is_noted_flow_by_flow_and_once(player: Player) -> None:
    flows = [player.create("line") for _ in range(3)]
    play(player)
    call = "select dwarf.delete_closed_v1(%s, %s, 'ada') as n"
    assert player.one(call, [*flows, 7], NOON).n == 3
    assert player.one(call, flows, NOON).n == 0
    assert acts(player) == [("delete", "ada", flow_id, NOON, None) for flow_id in flows]


def test_acts_on_the_shard_are_noted_with_what_came_of_them(player: Player) -> None:
    player.create("line")
    play(player)
    player.create("line")
    player.claim()
    assert len(player.all("select from dwarf.recover_steps(%s, %s)", player.session, NOON)) == 1
    assert player.one("select dwarf.drop_partitions(%s, %s) as n", NOON.date() + DAY, NOON + 2 * DAY).n == 1
    assert [(act[0], act[2], act[4]) for act in acts(player)] == [
        ("recover", None, {"session": player.session, "steps": 1}),
        ("drop", None, {"before": str(NOON.date() + DAY), "flows": 1}),
    ]


def test_acts_outlive_the_flow_and_are_forgotten_in_time(player: Player) -> None:
    flow_id = asking(player)
    player.one("select dwarf.delete_v1(%s, p_now => %s, p_actor => 'ada')", flow_id, NOON)
    assert player.one("select dwarf.reap_v1(10, %s) as n", NOON + DAY).n == 1
    assert [act[:3] for act in acts(player)] == [("delete", "ada", flow_id)]
    for number in range(5):
        player.one("select dwarf.audit_v1('resume', %s, 'ada', p_now => %s)", number, NOON + number * DAY)
    day = 86_400_000
    forget = player.store.forget_audit
    assert player.do(forget(10 * day, 100, now=player.micros)) == 0
    player.now = NOON + 6 * DAY
    assert player.do(forget(4 * day, 2, now=player.micros)) == 2
    assert player.do(forget(4 * day, 2, now=player.micros)) == 1
    assert player.do(forget(4 * day, 2, now=player.micros)) == 0
    assert [act[3] for act in acts(player)] == [NOON + 2 * DAY, NOON + 3 * DAY, NOON + 4 * DAY]


def test_documents_are_compressed_by_lz4_wherever_the_server_can(database: str) -> None:
    query = """
        select c.relname, a.attname, a.attcompression from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'dwarf'::regnamespace and c.relkind in ('r', 'p') and a.atttypid = 'json'::regtype"""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(2, %s)", (NOON,))
        [(can,)] = connection.execute("select 'lz4' = any (enumvals) from pg_settings where name = 'default_toast_compression'").fetchall()
        found = connection.execute(query).fetchall()
    assert len({name for name, _, _ in found if name.startswith(("flows", "history"))}) == 2 * (1 + 1 + 3), "parents, kept, three days"
    assert {how for _, _, how in found} == ({"l"} if can else {""})
