"""Writing through a lane: what a lost connection, a silent backend, a poisonous value and a deadlock leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from dwarf.batch import Entry
from dwarf.database import Connection, ConnectionLost
from dwarf.lanes import LaneLost, LaneWriter, Written
from dwarf.record import Kind, Record
from dwarf.status import StepStatus
from dwarf.store import NewFlows, Store

Until = Callable[[Callable[[], object], str], None]


class Rig:
    """A session with flows of one running step each, and a view of what is stored."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.view: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row)
        self.view.execute("select dwarf.ensure_partitions(1)")

    async def start(self, flows: int) -> list[Entry]:
        connection = await Connection.open(self.dsn)
        store = Store(connection)
        self.session = await store.start_session(1, life_ms=30_000)
        (graph_id,) = await store.put_graphs([(b"x" * 32, "g", "A", b"{}")])
        new = NewFlows(["0" * 16] * flows, ["g"] * flows, [graph_id] * flows, ["A"] * flows, [b"{}"] * flows, [3] * flows, [1000] * flows)
        ids, _ = await store.create_flows(new, session=self.session)
        connection.close()
        return [self.entry(flow_id) for flow_id in ids]

    def entry(self, flow_id: int, **parts: Any) -> Entry:
        record = Record(kind=Kind.CLOSE, branch=0, seq=1, lease=1, changes=b'{"n":1}', final_state=b'{"n":1}')
        for name, value in parts.items():
            setattr(record, name, value)
        return Entry(flow_id, flow_id, record)

    def writer(self, connect: Callable[[], Awaitable[Connection]] | None = None) -> LaneWriter:
        return LaneWriter(self.session, 0, connect or (lambda: Connection.open(self.dsn)), self.fail)

    def fail(self, entry: Entry, text: str) -> Entry:
        return self.entry(
            entry.flow_id, status=StepStatus.FAILED, error=f"cannot be stored: {text}"[:200], changes=b"{}", final_state=b"{}"
        )

    def closed(self) -> dict[int, int]:
        return {row.flow_id: row.status for row in self.view.execute("select flow_id, status from dwarf.flows").fetchall()}

    def steps(self) -> int:
        (count,) = self.view.execute("select count(*) from dwarf.history").fetchall()[0]
        return int(count)


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    made = Rig(database)
    yield made
    made.view.close()


def test_what_a_lane_writes(rig: Rig) -> None:
    async def play() -> None:
        entries = await rig.start(5)
        writer = rig.writer()
        assert await writer.write(entries[:3]) is not None
        again = await writer.write(entries)
        assert sorted(entry.flow_id for entry in again.missed) == sorted(entry.flow_id for entry in entries[:3])
        writer.close()

    asyncio.run(play())
    assert len(rig.closed()) == rig.steps() == 5


@pytest.mark.row("M29", "G9")
def test_a_commit_that_nobody_heard_of_is_not_sent_again(rig: Rig) -> None:
    """The reply is dropped after the server has committed; the lane's row tells, and keeps what the batch missed."""

    class Deaf(Connection):
        lost = False

        async def execute(self, statement: bytes, parameters: Any = (), **how: Any) -> Any:
            result = await super().execute(statement, parameters, **how)
            if b"dwarf.record_" in statement and not Deaf.lost:
                Deaf.lost = True
                self.close()
                raise ConnectionLost("the reply was dropped")
            return result

    async def play() -> None:
        entries = await rig.start(4)
        first = rig.writer()
        await first.write(entries[:1])
        first.close()
        writer = rig.writer(lambda: Deaf.open(rig.dsn))
        written = await writer.write(entries)
        assert [entry.flow_id for entry in written.missed] == [entries[0].flow_id]
        assert writer.reconnected == 2
        writer.close()

    asyncio.run(play())
    assert Deaf.lost
    assert len(rig.closed()) == rig.steps() == 4


@pytest.mark.row("G10", "M14")
def test_a_batch_whose_connection_dies_before_the_commit_is_sent_again(rig: Rig, until: Until) -> None:
    """Its backend waits for a row lock and is ended there."""

    async def play() -> None:
        entries = await rig.start(3)
        writer = rig.writer()
        await writer.open()
        with psycopg.connect(rig.dsn) as blocker:
            blocker.execute("select from dwarf.live where flow_id = %s for update", (entries[1].flow_id,))
            writing = asyncio.create_task(writer.write(entries))
            pid = await waiting_backend(rig)
            rig.view.execute("select pg_terminate_backend(%s)", (pid,))
            await asyncio.to_thread(until, lambda: not alive(rig, pid), "the backend to end")
        assert (await writing).missed == []
        assert writer.reconnected == 2
        writer.close()

    asyncio.run(play())
    assert len(rig.closed()) == rig.steps() == 3


