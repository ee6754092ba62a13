"""The executor process: imports the user's App and runs its tasks, for every dispatcher of the replica it is attached to.

It boots once the App is imported and its resources are open; the database is for the App's graphs, which it registers when it can
be reached, and for `flow.client`. A dispatcher that dies takes what it had handed out with it: those tasks are stopped, and the
next dispatcher's ring starts anew.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from dwarf.client import Client
from dwarf.config import Config
from dwarf.executor.executor import Executor
from dwarf.flow import Flow
from dwarf.hosts.host import Host
from dwarf.preparing import frozen_graphs, register_graphs
from dwarf.task_client import BlockingTaskClient, TaskClient

from .control import Attach, Drain, Ready
from .member import Order, Supervisor, Unbootable, serve
from .pairs import open_at_executor, unpack

CLIENT_CONNECTIONS = 2  # to each shard, for `flow.client` and the registration of graphs
PAUSE_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)  # between attempts to reach the shards; the last for as long as it takes

log = logging.getLogger("dwarf.process")


def load_host(name: str) -> Host:
    """Import `module:attribute`, from the working directory too. Raises `Unbootable`."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module, _, attribute = name.partition(":")
    try:
        host = getattr(import_module(module), attribute)
    except Exception as error:
        log.exception("importing %s", name)
        raise Unbootable(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if isinstance(host, type) or not isinstance(host, Host):
        raise Unbootable(f"{name} is {host!r}, and no App or other host with load_graph and execute_task")
    return host


class ExecutorProcess:
    """Runs the tasks of one host as the supervisor says."""

    def __init__(self, supervisor: Supervisor, host: Host, config: Config) -> None:
        self._supervisor, self._host, self._config = supervisor, host, config
        self._loop = asyncio.get_running_loop()
        self._client = Client(
            config.shards,
            host=host,
            max_priority=config.settings.max_priority,
            time_budget=config.settings.time_budget,
            connections=CLIENT_CONNECTIONS,
            application="dwarf executor",
        )
        self._resources: Any = None
        self._running: set[asyncio.Task[None]] = set()
        self._leaving = asyncio.Event()

    async def run(self) -> int:
        async with AsyncExitStack() as stack:
            opened = getattr(self._host, "open_resources", None)
            if opened is not None:
                try:
                    self._resources = await stack.enter_async_context(opened())
                except Exception as error:
                    log.exception("opening the App's resources")
                    raise Unbootable(f"the App's resources cannot be opened: {type(error).__name__}: {error}") from error
            orders = asyncio.create_task(self._supervisor.orders(self._take))
            reaching = asyncio.create_task(self._reach())
            self._supervisor.tell(Ready())
            try:
                await self._leaving.wait()
                while self._running:
                    await asyncio.wait(self._running)
            finally:
                orders.cancel()
                reaching.cancel()
                await self._client.close()
        return 0

    async def _reach(self) -> None:
        """Open the client, and register the App's graphs, whenever that is possible."""
        graphs = await frozen_graphs(self._host)
        attempt = 0
        while True:
            try:
                await self._client.start()
                for shard in self._config.shards:
                    await register_graphs(shard, graphs)
                return
            except Exception as error:
                log.warning("registering the App's graphs: %s", error)
            await asyncio.sleep(PAUSE_SECONDS[min(attempt, len(PAUSE_SECONDS) - 1)])
            attempt += 1

    def _take(self, order: Order | None, descriptors: list[int]) -> None:
        match order:
            case Attach(peer=shard, label=label):
                executor = Executor(
                    self._host,
                    open_at_executor(unpack(label, descriptors)),
                    shard=shard,
                    slots=self._config.settings.workers,
                    threads=self._config.settings.threads,
                    resources=self._resources,
                    make_client=self._client_of,
                )
                task = self._loop.create_task(executor.run())
                self._running.add(task)
                task.add_done_callback(self._ended)
            case Drain() | None:  # what runs is the dispatchers' matter: their rings close once they need it no more
                self._leaving.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an executor ended", exc_info=error)

    def _client_of(self, flow: Flow, is_sync: bool) -> TaskClient | BlockingTaskClient:
        if is_sync:
            return BlockingTaskClient(self._client, flow.step_key, self._loop, flow.cancelled)
        return TaskClient(self._client, flow.step_key)


async def work(supervisor: Supervisor, index: int, config: Config) -> int:
    return await ExecutorProcess(supervisor, load_host(config.app), config).run()


def main(argv: list[str]) -> int:
    return serve("executor", argv, work)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
