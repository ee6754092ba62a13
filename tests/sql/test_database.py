"""The hot path's connection: results, errors, cancellation, loss, poolers and failover, on both event loops; arrays as the server sees them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dwarf import arrays, database
from dwarf.database import Connection, ConnectionLost, Disposition, UnfitDatabase, classify, column, complete, refusal
from dwarf.errors import Conflict, DwarfError, InvalidArgument, NotFound
from dwarf.testing.postgres import Server, find_bindir

Run = Callable[[Coroutine[Any, Any, None]], None]
Until = Callable[[Callable[[], object], str], None]
Pooler = Callable[..., Any]

ECHO = b"select $1::int8"
SLEEP = b"select pg_sleep(3600)"
WAIT_SECONDS_MAX = 60


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return asyncio.run if request.param == "asyncio" else uvloop.run


@asynccontextmanager
async def opened(dsn: str, **options: Any) -> AsyncIterator[Connection]:
    connection = await Connection.open(dsn, **options)
    try:
        yield connection
    finally:
        connection.close()


async def echo(connection: Connection, value: int) -> int:
    cell = (await connection.execute(ECHO, (arrays.int8(value),))).get_value(0, 0)
    assert cell is not None
    return int.from_bytes(cell, signed=True)


async def eventually(is_so: Callable[[], object]) -> None:
    """Look again and again: what is looked at happens in another process, which sets no event."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def descriptors() -> int:
    """How many files this process has open, without those that a traceback keeps."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


class Onlooker:
    """Counts what is on the server, from outside the event loop."""

    def __init__(self, observer: psycopg.Connection, dsn: str) -> None:
        self.observer = observer
        self.database = conninfo_to_dict(dsn)["dbname"]

    def pids(self, condition: str = "true") -> list[int]:
        query = f"select pid from pg_stat_activity where datname = %s and backend_type = 'client backend' and {condition}"
        return [pid for (pid,) in self.observer.execute(query.encode(), (self.database,))]

    def terminate(self, pid: int) -> None:
        self.observer.execute("select pg_terminate_backend(%s)", (pid,))


@pytest.fixture
def onlooker(observer: psycopg.Connection, empty_database: str) -> Onlooker:
    return Onlooker(observer, empty_database)


# ---- statements ----


def test_results_are_binary_and_come_back_in_order(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            result = await connection.execute(b"select n, 'x' || n from generate_series(1, $1::int4) as n", (arrays.int4(3),))
            assert arrays.read_int4(column(result, 0)) == [1, 2, 3]
            assert arrays.read_text(column(result, 1)) == ["x1", "x2", "x3"]
            assert [await echo(connection, value) for value in (-1, 0, 1 << 62)] == [-1, 0, 1 << 62]
            assert (await connection.execute(b"select 1 where false")).ntuples == 0
            assert (await connection.execute(b"create table t (x int)")).command_status == b"CREATE TABLE"
            assert (await connection.execute(b"")).ntuples == 0
            text = await connection.execute(b"select $1::int4", (b"17",), formats=[0], result_format=0)
            assert text.get_value(0, 0) == b"17"
            typed = await connection.execute(b"select $1", (arrays.text("é"),), types=[arrays.TEXT])
            assert typed.get_value(0, 0) == "é".encode()
            assert (await connection.execute(b"select $1::text", (None,))).get_value(0, 0) is None

    run(body())


def test_an_error_has_its_sqlstate_and_the_connection_goes_on(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            with pytest.raises(errors.DivisionByZero) as caught:
                await connection.execute(b"select 1 / 0")
            assert caught.value.sqlstate == "22012"
            assert "division by zero" in str(caught.value.diag.message_primary)
            with pytest.raises(errors.SyntaxError):
                await connection.execute(b"selec 1")
            assert await echo(connection, 5) == 5

    run(body())


def test_what_is_larger_than_the_sockets_buffer_goes_through_both_ways(run: Run, empty_database: str) -> None:
    async def body() -> None:
        document = b'"' + b"x" * (24 << 20) + b'"'
        async with opened(empty_database) as connection:
            result = await connection.execute(b"select $1::json, length($1::text)", (document,))
            assert result.get_value(0, 0) == document
            assert await echo(connection, 1) == 1

    run(body())


def test_without_epoll_the_loop_watches_the_socket_itself(empty_database: str, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "HAS_EPOLL", False)

    async def body() -> None:
        lost = asyncio.Event()
        document = b'"' + b"x" * (24 << 20) + b'"'
        before = descriptors()
        async with opened(empty_database, on_loss=lost.set) as connection:
            assert (await connection.execute(b"select $1::json", (document,))).get_value(0, 0) == document
            assert await echo(connection, 1) == 1
            onlooker.terminate(connection.backend_pid)
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await lost.wait()
        assert descriptors() == before

    asyncio.run(body())


def test_a_parameter_that_is_no_bytes_harms_nothing(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            with pytest.raises(TypeError):
                await connection.execute(ECHO, ("1",))  # type: ignore[arg-type]
            assert connection.is_idle
            assert await echo(connection, 1) == 1

    run(body())


def test_a_second_statement_at_once_is_a_mistake(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            first = asyncio.ensure_future(echo(connection, 1))
            await asyncio.sleep(0)
            assert not connection.is_idle
            with pytest.raises(AssertionError, match="one statement at a time"):
                await echo(connection, 2)
            assert await first == 1

    run(body())


def test_a_copy_is_refused_and_the_connection_closed(run: Run, empty_database: str) -> None:
    async def body() -> None:
        for statement in (b"copy (select 1) to stdout", b"copy t from stdin"):
            async with opened(empty_database) as connection:
                await connection.execute(b"create temp table t (x int)")
                with pytest.raises(psycopg.ProgrammingError, match="COPY"):
                    await connection.execute(statement)
                assert not connection.is_open

    run(body())


def test_notices_and_changed_settings_are_no_results(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            await connection.execute(b"do $$ begin for i in 1..2000 loop raise notice 'a notice of some length %', i; end loop; end $$")
            await connection.execute(b"set timezone = 'Asia/Kathmandu'")
            assert await echo(connection, 1) == 1

    run(body())


def test_texts_are_utf8_whatever_the_database_prefers(run: Run, empty_database: str, observer: psycopg.Connection) -> None:
    name = conninfo_to_dict(empty_database)["dbname"]
    observer.execute(f"alter database {name} set client_encoding = 'LATIN1'".encode())

    async def body() -> None:
        async with opened(empty_database) as connection:
            result = await connection.execute(b"select $1::text, octet_length($1::text)", (arrays.text("ü€"),))
            assert arrays.read_text(column(result, 0)) == ["ü€"]
            assert arrays.read_int4(column(result, 1)) == [5]

    run(body())


# ---- transactions ----


def test_a_transaction_commits_or_rolls_back_with_settings_of_its_own(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            await connection.execute(b"create table t (x int8)")
            async with connection.transaction(lock_timeout="200ms"):
                shown = await connection.execute(b"select current_setting('lock_timeout'), current_setting('transaction_isolation')")
                assert [shown.get_value(0, 0), shown.get_value(0, 1)] == [b"200ms", b"read committed"]
                await connection.execute(b"insert into t values ($1)", (arrays.int8(1),))

            async def failing(statement: bytes) -> None:
                async with connection.transaction():
                    await connection.execute(b"insert into t values (2)")
                    await connection.execute(statement)
                    raise ZeroDivisionError

            with pytest.raises(errors.DivisionByZero):
                await failing(b"select 1 / 0")
            with pytest.raises(ZeroDivisionError):
                await failing(b"select 1")
            assert (await connection.execute(b"show lock_timeout")).get_value(0, 0) == b"0"
            assert arrays.read_int8(column(await connection.execute(b"select x from t"), 0)) == [1]

    run(body())


def test_a_commit_that_was_a_rollback_is_an_error(run: Run, empty_database: str) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:

            async def careless() -> None:
                async with connection.transaction():
                    with contextlib.suppress(errors.DivisionByZero):
                        await connection.execute(b"select 1 / 0")

            with pytest.raises(psycopg.ProgrammingError, match="ROLLBACK"):
                await careless()
            assert await echo(connection, 1) == 1

    run(body())


# ---- cancellation ----


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_after_a_cancelled_caller_the_statement_runs_on_and_its_result_is_dropped(
    run: Run, empty_database: str, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "DRAIN_SECONDS_MAX", WAIT_SECONDS_MAX)

    async def body() -> None:
        async with opened(empty_database) as connection, opened(empty_database) as holder:
            await connection.execute(b"create table t (x int8)")
            await holder.execute(b"begin")
            await holder.execute(b"lock table t")
            task = asyncio.ensure_future(connection.execute(b"insert into t values (7) returning x"))
            await eventually(lambda: onlooker.pids("wait_event_type = 'Lock'"))
            await cancelled(task)
            assert connection.is_open
            assert not connection.is_idle
            await holder.execute(b"commit")
            assert await echo(connection, 1) == 1, "the next statement waits for the abandoned one, and gets its own result"
            assert connection._drain_timer is None, "it is not closed later for what is over"
            assert arrays.read_int8(column(await connection.execute(b"select x from t"), 0)) == [7]

    run(body())


def test_a_statement_that_runs_on_too_long_is_cancelled_on_the_server_and_its_connection_closed(
    run: Run, empty_database: str, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "DRAIN_SECONDS_MAX", 0.01)
    lost = []

    async def body() -> None:
        async with opened(empty_database, on_loss=lambda: lost.append(True)) as connection:
            task = asyncio.ensure_future(connection.execute(SLEEP))
            await eventually(lambda: onlooker.pids("wait_event = 'PgSleep'"))
            await cancelled(task)
            assert await connection.settle() is False
            assert not connection.is_open
            assert lost == [True]
            with pytest.raises(ConnectionLost):
                await echo(connection, 1)
            await eventually(lambda: not onlooker.pids())

    run(body())


def test_a_cancellation_inside_a_transaction_closes_the_connection(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            await connection.execute(b"create table t (x int8)")
            inside = asyncio.Event()

            async def work() -> None:
                async with connection.transaction():
                    await connection.execute(b"insert into t values (1)")
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(work())
            await inside.wait()
            await cancelled(task)
            assert not connection.is_open
            await eventually(lambda: not onlooker.pids())
        async with opened(empty_database) as connection:
            assert (await connection.execute(b"select from t")).ntuples == 0

    run(body())


@pytest.mark.parametrize("statement", [b"begin", b"insert into t values (1)"])
def test_an_abandoned_statement_that_leaves_a_transaction_open_closes_the_connection(
    run: Run, empty_database: str, statement: bytes
) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            await connection.execute(b"create table t (x int8)")
            if statement != b"begin":
                await connection.execute(b"begin")
            task = asyncio.ensure_future(connection.execute(statement))
            await asyncio.sleep(0)
            await cancelled(task)
            assert await connection.settle() is False
            assert not connection.is_open

    run(body())


@pytest.mark.parametrize(("statement", "is_usable"), [(b"begin", False), (b"select 1", True)])
def test_a_cancellation_in_the_moment_of_the_result(run: Run, empty_database: str, statement: bytes, is_usable: bool) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            task = asyncio.ensure_future(connection.execute(statement))
            complete_result = connection._complete

            def complete_and_cancel() -> None:
                complete_result()
                task.cancel()

            connection._complete = complete_and_cancel  # type: ignore[method-assign]
            with pytest.raises(asyncio.CancelledError):
                await task
            connection._complete = complete_result  # type: ignore[method-assign]
            assert await connection.settle() is is_usable

    run(body())


def test_cancelled_at_any_moment_nobody_gets_the_result_of_another(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        chance = random.Random(1)
        async with opened(empty_database) as connection:
            for value in range(600):
                task = asyncio.ensure_future(echo(connection, value))
                for _ in range(chance.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert await task == value
                assert await echo(connection, -value) == -value
            assert connection.is_idle
            assert len(onlooker.pids()) == 1

    run(body())


def test_cut_off_callers_leak_no_connection(run: Run, empty_database: str, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "DRAIN_SECONDS_MAX", 0.002)

    async def body() -> None:
        chance = random.Random(2)
        before = descriptors()
        for _ in range(40):
            async with opened(empty_database) as connection:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(chance.random() * 0.01):
                        await connection.execute(b"select pg_sleep($1)", (arrays.float8(chance.random() * 0.01),))
        await eventually(lambda: not onlooker.pids())
        await eventually(lambda: not database._closing)
        await eventually(lambda: descriptors() == before)

    run(body())


def test_close_under_a_statement_ends_it_on_both_sides(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            task = asyncio.ensure_future(connection.execute(SLEEP))
            await eventually(lambda: onlooker.pids("wait_event = 'PgSleep'"))
            connection.close()
            connection.close()
            with pytest.raises(ConnectionLost, match="closed while the statement ran"):
                await task
            await eventually(lambda: not onlooker.pids())

    run(body())


def test_closing_after_the_loop_is_no_error(run: Run, empty_database: str, onlooker: Onlooker, until: Until) -> None:
    left: list[Connection] = []

    async def body() -> None:
        left.append(await Connection.open(empty_database))

    run(body())
    left[0].close()
    assert not left[0].is_open
    until(lambda: not onlooker.pids(), "the server has seen the end")


def test_connecting_can_be_cancelled_and_leaves_no_socket(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        before = descriptors()
        chance = random.Random(3)
        for _ in range(60):
            task = asyncio.ensure_future(Connection.open(empty_database))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).close()
        await eventually(lambda: not onlooker.pids())
        await eventually(lambda: not database._closing)
        await eventually(lambda: descriptors() == before)

    run(body())


# ---- loss ----


def test_a_server_that_never_answers_does_not_hold_a_cancelled_caller(
    run: Run, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped processes keep their sockets open and say nothing, like a server behind a network that swallows all."""
    monkeypatch.setattr(database, "DRAIN_SECONDS_MAX", 0.01)
    monkeypatch.setattr(database, "CANCEL_SECONDS_MAX", 0.01)
    assert own_server.folder is not None
    postmaster = int((own_server.folder / "data" / "postmaster.pid").read_text().split()[0])

    async def body() -> None:
        async with opened(own_server.dsn()) as connection:
            stopped = [postmaster, connection.backend_pid]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                task = asyncio.ensure_future(echo(connection, 1))
                await asyncio.sleep(0)
                await cancelled(task)
                assert await connection.settle() is False
                connecting = asyncio.ensure_future(Connection.open(own_server.dsn()))
                for _ in range(20):
                    await asyncio.sleep(0)
                await cancelled(connecting)
                await eventually(lambda: not database._closing)
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)

    run(body())


