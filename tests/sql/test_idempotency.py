"""One flow per idempotency key, however many ask at once, and none in between."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from dwarf.arrays import micros
from dwarf.store import Keyed, NewFlows
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, beside, broken, play, scene

Until = Callable[[Callable[[], object], str], None]
CREATE = """select * from dwarf.create_keyed_v1(p_key => %(key)s, p_token => %(token)s
    , p_workflow => %(workflow)s, p_graph_id => %(graph)s, p_task => 'A', p_input => %(input)s, p_priority => 3::smallint, p_budget_ms => 1000
    , p_thread_id => %(thread)s, p_delete_on_completion => %(brief)s, p_start_at => %(start)s, p_tenant => 'acme', p_fairness_key => %(fair)s
    , p_weight => 2, p_baggage => '{"b": 1}', p_now => %(now)s)"""


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        yield made


def values(player: Player, key: str = "one", given: str = '{"in": 1}', **others: Any) -> dict[str, Any]:
    base = {"key": key, "input": given, "token": "a" * 16, "workflow": "line", "graph": player.graph_ids["line"], "now": player.now}
    return base | {"fair": "", "thread": None, "brief": False, "start": None} | others


def create(player: Player, *args: Any, **others: Any) -> Any:
    return player.connection.execute(CREATE, values(player, *args, **others)).fetchone()


def test_the_same_key_and_input_give_the_first_flow_again(player: Player) -> None:
    first = create(player)
    assert (first.state, first.token) == ("created", "a" * 16)
    again = create(player, token="b" * 16)
    assert (again.state, again.flow_id, again.token) == ("existing", first.flow_id, "a" * 16)
    play(player)
    assert create(player, token="c" * 16) == again, "also once it has ended"
    assert len(player.all("select from dwarf.flows")) == 1
    assert broken(player.connection.info.dsn) == []


def test_another_input_is_a_conflict_and_another_workflow_or_key_is_not(player: Player) -> None:
    first = create(player)
    other = create(player, given='{"in": 2}')
    assert (other.state, other.flow_id) == ("conflict", first.flow_id)
    assert create(player, workflow="fan").state == "created"
    assert create(player, "two").state == "created"
    assert len(player.all("select from dwarf.live")) == 3


def test_every_option_reaches_the_flow(player: Player) -> None:
    thread = player.create("line")
    made = create(player, thread=thread, brief=True, fair="k", start=NOON + DAY)
    row = player.one("select * from dwarf.live where flow_id = %s", made.flow_id)
    assert (row.thread_id, row.delete_on_completion, row.tenant, row.fairness_key, row.weight) == (thread, True, "acme", "k", 2)
    assert row.baggage == {"b": 1}
    assert player.one("select wake_at from dwarf.active where flow_id = %s", made.flow_id).wake_at == NOON + DAY


def test_a_key_is_free_again_when_its_flow_is_removed(player: Player) -> None:
    first = create(player)
    play(player)
    player.one("select dwarf.delete_v1(%s, p_now => %s)", first.flow_id, NOON)
    assert create(player).state == "existing", "retained until it is removed"
    player.one("select dwarf.reap_v1(10, %s)", NOON)
    again = create(player, given='{"in": 2}')
    assert again.state == "created"
    assert again.flow_id != first.flow_id


def test_a_key_that_leads_nowhere_is_taken_over(player: Player) -> None:
    first = create(player)
    play(player)
    player.connection.execute("delete from dwarf.flows")  # as a day dropped by hand
    again = create(player)
    assert again.state == "created"
    assert [row.flow_id for row in player.all("select flow_id from dwarf.idempotency")] == [again.flow_id] != [first.flow_id]


@pytest.mark.parametrize("commits", [True, False])
def test_whoever_comes_second_waits_for_the_first(player: Player, database: str, until: Until, commits: bool) -> None:
    with psycopg.connect(database, row_factory=namedtuple_row) as first:
        [made] = list[Any](first.execute(CREATE, values(player)).fetchall())
        with beside(database, lambda: create(player, token="b" * 16), until, player.connection.info.backend_pid) as answer:
            first.commit() if commits else first.rollback()
    assert (answer[0].state, answer[0].token) == (("existing", "a" * 16) if commits else ("created", "b" * 16))
    assert (answer[0].flow_id == made.flow_id) == commits
    assert len(player.all("select from dwarf.live")) == len(player.all("select from dwarf.active")) == 1
    assert broken(database) == []


def test_a_first_one_that_does_not_end_is_busy(player: Player, database: str) -> None:
    with psycopg.connect(database) as first:
        first.execute(CREATE, values(player))
        busy = create(player)
        assert (busy.state, busy.flow_id) == ("busy", None)
        assert create(player, "two").state == "created", "nobody else is held up, and the session goes on"
    assert len(player.all("select from dwarf.live")) == 2
    assert broken(database) == []


def test_many_at_once_make_one_flow(player: Player, database: str) -> None:
    states: list[Any] = []
    faults: list[BaseException] = []
    start = threading.Barrier(6)

    def ask(number: int) -> None:
        try:
            with psycopg.connect(database, autocommit=True, row_factory=namedtuple_row) as connection:
                start.wait()
                states.extend([connection.execute(CREATE, values(player, key, token=f"{number:016x}")).fetchone() for key in "abcdefgh"])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert Counter(row.state for row in states) == {"created": 8, "existing": 40}
    assert len({(row.flow_id, row.token) for row in states}) == 8
    assert len(player.all("select from dwarf.live")) == len(player.all("select from dwarf.idempotency")) == 8
    assert broken(database) == []


# ---- one rule for what the same input is ----


def by_store(player: Player, key: str, given: bytes, workflow: str = "line") -> Keyed:
    """Create as an engine does."""
    new = NewFlows(["c" * 16], [workflow], [player.graph_ids[workflow]], ["A"], [given], [3], [1000])
    return player.do(player.store.create_keyed(key, new, now=player.micros))


def by_sql(player: Player, key: str, given: str) -> str:
    """Create as another language does, and return the flow's key."""
    options = json.dumps({"idempotencyKey": key})
    made: str = player.one("select dwarf.create_flow('line', %s, %s, %s) as key", given, options, NOON).key
    return made


