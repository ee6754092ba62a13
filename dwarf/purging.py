"""Purges: many flows deleted by one query, or whole days dropped, on one shard or several.

    purge          every shard is asked first, so that one that is down fails the purge with nothing done; then the oldest of what
                   all have found are deleted: closed flows many at a time, interrupted ones each in a transaction of its own
    purge_before   every shard is asked for its day first; then each drops its days (`dwarf.partitions`), side by side

Both may be stopped anywhere and asked for again. An error names the shard, and what was done all the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypeVar

import msgspec

from dwarf import partitions
from dwarf.database import Disposition, classify
from dwarf.errors import DwarfError, InvalidArgument, NotFound, ShardUnavailable
from dwarf.filters import ask_filters
from dwarf.keys import FlowKey
from dwarf.pages import searched_flow
from dwarf.pool import Pool
from dwarf.query import CheckedQuery
from dwarf.read_rows import StoppedRow
from dwarf.reads import Reads

ASK_PATIENCE_SECONDS = 2.0
SCAN_ROOTS_MAX = 20_000  # that one look for what a purge takes goes through
DELETE_AT_ONCE = 512
ROUNDS_MAX = 20  # of a purge whose every find was taken by others meanwhile
REASON = "purged"

T = TypeVar("T")


class Deleted(msgspec.Struct):
    """How many flows of a shard are marked for deletion, and what kept it from others."""

    count: int = 0
    failure: Exception | None = None


class Gone(msgspec.Struct):
    """The days that a shard has dropped, and what kept it from others."""

    days: set[date]
    failure: Exception | None = None


class Purging:
    """Purges flows of one shard. `on_ended` hears of flows that a purge has terminated."""

    def __init__(self, index: int, pool: Pool, conninfo: str, on_ended: Callable[[int], None]) -> None:
        self._index, self._pool, self._conninfo = index, pool, conninfo
        self._on_ended = on_ended
        self._stops: set[threading.Event] = set()

    @property
    def name(self) -> str:
        return self._pool.name

    def close(self) -> None:
        """Let drops under way come to an end."""
        for stop in self._stops:
            stop.set()

    # By a query

    async def find(self, query: CheckedQuery) -> list[StoppedRow]:
        """Return the roots that a query means, oldest first, at most as many as its limit. Raises `NotFound`, `ShardUnavailable`."""
        filters = await self._ask(lambda reads: ask_filters(reads, query))
        searched = searched_flow(query)
        if searched is not None:
            return await self._search(query, searched[1], filters)
        found: list[StoppedRow] = []
        after: int | None = 0
        while after is not None and len(found) < query.limit:
            rows, after = await self._look(filters, query.limit - len(found), after)
            found += rows
        return found

    async def _look(self, filters: Mapping[str, Any], limit: int, after: int) -> tuple[list[StoppedRow], int | None]:
        """Return some more roots, and where to go on if there may be others."""
        rows = await self._ask(lambda reads: reads.stopped(filters, limit=limit, after=after, scan=SCAN_ROOTS_MAX))
        return ([*rows[:-1]], rows[-1].flow_id) if rows and rows[-1].is_place else (rows, None)

    async def _search(self, query: CheckedQuery, flow_id: int, filters: Mapping[str, Any]) -> list[StoppedRow]:
        """Return the one root that a key names, where it passes the other filters."""
        rows = await self._ask(lambda reads: reads.stopped(filters, limit=1, after=flow_id - 1, scan=1))
        named = [row for row in rows if row.flow_id == flow_id and not row.is_place]
        flows = await self._ask(lambda reads: reads.find_flows([flow_id])) if named else []
        return named if any(query.finds(FlowKey(self._index, flow_id, flow.token)) for flow in flows) else []

    async def delete(self, found: Sequence[StoppedRow]) -> Deleted:
        """Mark roots for deletion; interrupted ones that have moved on meanwhile are left alone. Raises nothing but a cancellation."""
        deleted = Deleted()
        closed = [row.flow_id for row in found if row.parked_at is None]
        try:
            for first in range(0, len(closed), DELETE_AT_ONCE):
                deleted.count += await self._delete_closed(closed[first : first + DELETE_AT_ONCE])
            for row in found:
                if row.parked_at is not None:
                    await self._delete_interrupted(row.flow_id, row.parked_at, deleted)
        except Exception as failure:
            deleted.failure = failure
        return deleted

    async def _delete_closed(self, ids: Sequence[int]) -> int:
        return await self._pool.run(lambda reads: reads.delete_closed(ids), is_repeatable=False)

    async def _delete_interrupted(self, flow_id: int, parked_at: int, deleted: Deleted) -> None:
        try:
            if await self._pool.run(lambda reads: reads.delete_interrupted(flow_id, REASON, parked_at), is_repeatable=False):
                deleted.count += 1
                self._on_ended(flow_id)
        except ShardUnavailable:
            raise
        except Exception as failure:  # one that cannot be ended keeps no other from it
            deleted.failure = failure

    # By the day

    async def today(self) -> date:
        """Return the day it is by the shard's clock, in UTC."""
        return partitions.FIRST_DAY + timedelta(days=await self._ask(lambda reads: reads.today()))

    async def drop_before(self, day: date) -> Gone:
        """Drop what is older than a day, open flows apart, for as long as anything comes of it. Raises nothing but a cancellation."""
        stop = threading.Event()
        dropping = partitions.Dropping(self._conninfo, day, stop=stop)
        gone = Gone(dropping.days)
        self._stops.add(stop)
        try:
            await self._pool.run(lambda reads: reads.note_drop(day.isoformat()))
            await asyncio.to_thread(dropping.go_on, partitions.PATIENCE_SECONDS, is_renewed=True)
            if dropping.faults:
                gone.failure = DwarfError("; ".join(dropping.faults.values()))
            elif stop.is_set():
                gone.failure = ShardUnavailable("the client was closed")
            elif not dropping.is_done:
                gone.failure = ShardUnavailable("another session drops days at the moment, or an old snapshot still sees one: call again")
        except Exception as failure:
            gone.failure = failure
        finally:
            self._stops.discard(stop)
            stop.set()  # for a cancelled call, whose thread goes on
        return gone

    async def _ask(self, work: Callable[[Reads], Awaitable[T]]) -> T:
        return await self._pool.run(work, patience=ASK_PATIENCE_SECONDS)


