"""Old days are dropped whole, what must outlive them is moved first, and no record is lost between the two."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import errors

from dwarf import partitions
from dwarf.batch import Entry
from dwarf.errors import InvalidArgument
from dwarf.partitions import Dropped
from dwarf.record import Kind
from dwarf.status import StepStatus
from tests.sql.player import Player
from tests.sql.plays import DAY, NOON, TODAY, beside, broken, is_kind, play, scene, stop_before, uncommitted

Until = Callable[[Callable[[], object], str], None]
KEPT = -1
TOMORROW = NOON.date() + DAY
RESUME = """select dwarf.resume_v1(%s, '{"a": 1}', %s) as done"""


@pytest.fixture
def player(database: str) -> Iterator[Player]:
    with closing(scene(database)) as made:
        yield made


def drop(player: Player, before: datetime.date = TOMORROW, **options: Any) -> Dropped:
    return partitions.drop_before(player.connection.info.dsn, before, now=NOON + 40 * DAY, **options)


def days(player: Player, table: str) -> dict[int, set[int]]:
    """Under which days the rows of each flow stand."""
    rows = player.all(f"select flow_id, array_agg(distinct day) as days from dwarf.{table} group by flow_id")
    return {row.flow_id: set(row.days) for row in rows}


def parts(player: Player) -> set[tuple[int, str, bool, bool]]:
    return {(row.day, row.parent, row.is_attached, row.is_pending) for row in player.all("select * from dwarf.partitions_v1()")}


def has_parts(player: Player, day: int = TODAY) -> bool:
    return any(part[0] == day for part in parts(player))


def ended_later(player: Player, url: str, state: dict[str, Any], later: datetime.timedelta) -> int:
    """Return a flow that was created now and ends `later`."""
    flow_id = player.create(url, state)
    play(player)
    start, player.now = player.now, NOON + later
    assert player.one(RESUME, flow_id, player.now).done
    play(player)
    assert player.ended(flow_id) is not None
    player.now = start
    return flow_id


# ---- what is dropped and what stays ----


@pytest.mark.row("I2", "I20")
def test_a_day_is_dropped_with_the_flows_that_ended_and_the_count_of_roots_returned(player: Player) -> None:
    for number in range(5):
        player.create("call", {"n": number})
    play(player)
    player.now = NOON + DAY
    younger = player.create("line")
    play(player)
    assert drop(player) == Dropped(5, True)
    assert not has_parts(player)
    assert days(player, "flows") == days(player, "history") == {younger: {TODAY + 1}}
    assert drop(player) == Dropped(0, True)


@pytest.mark.row("I5", "I8")
@pytest.mark.parametrize(("url", "state"), [
    ("ask", {}), ("guarded", {}), ("again", {}), ("call", {"child": "ask"}), ("call", {"child": "call"}), ("fan", {"xs": [1, 2]}),
    ("deep", {"xs": [0, 1, 2, 3, 4, 5, 6]}), ("deep", {"xs": [4, 4, 1]}), ("line", {}),
])  # fmt: skip
def test_an_open_flow_of_any_age_stays_with_its_children_and_goes_on(player: Player, url: str, state: dict[str, Any]) -> None:
    ended = player.create("line")
    play(player)
    flow_id = player.create(url, state)
    rows = player.claim(1) if url == "line" else []
    if rows:
        assert player.record(player.work(rows)) == []
    elif url not in ("again", "fan"):
        play(player)
    dropped = drop(player)
    assert dropped == Dropped(1, True)
    assert not has_parts(player)
    assert ended not in days(player, "flows") | days(player, "history")
    assert all(found == {KEPT} for table in ("live", "active", "history", "flows") for found in days(player, table).values())
    assert broken(player.connection.info.dsn) == []
    player.now = NOON + 40 * DAY
    player.one("select dwarf.ensure_partitions(1, %s)", player.now)
    player.run(50)
    while player.ended(flow_id) is None:
        assert player.one(RESUME, flow_id, player.now).done
        player.run(50)
        assert broken(player.connection.info.dsn) == []
    history = days(player, "history")
    assert history[flow_id] == {KEPT}
    assert all(len(found) == 1 for found in history.values()), "the rows of a flow stand together"


@pytest.mark.row("I2")
def test_a_flow_that_ended_too_recently_stays_until_that_day_is_old_too(player: Player) -> None:
    early = player.create("line")
    play(player)
    late = ended_later(player, "ask", {}, DAY)
    assert drop(player) == Dropped(1, True)
    assert days(player, "flows") == days(player, "history") == {late: {KEPT}}
    assert player.ended(early) is None
    assert drop(player, TOMORROW + DAY) == Dropped(1, True)
    assert days(player, "flows") == days(player, "history") == {}


@pytest.mark.row("I8")
def test_children_of_a_later_day_stay_as_long_as_their_root(player: Player) -> None:
    partitions.ensure(player.connection.info.dsn, 3, now=NOON)
    root = player.create("guarded", {})
    play(player)
    player.now = NOON + DAY
    parent = player.create("deep", {"xs": [1]})  # opened on the second day, ends late as well
    play(player)
    player.now = NOON
    caller = player.create("deep", {"xs": [1, 2]})
    [entry] = stop_before(player, lambda entry: entry.record.child is not None)
    player.now = NOON + DAY
    assert player.record([entry]) == []  # its child is of the second day and ends on it
    play(player)
    child = player.one("select flow_id from dwarf.flows where root_id = %s and root_id <> flow_id", caller).flow_id
    assert drop(player, TOMORROW) == Dropped(0, True)
    assert days(player, "flows")[child] == {TODAY + 1}
    assert drop(player, TOMORROW + DAY) == Dropped(0, True)
    assert days(player, "flows")[child] == days(player, "history")[child] == {KEPT}
    assert broken(player.connection.info.dsn) == []
    player.now = NOON + 2 * DAY
    for flow_id in (root, parent, caller):
        assert player.one(RESUME, flow_id, player.now).done
    play(player)
    assert drop(player, TOMORROW + 2 * DAY) == Dropped(3, True)
    assert days(player, "flows") == days(player, "history") == {}


@pytest.mark.row("I8")
def test_children_of_a_root_that_ended_late_stay_too(player: Player) -> None:
    caller = player.create("deep", {"xs": [1, 2]})
    [entry] = stop_before(player, lambda entry: entry.record.child is not None)
    player.now = NOON + DAY
    assert player.record([entry]) == []
    play(player)
    assert drop(player, TOMORROW) == Dropped(0, True)
    player.now = NOON + 2 * DAY
    assert player.one(RESUME, caller, player.now).done
    play(player)
    assert player.ended(caller) is not None
    assert drop(player, TOMORROW + DAY) == Dropped(0, True)
    assert list(days(player, "flows").values()) == [{KEPT}, {KEPT}]
    assert drop(player, TOMORROW + 2 * DAY) == Dropped(1, True)
    assert days(player, "flows") == days(player, "history") == {}


def test_idempotency_keys_go_with_their_flows_and_stay_with_those_that_stay(player: Player) -> None:
    graph_id = player.graph_ids["line"]
    create = """select flow_id from dwarf.create_keyed_v1(%s, '0123456789abcdef', %s, %s, %s, '{}', 3::smallint, 1000, p_now => %s)"""
    player.one(create, "ended", "line", graph_id, "A", NOON)
    play(player)
    kept = player.one(create, "open", "line", graph_id, "A", NOON).flow_id
    drop(player)
    assert [(row.key, row.flow_id) for row in player.all("select key, flow_id from dwarf.idempotency")] == [("open", kept)]
    assert broken(player.connection.info.dsn) == []


def test_what_is_deleted_and_not_yet_removed_goes_with_its_day(player: Player) -> None:
    flow_id = player.create("line")
    play(player)
    assert player.one("select dwarf.delete_v1(%s, p_now => %s) as state", flow_id, NOON).state == "deleted"
    drop(player)
    assert player.one("select dwarf.reap_v1(10, %s) as n", NOON + DAY).n == 1
    assert player.all("select from dwarf.doomed") == []


def test_many_trees_are_moved_a_few_at_a_time(player: Player) -> None:
    flows = [player.create("ask") for _ in range(25)]
    play(player)
    moved = [player.one("select dwarf.clear_day_v1(%s, %s, 10) as n", TODAY, NOON + DAY).n for _ in range(4)]
    assert moved == [10, 10, 5, 0]
    assert days(player, "live") == {flow: {KEPT} for flow in flows}


@pytest.mark.parametrize("before", [NOON.date() + 41 * DAY, NOON.date() + 400 * DAY])
def test_a_day_that_is_not_over_is_not_dropped(player: Player, before: datetime.date) -> None:
    with pytest.raises(InvalidArgument, match="is not over yet"):
        drop(player, before)


def test_the_function_for_sql_drops_in_one_transaction(player: Player) -> None:
    player.create("line")
    play(player)
    kept = player.create("deep", {"xs": [1, 2, 4]})
    play(player)
    call = "select dwarf.drop_partitions(%s, %s) as roots"
    with player.connection.transaction():
        assert player.one(call, TOMORROW, NOON + 40 * DAY).roots == 1
        assert not has_parts(player)
        raise psycopg.Rollback
    assert has_parts(player)
    assert player.one("select dwarf.drop_partitions(p_now => %s) as roots", NOON + 30 * DAY).roots == 0, "30 days are kept"
    assert player.one("select dwarf.drop_partitions(p_now => %s) as roots", NOON + 31 * DAY).roots == 1
    assert days(player, "live")[kept] == {KEPT}
    assert broken(player.connection.info.dsn) == []
    with pytest.raises(psycopg.Error, match="is not over yet") as caught:
        player.one(call, NOON.date() + 42 * DAY, NOON + 40 * DAY)
    assert caught.value.sqlstate == "DW400"


# ---- cut short anywhere ----


def test_it_is_over_when_its_time_is_and_when_it_is_told_to_stop(player: Player) -> None:
    for _ in range(3):
        player.create("line")
    play(player)
    stop = threading.Event()
    stop.set()
    assert drop(player, stop=stop) == Dropped(0, False)
    assert drop(player, patience=0.0) == Dropped(0, False)
    assert has_parts(player)
    assert drop(player) == Dropped(3, True)


def steps(player: Player) -> Generator[tuple[str, str], None, None]:
    """The pieces of a drop, each handed out before the statement it asks for is run."""
    while True:
        row = player.one("select * from dwarf.drop_step_v1(%s, p_now => %s)", TODAY + 1, NOON + 40 * DAY)
        yield row.state, row.statement
        if row.state == "done":
            return
        if row.statement:
            player.connection.execute(row.statement)


def test_killed_after_any_piece_the_next_one_goes_on(player: Player) -> None:
    player.create("line")
    play(player)
    player.create("ask")
    play(player)
    pieces = list(steps(player))
    assert [state for state, _ in pieces] == ["again", "run", "again", "run", "again", "done"]
    for cut in range(1, len(pieces)):
        partitions.ensure(player.connection.info.dsn, 0, now=NOON)
        player.now = NOON
        player.create("line")
        play(player)
        stopped = steps(player)
        for _ in range(cut):
            if next(stopped)[0] == "done":
                break
        stopped.close()
        assert drop(player).is_done
        assert not has_parts(player)
        assert broken(player.connection.info.dsn) == []


def test_a_detach_that_was_cut_short_is_ended(player: Player, database: str) -> None:
    player.create("line")
    play(player)
    with psycopg.connect(database) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select count(*) from dwarf.flows")
        assert drop(player, patience=0.5) == Dropped(0, False)
        assert (TODAY, "flows", False, True) in parts(player)
        player.now = NOON + DAY
        player.create("line")
        play(player)  # writers go on all the while
        assert drop(player, patience=0.5) == Dropped(0, False)
        assert reader.execute("select count(*) from dwarf.flows").fetchall() == [(1,)], "what it saw it still sees"
    assert drop(player) == Dropped(1, True)
    assert not has_parts(player)


def test_a_table_that_was_detached_and_not_dropped_is_dropped(player: Player) -> None:
    player.create("line")
    play(player)
    for parent in ("flows", "history"):
        player.connection.execute(f"alter table dwarf.{parent} detach partition dwarf.{parent}_d{TODAY}")
    assert drop(player) == Dropped(1, True)
    assert not has_parts(player)


def test_a_flow_that_appears_late_gets_its_detached_day_back(player: Player) -> None:
    # A transaction that began before midnight commits its create after the day was looked through.
    late: list[int] = []
    for state, statement in steps(player):
        if statement and "flows" in statement and not late:
            player.now = NOON
            late.append(player.create("line"))
        assert state != "busy"
    assert days(player, "live") == {late[0]: {KEPT}}
    assert not has_parts(player)
    player.now = NOON + 40 * DAY
    play(player)
    assert player.ended(late[0]) is not None
    assert broken(player.connection.info.dsn) == []


def test_two_at_once_take_turns(player: Player, database: str) -> None:
    with psycopg.connect(database) as other:
        state = "select state from dwarf.drop_step_v1(%s, p_now => %s)"
        other.execute(state, (TODAY + 1, NOON + 40 * DAY))
        assert player.one(state, TODAY + 1, NOON + 40 * DAY).state == "busy"
        assert drop(player, patience=0.1) == Dropped(0, False)
        with pytest.raises(errors.LockNotAvailable, match="another session is dropping"):
            player.one("select dwarf.drop_partitions(%s, %s)", TOMORROW, NOON + 40 * DAY)
    assert drop(player).is_done


# ---- beside records ----


def kinds() -> dict[str, Callable[[Entry], bool]]:
    return {
        "a linear advance": is_kind(Kind.ADVANCE, flow_id=0),
        "a linear close": is_kind(Kind.CLOSE),
        "a fan-out": is_kind(Kind.FAN_OUT),
        "an advance in a branch": lambda entry: entry.record.kind is Kind.ADVANCE and entry.record.branch > 0,
        "an arrival": is_kind(Kind.ARRIVE),
        "a fan-in's close": is_kind(Kind.CLOSE, joining=True),
        "a retry": is_kind(Kind.RETRY),
        "an interrupt": lambda entry: entry.record.kind is Kind.PARK and entry.record.status is StepStatus.INTERRUPTED,
        "a call": lambda entry: entry.record.child is not None,
        "a child's advance": lambda entry: entry.record.kind is Kind.ADVANCE and entry.caller is not None,
        "a child's close": lambda entry: entry.record.kind is Kind.CLOSE and entry.caller is not None,
        "the caller's advance": lambda entry: entry.record.kind is Kind.ADVANCE and entry.unparks,
    }


SCENES = {
    "a linear advance": ("line", {}), "a linear close": ("line", {}), "a fan-out": ("fan", {"xs": [1, 2]}),
    "an advance in a branch": ("fan", {"xs": [1, 2]}), "an arrival": ("fan", {"xs": [1, 2]}), "a fan-in's close": ("fan", {"xs": [1, 2]}),
    "a retry": ("again", {}), "an interrupt": ("ask", {}), "a call": ("call", {}), "a child's advance": ("call", {}),
    "a child's close": ("call", {}), "the caller's advance": ("call", {}),
}  # fmt: skip


@pytest.fixture(params=SCENES)
def raced(player: Player, request: pytest.FixtureRequest) -> tuple[int, list[Entry]]:
    """A flow, and a record of the kind asked for that has not been made yet."""
    name = request.param
    url, state = SCENES[name]
    flow_id = player.create(url, state)
    wanted = kinds()[name] if name != "a linear advance" else is_kind(Kind.ADVANCE)
    return flow_id, stop_before(player, wanted)


def finish(player: Player, flow_id: int) -> None:
    player.now = NOON + 40 * DAY
    player.one("select dwarf.ensure_partitions(1, %s)", player.now)
    player.run(50)
    while player.ended(flow_id) is None:
        assert player.one(RESUME, flow_id, player.now).done
        player.run(50)
    assert broken(player.connection.info.dsn) == []
    for table in ("flows", "history"):
        for flow, found in days(player, table).items():
            assert len(found) == 1, (table, flow, found)
            assert TODAY not in found
    assert days(player, "history")[flow_id] == {KEPT}


@pytest.mark.row("M38")
def test_a_record_that_commits_first_is_moved_with_the_rest(
    player: Player, database: str, raced: tuple[int, list[Entry]], until: Until
) -> None:
    flow_id, entries = raced
    with psycopg.connect(database, autocommit=True) as mover, ExitStack() as waiting, uncommitted(player):
        assert player.record(entries) == []
        move = partial(mover.execute, "select dwarf.move_trees_v1(%s, %s)", ([flow_id], TODAY))
        waiting.enter_context(beside(database, move, until, mover.info.backend_pid))
    if player.ended(flow_id) is not None:
        # It ended before the mover got its lock: then it is for the next look, which takes ended flows.
        player.one("select dwarf.move_trees_v1(%s, %s)", [flow_id], TODAY)
    assert {day for table in ("live", "active", "flows", "history") for found in days(player, table).values() for day in found} == {KEPT}
    finish(player, flow_id)


@pytest.mark.row("M38")
def test_a_record_that_comes_second_writes_where_the_rows_have_gone(
    player: Player, database: str, raced: tuple[int, list[Entry]], until: Until
) -> None:
    flow_id, entries = raced
    with psycopg.connect(database) as mover:
        mover.execute("select dwarf.move_trees_v1(%s, %s)", ([flow_id], TODAY))
        with beside(database, lambda: player.record(entries), until, player.link.backend_pid) as missed:
            mover.commit()
    assert missed == [[]], "it applies"
    player.one("select dwarf.move_trees_v1(%s, %s)", [flow_id], TODAY)  # a child that it started is found by the next look
    finish(player, flow_id)


@pytest.mark.row("M38")
@pytest.mark.parametrize("verb", ["terminate_v1(%s, 'enough', %s)", "cancel_v1(%s, 'enough', %s)", """resume_v1(%s, '{"a": 1}', %s)"""])
@pytest.mark.parametrize("verb_first", [True, False])
def test_verbs_beside_a_move(player: Player, database: str, until: Until, verb: str, verb_first: bool) -> None:
    flow_id = player.create("deep", {"xs": [1, 2, 4, 0]})
    play(player)
    calls = [
        (f"select dwarf.{verb}", (flow_id, NOON)),
        ("select dwarf.move_trees_v1(%s, %s)", ([flow_id], TODAY)),
    ]
    first, second = calls if verb_first else calls[::-1]
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        one.execute(*first)
        with beside(database, lambda: two.execute(*second).fetchall(), until, two.info.backend_pid) as answer:
            one.commit()
    assert answer
    if player.ended(flow_id) is not None:
        player.one("select dwarf.move_trees_v1(%s, %s)", [flow_id], TODAY)
    finish(player, flow_id)


@pytest.mark.row("I8", "M38")
@pytest.mark.parametrize("claims", [1, 2])
def test_what_was_claimed_before_a_move_is_still_found_after_it(player: Player, claims: int) -> None:
    flow_id = player.create("deep", {"xs": [0, 3]})
    for _ in range(claims):
        assert player.record(player.work(player.claim(50))) == []
    player.now = NOON + datetime.timedelta(minutes=1)
    player.one("select dwarf.wake_v1(10, %s)", player.now)
    rows = player.claim(50)
    assert player.one("select dwarf.move_trees_v1(%s, %s) as n", [flow_id], TODAY).n == 1
    entries = player.work(rows)
    assert len(entries) == len(rows) > 0
    assert player.record(entries) == []


@pytest.mark.row("M38", "I34")
def test_days_are_dropped_under_writers_and_readers(player: Player, database: str) -> None:
    stopped = threading.Event()
    faults: list[BaseException] = []
    kept = [player.create("deep", {"xs": [1, 2, 4]}) for _ in range(5)]
    play(player)

    def write() -> None:
        try:
            with closing(scene(database, NOON + DAY)) as writer:
                while not stopped.is_set():
                    for url in ("line", "fan", "call", "again"):
                        writer.create(url, {"xs": [1, 2, 3]})
                    writer.run(50)
        except BaseException as fault:
            faults.append(fault)

    def read() -> None:
        try:
            with psycopg.connect(database, autocommit=True) as reader:
                while not stopped.is_set():
                    reader.execute("select count(*), max(ended_at) from dwarf.flows").fetchall()
                    reader.execute("select count(*) from dwarf.history where flow_id = any (%s)", (kept,)).fetchall()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            partitions.ensure(database, 1, now=NOON)
            player.now = NOON
            player.create("line")
            play(player)
            assert drop(player).is_done
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert not faults, faults
    assert {flow: found for flow, found in days(player, "live").items() if flow in kept} == {flow: {KEPT} for flow in kept}
    assert broken(database) == []
