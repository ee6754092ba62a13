"""Connections to PostgreSQL for the hot path: one statement at a time, as bytes, driven by the event loop; and what errors mean.

Owns sockets, their settings and the sorting of errors. Executes nothing of its own but one look at a new connection and the
two ends of a transaction: `store` decides what runs. Sits on psycopg's wrapper of libpq, below its cursors and adapters: a
call costs half as much, and a cancelled caller is never kept waiting by a server that does not answer.

*Poolers.* Statements are unnamed and nothing of the session is set, so that PgBouncer in transaction mode may stand between.
At the start it is told an application name and the encoding, which every pooler knows.

*Cancellation.* A statement cannot be taken back: it may have committed. When its caller is cancelled, the statement runs on
and its result is dropped, and the connection takes the next statement after that. One that is still running after
`DRAIN_SECONDS_MAX` is cancelled on the server and its connection closed: a late cancel request must not hit another statement.

    idle --execute--> busy --result--> idle
                      busy --caller cancelled--> draining --result, no transaction open--> idle
                                                 draining --too long, or a transaction open--> closed
    any --the server is gone, close()--> closed
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from dwarf.errors import (
    Conflict,
    DwarfError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ShardUnavailable,
    Unauthenticated,
    WaitTimeout,
)

APPLICATION = "dwarf"
CONNECT_SECONDS_MAX = 10
DRAIN_SECONDS_MAX = 1.0
CANCEL_SECONDS_MAX = 5.0
# A peer that went away without a word is noticed within half a minute: idle by the probes, busy by what it does not confirm.
NETWORK = {"keepalives": 1, "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
ISOLATION = b"read committed"
HAS_EPOLL = hasattr(select, "epoll")

_LOOK = b"select pg_catalog.current_setting('transaction_read_only'), pg_catalog.current_setting('transaction_isolation')"
_SET = b"select pg_catalog.set_config($1, $2, true)"
_BINARY = 1
_ROWS = {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY}
_COPIES = {ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH}
_closing: set[asyncio.Task[None]] = set()


# ---- what errors mean ----


class Disposition(Enum):
    """What to do about an error. After all but `REFUSED` and `FATAL` the same work is tried again."""

    RETRY_WHOLE = "nothing was done; do it again as it is"
    BISECT = "a value in the batch is at fault; find it by halves"
    NO_PARTITION = "nothing was done, for the partition of a day is missing; make it and do it again as it is"
    RECONNECT = "the connection, or this server as the primary, is lost; the outcome of a commit is unknown"
    REFUSED = "the request breaks a rule of Dwarf's; tell the caller"
    FATAL = "a defect of ours or of the installation; trying again will not help"


_RETRIED = {"40001", "40P01", "55P03", "57014"}  # serialization failure, deadlock, lock not available, cancelled by an operator
# Admin shutdown, crash shutdown, cannot connect now, idle session timeout; read-only (a primary that became a standby);
# ended by the server while idle in a transaction.
_LOST = {"57P01", "57P02", "57P03", "57P05", "25006", "25P03"}
_LOST_CLASSES = {"08", "53"}  # connection, and resources that the server lacks at the moment
_BISECTED = {"XX001", "XX002"}  # a corrupted page or index
_BISECTED_CLASSES = {"22", "23", "54"}  # data, constraints, limits of the server
_CHECK = "23514"  # of a constraint, or of the partitions of a table: then no constraint is named
_PARTITIONED = {"flows", "history"}
_DEFECT = "DW9"  # a count that must agree does not
_REFUSALS: dict[str, type[DwarfError]] = {
    "DW400": InvalidArgument,
    "DW401": Unauthenticated,
    "DW403": PermissionDenied,
    "DW404": NotFound,
    "DW408": WaitTimeout,
    "DW409": Conflict,
    "DW503": ShardUnavailable,
}


class ConnectionLost(psycopg.OperationalError):
    """The connection closed before the statement's result arrived. Whether it took effect is unknown."""


class UnfitDatabase(DwarfError):
    """The database is set up in a way that Dwarf's statements cannot work with."""


def classify(problem: str | BaseException) -> Disposition:
    """Sort an error, or its SQLSTATE, which alone does not tell a missing partition from a broken constraint."""
    sqlstate = problem if isinstance(problem, str) else getattr(problem, "sqlstate", None)
    if sqlstate is None:
        return Disposition.RECONNECT if isinstance(problem, psycopg.OperationalError | OSError) else Disposition.FATAL
    if sqlstate in _RETRIED:
        return Disposition.RETRY_WHOLE
    if sqlstate in _LOST or sqlstate[:2] in _LOST_CLASSES:
        return Disposition.RECONNECT
    if sqlstate == _CHECK and isinstance(problem, psycopg.Error) and _is_partition_missing(problem.diag):
        return Disposition.NO_PARTITION
    if sqlstate in _BISECTED or sqlstate[:2] in _BISECTED_CLASSES:
        return Disposition.BISECT
    if sqlstate.startswith("DW") and not sqlstate.startswith(_DEFECT):
        return Disposition.REFUSED
    return Disposition.FATAL


