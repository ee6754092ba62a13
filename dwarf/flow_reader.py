"""Reading flows of one shard by their keys: where they stand, what came of them, step by step.

Owns the graphs that were needed for it. Tokens are checked here; nothing is changed. A flow may move on between two questions
about it: then it is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from dwarf.batch import STATUS_OF
from dwarf.changes import Changes
from dwarf.decide import visible_state
from dwarf.errors import NotFound, ReducerError, ShardUnavailable
from dwarf.graph import Graph
from dwarf.inputs import START, Document, Input, Position, build, chain_of, decode_document, initial
from dwarf.keys import FlowKey, StepKey
from dwarf.outcome import Outcome
from dwarf.pages import STATUSES
from dwarf.pool import PATIENCE_SECONDS, Pool, Work
from dwarf.read_rows import FoundFlow, OriginRow, OutcomeRow, ParkedRow, ReplayRow
from dwarf.reads import Reads
from dwarf.rebuild import HistoryRow, Rebuild
from dwarf.record import Via
from dwarf.routing import RoutingError
from dwarf.state import State
from dwarf.status import Status
from dwarf.step_tree import FlowFacts, build_history
from dwarf.steps import Step
from dwarf.values import Fields, decode_fields
from dwarf.waits import Ended, Found

T = TypeVar("T")

FINAL_STATE_BYTES_MAX = 64 << 10  # that a look at those who wait brings along
MOVED_ATTEMPTS_MAX = 20  # how often a flow may move on between two questions about it
_overrides = msgspec.json.Decoder(list[tuple[int, int, Fields]])
_RUNNING, _INTERRUPTED, _LAST_OPEN = 1, 4, 5


class FlowReader:
    """Reads the flows of one shard. Keys must be keys of that shard."""

    def __init__(self, index: int, pool: Pool) -> None:
        self._index = index
        self._pool = pool
        self._graphs: dict[int, Graph] = {}

    async def _ask(self, work: Work[T], *, patience: float = PATIENCE_SECONDS) -> T:
        return await self._pool.run(work, patience=patience)

    async def find(self, key: FlowKey) -> FoundFlow:
        """Return the flow that a key names. Raises `NotFound`, also when the token is another's."""
        found = await self._ask(lambda reads: reads.find_flows([key.flow_id]))
        if not found or not key.matches(found[0].token):
            raise NotFound(f"there is no flow {key.name}")
        return found[0]

    async def look(self, flow_ids: Sequence[int]) -> Found:
        """Tell where flows stand, for those who wait: see `dwarf.waits`."""

        async def work(reads: Reads) -> Found:
            statuses = await reads.statuses(flow_ids)
            found: dict[int, Ended | bool | None] = {}
            ended = []
            for flow_id, status in statuses.items():
                found[flow_id] = False if status == _RUNNING else None
                if status > _LAST_OPEN:
                    ended.append(flow_id)
            for row in await reads.ended(ended, bytes_max=FINAL_STATE_BYTES_MAX) if ended else ():
                found[row.flow_id] = Ended(STATUSES[row.status], row.final_state, row.error or "", row.reason or "")
            return found

        return await self._ask(work, patience=0)

    async def outcome(self, key: FlowKey, *, patience: float = PATIENCE_SECONDS) -> Outcome:
        """Return where a flow stands. Raises `NotFound`."""
        for _ in range(MOVED_ATTEMPTS_MAX):
            row = await self._ask(lambda reads: reads.outcome(key.flow_id), patience=patience)
            if row is None or not key.matches(row.token):
                raise NotFound(f"there is no flow {key.name}")
            if row.status == _RUNNING:
                return Outcome.of(Status.RUNNING)
            if row.status != _INTERRUPTED:
                ended = Ended(STATUSES[row.status], row.final_state, row.error or "", row.reason or "")
                return await self.outcome_of(key, ended, graph_id=row.graph_id, patience=patience)
            state = await self._interrupted(row, patience)
            if state is not None:
                return Outcome.of(Status.INTERRUPTED, state=state, interrupt_payload=_state(row.payload))
        raise ShardUnavailable(f"flow {key.name} moves too fast to be read")

    async def outcome_of(self, key: FlowKey, ended: Ended, *, graph_id: int | None = None, patience: float = PATIENCE_SECONDS) -> Outcome:
        """Return the outcome of a flow of which it is known how it ended; its state is read, or folded, when it is missing."""
        if ended.final_state is None and graph_id is None:
            return await self.outcome(key, patience=patience)
        if ended.final_state is not None:
            state = _state(ended.final_state)
        else:
            state = await self._fold(key.flow_id, patience)
        return Outcome.of(ended.status, state=state, error=ended.error, reason=ended.reason)

    async def _fold(self, flow_id: int, patience: float) -> State:
        """Fold the final state of a flow that was ended from outside. What cannot be folded any more is empty."""
        rebuild = await self._rebuild(flow_id, patience)
        try:
            return rebuild.final_state().enacted()
        except (ReducerError, RoutingError, NotFound):
            return State()

    async def _rebuild(self, flow_id: int, patience: float = PATIENCE_SECONDS) -> Rebuild:
        async def work(reads: Reads) -> tuple[OriginRow, list[ReplayRow]]:
            origin = await reads.origin(flow_id)
            if origin is None:
                raise NotFound("the flow does not exist any more")
            return origin, await reads.replay(flow_id)

        origin, rows = await self._ask(work, patience=patience)
        graph = await self.load_graph(origin.graph_id)
        return Rebuild(graph, _state(origin.input), map(_history_row, rows), overrides_of(origin.overrides))

    async def _interrupted(self, row: OutcomeRow, patience: float) -> State | None:
        """Return what the step of the first open interrupt saw and wrote; None when it does not wait any more."""
        flow_id, branch, seq = row.park_flow or 0, row.park_branch or 0, row.park_seq or 0
        parked = await self._ask(lambda reads: reads.parked(flow_id, branch, seq), patience=patience)
        if parked is None:
            return None
        if parked.is_fan_in:  # its input was folded of its cohort when it ran, and is stored nowhere
            rebuild = await self._rebuild(flow_id, patience)
            given = Input(dict(rebuild.input(branch, seq).raw_fields()))
        else:
            stands_on = await self._ask(lambda reads: _stands_on(reads, (flow_id, branch, seq), parked), patience=patience)
            if stands_on is None:
                return None
            documents, later = stands_on
            chain = chain_of((parked.base_branch, parked.base_seq), documents[-1])
            graph = await self.load_graph(parked.graph_id)
            given = build(documents, parked.delta, later, branch=branch, chain=chain, reducers=graph.reducers)
        return visible_state(given, Changes.decode(parked.kept)).enacted()

    async def fingerprint(self, key: FlowKey) -> tuple[str, Status]:
        found = await self._ask(lambda reads: reads.fingerprint(key.flow_id))
        if found is None or not key.matches(found[0]):
            raise NotFound(f"there is no flow {key.name}")
        _, status, text = found
        return text, STATUSES[status]

    # Steps

    async def history(self, key: FlowKey) -> tuple[list[Step], Status]:
        """Return the steps of a flow in order, and where it stands. Raises `NotFound`, also for a deleted flow."""
        found = await self.find(key)
        if found.is_hidden:
            raise NotFound(f"flow {key.name} has been deleted")
        return await self.history_of(found), STATUSES[found.status]

    async def history_of(self, found: FoundFlow) -> list[Step]:
        rows = await self._ask(lambda reads: reads.history(found.flow_id))
        children = list({row.child_id for row in rows if row.child_id is not None})
        below = await self._ask(lambda reads: reads.find_flows(children)) if children else []
        facts = {flow.flow_id: await self._facts(flow) for flow in [found, *below]}
        return build_history(rows, facts, found.flow_id)

    async def _facts(self, flow: FoundFlow) -> FlowFacts:
        graph = await self.load_graph(flow.graph_id)

        def url_of(task: str) -> str:
            return graph.url_of(task) if task in graph else ""

        return FlowFacts(FlowKey(self._index, flow.flow_id, flow.token), flow.workflow, flow.name, url_of)

    async def step(self, key: StepKey) -> Step:
        """Return one step with what it was given, wrote and waits for. Raises `NotFound`."""
        found = await self._ask(lambda reads: reads.find_flows([key.flow_id]))
        if not found or not key.belongs_to(found[0].token) or found[0].is_hidden:
            raise NotFound(f"there is no step {key.name}")
        steps = [step for step in await self.history_of(found[0]) if step.step_id == key.step_id]
        if not steps:
            raise NotFound(f"there is no step {key.name}")
        rebuild = await self._rebuild(key.flow_id)
        writes = await self._ask(lambda reads: reads.writes(key.flow_id, key.branch, key.seq))
        return msgspec.structs.replace(
            steps[0],
            state=_given(rebuild, key),
            changes=_recorded(writes.changes if writes else None),
            interrupt_payload=_state(writes.payload if writes else None),
        )

    async def load_graph(self, graph_id: int) -> Graph:
        graph = self._graphs.get(graph_id)
        if graph is None:
            [(_, _, _, _, definition)] = await self._ask(lambda reads: reads.load_graphs([graph_id]))
            graph = self._graphs[graph_id] = Graph.from_json(definition)
        return graph


