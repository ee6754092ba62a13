"""A shard's connections, lent out one piece of work at a time; and what is tried again when one fails.

Owns at most `size` connections, opened when they are needed. Executes nothing: work is a function of a `Reads`, which is a
`Store` that also knows what clients ask; it runs one or a few statements. Callers take turns in the order in which they came.

    serialization, deadlock, lock   nothing was done: the same work again, after a pause
    no partition for its day        nothing was done: it is made, and then the same work again
    no connection to be had         the same again until `patience` has passed, then `Unreached`: nothing was sent
    the connection is lost          work that may be repeated: the same; other work may have been done: `ShardUnavailable`
    a rule of Dwarf's is broken     the error of ours that it stands for
    all else                        is raised as it is

A cancelled caller leaves its place in the queue, or its connection, to the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from dwarf.database import APPLICATION, Connection, Disposition, classify, complete, refusal
from dwarf.errors import DwarfError, InvalidArgument, ShardUnavailable
from dwarf.reads import Reads

PATIENCE_SECONDS = 10.0
CONTENTION_ATTEMPTS_MAX = 8
CONTENTION_PAUSE_SECONDS = 0.02  # times the number of the attempt
RECONNECT_PAUSE_SECONDS = (0.02, 0.1, 0.5, 1.0)  # the last one for as long as patience lasts
PARTITION_DAYS_AHEAD = 1  # where one is missing: no more than is wanted at once, the chores make the others
UNREACHABLE_SECONDS = 5.0  # how long a failed connect counts against a shard

T = TypeVar("T")
Work = Callable[[Reads], Awaitable[T]]


class Unreached(ShardUnavailable):
    """No connection could be opened: nothing was sent, so nothing was done."""


class Pool:
    """Connections to one shard, at most `size`. `name` is what errors call the shard."""

    def __init__(self, conninfo: str, *, size: int, application: str = APPLICATION, name: str = "the shard") -> None:
        assert size >= 1, size
        try:
            complete(conninfo, application)
        except psycopg.ProgrammingError:  # whose text quotes the string, password and all
            raise InvalidArgument(f"{name}: its dsn is no connection string that libpq can read") from None
        self._conninfo, self._size, self._application, self._name = conninfo, size, application, name
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._turns_taken = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._unreachable_until = 0.0
        self.is_closed = False

    @property
    def name(self) -> str:
        """What errors and logs call the shard."""
        return self._name

    @property
    def is_unreachable(self) -> bool:
        """True for a few seconds after a connect has failed, until one succeeds."""
        return self._unreachable_until > asyncio.get_running_loop().time()

    @property
    def connections_open(self) -> int:
        return sum(connection.is_open for connection in self._all)

    async def run(self, work: Work[T], *, is_repeatable: bool = True, patience: float = PATIENCE_SECONDS) -> T:
        """Run `work` over one of the connections and return its result. `patience` is in seconds."""
        clock = asyncio.get_running_loop().time
        until = clock() + patience
        contended = lost = 0
        while True:
            is_sent = False
            await self._take_turn(until)
            try:
                connection = await self._connection()
                is_sent = True
                try:
                    return await work(Reads(connection))
                finally:
                    self._put_back(connection)
            except Exception as error:
                failure = error
            finally:
                self._pass_turn()
            if classify(failure) is Disposition.NO_PARTITION and contended < CONTENTION_ATTEMPTS_MAX - 1:
                await self.run(lambda reads: reads.ensure_partitions(PARTITION_DAYS_AHEAD), patience=until - clock())
                contended += 1
                continue
            pause = self._pause(failure, is_repeatable or not is_sent, contended, lost)
            if classify(failure) is Disposition.RETRY_WHOLE:
                contended += 1
            elif clock() + pause > until:
                raise self._unavailable(failure, is_sent)
            else:
                lost += 1
            await asyncio.sleep(pause)

    def close(self) -> None:
        """Close every connection. Work under way is cut off, and who waits for a turn gets `ShardUnavailable`."""
        self.is_closed = True
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self._closed())
        self._idle.clear()
        for connection in list(self._all):
            connection.close()
        self._all.clear()

    def _pause(self, failure: Exception, may_repeat: bool, contended: int, lost: int) -> float:
        """Return how long to wait before the work is tried again, or raise what the failure comes to."""
        if isinstance(failure, DwarfError):
            raise failure
        if self.is_closed:
            raise (self._closed() if may_repeat else self._unavailable(failure, is_sent=True)) from failure
        match classify(failure):
            case Disposition.RETRY_WHOLE if contended < CONTENTION_ATTEMPTS_MAX - 1:
                return CONTENTION_PAUSE_SECONDS * (contended + 1)
            case Disposition.RETRY_WHOLE:
                raise ShardUnavailable(f"{self._name} is too busy: {failure}") from failure
            case Disposition.RECONNECT if may_repeat:
                return RECONNECT_PAUSE_SECONDS[min(lost, len(RECONNECT_PAUSE_SECONDS) - 1)]
            case Disposition.RECONNECT:
                raise self._unavailable(failure, is_sent=True) from failure
            case Disposition.REFUSED:
                assert isinstance(failure, psycopg.Error)
                raise refusal(failure) from failure
            case _:
                raise failure

    def _unavailable(self, failure: Exception, is_sent: bool) -> ShardUnavailable:
        text = str(failure).strip() or type(failure).__name__
        error: ShardUnavailable
        if is_sent:
            error = ShardUnavailable(f"{self._name} was lost before it answered; what was asked may have been done: {text}")
        else:
            error = Unreached(f"{self._name} cannot be reached: {text}")
        error.__cause__ = failure
        return error

    def _closed(self) -> ShardUnavailable:
        return Unreached(f"the connections to {self._name} have been closed")

    # Turns

    async def _take_turn(self, until: float) -> None:
        """Wait for a turn. Raises when the shard is out of reach and patience has passed."""
        if self.is_closed:
            raise self._closed()
        if self._turns_taken < self._size:
            self._turns_taken += 1
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_at(until, self._lose_patience, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_turn()
            raise
        finally:
            timer.cancel()

    def _lose_patience(self, waiter: asyncio.Future[None]) -> None:
        """End a wait for a turn where it is the shard that is out of reach. A queue that moves is waited in to its end."""
        if self.is_unreachable and not waiter.done():
            waiter.set_exception(Unreached(f"{self._name} cannot be reached"))

    def _pass_turn(self) -> None:
        """Hand a turn to the first who still waits for one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._turns_taken -= 1

    # Connections

    async def _connection(self) -> Connection:
        """Return an idle connection, or open one: whoever has a turn has a right to it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._all.discard(connection)
        try:
            connection = await Connection.open(self._conninfo, application=self._application)
        except Exception as error:
            if classify(error) is Disposition.RECONNECT:
                self._unreachable_until = asyncio.get_running_loop().time() + UNREACHABLE_SECONDS
            raise
        self._unreachable_until = 0.0
        if self.is_closed:
            connection.close()
            raise self._closed()
        self._all.add(connection)
        return connection

    def _put_back(self, connection: Connection) -> None:
        if not connection.is_open:
            self._all.discard(connection)
        elif connection.is_idle:
            self._idle.append(connection)
        else:
            self._idle.appendleft(connection)  # a cancelled caller's statement runs on: this one last
