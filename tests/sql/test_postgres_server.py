"""Test servers: they start, stop, are shared by a run's processes, and leave nothing behind however those end."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from dwarf.testing import postgres
from dwarf.testing.databases import create_database, drop_database, fresh_database, template_database
from dwarf.testing.postgres import DURABLE, EMBEDDED, QUICK, Missing, Server, ServerFailed, find_bindir

Until = Callable[[Callable[[], object], str], None]
LEDGER = (Path(__file__).parent.parent.parent / "sql" / "migrations" / "0000_ledger.sql").read_text()

# A process of a test run: it joins the run's server, says where that is, and leaves when told to.
MEMBER = """
import sys
from dwarf.testing.postgres import SharedServer, find_bindir
server = SharedServer(find_bindir(sys.argv[1]), run=sys.argv[2]).start()
print(server.folder, server.place.port, server._process is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of temporary files that no other test sweeps. Its path is short, as sockets need it."""
    folder = Path("/tmp") / f"dwarf-{os.getpid()}-{tmp_path.name[-8:]}"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    monkeypatch.undo()
    shutil.rmtree(folder)


def value(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]


def is_listed(folder: Path) -> bool:
    """True when a process has the folder in its command line."""
    return str(folder) in subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout


# ---- one server ----


def test_a_server_starts_serves_and_leaves_no_trace(version: str) -> None:
    server = Server(find_bindir(version), settings=QUICK)
    with server:
        assert value(server.dsn(), "show server_version").startswith(version + ".")  # type: ignore[attr-defined]
        assert value(server.dsn(), "show fsync") == "off"
        folder = server.folder
        assert folder is not None
    assert not folder.exists()
    assert not is_listed(folder)


def test_the_defaults_are_durable_and_settings_can_still_be_altered(version: str) -> None:
    with Server(find_bindir(version), settings=DURABLE) as server:
        assert [value(server.dsn(), f"show {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("alter system set max_connections = 37")
        server.restart()
        assert value(server.dsn(), "show max_connections") == "37"


def test_start_and_stop_may_be_repeated(version: str) -> None:
    server = Server(find_bindir(version), settings=QUICK, in_memory=True)
    server.stop()
    place = server.start().place
    assert server.start().place == place
    server.stop()
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account to run the server as")
def test_under_root_the_server_is_another_account(own_server: Server) -> None:
    assert own_server.folder is not None
    owner = (own_server.folder / "data").stat()
    assert owner.st_uid != 0
    # `data` may be a link to memory: what it leads to is what others must not read.
    for part in ("data", "socket"):
        assert stat.S_IMODE((own_server.folder / part).stat().st_mode) == 0o700


def test_it_is_reached_over_tcp_with_a_password_and_not_without(version: str) -> None:
    with Server(find_bindir(version), settings=QUICK, in_memory=True, tcp=True) as server:
        assert value(server.dsn(), "select 1") == 1
        assert server.place is not None
        without = f"host=127.0.0.1 port={server.place.port} user=postgres dbname=postgres"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(without)


def test_a_port_taken_at_the_last_moment_is_no_failure(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(find_bindir(version), settings=QUICK, in_memory=True, tcp=True) as first:
        assert first.place is not None
        ports = iter([first.place.port, postgres._free_port()])
        monkeypatch.setattr(postgres, "_free_port", lambda: next(ports))
        with Server(find_bindir(version), settings=QUICK, in_memory=True, tcp=True) as second:
            assert second.place is not None
            assert second.place.port != first.place.port
            assert value(second.dsn(), "select 1") == 1


def test_a_failure_to_start_shows_the_log_and_leaves_nothing(version: str) -> None:
    server = Server(find_bindir(version), settings={"shared_buffers": "not a size"}, in_memory=True)
    with pytest.raises(ServerFailed, match="shared_buffers"):
        server.start()
    assert server.folder is not None
    assert not server.folder.exists()


def test_a_quoted_setting_arrives_as_it_is(version: str) -> None:
    with Server(find_bindir(version), settings={"search_path": "it's, \\x"}, in_memory=True) as server:
        assert value(server.dsn(), "show search_path") == "it's, \\x"


def test_a_crash_keeps_the_data_and_the_address(own_server: Server) -> None:
    dsn = own_server.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table kept as select 1 as x")
    own_server.halt(signal.SIGQUIT)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    own_server.resume()
    assert value(dsn, "select x from kept") == 1
    assert "not properly shut down" in own_server.log()


def test_nothing_of_the_callers_environment_reaches_the_server(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "nowhere")
    with Server(find_bindir(version), settings=QUICK, in_memory=True) as server:
        assert value(server.dsn(), "show port") == "5432"


def test_programs_out_of_the_accounts_reach_are_copied(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0 or version != EMBEDDED:
        pytest.skip("it takes root, and programs that can be moved")
    package = find_bindir(version).parent.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in (package, package.with_suffix(".libs")):
        (closed / part.name).symlink_to(part)
    with Server(closed / package.name / "pginstall" / "bin", settings=QUICK, in_memory=True) as server:
        assert server.folder is not None
        assert is_listed(server.folder / "install")
        assert value(server.dsn(), "select 1") == 1


def test_a_missing_version_says_what_would_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Missing, match="postgresql-9"):
        find_bindir("9")
    monkeypatch.setenv("DWARF_PG_BIN_9", "somewhere")
    assert find_bindir("9") == Path("somewhere")


# ---- shared by the processes of a run ----


@contextmanager
def member(run: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    process = subprocess.Popen([sys.executable, "-c", MEMBER, EMBEDDED, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process, process.stdout.readline().split()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_the_processes_of_a_run_share_a_server_and_the_last_one_stops_it(own_temp: Path) -> None:
    with member("r1") as (_, [folder, port, started]):
        with member("r1") as (_, told):
            assert told == [folder, port, "False"]
        assert started == "True"
        assert is_listed(Path(folder))
    assert not is_listed(Path(folder))
    assert {path.name for path in own_temp.iterdir()} == {f"dwarf-pg-{os.geteuid()}.lock"}


def test_the_first_may_leave_before_the_last(own_temp: Path) -> None:
    with member("r1") as (first, [folder, *_]), member("r1"):
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait() == 0
        assert is_listed(Path(folder))
    assert not is_listed(Path(folder))
    assert not Path(folder).exists()


def test_runs_do_not_share(own_temp: Path) -> None:
    with member("r1") as (_, [one, *_]), member("r2") as (_, [other, *_]):
        assert one != other


def test_members_that_come_at_once_get_one_server(own_temp: Path) -> None:
    commands = [[sys.executable, "-c", MEMBER, EMBEDDED, "r1"]] * 4
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for command in commands]
    told = [process.stdout.readline().split() for process in processes if process.stdout]
    for process in processes:
        process.communicate()
    assert len({tuple(line[:2]) for line in told}) == 1
    assert sorted(line[2] for line in told) == ["False", "False", "False", "True"]


def test_what_a_killed_run_left_is_swept_by_the_next(own_temp: Path, until: Until) -> None:
    with member("r1") as (killed, [folder, *_]):
        killed.kill()
        killed.wait()
        assert is_listed(Path(folder))
    with member("r2"):
        until(lambda: not is_listed(Path(folder)), "the killed run's server has ended")
        assert not Path(folder).exists()
        assert not postgres._in_memory(Path(folder)).exists()


def test_a_run_with_a_killed_member_goes_on(own_temp: Path) -> None:
    with member("r1") as (_, [folder, *_]):
        with member("r1") as (killed, _):
            killed.kill()
        with member("r2"):
            assert is_listed(Path(folder))
    assert not is_listed(Path(folder))


def test_the_same_run_started_anew_after_a_kill_gets_a_fresh_server(own_temp: Path) -> None:
    with member("r1") as (killed, told):
        killed.kill()
    with member("r1") as (_, again):
        assert again[0] == told[0]
        assert again[2] == "True"


def test_a_folder_half_made_is_swept(own_temp: Path) -> None:
    half = own_temp / f"dwarf-pg-{os.geteuid()}-0123456789ab"
    (half / "data").mkdir(parents=True)
    with postgres._gate():
        postgres.sweep_folders()
    assert not half.exists()


def test_a_process_that_was_given_the_id_of_a_server_is_left_alone(own_temp: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    half = own_temp / f"dwarf-pg-{os.geteuid()}-0123456789ab"
    (half / "data").mkdir(parents=True)
    (half / "data" / "postmaster.pid").write_text(f"{bystander.pid}\n")
    with postgres._gate():
        postgres.sweep_folders()
    assert not half.exists()
    assert bystander.poll() is None
    bystander.communicate()


def test_leaving_an_own_server_running_at_exit_stops_it(own_temp: Path) -> None:
    code = f"from dwarf.testing.postgres import *; print(Server(find_bindir({EMBEDDED!r}), settings=QUICK, in_memory=True).start().folder)"
    folder = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert not Path(folder).exists()
    assert not is_listed(Path(folder))


def test_a_forked_child_does_not_stop_its_parents_server(own_server: Server) -> None:
    child = os.fork()
    if child == 0:
        own_server._stop_at_exit(os.getppid())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert value(own_server.dsn(), "select 1") == 1


# ---- databases ----


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "sql" / "migrations").mkdir(parents=True)
    (tmp_path / "sql" / "migrations" / "0000_ledger.sql").write_text(LEDGER)
    return tmp_path / "sql"


def test_a_fresh_database_is_migrated_and_dropped_with_whoever_is_in_it(pg: Server, source: Path) -> None:
    with fresh_database(pg, "Some test[18-a b]", source=source) as dsn:
        assert value(dsn, "select count(*) from dwarf.migrations") == 1
        guest = psycopg.connect(dsn)
    with pytest.raises(psycopg.OperationalError):
        guest.execute("select 1")
    guest.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


def test_databases_of_one_name_do_not_meet(pg: Server) -> None:
    one, other = create_database(pg, "x" * 200), create_database(pg, "x" * 200)
    assert value(one, "select current_database()") != value(other, "select current_database()")
    drop_database(pg, one)
    drop_database(pg, other)


def test_a_template_is_made_once_for_all_and_anew_for_other_text(pg: Server, source: Path) -> None:
    name = template_database(pg, source)
    assert template_database(pg, source) == name
    (source / "migrations" / "0000_ledger.sql").write_text(LEDGER + "-- other\n")
    assert template_database(pg, source) != name


def test_a_template_left_unfinished_is_made_anew(pg: Server, source: Path) -> None:
    (source / "migrations" / "0000_ledger.sql").write_text(LEDGER + "-- unfinished\n")
    name = template_database(pg, source)
    with psycopg.connect(pg.dsn(), autocommit=True) as connection:
        connection.execute(f"alter database {name} with is_template false allow_connections true".encode())
    with psycopg.connect(pg.dsn(name), autocommit=True) as connection:
        connection.execute("drop schema dwarf cascade")
    assert template_database(pg, source) == name
    with fresh_database(pg, "again", source=source) as dsn:
        assert value(dsn, "select count(*) from dwarf.migrations") == 1


def test_nothing_here_needs_pytest() -> None:
    code = "import sys, dwarf.testing.postgres, dwarf.testing.databases; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