def overrides_of(stored: bytes | None) -> dict[tuple[int, int], Fields]:
    """Read what forks have put in the place of the input of steps: [[branch, seq, fields], …]."""
    return {} if stored is None else {(branch, seq): fields for branch, seq, fields in _overrides.decode(stored)}


def _given(rebuild: Rebuild, key: StepKey) -> State:
    """Return what a step was given; empty for a fan-in that failed because there was nothing to give it."""
    try:
        return rebuild.input(key.branch, key.seq).enacted()
    except (ReducerError, RoutingError):
        return State()


def _recorded(document: bytes | None) -> dict[str, Any]:
    """Return a step's changes as recorded: a deleted field is None."""
    return {field: msgspec.json.decode(raw) for field, raw in Changes.decode(document).fields.items()}


def _state(document: bytes | None) -> State:
    return State.of(decode_fields(document)) if document else State()


def _history_row(row: ReplayRow) -> HistoryRow:
    return HistoryRow(
        branch=row.branch,
        seq=row.seq,
        task=row.task,
        status=STATUS_OF[row.status],
        via=Via(row.via),
        changes=Changes.decode(row.changes),
        parent_branch=row.parent_branch,
        parent_seq=row.parent_seq,
        ordinal=row.ordinal,
        fan_first=row.fan_first or 0,
        fan_size=row.fan_size or 0,
    )


