"""Makes the daily partitions of a shard ahead of time, and drops those that are older than it keeps. Synchronous.

All that is decided is decided in SQL (`drop_step_v1`); here is only the loop around it, since a partition can be detached
without stopping anybody only outside of any transaction. Nothing is remembered between calls: whoever comes next goes on
where the last one was stopped or killed. Needs no session of its own, so that a pooler may stand between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import NamedTuple

import msgspec
import psycopg
from psycopg import IsolationLevel, errors

from dwarf.errors import InvalidArgument

FIRST_DAY = date(2000, 1, 1)  # day 0 of every partition's number
DAYS_AHEAD = 7
PATIENCE_SECONDS = 60.0  # for one round of dropping
DETACH_SECONDS_MAX = 10.0  # then the detach is left pending: old snapshots may still see the partition
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 2.0
CONNECT_SECONDS_MAX = 10
APPLICATION = "dwarf partitions"

_RETRIED = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)


class Dropped(msgspec.Struct, frozen=True):
    """How many closed roots are gone, and whether anything is left to do: then somebody else is at work, or is looking.

    `faults` says of days that have to stay why; all else is done whatever they are.
    """

    roots: int
    is_done: bool
    faults: tuple[str, ...] = ()


def ensure(conninfo: str, days_ahead: int = DAYS_AHEAD, *, now: datetime | None = None) -> int:
    """Create the partitions of today and of the days ahead that are missing, and return how many tables were made.

    Raises `psycopg.errors.LockNotAvailable` when others hold the parents for all of `PATIENCE_SECONDS`.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    with _connect(conninfo) as connection:
        for wait in _waits():
            try:
                [(made,)] = connection.execute("select dwarf.ensure_partitions(%s, %s)", (days_ahead, now)).fetchall()
            except _RETRIED:
                if time.monotonic() > deadline:
                    raise
                time.sleep(wait)
            else:
                assert isinstance(made, int)
                return made
    raise AssertionError


def drop_before(
    conninfo: str, before: date, *, now: datetime | None = None, patience: float = PATIENCE_SECONDS, stop: threading.Event | None = None
) -> Dropped:
    """Drop what was created before a day (UTC) and had ended by then. Open flows stay, whatever their age.

    Returns when all is done, or, with what is done so far, after `patience` seconds or once `stop` is set. Raises
    `InvalidArgument` for a day that is not over.
    """
    dropping = Dropping(conninfo, before, now=now, stop=stop)
    dropping.go_on(patience)
    return Dropped(dropping.roots, dropping.is_done, tuple(dropping.faults.values()))


class _Piece(NamedTuple):
    state: str
    statement: str
    dropped: int
    day: int
    is_gone: bool
    fault: str


class Dropping:
    """A drop of days under way, and what has come of it so far: closed roots that are gone, days of which nothing is left."""

    def __init__(self, conninfo: str, before: date, *, now: datetime | None = None, stop: threading.Event | None = None) -> None:
        self._conninfo, self._before, self._now = conninfo, before, now
        self._stop = stop or threading.Event()
        self.roots = 0
        self.days: set[date] = set()
        self.faults: dict[int, str] = {}  # why a day has to stay
        self.is_done = False

    def go_on(self, patience: float, *, is_renewed: bool = False) -> None:
        """Go on until all is done, for `patience` seconds, or, renewed, until nothing came of so many. Raises as `drop_before`."""
        deadline = time.monotonic() + patience
        waits = _waits()
        with _connect(self._conninfo) as connection:
            while not self._stop.is_set() and time.monotonic() < deadline:
                try:
                    piece = self._take(connection)
                    if piece.state == "done":
                        self.is_done = True
                        return
                    if piece.state == "run":
                        _detach(connection, piece.statement, deadline)
                    if piece.state != "busy":
                        waits = _waits()
                        deadline = time.monotonic() + patience if is_renewed else deadline
                        continue
                except (*_RETRIED, errors.QueryCanceled):
                    pass
                self._stop.wait(min(next(waits), max(0.0, deadline - time.monotonic())))

    def _take(self, connection: psycopg.Connection[tuple[object, ...]]) -> _Piece:
        """Have the next piece done, and note what came of it."""
        query = "select state, statement, dropped, day, is_gone, fault from dwarf.drop_step_v1(%s, p_now => %s, p_skip => %s::int[])"
        try:
            parameters = ((self._before - FIRST_DAY).days, self._now, list(self.faults))
            [row] = connection.execute(query, parameters).fetchall()
        except psycopg.Error as error:
            if error.sqlstate == "DW400":
                raise InvalidArgument(error.diag.message_primary or str(error)) from error
            raise
        piece = _Piece(*row)  # type: ignore[arg-type]
        self.roots += piece.dropped
        if piece.is_gone:
            self.days.add(FIRST_DAY + timedelta(days=piece.day))
        if piece.state == "failed":
            what = "what outlived its day" if piece.day < 0 else f"day {FIRST_DAY + timedelta(days=piece.day)}"
            self.faults[piece.day] = f"{what} has to stay: {piece.fault}"
        return piece


def _detach(connection: psycopg.Connection[tuple[object, ...]], statement: str, deadline: float) -> None:
    """Run a statement that waits for whoever may still look, holding up nobody; give up on it before it takes too long."""
    seconds = max(RETRY_SECONDS, min(DETACH_SECONDS_MAX, deadline - time.monotonic()))
    with _cancelled_after(connection, seconds):
        connection.execute(statement.encode())


@contextmanager
def _cancelled_after(connection: psycopg.Connection[tuple[object, ...]], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.cancel_safe)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _waits() -> Iterator[float]:
    seconds = RETRY_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 2, RETRY_SECONDS_MAX)


def _connect(conninfo: str) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(
        conninfo, autocommit=True, prepare_threshold=None, application_name=APPLICATION, connect_timeout=CONNECT_SECONDS_MAX
    )
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    return connection
