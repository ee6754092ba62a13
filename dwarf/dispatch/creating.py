"""Creating flows through the dispatcher: in batches as anywhere, and born claimed where there is room.

A flow that is born claimed starts without a claim. It needs a free slot, and no waiting work of its own or a better band; a
batch is born claimed as a whole or not at all. Whether a create whose answer was lost has committed is unknown: its caller
is told so, and what was born claimed is found again by the reconciliation of the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dwarf import faults
from dwarf.dispatch.assembly import LEASE_MARGIN_MS
from dwarf.inserts import Inserts, columns
from dwarf.keys import LOW_BITS
from dwarf.new_flow import NewFlow
from dwarf.pool import Pool
from dwarf.rows import ClaimedRow

DAY_HOURS = 24


class Creates(Inserts):
    """`room(flows)` tells whether they may be born claimed, and keeps slots for them until `on_born` gets their rows, or none;
    `on_due` hears of others."""

    def __init__(
        self,
        pool: Pool,
        session: int,
        *,
        room: Callable[[Sequence[NewFlow]], bool],
        on_born: Callable[[list[ClaimedRow], int], None],
        on_due: Callable[[], None],
    ) -> None:
        super().__init__(pool)
        self._session = session
        self._room, self._on_born, self._on_due = room, on_born, on_due

    async def _create(self, flows: Sequence[NewFlow], *, patience: float) -> list[int]:
        is_born = all(flow.start_at is None for flow in flows) and self._room(flows)
        session, new = self._session if is_born else None, columns(flows)
        rows: list[ClaimedRow] = []
        try:
            ids, created_at = await self._pool.run(
                lambda store: store.create_flows(new, session=session), is_repeatable=False, patience=patience
            )
            faults.reach("create.committed", ids)
            if is_born:
                rows = [born_row(flow, flow_id, created_at) for flow, flow_id in zip(flows, ids, strict=True)]
        finally:
            if is_born:
                self._on_born(rows, len(flows))
        if not is_born:
            self._on_due()
        return ids


def born_row(flow: NewFlow, flow_id: int, created_at: int) -> ClaimedRow:
    """Return the entry step's row as a claim would have returned it."""
    return ClaimedRow(
        flow_id, 0, 1, 1, flow.entry_task, 0, 0, 1, created_at, created_at + (flow.budget_ms + LEASE_MARGIN_MS) * 1000, False,
        0, 0, None, 0, None, None, None, None, None, flow.fairness_key, flow.priority, (flow_id >> LOW_BITS) // DAY_HOURS,
        flow_id, None, None, flow.token, flow.graph_id, flow.workflow, flow.budget_ms, created_at, 0, None, flow.baggage, flow.input,
    )  # fmt: skip
