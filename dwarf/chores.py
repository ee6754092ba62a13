"""The background work of a shard, one round at a time: partitions ahead, removals, expirations, forgetting, retention, figures.

Any number of replicas may do it at once, and whoever does it may be stopped anywhere: every piece is a transaction of its own,
and what is left to do is read from the tables. Holds nothing but what spares a round work. Decides nothing about steps: what
comes back from expired owners is the sweep's (`dispatch`).

    chore        what it does                                              bounded by
    partitions   makes those of today and the days ahead                   how many are missing
    removal      removes deleted flows, and those to be kept for a minute  REMOVALS_MAX trees
    expiration   terminates open flows that are too old                    EXPIRATIONS_MAX trees, those that fail left out
    sessions     forgets sessions that ended long ago and hold nothing     -
    audit        forgets old acts                                          ACTS_MAX rows
    retention    drops the days that are too old, once a day               RETENTION_SECONDS_MAX
    gauges       measures the backlog, unless another one just has         one walk through the index of due steps

A chore that fails leaves the others to be done, and is done again in the next round. A flow that retention cannot move out of a
day keeps that day as it is, and no other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from dwarf import partitions
from dwarf.arrays import moment
from dwarf.errors import DwarfError, ShardUnavailable
from dwarf.keys import LOW_BITS, LOW_MAX
from dwarf.pool import Pool

BEHIND_SECONDS = 1.0  # between two rounds where there is more to do
REMOVALS_AT_ONCE = 100
REMOVALS_MAX = 2_000
EXPIRATIONS_AT_ONCE = 200
EXPIRATIONS_MAX = 1_000
ACTS_AT_ONCE = 1_000
ACTS_MAX = 10_000
SESSION_PATIENCE_MS = 3_600_000  # so that who looks can still see who it was
RETENTION_SECONDS_MAX = 20.0
DAY_MS = 86_400_000

log = logging.getLogger("dwarf")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard keeps, and for how long. None keeps for ever."""

    retention_days: int | None = 30
    flow_expiration_ms: int | None = None
    audit_days: int | None = 90
    days_ahead: int = partitions.DAYS_AHEAD
    gauges_every_ms: int = 30_000


class Done(msgspec.Struct):
    """What a round did. `unexpired` are flows that could not be terminated, `faults` the chores that failed, by name.

    `is_behind`: a bound was reached and more is left, so that the next round is better not waited for.
    """

    partitions_made: int = 0
    removed: int = 0
    expired: int = 0
    unexpired: list[int] = []
    sessions_forgotten: int = 0
    acts_forgotten: int = 0
    dropped: int = 0
    has_measured: bool = False
    is_behind: bool = False
    faults: dict[str, Exception] = {}


