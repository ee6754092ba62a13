"""`SyncClient`: the verbs of `Client` for code without an event loop.

Owns one thread with a loop of its own, on which a `Client` lives. Any number of threads may call at one time; a caller blocks
until its answer is there, also one that has a loop of its own.

    new --start--> open --close--> closed
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from dwarf.blocking import BlockingVerbs
from dwarf.client import CONNECTIONS_DEFAULT, Client
from dwarf.durations import Duration
from dwarf.errors import ShardUnavailable
from dwarf.hosts.host import Host
from dwarf.shards import Shard

T = TypeVar("T")


class SyncClient(BlockingVerbs):
    """Drives flows on a set of shards, blocking. `with SyncClient(shards) as client: …`, or `start` and `close`; twice is fine.

    Settings as those of `Client`.
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
        self._client = Client(
            shards,
            host=host,
            max_priority=max_priority,
            time_budget=time_budget,
            wait_ceiling=wait_ceiling,
            connections=connections,
            application=application,
        )
        super().__init__(self._client)
        self._turn = threading.Lock()  # to start and close
        self._gate = threading.Lock()  # what passes it is on the loop before the loop is told to end
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None

    def start(self) -> None:
        """Start the thread and connect to every shard. Raises as `Client.start`; then no thread is left."""
        with self._turn:
            if self._thread is not None:
                return
            is_ready: Future[None] = Future()
            self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(is_ready)), name="dwarf client", daemon=True)
            self._thread.start()
            is_ready.result()
            try:
                self._do(self._client.start())
            except BaseException:
                self._stop()
                raise

    def close(self) -> None:
        """End every call under way, close all connections and end the thread."""
        with self._turn:
            if self._thread is not None:
                self._do(self._client.close())
                self._stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SyncClient of {self._client!r}>"

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        with self._gate:
            if self._loop is None:
                call.close()
                raise ShardUnavailable("the client is not open: it was closed, or never started; with SyncClient(…) does both")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        return result_of(future)

    async def _serve(self, is_ready: Future[None]) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        is_ready.set_result(None)
        await self._leave.wait()

    def _stop(self) -> None:
        with self._gate:
            thread, loop, leave = self._thread, self._loop, self._leave
            assert thread is not None
            assert loop is not None
            assert leave is not None
            self._thread = self._loop = None
            loop.call_soon_threadsafe(leave.set)
        thread.join()


def start_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a call on the loop of another thread."""
    try:
        return asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:  # the loop has been closed
        call.close()
        raise ShardUnavailable("the client was closed") from None


def result_of(future: Future[T]) -> T:
    """Wait for the result of a call on another loop. A caller that is interrupted cancels the call."""
    try:
        return future.result()
    except CancelledError:
        raise ShardUnavailable("the client was closed during the call") from None
    except BaseException:
        future.cancel()
        raise
