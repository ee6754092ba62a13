"""`Engine`: a client whose own process also runs the flows, embedded in any application.

    async with Engine(app, shards=[Shard(1, dsn)]) as engine:
        key, outcome = await engine.run("checkout", {"lines": []})

Owns one dispatcher and one executor per shard (`dwarf.embedded`), the App's resources, and the start: schema, settings, and
the graphs that the App registers. What it creates starts at once where there is room, and what ends here wakes its waiters
without a look at the database.

    new --start--> running --close--> closed       `kill` is a close that hands nothing back, as a crash
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack

from dwarf.checks import check_flag
from dwarf.chores import Terms as Keeps
from dwarf.client import Client
from dwarf.dispatch.dispatcher import Counters, Stopped
from dwarf.dispatch.session import Terms
from dwarf.durations import Duration
from dwarf.embedded import EmbeddedShard
from dwarf.errors import Conflict, InvalidArgument
from dwarf.flow import Flow
from dwarf.hosts.host import Host
from dwarf.new_flow import NewFlow
from dwarf.pool import Unreached
from dwarf.preparing import frozen_graphs, migrate_shard, prepare_shard, register_graphs
from dwarf.settings import (
    GRACE_SECONDS,
    RETENTION_DAYS_DEFAULT,
    SESSION_SECONDS,
    SWEEP_SECONDS,
    THREADS_DEFAULT,
    WORKERS_DEFAULT,
    check_setting,
)
from dwarf.shards import Shard, check_shards
from dwarf.status import Status
from dwarf.task_client import BlockingTaskClient, TaskClient
from dwarf.waits import Ended

ENGINE_IDS = 1 << 62  # drawn from, when none is given

log = logging.getLogger("dwarf.engine")
logging.getLogger("dwarf").addHandler(logging.NullHandler())


class Engine(Client):
    """Runs the flows of some shards in this process.

    `workers` bounds the steps that run at one time on each shard (0 runs none), `threads` those of them that are no
    coroutines. `grace` is how long `close` lets tasks finish, `session_seconds` the life of this process's leases after its
    last sign of life; `takeover="deadline"` leaves every step to its own deadline instead. Closed flows are kept for
    `retention_days` (None: for ever), open ones terminated at an age of `flow_expiration` (None: never). `time_budget` may be
    set at any time, for flows created from then on; everything else is fixed.
    """

    def __init__(
        self,
        app: Host | None,
        shards: Iterable[Shard],
        *,
        workers: int = WORKERS_DEFAULT,
        threads: int = THREADS_DEFAULT,
        time_budget: Duration = 120,
        max_priority: int = 5,
        engine_id: int | None = None,
        grace: Duration = GRACE_SECONDS,
        session_seconds: Duration = SESSION_SECONDS,
        sweep_seconds: Duration = SWEEP_SECONDS,
        takeover: str = "session",
        retention_days: int | None = RETENTION_DAYS_DEFAULT,
        flow_expiration: Duration | None = None,
        wait_ceiling: Duration | None = None,
        migrates: bool = True,
    ) -> None:
        """Raises `InvalidArgument` naming the setting and its rule."""
        configured = check_shards(shards)
        ceiling = check_setting("wait_ceiling", wait_ceiling)
        super().__init__(configured, host=app, time_budget=time_budget, max_priority=max_priority, wait_ceiling=ceiling)
        if app is None or isinstance(app, type) or not isinstance(app, Host):
            raise InvalidArgument(f"an engine needs an App, or another host with load_graph and execute_task, not {app!r}")
        self._app: Host = app
        self._workers: int = check_setting("workers", workers)
        self._threads: int = check_setting("threads", threads)
        self._grace: float = check_setting("grace", grace)
        self._migrates = check_flag(migrates, "migrates")
        self._terms = Terms(
            engine_id=check_setting("engine_id", engine_id) or secrets.randbelow(ENGINE_IDS) + 1,
            life=check_setting("session_seconds", session_seconds),
            sweep_every=check_setting("sweep_seconds", sweep_seconds),
            by_session=check_setting("takeover", takeover) == "session",
        )
        expiration = check_setting("flow_expiration", flow_expiration)
        self._keeps = Keeps(
            retention_days=check_setting("retention_days", retention_days),
            flow_expiration_ms=None if expiration is None else int(expiration * 1000),
        )
        self._embedded: dict[int, EmbeddedShard] = {}
        self._stack = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state = "new"
        self._turn = asyncio.Lock()  # a start or an end at a time

    # ---- settings ----

    @property
    def is_new(self) -> bool:
        """True until it is started."""
        return self._state == "new"

    @property
    def engine_id(self) -> int:
        return self._terms.engine_id

    @property
    def workers(self) -> int:
        return self._workers

    @property
    def time_budget(self) -> float:
        """The time budget of flows that name none, in seconds. Setting it leaves existing flows as they are."""
        return self._time_budget_ms / 1000

    @time_budget.setter
    def time_budget(self, value: Duration) -> None:
        self._time_budget_ms = round(check_setting("time_budget", value) * 1000)

    # ---- its life ----

    async def start(self) -> None:
        """Bring the schema up to date, register the App's graphs, and run what is due.

        Raises `Conflict` for an engine that was started before, `ShardUnavailable` and `MigrationError` naming the shard;
        then nothing stays open.
        """
        if self._state != "new":
            raise Conflict(f"this engine is {self._state}; an engine starts once")
        self._state = "starting"
        async with self._turn:
            await self._start()

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            if self._migrates:
                await _all_of(migrate_shard(shard) for shard in self._configured)
            await super().start()
            await self._prepare()
            opened = getattr(self._app, "open_resources", None)
            resources = await self._stack.enter_async_context(opened()) if opened is not None else None
            for shard in self._configured:
                self._embedded[shard.index] = self._embed(shard)
                await self._embedded[shard.index].start(resources)
        except BaseException:
            self._state = "new"
            await self._leave(grace=0)
            raise
        self._state = "running"

    async def close(self) -> None:
        """Start nothing new, let running tasks finish for as long as the grace allows, store what they came to, hand the rest
        back, and close. Twice is fine, and so is an engine that never started; one that is just starting is closed once it has."""
        async with self._turn:
            if self._state != "running":
                return
            self._state = "closing"
            try:
                await self._leave(grace=self._grace)
            except BaseException:  # such as a cancellation: then nothing more is waited for, and nothing stays open either
                await self._leave(grace=None)
                raise
            finally:
                self._state = "closed"

    async def kill(self) -> None:
        """Stop as `kill -9` would: nothing is handed back and nothing more is stored. For tests."""
        async with self._turn:
            if self._state == "running":
                self._state = "closed"
                await self._leave(grace=None)

    async def _leave(self, *, grace: float | None) -> None:
        embedded, self._embedded = dict(self._embedded), self._embedded if grace is not None else {}
        stops = (each.kill() if grace is None else each.stop(grace) for each in embedded.values())
        for shard, error in zip(embedded, await asyncio.gather(*stops, return_exceptions=True), strict=True):
            if isinstance(error, Exception):
                log.error("shard %d did not stop in good order", shard, exc_info=error)
        await super().close()
        self._embedded = {}
        await self._stack.aclose()

    def _embed(self, shard: Shard) -> EmbeddedShard:
        return EmbeddedShard(
            shard,
            self._app,
            self._terms,
            self._keeps,
            slots=self._workers,
            threads=self._threads,
            on_stopped=lambda stopped: self._tell(shard.index, stopped),
            make_client=self._client_of,
        )

    # ---- the start ----

    async def _prepare(self) -> None:
        """Write what everybody on the shards agrees on, and the graphs by which others create flows."""
        graphs = await frozen_graphs(self._app)

        async def prepare(shard: Shard) -> None:
            await prepare_shard(shard, max_priority=self._priority_max, time_budget_ms=self._time_budget_ms)
            await register_graphs(shard, graphs)

        await _all_of(prepare(shard) for shard in self._configured)

    # ---- what an engine does in its own way ----

    async def _insert(self, shard: int, flows: list[NewFlow]) -> list[int]:
        embedded = self._embedded.get(shard)
        if embedded is None or not embedded.is_running or not self._workers:
            return await super()._insert(shard, flows)
        if self._state == "closing":
            raise Unreached("the engine is shutting down")
        return await embedded.create(flows, patience=self._patience)

    def _ring(self, shard: int) -> None:
        if shard in self._embedded:
            self._embedded[shard].ring()

    def _tell(self, shard: int, stopped: list[Stopped]) -> None:
        """Wake those who wait for flows that have stopped."""
        if shard not in self._shards:
            return
        hub = self.hub(shard)
        for each in stopped:
            ended = None if each.status is None else Ended(Status(each.status.value), each.final_state, each.error)
            hub.notify(each.flow_id, ended)

    def _client_of(self, flow: Flow, is_sync: bool) -> TaskClient | BlockingTaskClient:
        assert self._loop is not None
        return BlockingTaskClient(self, flow.step_key, self._loop, flow.cancelled) if is_sync else TaskClient(self, flow.step_key)

    # ---- what it has done ----

    def counters(self, shard: int) -> Counters:
        """Return what the dispatcher of a shard has done since its session began. Raises `ShardUnavailable`."""
        return self._embedded[shard].dispatcher.counters

    def write_retries(self, shard: int) -> int:
        return self._embedded[shard].dispatcher.write_retries


async def _all_of(calls: Iterable[Awaitable[None]]) -> None:
    """Await calls side by side, and raise the first error once all have ended: none goes on behind the others' failure."""
    for ended in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
