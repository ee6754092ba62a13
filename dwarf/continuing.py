"""Continuing on one shard: a new flow begins with what a completed one has come to.

Owns nothing but the way there. The completed flow is asked for twice: before its final state is folded, for a clear answer, and by
the statement that creates, which holds it. In between nothing of it changes, but that it may be deleted or removed.
"""

from __future__ import annotations

import msgspec

from dwarf.changes import Changes, fold
from dwarf.checks import shown
from dwarf.errors import Conflict, InvalidArgument, NotFound
from dwarf.flow_reader import FlowReader
from dwarf.keys import FlowKey
from dwarf.limits import VALUE_BYTES_MAX
from dwarf.pages import STATUSES
from dwarf.pool import Pool
from dwarf.read_rows import FoundFlow
from dwarf.status import Status
from dwarf.tokens import new_token
from dwarf.values import Fields, encode_fields


class Continuing:
    """Continues flows of one shard. Keys must be keys of that shard."""

    def __init__(self, index: int, pool: Pool, reader: FlowReader) -> None:
        self._index, self._pool, self._reader = index, pool, reader

    async def go_on(self, key: FlowKey, fields: Fields, idempotency_key: str = "") -> str:
        """Create a flow that begins with the final state of a completed one after `fields`, and return its key.

        With an idempotency key it may be asked again without harm. Raises `NotFound`, `InvalidArgument` (a child), `Conflict`,
        `ReducerError`, and `ShardUnavailable` when the new flow may exist.
        """
        found = await self._find(key)
        graph = await self._reader.load_graph(found.graph_id)
        ended = await self._reader.outcome(key)
        state = msgspec.json.encode(fold(encode_fields(ended.state, "state"), Changes(fields), graph.reducers))
        if len(state) > VALUE_BYTES_MAX:
            raise InvalidArgument(f"flow {key.name} would begin with {len(state)} bytes of state; at most {VALUE_BYTES_MAX} are allowed")
        token = new_token()
        made = await self._pool.run(
            lambda reads: reads.continue_flow(key.flow_id, token, state, idempotency_key), is_repeatable=bool(idempotency_key)
        )
        what = f"idempotency key {shown(idempotency_key)} of workflow {shown(found.workflow)}"
        match made.state:
            case "missing":
                raise NotFound(f"flow {key.name} does not exist any more")
            case "deleted":
                raise _deleted(key)
            case "conflict":
                raise Conflict(f"{what} was used with another state")
            case "busy":
                raise Conflict(f"{what} is in progress in another call")
        assert made.flow_id is not None
        assert made.token is not None
        return str(FlowKey(self._index, made.flow_id, made.token))

    async def _find(self, key: FlowKey) -> FoundFlow:
        found = await self._reader.find(key)
        if found.root_id != found.flow_id:
            raise InvalidArgument(f"flow {key.name} is a child; only roots are continued")
        if STATUSES[found.status] is not Status.COMPLETED:
            raise Conflict(f"flow {key.name} is {STATUSES[found.status]}; only a completed flow can be continued")
        if found.is_hidden:
            raise _deleted(key)
        return found


def _deleted(key: FlowKey) -> Conflict:
    return Conflict(f"flow {key.name} has been deleted; it cannot be continued")