SAME = [
    ('{"a": 1, "b": [true, null]}', b'{"b":[true,null],"a":1}'),
    ("{}", b"{}"),
    ('{"n": 100}', b'{"n":1e2}'),
    ('{"n": 12345678901234567890123}', b'{"n":12345678901234567890123}'),
    ('{"a": 1, "a": 2}', b'{"a":2}'),
    (r'{"t": "\u00e9"}', '{"t":"é"}'.encode()),
    (r'{"t": "\u0000"}', rb'{"t":"\u0000"}'),
    (r'{"t": "\ud83d\ude00"}', '{"t":"😀"}'.encode()),
]
OTHER = [
    ('{"a": 1}', b'{"a":2}'),
    ('{"a": 1}', b'{"a":1.0}'),
    ('{"a": 1}', b'{"a":"1"}'),
    ('{"a": 1}', b'{"a":true}'),
    ('{"a": [1, 2]}', b'{"a":[2,1]}'),
    ('{"a": null}', b"{}"),
    (r'{"t": "\u0000"}', rb'{"t":"\ufffd"}'),
    (r'{"t": "\u0000"}', b'{"t":""}'),
    (r'{"t": "\\u0000"}', rb'{"t":"\u0000"}'),
]


@pytest.fixture
def registered(player: Player) -> Player:
    """A player whose workflow SQL may create flows of."""
    player.one(
        "insert into dwarf.workflows(url, graph_id, updated_at) values ('line', %s, %s) returning url", player.graph_ids["line"], NOON
    )
    return player


