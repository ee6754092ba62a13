"""Sixty days of everything that flows do, with retention at their heels: nothing is lost, and nothing is kept too long."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dwarf import partitions
from tests.engine.almanac import Almanac, app
from tests.engine.rows_support import Make
from tests.engine.victims import ROOT

DAYS = 60
PIECES = 16  # of a round that drops a day
HANG_SECONDS = 600  # only turns a hang into a failure


@asynccontextmanager
async def almanac(dwarf_engine: Make, seed: int) -> AsyncIterator[Almanac]:
    # A session that is renewed in the very moment in which the clock moves would be a day old at once: this one lives for weeks.
    async with asyncio.timeout(HANG_SECONDS), dwarf_engine(app, sweep_seconds=3600, session_seconds=2_000_000) as engine:
        books = Almanac(engine, seed)
        try:
            await books.begin()
            yield books
        finally:
            books.close()


async def live(books: Almanac, disturb: Callable[[], Awaitable[None]]) -> None:
    """Live through the days; `disturb` has the background work of each cut short before it is done for good."""
    for day in range(DAYS):
        await books.pass_day()
        await disturb()
        await books.do_chores()
        await books.check()
        if day % 5 == 4:
            await books.use_keys_again()
        if day == 47:
            assert await books.drop_early(20) > 0
            await books.check()
            assert await books.drop_early(20) == 0
    ended = [entry for entry in books.entries if entry.is_ended]
    assert len(ended) > 200
    assert {str(entry.status) for entry in ended} == {"completed", "failed", "terminated"}
    assert sum(entry.ended_on - entry.made_on > 20 for entry in ended) > 5, "some were open for weeks"
    assert sum(not books.is_there(entry) for entry in ended) > 120, "most are gone"


@pytest.mark.row("I2", "I5", "I8", "I10", "I12", "I18", "I20", "D20", "F20")
def test_sixty_days(dwarf_engine: Make) -> None:
    async def nothing() -> None:
        pass

    async def run() -> None:
        async with almanac(dwarf_engine, seed=1) as books:
            await live(books, nothing)

    asyncio.run(run())


@pytest.mark.row("I2", "I5", "I8", "I21", "M19", "M38")
@pytest.mark.parametrize("seed", [2])
def test_sixty_days_on_which_the_background_work_is_killed(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async def run() -> None:
        async with almanac(dwarf_engine, seed) as books:
            killer = Killer(books, seed, monkeypatch)
            await live(books, killer.disturb)
            assert min(killer.count.values()) > 5, killer.count

    asyncio.run(run())


class Killer:
    """Cuts rounds of background work short: cancelled, cut off from the database, or killed as a process."""

    def __init__(self, books: Almanac, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.books, self.dice = books, random.Random(seed)
        self.count = {"cancel": 0, "cut off": 0, "kill": 0}
        self._loop = asyncio.get_running_loop()
        self._left, self._is_reached = 0, asyncio.Event()
        run, take = books.pool.run, partitions.Dropping._take

        async def counted(*arguments: Any, **named: Any) -> Any:
            self._pass()
            return await run(*arguments, **named)

        def taken(*arguments: Any) -> Any:
            self._pass()
            return take(*arguments)

        patch.setattr(books.pool, "run", counted)
        patch.setattr(partitions.Dropping, "_take", taken)

    def _pass(self) -> None:
        """Pass one more piece of a round."""
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._is_reached.set)

    async def disturb(self) -> None:
        how = self.dice.choice(["cancel", "cancel", "cut off", "cut off", "kill"])
        self.count[how] += 1
        await {"cancel": self._cancel, "cut off": self._cut_off, "kill": self._kill}[how]()

    async def _begin(self) -> asyncio.Task[object]:
        """Begin a round, and come back somewhere in it."""
        self._left = self.dice.randrange(1, PIECES)
        self._is_reached.clear()
        task = asyncio.ensure_future(self.books.chores.do(1))
        reached = asyncio.ensure_future(self._is_reached.wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        return task

    async def _cancel(self) -> None:
        task = await self._begin()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _cut_off(self) -> None:
        task = await self._begin()
        for backend in self.books.backends():
            self.books.all("select pg_terminate_backend(%s)", backend)
        await task

    async def _kill(self) -> None:
        arguments = [self.books.engine.dsn, str(self.dice.randrange(1, PIECES)), str(self.dice.random() * 0.01)]
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.engine.almanac", *arguments, cwd=ROOT)
        assert await process.wait() == -signal.SIGKILL
