"""Servers, databases and poolers for the tests that need PostgreSQL.

`--pg 18`, `--pg 15`, `--pg 14,16` or `--pg all` chooses versions; DWARF_PG does the same where the option cannot be given.
A version that was asked for must be there. Without a choice the tests run on 18 and on 15, and a missing 15 is skipped aloud.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dwarf.testing.databases import create_database, drop_database, fresh_database
from dwarf.testing.postgres import EMBEDDED, QUICK, Missing, Server, SharedServer, find_bindir

VERSIONS_DEFAULT = (EMBEDDED, "15")
VERSIONS_ALL = ("18", "17", "16", "15", "14")
WAIT_SECONDS_MAX = 60

absent: Counter[str] = Counter()
servers: dict[str, Server] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg", default=None, help="PostgreSQL versions to test on: 18, 15, a list with commas, or all that are installed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" in metafunc.fixturenames:
        metafunc.parametrize("version", chosen(metafunc.config)[0], indirect=True, scope="session")


def chosen(config: pytest.Config) -> tuple[tuple[str, ...], bool]:
    """The versions to test on, and whether they must be there."""
    choice = config.getoption("--pg", default=None) or os.environ.get("DWARF_PG")
    if not choice:
        return VERSIONS_DEFAULT, False
    if choice == "all":
        return tuple(version for version in VERSIONS_ALL if is_installed(version)), True
    return tuple(choice.split(",")), True


def is_installed(version: str) -> bool:
    try:
        return find_bindir(version).is_dir()
    except Missing:
        return False


@pytest.fixture(scope="session")
def version(request: pytest.FixtureRequest) -> str:
    """A major version that is installed here."""
    major: str = request.param
    try:
        find_bindir(major)
    except Missing as missing:
        if chosen(request.config)[1] or major == EMBEDDED:
            pytest.fail(str(missing))
        absent[str(missing)] += 1
        pytest.skip(str(missing))
    return major


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once more, at the end, what was not tested. Skips of other workers arrive as reports."""
    skipped = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    reasons = Counter(reason for reason in skipped if "is not installed" in reason)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"NOT TESTED ({count} tests): {reason.removeprefix('Skipped: ')}", red=True, bold=True)


@pytest.fixture(scope="session")
def pg(version: str) -> Server:
    """The test run's server of a version. Nobody restarts it or changes its settings: see `own_server`."""
    if version not in servers:
        servers[version] = SharedServer(find_bindir(version)).start()
    return servers[version]


@pytest.fixture(scope="session", autouse=True)
def leave_servers() -> Iterator[None]:
    yield
    while servers:
        servers.popitem()[1].stop()


@pytest.fixture
def own_server(version: str) -> Iterator[Server]:
    """A server that a test may crash, restart and set up as it likes."""
    with Server(find_bindir(version), settings=QUICK, in_memory=True) as server:
        yield server


@pytest.fixture
def database(pg: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of a fresh database with the current schema."""
    with fresh_database(pg, request.node.name) as dsn:
        yield dsn


@pytest.fixture
def empty_database(pg: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of a fresh database with nothing in it."""
    dsn = create_database(pg, request.node.name)
    yield dsn
    drop_database(pg, dsn)


class PgBouncer:
    """A pooler in transaction mode in front of one server, any database of it."""

    def __init__(self, folder: Path, server_dsn: str, **settings: object) -> None:
        self.folder = folder
        self.server = conninfo_to_dict(server_dsn)
        self.settings = {"pool_mode": "transaction", "default_pool_size": 5, "max_client_conn": 100, "auth_type": "any", **settings}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, program: str) -> None:
        configuration = self.folder / "pgbouncer.ini"
        place = f"host={self.server['host']} port={self.server['port']} user={self.server['user']}"
        fixed = {"listen_port": 6432, "unix_socket_dir": self.folder, "logfile": self.folder / "log", "pidfile": self.folder / "pid"}
        lines = [f"{name} = {value}" for name, value in {**self.settings, **fixed}.items()]
        configuration.write_text("\n".join(["[databases]", f"* = {place}", "[pgbouncer]", "listen_addr =", *lines, ""]))
        account = None
        if os.geteuid() == 0:  # which it refuses to run as: it takes the server's account, which may enter the socket's folder
            account = Path(str(self.server["host"])).stat().st_uid
            os.chown(self.folder, account, -1)
        self.process = subprocess.Popen([program, "-q", str(configuration)], user=account, cwd=self.folder)
        wait_until(self.listens, "PgBouncer listens")

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.folder / ".s.PGSQL.6432")) == 0

    def dsn(self, database_dsn: str) -> str:
        """The way to the same database through the pooler."""
        return make_conninfo(database_dsn, host=str(self.folder), port=6432)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(WAIT_SECONDS_MAX)


@pytest.fixture
def pgbouncer(pg: Server) -> Iterator[Callable[..., PgBouncer]]:
    """Start poolers in front of the test server: `pgbouncer(default_pool_size=2)`."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed: nothing was tested through a pooler; the system package is called pgbouncer")
    with contextlib.ExitStack() as stack:

        def start(**settings: object) -> PgBouncer:
            assert pg.folder is not None
            folder = pg.folder / f"pgbouncer-{os.getpid()}-{time.monotonic_ns()}"
            folder.mkdir(mode=0o755)
            pooler = PgBouncer(folder, pg.dsn(), **settings)
            stack.callback(pooler.stop)
            pooler.start(program)
            return pooler

        yield start


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Look again and again until something is so. The deadline only turns a hang into a failure."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.01)


@pytest.fixture
def until() -> Callable[[Callable[[], object], str], None]:
    return wait_until


@pytest.fixture
def observer(pg: Server) -> Iterator[psycopg.Connection]:
    """A connection to the test server that watches others."""
    with psycopg.connect(pg.dsn(), autocommit=True) as connection:
        yield connection
