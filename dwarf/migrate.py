"""Brings a database's schema up to this code, forward only, and says how far it is. Synchronous, run before any loop.

Owns `sql/migrations/`, the files they include, and the ledger `dwarf.migrations`. Needs no session: every lock and every
setting belongs to a transaction, so that a pooler in transaction mode may stand between.

A migration `NNNN_name.sql` begins with comments:

    -- purpose: what it is for
    -- lock: what it locks, and for how long
    -- transactional: yes | no
    -- breaking: yes | no

and a line `-- include functions/claim_v1.sql` in it stands for that file. Where a function has two forms, they stand in
`functions/pg18/` and `functions/pg14/`, and the server's version chooses.

*Taking turns.* Whoever applies a migration holds `dwarf.migrations` locked in exclusive mode, in the transaction that
inserts the ledger row and runs the text: killed anywhere, nothing of it is left. Before the table exists, an advisory lock
of that transaction stands in. Others ask again and again and never wait inside a statement: a waiting statement would hold a
pooler's server connection, and the snapshot of a waiting `select` would stop `create index concurrently` for ever.

*Without a transaction* (`create index concurrently`), one connection holds the turn and a second one runs the statements.
Killed half way, they run again from the first: such a text says `if exists` and `if not exists`. The server does not notice
that a killed migrator is gone while it builds an index, so whoever has the turn next ends that statement first.

*After an upgrade of the server* across version 18 the ledger tells, by its checksums, that functions stand in the form of the
other version. They work, slower or not at their best; `check` names them, and `migrate` creates them anew in the right form.

*Locks on live tables* are waited for briefly, so that no traffic queues behind a waiting migration, and often.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import class_row

from dwarf import __version__
from dwarf.errors import DwarfError
from dwarf.queries import SQL_PACKAGE, statements

SERVER_VERSION_MIN = 14_00_00
FORM_MODERN_MIN = 18_00_00  # below it functions take the form without MERGE
MODERN, OLDER = "pg18", "pg14"
FORMS = (MODERN, OLDER)

TURN_SECONDS_MAX = 1_800  # how long others may take before this one gives up
TURN_POLL_SECONDS = 0.1
ORPHAN_SECONDS_MAX = 60
LOCK_TIMEOUT_MS = 2_000  # for each lock that a migration takes
ATTEMPTS_MAX = 30
RETRY_SECONDS = 0.2  # times the number of the attempt
RETRY_SECONDS_MAX = 3.0
CONNECT_SECONDS_MAX = 10
APPLICATION = "dwarf migrate"
WORKER = "dwarf migrate, at work"  # a second connection; only with the turn is there one
BOOTSTRAP_LOCK = int.from_bytes(b"dwarfddl", "big")

# Of the transaction alone. A server that lacks a setting is not asked for it.
SETTINGS = {
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "search_path": "",
    "client_min_messages": "warning",
}
# A killed migrator must not leave a statement running and its locks held. Some servers cannot watch their clients.
WATCH_CLIENT = """
do $$
begin
  perform pg_catalog.set_config('client_connection_check_interval', '1s', true);
exception when others then
  null;
end
$$
"""

# Not `to_regclass`: it answers from a cache, in which a table that another one has just created may be missing.
HAS_LEDGER = """
select exists (
  select
  from pg_catalog.pg_class as class
  inner join pg_catalog.pg_namespace as namespace on class.relnamespace = namespace.oid
  where namespace.nspname = 'dwarf' and class.relname = 'migrations'
)
"""
HAS_FUNCTION = """
select exists (
  select
  from pg_catalog.pg_proc as proc
  inner join pg_catalog.pg_namespace as namespace on proc.pronamespace = namespace.oid
  where namespace.nspname = %(schema)s and proc.proname = %(name)s
)
"""
END_ORPHANS = f"""
select pg_catalog.pg_terminate_backend(activity.pid)
from pg_catalog.pg_stat_activity as activity
where activity.datname = pg_catalog.current_database() and activity.usename = current_user
  and activity.application_name = '{WORKER}' and activity.state <> 'idle' and activity.pid <> pg_catalog.pg_backend_pid()
