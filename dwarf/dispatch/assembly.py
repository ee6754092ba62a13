"""From claimed rows to assignments: loads what their steps stand on, a few statements for a whole claim.

A row that stands on its flow's initial state has everything with it and costs no statement. User state is passed on as
bytes; only the names of further documents are read out of a document. A row whose documents are not to be found was taken
away by a verb meanwhile: it is left out, and a signal will say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dwarf.dispatch.ledger import Held
from dwarf.inputs import START, Position, chain_of, decode_document
from dwarf.record import Todo
from dwarf.rows import ClaimedRow, ParkRow, SourceRow
from dwarf.store import Store
from dwarf.wire import Assignment, Cohort, Park

LEASE_MARGIN_MS = 30_000  # that a claim adds to the time budget

Place = tuple[int, int]
Documents = dict[tuple[int, int, int], bytes]


def needs_loading(row: ClaimedRow) -> bool:
    """Tell whether a row's step stands on more than the row brings along."""
    return row.base_seq != 0 or row.size is not None or row.parked or row.seq - row.delta_seq > 1


async def load(store: Store, rows: Sequence[ClaimedRow]) -> Loaded:
    """Load what the rows stand on."""
    loaded = Loaded()
    await loaded.documents_of(store, rows)
    spans = [(row.flow_id, row.branch, row.delta_seq, row.seq, row.day) for row in rows if row.seq - row.delta_seq > 1]
    if spans:
        for change in await store.load_changes(spans):
            loaded.later.setdefault((change.flow_id, change.branch), []).append(change.changes or b"{}")
    joining = [row for row in rows if row.size is not None]
    if joining:
        await loaded.cohorts_of(store, joining)
    parked = [(row.flow_id, row.branch) for row in rows if row.parked]
    if parked:
        loaded.parks = {(park.flow_id, park.branch): park for park in await store.load_parks(parked)}
    return loaded


class Loaded:
    """What was loaded for some rows, by row."""

    def __init__(self) -> None:
        self.documents: Documents = {}
        self.later: dict[Place, list[bytes]] = {}
        self.cohorts: dict[Place, Cohort] = {}
        self.parks: dict[Place, ParkRow] = {}
        self._chains: dict[tuple[int, int, int], list[Position] | None] = {}  # the branches of a fan-out have one in common

    async def documents_of(self, store: Store, rows: Iterable[ClaimedRow]) -> None:
        """Load the last document of each row, then those that it names."""
        days = {(row.flow_id, row.base_branch, row.base_seq): row.day for row in rows if row.input is None}
        await self._documents(store, days)
        named: dict[tuple[int, int, int], int] = {}
        for at, day in days.items():
            text = self.documents.get(at)
            if text is not None and at[2] != 0:
                named.update({(at[0], *position): day for position in decode_document(text).on})
        await self._documents(store, {at: day for at, day in named.items() if at not in self.documents})

    async def _documents(self, store: Store, days: dict[tuple[int, int, int], int]) -> None:
        if days:
            for found in await store.load_documents([(*at, day) for at, day in days.items()]):
                if found.document is not None:
                    self.documents[found.flow_id, found.branch, found.seq] = found.document

    async def cohorts_of(self, store: Store, rows: Sequence[ClaimedRow]) -> None:
        """Load the fan-out source of each joining row and, where its cohort is complete, the branches."""
        sources: dict[Place, SourceRow] = {
            (source.flow_id, source.branch): source
            for source in await store.load_sources([(row.flow_id, row.branch, row.seq, row.day) for row in rows])
        }
        for row in rows:
            source = sources.get((row.flow_id, row.branch))
            if source is None:
                continue
            members = []
            if row.todo != Todo.EXPAND and row.expanded:
                members = await store.load_members(row.flow_id, source.fan_first, row.expanded, row.day)
            self.cohorts[row.flow_id, row.branch] = Cohort(
                source.task,
                source.fan_first,
                [(each.ordinal, each.seq, each.status, each.contribution, each.error) for each in members],
            )

    def chain(self, row: ClaimedRow) -> list[Position] | None:
        """Return the positions of the documents under a row, in order; None when one is not there."""
        base = (row.base_branch, row.base_seq)
        if base == START:
            return [START] if row.input is not None or (row.flow_id, *START) in self.documents else None
        name = (row.flow_id, *base)
        if name not in self._chains:
            self._chains[name] = self._chain(row.flow_id, base)
        return self._chains[name]

    def _chain(self, flow_id: int, base: Position) -> list[Position] | None:
        text = self.documents.get((flow_id, *base))
        if text is None:
            return None
        chain = list(chain_of(base, decode_document(text)))
        return chain if all((flow_id, *at) in self.documents for at in chain) else None


NOTHING = Loaded()


class Parcel:
    """What one executor is sent at a time: steps, and each document under them once."""

    def __init__(self) -> None:
        self.steps: list[Assignment] = []
        self.documents: list[bytes] = []
        self._places: dict[tuple[int, int, int], int] = {}

    def add(self, held: Held, loaded: Loaded = NOTHING) -> int | None:
        """Put a row in and return how many bytes that adds; None when what the row stands on is gone."""
        row = held.row
        place = (row.flow_id, row.branch)
        chain = loaded.chain(row)
        later = loaded.later.get(place, [])
        park = loaded.parks.get(place)
        cohort = loaded.cohorts.get(place)
        is_whole = chain is not None and len(later) == max(row.seq - row.delta_seq - 1, 0)
        if chain is None or not is_whole or (row.parked and park is None) or (row.size is not None and cohort is None):
            return None
        before = len(self.documents)
        documents = [self._place(row, at, loaded) for at in chain]
        step = Assignment(
            held.ticket, row.flow_id, row.branch, row.seq, row.lease, row.task, row.todo, row.attempt, row.graph_id, chain, documents,
            row.delta, later, row.join_branch is not None, row.expanded or 0, row.last_ordinal, cohort, _park(park), row.reason or "",
            row.token, row.workflow, row.priority, row.fairness_key, row.budget_ms, row.flow_created_at, row.created_at,
            row.due_at - (row.budget_ms + LEASE_MARGIN_MS) * 1000, row.baggage, row.nesting,
        )  # fmt: skip
        self.steps.append(step)
        return step.size + sum(len(text) for text in self.documents[before:])

    def _place(self, row: ClaimedRow, at: Position, loaded: Loaded) -> int:
        """Return where in the parcel a document is, put there if need be."""
        name = (row.flow_id, *at)
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = len(self.documents)
            self.documents.append(row.input if at == START and row.input is not None else loaded.documents[name])
        return place


def _park(row: ParkRow | None) -> Park | None:
    return None if row is None else Park(row.kept, row.answer, row.child_status, row.child_error, row.result)