def _is_partition_missing(told: errors.Diagnostic) -> bool:
    return told.schema_name == "dwarf" and told.table_name in _PARTITIONED and not told.constraint_name


def refusal(error: psycopg.Error) -> DwarfError:
    """Return the error of ours that a `REFUSED` one stands for. Its SQLSTATE ends with the status it has over HTTP."""
    assert classify(error) is Disposition.REFUSED
    kind = _REFUSALS.get(error.sqlstate or "", DwarfError)
    return kind(error.diag.message_primary or str(error))


# ---- connections ----


class Watch:
    """Calls back whenever a socket has something to read or, if wanted, room to write; also when it has broken.

    The loop watches a descriptor of this object and not the socket. For two reasons: libpq closes the socket by itself when the
    server is gone, and on a closed descriptor the loop could not stop watching; and uvloop gives up a socket with an error after
    one call, although the server's last words may have to be read before the end is seen. An epoll in between knows neither.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: int, on_ready: Callable[[], None]) -> None:
        self._loop = loop
        self._on_ready = on_ready
        if HAS_EPOLL:
            self._socket = socket
            self._epoll = select.epoll()
            self._epoll.register(socket, select.EPOLLIN)
            loop.add_reader(self._epoll.fileno(), on_ready)
        else:
            self._socket = os.dup(socket)
            loop.add_reader(self._socket, on_ready)

    def want_room(self, is_wanted: bool) -> None:
        if HAS_EPOLL:
            self._epoll.modify(self._socket, select.EPOLLIN | select.EPOLLOUT if is_wanted else select.EPOLLIN)
        elif is_wanted:
            self._loop.add_writer(self._socket, self._on_ready)
        else:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        if HAS_EPOLL:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        else:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            os.close(self._socket)


def complete(conninfo: str, application: str = APPLICATION) -> str:
    """Return the connection string with our settings where it does not have its own."""
    given = conninfo_to_dict(conninfo)
    ours: dict[str, str | int] = {"application_name": application, "connect_timeout": CONNECT_SECONDS_MAX, **NETWORK}
    if "," in str(given.get("host") or "") + str(given.get("hostaddr") or ""):
        # Of several hosts, the primary. Not with a single one: a pooler may go on saying what its server was before a switch.
        ours["target_session_attrs"] = "read-write"
    missing = {name: value for name, value in ours.items() if name not in given}
    return make_conninfo(conninfo, client_encoding="UTF8", **missing)


class Connection:
    """One connection, for one task at a time. Made by `open`; `on_loss` is called once, however it closes."""

    def __init__(self, origin: psycopg.AsyncConnection, on_loss: Callable[[], None] | None) -> None:
        self._origin = origin
        self._pgconn: PGconn = origin.pgconn
        self._loop = asyncio.get_running_loop()
        self._on_loss = on_loss
        self._waiter: asyncio.Future[PGresult] | None = None  # whose result is under way
        self._drained: asyncio.Future[None] | None = None  # set while an abandoned statement runs on
        self._drain_timer: asyncio.TimerHandle | None = None
        self._result: PGresult | None = None
        self._writing = False
        self._formats: dict[int, list[int]] = {}
        self.is_open = True
        self._watch = Watch(self._loop, self._pgconn.socket, self._on_ready)

    @classmethod
    async def open(cls, conninfo: str, *, application: str = APPLICATION, on_loss: Callable[[], None] | None = None) -> Connection:
        """Connect to a server that can be written to. Raises what `classify` sorts: `RECONNECT` when it may be better later."""
        connection = cls(await psycopg.AsyncConnection.connect(complete(conninfo, application), autocommit=True), on_loss)
        try:
            result = await connection.execute(_LOOK)
        except BaseException:
            connection.close()
            raise
        if result.get_value(0, 0) == b"on":
            connection.close()
            raise errors.ReadOnlySqlTransaction("the server takes no writes: it is a standby, or set to read-only")
        if (isolation := result.get_value(0, 1)) != ISOLATION:
            connection.close()
            raise UnfitDatabase(f"the default isolation of the database is {isolation!r}; it must be {ISOLATION.decode()!r}")
        return connection

    @property
    def is_idle(self) -> bool:
        """True when a statement would be sent at once."""
        return self.is_open and self._waiter is None and self._drained is None

    @property
    def backend_pid(self) -> int:
        return self._pgconn.backend_pid

    @property
    def server_version(self) -> int:
        return self._pgconn.server_version

    async def execute(
        self,
        statement: bytes,
        parameters: Sequence[bytes | None] = (),
        *,
        types: Sequence[int] | None = None,
        formats: Sequence[int] | None = None,
        result_format: int = _BINARY,
    ) -> PGresult:
        """Run one statement and return its result; parameters and result are binary, their types the statement's own.

        Raises psycopg's class for the SQLSTATE, after which the connection goes on, and `ConnectionLost`.
        """
        if self._drained is not None:
            await self.settle()
        assert self._waiter is None, "a connection runs one statement at a time"
        if not self.is_open:
            raise ConnectionLost("the connection is closed")
        if formats is None:
            formats = self._formats.get(len(parameters)) or self._formats.setdefault(len(parameters), [_BINARY] * len(parameters))
        waiter: asyncio.Future[PGresult] = self._loop.create_future()
        self._waiter = waiter
        try:
            self._pgconn.send_query_params(statement, parameters, types, formats, result_format)
            self._flush()
        except psycopg.OperationalError as error:
            self._lose(error)
        except BaseException:  # such as a parameter that is no bytes: nothing was sent
            self._waiter = None
            raise
        try:
            return await waiter
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise

    @asynccontextmanager
    async def transaction(self, **settings: str) -> AsyncIterator[None]:
        """Run what is inside as one transaction, with settings of its own such as `lock_timeout="200ms"`.

        An exception rolls back, a cancellation closes the connection.
        """
        await self.execute(b"begin isolation level read committed")
        try:
            for name, value in settings.items():
                await self.execute(_SET, (name.encode(), value.encode()), types=(25, 25))
            yield
        except Exception:
            if self.is_open:
                await self.execute(b"rollback")
            raise
        except BaseException:
            self.close()
            raise
        if (ended := (await self.execute(b"commit")).command_status) != b"COMMIT":
            raise psycopg.ProgrammingError(f"a transaction in which an error was passed over ended with {ended!r}")

    async def settle(self) -> bool:
        """Wait until an abandoned statement is over; tell whether the connection can be used. Bounded."""
        if self._drained is not None:
            await asyncio.shield(self._drained)
        return self.is_idle

    def close(self) -> None:
        """Close at once. A statement under way is cancelled on the server, and its caller gets `ConnectionLost`."""
        if not self.is_open:
            return
        is_running = self._waiter is not None or self._drained is not None
        self._leave(ConnectionLost("the connection was closed while the statement ran"))
        if is_running and self._pgconn.transaction_status == TransactionStatus.ACTIVE and not self._loop.is_closed():
            task = self._loop.create_task(self._cancel_and_finish())
            _closing.add(task)
            task.add_done_callback(_closing.discard)
        else:
            self._pgconn.finish()

    async def _cancel_and_finish(self) -> None:
        try:
            await self._origin.cancel_safe(timeout=CANCEL_SECONDS_MAX)
        except (psycopg.Error, OSError):
            pass  # the server cannot be told: then it finds out by itself, when it answers
        finally:
            self._pgconn.finish()

    # ---- driven by the loop ----

    def _on_ready(self) -> None:
        """Read what has come, send what is left, and see whether the result is whole."""
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            if self._writing:
                self._flush()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    return self._complete()
                if result.status in _COPIES:
                    return self._end(_error(result))
                self._result = result
        except psycopg.OperationalError as error:
            self._lose(error)

    def _flush(self) -> None:
        """Send what the socket takes, and come back when it takes more."""
        is_left = self._pgconn.flush() == 1
        if is_left != self._writing:
            self._writing = is_left
            self._watch.want_room(is_left)

    def _complete(self) -> None:
        """Hand over the result that has arrived. Without one the server only told news, such as a changed setting."""
        result, self._result = self._result, None
        if result is None:
            return
        waiter, self._waiter = self._waiter, None
        if self._drained is not None:
            self._end_drain()
        elif waiter is not None and not waiter.done():
            if result.status in _ROWS:
                waiter.set_result(result)
            else:
                waiter.set_exception(_error(result))

    def _abandon(self, waiter: asyncio.Future[PGresult]) -> None:
        """Let the statement of a cancelled caller run on, for a while."""
        if self._waiter is not waiter:
            # Its result arrived in the same turn of the loop as the cancellation.
            if self.is_open and self._pgconn.transaction_status != TransactionStatus.IDLE:
                self.close()
            return
        self._waiter = None
        self._drained = self._loop.create_future()
        self._drain_timer = self._loop.call_later(DRAIN_SECONDS_MAX, self.close)

    def _end_drain(self) -> None:
        if self._pgconn.transaction_status == TransactionStatus.IDLE:
            self._settle()
        else:
            self.close()

    def _settle(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def _lose(self, error: psycopg.OperationalError) -> None:
        """Close for good. The server's last words, if there were any, say more than the broken socket."""
        if self.is_open:
            last = self._result
            if last is not None and last.status == ExecStatus.FATAL_ERROR:
                self._end(_error(last))
            else:
                self._end(ConnectionLost(str(error).strip()))

    def _end(self, reason: psycopg.Error) -> None:
        self._leave(reason)
        self._pgconn.finish()

    def _leave(self, reason: psycopg.Error) -> None:
        self.is_open = False
        self._watch.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done() and not self._loop.is_closed():
            waiter.set_exception(reason)
        self._settle()
        if self._on_loss is not None:
            self._on_loss()


def _error(result: PGresult) -> psycopg.Error:
    if result.status == ExecStatus.FATAL_ERROR:
        return errors.error_from_result(result)
    return psycopg.ProgrammingError(f"a statement ended with {ExecStatus(result.status).name}; only results of rows can be read")


def column(result: PGresult, number: int) -> list[bytes | None]:
    """Return a column's cells, counted from 0, for one of the readers of `arrays`."""
    return [result.get_value(row, number) for row in range(result.ntuples)]