"""

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_INCLUDE = re.compile(r"^--[ \t]*include[ \t]+(.*?)[ \t]*$", re.MULTILINE)
_INCLUDED = re.compile(r"(functions/)?([a-z0-9_]+\.sql)")
_HEADER = re.compile(r"--[ \t]*(purpose|lock|transactional|breaking):[ \t]*(.*?)[ \t]*")
_HEADER_KEYS = ("purpose", "lock", "transactional", "breaking")
_FUNCTION = re.compile(r"create function (?P<schema>[a-z0-9_]+)\.(?P<name>[a-z0-9_]+)\b")
_ENDS_TRANSACTION = re.compile(r"(begin|start\s+transaction|commit|rollback|abort|prepare\s+transaction)\b(?!\s+atomic)", re.IGNORECASE)
_RETRIED = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)


class MigrationError(DwarfError):
    """A database's schema cannot be brought up to this code. Nothing was left half done.

    `rule` is a short stable identifier: source, server-version, newer-breaking, checksum, gap, turn, lock,
    read-only or statement.
    """

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class Migration(msgspec.Struct, frozen=True):
    """A migration as this code has it for one form.

    `checksums` are those of all forms, its own first. `formed` are the functions in it that have two forms, in this one.
    """

    version: int
    name: str
    purpose: str
    lock: str
    transactional: bool
    breaking: bool
    text: str
    checksums: tuple[str, ...]
    formed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


class Applied(msgspec.Struct, frozen=True):
    """A row of the ledger."""

    version: int
    name: str
    checksum: str
    breaking: bool
    applied_at: datetime
    dwarf_version: str

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a database and this code compare.

    `pending`: known and not applied. `unknown`: applied and not known here. `mismatched`: applied with another text.
    `other_form`: applied in the form of another server version, as after an upgrade of the server; it works.
    `rule` and `refusal` say why this code must not run on it, empty when it may.
    """

    server_version: int
    form: str
    applied: tuple[Applied, ...] = ()
    pending: tuple[Migration, ...] = ()
    unknown: tuple[Applied, ...] = ()
    mismatched: tuple[Applied, ...] = ()
    other_form: tuple[Applied, ...] = ()
    rule: str = ""
    refusal: str = ""

    @property
    def is_current(self) -> bool:
        return not self.pending and not self.refusal

    def lines(self) -> list[str]:
        """Say what `migrate` would do, or why not, a line each; nothing when there is nothing to do."""
        if self.refusal:
            return [f"refused: {self.refusal}"]
        newer = [f"newer: {row}, applied by Dwarf {row.dwarf_version}; this code can work with it" for row in self.unknown]
        pending = [f"pending: {migration}, {migration.purpose} (lock: {migration.lock})" for migration in self.pending]
        server = f"PostgreSQL {self.server_version // 10_000}"
        return newer + pending + [f"other form: functions of {row} are not in the form for {server}" for row in self.other_form]


# ---- files ----


def form_of(server_version: int) -> str:
    """Return the form of functions for a server, its version counted as libpq does: 15.4 is 150004."""
    return MODERN if server_version >= FORM_MODERN_MIN else OLDER


def load(form: str, source: Traversable | None = None) -> list[Migration]:
    """Read the migrations of a folder that looks like `sql/`, by default the installed one. Raises `MigrationError`."""
    assert form in FORMS
    folder = source or files(SQL_PACKAGE)
    directory = folder / "migrations"
    names = sorted(file.name for file in directory.iterdir()) if directory.is_dir() else []
    migrations = [_migration(folder, name, form) for name in names]
    for expected, migration in enumerate(migrations):
        if migration.version != expected:
            raise _bad_source(
                f"migrations/ goes on with {migration} where number {expected:04} is due; numbers have neither gaps nor twins"
            )
    return migrations


def render(form: str, source: Traversable | None = None) -> str:
    """Return the text of all migrations, as if one file: what `schema` must be equal to."""
    return "\n".join(migration.text for migration in load(form, source))


def schema(form: str, source: Traversable | None = None) -> str:
    """Return `schema.sql` with the files it includes. Raises `MigrationError` while there is none."""
    folder = source or files(SQL_PACKAGE)
    return _expand(folder, "schema.sql", _read(folder / "schema.sql"), form)


def _migration(folder: Traversable, file: str, form: str) -> Migration:
    match = _FILE_NAME.fullmatch(file)
    if match is None:
        raise _bad_source(f"migrations/{file}: a migration is called NNNN_name.sql, in lower case letters, digits and _")
    text = _read(folder / "migrations" / file)
    header = _header(file, text)
    texts = [_expand(folder, file, text, each) for each in (form, *(other for other in FORMS if other != form))]
    migration = Migration(
        version=int(match[1]),
        name=match[2],
        purpose=header["purpose"],
        lock=header["lock"],
        transactional=_flag(file, header, "transactional"),
        breaking=_flag(file, header, "breaking"),
        text=texts[0],
        checksums=tuple(hashlib.sha256(each.encode()).hexdigest() for each in texts),
        formed=tuple(statement for name in _INCLUDE.findall(text) for statement in _formed(folder, name, form)),
    )
    _check_statements(file, migration)
    return migration


