"""From reports to commits: one lane after the other takes what has been reported meanwhile and records it in one commit.

A lane forms its next batch while its last one commits, so that batches grow with the load and no timer is needed. A tree's
records always go to the same lane: two lanes never meet on a row. What a record needs beforehand, the numbers of new
branches and the graph of a child, is provided here; the record itself is passed on as the executor made it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from dwarf import faults
from dwarf.batch import ChildStart, Entry
from dwarf.database import Disposition, classify
from dwarf.dispatch.ledger import Held
from dwarf.errors import ShardUnavailable
from dwarf.lanes import LaneLost, LaneWriter, Written
from dwarf.pool import Pool
from dwarf.record import Kind, Record
from dwarf.rows import ClaimedRow
from dwarf.tokens import new_token
from dwarf.wire import GraphForm

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 16 << 20
BRANCH_BLOCK = 1 << 20
TROUBLE_PAUSE_SECONDS = 0.2

log = logging.getLogger("dwarf.dispatch")

Settle = Callable[[list[tuple[Held, Entry]], Written], None]


class Recorder:
    """The lanes of one session. `settle` is told what became of each batch."""

    def __init__(self, writers: list[LaneWriter], supply: Supply, settle: Settle) -> None:
        self._lanes = [Lane(writer, supply, settle) for writer in writers]

    def put(self, held: Held) -> None:
        """Record what an executor reported of a row: `held.record`."""
        self._lanes[held.row.root_id % len(self._lanes)].put(held)

    @property
    def retried(self) -> int:
        return sum(lane.writer.retried for lane in self._lanes)

    async def run(self) -> None:
        """Record until cancelled. Raises `LaneLost`."""
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes:
                group.create_task(lane.run())

    async def drained(self) -> None:
        """Wait until everything put has been recorded."""
        for lane in self._lanes:
            await lane.idle.wait()

    def close(self) -> None:
        for lane in self._lanes:
            lane.writer.close()


class Lane:
    """One lane: what waits for it, and the loop that records."""

    def __init__(self, writer: LaneWriter, supply: Supply, settle: Settle) -> None:
        self.writer = writer
        self._supply, self._settle = supply, settle
        self._pending: deque[Held] = deque()
        self._delayed = 0  # records that the server did not take just now: they come again, and hold up nobody meanwhile
        self._there_is_work = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def put(self, held: Held) -> None:
        self._pending.append(held)
        self._there_is_work.set()
        self.idle.clear()

    async def run(self) -> None:
        while True:
            await self._there_is_work.wait()
            batch = self._next()
            await self._record(batch)
            if not self._pending:
                self._there_is_work.clear()
                if not self._delayed:
                    self.idle.set()

    def _put_later(self, held: Held) -> None:
        self._delayed += 1
        asyncio.get_running_loop().call_later(TROUBLE_PAUSE_SECONDS, self._put_again, held)

    def _put_again(self, held: Held) -> None:
        self._delayed -= 1
        self.put(held)

    def _next(self) -> list[Held]:
        """Return the next batch. One row is in it once: where a verb has taken a row away and it was claimed anew, two records of it
        may wait, and what became of a batch is told by row."""
        batch: dict[tuple[int, int], Held] = {}
        bytes_left = BATCH_BYTES_MAX
        while self._pending and len(batch) < BATCH_RECORDS_MAX and bytes_left > 0:
            held = self._pending[0]
            place = held.ticket, 0
            if place in batch:
                break
            batch[place] = self._pending.popleft()
            bytes_left -= _size(held.record)
        return list(batch.values())

    async def _record(self, batch: list[Held]) -> None:
        """Record a batch, whatever it takes: what was reported is not lost but by the end of this process."""
        try:
            await self._supply.prepare(batch)
            pairs = [(held, entry_of(held)) for held in batch]
            faults.reach("record.sent", pairs)
            written = await self.writer.write([entry for _, entry in pairs])
            faults.reach("record.committed", pairs)
            if len(written.unsent) == len(pairs) > 1:
                raise ShardUnavailable("the server takes neither half of a batch")
        except LaneLost:
            raise
        except Exception as error:
            is_hopeless = classify(error) is Disposition.FATAL and not isinstance(error, ShardUnavailable)
            if is_hopeless and len(batch) == 1:
                log.exception("a record cannot be stored; its step goes back and runs again")
                pairs = [(batch[0], entry_of(batch[0]))]
                self._settle(pairs, Written(unstorable=[(pairs[0][1], str(error))]))
                return
            log.warning("recording %d steps: %s", len(batch), error)
            if len(batch) > 1:  # smaller batches meet less resistance, and show who is at fault
                middle = len(batch) // 2
                await self._record(batch[:middle])
                await self._record(batch[middle:])
                return
            self._put_later(batch[0])
        else:
            unsent = {entry.place for entry in written.unsent}
            self._settle([(held, entry) for held, entry in pairs if entry.place not in unsent], written)
            if unsent:
                await self._record([held for held, entry in pairs if entry.place in unsent])


class Supply:
    """What records need beforehand: numbers for new branches, and graphs of children under their numbers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._next_branch = self._last_branch = 0
        self._graph_ids: dict[bytes, int] = {}
        self._lock = asyncio.Lock()

    async def prepare(self, batch: list[Held]) -> None:
        for held in batch:
            record = held.record
            if record.kind is Kind.FAN_OUT and held.first_branch is None:
                held.first_branch = await self._branches(record.size)
        wanted = [held for held in batch if held.record.child is not None and isinstance(held.child, GraphForm)]
        if wanted:
            await self._put_graphs([held.child for held in wanted])
            for held in wanted:
                form = held.child
                held.child = ChildStart(new_token(), self._graph_ids[form.hash], form.entry_task)

    async def _branches(self, size: int) -> int:
        """Return the first of `size` consecutive numbers that nobody else has."""
        async with self._lock:
            if self._next_branch + size > self._last_branch:
                self._next_branch = await self._pool.run(lambda store: store.branch_block(), patience=3600)
                self._last_branch = self._next_branch + BRANCH_BLOCK
            first = self._next_branch
            self._next_branch += size
            return first

    async def _put_graphs(self, forms: list[GraphForm]) -> None:
        missing = {form.hash: form for form in forms if form.hash not in self._graph_ids}
        if missing:
            rows = [(form.hash, form.name, form.entry_task, form.definition) for form in missing.values()]
            numbers = await self._pool.run(lambda store: store.put_graphs(rows), patience=3600)
            self._graph_ids.update(zip(missing, numbers, strict=True))


