"""The rig of `bench.sqldrive`: a durable server, a migrated database, and what work on it costs by whom.

Owns the server, the pooler and the held snapshot it starts. Reads processor times from /proc, so it runs on Linux only and
beside the server it measures. Knows nothing of flows.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dwarf import migrate
from dwarf.partitions import ensure
from dwarf.testing.databases import create_database
from dwarf.testing.postgres import Server, find_bindir

SETTINGS: dict[str, object] = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": 300}
DURABLE_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
PGBENCH_SCALE, PGBENCH_SECONDS = 10, 5
POOL_SIZE = 4
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# Emptied between cells. History and flows too: a run must not pay for the size that another left.
TABLES = "dwarf.live, dwarf.active, dwarf.parks, dwarf.signals, dwarf.doomed, dwarf.flows, dwarf.history"


class Cost(msgspec.Struct):
    """What metered work took: seconds by the clock, nanoseconds of processor time, bytes of WAL and full pages in it."""

    seconds: float = 0.0
    backend_ns: int = 0
    client_ns: int = 0
    wal_bytes: int = 0
    full_pages: int = 0

    def add(self, other: Cost) -> None:
        self.seconds += other.seconds
        self.backend_ns += other.backend_ns
        self.client_ns += other.client_ns
        self.wal_bytes += other.wal_bytes
        self.full_pages += other.full_pages


class Rig:
    """A server with one migrated database, a control connection that is never counted, and the meter."""

    def __init__(self, major: str, *, partitions: int = 1, sql: Path | None = None, pgbouncer: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        self.server = self._stack.enter_context(Server(find_bindir(major), settings=SETTINGS))
        self.dsn = create_database(self.server, "bench")
        migrate.migrate(self.dsn, sql)
        ensure(self.dsn, partitions - 1)
        self.control = self._stack.enter_context(psycopg.connect(self.dsn, autocommit=True))
        for name in DURABLE_SETTINGS:
            assert self.one(f"show {name}") == "on", name
        self.client_dsn = self._stack.enter_context(_pooler(self.server, self.dsn)) if pgbouncer else self.dsn
        self.costs: dict[str, Cost] = {}
        self._backends: list[int] = []
        create_pgbench(self.server)

    def close(self) -> None:
        self._stack.close()

    def one(self, statement: str) -> object:
        """Return the one value that a statement of the control connection gives."""
        row = self.control.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]

    def empty(self) -> None:
        """Take every flow away, and the space that it took."""
        self.control.execute(f"truncate {TABLES}".encode())

    # ---- the meter ----

    def reset(self) -> None:
        """Forget what was metered, and look which backends there are to meter."""
        rows = self.control.execute(
            "select pid from pg_stat_activity"
            " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
        ).fetchall()
        self._backends = [pid for (pid,) in rows]
        self.costs = {}

    @contextlib.contextmanager
    def metering(self, phase: str) -> Iterator[None]:
        """Add what is done inside to a phase's cost. Only the rig's own sessions may be at work meanwhile."""
        lsn, full_pages = self._wal()
        backend, client, start = sum(map(cpu_ns, self._backends)), time.process_time_ns(), time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        client, backend = time.process_time_ns() - client, sum(map(cpu_ns, self._backends)) - backend
        lsn_after, full_pages_after = self._wal()
        cost = Cost(seconds, backend, client, lsn_after - lsn, full_pages_after - full_pages)
        self.costs.setdefault(phase, Cost()).add(cost)

    def others_ns(self) -> int:
        """Return the processor time of the server without its clients' backends: checkpointer, writers, vacuum, postmaster."""
        postmaster = self._postmaster()
        children = [pid for pid in _children(postmaster) if pid not in self._backends and pid != self.control.info.backend_pid]
        ended = sum(map(int, _stat(postmaster)[13:15])) * TICK_NS
        return cpu_ns(postmaster) + ended + sum(map(cpu_ns, children))

    def updates(self) -> tuple[int, int]:
        """Return how many updates `active` has seen, and how many of them were HOT."""
        row = self.control.execute(
            "select coalesce(sum(n_tup_upd), 0)::bigint, coalesce(sum(n_tup_hot_upd), 0)::bigint from pg_stat_user_tables"
            " where schemaname = 'dwarf' and relname = 'active'"
        ).fetchone()
        assert row is not None
        return row

    def _wal(self) -> tuple[int, int]:
        row = self.control.execute("select pg_current_wal_insert_lsn() - '0/0', wal_fpi from pg_stat_wal").fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def _postmaster(self) -> int:
        assert self.server.folder is not None
        return int((self.server.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Hold a snapshot, so that nothing that dies meanwhile can be pruned or vacuumed."""
        with psycopg.connect(self.dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("select 1 from dwarf.lanes limit 1")
            yield
            connection.rollback()

    def pgbench(self) -> float:
        """Return the transactions per second of the yardstick."""
        options = ["-n", "-N", "-c", "32", "-j", "2", "-T", str(PGBENCH_SECONDS)]
        shown = _run_pgbench(self.server, options)
        [tps] = re.findall(r"tps = ([0-9.]+) \(without initial", shown)
        return float(tps)


def create_pgbench(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("create database pgbench")
    _run_pgbench(server, ["-i", "-q", "-s", str(PGBENCH_SCALE)])


def _run_pgbench(server: Server, options: list[str]) -> str:
    place = conninfo_to_dict(server.dsn("pgbench"))
    where = ["-h", str(place["host"]), "-p", str(place["port"]), "-U", str(place["user"]), "pgbench"]
    done = subprocess.run([server.bindir / "pgbench", *options, *where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- processes ----


def cpu_ns(pid: int) -> int:
    """Return the processor time of a process with one thread, user and system, in nanoseconds."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except FileNotFoundError:  # a kernel without it, or a process that has ended: then 0 is told by the caller's sums
        return sum(map(int, _stat(pid)[11:13])) * TICK_NS


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: those behind the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["0"] * 50


def _children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if _stat(pid)[1] == str(parent)]


@contextlib.contextmanager
def _pooler(server: Server, dsn: str) -> Iterator[str]:
    """Run PgBouncer in transaction mode before the server, and yield the way through it."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "PgBouncer is not installed: the system package is called pgbouncer"
    assert server.folder is not None
    folder = server.folder / "pgbouncer"
    folder.mkdir(mode=0o755)
    place = conninfo_to_dict(server.dsn())
    lines = ["[databases]", f"* = host={place['host']} port={place['port']} user={place['user']}", "[pgbouncer]", "listen_addr ="]
    lines += ["listen_port = 6432", f"unix_socket_dir = {folder}", f"logfile = {folder}/log", f"pidfile = {folder}/pid"]
    lines += ["auth_type = any", "pool_mode = transaction", f"default_pool_size = {POOL_SIZE}", "max_client_conn = 100"]
    (folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]))
    account = None
    if os.geteuid() == 0:  # which it refuses to run as
        account = Path(str(place["host"])).stat().st_uid
        os.chown(folder, account, -1)
    process = subprocess.Popen([program, "-q", str(folder / "pgbouncer.ini")], user=account, cwd=folder)
    try:
        _wait_for(folder / ".s.PGSQL.6432", process)
        yield make_conninfo(dsn, host=str(folder), port=6432)
    finally:
        process.terminate()
        process.wait()


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        while client.connect_ex(str(path)) != 0:
            assert process.poll() is None, "PgBouncer ended"
            time.sleep(0.02)
