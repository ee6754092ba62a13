"""`EngineUnderTest`: an engine on a real PostgreSQL that starts by itself, with a database of its own and a clock to move.

    async with EngineUnderTest(app, "checkout") as engine:
        key, outcome = await engine.run("checkout", {"lines": []})

The server is started at first use and shared by all that test at the same time, also by the workers of pytest-xdist; what a
killed run leaves behind, the next one removes. Databases are named for the test and dropped at its end. Several engines on
one database: pass one's `dsns` to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from dwarf.durations import Duration, seconds_of
from dwarf.engine import Engine
from dwarf.errors import InvalidArgument
from dwarf.hosts.host import Host
from dwarf.shards import Shard
from dwarf.testing.clock import advance, is_busy
from dwarf.testing.databases import create_database, drop_database, template_database
from dwarf.testing.postgres import EMBEDDED, Server, SharedServer, find_bindir

GRACE_SECONDS = 5
SETTLED_SECONDS_MAX = 60
LOOK_SECONDS = 0.01
SHARDS_MAX = 100

_server: Server | None = None


def shared_server() -> Server:
    """Return the server of this test run, started if need be. It stops when the last process of the run that uses it ends."""
    global _server  # noqa: PLW0603
    if _server is None:
        _server = SharedServer(find_bindir(EMBEDDED)).start()
    return _server


class EngineUnderTest(Engine):
    """An engine on throw-away databases, one per shard. Settings are those of `Engine`.

    `name` becomes part of the databases' names. `server` chooses another PostgreSQL than the embedded one; `dsns` are
    databases of somebody else, which are left as they are.
    """

    def __init__(
        self, app: Host, name: str, *, shards: int = 1, server: Server | None = None, dsns: Sequence[str] = (), **settings: Any
    ) -> None:
        if not isinstance(shards, int) or not 1 <= shards <= SHARDS_MAX:
            raise InvalidArgument(f"shards is {shards!r}; it must be a whole number from 1 to {SHARDS_MAX}")
        self._server = server
        self._owned: list[str] = []
        self.dsns = list(dsns)
        if not self.dsns:
            self._server = server = server or shared_server()
            template = template_database(server)
            self.dsns = self._owned = [create_database(server, name, template=template) for _ in range(shards)]
        settings = {"grace": GRACE_SECONDS, **settings}
        try:
            super().__init__(app, [Shard(index, dsn) for index, dsn in enumerate(self.dsns, 1)], **settings)
        except BaseException:
            self.drop()
            raise

    @property
    def dsn(self) -> str:
        """The connection string of the first shard's database."""
        return self.dsns[0]

    async def settled(self, timeout: Duration = SETTLED_SECONDS_MAX) -> None:  # noqa: ASYNC109
        """Wait until no step is due or running: all that is left sleeps, waits for somebody, or has ended. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds_of(timeout, "timeout")):
            while await asyncio.to_thread(lambda: any(is_busy(dsn) for dsn in self.dsns)):  # noqa: ASYNC110  # the database tells nobody
                await asyncio.sleep(LOOK_SECONDS)

    async def advance(self, duration: Duration) -> timedelta:
        """Move the clock of all shards forward: sleepers wake, horizons pass, nobody's lease is lost.

        Returns how far it is ahead of the server's clock in all. Does not wait for what that sets going: see `settled`.
        """
        offsets = await asyncio.gather(*(asyncio.to_thread(advance, dsn, duration) for dsn in self.dsns))
        for shard in self._configured:
            self._ring(shard.index)
        return max(offsets)

    def drop(self) -> None:
        """Drop the databases that this engine was given at its start."""
        owned, self._owned = self._owned, []
        for dsn in owned:
            assert self._server is not None
            drop_database(self._server, dsn)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.close()
        finally:
            await asyncio.to_thread(self.drop)

    async def __aenter__(self) -> Self:
        is_new = self.is_new
        try:
            return await super().__aenter__()
        except BaseException:
            if is_new:
                self.drop()
            raise
