"""The client's verbs for threads: each hands its work to an event loop elsewhere and blocks until it is done."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from datetime import date
from typing import Any, Literal, Protocol, TypeVar, overload

from dwarf.durations import Duration
from dwarf.fork_preview import ForkPreview
from dwarf.options import FlowOptions
from dwarf.outcome import Outcome
from dwarf.query import Page, Query
from dwarf.recovery import RecoveredFlow, Recovery
from dwarf.shards import ShardInfo
from dwarf.status import Status
from dwarf.steps import Step

T = TypeVar("T")


class Verbs(Protocol):
    """What a `Client` does with flows."""

    async def create(self, workflow_url: str, state: Any = None, options: FlowOptions | None = None) -> str: ...
    async def create_many(self, flows: Iterable[tuple[Any, ...]]) -> list[str]: ...
    async def run(
        self, workflow_url: str, state: Any = None, options: FlowOptions | None = None, *, timeout: Duration | None = None  # noqa: ASYNC109
    ) -> tuple[str, Outcome]: ...  # fmt: skip
    async def wait(self, flow_key: str, timeout: Duration | None = None) -> Outcome: ...  # noqa: ASYNC109
    async def poll(self, flow_key: str, timeout: Duration | None = None) -> Outcome: ...  # noqa: ASYNC109
    async def snapshot(self, flow_key: str) -> Outcome: ...
    async def fingerprint(self, flow_key: str) -> tuple[str, Status]: ...
    async def history(self, flow_key: str) -> list[Step]: ...
    async def step(self, step_key: str) -> Step: ...
    async def history_mermaid(self, flow_key: str) -> str: ...
    async def list_open(self, query: Query | None = None) -> Page: ...
    async def list_closed(self, query: Query | None = None) -> Page: ...
    async def resume(self, flow_key: str, data: Any = None) -> None: ...
    async def cancel(self, flow_key: str, reason: str = "") -> None: ...
    async def terminate(self, flow_key: str, reason: str = "") -> None: ...
    @overload
    async def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[False] = False) -> str: ...
    @overload
    async def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[True]) -> ForkPreview: ...
    async def continue_flow(self, flow_key: str, state: Any = None, *, idempotency_key: str = "") -> str: ...
    async def recover(
        self,
        query: Query | None = None,
        *,
        dry_run: bool = False,
        per_second: float | None = None,
        on_flow: Callable[[RecoveredFlow], None] | None = None,
    ) -> Recovery: ...
    async def delete(self, flow_key: str) -> None: ...
    async def purge(self, query: Query) -> int: ...
    async def purge_before(self, day: date) -> int: ...
    async def shard_info(self) -> list[ShardInfo]: ...


class BlockingVerbs:
    """The same verbs, blocking. Each does, takes and raises what the verb of `Client` does."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call on the loop and return its result."""
        raise NotImplementedError

    def create(self, workflow_url: str, state: Any = None, options: FlowOptions | None = None) -> str:
        return self._do(self._verbs.create(workflow_url, state, options))

    def create_many(self, flows: Iterable[tuple[Any, ...]]) -> list[str]:
        return self._do(self._verbs.create_many(flows))

    def run(
        self, workflow_url: str, state: Any = None, options: FlowOptions | None = None, *, timeout: Duration | None = None
    ) -> tuple[str, Outcome]:  # fmt: skip
        return self._do(self._verbs.run(workflow_url, state, options, timeout=timeout))

    def wait(self, flow_key: str, timeout: Duration | None = None) -> Outcome:
        return self._do(self._verbs.wait(flow_key, timeout))

    def poll(self, flow_key: str, timeout: Duration | None = None) -> Outcome:
        return self._do(self._verbs.poll(flow_key, timeout))

    def snapshot(self, flow_key: str) -> Outcome:
        return self._do(self._verbs.snapshot(flow_key))

    def fingerprint(self, flow_key: str) -> tuple[str, Status]:
        return self._do(self._verbs.fingerprint(flow_key))

    def history(self, flow_key: str) -> list[Step]:
        return self._do(self._verbs.history(flow_key))

    def step(self, step_key: str) -> Step:
        return self._do(self._verbs.step(step_key))

    def history_mermaid(self, flow_key: str) -> str:
        return self._do(self._verbs.history_mermaid(flow_key))

    def list_open(self, query: Query | None = None) -> Page:
        return self._do(self._verbs.list_open(query))

    def list_closed(self, query: Query | None = None) -> Page:
        return self._do(self._verbs.list_closed(query))

    def resume(self, flow_key: str, data: Any = None) -> None:
        self._do(self._verbs.resume(flow_key, data))

    def cancel(self, flow_key: str, reason: str = "") -> None:
        self._do(self._verbs.cancel(flow_key, reason))

    def terminate(self, flow_key: str, reason: str = "") -> None:
        self._do(self._verbs.terminate(flow_key, reason))

    @overload
    def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[False] = False) -> str: ...

    @overload
    def fork(self, step_key: str, overrides: Any = None, *, preview: Literal[True]) -> ForkPreview: ...

    def fork(self, step_key: str, overrides: Any = None, *, preview: bool = False) -> str | ForkPreview:
        if preview:
            return self._do(self._verbs.fork(step_key, overrides, preview=True))
        return self._do(self._verbs.fork(step_key, overrides))

    def continue_flow(self, flow_key: str, state: Any = None, *, idempotency_key: str = "") -> str:
        return self._do(self._verbs.continue_flow(flow_key, state, idempotency_key=idempotency_key))

    def recover(
        self,
        query: Query | None = None,
        *,
        dry_run: bool = False,
        per_second: float | None = None,
        on_flow: Callable[[RecoveredFlow], None] | None = None,
    ) -> Recovery:
        return self._do(self._verbs.recover(query, dry_run=dry_run, per_second=per_second, on_flow=on_flow))

    def delete(self, flow_key: str) -> None:
        self._do(self._verbs.delete(flow_key))

    def purge(self, query: Query) -> int:
        return self._do(self._verbs.purge(query))

    def purge_before(self, day: date) -> int:
        return self._do(self._verbs.purge_before(day))

    def shard_info(self) -> list[ShardInfo]:
        return self._do(self._verbs.shard_info())
