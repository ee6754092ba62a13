"""What a client does on one shard: it creates, asks for changes, lists, and asks how the shard is.

Owns the shard's pool, the reader of its flows, the hub of those who wait, and the numbers of the graphs it has seen there.
How calls spread over shards is for `dwarf.client`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping
from typing import Any

import psycopg

from dwarf.continuing import Continuing
from dwarf.errors import Conflict, DwarfError, InvalidArgument, NotFound, ShardUnavailable
from dwarf.filters import ask_filters
from dwarf.flow_reader import FlowReader
from dwarf.forks import Forks
from dwarf.inserts import Inserts, columns
from dwarf.keys import FlowKey
from dwarf.new_flow import FrozenGraph, NewFlow
from dwarf.outcome import Outcome
from dwarf.pages import STATUSES, ShardPage, before, read_page, searched_flow
from dwarf.pool import Pool
from dwarf.purging import Purging
from dwarf.query import CheckedQuery, Position
from dwarf.read_rows import FoundFlow, ShardGauges
from dwarf.reads import Reads
from dwarf.shards import Shard, ShardInfo
from dwarf.status import Status
from dwarf.store import Keyed
from dwarf.waits import Ended, WaitHub

START_PATIENCE_SECONDS = 5.0
LIST_PATIENCE_SECONDS = 2.0  # of a shard among several: a page goes on without it
SCAN_FLOWS_MAX = 20_000  # that one page of a shard looks at
REGISTERED_SECONDS = 1.0  # how long the graph registered under a URL is remembered
READ_SECONDS_MIN = 1.0  # that a read of a wait may take, however short the wait
RUNNING = Outcome.of(Status.RUNNING)
_LAST_OPEN = 5
_NO_SCHEMA = {"3F000", "42P01", "42883"}


class ShardClient:
    """One shard. `start` and `close` may be called twice."""

    def __init__(self, shard: Shard, *, connections: int, application: str) -> None:
        self.shard = shard
        self.index = shard.index
        self.name = f"shard {shard.index}"
        self.pool = Pool(shard.dsn, size=connections, application=application, name=self.name)
        self._inserts = Inserts(self.pool)
        self.reader = FlowReader(shard.index, self.pool)
        self.forks = Forks(shard.index, self.pool, self.reader)
        self.continuing = Continuing(shard.index, self.pool, self.reader)
        self.hub = WaitHub(shard.index, self.reader.look)
        self.purging = Purging(shard.index, self.pool, shard.dsn, self.hub.notify)
        self._graph_ids: dict[bytes, int] = {}
        self._registered: dict[str, tuple[float, tuple[int, str]]] = {}

    async def start(self) -> None:
        """See that the shard is there and holds our schema. Raises `ShardUnavailable`, `InvalidArgument`, `DwarfError`."""
        try:
            index = await self.pool.run(lambda reads: reads.setting("shard_index"), patience=START_PATIENCE_SECONDS)
        except psycopg.Error as error:
            if error.sqlstate in _NO_SCHEMA:
                raise DwarfError(f"the database of {self.name} does not have Dwarf's schema, or an old one: run dwarf migrate") from error
            raise
        if index is not None and index != self.index:
            raise InvalidArgument(f"the database of {self.name} is that of shard {index}; an index never changes")

    async def close(self) -> None:
        await self.hub.close()
        self.purging.close()
        self.pool.close()

    # Keys

    async def find_root(self, key: FlowKey, verb: str) -> FoundFlow:
        """Return the root that a key names, to `verb` it. Raises `NotFound`, and `InvalidArgument` for a child."""
        found = await self.reader.find(key)
        if found.root_id != found.flow_id:
            raise InvalidArgument(f"flow {key.name} is a child; name its root to {verb}")
        return found

    async def find_open_root(self, key: FlowKey, verb: str) -> FoundFlow:
        """Return the open root that a key names. Raises as `find_root`, and `Conflict` when it has ended."""
        found = await self.find_root(key, verb)
        if found.status > _LAST_OPEN:
            raise Conflict(f"flow {key.name} has ended: it is {STATUSES[found.status]}")
        return found

    # Graphs

    async def graph_id(self, graph: FrozenGraph) -> int:
        """Return the number that a graph has here, storing it when it is new."""
        known = self._graph_ids.get(graph.hash)
        if known is None:
            row = (graph.hash, graph.name, graph.entry_task, graph.definition)
            [known] = await self.pool.run(lambda reads: reads.put_graphs([row]))
            self._graph_ids[graph.hash] = known
        return known

    async def registered(self, url: str) -> tuple[int, str]:
        """Return the number and the entry task of the graph that engines have registered under a URL. Raises `NotFound`."""
        now = asyncio.get_running_loop().time()
        until, graph = self._registered.get(url, (0.0, (0, "")))
        if until > now:
            return graph
        rows = await self.pool.run(lambda reads: reads.find_workflows([url]))
        if not rows:
            raise NotFound(f"no workflow {url!r} is registered on {self.name}; an engine that has it registers it when it starts")
        graph = (rows[0].graph_id, rows[0].entry_task)
        self._registered[url] = (now + REGISTERED_SECONDS, graph)
        return graph

    # Creating

    async def insert(self, flows: list[NewFlow], *, patience: float) -> list[int]:
        """Store flows and return their ids, in order: see `dwarf.inserts`."""
        return await self._inserts.insert(flows, patience=patience)

    async def create_keyed(self, key: str, flow: NewFlow) -> Keyed:
        """Create a flow under an idempotency key, or find the one that was; it may be asked again without harm."""
        return await self.pool.run(lambda reads: reads.create_keyed(key, columns([flow])))

    async def find_keyed(self, workflow: str, key: str, given: bytes) -> Keyed:
        """Find the flow that was created under an idempotency key."""
        return await self.pool.run(lambda reads: reads.find_keyed(workflow, key, given))

    # Waiting

    async def wait(self, key: FlowKey, until: float, *, is_new: bool = False) -> Outcome:
        """Return the outcome of a flow that has stopped, or of one that runs `until` then, by the loop's clock.

        Of a flow that is new nobody needs to look first whether it has stopped. Raises `NotFound`, and `ShardUnavailable` when
        the first look fails or the client is closed.
        """
        clock = asyncio.get_running_loop().time
        with self.hub.watching(key.flow_id) as watch:
            stop = watch()
            if not is_new:
                outcome = await _within(max(until, clock() + READ_SECONDS_MIN), self.reader.outcome(key))
                if outcome.stopped:
                    return outcome
            while True:
                if not stop.done():
                    await asyncio.wait([stop], timeout=None if until == math.inf else max(until - clock(), 0))
                if not stop.done():
                    return RUNNING
                outcome = await self._read_stopped(key, stop.result(), max(until, clock() + READ_SECONDS_MIN))
                if outcome.stopped or clock() >= until:
                    return outcome
                stop = watch()  # it has been resumed since

    async def _read_stopped(self, key: FlowKey, ended: Ended | None, until: float) -> Outcome:
        """Return the outcome of a flow that is said to have stopped; it goes on asking a shard that does not answer."""
        clock = asyncio.get_running_loop().time
        while True:
            patience = until - clock()
            read = self.reader.outcome(key, patience=patience) if ended is None else self.reader.outcome_of(key, ended, patience=patience)
            try:
                return await _within(until, read)
            except ShardUnavailable:
                if self.pool.is_closed:
                    raise
                if clock() >= until:
                    return RUNNING

    # Verbs

    async def resume(self, key: FlowKey, answer: bytes) -> None:
        await self.find_open_root(key, "resume it")
        if not await self.pool.run(lambda reads: reads.resume_flow(key.flow_id, answer), is_repeatable=False):
            raise Conflict(f"flow {key.name} is not interrupted")
        self.hub.notify(key.flow_id)

    async def cancel(self, key: FlowKey, reason: str) -> None:
        await self.find_open_root(key, "cancel it")
        if not await self.pool.run(lambda reads: reads.cancel_flow(key.flow_id, reason), is_repeatable=False):
            raise Conflict(f"flow {key.name} has ended meanwhile")
        self.hub.notify(key.flow_id)

    async def terminate(self, key: FlowKey, reason: str) -> None:
        await self.find_open_root(key, "terminate it")
        if not await self.pool.run(lambda reads: reads.terminate_flow(key.flow_id, reason), is_repeatable=False):
            raise Conflict(f"flow {key.name} has ended meanwhile")
        self.hub.notify(key.flow_id)

    async def delete(self, key: FlowKey) -> None:
        await self.find_root(key, "delete it")
        state = await self.pool.run(lambda reads: reads.delete_flow(key.flow_id, "deleted"))
        if state == "running":
            raise Conflict(f"flow {key.name} is running; terminate it first")
        if state == "missing":
            raise NotFound(f"there is no flow {key.name}")
        self.hub.notify(key.flow_id)

    # Lists, and the shard as a whole

    async def page(self, query: CheckedQuery, place: Position | None) -> ShardPage:
        """Return the shard's part of a page, or why there is none."""
        try:
            return await self.pool.run(lambda reads: self._page(reads, query, place), patience=LIST_PATIENCE_SECONDS)
        except ShardUnavailable as error:
            return ShardPage(error=str(error))
        except psycopg.Error as error:
            return ShardPage(error=f"{self.name}: {error}")

    async def _page(self, reads: Reads, query: CheckedQuery, place: Position | None) -> ShardPage:
        filters = await ask_filters(reads, query)
        if (searched := searched_flow(query)) is not None:
            return await self._search(reads, query, searched[1], filters)
        if query.scope == "closed":
            rows = await reads.list_closed(filters, limit=query.limit, before=before(place), scan=SCAN_FLOWS_MAX)
            return read_page(rows, closed=True)
        first = None if place is None else place.flow_id
        rows = await reads.list_open(filters, limit=query.limit, before=first, scan=SCAN_FLOWS_MAX)
        return read_page(rows, closed=False)

    async def _search(self, reads: Reads, query: CheckedQuery, flow_id: int, filters: Mapping[str, Any]) -> ShardPage:
        """Return the one flow that a key names, where it passes the other filters: a page that begins right before it."""
        if query.scope == "closed":
            found = await reads.find_flows([flow_id])
            if not found or found[0].ended_at is None:
                return ShardPage()
            rows = await reads.list_closed(filters, limit=1, before=(found[0].ended_at, flow_id + 1), scan=1)
        else:
            rows = await reads.list_open(filters, limit=1, before=flow_id + 1, scan=1)
        named = [row for row in rows if not row.is_place and query.finds(FlowKey(self.index, row.flow_id, row.token))]
        return ShardPage([row for row in named if row.flow_id == flow_id])

    async def info(self) -> ShardInfo:
        """Tell how the shard is doing. Never fails."""
        try:
            gauges, seconds = await self.pool.run(self._gauges, patience=LIST_PATIENCE_SECONDS)
        except Exception as error:
            return ShardInfo(index=self.index, status="down", cordoned=self.shard.cordoned, error=str(error) or type(error).__name__)
        return ShardInfo(
            index=self.index,
            latency_ms=seconds * 1000,
            flows_open=gauges.flows_open,
            steps_pending=gauges.steps_pending,
            steps_running=gauges.steps_running,
            oldest_pending_seconds=gauges.oldest_pending_seconds,
            dispatchers=gauges.dispatchers,
            cordoned=self.shard.cordoned,
            version="" if gauges.version is None else str(gauges.version),
        )

    async def _gauges(self, reads: Reads) -> tuple[ShardGauges, float]:
        clock = asyncio.get_running_loop().time
        begun = clock()
        await reads.now()
        seconds = clock() - begun
        return await reads.shard_gauges(), seconds


async def _within(until: float, read: Awaitable[Outcome]) -> Outcome:
    """Read an outcome. What takes too long counts as running."""
    try:
        async with asyncio.timeout_at(None if until == math.inf else until):
            return await read
    except TimeoutError:
        return RUNNING
