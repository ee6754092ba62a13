"""What `flow.client` gives inside a task: the verbs of the client that runs the step.

A step may run more than once, and must not create its flows more than once: a create, or a continue, without an idempotency key
of its own is given one made of the step's key and the number of the call within the run. So a task that creates the same flows in
the same order each time finds those of its earlier runs; a flow of another state in the same place is refused (`Conflict`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import date
from hashlib import sha256
from typing import Any, Literal, TypeVar, overload

import msgspec

from dwarf.blocking import BlockingVerbs, Verbs
from dwarf.checks import shown
from dwarf.durations import Duration
from dwarf.errors import DwarfError, InvalidArgument, ShardUnavailable, TimeBudgetExceeded
from dwarf.flow import Flag
from dwarf.fork_preview import ForkPreview
from dwarf.new_flow import check_batch
from dwarf.options import FlowOptions
from dwarf.outcome import Outcome
from dwarf.query import Page, Query
from dwarf.recovery import RecoveredFlow, Recovery
from dwarf.shards import ShardInfo
from dwarf.status import Status
from dwarf.steps import Step
from dwarf.sync_client import result_of, start_on

T = TypeVar("T")


class TaskClient:
    """The verbs of `client` within one run of a step. Each does, takes and raises what the verb of `Client` does."""

    def __init__(self, client: Verbs, step_key: str) -> None:
        self._client = client
        self._name = sha256(step_key.encode()).hexdigest()  # a step key holds a token
        self._creates = 0

    async def create(self, workflow_url: str, state: Any = None, options: FlowOptions | None = None) -> str:
        return await self._client.create(workflow_url, state, self._keyed(options))

    async def create_many(self, flows: Iterable[tuple[Any, ...]]) -> list[str]:
        batch = check_batch(flows)
        return await self._client.create_many([(url, state, self._keyed(options)) for url, state, options in batch])

    async def run(
        self, workflow_url: str, state: Any = None, options: FlowOptions | None = None, *, timeout: Duration | None = None  # noqa: ASYNC109
    ) -> tuple[str, Outcome]:  # fmt: skip
        return await self._client.run(workflow_url, state, self._keyed(options), timeout=timeout)

    def _keyed(self, options: Any) -> FlowOptions:
        """Return the options with the idempotency key of the next create of the run, unless they have one."""
        if options is None:
            options = FlowOptions()
        if not isinstance(options, FlowOptions):
            raise InvalidArgument(f"options are {shown(options)}; FlowOptions are wanted")
        if options.idempotency_key:
            return options
        return msgspec.structs.replace(options, idempotency_key=self._next_key())

    def _next_key(self) -> str:
        self._creates += 1
        return f"step:{self._name}:{self._creates}"

    async def wait(self, flow_key: str, timeout: Duration | None = None) -> Outcome:  # noqa: ASYNC109
        return await self._client.wait(flow_key, timeout)

    async def poll(self, flow_key: str, timeout: Duration | None = None) -> Outcome:  # noqa: ASYNC109
        return await self._client.poll(flow_key, timeout)

    async def snapshot(self, flow_key: str) -> Outcome:
        return await self._client.snapshot(flow_key)

    async def fingerprint(self, flow_key: str) -> tuple[str, Status]:
        return await self._client.fingerprint(flow_key)

    async def history(self, flow_key: str) -> list[Step]:
        return await self._client.history(flow_key)

    async def step(self, step_key: str) -> Step:
        return await self._client.step(step_key)

    async def history_mermaid(self, flow_key: str) -> str:
        return await self._client.history_mermaid(flow_key)

    async def list_open(self, query: Query | None = None) -> Page:
        return await self._client.list_open(query)

    async def list_closed(self, query: Query | None = None) -> Page:
        return await self._client.list_closed(query)

    async def resume(self, flow_key: str, data: Any = None) -> None:
        await self._client.resume(flow_key, data)

    async def cancel(self, flow_key: str, reason: str = "") -> None:
        await self._client.cancel(flow_key, reason)

    async def terminate(self, flow_key: str, reason: str = "") -> None:
        await self._client.terminate(flow_key, reason)

    @overload
    async def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[False] = False) -> str: ...

    @overload
    async def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[True]) -> ForkPreview: ...

    async def fork(self, step_key: str, overrides: Any = None, *, preview: bool = False) -> str | ForkPreview:
        return await self._client.fork(step_key, overrides, preview=True) if preview else await self._client.fork(step_key, overrides)

    async def continue_flow(self, flow_key: str, state: Any = None, *, idempotency_key: str = "") -> str:
        return await self._client.continue_flow(flow_key, state, idempotency_key=idempotency_key or self._next_key())

    async def recover(
        self,
        query: Query | None = None,
        *,
        dry_run: bool = False,
        per_second: float | None = None,
        on_flow: Callable[[RecoveredFlow], None] | None = None,
    ) -> Recovery:
        return await self._client.recover(query, dry_run=dry_run, per_second=per_second, on_flow=on_flow)

    async def delete(self, flow_key: str) -> None:
        await self._client.delete(flow_key)

    async def purge(self, query: Query) -> int:
        return await self._client.purge(query)

    async def purge_before(self, day: date) -> int:
        return await self._client.purge_before(day)

    async def shard_info(self) -> list[ShardInfo]:
        return await self._client.shard_info()


class BlockingTaskClient(BlockingVerbs):
    """The same for a task that is no coroutine and runs in a thread; `loop` is the one that the client lives on.

    A call ends with `TimeBudgetExceeded` when `cancelled` is set: a thread must not wait for ever for a flow that may be waiting
    for a thread.
    """

    def __init__(self, client: Verbs, step_key: str, loop: asyncio.AbstractEventLoop, cancelled: Flag | None = None) -> None:
        super().__init__(TaskClient(client, step_key))
        self._loop = loop
        self._cancelled = cancelled or Flag()

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        if asyncio._get_running_loop() is self._loop:
            call.close()
            raise DwarfError("a blocking call on the loop that would answer it never ends: make it from another thread")
        future = start_on(self._loop, call)
        self._cancelled.on_set(future.cancel)
        try:
            return result_of(future)
        except ShardUnavailable:
            if self._cancelled.is_set():
                raise TimeBudgetExceeded("the step was cancelled, or its time budget passed, during a call of flow.client") from None
            raise
        finally:
            self._cancelled.on_set(None)