def entry_of(held: Held) -> Entry:
    """Return a row's record as the batch takes it."""
    row, record = held.row, held.record
    return Entry(
        row.flow_id,
        row.root_id,
        record,
        row.join_branch,
        None if row.caller_flow is None else (row.caller_flow, row.caller_branch or 0),
        hot=held.is_hot,
        first_branch=held.first_branch if record.kind is Kind.FAN_OUT else None,
        joining=row.size is not None,
        unparks=row.parked,
        child=held.child if record.child is not None else None,
    )


def failed(entry: Entry, text: str) -> Entry:
    """Return the entry of a step whose outcome cannot be stored: it fails with the server's text."""
    record = entry.record
    step = (record.branch, record.seq, record.lease)
    failure = Record.of_failure(step, f"the outcome of the step cannot be stored: {text}", in_cohort=entry.join_branch is not None)
    return Entry(entry.flow_id, entry.root_id, failure, entry.join_branch, entry.caller, joining=entry.joining, unparks=entry.unparks)


def unreadable(row: ClaimedRow, error: Exception) -> Record:
    """Return the record of a step that fails since what it stands on cannot be read."""
    text = f"what the step stands on cannot be read: {type(error).__name__}: {error}"
    return Record.of_failure((row.branch, row.seq, row.lease), text, in_cohort=row.join_branch is not None)


def goes_on(record: Record) -> bool:
    """Tell whether a record makes something due at once, which may come before whatever else waits for the slot."""
    if record.kind is Kind.PARK:
        return record.child is not None
    return record.kind in (Kind.ADVANCE, Kind.FAN_OUT, Kind.RETRY) and not record.delay


def claimable_after(held: Held, entry: Entry) -> list[tuple[int, int]]:
    """Return the rows that a recorded entry has made claimable beside those that the database named."""
    row, record = held.row, entry.record
    if record.kind is Kind.FAN_OUT:
        assert entry.first_branch is not None
        made = [(row.flow_id, entry.first_branch + branch.ordinal) for branch in record.branches if not record.delay]
        return made + [(row.flow_id, row.branch)] * (record.expanded < record.size)
    if record.kind is Kind.RETRY and not record.delay:
        return [(row.flow_id, row.branch)]
    return []


def _size(record: Record) -> int:
    texts = (record.changes, record.contribution, record.snapshot, record.delta, record.final_state, record.payload, record.kept)
    branches = sum(len(branch.delta or b"") for branch in record.branches)
    return sum(len(text) for text in texts if text) + branches + (len(record.child.input) if record.child else 0)