class Chores:
    """The background work of one shard. `conninfo` is for retention, which needs a connection of its own, for a while."""

    def __init__(self, pool: Pool, conninfo: str, terms: Terms) -> None:
        self._pool, self._conninfo, self._terms = pool, conninfo, terms
        self._dropped_before: int | None = None  # the day up to which all is dropped

    async def do(self, session: int, *, now: int | None = None) -> Done:
        """Do a round for a session and return what was done. `now` is in microseconds since 2000, None the database's time.

        Raises nothing but a cancellation; what runs in the database at that moment may still be done.
        """
        done = Done()
        chores: dict[str, Callable[[], Awaitable[None]]] = {
            "partitions": lambda: self._make_partitions(done, now),
            "removal": lambda: self._remove(done, now),
            "expiration": lambda: self._expire(done, now),
            "sessions": lambda: self._forget_sessions(done, now),
            "audit": lambda: self._forget_acts(done, now),
            "retention": lambda: self._drop_days(done, now),
            "gauges": lambda: self._measure(done, session, now),
        }
        for name, chore in chores.items():
            try:
                await chore()
            except Exception as error:
                log.warning("%s: %s has to wait for the next round: %s", self._pool.name, name, error)
                done.faults[name] = error
        return done

    async def do_for_ever(self, session: int, every: float) -> None:
        """Do a round every so many seconds, and sooner where more is left to do."""
        while True:
            done = await self.do(session)
            await asyncio.sleep(BEHIND_SECONDS if done.is_behind else every)

    async def _make_partitions(self, done: Done, now: int | None) -> None:
        done.partitions_made = await self._pool.run(lambda store: store.ensure_partitions(self._terms.days_ahead, now=now))

    async def _remove(self, done: Done, now: int | None) -> None:
        while done.removed < REMOVALS_MAX:
            removed = await self._pool.run(lambda store: store.reap(REMOVALS_AT_ONCE, now=now))
            done.removed += removed
            if removed < REMOVALS_AT_ONCE:
                return
        done.is_behind = True

    async def _expire(self, done: Done, now: int | None) -> None:
        """Terminate what is too old, oldest first. One flow that cannot be does not keep the others from it."""
        age_ms = self._terms.flow_expiration_ms
        if age_ms is None:
            return
        after = seen = 0
        while seen < EXPIRATIONS_MAX:
            due = await self._too_old(age_ms, after, now)
            for root in due:
                await self._expire_one(done, root, age_ms, now)
            seen += len(due)
            if len(due) < EXPIRATIONS_AT_ONCE:
                return
            after = due[-1]
        done.is_behind = True

    async def _too_old(self, age_ms: int, after: int, now: int | None) -> list[int]:
        return await self._pool.run(lambda store: store.expired(age_ms, EXPIRATIONS_AT_ONCE, after=after, now=now))

    async def _expire_one(self, done: Done, root: int, age_ms: int, now: int | None) -> None:
        try:
            done.expired += await self._pool.run(lambda store: store.expire(root, age_ms, now=now))
        except ShardUnavailable:
            raise
        except Exception as error:
            log.warning("flow %d-%d is too old and cannot be terminated: %s", root >> LOW_BITS, root & LOW_MAX, error)
            done.unexpired.append(root)

    async def _forget_sessions(self, done: Done, now: int | None) -> None:
        done.sessions_forgotten = await self._pool.run(lambda store: store.forget_sessions(SESSION_PATIENCE_MS, now=now))

    async def _forget_acts(self, done: Done, now: int | None) -> None:
        if self._terms.audit_days is None:
            return
        age_ms = self._terms.audit_days * DAY_MS
        while done.acts_forgotten < ACTS_MAX:
            forgotten = await self._pool.run(lambda store: store.forget_audit(age_ms, ACTS_AT_ONCE, now=now))
            done.acts_forgotten += forgotten
            if forgotten < ACTS_AT_ONCE:
                return
        done.is_behind = True

    async def _drop_days(self, done: Done, now: int | None) -> None:
        """Drop the days that are too old; a day whose turn has come stays the one until the next, so that once is enough."""
        if self._terms.retention_days is None:
            return
        before = await self._pool.run(lambda store: store.today(now=now)) - self._terms.retention_days - 1
        if self._dropped_before is not None and before <= self._dropped_before:
            return
        stop = threading.Event()
        try:
            dropped = await asyncio.to_thread(
                partitions.drop_before,
                self._conninfo,
                partitions.FIRST_DAY + timedelta(days=before),
                now=None if now is None else moment(now),
                patience=RETENTION_SECONDS_MAX,
                stop=stop,
            )
        finally:
            stop.set()  # for a cancelled round, whose thread goes on
        done.dropped = dropped.roots
        if dropped.faults:
            raise DwarfError("; ".join(dropped.faults))
        if dropped.is_done:
            self._dropped_before = before
        else:
            done.is_behind = True

    async def _measure(self, done: Done, session: int, now: int | None) -> None:
        every_ms = self._terms.gauges_every_ms
        done.has_measured = await self._pool.run(lambda store: store.refresh_gauges(session, every_ms, now=now))
