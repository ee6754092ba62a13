"""Purges: what a query means goes, oldest first, hidden at once; and the archive of whole days, but for what is still needed."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg
import pytest

from dwarf import (
    END,
    Conflict,
    DwarfError,
    FlowKey,
    FlowOptions,
    Graph,
    InvalidArgument,
    NotFound,
    Query,
    Shard,
    ShardUnavailable,
    Status,
    SyncClient,
    TaskError,
    partitions,
    purging,
)
from dwarf.chores import Chores, Terms
from dwarf.flow import Flow
from dwarf.partitions import FIRST_DAY
from dwarf.pool import Pool, Unreached
from dwarf.testing.clock import advance
from tests.engine.conftest import MakeStage
from tests.engine.rows_support import Make, make_app, on_loop
from tests.engine.rows_support import line as chain
from tests.engine.stage import Stage, line
from tests.servers import wait_until
from tests.sql.plays import broken
from tests.sql.plays import play as play_due

DAY = datetime.timedelta(days=1)
NAIVE = datetime.datetime(2026, 1, 1)  # noqa: DTZ001
INTERRUPTED = Query(status="interrupted")


def write(flow: Flow) -> None:
    flow["wrote"] = True


def ask(flow: Flow) -> None:
    flow.interrupt({"question": 1})


def ask_twice(flow: Flow) -> None:
    flow["answers"] = [*flow.get_list("answers"), flow.interrupt({"question": 1})]
    if len(flow["answers"]) < 2:
        flow.goto("T")


def call(flow: Flow) -> None:
    flow.subgraph(flow.get_str("child") or "line")


def fail(flow: Flow) -> None:
    raise TaskError("Out Of Paper")


def sleep(flow: Flow) -> None:
    flow.sleep(86_400 * flow.get_int("days", 1))


TASKS = {"A": write, "B": write, "Q": ask, "P": call, "F": fail, "S": sleep, "T": ask_twice}
GRAPHS = {
    "line": line("A", "B", name="Straight"),
    "ask": line("Q", "B", name="ask"),
    "call": line("P", name="call"),
    "fail": line("F", name="fail"),
    "sleep": line("S", "B", name="sleep"),
    "again": line("T", "B", name="again").add_transition_goto("T", "T"),
}


def keys_of(on: Stage, query: Query, *, closed: bool = True) -> set[str]:
    """The keys of everything that a list shows."""
    found: set[str] = set()
    query = msgspec.structs.replace(query, limit=1000)
    while True:
        page = on.do(on.client.list_closed(query) if closed else on.client.list_open(query))
        found |= {flow.flow_key for flow in page}
        if not page.cursor:
            return found
        query = msgspec.structs.replace(query, cursor=page.cursor)


def doomed(on: Stage) -> set[int]:
    return {row.flow_id for player in on.players for row in player.all("select flow_id from dwarf.doomed")}


def ids_of(keys: set[str] | list[str]) -> set[int]:
    return {FlowKey.parse(key).flow_id for key in keys}


def play(on: Stage) -> None:
    """Run every flow as far as it goes; sleepers whose time has not come sleep on."""
    for player in on.players:
        player.do(player.store.wake(1000))
        play_due(player)


def make(on: Stage, *urls: str, **options: Any) -> list[str]:
    made = on.do(on.client.create_many([(url, {}, FlowOptions(**options)) for url in urls]))
    play(on)
    return made


def prefer(on: Stage, keys: list[str], priority: int, fairness_key: str = "") -> None:
    """Give flows another priority and fairness key: those that the players play have one and the same."""
    for player in on.players:
        for table in ("live", "active", "flows"):
            change = f"update dwarf.{table} set priority = %s, fairness_key = %s where flow_id = any (%s)"
            player.connection.execute(change, (priority, fairness_key, list(ids_of(keys))))


def forged(on: Stage, count: int, shard: int = 1, *, parts: int = 1) -> None:
    """Put closed roots into a shard without running them, and a child under each."""
    [sample] = make(on, "line", thread_key="")
    player = on.players[FlowKey.parse(sample).shard - 1]
    columns = "day, status, priority, graph_id, budget_ms, weight, created_at, ended_at, token, workflow, fairness_key"
    rows = player.all(f"select {columns} from dwarf.flows where flow_id = %s", FlowKey.parse(sample).flow_id)
    [template] = rows
    target = on.players[shard - 1]
    marks = ", ".join(["%s"] * len(template))
    for child in (0, 1):
        target.connection.execute(
            f"""insert into dwarf.flows (flow_id, root_id, thread_id, {columns})
            select {template.day}::bigint * 24 << 36 | (10000000 + i * 2 + %s), {template.day}::bigint * 24 << 36 | (10000000 + i * 2), 0, {marks}
            from generate_series(1, %s) i where i %% %s = %s""",
            (child, *template, count, parts, shard % parts),
        )
    on.do(on.client.delete(sample))
    player.one("select dwarf.reap_v1(10)")


# ---- what a purge takes ----


@pytest.mark.row("I18", "I12")
def test_the_oldest_4096_go_in_a_call_and_calling_on_comes_to_0(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    forged(on, 4_100)
    [open_flow] = make(on, "ask")
    roots = sorted(row.flow_id for row in on.player.all("select flow_id from dwarf.flows where root_id = flow_id"))
    assert len(roots) == 4_100
    assert on.do(on.client.purge(Query())) == 4_096
    assert doomed(on) == set(roots[:4_096]), "the oldest, and no child"
    assert on.do(on.client.purge(Query())) == 4
    assert on.do(on.client.purge(Query())) == 0
    assert keys_of(on, Query(include_subgraphs=True)) == set(), "hidden at once, children too"
    assert keys_of(on, Query(), closed=False) == {open_flow}


@pytest.mark.row("I18")
def test_the_oldest_over_all_shards_go_first(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    for shard in (1, 2):
        forged(on, 600, shard, parts=2)
    roots = sorted(row.flow_id for player in on.players for row in player.all("select flow_id from dwarf.flows where root_id = flow_id"))
    assert [len(player.all("select 1 from dwarf.flows where root_id = flow_id")) for player in on.players] == [300, 300]
    assert on.do(on.client.purge(Query(limit=401))) == 401
    assert doomed(on) == set(roots[:401])
    assert on.do(on.client.purge(Query(limit=1, shard=2))) == 1
    taken = [on.do(on.client.purge(Query(limit=100))) for _ in range(3)]
    assert taken == [100, 98, 0]


@pytest.mark.row("I28", "I18")
def test_every_filter_means_what_it_means_in_lists(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    urls = ["line", "fail", "call", "ask"]
    first = make(on, *urls) + make(on, *urls)
    prefer(on, first[:4], 1, "Ada")
    prefer(on, first[4:], 2, "ada")
    thread = make(on, "line", "fail", thread_key=first[0])
    for key in (first[3], first[7]):
        on.do(on.client.terminate(key, "No More"))
    [waiting] = make(on, "ask")
    noon = on.player.one("select dwarf.now() as now").now
    now = datetime.timedelta()
    queries: list[dict[str, Any]] = [
        {"status": "failed"}, {"status": Status.TERMINATED}, {"status": "cancelled"}, {"status": "running"}, {"workflow_url": "line"},
        {"workflow_name": "Straight"}, {"workflow_name": "straight"}, {"thread_key": thread[0]}, {"task_name": "F"}, {"task_name": "Q"},
        {"fairness_key": "ada"}, {"priority": 1}, {"priority": 3}, {"older_than": noon + DAY}, {"newer_than": noon + DAY},
        {"newer_than": noon - DAY, "older_than": noon + DAY}, {"older_than": 86_400}, {"newer_than": DAY}, {"older_than": now},
        {"shard": 1}, {"search": "out of"}, {"search": "NO MORE"}, {"search": "straight"}, {"search": "zzz"},
        {"search": first[0]}, {"search": first[0][:-1] + ("0" if first[0][-1] != "0" else "1")}, {"search": FlowKey.parse(first[1]).name},
        {"search": thread[1], "status": "completed"}, {"status": "failed", "fairness_key": "Ada", "shard": 2}, {"search": waiting}, {},
    ]  # fmt: skip
    for filters in queries:
        query = Query(**filters)
        wanted = keys_of(on, query) if filters.get("status") != "running" else set()
        assert on.do(on.client.purge(query)) == len(wanted), query
        assert doomed(on) == ids_of(wanted), query
        for player in on.players:
            player.connection.execute("delete from dwarf.doomed")
    step = on.do(on.client.history(first[2]))[0]
    assert on.do(on.client.purge(Query(search=step.step_key))) == 1, "a step's key finds its flow"
    assert doomed(on) == ids_of([first[2]])
    assert on.do(on.client.purge(Query(search=step.sub_flow_key))) == 0, "a child is not taken"
    assert on.do(on.client.snapshot(waiting)).status == "interrupted", "it was never meant"


@pytest.mark.row("I17", "I27")
def test_what_is_no_purge_is_refused_and_nothing_is_marked(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    [key] = make(on, "line")
    unknown = str(FlowKey(1, FlowKey.parse(key).flow_id + 99, "0" * 16))
    wrong: list[Any] = [
        None, "line", {}, Query(include_subgraphs=True), Query(cursor="x"), Query(limit=4_097), Query(limit=-1), Query(status="done"),
        Query(shard=2), Query(thread_key="x"), Query(priority=101), Query(older_than=-1), Query(search="x" * 257),
        Query(older_than=NAIVE), Query(limit=True),
    ]  # fmt: skip
    for query in wrong:
        with pytest.raises(InvalidArgument) as caught:
            on.do(on.client.purge(query))
        assert caught.value.status == 400
    for thread in (unknown, "2" + key[1:]):
        with pytest.raises(NotFound) as missing:
            on.do(on.client.purge(Query(thread_key=thread)))
        assert key[-16:] not in str(missing.value)
    assert doomed(on) == set()
    on.do(on.client.close())
    with pytest.raises(ShardUnavailable):
        on.do(on.client.purge(Query()))


@pytest.mark.row("I12", "I23", "I10")
def test_what_is_marked_is_hidden_at_once_answers_until_it_is_removed_and_then_is_gone(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = make(on, "call", "fail")
    child = on.child(keys[0])
    [soon] = make(on, "line", delete_on_completion=True)
    assert on.do(on.client.purge(Query())) == 2, "what is to go by itself is deleted already"
    assert keys_of(on, Query(include_subgraphs=True)) == set()
    for key in keys:
        assert on.do(on.client.snapshot(key)).stopped
        with pytest.raises(NotFound):
            on.do(on.client.history(key))
        on.do(on.client.delete(key))  # again is fine
    with pytest.raises(Conflict):
        on.do(on.client.continue_flow(keys[0]))
    assert on.player.one("select dwarf.reap_v1(100) as n").n == 2
    for key in (*keys, child):
        with pytest.raises(NotFound):
            on.do(on.client.snapshot(key))
    assert on.do(on.client.snapshot(soon)).status == "completed"
    acts = on.player.all("select verb, flow_id from dwarf.audit where verb = 'delete'")
    assert {act.flow_id for act in acts} == ids_of(keys)
    assert broken(on.shards[0].dsn) == []


# ---- interrupted flows ----


@pytest.mark.row("I15", "I13", "C1")
def test_interrupted_flows_go_only_where_they_are_asked_for_and_end_terminated(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    asking = make(on, "ask", "ask", "call")
    [nested] = on.do(on.client.create_many([("call", {"child": "ask"})]))
    play(on)
    [sleeping, done] = make(on, "sleep", "line")
    assert on.do(on.client.purge(Query(workflow_url="ask"))) == 0
    assert on.do(on.client.snapshot(asking[0])).status == "interrupted"
    waiting = on.spawn(on.client.wait(sleeping))
    assert on.do(on.client.purge(INTERRUPTED)) == 3
    for key in (*asking[:2], nested, on.child(nested)):
        outcome = on.do(on.client.snapshot(key))
        assert (outcome.status, outcome.reason) == ("terminated", "purged")
    for key in (asking[0], nested):
        with pytest.raises(Conflict):
            on.do(on.client.resume(key))
    assert doomed(on) == ids_of([*asking[:2], nested])
    assert on.do(on.client.purge(INTERRUPTED)) == 0
    assert on.do(on.client.purge(Query(status="running"))) == 0
    assert not waiting.done()
    assert on.do(on.client.snapshot(sleeping)).status == "running"
    assert keys_of(on, Query()) == {asking[2], done}
    assert broken(on.shards[0].dsn) == []
    waiting.cancel()


@pytest.mark.row("I28", "I15")
def test_filters_of_interrupted_flows_are_those_of_the_list_of_open_ones(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    prefer(on, make(on, "ask", "again"), 3, "ada")
    prefer(on, make(on, "ask"), 1)
    now = on.player.one("select dwarf.now() as now").now
    for filters in (
        {"workflow_url": "ask"}, {"task_name": "Q"}, {"task_name": "B"}, {"fairness_key": "ada"}, {"priority": 1}, {"search": "aGa"}, {"search": "q"},
        {"older_than": now + DAY}, {"newer_than": now + DAY}, {"older_than": DAY}, {"newer_than": 3600}, {},
    ):  # fmt: skip
        query = Query(status="interrupted", **filters)
        checked = query.check_purge()
        page = on.do(on.client.list_open(query))
        found = on.do(on.client._shards[1].purging.find(checked))
        assert {row.flow_id for row in found} == ids_of({flow.flow_key for flow in page}), filters
        assert all(checked.matches(flow, now=now) for flow in page)


def found_first(on: Stage) -> Any:
    """Find what a purge of interrupted flows means, and return what deletes it later."""
    shard = on.client._shards[1].purging
    rows = on.do(shard.find(INTERRUPTED.check_purge()))
    return lambda: on.do(shard.delete(rows))


@pytest.mark.row("I15", "B8")
def test_a_flow_that_was_resumed_first_is_left_alone_whatever_became_of_it(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    due, ended, anew, still = make(on, "ask", "ask", "again", "ask")
    delete = found_first(on)
    for key in (ended, anew):
        on.do(on.client.resume(key))
    play(on)
    on.do(on.client.resume(due))
    assert [str(on.do(on.client.snapshot(key)).status) for key in (due, ended, anew)] == ["running", "completed", "interrupted"]
    deleted = delete()
    assert (deleted.count, deleted.failure) == (1, None)
    assert doomed(on) == ids_of([still])
    assert [str(on.do(on.client.snapshot(key)).status) for key in (due, ended, anew)] == ["running", "completed", "interrupted"]
    assert on.do(on.client.purge(INTERRUPTED)) == 1, "it is interrupted anew"
    play(on)
    assert on.do(on.client.snapshot(due)).status == "completed"
    assert broken(on.shards[0].dsn) == []


TROUBLE = """
create function dwarf.trouble() returns trigger language plpgsql as $$ begin raise 'trouble'; end $$;
create trigger trouble before {what} for each row when (old.flow_id = {flow}) execute function dwarf.trouble()"""


@contextmanager
def trouble(dsn: str, what: str, key: str) -> Iterator[None]:
    """Have every change of a kind fail for one flow."""
    table = what.rpartition(" ")[2]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TROUBLE.format(what=what, flow=FlowKey.parse(key).flow_id).encode())
        try:
            yield
        finally:
            connection.execute(f"drop trigger trouble on {table}; drop function dwarf.trouble()".encode())


@pytest.mark.row("I15")
def test_one_that_cannot_be_terminated_keeps_no_other_from_it_and_is_told(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = make(on, *["ask"] * 4)
    with trouble(on.shards[0].dsn, "update on dwarf.live", keys[1]), pytest.raises(DwarfError, match="trouble") as caught:
        on.do(on.client.purge(INTERRUPTED))
    assert "shard 1" in str(caught.value)
    assert "3 flows have been marked" in str(caught.value)
    assert doomed(on) == ids_of([keys[0], *keys[2:]])
    assert on.do(on.client.purge(INTERRUPTED)) == 1


# ---- shards that are down ----


@pytest.mark.row("I33")
def test_a_shard_that_is_down_fails_the_purge_before_anything_is_marked(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    keys = make(on, *["line"] * 20)
    here = {key for key in keys if FlowKey.parse(key).shard == 1}

    async def away(work: Any, **named: Any) -> Any:
        raise Unreached("shard 2 cannot be reached: no route")

    with monkeypatch.context() as patched:
        patched.setattr(on.client._shards[2].pool, "run", away)
        with pytest.raises(ShardUnavailable, match="shard 2") as caught:
            on.do(on.client.purge(Query()))
        assert caught.value.status == 503
        assert doomed(on) == set()
        assert on.do(on.client.purge(Query(shard=1, limit=1))) == 1
        with pytest.raises(ShardUnavailable, match="shard 2"):
            on.do(on.client.purge_before(datetime.date(2001, 1, 1)))
    assert on.do(on.client.purge(Query())) == 19
    assert len(here) >= 1


@pytest.mark.row("I33")
def test_a_shard_that_goes_down_meanwhile_is_named_beside_what_was_marked(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    keys = make(on, *["line"] * 20)
    here = {key for key in keys if FlowKey.parse(key).shard == 1}
    pool, run = on.client._shards[2].pool, on.client._shards[2].pool.run

    async def lost(work: Any, *, is_repeatable: bool = True, **named: Any) -> Any:
        if is_repeatable:
            return await run(work, is_repeatable=is_repeatable, **named)
        raise ShardUnavailable("shard 2 was lost before it answered; what was asked may have been done: gone")

    with monkeypatch.context() as patched:
        patched.setattr(pool, "run", lost)
        with pytest.raises(ShardUnavailable, match=rf"shard 2 was lost .*; {len(here)} flows have been marked"):
            on.do(on.client.purge(Query()))
    assert doomed(on) == ids_of(here)
    assert on.do(on.client.purge(Query())) == 20 - len(here)
    assert on.do(on.client.purge(Query())) == 0


def test_purges_at_once_count_every_flow_once_and_none_ends_too_early(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    forged(on, 400)
    other = on.open()

    async def all_of_it(client: Any) -> int:
        total = 0
        while taken := await client.purge(Query(limit=30)):
            total += taken
        return total

    async def at_once() -> list[int]:
        return await asyncio.gather(*(all_of_it(client) for client in (on.client, other, on.client)))

    assert sum(on.do(at_once())) == 400
    assert len(doomed(on)) == 400


@pytest.mark.row("I18")
def test_flows_that_were_moved_are_purged_and_removed(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = make(on, "call", "line")
    [asking] = make(on, "ask")
    today = on.player.one("select dwarf.day_of(dwarf.now()) as day").day
    for key in (*keys, asking):
        on.player.one("select dwarf.move_trees_v1(array[%s], %s)", FlowKey.parse(key).flow_id, today)
    assert on.do(on.client.purge(Query())) == 2
    assert on.do(on.client.purge(INTERRUPTED)) == 1
    assert on.player.one("select dwarf.reap_v1(10) as n").n == 3
    assert [on.count(table) for table in ("flows", "history", "live", "active", "doomed")] == [0] * 5


# ---- whole days ----


def to_noon(on: Stage) -> datetime.date:
    """Move the clocks to the next noon, so that a test never meets midnight, and return the day."""
    now = on.player.one("select dwarf.now() as now").now
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0)
    forward(on, (noon - now) % DAY)
    return today(on)


def forward(on: Stage, duration: datetime.timedelta) -> None:
    for shard in on.shards:
        advance(shard.dsn, duration)


def today(on: Stage) -> datetime.date:
    days: int = on.player.one("select dwarf.day_of(dwarf.now()) as day").day
    return FIRST_DAY + days * DAY


def parts(on: Stage, shard: int = 1) -> list[datetime.date]:
    rows = on.players[shard - 1].all("select distinct day from dwarf.partitions_v1() order by 1")
    return [FIRST_DAY + row.day * DAY for row in rows]


def drop(on: Stage, day: Any) -> int:
    return on.do(on.client.purge_before(day))


@pytest.mark.row("I20", "I5")
def test_the_archive_of_the_days_before_goes_whole_and_what_is_open_stays(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    first = to_noon(on)
    closed = make(on, "line", "call", "fail", idempotency_key="")
    [asking] = make(on, "ask")
    sleeping, nested = on.do(on.client.create_many([("sleep", {"days": 3}), ("call", {"child": "ask"})]))
    play(on)
    forward(on, DAY)
    second = make(on, "line")
    assert drop(on, first) == sum(day < first for day in parts(on)) == 0
    forward(on, 2 * DAY)
    assert drop(on, first + 2 * DAY) == 2, "the first day and the second"
    for key in (*closed, *second):
        with pytest.raises(NotFound):
            on.do(on.client.snapshot(key))
    for table in ("live", "active", "history"):
        assert {row.day for row in on.player.all(f"select day from dwarf.{table}")} == {-1}, table
    assert min(parts(on)) == first + 2 * DAY
    assert broken(on.shards[0].dsn) == []
    assert drop(on, first + 2 * DAY) == 0, "again is fine"
    play(on)
    for key in (asking, nested):
        on.do(on.client.resume(key))
    play(on)
    for key in (asking, sleeping, nested):
        assert on.do(on.client.snapshot(key)).status == "completed"
        assert on.do(on.client.history(key))
    assert drop(on, first + 3 * DAY) == 1
    assert on.do(on.client.snapshot(asking)).status == "completed", "it ended today"
    forward(on, DAY)
    assert drop(on, first + 4 * DAY) == 1
    assert [on.count(table) for table in ("flows", "history", "live", "active", "parks")] == [0] * 5
    notes = on.player.all("select detail from dwarf.audit where verb = 'drop'")
    assert [note.detail["before"] for note in notes][-1] == str(first + 4 * DAY)


@pytest.mark.row("I20")
def test_a_day_that_is_not_over_and_what_is_no_day_are_refused(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    [key] = make(on, "line")
    wrong: list[Any] = [day + DAY, day + 400 * DAY, datetime.date.max, NAIVE, "2026-01-01", 20, None, 1.5, True]
    for value in wrong:
        with pytest.raises(InvalidArgument, match="day"):
            drop(on, value)
    assert drop(on, datetime.date.min) == drop(on, datetime.date(1999, 12, 31)) == drop(on, FIRST_DAY) == 0
    assert drop(on, day) == 0, "all before today"
    forward(on, 2 * DAY)
    east = datetime.timezone(datetime.timedelta(hours=2))
    begun = datetime.datetime.combine(day + DAY, datetime.time(1), east)
    assert drop(on, begun) == 0, "in UTC it is the day before"
    assert on.do(on.client.snapshot(key)).status == "completed"
    assert drop(on, begun + datetime.timedelta(hours=1)) == 1
    with pytest.raises(NotFound):
        on.do(on.client.snapshot(key))
    on.do(on.client.close())
    with pytest.raises(ShardUnavailable):
        drop(on, day)


@pytest.mark.row("I20")
def test_shards_drop_side_by_side_and_a_day_counts_once(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS, shards=2)
    day = to_noon(on)
    make(on, *["line"] * 10)
    for player in on.players[1:]:  # of which one has had a longer life
        player.one("select dwarf.ensure_partitions(0, dwarf.now() - interval '2 days')")
    forward(on, DAY)
    assert drop(on, day + DAY) == 2
    assert on.count("flows") == 0
    assert [min(parts(on, shard)) for shard in (1, 2)] == [day + DAY] * 2
    assert drop(on, day + DAY) == 0


def test_without_a_loop_and_from_a_task(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    make(on, "line", "line")
    forward(on, DAY)
    with SyncClient([Shard(1, on.shards[0].dsn)]) as client:
        assert client.purge(Query(limit=1)) == 1
        assert client.purge_before(day + DAY) == 1
        assert client.purge(Query()) == 0


@on_loop
async def test_in_a_task(dwarf_engine: Make) -> None:
    async def tidy(flow: Flow) -> None:
        flow["purged"] = await flow.client.purge(Query(workflow_url="w"))
        flow["days"] = await flow.client.purge_before(datetime.date(2001, 1, 1))

    def tidy_blocking(flow: Flow) -> None:
        flow["purged"] = flow.client.purge(Query(workflow_url="w"))
        flow["days"] = flow.client.purge_before(datetime.date(2001, 1, 1))

    app = make_app({"w": chain("A"), "tidy": chain("T"), "blocking": chain("U")}, {"T": tidy, "U": tidy_blocking})
    async with dwarf_engine(app) as engine:
        for url in ("tidy", "blocking"):
            await engine.run("w")
            assert (await engine.run(url))[1].state == {"purged": 1, "days": 0}


# ---- cut short anywhere ----


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "PATIENCE_SECONDS", 0.6)


@pytest.mark.usefixtures("quick")
def test_one_that_does_not_come_to_an_end_says_how_far_it_came(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    make(on, "line")
    forward(on, DAY)
    dsn = on.shards[0].dsn
    with psycopg.connect(dsn) as other:
        other.execute("select pg_advisory_xact_lock(hashtext('dwarf retention'), 0)")
        with pytest.raises(ShardUnavailable, match="shard 1: another session .*; 0 days have been dropped"):
            drop(on, day + DAY)
    with psycopg.connect(dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("select count(*) from dwarf.flows")
        with pytest.raises(ShardUnavailable, match="shard 1"):
            drop(on, day + DAY)
        [(count,)] = reader.execute("select count(*) from dwarf.flows").fetchall()
        assert count == 1, "what it saw it still sees"
    assert drop(on, day + DAY) == 1
    assert on.count("flows") == on.count("history") == 0


@pytest.mark.row("I4", "I20", "I5")
def test_a_flow_that_cannot_be_moved_stays_with_its_day_and_keeps_no_other_day_from_it(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    stuck, fine, _ = make(on, "ask", "ask", "line")
    before = on.do(on.client.history(stuck))
    forward(on, DAY)
    make(on, "line")
    forward(on, DAY)
    with trouble(on.shards[0].dsn, "update on dwarf.live", stuck):
        for _ in range(2):
            with pytest.raises(
                DwarfError, match=f"shard 1: day {day} has to stay: flow {FlowKey.parse(stuck).name} cannot be moved: trouble"
            ) as caught:
                drop(on, day + 2 * DAY)
            assert parts(on)[:2] == [day, day + 2 * DAY]
            assert broken(on.shards[0].dsn) == []
    assert caught.value.status == 500
    assert on.do(on.client.snapshot(stuck)).status == "interrupted"
    assert on.do(on.client.history(stuck)) == before
    assert on.row(fine).day == -1, "the others of its day have been moved"
    assert drop(on, day + 2 * DAY) == 1
    for key in (stuck, fine):
        on.do(on.client.resume(key))
    play(on)
    assert on.do(on.client.snapshot(stuck)).status == "completed"


@pytest.mark.row("I4", "I5")
def test_retention_that_cannot_move_a_flow_says_so_each_time_and_loses_nothing(stage: MakeStage, caplog: pytest.LogCaptureFixture) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    stuck, beside = make(on, "ask", "line")
    forward(on, DAY)
    make(on, "line", "ask")
    forward(on, 3 * DAY)
    pool = Pool(on.shards[0].dsn, size=1, name="shard 1")
    chores = Chores(pool, on.shards[0].dsn, Terms(retention_days=1))
    name = FlowKey.parse(stuck).name
    with trouble(on.shards[0].dsn, "update on dwarf.live", stuck):
        for dropped in (1, 0, 0):
            caplog.clear()
            done = on.do(chores.do(on.player.session))
            assert (set(done.faults), done.dropped, done.is_behind) == ({"retention"}, dropped, False)
            assert str(done.faults["retention"]) == f"day {day} has to stay: flow {name} cannot be moved: trouble"
            lines = [record.getMessage() for record in caplog.records if record.name == "dwarf"]
            assert [f"shard 1: retention has to wait for the next round: day {day}" in line and name in line for line in lines] == [True]
            assert stuck[-16:] not in caplog.text
            assert on.do(on.client.snapshot(stuck)).status == "interrupted"
            assert on.do(on.client.snapshot(beside)).status == "completed", "its day stays as it is"
            assert parts(on)[:2] == [day, day + 2 * DAY]
            assert broken(on.shards[0].dsn) == []
    done = on.do(chores.do(on.player.session))
    assert (done.faults, done.dropped) == ({}, 1)
    assert on.row(stuck).day == -1
    assert keys_of(on, Query()) == set()

    async def leave() -> None:
        pool.close()

    on.do(leave())


@pytest.mark.row("I4")
def test_a_kept_flow_that_cannot_be_removed_keeps_no_other_from_it(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    keys = make(on, *["ask"] * 3)
    forward(on, DAY)
    drop(on, day + DAY)
    for key in keys:
        on.do(on.client.resume(key))
    play(on)
    forward(on, DAY)
    with (
        trouble(on.shards[0].dsn, "delete on dwarf.history_kept", keys[0]),
        pytest.raises(DwarfError, match=r"flow \S+ cannot be removed: trouble"),
    ):
        drop(on, day + 2 * DAY)
    assert keys_of(on, Query()) == {keys[0]}
    assert drop(on, day + 2 * DAY) == 0
    assert keys_of(on, Query()) == set()


def test_a_drop_whose_connection_is_lost_says_so_and_goes_on_next_time(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    make(on, "line", "ask")
    forward(on, DAY)
    taken = partitions.Dropping._take
    pieces = 0

    def cut(self: Any, connection: Any) -> Any:
        nonlocal pieces
        pieces += 1
        if pieces == cut_at:
            with psycopg.connect(on.shards[0].dsn, autocommit=True) as killer:
                killer.execute("select pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
        return taken(self, connection)

    monkeypatch.setattr(partitions.Dropping, "_take", cut)
    for cut_at in range(1, 8):  # noqa: B007 - cut looks at it
        pieces = 0
        try:
            drop(on, day + DAY)
        except ShardUnavailable as error:
            assert "shard 1" in str(error)  # noqa: PT017
            assert "days have been dropped" in str(error)  # noqa: PT017
        else:
            break
        assert broken(on.shards[0].dsn) == []
    assert min(parts(on)) == day + DAY
    assert on.count("flows") == 0
    assert on.count("live") == 1


def test_one_that_is_cancelled_ends_its_thread_and_may_be_asked_again(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    dsn = on.shards[0].dsn
    make(on, "line", "ask")
    forward(on, DAY)
    with psycopg.connect(dsn) as other:
        other.execute("select pg_advisory_xact_lock(hashtext('dwarf retention'), 0)")
        task = on.spawn(on.client.purge_before(day + DAY))
        on.turn_until(lambda: on.player.all("select 1 from pg_stat_activity where application_name = 'dwarf partitions'"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            on.do(task)
        left = "select 1 from pg_stat_activity where application_name = 'dwarf partitions'"
        wait_until(lambda: not on.player.all(left), "its thread has ended")
        closing = on.spawn(on.client.purge_before(day + DAY))
        on.turn_until(lambda: on.player.all(left))
        on.do(on.client.close())
        with pytest.raises(ShardUnavailable, match="closed"):
            on.do(closing)
    on.client = on.open()
    assert drop(on, day + DAY) == 1


def test_drops_at_once_count_every_day_once(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    day = to_noon(on)
    for _ in range(5):
        make(on, "line", "ask")
        forward(on, DAY)
    other = on.open()

    async def at_once() -> list[int]:
        return await asyncio.gather(*(client.purge_before(day + 5 * DAY) for client in (on.client, other, other)))

    assert sum(on.do(at_once())) == 5
    assert on.count("live") == 5
    assert on.count("flows") == 0
    assert broken(on.shards[0].dsn) == []


def test_a_purge_goes_through_all_there_is_in_small_looks(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    on = stage(GRAPHS, TASKS)
    monkeypatch.setattr(purging, "SCAN_ROOTS_MAX", 7)
    monkeypatch.setattr(purging, "DELETE_AT_ONCE", 3)
    make(on, *["line"] * 20, "fail", "fail", *["line"] * 10, "fail")
    assert on.do(on.client.purge(Query(status="failed"))) == 3
    assert on.do(on.client.purge(Query(limit=25))) == 25
    assert on.do(on.client.purge(Query())) == 5


@on_loop
@pytest.mark.row("G35", "C12")
async def test_a_purge_of_an_interrupted_flow_stops_what_else_runs_in_it(dwarf_engine: Make) -> None:
    graph = Graph("two").add_transition_fan_out("Go", "Ask", "Work").add_transition("Ask", "Join").add_transition("Work", "Join")
    graph.set_fan_in("Join").add_transition("Join", END)
    withdrawn = asyncio.Event()
    started = asyncio.Event()

    async def work(flow: Flow) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    async with dwarf_engine(make_app({"two": graph}, {"Ask": ask, "Work": work})) as engine:
        key = await engine.create("two")
        assert (await engine.wait(key)).status == "interrupted"
        await started.wait()
        waiter = asyncio.create_task(engine.wait(key))
        await waiter
        assert await engine.purge(Query(status="interrupted")) == 1
        assert (await engine.wait(key)).status == "terminated"
        await withdrawn.wait()