def _formed(folder: Traversable, path: str, form: str) -> list[str]:
    """Return the functions of an included file that has two forms; none for any other."""
    name = path.removeprefix("functions/")
    file = folder / "functions" / form / name
    if not file.is_file():
        return []
    found = statements(_read(file))
    if strange := [statement for statement in found if not _FUNCTION.match(statement)]:
        raise _bad_source(f"functions/{form}/{name}: {strange[0][:40]!r} creates no function; nothing else has two forms")
    return found


def _header(file: str, text: str) -> dict[str, str]:
    """Read the comments that a migration begins with. A line without a key goes on with the one before."""
    header: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        match = _HEADER.fullmatch(line)
        if match is None:
            if key:
                header[key] += " " + line.removeprefix("--").strip()
        elif (key := match[1]) in header:
            raise _bad_source(f"migrations/{file}: its header says {key} twice")
        else:
            header[key] = match[2]
    if absent := [key for key in _HEADER_KEYS if not header.get(key)]:
        raise _bad_source(f"migrations/{file}: its header does not say {', '.join(absent)}")
    return header


def _flag(file: str, header: dict[str, str], key: str) -> bool:
    if header[key] not in {"yes", "no"}:
        raise _bad_source(f"migrations/{file}: {key} is {header[key]!r}; it must be yes or no")
    return header[key] == "yes"


def _check_statements(file: str, migration: Migration) -> None:
    try:
        found = statements(migration.text)
    except ValueError as error:
        raise _bad_source(f"migrations/{file}: {error}") from None
    if not found:
        raise _bad_source(f"migrations/{file}: there is no statement in it")
    if ends := [statement for statement in found if _ENDS_TRANSACTION.match(statement)]:
        raise _bad_source(f"migrations/{file}: {ends[0][:40]!r} begins or ends a transaction, which is not the migration's to do")


def _expand(folder: Traversable, file: str, text: str, form: str) -> str:
    return _INCLUDE.sub(lambda match: _included(folder, file, match[1], form), text)


def _included(folder: Traversable, file: str, path: str, form: str) -> str:
    """Return the text of an included file, in the form asked for where it has two."""
    match = _INCLUDED.fullmatch(path)
    if match is None:
        raise _bad_source(f"{file}: it includes {path!r}; only NAME.sql and functions/NAME.sql can be included")
    text = _read(_choose(folder / "functions", file, match[2], form) if match[1] else folder / path)
    if _INCLUDE.search(text):
        raise _bad_source(f"{path}: an included file cannot include another")
    return text.rstrip("\n")


def _choose(functions: Traversable, file: str, name: str, form: str) -> Traversable:
    """Return the file of a function: the one for all versions, or the one of the form where there are two."""
    plain = (functions / name).is_file()
    formed = [(functions / each / name).is_file() for each in FORMS]
    if plain == any(formed) or any(formed) != all(formed):
        raise _bad_source(
            f"{file}: functions/{name} must be there once for all versions, or else in each of {', '.join(FORMS)} below functions/"
        )
    return functions / name if plain else functions / form / name


