"""One shard's dispatcher and executor in this process, joined by a channel in memory, and started anew when a session is lost.

    stopped --start--> running --stop--> stopped
                          |
                          +- session or lane lost, or a defect: everything is stopped as a crash stops it, then a new session

Owns the tasks of both. What of them is told to others goes through `on_stopped` (flows that ended) and `dispatcher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from dwarf.channel import MemoryEnd, memory_pair
from dwarf.chores import Chores
from dwarf.chores import Terms as Keeps
from dwarf.dispatch.dispatcher import Dispatcher, Stopped
from dwarf.dispatch.session import Terms
from dwarf.errors import ShardUnavailable
from dwarf.executor.executor import Executor, MakeClient
from dwarf.hosts.host import Host
from dwarf.new_flow import NewFlow
from dwarf.shards import Shard
from dwarf.wire import ToDispatcher, ToExecutor

RESTART_PAUSE_SECONDS = (0.05, 0.5, 2.0, 5.0)  # the last for as long as it takes

log = logging.getLogger("dwarf.engine")


class EmbeddedShard:
    """Runs the flows of one shard in this process. `slots` 0 runs none."""

    def __init__(
        self,
        shard: Shard,
        host: Host,
        terms: Terms,
        keeps: Keeps,
        *,
        slots: int,
        threads: int,
        on_stopped: Callable[[list[Stopped]], None],
        make_client: MakeClient | None = None,
    ) -> None:
        self.shard = shard
        self._host, self._terms, self._keeps = host, terms, keeps
        self._slots, self._threads = slots, threads
        self._on_stopped, self._make_client = on_stopped, make_client
        self._resources: Any = None
        self._supervisor: asyncio.Task[None] | None = None
        self._dispatcher: Dispatcher | None = None
        self._is_stopping = False
        self.sessions_lost = 0

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher that runs now. Raises `ShardUnavailable` when there is none."""
        if self._dispatcher is None:
            raise ShardUnavailable(f"shard {self.shard.index} is not being dispatched by this engine at the moment")
        return self._dispatcher

    @property
    def is_running(self) -> bool:
        return self._dispatcher is not None

    async def start(self, resources: Any = None) -> None:
        """Start, or raise `ShardUnavailable` with nothing left open."""
        self._resources = resources
        self._dispatcher = await self._open()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(self._dispatcher))

    async def stop(self, grace: float) -> None:
        """Wait at most `grace` seconds for running tasks, hand the rest back, and end the session."""
        self._is_stopping = True
        if self._dispatcher is not None and self._supervisor is not None:
            drain = asyncio.get_running_loop().create_task(self._dispatcher.drain(grace))
            try:  # a session that is lost meanwhile has nothing left to wait for
                await asyncio.wait({drain, self._supervisor}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                drain.cancel()
            [error] = await asyncio.gather(drain, return_exceptions=True)
            if isinstance(error, Exception):
                log.warning("shard %d: %s", self.shard.index, error)
        await self._end(in_order=True)

    async def kill(self) -> None:
        """Stop as a crash would: nothing is handed back, nothing more is recorded, the session is left to its end."""
        await self._end(in_order=False)

    async def create(self, flows: list[NewFlow], *, patience: float) -> list[int]:
        return await self.dispatcher.create(flows, patience=patience)

    def ring(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.ring()

    async def _end(self, *, in_order: bool) -> None:
        supervisor, self._supervisor = self._supervisor, None
        dispatcher, self._dispatcher = self._dispatcher, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
        if dispatcher is not None:
            await dispatcher.close(in_order=in_order)

    async def _open(self) -> Dispatcher:
        dispatcher = Dispatcher(self.shard.dsn, self._terms, self._on_stopped, shard=self.shard.index)
        try:
            await dispatcher.start()
        except BaseException:
            await dispatcher.close(in_order=False)
            raise
        return dispatcher

    async def _supervise(self, dispatcher: Dispatcher) -> None:
        """Run the pair, and start a new one whenever it ends."""
        clock = asyncio.get_running_loop().time
        attempt = 0
        while self._supervisor is not None:  # a cancellation that comes together with an error is hidden by the group of errors
            began = clock()
            try:
                await self._run(dispatcher)
            except Exception as error:
                self.sessions_lost += 1
                log.warning("shard %d: dispatching ended: %s", self.shard.index, _root(error))
            attempt = 0 if clock() - began > self._terms.life else attempt
            self._dispatcher = None
            await dispatcher.close(in_order=False)
            if self._is_stopping:
                return
            while self._dispatcher is None and self._supervisor is not None:
                await asyncio.sleep(RESTART_PAUSE_SECONDS[min(attempt, len(RESTART_PAUSE_SECONDS) - 1)])
                attempt += 1
                try:
                    dispatcher = self._dispatcher = await self._open()
                except Exception as error:
                    log.warning("shard %d: %s", self.shard.index, error)

    async def _run(self, dispatcher: Dispatcher) -> None:
        near: MemoryEnd[ToExecutor, ToDispatcher]
        far: MemoryEnd[ToDispatcher, ToExecutor]
        near, far = memory_pair()
        executor = Executor(
            self._host, far, shard=self.shard.index, slots=self._slots, threads=self._threads, resources=self._resources,
            make_client=self._make_client,
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:
                if self._slots:
                    group.create_task(executor.run())
                    group.create_task(dispatcher.serve(near))
                group.create_task(dispatcher.run())
                chores = Chores(dispatcher.control, self.shard.dsn, self._keeps)
                group.create_task(chores.do_for_ever(dispatcher.session, self._terms.sweep_every))
        finally:
            near.close()


def _root(error: BaseException) -> BaseException:
    """Return the first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
