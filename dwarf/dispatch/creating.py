"""Creating flows through the dispatcher: those asked for in one turn of the loop in one commit, and born claimed where there is room.

A flow that is born claimed starts without a claim. It needs a free slot, and no waiting work of its own or a better band.
Whether a create whose answer was lost has committed is unknown: its caller is told so, and what was born claimed is
found again by the reconciliation of the dispatcher.
"""

from __future__ import annotations

import asyncio
from collections import deque
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
FLOWS_MAX = 1_000  # of one statement, unless one caller brings more
BYTES_MAX = 64 << 20  # of states in one statement, unless one caller's take more

Order = tuple[Sequence[NewFlow], "asyncio.Future[list[int]]"]  # what one caller wants, and the ids


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
        self._waiting: deque[Order] = deque()
        self._there_are_some = asyncio.Event()
        self._creating = 0

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._creating)

    async def create(self, flows: Sequence[NewFlow]) -> list[int]:
        """Create flows, all or none, and return their ids. Raises `ShardUnavailable`."""
        made: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((flows, made))
        self._there_are_some.set()
        return await made

    async def run(self) -> None:
        while True:
            await self._there_are_some.wait()
            orders = self._take()
            if not self._waiting:
                self._there_are_some.clear()
            room = self._room([flow for flows, _ in orders for flow in flows])
            born: list[Order] = []
            pending: list[Order] = []
            for order in orders:
                fits = len(order[0]) <= room and all(flow.start_at is None for flow in order[0])
                (born if fits else pending).append(order)
                room -= len(order[0]) if fits else 0
            self._creating = len(orders)
            try:
                await self._create(born, session=self._session)
                await self._create(pending, session=None)
            finally:  # nobody waits for ever for a loop that has ended
                self._creating = 0
                _fail(orders, ShardUnavailable("the engine stopped while it created flows; they may exist"))
            if pending:
                self._on_due()

    def fail_all(self, error: Exception) -> None:
        """Tell everybody who waits that nothing was done."""
        waiting, self._waiting = self._waiting, deque()
        _fail(waiting, error)

    def _take(self) -> list[Order]:
        """Take the next orders, as many as go into one statement; those that nobody waits for any more are left out."""
        orders: list[Order] = []
        count = size = 0
        while self._waiting:
            flows, made = self._waiting[0]
            count += len(flows)
            size += sum(len(flow.input) for flow in flows)
            if orders and (count > FLOWS_MAX or size > BYTES_MAX):
                break
            self._waiting.popleft()
            if not made.done():
                orders.append((flows, made))
        return orders

    async def _create(self, orders: list[Order], *, session: int | None) -> None:
        flows = [flow for order, _ in orders for flow in order]
        rows: list[ClaimedRow] = []
        try:
            if not flows:
                return
            new = _columns(flows)
            ids, created_at = await self._pool.run(lambda store: store.create_flows(new, session=session), is_repeatable=False)
            faults.reach("create.committed", ids)
            if session is not None:
                rows = [born_row(flow, flow_id, created_at) for flow, flow_id in zip(flows, ids, strict=True)]
        except Exception as error:
            _fail(orders, error)
            return
        finally:
            if session is not None:
                self._on_born(rows)  # also when there are none: then the room that was kept for them is free again
        first = 0
        for order, made in orders:
            if not made.done():
                made.set_result(ids[first : first + len(order)])
            first += len(order)


def _fail(orders: Iterable[Order], error: Exception) -> None:
    for _, made in orders:
        if not made.done():
            made.set_exception(error)


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