def test_an_idle_connection_notices_that_its_backend_is_gone(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        lost = asyncio.Event()
        async with opened(empty_database, on_loss=lost.set) as connection:
            onlooker.terminate(connection.backend_pid)
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await lost.wait()
            assert not connection.is_open
            with pytest.raises(ConnectionLost) as caught:
                await echo(connection, 1)
            assert classify(caught.value) is Disposition.RECONNECT

    run(body())


def test_a_busy_connection_gets_the_servers_last_words(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            task = asyncio.ensure_future(connection.execute(SLEEP))
            await eventually(lambda: onlooker.pids("wait_event = 'PgSleep'"))
            onlooker.terminate(connection.backend_pid)
            with pytest.raises(errors.AdminShutdown) as caught:
                await task
            assert classify(caught.value) is Disposition.RECONNECT
            assert not connection.is_open

    run(body())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_of_the_server_ends_connections_and_new_ones_work(run: Run, own_server: Server, how: signal.Signals) -> None:
    async def body() -> None:
        async with opened(own_server.dsn()) as idle, opened(own_server.dsn()) as busy:
            task = asyncio.ensure_future(busy.execute(SLEEP))
            await asyncio.to_thread(own_server.halt, how)
            with pytest.raises(psycopg.OperationalError) as caught:
                await task
            assert classify(caught.value) is Disposition.RECONNECT
            await eventually(lambda: not idle.is_open)
            with pytest.raises(psycopg.OperationalError) as refused:
                await Connection.open(own_server.dsn())
            assert classify(refused.value) is Disposition.RECONNECT
            await asyncio.to_thread(own_server.resume)
        async with opened(own_server.dsn()) as connection:
            assert await echo(connection, 1) == 1

    run(body())


def test_a_loss_in_the_middle_of_sending_is_a_loss(run: Run, empty_database: str, onlooker: Onlooker) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            await connection.execute(b"create table t (x json)")
            os.kill(connection.backend_pid, signal.SIGSTOP)
            document = b'"' + b"x" * (64 << 20) + b'"'
            task = asyncio.ensure_future(connection.execute(b"insert into t values ($1)", (document,)))
            await eventually(lambda: connection._writing)
            onlooker.terminate(connection.backend_pid)
            os.kill(connection.backend_pid, signal.SIGCONT)
            with pytest.raises(psycopg.OperationalError) as caught:
                await task
            assert classify(caught.value) is Disposition.RECONNECT
            assert not connection.is_open

    run(body())


# ---- failover ----


def test_a_read_only_server_is_refused_when_opening_and_recognised_later(run: Run, own_server: Server) -> None:
    def set_read_only(value: str) -> None:
        with psycopg.connect(own_server.dsn(), autocommit=True, options="-c default_transaction_read_only=off") as admin:
            admin.execute(f"alter system set default_transaction_read_only = {value}".encode())
            admin.execute("select pg_reload_conf()")

    async def body() -> None:
        async with opened(own_server.dsn()) as connection:
            await connection.execute(b"create table t (x int)")
            set_read_only("on")
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while (await connection.execute(b"show default_transaction_read_only")).get_value(0, 0) == b"off":
                    pass
            with pytest.raises(errors.ReadOnlySqlTransaction) as late:
                await connection.execute(b"insert into t values (1)")
            assert classify(late.value) is Disposition.RECONNECT
        with pytest.raises(errors.ReadOnlySqlTransaction, match="takes no writes") as early:
            await Connection.open(own_server.dsn())
        assert classify(early.value) is Disposition.RECONNECT

    run(body())


def test_a_standby_is_refused_until_it_is_promoted(run: Run, own_server: Server) -> None:
    own_server.halt()
    assert own_server.folder is not None
    (own_server.folder / "data" / "standby.signal").touch()
    own_server.resume()

    async def body() -> None:
        with pytest.raises(errors.ReadOnlySqlTransaction):
            await Connection.open(own_server.dsn())
        with psycopg.connect(own_server.dsn(), autocommit=True) as admin:
            admin.execute("select pg_promote()")
        async with opened(own_server.dsn()) as connection:
            assert await echo(connection, 1) == 1

    run(body())


def test_of_several_hosts_the_one_that_takes_writes_is_found(run: Run, own_server: Server, pg: Server) -> None:
    own_server.halt()
    assert own_server.folder is not None
    (own_server.folder / "data" / "standby.signal").touch()
    own_server.resume()
    standby, primary = conninfo_to_dict(own_server.dsn()), conninfo_to_dict(pg.dsn())
    both = make_conninfo(pg.dsn(), host=f"{standby['host']},{primary['host']}", port=f"{standby['port']},{primary['port']}")

    async def body() -> None:
        async with opened(both) as connection:
            result = await connection.execute(b"select current_setting('unix_socket_directories')")
            assert result.get_value(0, 0) == str(primary["host"]).encode()

    run(body())


def test_a_database_of_another_isolation_is_refused_for_good(run: Run, empty_database: str, observer: psycopg.Connection) -> None:
    name = conninfo_to_dict(empty_database)["dbname"]
    observer.execute(f"alter database {name} set default_transaction_isolation = 'serializable'".encode())

    async def body() -> None:
        with pytest.raises(UnfitDatabase, match="read committed") as caught:
            await Connection.open(empty_database)
        assert classify(caught.value) is Disposition.FATAL

    run(body())


# ---- poolers ----


def test_through_a_pooler_statements_of_many_share_few_connections(
    run: Run, empty_database: str, pgbouncer: Pooler, onlooker: Onlooker
) -> None:
    pooler = pgbouncer(default_pool_size=3)
    pooled = pooler.dsn(empty_database)

    async def work(number: int) -> None:
        async with opened(pooled) as connection:
            for value in range(60):
                assert await echo(connection, number * value) == number * value
                if value % 20 == 0:
                    async with connection.transaction(statement_timeout="1min"):
                        assert (await connection.execute(b"show statement_timeout")).get_value(0, 0) == b"1min"
                        assert await echo(connection, value) == value
                    with pytest.raises(errors.DivisionByZero):
                        await connection.execute(b"select 1 / 0")

    async def body() -> None:
        await asyncio.gather(*(work(number) for number in range(12)))
        assert 1 <= len(onlooker.pids()) <= 3

    run(body())
    assert not [line for line in pooler.log().splitlines() if "prepared" in line or "unsupported startup" in line]


def test_a_cancelled_caller_behind_a_pooler_frees_the_poolers_connection(
    run: Run, empty_database: str, pgbouncer: Pooler, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "DRAIN_SECONDS_MAX", 0.01)
    pooled = pgbouncer(default_pool_size=1).dsn(empty_database)

    async def body() -> None:
        async with opened(pooled) as connection:
            task = asyncio.ensure_future(connection.execute(SLEEP))
            await eventually(lambda: onlooker.pids("wait_event = 'PgSleep'"))
            await cancelled(task)
            await connection.settle()
        async with opened(pooled) as connection:
            assert await echo(connection, 1) == 1

    run(body())


# ---- what errors mean ----


@pytest.mark.parametrize(
    ("states", "disposition"),
    [
        (["40001", "40P01", "55P03", "57014"], Disposition.RETRY_WHOLE),
        (["22001", "22P05", "23505", "23514", "54000", "XX001", "XX002"], Disposition.BISECT),
        (["08000", "08006", "08P01", "53300", "53100", "57P01", "57P02", "57P03", "57P05", "25006", "25P03"], Disposition.RECONNECT),
        (["DW400", "DW404", "DW409", "DW503", "DW418"], Disposition.REFUSED),
        (["DW901", "42P01", "42883", "XX000", "0A000", "57P04", "28P01", "3D000", "P0001", ""], Disposition.FATAL),
    ],
)
def test_every_sqlstate_has_a_disposition(states: Sequence[str], disposition: Disposition) -> None:
    assert {state: classify(state) for state in states} == dict.fromkeys(states, disposition)


@pytest.mark.parametrize(
    ("error", "disposition"),
    [
        (psycopg.OperationalError("gone"), Disposition.RECONNECT),
        (ConnectionLost("gone"), Disposition.RECONNECT),
        (ConnectionResetError(), Disposition.RECONNECT),
        (TimeoutError(), Disposition.RECONNECT),
        (psycopg.ProgrammingError("odd"), Disposition.FATAL),
        (ValueError(), Disposition.FATAL),
        (errors.DeadlockDetected("x"), Disposition.RETRY_WHOLE),
        (errors.UniqueViolation("x"), Disposition.BISECT),
    ],
)
def test_every_exception_has_a_disposition(error: BaseException, disposition: Disposition) -> None:
    assert classify(error) is disposition


@pytest.mark.parametrize(
    ("statement", "disposition"),
    [
        ("insert into dwarf.flows(flow_id, day) values (1, 1)", Disposition.NO_PARTITION),
        ("insert into dwarf.history(flow_id, day) values (1, 1)", Disposition.NO_PARTITION),
        (
            "insert into dwarf.migrations(version, name, checksum, breaking, dwarf_version) values (-1, '', '', false, '')",
            Disposition.BISECT,
        ),
        ("create table mine(day int) partition by list (day); insert into mine values (1)", Disposition.BISECT),
    ],
)
def test_a_missing_partition_is_told_from_a_value_that_breaks_a_rule(database: str, statement: str, disposition: Disposition) -> None:
    with psycopg.connect(database) as connection, pytest.raises(errors.CheckViolation) as caught:
        connection.execute(statement.encode())
    assert classify(caught.value) is disposition


@pytest.mark.parametrize(("state", "kind"), [("DW400", InvalidArgument), ("DW404", NotFound), ("DW409", Conflict), ("DW499", DwarfError)])
def test_a_refusal_in_sql_is_an_error_of_ours(run: Run, empty_database: str, state: str, kind: type[DwarfError]) -> None:
    async def body() -> None:
        async with opened(empty_database) as connection:
            statement = f"do $$ begin raise exception using errcode = '{state}', message = 'flow 1-2-3 has ended'; end $$"
            with pytest.raises(psycopg.Error) as caught:
                await connection.execute(statement.encode())
            assert classify(caught.value) is Disposition.REFUSED
            refused = refusal(caught.value)
            assert (type(refused), str(refused)) == (kind, "flow 1-2-3 has ended")
            assert await echo(connection, 1) == 1

    run(body())


def test_the_connection_string_keeps_what_it_says_and_gets_the_rest() -> None:
    ours = conninfo_to_dict(complete("host=a", "dwarf: dispatcher 1"))
    assert (ours["application_name"], ours["client_encoding"], ours["connect_timeout"]) == ("dwarf: dispatcher 1", "UTF8", "10")
    assert {name: str(value) for name, value in database.NETWORK.items()}.items() <= ours.items()
    assert "target_session_attrs" not in ours
    assert "options" not in ours
    theirs = conninfo_to_dict(complete("postgresql://a,b/x?application_name=mine&keepalives_idle=1&client_encoding=LATIN1"))
    assert (theirs["application_name"], theirs["keepalives_idle"], theirs["client_encoding"]) == ("mine", "1", "UTF8")
    assert theirs["target_session_attrs"] == "read-write"
    chosen = complete("postgresql://a,b/x?target_session_attrs=any")
    assert conninfo_to_dict(chosen)["target_session_attrs"] == "any"


# ---- arrays, as the server sees them ----

MOMENT = datetime(2026, 11, 30, 12, 34, 56, 789_012, tzinfo=UTC)
COLUMNS: list[tuple[str, Callable[[Sequence[Any]], bytes], Callable[[Any], Any], int, list[Any], list[str]]] = [
    ("int2", arrays.int2_array, arrays.read_int2, arrays.INT2_ARRAY, [-(1 << 15), 0, (1 << 15) - 1], ["-32768", "0", "32767"]),
    ("int4", arrays.int4_array, arrays.read_int4, arrays.INT4_ARRAY, [-(1 << 31), 7, (1 << 31) - 1], ["-2147483648", "7", "2147483647"]),
    ("int8", arrays.int8_array, arrays.read_int8, arrays.INT8_ARRAY, [-(1 << 63), (1 << 63) - 1], ["-9223372036854775808", "9223372036854775807"]),
    ("float4", arrays.float4_array, arrays.read_float4, arrays.FLOAT4_ARRAY, [1.5, -0.0, float("inf")], ["1.5", "-0", "Infinity"]),
    ("float8", arrays.float8_array, arrays.read_float8, arrays.FLOAT8_ARRAY, [0.1, 5e-324, 1.7976931348623157e308, float("-inf")],
     ["0.1", "5e-324", "1.7976931348623157e+308", "-Infinity"]),
    ("bool", arrays.bool_array, arrays.read_bool, arrays.BOOL_ARRAY, [True, False], ["true", "false"]),
    ("text", arrays.text_array, arrays.read_text, arrays.TEXT_ARRAY, ["", "null", "a\"b\\c{},'é€😀\n", "x" * 10_000], ["", "null", "a\"b\\c{},'é€😀\n", "x" * 10_000]),
    ("json", arrays.json_array, list, arrays.JSON_ARRAY, [b'{"a": 1e100, "b":-0.0, "a":"\\u0000"}', b"null", b"12345678901234567890123"],
     ['{"a": 1e100, "b":-0.0, "a":"\\u0000"}', "null", "12345678901234567890123"]),
    ("bytea", arrays.bytea_array, list, arrays.BYTEA_ARRAY, [b"", b"\x00\xff"], ["\\x", "\\x00ff"]),
    ("timestamptz", arrays.timestamptz_array, arrays.read_timestamptz, arrays.TIMESTAMPTZ_ARRAY, [MOMENT, arrays.EPOCH, datetime(1, 1, 1, tzinfo=UTC)],
     ["2026-11-30 12:34:56.789012+00", "2000-01-01 00:00:00+00", "0001-01-01 00:00:00+00"]),
    ("timestamptz", arrays.micros_array, arrays.read_int8, arrays.TIMESTAMPTZ_ARRAY, [arrays.FOREVER, arrays.SINCE_EVER, 1],
     ["infinity", "-infinity", "2000-01-01 00:00:00.000001+00"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "build", "read", "oid", "values", "texts"), COLUMNS, ids=[f"{each[0]}-{each[1].__name__}" for each in COLUMNS]
)
def test_an_array_arrives_as_what_it_is_and_comes_back(
    empty_database: str,
    kind: str,
    build: Callable[[Sequence[Any]], bytes],
    read: Callable[[Any], Any],
    oid: int,
    values: list[Any],
    texts: list[str],
) -> None:
    async def body() -> None:
        unnested = f"select u, u::text from unnest($1::{kind}[]) with ordinality as x (u, place) order by place".encode()
        whole = f"select $1::{kind}[]".encode()
        async with opened(empty_database) as connection:
            for column_in, shown in [
                (values, texts),
                ([None, *values, None], [None, *texts, None]),
                ([None], [None]),
                ([], []),
                (values * 700, texts * 700),
            ]:
                built = build(column_in)
                result = await connection.execute(unnested, (built,), types=(oid,))
                assert read(column(result, 0)) == column_in
                assert arrays.read_text(column(result, 1)) == shown
                back = (await connection.execute(whole, (built,))).get_value(0, 0)
                assert back == built, "byte for byte what the server itself would send"

    asyncio.run(body())


def test_single_values_arrive_as_what_they_are(empty_database: str) -> None:
    async def body() -> None:
        statement = b"select concat_ws('|', $1::int2, $2::int4, $3::int8, $4::float8, $5::bool, $6::text, $7::timestamptz)"
        parameters = [
            arrays.int2(-1),
            arrays.int4(2),
            arrays.int8(3),
            arrays.float8(0.5),
            arrays.boolean(True),
            arrays.text("é"),
            arrays.timestamptz(MOMENT),
        ]
        async with opened(empty_database) as connection:
            result = await connection.execute(statement, parameters)
            assert arrays.read_text(column(result, 0)) == ["-1|2|3|0.5|t|é|2026-11-30 12:34:56.789012+00"]

    asyncio.run(body())


def test_a_pid_and_a_version_are_known(empty_database: str, version: str) -> None:
    async def body() -> None:
        async with opened(empty_database, application="dwarf: test") as connection:
            shown = await connection.execute(b"select pg_backend_pid(), current_setting('application_name')")
            assert arrays.read_int4(column(shown, 0)) == [connection.backend_pid]
            assert shown.get_value(0, 1) == b"dwarf: test"
            assert connection.server_version // 10_000 == int(version)
            assert find_bindir(version).is_dir()

    asyncio.run(body())
