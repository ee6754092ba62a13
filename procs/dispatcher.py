"""The dispatcher process of one shard: the dispatcher of `dwarf.dispatch`, its background work, and a ring to every executor.

It boots without the database and waits for it. A session that is lost, and whatever else ends the dispatching, ends the process:
the supervisor starts another one, and executors see their rings close. It imports nothing of the user's.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any

from dwarf.channel import Channel
from dwarf.chores import Chores
from dwarf.chores import Terms as Keeps
from dwarf.config import Config
from dwarf.dispatch.dispatcher import Dispatcher, Stopped
from dwarf.dispatch.session import Terms
from dwarf.preparing import migrate_shard, prepare_shard
from dwarf.settings import Settings
from dwarf.shards import Shard
from dwarf.wire import ToDispatcher, ToExecutor

from .control import Attach, Drain, Ready, Retire
from .member import Order, Supervisor, Unbootable, serve
from .pairs import open_at_dispatcher, unpack

EX_TEMPFAIL = 75
PAUSE_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)  # between attempts to reach the shard; the last for as long as it takes

log = logging.getLogger("dwarf.process")


class ShardProcess:
    """Dispatches one shard as the supervisor says."""

    def __init__(self, supervisor: Supervisor, shard: Shard, config: Config) -> None:
        self._supervisor, self._shard, self._config = supervisor, shard, config
        self._settings = config.settings
        self._dispatcher: Dispatcher | None = None
        self._channels: dict[int, Channel[ToExecutor, ToDispatcher]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._grace = 0.0  # of the draining

    async def run(self) -> int:
        orders = asyncio.create_task(self._supervisor.orders(self._take))
        self._supervisor.tell(Ready())
        try:
            dispatcher = await self._reach()
            return 0 if dispatcher is None else await self._dispatch(dispatcher)
        finally:
            orders.cancel()

    async def _reach(self) -> Dispatcher | None:
        """Prepare the shard and start dispatching it, whenever that is possible; None when it is over before."""
        attempt = 0
        while not self._draining.done():
            dispatcher = Dispatcher(self._shard.dsn, terms_of(self._settings), _tell_nobody, shard=self._shard.index)
            try:
                await migrate_shard(self._shard)
                await prepare_shard(
                    self._shard, max_priority=self._settings.max_priority, time_budget_ms=int(self._settings.time_budget * 1000)
                )
                await dispatcher.start()
                return dispatcher
            except Exception as error:
                log.warning("shard %d: %s", self._shard.index, error)
                await dispatcher.close(in_order=False)
            await asyncio.wait([self._draining], timeout=PAUSE_SECONDS[min(attempt, len(PAUSE_SECONDS) - 1)])
            attempt += 1
        return None

    async def _dispatch(self, dispatcher: Dispatcher) -> int:
        self._dispatcher = dispatcher
        for channel in list(self._channels.values()):
            self._serve(channel)
        running = asyncio.create_task(self._run(dispatcher))
        try:
            await asyncio.wait([running, self._draining], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await dispatcher.drain(self._grace)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await dispatcher.close()
                return 0
            log.error("dispatching ended", exc_info=running.exception())
            return EX_TEMPFAIL
        finally:
            for channel in self._channels.values():
                channel.close()
            await dispatcher.close(in_order=False)

    async def _run(self, dispatcher: Dispatcher) -> None:
        chores = Chores(dispatcher.control, self._shard.dsn, keeps_of(self._settings))
        async with asyncio.TaskGroup() as group:
            group.create_task(dispatcher.run())
            group.create_task(chores.do_for_ever(dispatcher.session, self._settings.sweep_seconds))

    # ---- executors ----

    def _take(self, order: Order | None, descriptors: list[int]) -> None:
        match order:
            case Attach(peer=peer, label=label):
                channel = open_at_dispatcher(unpack(label, descriptors))
                self._channels[peer] = channel
                if self._dispatcher is not None:
                    self._serve(channel)
            case Retire(peer=peer, grace=grace):
                if self._dispatcher is not None and peer in self._channels:
                    self._spawn(self._dispatcher.retire(self._channels.pop(peer), grace))
            case Drain(grace=grace):
                self._drain(grace)
            case None:
                log.error("the supervisor is gone; handing back")
                self._drain(self._settings.grace)

    def _drain(self, grace: float) -> None:
        if not self._draining.done():
            self._draining.set_result(None)
            self._grace = grace
        elif grace < self._grace:
            self._grace = grace
            if self._dispatcher is not None:
                self._dispatcher.hurry()

    def _serve(self, channel: Channel[ToExecutor, ToDispatcher]) -> None:
        assert self._dispatcher is not None
        self._spawn(self._dispatcher.serve(channel))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def terms_of(settings: Settings) -> Terms:
    """Return the terms of this replica's leases."""
    assert settings.engine_id is not None, "the supervisor draws one for all its processes"
    return Terms(
        engine_id=settings.engine_id,
        life=settings.session_seconds,
        sweep_every=settings.sweep_seconds,
        by_session=settings.takeover == "session",
    )


def keeps_of(settings: Settings) -> Keeps:
    """Return what the shard keeps, and for how long."""
    expiration = settings.flow_expiration
    return Keeps(retention_days=settings.retention_days, flow_expiration_ms=None if expiration is None else int(expiration * 1000))


def _tell_nobody(_: list[Stopped]) -> None:
    """Who waits in other processes looks for itself."""


async def work(supervisor: Supervisor, index: int, config: Config) -> int:
    for shard in config.shards:
        if shard.index == index:
            return await ShardProcess(supervisor, shard, config).run()
    raise Unbootable(f"shard {index} is not configured")


def main(argv: list[str]) -> int:
    return serve("dispatcher", argv, work)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
