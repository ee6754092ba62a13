"""Creating flows through the dispatcher: those asked for in one turn of the loop in one commit, and born claimed where there is room.

A flow that is born claimed starts without a claim. It needs a free slot, and no waiting work of its own or a better band.
Whether a create whose answer was lost has committed is unknown: its caller is told so, and what was born claimed is
found again by the reconciliation of the dispatcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from dwarf import faults
from dwarf.dispatch.assembly import LEASE_MARGIN_MS
from dwarf.errors import ShardUnavailable
from dwarf.new_flow import NewFlow
from dwarf.pool import Pool
from dwarf.rows import ClaimedRow
from dwarf.store import NewFlows

DAY_HOURS = 24
HOUR_SHIFT = 36
FLOWS_MAX = 1_000  # of one statement


class Creates:
    """`room` tells how many of some flows may be born claimed and keeps that much free until `on_born` is called with the rows."""

    def __init__(
        self,
        pool: Pool,
        session: int,
        *,
        room: Callable[[Sequence[NewFlow]], int],
        on_born: Callable[[list[ClaimedRow]], None],
        on_due: Callable[[], None],
    ) -> None:
        self._pool, self._session = pool, session
        self._room, self._on_born, self._on_due = room, on_born, on_due
        self._waiting: list[tuple[NewFlow, asyncio.Future[int]]] = []
        self._there_are_some = asyncio.Event()
        self._creating = 0

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._creating)

    async def create(self, flows: Sequence[NewFlow]) -> list[int]:
        """Create flows and return their ids. Raises `ShardUnavailable`."""
        loop = asyncio.get_running_loop()
        pairs: list[tuple[NewFlow, asyncio.Future[int]]] = [(flow, loop.create_future()) for flow in flows]
        self._waiting += pairs
        self._there_are_some.set()
        return list(await asyncio.gather(*(future for _, future in pairs)))

    async def run(self) -> None:
        while True:
            await self._there_are_some.wait()
            batch, self._waiting = self._waiting[:FLOWS_MAX], self._waiting[FLOWS_MAX:]
            if not self._waiting:
                self._there_are_some.clear()
            live = [(flow, future) for flow, future in batch if not future.done()]
            room = self._room([flow for flow, _ in live])
            born = [pair for pair in live if pair[0].start_at is None][:room]
            chosen = {id(pair[0]) for pair in born}
            pending = [pair for pair in live if id(pair[0]) not in chosen]
            self._creating = len(live)
            try:
                await self._create(born, session=self._session)
                await self._create(pending, session=None)
            finally:
                self._creating = 0
                # Nobody waits for ever for a loop that has ended
                _fail(live, ShardUnavailable("the engine stopped while it created flows; they may exist"))
            if pending:
                self._on_due()

    def fail_all(self, error: Exception) -> None:
        """Tell everybody who waits that nothing was done."""
        waiting, self._waiting = self._waiting, []
        _fail(waiting, error)

    async def _create(self, pairs: list[tuple[NewFlow, asyncio.Future[int]]], *, session: int | None) -> None:
        flows = [flow for flow, _ in pairs]
        rows: list[ClaimedRow] = []
        try:
            if not pairs:
                return
            new = _columns(flows)
            ids, created_at = await self._pool.run(lambda store: store.create_flows(new, session=session), is_repeatable=False)
            faults.reach("create.committed", ids)
            if session is not None:
                rows = [born_row(flow, flow_id, created_at) for flow, flow_id in zip(flows, ids, strict=True)]
        except Exception as error:
            _fail(pairs, error)
            return
        finally:
            if session is not None:
                self._on_born(rows)  # also when there are none: then the room that was kept for them is free again
        for (_, future), flow_id in zip(pairs, ids, strict=True):
            if not future.done():
                future.set_result(flow_id)


def _fail(pairs: Iterable[tuple[NewFlow, asyncio.Future[int]]], error: Exception) -> None:
    for _, future in pairs:
        if not future.done():
            future.set_exception(error)


def _columns(flows: list[NewFlow]) -> NewFlows:
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


def born_row(flow: NewFlow, flow_id: int, created_at: int) -> ClaimedRow:
    """Return the entry step's row as a claim would have returned it."""
    return ClaimedRow(
        flow_id, 0, 1, 1, flow.entry_task, 0, 0, 1, created_at, created_at + (flow.budget_ms + LEASE_MARGIN_MS) * 1000, False,
        0, 0, None, 0, None, None, None, None, None, flow.fairness_key, flow.priority, (flow_id >> HOUR_SHIFT) // DAY_HOURS,
        flow_id, None, None, flow.token, flow.graph_id, flow.workflow, flow.budget_ms, created_at, 0, None, flow.baggage, flow.input,
    )  # fmt: skip
