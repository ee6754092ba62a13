"""The functions that other languages and operators call: keys as text, options as an object, errors that say what is wrong."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dwarf.durations import parse_text
from dwarf.errors import InvalidArgument
from dwarf.keys import FlowKey
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, broken, play, scene


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        for url, graph_id in made.graph_ids.items():
            made.connection.execute("insert into dwarf.workflows values (%s, %s, %s)", (url, graph_id, NOON))
        yield made


def create(player: Player, workflow: str | None = "line", state: str | None = None, options: Any = None) -> str:
    text = options if isinstance(options, str) or options is None else json.dumps(options)
    return str(player.one("select dwarf.create_flow(%s, %s::json, %s::json, %s) as key", workflow, state, text, player.now).key)


def live(player: Player, key: str) -> Any:
    return player.one("select * from dwarf.live where flow_id = %s", FlowKey.parse(key).flow_id)


def refused(player: Player, sqlstate: str, query: str, *parameters: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        player.one(query, *parameters)
    assert caught.value.sqlstate == sqlstate, caught.value
    message = caught.value.diag.message_primary
    assert message
    return message


def outcome(player: Player, key: str) -> dict[str, Any]:
    text = player.one("select dwarf.flow_outcome(%s)::text as it", key).it
    return dict(json.loads(text))


# ---- create ----


@pytest.mark.row("A1", "A2", "A19")
def test_a_flow_created_in_sql_runs_and_its_outcome_can_be_read(player: Player) -> None:
    key = create(player, "ask", '{"sku": "A1", "big": 123456789012345678901234567890, "text": "a\\u0000b"}')
    assert FlowKey.parse(key).shard == 1
    assert outcome(player, key) == {
        "status": "running", "state": None, "error": "", "interruptPayload": {}, "reason": "", "stopped": False,
    }  # fmt: skip
    play(player)
    asked = outcome(player, key)
    assert (asked["status"], asked["interruptPayload"], asked["stopped"]) == ("interrupted", {"question": 0}, True)
    player.one("select dwarf.resume_flow(%s, %s::json, %s)", key, '{"a": "yes"}', NOON)
    play(player)
    done = outcome(player, key)
    assert done["status"] == "completed"
    assert done["state"] == {"sku": "A1", "big": 123456789012345678901234567890, "text": "a\0b", "asked": True, "answer": "yes"}
    assert broken(player.connection.info.dsn) == []


@pytest.mark.row("A2", "A7")
def test_without_options_the_settings_of_the_shard_hold(player: Player) -> None:
    row = live(player, create(player))
    assert (row.priority, row.fairness_key, row.weight, row.budget_ms, row.baggage, row.delete_on_completion) == (
        3,
        "",
        1,
        120_000,
        None,
        False,
    )
    assert (row.tenant, row.thread_id, row.input, row.workflow) == (None, row.flow_id, {}, "line")
    player.one("select dwarf.put_settings_v1(%s, %s)", ["shard_index", "max_priority", "time_budget_ms"], [7, 9, 5000])
    key = create(player)
    row = live(player, key)
    assert (FlowKey.parse(key).shard, row.priority, row.budget_ms) == (7, 5, 5000)


@pytest.mark.parametrize("spelling", [lambda name: name, lambda name: re.sub("([A-Z])", lambda c: "_" + c[0].lower(), name)])
def test_every_option_is_stored(player: Player, spelling: Callable[[str], str]) -> None:
    thread = create(player)
    options = {
        "priority": 1, "fairnessKey": "a.B-c_1", "fairnessWeight": 0.01, "timeBudget": "1m30s", "baggage": {"sub": "u1"}, "threadKey": thread,
        "deleteOnCompletion": True, "idempotencyKey": "once", "startAt": "2026-03-11T12:00:00Z",
    }  # fmt: skip
    key = create(player, options={spelling(name): value for name, value in options.items()})
    row = live(player, key)
    assert (row.priority, row.fairness_key, row.weight, row.budget_ms) == (1, "a.B-c_1", 0.01, 90_000)
    assert (row.baggage, row.thread_id, row.delete_on_completion) == ({"sub": "u1"}, FlowKey.parse(thread).flow_id, True)
    assert player.one("select wake_at from dwarf.active where flow_id = %s", row.flow_id).wake_at == NOON + DAY
    assert create(player, options={"idempotencyKey": "once"}) == key


@pytest.mark.row("A5", "A6", "A7", "A8", "A9", "A17")
def test_values_at_the_edge_are_accepted(player: Player) -> None:
    for option, value, stored in EDGES:
        row = live(player, create(player, options={option: value}))
        column = {"timeBudget": "budget_ms", "fairnessWeight": "weight", "fairnessKey": "fairness_key"}.get(option, option)
        if hasattr(row, column):
            assert getattr(row, column) == stored, (option, value)
    assert player.one("select count(*) as n from dwarf.active where wake_at is not null").n == 0


EDGES: list[tuple[str, Any, Any]] = [
    ("priority", 0, 3), ("priority", 5, 5), ("priority", None, 3), ("priority", 2.0, 2),
    ("timeBudget", 0, 120_000), ("timeBudget", 0.001, 1), ("timeBudget", 2147483.647, 2**31 - 1), ("timeBudget", "250ms", 250),
    ("timeBudget", 1.5, 1500), ("timeBudget", "90", 90_000), ("timeBudget", "0s", 120_000),
    ("fairnessWeight", 0, 1), ("fairnessWeight", 1048576, 1048576), ("fairnessWeight", 1e-9, 1e-9), ("fairnessWeight", 1e-320, 1e-300),
    ("fairnessKey", "", ""), ("fairnessKey", "x" * 256, "x" * 256), ("threadKey", "", None), ("idempotencyKey", "", None),
    ("baggage", {}, {}), ("startAt", "2026-03-10T13:00:00+01:00", None),
]  # fmt: skip


@pytest.mark.row("A5", "A6", "A7", "A8", "A9", "A15", "A17")
def test_values_that_break_a_rule_are_refused_by_name(player: Player) -> None:
    for options, message in REFUSED_OPTIONS:
        assert message in refused(player, "DW400", "select dwarf.create_flow('line', '{}', %s::json)", options), options
    assert player.all("select from dwarf.live") == []


REFUSED_OPTIONS = [
    ('{"priority": 6}', r"options.priority is 6; it must be a whole number from 1 to 5, or 0 for the middle"),
    ('{"priority": -1}', "options.priority is -1"), ('{"priority": 1.5}', "options.priority is 1.5"), ('{"priority": "1"}', "it must be a number"),
    ('{"timeBudget": 0.0009}', "from 0.001 to 2147483.647"), ('{"timeBudget": 2147483.648}', "options.timeBudget is 2147483.648"),
    ('{"timeBudget": -1}', "options.timeBudget"), ('{"timeBudget": "1x"}', 'is "1x"'), ('{"timeBudget": []}', "options.timeBudget"),
    ('{"fairnessWeight": -0.1}', "options.fairnessWeight"), ('{"fairnessWeight": 1048577}', "at most 1048576"),
    ('{"fairnessWeight": true}', "it must be a number"),
    ('{"fairnessKey": "a b"}', "options.fairnessKey"), ('{"fairnessKey": "a/b"}', "options.fairnessKey"),
    ('{"fairnessKey": "\\u00e9"}', "options.fairnessKey"), (json.dumps({"fairnessKey": "x" * 257}), "at most 256"),
    ('{"idempotencyKey": " "}', "more than blanks"), (json.dumps({"idempotencyKey": "x" * 257}), "at most 256"),
    ('{"idempotencyKey": "a\\nb"}', "control"), ('{"startAt": "tomorrow"}', "a time such as"), ('{"startAt": "2026-03-11T12:00:00"}', "a time such as"),
    ('{"startAt": "2026-13-11T12:00:00Z"}', "a time such as"), ('{"deleteOnCompletion": 1}', "true or false"),
    ('{"baggage": [1]}', "it must be an object"), ('{"baggage": {"a": "\\ud800"}}', "holds what cannot be stored"),
    ('{"threadKey": "1-2-3"}', "malformed"), ('{"threadKey": 1}', "it must be text"), ('{"prioriti": 1}', "options has no member 'prioriti'"),
    ("[]", "options must be a JSON object, not an array"), ('"x"', "options must be a JSON object, not a string"),
]  # fmt: skip


@pytest.mark.row("A14", "A15")
def test_a_state_that_no_reader_could_decode_is_refused(player: Player) -> None:
    for state, message in REFUSED_STATES:
        assert message in refused(player, "DW400", "select dwarf.create_flow('line', %s::json)", state), state
    assert player.all("select from dwarf.live") == []


REFUSED_STATES = [
    ("[1]", "state must be a JSON object, not an array"), ('"x"', "not a string"), ("1", "not a number"), ("true", "not a boolean"),
    ('{"a": "\\ud800"}', "state holds what cannot be stored"), ('{"a": 1e999}', "beyond the range of a float"),
    ('{"a": ' + "[" * 201 + "]" * 201 + "}", "nested deeper than 200 levels"),
]  # fmt: skip


@pytest.mark.row("A14", "A50", "A52")
def test_a_state_is_stored_as_it_was_given(player: Player) -> None:
    for state in STATES:
        key = create(player, state=state)
        stored = player.one("select input::text as it from dwarf.live where flow_id = %s", FlowKey.parse(key).flow_id).it
        assert stored == ("{}" if state in (None, "null") else state)


STATES = [
    None, "null", "{}", '{"a": "[[[[{{{{"}', '{"a": ' + "[" * 200 + "]" * 200 + "}", '{"a": "' + "[" * 500 + '"}', '{"a": "\\\\u0000 \\" [1e999"}',
    '{"n": 1e308, "m": -1.5E+300, "big": ' + "9" * 400 + "}", '{"x": "\\u0000", "y": "\\ud83d\\ude00"}',
]  # fmt: skip


@pytest.mark.row("A3")
def test_a_workflow_that_is_not_registered_is_unknown(player: Player) -> None:
    assert "'none'" in refused(player, "DW404", "select dwarf.create_flow('none')")
    for nothing in ("''", "null"):
        assert "must not be empty" in refused(player, "DW400", f"select dwarf.create_flow({nothing})")


@pytest.mark.row("A20")
def test_a_create_belongs_to_the_callers_transaction(player: Player) -> None:
    with player.connection.transaction():
        create(player)
        raise psycopg.Rollback
    assert player.all("select from dwarf.live") == player.all("select from dwarf.active") == []


def test_an_idempotency_key_with_another_state_is_a_conflict(player: Player) -> None:
    key = create(player, state='{"a": 1, "b": 2}', options={"idempotencyKey": "k"})
    assert create(player, state='{"b":2,"a":1}', options={"idempotencyKey": "k"}) == key, "its spelling does not count"
    query = "select dwarf.create_flow('line', '{}', '{\"idempotencyKey\": \"k\"}')"
    assert "was used with another state" in refused(player, "DW409", query)


@pytest.mark.row("D29")
def test_a_thread_is_joined_by_a_root_only(player: Player) -> None:
    first = create(player, "call")
    play(player)
    second = create(player, options={"threadKey": first})
    assert live(player, second).thread_id == FlowKey.parse(first).flow_id
    assert live(player, create(player, options={"threadKey": second})).thread_id == FlowKey.parse(first).flow_id
    query = "select dwarf.create_flow('line', '{}', json_build_object('threadKey', %s::text))"
    unknown = first[:-16] + "0123456789abcdef"
    assert "no flow 1-" in refused(player, "DW404", query, unknown)
    child = player.one("select dwarf.flow_key(1, flow_id, token) as key from dwarf.flows where root_id <> flow_id").key
    assert "is a child" in refused(player, "DW400", query, child)


def test_durations_read_as_they_do_in_python(player: Player) -> None:
    for text in DURATIONS:
        try:
            expected: float | None = parse_text(text, "it")
        except InvalidArgument:
            expected = None
        found = player.one("select dwarf.read_seconds_v1(%s) as it", text).it
        assert (None if found is None else float(found)) == expected, text


DURATIONS = [
    "90", "1.5", "15m", "1h30m", "250ms", "1.5s", "2d", "1d2h3m4s5ms", "0", "1m", "1ms", "1m1ms", "", "m", "1x", "1m1h", "1s1s", "-1s", " 1s", "1 s",
    "1M", "1.s", ".5s", "1h 30m", "00s",
]  # fmt: skip


# ---- the verbs ----


VERBS = ["select dwarf.resume_flow(%s)", "select dwarf.cancel_flow(%s)", "select dwarf.terminate_flow(%s)"]


@pytest.mark.row("C2", "B7", "A22")
@pytest.mark.parametrize("query", [*VERBS, "select dwarf.flow_outcome(%s)"])
def test_keys_that_name_nothing(player: Player, query: str) -> None:
    key = create(player, "ask")
    play(player)
    _, hour, low, token = key.split("-")
    for wrong in (
        "",
        "x",
        f"{hour}-{low}-{token}",
        f"0-{hour}-{low}-{token}",
        f"1-{hour}-{low}-{token}0",
        f"1-0{hour}-{low}-{token}",
        key.upper(),
    ):
        if wrong != key:
            assert token not in refused(player, "DW400", query, wrong)
    assert "malformed" in refused(player, "DW400", query, f"1-999999999-{low}-{token}")
    assert "malformed" in refused(player, "DW400", query, f"1-{hour}-99999999999-{token}")
    assert "malformed" in refused(player, "DW400", query, None)
    assert "is not on this shard, which is shard 1" in refused(player, "DW404", query, f"2-{hour}-{low}-{token}")
    assert f"there is no flow 1-{hour}-{low}" in refused(player, "DW404", query, f"1-{hour}-{low}-{'f' * 16}")
    assert "there is no flow" in refused(player, "DW404", query, f"1-{hour}-{int(low) + 7}-{token}")
    assert outcome(player, key)["status"] == "interrupted"


@pytest.mark.row("C2", "B6", "B7")
@pytest.mark.parametrize("query", VERBS)
def test_children_and_ended_flows_are_refused(player: Player, query: str) -> None:
    root = create(player, "call", '{"child": "ask"}')
    play(player)
    child = player.one("select dwarf.flow_key(1, flow_id, token) as key from dwarf.live where root_id <> flow_id").key
    assert outcome(player, child)["status"] == "interrupted"
    assert "is a child; name its root" in refused(player, "DW400", query, child)
    player.one("select dwarf.resume_flow(%s, null, %s)", root, NOON)
    play(player)
    assert "has ended: it is completed" in refused(player, "DW409", query, root)
    assert "is a child" in refused(player, "DW400", query, child)


@pytest.mark.row("B4", "B5", "B6", "B8")
def test_resume(player: Player) -> None:
    key = create(player, "ask")
    query = "select dwarf.resume_flow(%s, %s::json, %s)"
    assert "is not interrupted" in refused(player, "DW409", query, key, "{}", NOON)
    play(player)
    for wrong in ("[]", "1", '"x"'):
        assert "data must be a JSON object" in refused(player, "DW400", query, key, wrong, NOON)
    player.one(query, key, None, NOON)
    assert "is not interrupted" in refused(player, "DW409", query, key, "{}", NOON)
    play(player)
    assert outcome(player, key)["state"] == {"asked": True, "answer": None} or outcome(player, key)["state"] == {"asked": True}


@pytest.mark.row("C18", "C19", "C21", "C28")
def test_cancel(player: Player) -> None:
    bare, guarded = create(player, "ask"), create(player, "guarded")
    play(player)
    for key in (bare, guarded):
        player.one("select dwarf.cancel_flow(%s, %s, %s)", key, "  too\nlate ", NOON)
    play(player)
    ended = outcome(player, bare)
    assert (ended["status"], ended["reason"], ended["stopped"]) == ("cancelled", "too late", True)
    handled = outcome(player, guarded)
    assert (handled["status"], handled["reason"]) == ("completed", "")


@pytest.mark.row("C1", "C17")
def test_terminate(player: Player) -> None:
    key = create(player, "deep", '{"xs": [1, 4, 0, 6]}')
    play(player)
    player.one("select dwarf.terminate_flow(%s, %s, %s)", key, "a\x01\x85b" + "é" * 5000, NOON)
    ended = outcome(player, key)
    assert (ended["status"], ended["state"]) == ("terminated", None)
    assert ended["reason"].startswith("a\ufffd\ufffdbéé")
    assert len(ended["reason"].encode()) <= 4096
    assert ended["reason"].endswith("… [cut; 5004 characters in all]")
    assert "terminated" in refused(player, "DW409", VERBS[2], key)
    assert broken(player.connection.info.dsn) == []


def test_a_failed_flow_tells_its_error(player: Player) -> None:
    key = create(player, "deep", '{"xs": [5]}')
    play(player)
    ended = outcome(player, key)
    assert (ended["status"], ended["reason"]) == ("failed", "")
    assert "no" in ended["error"]


# ---- recovery by hand ----


@pytest.mark.row("G3")
def test_steps_past_their_deadline_and_steps_of_a_session_named_are_recovered(player: Player) -> None:
    for _ in range(3):
        player.create("line")
    assert len(player.claim(50)) == 3
    assert player.all("select * from dwarf.recover_steps(p_now => %s)", NOON) == []
    with player.connection.transaction():
        late = player.all("select * from dwarf.recover_steps(p_now => %s)", NOON + datetime.timedelta(seconds=150))
        assert {row.why for row in late} == {"deadline"}
        assert len(late) == 3
        raise psycopg.Rollback
    gone = player.all("select * from dwarf.recover_steps(%s, %s)", player.session, NOON)
    assert [(row.branch, row.session, row.why) for row in gone] == [(0, player.session, "session")] * 3
    assert all(re.fullmatch(r"1-\d+-\d+", row.flow) for row in gone)
    assert player.one("select count(*) as n from dwarf.active where claimable is not null").n == 3
    assert broken(player.connection.info.dsn) == []


# ---- through a pooler ----


def test_all_of_it_works_through_a_pooler(player: Player, pgbouncer: Callable[..., Any]) -> None:
    pooled = pgbouncer(default_pool_size=2).dsn(player.connection.info.dsn)
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        [(key,)] = connection.execute("select dwarf.create_flow('ask', p_now => %s)", (NOON,)).fetchall()
        play(player)
        connection.execute("select dwarf.resume_flow(%s, null, %s)", (key, NOON))
        [(state,)] = connection.execute("select dwarf.flow_outcome(%s) ->> 'status'", (key,)).fetchall()
        assert state == "running"
        connection.execute("select dwarf.terminate_flow(%s, 'x', %s)", (key, NOON))
        for setting in ("lock_timeout", "plan_cache_mode", "enable_seqscan"):
            [(now,)] = connection.execute("select setting = reset_val from pg_settings where name = %s", (setting,)).fetchall()
            assert now, f"{setting} stays changed"