RECORD = """select state, missed from dwarf.record_v1(%s, 0::smallint, %s, %s, array[%s]::bigint[], array[1], array[1], array[6]::smallint[]
, array['']::text[], array['{}']::json[], array['{}']::json[], p_closing => array[%s]::bigint[])"""


@pytest.mark.row("G16")
def test_a_backend_that_outlives_its_process_is_ended_by_whoever_opens_the_lane(rig: Rig) -> None:
    """It waits for a row inside the call when its lane is opened anew: its batch is not applied, and is stale if it comes late."""

    async def play() -> None:
        entries = await rig.start(3)
        first, second = rig.writer(), rig.writer()
        await first.open()
        first.close()
        flow_id = entries[0].flow_id
        call = (rig.session, 1, 1, flow_id, flow_id)
        zombie = psycopg.connect(rig.dsn, autocommit=True)
        with psycopg.connect(rig.dsn) as blocker:
            blocker.execute("select from dwarf.live where flow_id = %s for update", (flow_id,))
            stuck = asyncio.create_task(asyncio.to_thread(zombie.execute, RECORD, call))
            await waiting_backend(rig)
            assert (await second.write(entries[1:])).missed == []
            with pytest.raises(psycopg.errors.AdminShutdown):
                await stuck
        assert sorted(rig.closed()) == sorted(entry.flow_id for entry in entries[1:])
        late = rig.view.execute(RECORD, call).fetchall()[0]
        assert (late.state, late.missed) == ("stale", None)
        assert (await second.write(entries[:1])).missed == []
        repeated = rig.view.execute(RECORD, (rig.session, 2, 2, flow_id, flow_id)).fetchall()[0]
        assert (repeated.state, repeated.missed) == ("repeated", None)
        second.close()

    asyncio.run(play())
    assert len(rig.closed()) == rig.steps() == 3


@pytest.mark.row("L14")
def test_one_poisonous_value_among_two_hundred(rig: Rig) -> None:
    """A text with NUL, which no text column holds, stands for any value the server refuses."""

    async def play() -> None:
        entries = await rig.start(200)
        poison = entries[77].record
        poison.via, poison.status, poison.error = type(poison.via)(2), StepStatus.FAILED, "a\0b"
        writer = rig.writer()
        written = await writer.write(entries)
        assert [entry.flow_id for entry, _ in written.poisoned] == [entries[77].flow_id]
        assert not written.missed
        assert not written.unstorable
        writer.close()
        assert rig.closed()[entries[77].flow_id] == 7

    asyncio.run(play())
    assert sorted(rig.closed().values()) == [6] * 199 + [7]
    (row,) = rig.view.execute("select error from dwarf.flows where status = 7").fetchall()
    assert "cannot be stored" in row.error


def test_what_stands_beside_a_poisonous_value_is_recorded_once_whatever_becomes_of_the_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value is refused, and a part of the batch is more than the server takes: who is left out is told, and nobody else."""
    original = Store.record

    async def play() -> None:
        entries = sorted(await rig.start(8), key=lambda entry: entry.flow_id)
        poison = entries[1].record
        poison.via, poison.status, poison.error = type(poison.via)(2), StepStatus.FAILED, "a\0b"

        async def record(self: Store, lane: Any, batch: Any, *, now: Any = None) -> Any:
            if len(batch.entries) < 8 and entries[0] in batch.entries:
                raise psycopg.errors.OutOfMemory("out of memory")
            return await original(self, lane, batch, now=now)

        monkeypatch.setattr(Store, "record", record)
        writer = rig.writer()
        written = await writer.write(entries)
        assert entries[0] in written.unsent
        assert len(written.unsent) == 4
        assert [entry for entry, _ in written.poisoned] == [entries[1]]
        assert (written.missed, written.unstorable) == ([], [])
        assert sorted(rig.closed()) == [entry.flow_id for entry in entries if entry not in written.unsent]
        monkeypatch.setattr(Store, "record", original)
        assert await writer.write(written.unsent) == Written()
        writer.close()

    asyncio.run(play())
    assert sorted(rig.closed().values()) == [6] * 7 + [7]


@pytest.mark.row("G13", "M14")
def test_a_deadlock_is_tried_again(rig: Rig) -> None:
    """Another session holds one flow's row and wants the other's: one of the two is made to give way."""

    async def play() -> None:
        entries = sorted(await rig.start(2), key=lambda entry: entry.flow_id)
        writer = rig.writer()
        await writer.open()
        with psycopg.connect(rig.dsn) as other:
            other.execute("set deadlock_timeout = '60s'")
            other.execute("select from dwarf.live where flow_id = %s for update", (entries[1].flow_id,))
            writing = asyncio.create_task(writer.write(entries))
            await waiting_backend(rig)
            wanting = asyncio.create_task(
                asyncio.to_thread(other.execute, "select from dwarf.live where flow_id = %s for update", (entries[0].flow_id,))
            )
            await wanting
            other.rollback()
            assert (await writing).missed == []
            assert writer.retried == 1
        writer.close()

    asyncio.run(play())
    assert len(rig.closed()) == rig.steps() == 2


DROP_DAYS = """do $$ declare v_part record; begin
  for v_part in select parent, day from dwarf.partitions_v1() loop
    execute format('drop table dwarf.%s_d%s', v_part.parent, v_part.day);
  end loop;
