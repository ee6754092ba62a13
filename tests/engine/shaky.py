"""A PostgreSQL server that tests stop, freeze and restart, and what can be seen in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from dwarf.testing.postgres import Server


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Stop every process of a server for a block, as a host that is suspended does."""
    pids = _processes(server)
    for pid in pids:
        _tell(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _tell(pid, signal.SIGCONT)


@contextmanager
def down(server: Server, how: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Have a server down for a block: SIGINT stops it in good order, SIGQUIT as a crash does."""
    server.halt(how)
    try:
        yield
    finally:
        server.resume()


def _processes(server: Server) -> list[int]:
    """The server's processes, the first of them first, so that none is started behind the others."""
    assert server.folder is not None
    postmaster = int((server.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
    shown = subprocess.run(["ps", "-o", "pid=", "--ppid", str(postmaster)], capture_output=True, text=True, check=False).stdout
    return [postmaster, *map(int, shown.split())]


def _tell(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def number(dsn: str, query: str) -> int:
    """Return the one number that a query gives."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def connections(dsn: str) -> int:
    """Return how many sessions there are in a database beside the one that asks."""
    return number(dsn, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")


def owned(dsn: str) -> int:
    """Return how many steps belong to some session."""
    return number(dsn, "select count(*) from dwarf.active where owner is not null")