async def purge(shards: Collection[Purging], query: CheckedQuery) -> int:
    """Mark for deletion what a checked query means, oldest ids first over all shards, and return how many were not before.

    Raises `NotFound`, and `ShardUnavailable`, which says what was marked before.
    """
    for _ in range(ROUNDS_MAX):
        found = await _all(shards, [shard.find(query) for shard in shards])
        oldest = sorted(((row.flow_id, shard) for shard, rows in enumerate(found) for row in rows))[: query.limit]
        if not oldest:
            break
        chosen = [[row for row in rows if (row.flow_id, shard) <= oldest[-1]] for shard, rows in enumerate(found)]
        done = await _all(shards, [shard.delete(rows) for shard, rows in zip(shards, chosen, strict=True)])
        count = sum(each.count for each in done)
        _check(shards, [each.failure for each in done], f"{count} flows have been marked for deletion")
        if count:
            return count
        # Others were quicker with all of them: 0 would say that nothing is left.
    return 0


async def purge_before(shards: Collection[Purging], day: date) -> int:
    """Drop the days before one, and return how many are gone.

    Raises `InvalidArgument` for a day that is not over, `ShardUnavailable` when a shard is down or does not come to an end, and
    `DwarfError` when a day has to stay; both say how many days are gone.
    """
    today = min(await _all(shards, [shard.today() for shard in shards]))
    if day > today:
        raise InvalidArgument(f"day is {day}; only days that are over are dropped, so that it must be {today} (UTC) or earlier")
    done = await _all(shards, [shard.drop_before(day) for shard in shards])
    days: set[date] = set().union(*(each.days for each in done))
    _check(shards, [each.failure for each in done], f"{len(days)} days have been dropped")
    return len(days)


async def _all(shards: Collection[Purging], calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await calls side by side, and raise the first failure once all have ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    _check(shards, [result if isinstance(result, Exception) else None for result in results])
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _check(shards: Collection[Purging], failures: Sequence[Exception | None], done: str = "") -> None:
    """Raise the first failure as an error that names its shard, and says what was done all the same."""
    for shard, failure in zip(shards, failures, strict=True):
        if failure is not None:
            kinds = (kind for kind in (InvalidArgument, NotFound, ShardUnavailable) if isinstance(failure, kind))
            is_lost = classify(failure) is Disposition.RECONNECT
            kind: type[DwarfError] = next(kinds, ShardUnavailable if is_lost else DwarfError)
            text = str(failure).strip() or type(failure).__name__
            named = text if text.startswith(shard.name) else f"{shard.name}: {text}"
            raise kind(f"{named}; {done}" if done else named) from failure
