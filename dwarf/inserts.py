"""Storing new flows of one shard: what many callers bring at one time goes in one statement.

Nothing is waited for: the first to come is sent at once, and those that come while it is under way go together next. So a
batch grows with the load, and its commit is shared. Each caller's flows are stored as a whole or not at all. When a value
turns out to be one that cannot be stored, nothing of the batch is, and each caller's flows are sent alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from dwarf.database import Disposition, classify
from dwarf.new_flow import NewFlow
from dwarf.pool import Pool
from dwarf.reads import Reads
from dwarf.store import NewFlows

STATEMENTS_MAX = 2  # under way at one time
FLOWS_MAX = 1_000  # of one statement, unless one caller brings more
BYTES_MAX = 64 << 20  # of states in one statement, unless one caller's take more

Waiting = tuple[list[NewFlow], "asyncio.Future[list[int]]", float]


class Inserts:
    """Stores flows through a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: deque[Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0  # of the tasks, those that will look once more who waits

    @property
    def is_idle(self) -> bool:
        """True when nothing is being stored and nobody waits."""
        return not self._running and not self._waiting

    async def insert(self, flows: list[NewFlow], *, patience: float) -> list[int]:
        """Store flows and return their ids, in order. Never tried again when it may have been done.

        Raises `Unreached` when nothing was sent, `ShardUnavailable` when the flows may be stored.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[int]] = loop.create_future()
        self._waiting.append((flows, done, patience))
        if self._running < STATEMENTS_MAX:
            self._running += 1
            task = loop.create_task(self._run(), name="inserts")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await done

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._store_all(batch)
        finally:
            self._running -= 1

    async def _store_all(self, batch: Sequence[Waiting]) -> None:
        try:
            await self._store(batch)
        except Exception as error:
            if len(batch) == 1 or classify(error) is not Disposition.BISECT:
                _fail(batch, error)
                return
            for each in batch:
                await self._store_all([each])
        except asyncio.CancelledError:
            for _, done, _ in batch:
                done.cancel()
            raise

    def _take(self) -> list[Waiting]:
        """Take the next callers, as many as go into one statement; those who have been cancelled are left out."""
        batch: list[Waiting] = []
        count = size = 0
        while self._waiting:
            flows, done, _ = self._waiting[0]
            count += len(flows)
            size += sum(len(flow.input) for flow in flows)
            if batch and (count > FLOWS_MAX or size > BYTES_MAX):
                break
            waiting = self._waiting.popleft()
            if not done.done():
                batch.append(waiting)
        return batch

    async def _store(self, batch: Sequence[Waiting]) -> None:
        patience = max(patience for _, _, patience in batch)
        ids = await self._create([flow for flows, _, _ in batch for flow in flows], patience=patience)
        first = 0
        for flows, done, _ in batch:
            if not done.done():
                done.set_result(ids[first : first + len(flows)])
            first += len(flows)

    async def _create(self, flows: Sequence[NewFlow], *, patience: float) -> list[int]:
        """Store the flows of a batch in one statement and return their ids. A dispatcher does more."""
        ids, _ = await self._pool.run(partial(Reads.create_flows, new=columns(flows)), is_repeatable=False, patience=patience)
        return ids


def _fail(batch: Sequence[Waiting], error: Exception) -> None:
    for _, done, _ in batch:
        if not done.done():
            done.set_exception(error)


def columns(flows: Sequence[NewFlow]) -> NewFlows:
    """Lay flows out column by column."""
    return NewFlows(
        [flow.token for flow in flows],
        [flow.workflow for flow in flows],
        [flow.graph_id for flow in flows],
        [flow.entry_task for flow in flows],
        [flow.input for flow in flows],
        [flow.priority for flow in flows],
        [flow.budget_ms for flow in flows],
        [flow.fairness_key for flow in flows],
        [flow.weight for flow in flows],
        [flow.baggage for flow in flows],
        [flow.tenant for flow in flows],
        [flow.thread_id for flow in flows],
        [flow.delete_on_completion for flow in flows],
        [flow.start_at for flow in flows],
    )
