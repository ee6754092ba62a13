"""Writing records through a lane until it is known what became of them: retries, ambiguous commits, poisoned batches.

A lane is one connection of a dispatcher and a row in `dwarf.lanes` that every batch raises in its own transaction. So
whatever happens to a call, the row tells whether it committed:

    the server answered            done
    serialization, deadlock, lock  nothing was done: the same batch again, with a pause
    no partition for its day       after midnight, or a jump of the clock: it is made, and the same batch sent again
    a value cannot be stored       by halves until the culprit is alone; that one is recorded as failed, the others as they are
    the connection is lost         a new one opens the lane with the next epoch, which waits for a backend that is still
                                   committing (and ends one that does not finish); then the row says: committed, with what it
                                   missed, or not, and the batch is sent again. The old epoch is stale from then on
    stale                          somebody else has opened the lane: this writer is no longer its owner

What was recorded is never sent again, and what was not is never given up but by `LaneLost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from dwarf.batch import Batch, Entry, cut_chain, lay_out
from dwarf.database import Connection, Disposition, classify
from dwarf.errors import DwarfError
from dwarf.store import Recorded, Store

CONTENTION_ATTEMPTS_MAX = 8  # of one batch, on deadlocks and the like
CONTENTION_PAUSE_SECONDS = 0.02  # times the number of the attempt
LOST_ATTEMPTS_MAX = 4  # of one batch, on connections that were good until it was sent
RECONNECT_PAUSE_SECONDS = (0.05, 0.2, 1.0, 2.0)  # the last for as long as it takes
PARTITION_DAYS_AHEAD = 1  # where one is missing: no more than is wanted at once, the chores make the others
LANE_LOCK_TIMEOUT_MS = 2_000  # how long a backend that is still committing is waited for before it is ended

_REPEATED = {Disposition.RETRY_WHOLE, Disposition.NO_PARTITION}

log = logging.getLogger("dwarf.dispatch")

Connect = Callable[[], Awaitable[Connection]]
Fail = Callable[[Entry, str], Entry]


class LaneLost(DwarfError):
    """Another process has opened the lane: the dispatcher has been replaced and must not record any more."""

    status = 409


class Written(msgspec.Struct):
    """What came of a batch.

    `missed`: entries whose row was no longer theirs. `woke`: rows made claimable. `children`: the entries that started one,
    with its flow id. `poisoned`: entries that could not be stored and were recorded as failed, with the server's text;
    `unstorable` those that could not even be recorded so. `unsent`: entries of which nothing is recorded, since the server did not
    take their part of a batch that another value had split.
    """

    missed: list[Entry] = []
    woke: list[tuple[int, int]] = []
    children: list[tuple[Entry, int]] = []
    poisoned: list[tuple[Entry, str]] = []
    unstorable: list[tuple[Entry, str]] = []
    unsent: list[Entry] = []

    def add(self, other: Written) -> None:
        for name in self.__struct_fields__:
            getattr(self, name).extend(getattr(other, name))


class LaneWriter:
    """One lane of a session. `connect` opens a connection to its shard, `fail` makes the entry of a failed step out of one
    that could not be stored. One batch at a time."""

    def __init__(self, session: int, lane: int, connect: Connect, fail: Fail) -> None:
        self._session, self._lane = session, lane
        self._connect, self._fail = connect, fail
        self._connection: Connection | None = None
        self._epoch = self._batch = 0
        self._recorded: tuple[int, list[int]] = (0, [])  # the last batch the lane's row knew when it was opened
        self.retried = 0
        self.reconnected = 0

    async def open(self) -> None:
        """Open the lane, now or as soon as the shard can be reached. `write` does it when it has not been done."""
        await self._reopen()

    def close(self) -> None:
        """Close the connection. A batch under way may still commit; the next to open the lane will know."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def write(self, entries: Sequence[Entry], *, now: int | None = None) -> Written:
        """Record entries and return what came of them. Raises `LaneLost`, and what no retry can help."""
        return await self._write(list(entries), now, may_fail=True)

    async def _write(self, entries: list[Entry], now: int | None, *, may_fail: bool) -> Written:
        batch = lay_out(entries)
        try:
            recorded = await self._record(batch, now)
        except Exception as error:
            if classify(error) is not Disposition.BISECT:
                raise
            return await self._isolate(batch.entries, str(error), now, may_fail=may_fail)
        children = [entry for entry in batch.entries if entry.child is not None]
        return Written(
            batch.missed(recorded.missed),
            recorded.woke,
            [(entry, child) for entry, child in zip(children, recorded.children, strict=False) if child is not None],
        )

    async def _isolate(self, entries: list[Entry], text: str, now: int | None, *, may_fail: bool) -> Written:
        """Record a batch with a poisonous value in it by halves, and the culprit as failed."""
        if len(entries) > 1:
            middle = len(entries) // 2
            written = Written()
            for half in (entries[:middle], entries[middle:]):
                written.add(await self._write_or_leave(half, now, may_fail=may_fail))
            return written
        if entries[0].prefix:
            return await self._cut(entries[0], now, may_fail=may_fail)
        if not may_fail:
            return Written(unstorable=[(entries[0], text)])
        written = await self._write([self._fail(entries[0], text)], now, may_fail=False)
        if not written.unstorable:
            written.poisoned.append((entries[0], text))
        return written

    async def _cut(self, entry: Entry, now: int | None, *, may_fail: bool) -> Written:
        """Record a chain that cannot be stored as a whole: its first step, then, if that applied, the rest."""
        first, rest = cut_chain(entry)
        written = await self._write([first], now, may_fail=may_fail)
        if not (written.missed or written.poisoned or written.unstorable):
            written.add(await self._write_or_leave([rest], now, may_fail=may_fail))
        return written

    async def _write_or_leave(self, entries: list[Entry], now: int | None, *, may_fail: bool) -> Written:
        """Record a part of a batch, of which nothing is recorded if the server does not take it: the other parts stand."""
        try:
            return await self._write(entries, now, may_fail=may_fail)
        except LaneLost:
            raise
        except Exception as error:
            log.warning(
                "lane %d of session %d: %d of a batch are left for another time: %s", self._lane, self._session, len(entries), error
            )
            return Written(unsent=entries)

    async def _record(self, batch: Batch, now: int | None) -> Recorded:
        """Send one batch until the lane's row tells that it is recorded."""
        contended = lost = 0
        number: int | None = None
        while True:
            try:
                if self._connection is None or not self._connection.is_open:
                    await self._reopen()
                    if number is not None and self._recorded[0] == number:
                        return Recorded("ok", self._recorded[1], [], [])
                    number = None
                if number is None:
                    self._batch += 1
                    number = self._batch
                assert self._connection is not None
                place = (self._session, self._lane, self._epoch, number)
                recorded = await Store(self._connection).record(place, batch, now=now)
            except Exception as error:
                disposition = classify(error)
                if disposition is Disposition.RECONNECT:
                    self.close()
                    self.retried += 1
                    lost += 1
                    if lost >= LOST_ATTEMPTS_MAX and not await self._is_recorded(number):
                        raise  # smaller batches may pass: it is the batch that the server cannot take, or that it dies of
                    continue
                if disposition not in _REPEATED or contended >= CONTENTION_ATTEMPTS_MAX:
                    raise
                contended += 1
                self.retried += 1
                if disposition is Disposition.NO_PARTITION and await self._make_partitions(now):
                    continue
                await asyncio.sleep(CONTENTION_PAUSE_SECONDS * contended)
                continue
            if recorded.state == "stale":
                raise LaneLost(f"lane {self._lane} of session {self._session} has been opened by another process")
            return recorded

    async def _is_recorded(self, number: int | None) -> bool:
        """Tell whether a batch whose connection was lost has committed."""
        await self._reopen()
        return number is not None and self._recorded[0] == number

    async def _make_partitions(self, now: int | None) -> bool:
        """Make the partitions that are missing. False when that has to wait: for a lock, or for a connection."""
        assert self._connection is not None
        try:
            await Store(self._connection).ensure_partitions(PARTITION_DAYS_AHEAD, now=now)
        except Exception as error:
            if classify(error) not in (Disposition.RETRY_WHOLE, Disposition.RECONNECT):
                raise
            return False
        return True

    async def _reopen(self) -> None:
        """Connect, and open the lane with the next epoch. Goes on until it is done."""
        attempt = 0
        while True:
            try:
                connection = await self._connect()
            except Exception as error:
                if classify(error) is not Disposition.RECONNECT:
                    raise
            else:
                try:
                    await self._open_on(connection)
                    return
                except Exception as error:
                    connection.close()
                    if classify(error) not in (Disposition.RECONNECT, Disposition.RETRY_WHOLE):
                        raise
            await asyncio.sleep(RECONNECT_PAUSE_SECONDS[min(attempt, len(RECONNECT_PAUSE_SECONDS) - 1)])
            attempt += 1

    async def _open_on(self, connection: Connection) -> None:
        store = Store(connection)
        try:
            async with connection.transaction(lock_timeout=f"{LANE_LOCK_TIMEOUT_MS}ms"):
                lane = await store.open_lane(self._session, self._lane)
        except Exception as error:
            if classify(error) is Disposition.RETRY_WHOLE:
                await store.end_lane_holder(self._session, self._lane)
            raise
        self._connection, self._epoch, self._batch = connection, lane.epoch, lane.batch
        self._recorded = (lane.batch, lane.missed)
        self.reconnected += 1
