"""Forking on one shard: reads what has ended, lets `dwarf.forking` say what to copy, and has that copied.

Owns nothing but the way there. The root is asked for twice: before anything is read, for a clear answer, and by the statement
that copies, which holds it. In between nothing of a flow that has ended changes, but that it may be removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from dwarf.batch import STATUS_OF
from dwarf.changes import Changes
from dwarf.errors import Conflict, NotFound
from dwarf.flow_reader import FlowReader, overrides_of
from dwarf.fork_columns import Source, lay_out
from dwarf.fork_preview import ForkPreview, preview
from dwarf.forking import Cut, Fork, Past, PastStep, Place, failed_places
from dwarf.keys import FlowKey, StepKey, step_id
from dwarf.pages import STATUSES
from dwarf.pool import Pool
from dwarf.read_rows import CallerRow, FoundFlow, ReplayRow
from dwarf.rebuild import Rebuild
from dwarf.record import Via
from dwarf.state import State
from dwarf.status import Status
from dwarf.tokens import new_token
from dwarf.values import Fields, decode_fields

_LAST_OPEN = 5


class Forks:
    """Forks flows of one shard. Keys must be keys of that shard."""

    def __init__(self, index: int, pool: Pool, reader: FlowReader) -> None:
        self._index, self._pool, self._reader = index, pool, reader

    async def fork(self, key: StepKey, overrides: Fields) -> str:
        """Create a flow that goes on at a step of one that has ended, and return its key.

        Raises `NotFound`, `Conflict` (the root is open, deleted, or damaged), `ShardUnavailable` when the fork may exist.
        """
        root = await self._find(key)
        return await self.fork_at(root, key.flow_id, {(key.branch, key.seq): overrides})

    async def preview(self, key: StepKey, overrides: Fields) -> ForkPreview:
        """Tell what `fork` would do. Raises as it does."""
        root = await self._find(key)
        return await self.preview_at(root, key.flow_id, {(key.branch, key.seq): overrides})

    async def fork_at(self, root: FoundFlow, flow_id: int, again: Mapping[Place, Fields], *, is_first: bool = False) -> str:
        """Create a flow that goes on at one or several steps of a flow under a root, each with its overrides.

        With `is_first` it is the first fork of that root, or none is made, and no key returned.
        """
        copied = await self._cut_all(flow_id, again)
        copy = lay_out(copied)
        state, made = await self._pool.run(lambda reads: reads.fork(root.flow_id, copy, is_first=is_first), is_repeatable=is_first)
        if state == "forked before":
            return ""
        if state != "forked":
            raise self._refusal(root, state)
        return str(FlowKey(self._index, made[0], copied[0].token))

    async def preview_at(self, root: FoundFlow, flow_id: int, again: Mapping[Place, Fields]) -> ForkPreview:
        """Tell what `fork_at` would do."""
        cuts = {source.flow_id: source.cut for source in await self._cut_all(flow_id, again)}
        return preview(await self._reader.history_of(root), cuts)

    async def recover(self, key: FlowKey, *, dry_run: bool) -> tuple[list[str], str]:
        """Fork a failed root at the steps for which it failed. Return their keys and the fork's; none when it was forked before.

        Where it was one child that failed, its steps are meant: it need not run again from its start.
        """
        root = await self._reader.find(key)
        if await self._pool.run(lambda reads: reads.forked([root.flow_id])):
            return [], ""
        flow, places = root, await self._failed(root.flow_id)
        while len(places) == 1 and (child := await self._failed_child(flow.flow_id, places[0])) is not None:
            flow, places = child, await self._failed(child.flow_id)
        if not places:
            raise Conflict(f"flow {self._name(flow)} does not say which of its steps failed")
        flow_key = FlowKey(self._index, flow.flow_id, flow.token)
        steps = [str(flow_key.step(step_id(*place))) for place in places]
        again: dict[Place, Fields] = {place: {} for place in places}
        if dry_run:
            await self._cut_all(flow.flow_id, again)
            return steps, ""
        fork = await self.fork_at(root, flow.flow_id, again, is_first=True)
        return (steps, fork) if fork else ([], "")

    async def _failed(self, flow_id: int) -> list[Place]:
        rows = await self._pool.run(lambda reads: reads.replay(flow_id))
        return sorted(failed_places(Past(map(_past_step, rows)))) if rows else []

    async def _failed_child(self, flow_id: int, place: Place) -> FoundFlow | None:
        """Return the child for which a step failed, if that has a step that failed."""
        child_id = await self._pool.run(lambda reads: reads.child_of(flow_id, *place))
        for child in await self._pool.run(lambda reads: reads.find_flows([child_id])) if child_id else ():
            if STATUSES[child.status] is Status.FAILED and await self._failed(child.flow_id):
                return child
        return None

    async def _find(self, key: StepKey) -> FoundFlow:
        """Return the closed root over a step. Raises `NotFound` and `Conflict`."""
        found = await self._pool.run(lambda reads: reads.find_flows([key.flow_id]))
        if not found or not key.belongs_to(found[0].token):
            raise NotFound(f"there is no step {key.name}")
        if found[0].root_id == found[0].flow_id:
            root = found[0]
        else:
            [root] = await self._pool.run(lambda reads: reads.find_flows([found[0].root_id])) or [found[0]]
        if root.status <= _LAST_OPEN:
            raise Conflict(f"flow {self._name(root)} is {STATUSES[root.status]}; only steps of a flow that has ended can be forked")
        if root.is_hidden:
            raise self._refusal(root, "deleted")
        return root

    def _refusal(self, root: FoundFlow, state: str) -> Conflict | NotFound:
        if state == "missing":
            return NotFound(f"flow {self._name(root)} does not exist any more")
        return Conflict(f"flow {self._name(root)} is {state}; only steps of a flow that has ended can be forked")

    def _name(self, flow: FoundFlow) -> str:
        return FlowKey(self._index, flow.flow_id, flow.token).name

    async def _cut_all(self, flow_id: int, again: Mapping[Place, Fields]) -> list[Source]:
        """Return how the flow and the callers above it are copied, the root first."""
        path = await self._pool.run(lambda reads: reads.callers(flow_id))
        if not path:
            raise NotFound("the flow does not exist any more")
        copied: list[Source] = []
        caller: Place | None = None
        kept: bytes | None = None
        for flow, below in zip(path, [*path[1:], None], strict=True):
            places = again if below is None else {(below.caller_branch or 0, below.caller_seq or 0): {}}
            cut = await self._cut(flow, places, None if below is None else below.flow_id)
            copied.append(Source(flow.flow_id, new_token(), caller, kept, cut))
            caller, kept = next(iter(places)), cut.kept_writes
        return copied

    async def _cut(self, flow: CallerRow, places: Mapping[Place, Fields], child_id: int | None) -> Cut:
        steps = [_past_step(row) for row in await self._pool.run(lambda reads: reads.replay(flow.flow_id))]
        graph = await self._reader.load_graph(flow.graph_id)
        given = State.of(decode_fields(flow.input) if flow.input else {})
        past, rebuild = Past(steps), Rebuild(graph, given, steps, overrides_of(flow.overrides))
        return Fork(graph, past, rebuild, places, child_id=child_id).cut()


def _past_step(row: ReplayRow) -> PastStep:
    return PastStep(
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
        depth=row.depth,
        attempt=row.attempt,
        child_id=row.child_id,
        kept=row.kept,
    )