@pytest.mark.parametrize(("text", "given"), SAME)
@pytest.mark.parametrize("sql_first", [True, False])
def test_through_sql_and_through_an_engine_the_same_input_is_the_same(registered: Player, text: str, given: bytes, sql_first: bool) -> None:
    if sql_first:
        key = by_sql(registered, "one", text)
        found = by_store(registered, "one", given)
        assert found.state == "existing"
    else:
        found = by_store(registered, "one", given)
        assert found.state == "created"
        key = by_sql(registered, "one", text)
    assert key == registered.one("select dwarf.flow_key(1, %s, %s) as key", found.flow_id, found.token).key
    assert registered.do(registered.store.find_keyed("line", "one", given)) == Keyed("existing", found.flow_id, found.token)
    assert len(registered.all("select from dwarf.live")) == 1


@pytest.mark.parametrize(("text", "given"), OTHER)
def test_through_sql_and_through_an_engine_another_input_is_a_conflict(registered: Player, text: str, given: bytes) -> None:
    by_sql(registered, "one", text)
    found = by_store(registered, "one", given)
    assert (found.state, registered.do(registered.store.find_keyed("line", "one", given))) == ("conflict", found)
    made = by_store(registered, "two", given)
    with pytest.raises(psycopg.Error, match="was used with another state") as caught:
        by_sql(registered, "two", text)
    assert caught.value.sqlstate == "DW409"
    assert made.flow_id is not None
    assert "c" * 16 not in str(caught.value), "no token is told"
    assert len(registered.all("select from dwarf.live")) == 2


def test_an_input_that_jsonb_cannot_hold_is_compared_byte_by_byte(player: Player) -> None:
    vast = b'{"n":1e200000}'
    first = by_store(player, "one", vast)
    assert first.state == "created"
    assert by_store(player, "one", vast) == Keyed("existing", first.flow_id, first.token)
    assert by_store(player, "one", b'{"n":2e200000}').state == "conflict"


def test_looking_for_a_key_creates_nothing(player: Player) -> None:
    nothing = Keyed("missing", None, None)
    assert player.do(player.store.find_keyed("line", "one", b"{}")) == nothing
    assert player.all("select from dwarf.idempotency") == []
    by_store(player, "one", b"{}")
    assert player.do(player.store.find_keyed("line", "two", b"{}")) == player.do(player.store.find_keyed("fan", "one", b"{}")) == nothing
    player.connection.execute("delete from dwarf.live; delete from dwarf.active")
    assert player.do(player.store.find_keyed("line", "one", b"{}")) == nothing, "its flow was removed"


def test_every_option_of_a_keyed_create_through_the_store_reaches_the_flow(player: Player) -> None:
    thread = player.create("line")
    new = NewFlows(
        ["d" * 16], ["line"], [player.graph_ids["line"]], ["A"], [b'{"x":1}'], [2], [777], ["k"], [3.0], [b'{"b":1}'], ["acme"], [thread],
        [True], [micros(NOON + DAY)],
    )  # fmt: skip
    made = player.do(player.store.create_keyed("one", new, now=player.micros))
    row = player.one("select * from dwarf.live where flow_id = %s", made.flow_id)
    assert (row.thread_id, row.delete_on_completion, row.tenant, row.fairness_key, row.weight) == (thread, True, "acme", "k", 3)
    assert (row.priority, row.budget_ms, row.baggage, row.input, row.created_at) == (2, 777, {"b": 1}, {"x": 1}, NOON)
    assert player.one("select wake_at from dwarf.active where flow_id = %s", made.flow_id).wake_at == NOON + DAY


@pytest.mark.row("A20", "M18")
def test_a_create_that_is_rolled_back_leaves_nothing(player: Player, database: str) -> None:
    with psycopg.connect(database) as first:
        first.execute(CREATE, values(player))
        first.rollback()
    for table in ("live", "active", "idempotency"):
        assert player.all(f"select from dwarf.{table}") == []
    assert create(player).state == "created"
