"""Every page of the runbook can be pasted as it is, says which question it answers, and answers it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.sql.player import Player
from tests.sql.plays import NOON, play, scene
from tests.sql.test_views import set_clock

PAGES = sorted((Path(__file__).parent.parent.parent / "sql" / "runbook").glob("*.sql"))


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    """A shard with something of everything, an hour later."""
    with closing(scene(database)) as made:
        set_clock(made, NOON)
        made.create("line")
        made.create("deep", {"xs": [0, 1, 2, 3, 4, 5, 6]})
        made.create("call", {"child": "ask"})
        made.create("deep", {"xs": [5]})
        play(made)
        made.one("select dwarf.delete_v1(%s, p_now => %s)", made.create("ask"), NOON)
        made.create("line")
        made.claim(1)
        made.create("line", key="other")
        set_clock(made, NOON + datetime.timedelta(hours=1))
        yield made


def answer(player: Player, page: str, **replaced: str) -> list[Any]:
    text = next(path for path in PAGES if path.stem == page).read_text()
    for old, new in replaced.items():
        text = text.replace(f"'{old.replace('_', '-')}'", f"'{new}'")
    return player.connection.execute(text.encode()).fetchall()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_says_what_it_answers(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"-- Question: .{10,}\?", text)
    bare = re.sub(r"--.*|'[^']*'", "", text)
    assert bare.count(";") == 1, "one statement"
    assert not re.search(r"\b(insert|update|delete|alter|drop|create)\b", bare), "it only reads"


def test_every_page_runs_on_an_empty_and_on_a_full_shard(player: Player, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("set default_transaction_read_only = on")
        for page in PAGES:
            columns = connection.execute(page.read_text().encode()).description
            assert columns
        connection.execute("set default_transaction_read_only = off")
        connection.execute("truncate dwarf.live, dwarf.active, dwarf.parks, dwarf.flows, dwarf.history, dwarf.doomed, dwarf.peers")
        for page in PAGES:
            connection.execute(page.read_text().encode()).fetchall()


def test_the_pages_name_each_other_as_they_are_called() -> None:
    names = {page.stem for page in PAGES}
    views = (PAGES[0].parent.parent / "views.sql").read_text()
    for listed in re.findall(r"runbook ([a-z_, ]+)'", views):
        assert set(listed.split(", ")) <= names
    for page in PAGES:
        assert set(re.findall(r"(?:see|See|:) ([a-z]+(?:_[a-z]+)+)\b", page.read_text())) <= names | {"v_flows", "hot_percent"}


def test_what_stands_still_is_listed_and_why(player: Player) -> None:
    stuck = answer(player, "stuck_flows")
    assert {row.waits_for.partition(":")[0] for row in stuck} == {"a claim", "waking", "the sweep"}
    due = answer(player, "oldest_due")
    assert len(due) >= 1
    assert all(row.due_seconds == 3600 for row in due)


def test_a_flow_is_told_what_it_waits_for(player: Player) -> None:
    root = player.one("select flow_id from dwarf.live where root_id = flow_id and workflow = 'deep'").flow_id
    name = player.one("select dwarf.flow_name(%s) as name", root).name
    rows = answer(player, "why_is_this_flow_waiting", **{"1_0_0": name})
    told = [row.waits_for for row in rows]
    for part in ("an answer, since", "its child 1-", "it sleeps until", "branches have arrived"):
        assert any(part in each for each in told), (part, told)
    query = "select dwarf.flow_key(1, l.flow_id, l.token) as key from dwarf.live l join dwarf.active a using (flow_id) where a.status = 2"
    running = player.one(query).key
    [row] = answer(player, "why_is_this_flow_waiting", **{"1_0_0": running})
    assert "is past its deadline: the next sweep takes it back" in row.waits_for
    assert answer(player, "why_is_this_flow_waiting") == []


def test_what_waits_for_an_answer(player: Player) -> None:
    rows = answer(player, "interrupted_flows")
    assert len(rows) == 3
    assert [row.place for row in rows if row.workflow == "deep"] == [1, 2]
    assert all(row.payload == {"question": row.payload["question"]} for row in rows)


def test_failures_of_the_day(player: Player) -> None:
    rows = answer(player, "failed_steps_today")
    assert [(row.task, row.error, row.steps, row.routed) for row in rows if row.task == "X"] == [("X", "no", 2, 0)]
    set_clock(player, NOON + datetime.timedelta(hours=12))
    assert answer(player, "failed_steps_today") == [], "another day"


def test_who_runs_what_and_sessions(player: Player) -> None:
    rows = answer(player, "who_runs_what")
    assert {(row.session, row.is_recoverable) for row in rows} == {(player.session, True)}
    [session] = answer(player, "sessions")
    assert (session.state, session.steps_running) == ("expired", len(rows))


def test_who_holds_an_old_snapshot(player: Player, database: str) -> None:
    with psycopg.connect(database, application_name="reporting") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select count(*) from dwarf.flows")
        held = [row for row in answer(player, "long_snapshots") if "reporting" in row.name]
        assert [(row.what, row.pid) for row in held] == [("session", holder.info.backend_pid)]


def test_who_holds_others_up(player: Player, database: str) -> None:
    with psycopg.connect(database) as holder:
        holder.execute("lock table dwarf.live in access exclusive mode")
        assert answer(player, "waiting_locks") == []


def test_partitions_and_their_sizes(player: Player) -> None:
    rows = answer(player, "partition_sizes")
    assert {row.state for row in rows} == {"attached", "kept"}
    assert {row.created_on for row in rows} == {None, *(NOON.date() + datetime.timedelta(days=ahead) for ahead in range(3))}


def test_the_rest_has_rows_too(player: Player) -> None:
    for page in (
        "backlog_by_band_and_key",
        "sleeping_steps",
        "slow_tasks_today",
        "ended_flows_by_hour",
        "tenants",
        "dead_tuples_of_active",
    ):
        assert answer(player, page), page
    assert answer(player, "deleted_and_still_there") == []