def _read(file: Traversable) -> str:
    try:
        return file.read_text("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise _bad_source(f"{file.name} is not there") from None


def _bad_source(message: str) -> MigrationError:
    return MigrationError(message, rule="source")


# ---- databases ----


def check(conninfo: str, source: Traversable | None = None) -> Status:
    """Compare a database with this code. Changes nothing, waits for nobody, and reports what `migrate` would refuse."""
    with _connect(conninfo) as connection:
        return _status(connection, source)


def migrate(conninfo: str, source: Traversable | None = None) -> list[Applied]:
    """Apply what is pending, in order, and return it. Many may run at once, on an empty database too.

    Functions in the form of another server version are created anew; the rows of their migrations are returned too.

    Raises `MigrationError` and leaves what was applied before; `psycopg.OperationalError` when the database is lost.
    """
    done: list[Applied] = []
    with _connect(conninfo) as connection:
        while True:
            status = _status(connection, source)
            if status.refusal:
                raise MigrationError(status.refusal, rule=status.rule)
            if not status.pending:
                break
            if applied := _apply_one(connection, status.pending[0], conninfo):
                done.append(applied)
        other = {row.version for row in status.other_form}
        formed = [migration for migration in load(status.form, source) if migration.version in other] if other else []
        done += filter(None, [_in_turn(connection, migration, _reform) for migration in formed])
    return done


def _connect(conninfo: str, application: str = APPLICATION) -> psycopg.Connection[tuple[object, ...]]:
    seconds = conninfo_to_dict(conninfo).get("connect_timeout") or CONNECT_SECONDS_MAX
    complete = make_conninfo(conninfo, application_name=application, connect_timeout=seconds)
    connection = psycopg.connect(complete, autocommit=True, prepare_threshold=None)
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    return connection


def _status(connection: psycopg.Connection[tuple[object, ...]], source: Traversable | None) -> Status:
    version = connection.info.server_version
    form = form_of(version)
    if version < SERVER_VERSION_MIN:
        needs = f"the server is PostgreSQL {version // 10_000}; Dwarf needs {SERVER_VERSION_MIN // 10_000} or newer"
        return Status(server_version=version, form=form, rule="server-version", refusal=needs)
    return _compare(version, load(form, source), _ledger(connection))


def _ledger(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[Applied, ...]:
    if connection.execute(HAS_LEDGER.encode()).fetchone() == (False,):
        return ()
    with connection.cursor(row_factory=class_row(Applied)) as cursor:
        cursor.execute("select version, name, checksum, breaking, applied_at, dwarf_version from dwarf.migrations order by version")
        return tuple(cursor.fetchall())


def _compare(server_version: int, migrations: Sequence[Migration], applied: tuple[Applied, ...]) -> Status:
    known = {migration.version: migration for migration in migrations}
    versions = {row.version for row in applied}
    status = Status(
        server_version=server_version,
        form=form_of(server_version),
        applied=applied,
        pending=tuple(migration for migration in migrations if migration.version not in versions),
        unknown=tuple(row for row in applied if row.version not in known),
        mismatched=tuple(row for row in applied if row.version in known and row.checksum not in known[row.version].checksums),
        other_form=tuple(row for row in applied if row.version in known and _is_other_form(row, known[row.version])),
    )
    rule, refusal = _refusal(status)
    return msgspec.structs.replace(status, rule=rule, refusal=refusal)


def _is_other_form(row: Applied, migration: Migration) -> bool:
    # Most migrations read the same in every form: then all checksums are equal, and no form is another one.
    return row.checksum != migration.checksums[0] and row.checksum in migration.checksums


def _refusal(status: Status) -> tuple[str, str]:
    if status.mismatched:
        names = ", ".join(map(str, status.mismatched))
        return "checksum", f"the ledger holds {names} with another text than this code has; an applied migration is never edited"
    if breaking := [row for row in status.unknown if row.breaking]:
        row = breaking[-1]
        return (
            "newer-breaking",
            f"the schema is newer than this code: Dwarf {row.dwarf_version} applied {row}, which older code cannot work with",
        )
    if status.pending and status.applied and status.pending[0].version < status.applied[-1].version:
        return "gap", f"the ledger holds {status.applied[-1]} but not {status.pending[0]}; migrations are applied in order only"
    return "", ""


def _apply_one(connection: psycopg.Connection[tuple[object, ...]], migration: Migration, conninfo: str) -> Applied | None:
    """Apply a migration, unless somebody else has."""
    return _in_turn(
        connection, migration, lambda connection, _: None if _is_applied(connection, migration) else _run(connection, migration, conninfo)
    )


def _reform(connection: psycopg.Connection[tuple[object, ...]], migration: Migration) -> Applied | None:
    """Create a migration's functions anew in the form it has here, those of them that are still there."""
    row = next(row for row in _ledger(connection) if row.version == migration.version)
    if not _is_other_form(row, migration):
        return None
    for statement in migration.formed:
        match = _FUNCTION.match(statement)
        assert match is not None
        if connection.execute(HAS_FUNCTION, match.groupdict()).fetchone() == (True,):
            _execute(connection, migration, f"create or replace {statement.removeprefix('create ')}")
    connection.execute(
        "update dwarf.migrations set checksum = %s where version = %s and checksum = %s",
        (migration.checksums[0], migration.version, row.checksum),
    )
    return msgspec.structs.replace(row, checksum=migration.checksums[0])


def _in_turn(
    connection: psycopg.Connection[tuple[object, ...]],
    migration: Migration,
    work: Callable[[psycopg.Connection[tuple[object, ...]], Migration], Applied | None],
) -> Applied | None:
    """Do work on a migration in one transaction, when it is this one's turn. Locks of live tables are tried again and again."""
    attempts = 0
    deadline = time.monotonic() + TURN_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            with connection.transaction(), _settings(connection):
                if _take_turn(connection, migration):
                    return work(connection, migration)
        except _RETRIED as error:
            attempts += 1
            if attempts == ATTEMPTS_MAX:
                text = (
                    f"migration {migration} did not get a lock in {attempts} attempts ({_told(error)}); it says it needs: {migration.lock}"
                )
                raise MigrationError(text, rule="lock") from error
            time.sleep(min(RETRY_SECONDS * attempts, RETRY_SECONDS_MAX))
        except errors.ReadOnlySqlTransaction as error:
            raise MigrationError(
                f"migration {migration} is pending and the database is read-only: {_told(error)}", rule="read-only"
            ) from error
        else:
            time.sleep(TURN_POLL_SECONDS)
    raise MigrationError(f"migration {migration}: another one was at work on the ledger for {TURN_SECONDS_MAX} s", rule="turn")


@contextmanager
def _settings(connection: psycopg.Connection[tuple[object, ...]]) -> Iterator[None]:
    names, values = list(SETTINGS), list(SETTINGS.values())
    connection.execute(
        "select pg_catalog.set_config(setting.name, wanted.value, true)"
        " from rows from (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) as wanted(name, value)"
        " inner join pg_catalog.pg_settings as setting on wanted.name = setting.name",
        (names, values),
    )
    connection.execute(WATCH_CLIENT)
    yield


def _take_turn(connection: psycopg.Connection[tuple[object, ...]], migration: Migration) -> bool:
    if migration.version == 0:
        row = connection.execute("select pg_catalog.pg_try_advisory_xact_lock(%s::bigint)", (BOOTSTRAP_LOCK,)).fetchone()
        return row == (True,)
    try:
        with connection.transaction():  # a savepoint: what it fails with is no failure of the migration
            connection.execute("lock table dwarf.migrations in exclusive mode nowait")
    except errors.LockNotAvailable:
        return False
    return True


def _is_applied(connection: psycopg.Connection[tuple[object, ...]], migration: Migration) -> bool:
    return migration.version in {row.version for row in _ledger(connection)}


def _run(connection: psycopg.Connection[tuple[object, ...]], migration: Migration, conninfo: str) -> Applied:
    if migration.version == 0:
        _execute(connection, migration, migration.text)
        return _record(connection, migration)
    if migration.transactional:
        applied = _record(connection, migration)
        _execute(connection, migration, migration.text)
        return applied
    # The row comes last: a transaction that has written holds back the cleaning of the whole database until it ends.
    _end_orphans(connection)
    with _connect(conninfo, WORKER) as worker:
        for statement in statements(migration.text):
            _execute(worker, migration, statement)
    return _record(connection, migration)


def _end_orphans(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """End the statements of migrators that are gone. With the turn in hand, no worker but such a one can be there."""
    deadline = time.monotonic() + ORPHAN_SECONDS_MAX
    # Without parameters on purpose. A select with parameters leaves its portal open, and with it a snapshot for which
    # `create index concurrently` would wait until this transaction ends, which waits for the index.
    while connection.execute(END_ORPHANS.encode()).fetchall():
        connection.execute("select pg_catalog.pg_stat_clear_snapshot()")  # or this transaction would see them for ever
        if time.monotonic() > deadline:
            raise MigrationError("a statement of a migrator that is gone does not end", rule="turn")
        time.sleep(TURN_POLL_SECONDS)


def _record(connection: psycopg.Connection[tuple[object, ...]], migration: Migration) -> Applied:
    with connection.cursor(row_factory=class_row(Applied)) as cursor:
        cursor.execute(
            "insert into dwarf.migrations (version, name, checksum, breaking, dwarf_version) values (%s, %s, %s, %s, %s)"
            " returning version, name, checksum, breaking, applied_at, dwarf_version",
            (migration.version, migration.name, migration.checksums[0], migration.breaking, __version__),
        )
        row = cursor.fetchone()
        assert row is not None
        return row


def _execute(connection: psycopg.Connection[tuple[object, ...]], migration: Migration, sql: str) -> None:
    try:
        connection.execute(sql.encode())
    except (*_RETRIED, errors.ReadOnlySqlTransaction):
        raise
    except psycopg.OperationalError as error:
        if error.sqlstate is None:
            raise  # the connection is lost
        raise MigrationError(f"migration {migration} failed: {_told(error)}", rule="statement") from error
    except psycopg.Error as error:
        raise MigrationError(f"migration {migration} failed: {_told(error)}{_line(error, sql)}", rule="statement") from error


def _told(error: psycopg.Error) -> str:
    return f"{error.sqlstate} {error.diag.message_primary or error}"


def _line(error: psycopg.Error, sql: str) -> str:
    """Show the line that the server points at."""
    position = error.diag.statement_position
    if position is None:
        return ""
    before = sql[: int(position) - 1]
    number = before.count("\n")
    return f", at {sql.splitlines()[number].strip()!r}"