end $$"""


@pytest.mark.parametrize("years", [0, 30])
def test_where_the_partition_of_a_day_is_missing_it_is_made_and_the_batch_recorded(rig: Rig, years: int) -> None:
    """Nobody has looked after the partitions before midnight, or the clock has jumped. Nothing of it is the flows' fault."""

    async def play() -> None:
        entries = await rig.start(20)
        rig.view.execute(DROP_DAYS)
        rig.view.execute("update dwarf.live set day = day + %s * 365", (years,))
        rig.view.execute("update dwarf.live set flow_id = flow_id + ((%s * 365::bigint * 24) << 36)", (years,))
        rig.view.execute("update dwarf.live set root_id = flow_id")
        rig.view.execute("update dwarf.active set day = day + %s * 365", (years,))
        rig.view.execute("update dwarf.active set flow_id = flow_id + ((%s * 365::bigint * 24) << 36)", (years,))
        for entry in entries:
            entry.flow_id = entry.root_id = entry.flow_id + ((years * 365 * 24) << 36)
        writer = rig.writer()
        written = await writer.write(entries)
        assert (written.missed, written.poisoned, written.unstorable) == ([], [], [])
        assert (writer.retried, writer.reconnected) == (1, 1)
        writer.close()

    asyncio.run(play())
    assert list(rig.closed().values()) == [6] * 20
    assert rig.steps() == 20


def test_a_partition_that_cannot_be_made_at_once_is_made_once_it_can(rig: Rig, until: Until) -> None:
    """Another session holds the parents: making one gives up after a while, and is tried again."""

    async def play() -> None:
        entries = await rig.start(2)
        rig.view.execute(DROP_DAYS)
        writer = rig.writer()
        await writer.open()
        with psycopg.connect(rig.dsn) as holder:
            holder.execute("lock table only dwarf.flows in share update exclusive mode")
            writing = asyncio.create_task(writer.write(entries))
            await asyncio.to_thread(until, lambda: writer.retried >= 2, "a second attempt")
            holder.rollback()
            assert (await writing).missed == []
        writer.close()

    asyncio.run(play())
    assert len(rig.closed()) == rig.steps() == 2


def test_a_partition_that_cannot_be_made_for_long_fails_the_batch_and_no_flow(rig: Rig) -> None:
    async def play() -> None:
        entries = await rig.start(2)
        rig.view.execute(DROP_DAYS)
        writer = rig.writer()
        with psycopg.connect(rig.dsn) as holder:
            holder.execute("lock table only dwarf.flows in share update exclusive mode")
            with pytest.raises(psycopg.errors.CheckViolation, match="no partition of relation"):
                await writer.write(entries)
        assert (await writer.write(entries)).missed == [], "it is for the next attempt"
        writer.close()

    asyncio.run(play())
    assert list(rig.closed().values()) == [6, 6]


def test_a_lane_opened_by_another_process_is_lost(rig: Rig) -> None:
    async def play() -> None:
        entries = await rig.start(2)
        old, new = rig.writer(), rig.writer()
        await old.write(entries[:1])
        await new.open()
        with pytest.raises(LaneLost):
            await old.write(entries[1:])
        assert (await new.write(entries[1:])).missed == []
        old.close()
        new.close()

    asyncio.run(play())
    assert len(rig.closed()) == rig.steps() == 2


async def waiting_backend(rig: Rig) -> int:
    """Return the backend that waits for a lock inside a record call."""
    query = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'dwarf\\.record\\w*_v1' and datname = current_database()"
    for _ in range(3_000):
        rows = await asyncio.to_thread(lambda: rig.view.execute(query).fetchall())
        if rows:
            return int(rows[0].pid)
        await asyncio.sleep(0.01)
    raise AssertionError("no record call waits for a lock")


def alive(rig: Rig, pid: int) -> bool:
    return bool(rig.view.execute("select 1 from pg_stat_activity where pid = %s", (pid,)).fetchall())
