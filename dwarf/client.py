"""`Client`: the verbs by which flows are created, waited for, read and driven. It runs no task.

Owns one `ShardClient` per shard, and what spreads over them: creating (`dwarf.creation`), lists, waits. Arguments are checked
before any shard is asked, and a refused call changes nothing.

An engine is a client whose own process also runs the flows. It overrides `_insert`, so that flows which start here at once
are created and claimed in one commit; `_ring`, to hear of work that has become due; and it tells `hub(shard).notify` of
flows that have stopped, so that nobody waits for a look at the database.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from datetime import date
from types import TracebackType
from typing import Any, Literal, Self, overload

from dwarf.checks import check_day, check_flag, check_whole, shown
from dwarf.creation import Creation
from dwarf.durations import Duration, seconds_of
from dwarf.errors import InvalidArgument, NotFound, ShardUnavailable, WaitTimeout
from dwarf.fork_preview import ForkPreview
from dwarf.history_mermaid import render
from dwarf.hosts.host import Host
from dwarf.keys import FlowKey, StepKey
from dwarf.new_flow import Draft, NewFlow, check_batch, draft
from dwarf.options import FlowOptions, check_idempotency_key, check_priority_max, check_time_budget
from dwarf.outcome import Outcome, clean_reason
from dwarf.pages import merge, searched_flow
from dwarf.pool import PATIENCE_SECONDS
from dwarf.purging import purge, purge_before
from dwarf.query import CheckedQuery, Page, Query
from dwarf.recovering import recover
from dwarf.recovery import RecoveredFlow, Recovery, check_pace, check_query
from dwarf.shard_client import ShardClient
from dwarf.shards import Shard, ShardInfo, check_shards
from dwarf.status import Status
from dwarf.steps import Step
from dwarf.values import encode_fields, encode_object
from dwarf.waits import WaitHub

CONNECTIONS_DEFAULT = 4  # to each shard
CONNECTIONS_MAX = 1_000
ELSEWHERE_PATIENCE_SECONDS = 1.0  # with a shard that cannot be reached, while there are others to create on


class Client:
    """Drives flows on a set of shards. `async with Client(shards) as client: …`, or `start` and `close`; twice is fine.

    Graphs come from `host` where there is one, else from what engines have registered in the shards. `time_budget` (seconds
    or `timedelta`) is that of flows that name none, `wait_ceiling` bounds every wait, `connections` is per shard.
    """

    def __init__(
        self,
        shards: Iterable[Shard],
        *,
        host: Host | None = None,
        max_priority: int = 5,
        time_budget: Duration = 120,
        wait_ceiling: Duration | None = None,
        connections: int = CONNECTIONS_DEFAULT,
        application: str = "dwarf client",
    ) -> None:
        self._host = host
        self._priority_max = check_priority_max(max_priority)
        self._time_budget_ms = check_time_budget(time_budget)
        self._wait_ceiling = math.inf if wait_ceiling is None else seconds_of(wait_ceiling, "wait_ceiling")
        self._connections = check_whole(connections, "connections", least=1, most=CONNECTIONS_MAX)
        self._application = application
        self._configured = check_shards(shards)
        self._shards: dict[int, ShardClient] = {}
        self._creation = Creation(self._shards, host, insert=self._insert, ring=self._ring)
        self._is_open = False

    # Life

    async def start(self) -> None:
        """Connect to every shard. Raises `ShardUnavailable` naming one that cannot be reached; then none stays connected."""
        if self._is_open:
            return
        shards = [ShardClient(shard, connections=self._connections, application=self._application) for shard in self._configured]
        started = await asyncio.gather(*(shard.start() for shard in shards), return_exceptions=True)
        failures = [failure for failure in started if isinstance(failure, BaseException)]
        if failures:
            await asyncio.gather(*(shard.close() for shard in shards))
            raise failures[0]
        self._shards.update({shard.index: shard for shard in shards})
        self._is_open = True

    async def close(self) -> None:
        """End every wait, those whose flow has stopped with its outcome, and close all connections."""
        self._is_open = False
        await asyncio.gather(*(shard.close() for shard in self._shards.values()))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def hub(self, shard: int) -> WaitHub:
        """Return those who wait for flows of a shard."""
        return self._shards[shard].hub

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._configured)} shards, {'open' if self._is_open else 'closed'}>"

    # What an engine does in its own way

    async def _insert(self, shard: int, flows: list[NewFlow]) -> list[int]:
        """Store flows on a shard and return their ids, in order. Never tried again when it may have been done.

        Raises `Unreached` when nothing was sent, `ShardUnavailable` when flows may exist.
        """
        return await self._shards[shard].insert(flows, patience=self._patience)

    @property
    def _patience(self) -> float:
        """How long a create waits for a shard that cannot be reached, in seconds."""
        has_others = sum(not each.cordoned for each in self._configured) > 1
        return ELSEWHERE_PATIENCE_SECONDS if has_others else PATIENCE_SECONDS

    def _ring(self, shard: int) -> None:
        """Hear that steps may have become due on a shard."""

    # Creating

    async def create(self, workflow_url: str, state: Any = None, options: FlowOptions | None = None) -> str:
        """Create a flow and return its key. `state` is a mapping, an object with fields, or nothing.

        Raises `InvalidArgument`, `StateValueError`, `GraphError`, `NotFound`, `Conflict` (the idempotency key belongs to
        another input or is in use), what the host's loader raises, and `ShardUnavailable`, after which the flow may exist.
        """
        [key] = await self._create([self._draft(workflow_url, state, options)])
        return str(key)

    async def create_many(self, flows: Iterable[tuple[Any, ...]]) -> list[str]:
        """Create flows given as (workflow_url, state, options) and return their keys, in order; one round trip per shard.

        All are checked before any is stored. On one shard all or none are stored; those with an idempotency key one by one.
        """
        drafts = [self._draft(*each) for each in check_batch(flows)]
        return [str(key) for key in await self._create(drafts)]

    async def run(
        self, workflow_url: str, state: Any = None, options: FlowOptions | None = None, *, timeout: Duration | None = None  # noqa: ASYNC109
    ) -> tuple[str, Outcome]:  # fmt: skip
        """Create a flow, wait for it, and return its key and its outcome. A flow that fails raises nothing.

        Raises as `create`, and `WaitTimeout` when the time is up: it names the flow, which runs on.
        """
        seconds = self._seconds(timeout)
        until = asyncio.get_running_loop().time() + seconds
        new = self._draft(workflow_url, state, options)
        [key] = await self._create([new])
        outcome = await self._shard(key).wait(key, until, is_new=not new.options.idempotency_key)
        return str(key), _stopped(key, outcome, seconds)

    def _draft(self, workflow_url: object, state: object, options: object) -> Draft:
        return draft(workflow_url, state, options, priority_max=self._priority_max, time_budget_ms=self._time_budget_ms)

    async def _create(self, drafts: list[Draft]) -> list[FlowKey]:
        self._check_open()
        return await self._creation.create(drafts) if drafts else []

    # Waiting

    async def wait(self, flow_key: str, timeout: Duration | None = None) -> Outcome:  # noqa: ASYNC109
        """Wait until a flow is closed or interrupted, and return its outcome. None waits without a bound.

        Raises `WaitTimeout`, `NotFound` (also when the flow is removed meanwhile), and `ShardUnavailable` when the client is
        closed. A database that cannot be reached for a while ends no wait.
        """
        key, seconds = FlowKey.parse(flow_key), self._seconds(timeout)
        return _stopped(key, await self._shard(key).wait(key, asyncio.get_running_loop().time() + seconds), seconds)

    async def poll(self, flow_key: str, timeout: Duration | None = None) -> Outcome:  # noqa: ASYNC109
        """Wait as `wait` does, and return the outcome of a flow that runs on when the time is up."""
        key, seconds = FlowKey.parse(flow_key), self._seconds(timeout)
        return await self._shard(key).wait(key, asyncio.get_running_loop().time() + seconds)

    def _seconds(self, timeout: Duration | None) -> float:
        """Return the seconds that a wait may take."""
        return min(math.inf if timeout is None else seconds_of(timeout, "timeout"), self._wait_ceiling)

    # Reading

    async def snapshot(self, flow_key: str) -> Outcome:
        """Return where a flow stands now. Raises `NotFound`."""
        key = FlowKey.parse(flow_key)
        return await self._shard(key).reader.outcome(key)

    async def fingerprint(self, flow_key: str) -> tuple[str, Status]:
        """Return a text that changes with every step of a flow and of its children, and the flow's status."""
        key = FlowKey.parse(flow_key)
        return await self._shard(key).reader.fingerprint(key)

    async def history(self, flow_key: str) -> list[Step]:
        """Return the steps of a flow by depth and id, those of children nested. Raises `NotFound`, also once it is deleted."""
        key = FlowKey.parse(flow_key)
        return (await self._shard(key).reader.history(key))[0]

    async def step(self, step_key: str) -> Step:
        """Return one step with its state, its changes and its interrupt's payload. Raises `NotFound`."""
        key = StepKey.parse(step_key)
        return await self._shard(key).reader.step(key)

    async def history_mermaid(self, flow_key: str) -> str:
        """Return the history of a flow as a Mermaid flowchart."""
        key = FlowKey.parse(flow_key)
        steps, status = await self._shard(key).reader.history(key)
        return render(steps, closed=status.closed)

    # Lists

    async def list_open(self, query: Query | None = None) -> Page:
        """Return a page of open flows, newest first. A shard that is down is named in `errors`, and the cursor goes on there."""
        return await self._list(query, closed=False)

    async def list_closed(self, query: Query | None = None) -> Page:
        """Return a page of closed flows, the last ended first; see `list_open`."""
        return await self._list(query, closed=True)

    async def _list(self, query: Query | None, *, closed: bool) -> Page:
        if query is not None and not isinstance(query, Query):
            raise InvalidArgument(f"query is {shown(query)}; a Query is wanted")
        configured = [shard.index for shard in self._configured]
        checked = (query or Query()).check(closed=closed, shards=configured)
        self._check_open()
        asked = checked.positions or dict.fromkeys(self._meant(checked))
        places = {index: place for index, place in asked.items() if index in self._shards}
        pages = await asyncio.gather(*(self._shards[index].page(checked, place) for index, place in places.items()))
        return merge(checked, dict(zip(places, pages, strict=True)), asked)

    def _meant(self, query: CheckedQuery) -> list[int]:
        """Return the shards on which flows of a query can be. Raises `NotFound` for a thread of none."""
        meant = set(self._shards)
        if query.thread_key is not None and query.thread_key.shard not in meant:
            raise NotFound(f"there is no flow {query.thread_key.name}: shard {query.thread_key.shard} is not configured")
        for only in (query.shard, query.thread_key and query.thread_key.shard, (searched_flow(query) or (0,))[0]):
            if only:
                meant &= {only}
        return sorted(meant)

    # Verbs

    async def resume(self, flow_key: str, data: Any = None) -> None:
        """Answer the earliest open interrupt of a flow with an object, by default an empty one.

        Raises `InvalidArgument` (also for a child), `NotFound`, and `Conflict` when the flow is not interrupted.
        """
        key, answer = FlowKey.parse(flow_key), encode_object(data, "data")
        await self._shard(key).resume(key, answer)
        self._ring(key.shard)

    async def cancel(self, flow_key: str, reason: str = "") -> None:
        """Ask a flow to end: its steps in progress take their onError edges, or end cancelled. Raises as `terminate`."""
        key, reason = FlowKey.parse(flow_key), clean_reason(reason)
        await self._shard(key).cancel(key, reason)
        self._ring(key.shard)

    async def terminate(self, flow_key: str, reason: str = "") -> None:
        """End a flow, its children and all their steps at once.

        Raises `InvalidArgument` for a child, `NotFound`, and `Conflict` when the flow has ended.
        """
        key, reason = FlowKey.parse(flow_key), clean_reason(reason)
        await self._shard(key).terminate(key, reason)

    @overload
    async def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[False] = False) -> str: ...

    @overload
    async def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[True]) -> ForkPreview: ...

    async def fork(self, step_key: str, overrides: Any = None, *, preview: bool = False) -> str | ForkPreview:
        """Create a flow that goes on in the middle of one that has ended, and return its key: what led to the step is copied, the
        step itself runs again. Fields of `overrides` take the place of those of its input, None takes one away.

        The origin is left as it is; its options but for `delete_on_completion` are the fork's too. With `preview` nothing is done,
        and what it would do is returned. Raises `InvalidArgument`, `NotFound`, `StateValueError`, `Conflict` (the root is open or
        deleted, or the step stands on what cannot be rebuilt), `ShardUnavailable` when the fork may exist.
        """
        key, fields = StepKey.parse(step_key), encode_fields({} if overrides is None else overrides, "overrides")
        forks = self._shard(key).forks
        if check_flag(preview, "preview"):
            return await forks.preview(key, fields)
        made = await forks.fork(key, fields)
        self._ring(key.shard)
        return made

    async def continue_flow(self, flow_key: str, state: Any = None, *, idempotency_key: str = "") -> str:
        """Create a flow that begins where a completed one has ended, and return its key.

        It has that flow's graph, thread and options but for `delete_on_completion`, and its final state, into which `state` is
        folded as a task's writes are: reducers apply, None takes a field away. With an idempotency key (unique per workflow on the
        shard of the flow) it may be asked again. Raises `InvalidArgument` (also for a child), `StateValueError`, `ReducerError`,
        `NotFound`, `Conflict` (the flow has not completed, or is deleted), `ShardUnavailable`, after which the new flow may exist.
        """
        key, fields = FlowKey.parse(flow_key), encode_fields(state, "state")
        made = await self._shard(key).continuing.go_on(key, fields, check_idempotency_key(idempotency_key))
        self._ring(key.shard)
        return made

    async def recover(
        self,
        query: Query | None = None,
        *,
        dry_run: bool = False,
        per_second: float | None = None,
        on_flow: Callable[[RecoveredFlow], None] | None = None,
    ) -> Recovery:
        """Fork every failed flow that a query finds at the steps for which it failed, but those that were forked before.

        `per_second` bounds how many forks are made a second; `on_flow` is told of each flow as soon as it is done with. With
        `dry_run` nothing is changed. What goes wrong with one flow or shard is told and stops nothing; call again for the rest.
        Raises `InvalidArgument`.
        """
        asked, pace = check_query(query), check_pace(per_second)
        check_flag(dry_run, "dry_run")
        self._check_open()

        async def fork(key: FlowKey) -> tuple[list[str], str]:
            made = await self._shard(key).forks.recover(key, dry_run=dry_run)
            self._ring(key.shard)
            return made

        return await recover(self.list_closed, fork, asked, per_second=pace, on_flow=on_flow)

    async def delete(self, flow_key: str) -> None:
        """Delete a flow that has stopped: lists and histories leave it out at once, and it is removed soon after.

        Raises `InvalidArgument` for a child, `NotFound`, and `Conflict` for a flow that runs.
        """
        key = FlowKey.parse(flow_key)
        await self._shard(key).delete(key)

    async def purge(self, query: Query) -> int:
        """Delete the closed roots that a query means, oldest first, at most 4,096 a call, and return how many: go on until it is 0.

        Interrupted flows are meant only where the query's status says so; they are terminated first, one by one, those resumed
        meanwhile left alone. Raises `InvalidArgument`, `NotFound` (the thread), and `ShardUnavailable` naming a shard that is down
        and what was deleted before.
        """
        if not isinstance(query, Query):
            raise InvalidArgument(f"query is {shown(query)}; a Query is wanted")
        checked = query.check_purge(shards=[shard.index for shard in self._configured])
        self._check_open()
        return await purge([self._shards[index].purging for index in self._meant(checked)], checked)

    async def purge_before(self, day: date) -> int:
        """Drop the archive of the days before one (UTC) whole, and return how many are gone. Flows that are open, or ended on that
        day or later, stay, whatever their age.

        May be asked again, and stopped anywhere. Raises `InvalidArgument` for a day that is not over, `ShardUnavailable` (a shard
        is down, or others are at work there), `DwarfError` when a flow cannot be moved out of a day, which then stays.
        """
        wanted = check_day(day, "day")
        self._check_open()
        return await purge_before([shard.purging for shard in self._shards.values()], wanted)

    async def shard_info(self) -> list[ShardInfo]:
        """Tell how the shards are doing, in order of their index. Never fails: a shard that is down says why."""
        self._check_open()
        return await asyncio.gather(*(shard.info() for shard in self._shards.values()))

    # Shards

    def _check_open(self) -> None:
        if not self._is_open:
            raise ShardUnavailable("the client is not open: it was closed, or never started; async with Client(…) does both")

    def _shard(self, key: FlowKey | StepKey) -> ShardClient:
        self._check_open()
        shard = self._shards.get(key.shard)
        if shard is None:
            raise NotFound(f"there is no flow {key.flow_name}: shard {key.shard} is not configured")
        return shard


def _stopped(key: FlowKey, outcome: Outcome, seconds: float) -> Outcome:
    if not outcome.stopped:
        raise WaitTimeout(f"flow {key.name} has not stopped within {seconds:g} seconds; it runs on", flow_key=str(key))
    return outcome