async def _stands_on(reads: Reads, step: tuple[int, int, int], parked: ParkedRow) -> tuple[list[Document], list[Changes]] | None:
    """Load the documents that an interrupted step stands on, and the changes since; None when it has moved on."""
    flow_id, branch, seq = step
    base = (parked.base_branch, parked.base_seq)
    top = await _documents(reads, flow_id, [base], parked.day)
    if top is None:
        return None
    below = await _documents(reads, flow_id, chain_of(base, top[0])[:-1], parked.day)
    missing = seq - parked.delta_seq - 1
    later = await reads.load_changes([(flow_id, branch, parked.delta_seq, seq, parked.day)]) if missing else []
    if below is None or len(later) != missing:
        return None
    return [*below, *top], [Changes.decode(each.changes) for each in later]


async def _documents(reads: Reads, flow_id: int, places: Sequence[Position], day: int) -> list[Document] | None:
    """Load documents in the order of their places; None when one is not there any more."""
    if not places:
        return []
    rows = await reads.load_documents([(flow_id, *place, day) for place in places])
    found = {(row.branch, row.seq): row.document for row in rows}
    documents = [found.get(place) for place in places]
    if any(document is None for document in documents):
        return None
    return [initial(d) if at == START else decode_document(d) for at, d in zip(places, documents, strict=True) if d is not None]
