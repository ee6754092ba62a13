"""The life of one session: registered, renewed while the process lives, ended in good order; and the judging of others.

A session that the database did not renew for a whole life, although it was asked, is lost for the process: what it ran may run
elsewhere by then. It starts anew as another one. One that was not asked, for a task that kept the loop or a process that was
suspended, goes on if it is still known: signals and the fence tell what was taken away meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dwarf import faults
from dwarf.pool import Pool
from dwarf.rows import SweptRow

RENEWALS_PER_LIFE = 6
SWEEP_ROWS_MAX = 1_000  # of one statement

log = logging.getLogger("dwarf.dispatch")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How long leases last and who may end them. Seconds. `by_session` False leaves a step to its own deadline."""

    engine_id: int
    life: float = 30.0
    sweep_every: float = 60.0
    by_session: bool = True

    @property
    def life_ms(self) -> int:
        return int(self.life * 1000)


class SessionLost(Exception):
    """The session could not be renewed for its whole life, or somebody removed it."""


class Session:
    """One process start on one shard. It is renewed over `renewals`, which nothing else uses."""

    def __init__(self, pool: Pool, renewals: Pool, terms: Terms) -> None:
        self._pool, self._renewals, self._terms = pool, renewals, terms
        self.number = 0
        self._renewed_at = 0.0

    @property
    def interval(self) -> float:
        """How often the session is renewed, in seconds."""
        return self._terms.life / RENEWALS_PER_LIFE

    @property
    def may_take(self) -> bool:
        """True while renewals succeed: half a life without one is no time to take on more."""
        return _clock() - self._renewed_at < self._terms.life / 2

    async def start(self, *, patience: float) -> None:
        terms = self._terms
        self._renewed_at = _clock()
        # A start whose answer was lost leaves a session that nobody renews.
        self.number = await self._pool.run(lambda store: store.start_session(terms.engine_id, life_ms=terms.life_ms), patience=patience)

    async def renew(self) -> None:
        """Renew until cancelled. Raises `SessionLost`."""
        interval = self.interval
        pause = 0.0  # the first renewal tells at once that this is a dispatcher
        while True:
            await asyncio.sleep(pause)
            tried_at = _clock()
            faults.reach("renew.sent")
            try:
                # A loop that was kept from it asks all the same: alone, it would otherwise run what keeps it again and again.
                left = max(self._renewed_at + self._terms.life - tried_at, interval)
                async with asyncio.timeout(left):
                    is_known = await self._renewals.run(
                        lambda store: store.renew_session(self.number, life_ms=self._terms.life_ms, is_dispatcher=True), patience=interval
                    )
            except Exception as error:
                if _clock() - self._renewed_at >= self._terms.life:
                    raise SessionLost(f"session {self.number} could not be renewed for {self._terms.life:g} s: {error}") from error
                log.warning("%s: session %d could not be renewed: %s", self._pool.name, self.number, error)
                pause = max(min(interval, self._renewed_at + self._terms.life - _clock()), 0.0)
                continue
            if not is_known:
                raise SessionLost(f"session {self.number} is no longer registered")
            self._renewed_at = tried_at
            pause = interval

    async def sweep(self, on_swept: Callable[[list[SweptRow]], None]) -> None:
        """Take back what nobody runs any more: at once, and then again and again. The dead are looked for at every renewal."""
        interval = min(self._terms.sweep_every, self.interval)
        while True:
            try:
                await self._sweep_all(on_swept)
            except Exception as error:
                log.warning("%s: session %d could not sweep: %s", self._pool.name, self.number, error)
            await asyncio.sleep(interval)

    async def _sweep_all(self, on_swept: Callable[[list[SweptRow]], None]) -> None:
        terms = self._terms
        while True:
            faults.reach("sweep.sent")
            swept = await self._pool.run(
                lambda store: store.sweep(self.number, life_ms=terms.life_ms, by_session=terms.by_session, limit=SWEEP_ROWS_MAX)
            )
            if swept:
                on_swept(swept)
            if len(swept) < SWEEP_ROWS_MAX:
                return

    async def end(self) -> None:
        await self._pool.run(lambda store: store.end_session(self.number), patience=1)


def _clock() -> float:
    return asyncio.get_running_loop().time()
