"""What clients ask of a shard, one method each, beside the statements that `Store` has.

As in `dwarf.store` a method is one statement and one transaction; parameters are binary, rows come back as structs
(`dwarf.read_rows`). Nothing here checks a key: callers compare the tokens that the rows bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from dwarf import arrays
from dwarf.arrays import (
    BOOL,
    INT2,
    INT4,
    INT8,
    JSON,
    TEXT,
    TIMESTAMPTZ,
    boolean,
    int2,
    int4,
    int8,
    int8_array,
    micros,
    read_int2,
    read_int4,
    read_int8,
    read_int8_array,
    read_text,
)
from dwarf.fork_columns import COPY, Copy
from dwarf.read_rows import (
    CALLERS,
    ENDED,
    FOUND_FLOW,
    LISTED,
    ORIGIN,
    OUTCOME,
    PARKED,
    REPLAY,
    SHARD_GAUGES,
    STEPS,
    STOPPED,
    WORKFLOWS,
    WRITES,
    CallerRow,
    EndedRow,
    FoundFlow,
    ListedRow,
    OriginRow,
    OutcomeRow,
    ParkedRow,
    ReplayRow,
    ShardGauges,
    StepRow,
    StoppedRow,
    WorkflowRow,
    WritesRow,
)  # fmt: skip
from dwarf.rows import Reader, read_rows
from dwarf.store import Keyed, Parameter, Store

Row = TypeVar("Row", bound=msgspec.Struct)

# The filters that both kinds of list have, in the order of their parameters.
FILTERS = (
    "status",
    "workflow",
    "name",
    "thread_id",
    "task",
    "fairness_key",
    "priority",
    "older_than",
    "newer_than",
    "with_children",
    "search",
)
_FILTER_TYPES = {
    "status": INT2, "workflow": TEXT, "name": TEXT, "thread_id": INT8, "task": TEXT, "fairness_key": TEXT, "priority": INT2,
    "older_than": TIMESTAMPTZ, "newer_than": TIMESTAMPTZ, "with_children": BOOL, "search": TEXT,
}  # fmt: skip
_BUILD = {INT2: int2, INT8: int8, TEXT: str.encode, BOOL: boolean, TIMESTAMPTZ: lambda value: int8(micros(value))}


class Reads(Store):
    """The store of a shard, with the statements of clients."""

    async def _one(self, kind: type[Row], readers: Sequence[Reader], name: str, *parameters: Parameter) -> Row | None:
        rows = read_rows(kind, readers, await self._call(name, *parameters))
        return rows[0] if rows else None

    # Where flows stand

    async def statuses(self, flow_ids: Sequence[int]) -> dict[int, int]:
        """Return where flows stand: 1 running, 4 interrupted, 6 to 9 ended. One that is not there is left out."""
        ids, statuses = await self._call("statuses", _ids(flow_ids))
        return dict(zip(read_int8(ids), read_int2(statuses), strict=True))

    async def outcome(self, flow_id: int) -> OutcomeRow | None:
        return await self._one(OutcomeRow, OUTCOME, "outcome", _int8(flow_id))

    async def ended(self, flow_ids: Sequence[int], *, bytes_max: int) -> list[EndedRow]:
        """Return how flows ended, those that have; without final states of more than `bytes_max`, as they are stored."""
        return read_rows(EndedRow, ENDED, await self._call("ended", _ids(flow_ids), _int4(bytes_max)))

    async def find_flows(self, flow_ids: Sequence[int]) -> list[FoundFlow]:
        """Return what is known of flows, whose ids must be distinct."""
        return read_rows(FoundFlow, FOUND_FLOW, await self._call("find_flows", _ids(flow_ids)))

    async def fingerprint(self, flow_id: int) -> tuple[str, int, str] | None:
        """Return a flow's token, where it stands, and a text that changes with each transition in it or below it."""
        columns = await self._call("fingerprint", _int8(flow_id))
        found = list(zip(read_text(columns[0]), read_int2(columns[1]), read_text(columns[2]), strict=True))
        return found[0] if found else None

    # Steps

    async def history(self, flow_id: int) -> list[StepRow]:
        """Return the steps of a flow and of the children below it, in no order."""
        return read_rows(StepRow, STEPS, await self._call("history", _int8(flow_id)))

    async def replay(self, flow_id: int) -> list[ReplayRow]:
        """Return all that is needed to rebuild the inputs of one flow's steps."""
        return read_rows(ReplayRow, REPLAY, await self._call("replay", _int8(flow_id)))

    async def origin(self, flow_id: int) -> OriginRow | None:
        return await self._one(OriginRow, ORIGIN, "origin", _int8(flow_id))

    async def callers(self, flow_id: int) -> list[CallerRow]:
        """Return a closed flow and the callers above it, the root first."""
        return read_rows(CallerRow, CALLERS, await self._call("callers", _int8(flow_id)))

    async def writes(self, flow_id: int, branch: int, seq: int) -> WritesRow | None:
        """Return what one step wrote, and what it waits or waited for; None where it has left neither."""
        return await self._one(WritesRow, WRITES, "writes", _int8(flow_id), _int8(branch), _int4(seq))

    async def parked(self, flow_id: int, branch: int, seq: int) -> ParkedRow | None:
        """Return what an interrupted step stands on; None when it does not wait any more."""
        return await self._one(ParkedRow, PARKED, "parked", _int8(flow_id), _int8(branch), _int4(seq))

    # Lists

    async def list_open(self, filters: Mapping[str, Any], *, limit: int, before: int | None, scan: int) -> list[ListedRow]:
        """Return a page of open flows, newest first; the last row may be the place where the list goes on. See `FILTERS`."""
        place = (_or_null(int8, before), INT8)
        columns = await self._call("list_open", _int4(limit), place, *_filters(filters), _int4(scan))
        return read_rows(ListedRow, LISTED, columns)

    async def list_closed(
        self, filters: Mapping[str, Any], *, limit: int, before: tuple[datetime, int] | None, scan: int
    ) -> list[ListedRow]:  # fmt: skip
        """Return a page of ended flows, the last ended first; see `list_open`."""
        ended_at, flow_id = before or (None, None)
        place = ((_or_null(arrays.timestamptz, ended_at), TIMESTAMPTZ), (_or_null(int8, flow_id), INT8))
        columns = await self._call("list_closed", _int4(limit), *place, *_filters(filters), _int4(scan))
        return read_rows(ListedRow, LISTED, columns)

    # Creating

    async def find_workflows(self, urls: Sequence[str]) -> list[WorkflowRow]:
        """Return the graphs that engines have registered under URLs."""
        return read_rows(WorkflowRow, WORKFLOWS, await self._call("find_workflows", (arrays.text_array(urls), arrays.TEXT_ARRAY)))

    # Verbs, and the shard as a whole

    async def delete_flow(self, flow_id: int, reason: str, *, now: int | None = None, actor: str | None = None) -> str:
        """Delete a root and return what came of it: deleted, terminated, running, child or missing."""
        by = (None if actor is None else actor.encode(), TEXT)
        columns = await self._call("delete_flow", _int8(flow_id), _text(reason), (_or_null(int8, now), TIMESTAMPTZ), by)
        return str(read_text(columns[0])[0])

    async def forked(self, root_ids: Sequence[int]) -> set[int]:
        """Return which of some roots have been forked."""
        return set(read_int8((await self._call("forked", _ids(root_ids)))[0]))

    async def child_of(self, flow_id: int, branch: int, seq: int) -> int | None:
        """Return the last child that a finished step called."""
        found = read_int8((await self._call("child_of", _int8(flow_id), _int8(branch), _int4(seq)))[0])
        return found[0] if found else None

    async def fork(
        self, root_id: int, copy: Copy, *, is_first: bool = False, now: int | None = None, actor: str | None = None
    ) -> tuple[str, list[int]]:
        """Create a fork, and return what came of it (forked, open, deleted or missing) and the ids of the flows that were made.

        With `is_first` also: forked before.
        """
        columns = [(build(values), oid) for (build, oid), values in zip(COPY, msgspec.structs.astuple(copy), strict=True)]
        at = (_or_null(int8, now), TIMESTAMPTZ)
        by = (None if actor is None else actor.encode(), TEXT)
        state, made = await self._call("fork", _int8(root_id), *columns, (boolean(is_first), BOOL), at, by)
        return str(read_text(state)[0]), [] if made[0] is None else read_int8_array(made[0])

    async def continue_flow(
        self, flow_id: int, token: str, input_: bytes, key: str = "", *, now: int | None = None, actor: str | None = None
    ) -> Keyed:  # fmt: skip
        """Create a flow that goes on where a completed root has ended; with a key as `create_keyed`.

        The state is `created`, `existing`, `conflict`, `busy`, or else nothing was done: `deleted` or `missing`.
        """
        columns = await self._call(
            "continue_flow",
            _int8(flow_id),
            _text(token),
            (input_, JSON),
            (key.encode() or None, TEXT),
            (_or_null(int8, now), TIMESTAMPTZ),
            (_or_null(str.encode, actor), TEXT),
        )
        state, made, its_token = columns
        return Keyed(str(read_text(state)[0]), read_int8(made)[0], read_text(its_token)[0])

    # Purges

    async def stopped(self, filters: Mapping[str, Any], *, limit: int, after: int, scan: int) -> list[StoppedRow]:
        """Return roots that a purge would take, oldest first; the last row may be the place where they go on. See `FILTERS`."""
        named = _filters(filters, [name for name in FILTERS if name != "with_children"])
        return read_rows(StoppedRow, STOPPED, await self._call("stopped", _int4(limit), _int8(after), *named, _int4(scan)))

    async def delete_closed(self, flow_ids: Sequence[int], *, now: int | None = None, actor: str | None = None) -> int:
        """Delete the closed roots among flows, and return how many were not deleted before."""
        at, by = (_or_null(int8, now), TIMESTAMPTZ), (_or_null(str.encode, actor), TEXT)
        return int(read_int4((await self._call("delete_closed", _ids(flow_ids), at, by))[0])[0])

    async def delete_interrupted(
        self, flow_id: int, reason: str, parked_at: int, *, now: int | None = None, actor: str | None = None
    ) -> bool:  # fmt: skip
        """Terminate and delete a root, if it is interrupted still, and has not been anew since `parked_at`."""
        at, by = (_or_null(int8, now), TIMESTAMPTZ), (_or_null(str.encode, actor), TEXT)
        parked = (int8(parked_at), TIMESTAMPTZ)
        columns = await self._call("delete_interrupted", _int8(flow_id), _text(reason), at, by, parked)
        return bool(read_text(columns[0])[0] == "terminated")

    async def note_drop(self, before: str, *, actor: str | None = None) -> None:
        """Note that days are about to be dropped, and up to which."""
        await self._call("note_drop", (_or_null(str.encode, actor), TEXT), _text(before))

    async def now(self) -> int:
        """Return the database's present time, in microseconds since 2000."""
        return int(read_int8((await self._call("database_now"))[0])[0])

    async def setting(self, name: str) -> int | None:
        """Return a number that engines have agreed on, or None."""
        values = read_int8((await self._call("setting", _text(name)))[0])
        return values[0] if values else None

    async def shard_gauges(self) -> ShardGauges:
        gauges = await self._one(ShardGauges, SHARD_GAUGES, "shard_gauges")
        assert gauges is not None
        return gauges


def _int4(value: int) -> Parameter:
    return (int4(value), INT4)


def _int8(value: int) -> Parameter:
    return (int8(value), INT8)


def _text(value: str) -> Parameter:
    return (value.encode(), TEXT)


def _ids(flow_ids: Sequence[int]) -> Parameter:
    return (int8_array(flow_ids), arrays.INT8_ARRAY)


def _or_null(build: Any, value: Any) -> bytes | None:
    return None if value is None else build(value)


def _filters(filters: Mapping[str, Any], names: Sequence[str] = FILTERS) -> list[Parameter]:
    return [(_or_null(_BUILD[_FILTER_TYPES[name]], filters.get(name)), _FILTER_TYPES[name]) for name in names]
