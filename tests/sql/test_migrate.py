"""Migrations: read and checked, applied once and in order by however many start at once, resumed after a kill, refused when unsafe."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dwarf import __version__, migrate
from dwarf.migrate import MODERN, OLDER, MigrationError, Status, check, form_of, load, render
from dwarf.testing.databases import create_database, drop_database
from dwarf.testing.postgres import Server

Until = Callable[[Callable[[], object], str], None]
Pooler = Callable[..., Any]

ROOT = Path(__file__).parent.parent.parent
LEDGER = (ROOT / "sql" / "migrations" / "0000_ledger.sql").read_text()
MIGRATORS = 8
MIGRATE = "import sys, pathlib; from dwarf.migrate import migrate; print(len(migrate(sys.argv[1], pathlib.Path(sys.argv[2]))))"

TABLE = "create table dwarf.things (id int primary key, name text);"
INDEX = """drop index concurrently if exists dwarf.things_name_idx;
create index concurrently things_name_idx on dwarf.things (name);"""
# Waits as long as a test wants it to: while the table `public.hold` is there when it begins.
HELD = """do $$
begin
  if pg_catalog.to_regclass('public.hold') is not null then
    perform pg_catalog.pg_sleep(3600);
  end if;
end
$$;"""


class Source:
    """A folder like `sql/`, with the real ledger in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("migrations/0000_ledger.sql", LEDGER)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def add(self, name: str, text: str, **header: str) -> None:
        lines = {"purpose": "a test", "lock": "what it says", "transactional": "yes", "breaking": "no", **header}
        self.write(f"migrations/{name}.sql", "".join(f"-- {key}: {value}\n" for key, value in lines.items()) + "\n" + text + "\n")

    def remove(self, name: str) -> None:
        (self.folder / "migrations" / f"{name}.sql").unlink()

    def load(self, form: str = MODERN) -> list[migrate.Migration]:
        return load(form, self.folder)

    def migrate(self, dsn: str) -> list[int]:
        return [applied.version for applied in migrate.migrate(dsn, self.folder)]

    def check(self, dsn: str) -> Status:
        return check(dsn, self.folder)

    def refusal(self, dsn: str) -> str:
        """The rule that `migrate` and `check` both refuse by."""
        with pytest.raises(MigrationError) as caught:
            self.migrate(dsn)
        assert self.check(dsn).rule == caught.value.rule
        assert self.check(dsn).refusal == str(caught.value)
        return caught.value.rule


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "sql")


def rows(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def versions(dsn: str) -> list[int]:
    return [version for (version,) in rows(dsn, "select version from dwarf.migrations order by version")]


# ---- files ----


def bad(source: Source) -> str:
    with pytest.raises(MigrationError) as caught:
        source.load()
    assert caught.value.rule == "source"
    return str(caught.value)


def test_a_migration_is_read_with_its_header(source: Source) -> None:
    source.add("0001_things", TABLE, purpose="things", lock="none", breaking="yes", transactional="no")
    _, things = source.load()
    assert (things.version, things.name, str(things)) == (1, "things", "0001_things")
    assert (things.purpose, things.lock, things.breaking, things.transactional) == ("things", "none", True, False)


def test_a_line_without_a_key_goes_on_with_the_one_before(source: Source) -> None:
    text = "-- purpose: one\n-- and two\n-- lock: none\n-- transactional: yes\n-- breaking: no\nselect 1;\n-- lock: of the body\n"
    source.write("migrations/0001_x.sql", text)
    assert source.load()[1].purpose == "one and two"
    assert source.load()[1].lock == "none"


@pytest.mark.parametrize("key", ["purpose", "lock", "transactional", "breaking"])
def test_every_part_of_the_header_is_needed(source: Source, key: str) -> None:
    source.add("0001_x", "select 1;", **{key: ""})
    assert f"does not say {key}" in bad(source)


def test_a_header_says_nothing_twice_and_flags_plainly(source: Source) -> None:
    source.add("0001_x", "select 1;", breaking="maybe")
    assert "breaking is 'maybe'" in bad(source)
    source.write("migrations/0001_x.sql", "-- purpose: a\n-- purpose: b\nselect 1;\n")
    assert "says purpose twice" in bad(source)


@pytest.mark.parametrize("name", ["1_x", "0001-x", "0001_X", "0001_x.bak", "notes"])
def test_only_migrations_stand_there_under_their_names(source: Source, name: str) -> None:
    source.add(name, "select 1;")
    assert "NNNN_name.sql" in bad(source)


@pytest.mark.parametrize("names", [["0002_x"], ["0001_x", "0001_y"], ["0001_x", "0003_y"]])
def test_numbers_have_neither_gaps_nor_twins(source: Source, names: list[str]) -> None:
    for name in names:
        source.add(name, "select 1;")
    assert "neither gaps nor twins" in bad(source)


@pytest.mark.parametrize(
    "text", ["commit;", "select 1; ROLLBACK;", "Begin; select 1;", "start\ttransaction;", "abort;", "prepare transaction 'x';"]
)
def test_a_migration_does_not_touch_its_transaction(source: Source, text: str) -> None:
    source.add("0001_x", text)
    assert "begins or ends a transaction" in bad(source)


def test_words_of_transactions_inside_bodies_and_texts_are_no_transactions(source: Source) -> None:
    atomic = "create function dwarf.f() returns int language sql begin atomic select 1; end;"
    source.add("0001_x", f"select 'x; commit;'; do $$ begin null; end $$; /* ; commit; */ {atomic}")
    assert len(source.load()) == 2


@pytest.mark.parametrize(("text", "said"), [("-- nothing", "no statement"), ("select 'x", "never closed"), ("/* x", "never closed")])
def test_a_migration_holds_whole_statements(source: Source, text: str, said: str) -> None:
    source.add("0001_x", text)
    assert said in bad(source)


def test_an_include_stands_for_the_file(source: Source) -> None:
    source.write("functions/f_v1.sql", "select 'a';\nselect 'b';\n\n")
    source.write("comments.sql", "select 'c';\n")
    source.add("0001_x", "-- include functions/f_v1.sql\nselect 1;\n-- include comments.sql")
    assert source.load()[1].text.endswith("\n\nselect 'a';\nselect 'b';\nselect 1;\nselect 'c';\n")


def test_a_function_of_two_forms_is_chosen_by_the_server(source: Source) -> None:
    source.write("functions/pg18/f_v1.sql", "create function dwarf.f_v1() returns text return 'new';")
    source.write("functions/pg14/f_v1.sql", "create function dwarf.f_v1() returns text return 'old';")
    source.add("0001_x", "-- include functions/f_v1.sql")
    new, old = source.load(MODERN)[1], source.load(OLDER)[1]
    assert "new" in new.text
    assert "old" in old.text
    assert new.checksums == old.checksums[::-1]
    assert new.checksums[0] != old.checksums[0]
    assert (form_of(180000), form_of(170009), form_of(140000)) == (MODERN, OLDER, OLDER)


@pytest.mark.parametrize(
    "there",
    [[], ["functions/pg18/f.sql"], ["functions/pg14/f.sql"], ["functions/f.sql", "functions/pg18/f.sql", "functions/pg14/f.sql"]],
)
def test_a_form_too_few_or_too_many_is_refused(source: Source, there: list[str]) -> None:
    for path in there:
        source.write(path, "select 1;")
    source.add("0001_x", "-- include functions/f.sql")
    assert "once for all versions" in bad(source)


@pytest.mark.parametrize(
    "path", ["../secret.sql", "functions/../f.sql", "/f.sql", "migrations/0000_ledger.sql", "functions/pg18/f.sql", "f"]
)
def test_an_include_stays_where_it_belongs(source: Source, path: str) -> None:
    source.add("0001_x", f"-- include {path}")
    assert "can be included" in bad(source)


def test_an_include_includes_nothing_and_is_there(source: Source) -> None:
    source.add("0001_x", "-- include comments.sql")
    assert "comments.sql is not there" in bad(source)
    source.write("comments.sql", "-- include functions/f.sql\n")
    assert "cannot include another" in bad(source)


def test_line_ends_do_not_change_a_checksum(source: Source) -> None:
    source.add("0001_x", "select 1;\nselect 2;")
    before = source.load()[1].checksums
    path = source.folder / "migrations" / "0001_x.sql"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert source.load()[1].checksums == before


def test_the_replay_is_all_texts_in_order(source: Source) -> None:
    source.add("0001_x", "select 'one';")
    source.add("0002_y", "select 'two';")
    text = render(MODERN, source.folder)
    assert text.index("create table dwarf.migrations") < text.index("'one'") < text.index("'two'")


# ---- one migrator ----


def test_an_empty_database_gets_everything_once(empty_database: str, source: Source) -> None:
    source.add("0001_things", TABLE)
    assert [str(migration) for migration in source.check(empty_database).pending] == ["0000_ledger", "0001_things"]
    assert rows(empty_database, "select to_regnamespace('dwarf')") == [(None,)], "a check changes nothing"
    applied = migrate.migrate(empty_database, source.folder)
    assert [str(row) for row in applied] == ["0000_ledger", "0001_things"]
    assert source.migrate(empty_database) == []
    status = source.check(empty_database)
    assert status.is_current
    assert status.applied == tuple(applied)
    assert {row.dwarf_version for row in applied} == {__version__}
    forms = load(status.form, source.folder)
    assert [row.checksum for row in applied] == [migration.checksums[0] for migration in forms]


def test_later_migrations_follow(empty_database: str, source: Source) -> None:
    source.migrate(empty_database)
    source.add("0001_things", TABLE)
    source.add("0002_more", "alter table dwarf.things add column more int;")
    assert source.migrate(empty_database) == [1, 2]


def test_the_row_is_there_before_the_text_runs(empty_database: str, source: Source) -> None:
    source.add("0001_x", "do $$ begin assert exists (select from dwarf.migrations where version = 1); end $$;")
    assert source.migrate(empty_database) == [0, 1]


def test_a_failure_leaves_nothing_and_says_where(empty_database: str, source: Source) -> None:
    source.add("0001_things", TABLE + "\ninsert into dwarf.things values (1);\nselect\n  nonsense from dwarf.things;")
    with pytest.raises(
        MigrationError, match=r"migration 0001_things failed: 42703 column \"nonsense\".*'nonsense from dwarf.things;'"
    ) as caught:
        source.migrate(empty_database)
    assert caught.value.rule == "statement"
    assert versions(empty_database) == [0]
    assert rows(empty_database, "select to_regclass('dwarf.things')") == [(None,)]
    source.add("0001_things", TABLE)
    assert source.migrate(empty_database) == [1]


def test_percent_signs_and_backslashes_are_plain_text(empty_database: str, source: Source) -> None:
    source.add("0001_x", r"create table dwarf.x as select '50%s \d' as text;")
    source.migrate(empty_database)
    assert rows(empty_database, "select text from dwarf.x") == [(r"50%s \d",)]


def test_settings_of_the_database_do_not_reach_a_migration(empty_database: str, source: Source) -> None:
    name = conninfo_to_dict(empty_database)["dbname"]
    wanted = {"search_path": "", "transaction_isolation": "read committed", "statement_timeout": "0", "lock_timeout": "2s"}
    for setting in (
        "search_path = nowhere",
        "default_transaction_isolation = serializable",
        "statement_timeout = '1h'",
        "lock_timeout = '1h'",
    ):
        execute(empty_database, f"alter database {name} set {setting}")
    checks = " ".join(f"assert pg_catalog.current_setting('{key}') = '{value}', '{key}';" for key, value in wanted.items())
    source.add("0001_x", f"do $$ begin {checks} end $$;")
    assert source.migrate(empty_database) == [0, 1]


def test_an_owner_of_the_schema_needs_no_right_on_the_database(empty_database: str, source: Source) -> None:
    role = str(conninfo_to_dict(empty_database)["dbname"]) + "_owner"
    execute(empty_database, f"create role {role} login")
    try:
        execute(empty_database, f"create schema dwarf authorization {role}")
        source.add("0001_things", TABLE)
        assert source.migrate(make_conninfo(empty_database, user=role)) == [0, 1]
    finally:
        execute(empty_database, f"drop owned by {role}; drop role {role}")


def test_a_read_only_database_is_named_as_such(empty_database: str, source: Source) -> None:
    name = conninfo_to_dict(empty_database)["dbname"]
    for before in ("", "set"):
        if before:
            source.migrate(empty_database)
            source.add("0001_things", TABLE)
        execute(empty_database, f"alter database {name} set default_transaction_read_only = on")
        with pytest.raises(MigrationError, match="read-only") as caught:
            source.migrate(empty_database)
        assert caught.value.rule == "read-only"
        execute(make_conninfo(empty_database, options="-c default_transaction_read_only=off"), f"alter database {name} reset all")


def test_a_database_that_is_not_there_is_an_operational_error(pg: Server, source: Source) -> None:
    with pytest.raises(psycopg.OperationalError):
        source.migrate(pg.dsn("no_such_database"))


# ---- what is refused ----


def ledger_row(dsn: str, version: int, *, breaking: bool) -> None:
    columns = "(version, name, checksum, breaking, dwarf_version)"
    execute(dsn, f"insert into dwarf.migrations {columns} values ({version}, 'later', 'x', {breaking}, '9.9')")


def test_older_code_runs_on_a_newer_schema_unless_that_is_breaking(empty_database: str, source: Source) -> None:
    source.migrate(empty_database)
    ledger_row(empty_database, 1, breaking=False)
    assert source.migrate(empty_database) == []
    status = source.check(empty_database)
    assert (status.is_current, [row.version for row in status.unknown]) == (True, [1])
    ledger_row(empty_database, 2, breaking=True)
    ledger_row(empty_database, 3, breaking=False)
    assert source.refusal(empty_database) == "newer-breaking"
    assert "Dwarf 9.9 applied 0002_later" in source.check(empty_database).refusal
    assert not source.check(empty_database).is_current


def test_an_applied_migration_is_never_edited(empty_database: str, source: Source) -> None:
    source.add("0001_things", TABLE)
    source.migrate(empty_database)
    source.add("0001_things", TABLE + " ")
    assert source.refusal(empty_database) == "checksum"
    assert [str(row) for row in source.check(empty_database).mismatched] == ["0001_things"]


def test_an_edit_of_an_included_function_is_noticed(empty_database: str, source: Source) -> None:
    source.write("functions/f.sql", "select 1;")
    source.add("0001_x", "-- include functions/f.sql")
    source.migrate(empty_database)
    source.write("functions/f.sql", "select 2;")
    assert source.refusal(empty_database) == "checksum"


FORMED = """-- What it returns.
create function dwarf.f(p_x int default 0) returns text language sql as $$ select '{form}' $$;

create function dwarf.g() returns text
language sql as $$ select 'g {form}' $$;"""


@pytest.fixture
def formed(source: Source) -> Source:
    """A source with functions in two forms, beside one that has one."""
    for form in (MODERN, OLDER):
        source.write(f"functions/{form}/f.sql", FORMED.format(form=form))
    source.write("functions/same.sql", "create function dwarf.same() returns int language sql as 'select 1';")
    source.add("0001_x", TABLE + "\n-- include functions/f.sql\n-- include functions/same.sql")
    return source


def upgraded(dsn: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the server seem to be upgraded, or set back, across version 18; return the form for it."""
    other = OLDER if source.check(dsn).form == MODERN else MODERN
    monkeypatch.setattr(migrate, "form_of", lambda _: other)
    return other


def test_functions_in_the_form_of_another_server_version_are_named_and_created_anew(
    empty_database: str, formed: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed.migrate(empty_database)
    before = formed.check(empty_database)
    assert (before.other_form, before.lines()) == ((), [])
    execute(empty_database, "comment on function dwarf.f is 'kept'; insert into dwarf.things values (1, 'kept')")
    other = upgraded(empty_database, formed, monkeypatch)
    status = formed.check(empty_database)
    assert (status.is_current, [str(row) for row in status.other_form]) == (True, ["0001_x"])
    [line] = status.lines()
    assert line.startswith("other form: functions of 0001_x are not in the form for PostgreSQL ")
    assert rows(empty_database, "select dwarf.f(), dwarf.g()") == [(before.form, f"g {before.form}")], "they work meanwhile"
    assert formed.migrate(empty_database) == [1]
    assert rows(empty_database, "select dwarf.f(), dwarf.g(), obj_description('dwarf.f'::regproc)") == [(other, f"g {other}", "kept")]
    assert rows(empty_database, "select count(*) from dwarf.things") == [(1,)]
    assert formed.check(empty_database).other_form == ()
    assert formed.migrate(empty_database) == []
    monkeypatch.undo()
    assert formed.migrate(empty_database) == [1], "and back"
    assert rows(empty_database, "select dwarf.f()") == [(before.form,)]


def test_a_function_that_is_gone_by_now_is_not_created_anew(empty_database: str, formed: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    formed.add("0002_y", "drop function dwarf.g();")
    assert formed.migrate(empty_database) == [0, 1, 2]
    other = upgraded(empty_database, formed, monkeypatch)
    assert formed.migrate(empty_database) == [1]
    assert rows(empty_database, "select proname::text, dwarf.f() from pg_proc where proname in ('f', 'g')") == [("f", other)]


def test_what_is_pending_comes_first_and_a_refusal_before_all(empty_database: str, formed: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    formed.migrate(empty_database)
    old = formed.check(empty_database).form
    other = upgraded(empty_database, formed, monkeypatch)
    formed.add("0002_y", "create table dwarf.more (id int);", purpose="more", lock="none")
    assert formed.check(empty_database).lines()[0] == "pending: 0002_y, more (lock: none)"
    ledger_row(empty_database, 9, breaking=True)
    assert formed.refusal(empty_database) == "newer-breaking"
    assert formed.check(empty_database).lines()[0].startswith("refused: the schema is newer")
    assert rows(empty_database, "select dwarf.f()") == [(old,)]
    execute(empty_database, "update dwarf.migrations set breaking = false where version = 9")
    execute(empty_database, "update dwarf.migrations set version = 3 where version = 9")
    execute(empty_database, "delete from dwarf.migrations where version = 3")
    assert formed.migrate(empty_database) == [2, 1]
    assert rows(empty_database, "select dwarf.f()") == [(other,)]


def test_many_at_once_create_functions_anew_once(empty_database: str, formed: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    formed.migrate(empty_database)
    other = upgraded(empty_database, formed, monkeypatch)
    done: list[list[int]] = []
    threads = [threading.Thread(target=lambda: done.append(formed.migrate(empty_database))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [[], [], [], [1]]
    assert rows(empty_database, "select dwarf.f()") == [(other,)]


def test_creating_functions_anew_is_all_or_nothing(empty_database: str, formed: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in (MODERN, OLDER):
        returns = "text" if form == formed.check(empty_database).form else "int"  # which cannot be replaced
        formed.write(
            f"functions/{form}/f.sql", FORMED.format(form=form).replace("g() returns text", f"g() returns {returns}").replace("'g ", "'1")
        )
    execute(empty_database, "select 1")
    monkeypatch.setattr(migrate, "SETTINGS", {**migrate.SETTINGS, "check_function_bodies": "off"})
    formed.migrate(empty_database)
    old = formed.check(empty_database).form
    upgraded(empty_database, formed, monkeypatch)
    with pytest.raises(MigrationError, match="0001_x failed: 42P13 cannot change return type") as caught:
        formed.migrate(empty_database)
    assert caught.value.rule == "statement"
    assert rows(empty_database, "select dwarf.f()") == [(old,)]
    assert [str(row) for row in formed.check(empty_database).other_form] == ["0001_x"]


def test_nothing_but_functions_has_two_forms(source: Source) -> None:
    for form in (MODERN, OLDER):
        source.write(f"functions/{form}/f.sql", "create table dwarf.f (id int);")
    source.add("0001_x", "-- include functions/f.sql")
    assert "'create table dwarf.f (id int)' creates no function; nothing else has two forms" in bad(source)


def test_the_real_functions_are_created_anew_in_the_other_form(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = check(database).form
    if form == OLDER:
        pytest.skip("an older server does not read the form for newer ones")
    monkeypatch.setattr(migrate, "form_of", lambda _: OLDER)
    names = [str(row) for row in check(database).other_form]
    assert names
    assert [str(row) for row in migrate.migrate(database)] == names
    body = "select prosrc like '%merge into%' from pg_proc where proname = 'apply_rows_v1'"
    assert rows(database, body) == [(False,)]
    monkeypatch.undo()
    assert [str(row) for row in migrate.migrate(database)] == names
    assert rows(database, body) == [(True,)]
    assert check(database).is_current


def test_migrations_are_applied_in_order_only(empty_database: str, source: Source) -> None:
    source.migrate(empty_database)
    ledger_row(empty_database, 2, breaking=False)
    source.add("0001_things", TABLE)
    assert source.refusal(empty_database) == "gap"


def test_a_server_that_is_too_old_is_refused(empty_database: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "SERVER_VERSION_MIN", 99_00_00)
    assert source.refusal(empty_database) == "server-version"
    assert "Dwarf needs 99" in source.check(empty_database).refusal


# ---- locks ----


@contextmanager
def locked(dsn: str, table: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.SQL("lock table {} in access share mode").format(sql.SQL(table)))
        yield connection


def test_a_lock_that_comes_free_is_waited_for(empty_database: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.add("0001_things", TABLE)
    source.migrate(empty_database)
    source.add("0002_more", "alter table dwarf.things add column more int;")
    monkeypatch.setitem(migrate.SETTINGS, "lock_timeout", "10")
    with locked(empty_database, "dwarf.things") as holder:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                holder.rollback()

        monkeypatch.setattr(time, "sleep", pause)
        assert source.migrate(empty_database) == [2]
    assert pauses == pytest.approx([0.2, 0.4, 0.6])


def test_a_lock_that_never_comes_free_is_an_error_that_says_what_it_needs(
    empty_database: str, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.add("0001_things", TABLE)
    source.migrate(empty_database)
    source.add("0002_more", "alter table dwarf.things add column more int;", lock="things, for an instant")
    monkeypatch.setitem(migrate.SETTINGS, "lock_timeout", "1")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with (
        locked(empty_database, "dwarf.things"),
        pytest.raises(MigrationError, match=r"30 attempts \(55P03.*needs: things, for an instant") as caught,
    ):
        source.migrate(empty_database)
    assert caught.value.rule == "lock"
    assert versions(empty_database) == [0, 1]


def test_a_turn_that_never_comes_is_an_error(empty_database: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.migrate(empty_database)
    source.add("0001_things", TABLE)
    clock = iter(range(0, 10**9, 100))
    monkeypatch.setitem(migrate.SETTINGS, "statement_timeout", "1s")  # no statement waits for the turn
    monkeypatch.setitem(migrate.SETTINGS, "lock_timeout", "0")
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with psycopg.connect(empty_database) as holder:
        holder.execute("lock table dwarf.migrations in exclusive mode")
        with pytest.raises(MigrationError, match="another one was at work") as caught:
            source.migrate(empty_database)
    assert caught.value.rule == "turn"


def test_a_check_waits_for_nobody(empty_database: str, source: Source) -> None:
    source.migrate(empty_database)
    with psycopg.connect(empty_database) as holder:
        holder.execute("lock table dwarf.migrations in exclusive mode")
        assert source.check(empty_database).is_current


# ---- many at once ----


def at_once(count: int, call: Callable[[], list[int]]) -> list[list[int]]:
    """Run a call in threads that start together; return what each applied. An exception in one fails the test."""
    start, done, failed = threading.Barrier(count), [], []

    def run() -> None:
        start.wait()
        try:
            done.append(call())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    return done


@pytest.mark.parametrize("attempt", range(10))
def test_many_that_start_on_an_empty_database_apply_everything_once(empty_database: str, source: Source, attempt: int) -> None:
    source.add("0001_things", TABLE)
    source.add("0002_index", INDEX, transactional="no")
    source.add("0003_more", "alter table dwarf.things add column more int;")
    applied = at_once(MIGRATORS, lambda: source.migrate(empty_database))
    assert sorted(version for each in applied for version in each) == [0, 1, 2, 3]
    assert versions(empty_database) == [0, 1, 2, 3]
    assert rows(empty_database, "select indisvalid from pg_index where indexrelid = 'dwarf.things_name_idx'::regclass") == [(True,)]


def test_what_another_did_just_before_ones_turn_is_seen(empty_database: str, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the transaction that saw an empty database, the caches of the server still say that nothing is there."""
    take_turn = migrate._take_turn

    def late(connection: Any, migration: Any) -> bool:
        monkeypatch.setattr(migrate, "_take_turn", take_turn)
        connection.execute("select pg_catalog.pg_try_advisory_xact_lock(%s::bigint)", (1,))  # as if it had asked for its turn before
        assert source.migrate(empty_database) == [0]
        return take_turn(connection, migration)

    monkeypatch.setattr(migrate, "_take_turn", late)
    assert source.migrate(empty_database) == []


def test_whoever_holds_the_turn_of_a_concurrent_build_holds_no_snapshot(empty_database: str, source: Source) -> None:
    source.migrate(empty_database)
    seen = "from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"
    check = f"do $$ begin assert (select array_agg(backend_xmin is null and backend_xid is null) = '{{t}}' {seen}); end $$;"
    source.add("0001_things", check, transactional="no")
    assert source.migrate(empty_database) == [1]


@contextmanager
def migrator(dsn: str, source: Source) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", MIGRATE, dsn, str(source.folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def sleeping(observer: psycopg.Connection, dsn: str, event: str) -> int:
    name = conninfo_to_dict(dsn)["dbname"]
    query = "select count(*) from pg_stat_activity where datname = %s and wait_event = %s"
    row = observer.execute(query, (name, event)).fetchone()
    assert row is not None
    return int(row[0])


def test_killed_in_the_middle_the_next_one_goes_on(empty_database: str, source: Source, observer: psycopg.Connection, until: Until) -> None:
    source.add("0001_things", TABLE)
    source.add("0002_more", "alter table dwarf.things add column more int;\n" + HELD)
    execute(empty_database, "create table public.hold ()")
    with migrator(empty_database, source) as killed:
        until(lambda: sleeping(observer, empty_database, "PgSleep"), "the migration is under way")
        killed.kill()
    assert versions(empty_database) == [0, 1]
    execute(empty_database, "drop table public.hold")
    assert source.migrate(empty_database) == [2]
    assert sleeping(observer, empty_database, "PgSleep") == 0


@pytest.mark.parametrize("attempt", range(2))
def test_one_of_many_processes_killed_in_the_middle(
    empty_database: str, source: Source, observer: psycopg.Connection, until: Until, attempt: int
) -> None:
    source.add("0001_things", TABLE + "\n" + HELD)
    source.add("0002_index", INDEX, transactional="no")
    execute(empty_database, "create table public.hold ()")
    command = [sys.executable, "-c", MIGRATE, empty_database, str(source.folder)]
    with migrator(empty_database, source) as killed:
        until(lambda: sleeping(observer, empty_database, "PgSleep"), "the first is in the middle")
        others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(MIGRATORS - 1)]
        execute(empty_database, "drop table public.hold")
        killed.kill()
        told = [other.communicate()[0].strip() for other in others]
    assert [other.returncode for other in others] == [0] * len(others)
    assert sum(map(int, told)) == 2
    assert versions(empty_database) == [0, 1, 2]


def building(observer: psycopg.Connection, dsn: str) -> set[int]:
    """The backends that wait for a snapshot to go away."""
    query = "select pid from pg_stat_activity where datname = %s and wait_event = 'virtualxid'"
    return {pid for (pid,) in observer.execute(query, (conninfo_to_dict(dsn)["dbname"],))}


@pytest.mark.parametrize("freed", ["before the next", "under the next"])
def test_an_index_half_built_is_built_anew(
    empty_database: str, source: Source, observer: psycopg.Connection, until: Until, freed: str
) -> None:
    source.add("0001_things", TABLE + "\ninsert into dwarf.things values (1, 'a');")
    source.migrate(empty_database)
    source.add("0002_index", INDEX, transactional="no")
    with psycopg.connect(empty_database) as old:
        old.execute("begin isolation level repeatable read; select count(*) from dwarf.things")
        with migrator(empty_database, source) as killed:
            until(lambda: sleeping(observer, empty_database, "virtualxid"), "the build waits for the old snapshot")
            abandoned = building(observer, empty_database)
            killed.kill()
        assert versions(empty_database) == [0, 1]
        if freed == "before the next":
            old.rollback()
            applied = at_once(2, lambda: source.migrate(empty_database))
        else:
            with migrator(empty_database, source) as other:
                until(lambda: building(observer, empty_database) - abandoned, "the next one has ended the build that nobody waits for")
                old.rollback()
                assert other.wait() == 0, other.communicate()
            applied = [source.migrate(empty_database), [2]]
    assert sorted(applied) == [[], [2]]
    assert rows(empty_database, "select indisvalid from pg_index where indrelid = 'dwarf.things'::regclass") == [(True,), (True,)]


# ---- through a pooler ----


def test_many_at_once_through_a_pooler(empty_database: str, source: Source, pgbouncer: Pooler) -> None:
    source.add("0001_things", TABLE)
    source.add("0002_index", INDEX, transactional="no")
    source.add("0003_more", "alter table dwarf.things add column more int;")
    pooler = pgbouncer(default_pool_size=2)
    applied = at_once(MIGRATORS, lambda: source.migrate(pooler.dsn(empty_database)))
    assert sorted(version for each in applied for version in each) == [0, 1, 2, 3]
    assert "ERROR" not in pooler.log()


def test_killed_again_and_again_through_a_pooler(
    empty_database: str, source: Source, observer: psycopg.Connection, until: Until, pgbouncer: Pooler
) -> None:
    pooled = pgbouncer(default_pool_size=1).dsn(empty_database)
    for version in range(1, 11):
        source.add(f"{version:04}_x", f"create table dwarf.t{version} (id int);\n{HELD}")
    for version in range(1, 11):
        if version % 2:
            execute(empty_database, "create table public.hold ()")
            with migrator(pooled, source) as killed:
                until(lambda: sleeping(observer, empty_database, "PgSleep"), "the migration is under way")
                killed.kill()
            assert versions(empty_database) == list(range(version))
            execute(empty_database, "drop table public.hold")
        for later in range(version + 1, 11):
            source.remove(f"{later:04}_x")
        assert source.migrate(pooled)[-1:] == [version]
        for later in range(version + 1, 11):
            source.add(f"{later:04}_x", f"create table dwarf.t{later} (id int);\n{HELD}")
    assert versions(empty_database) == list(range(11))


def test_no_setting_and_no_lock_stays_with_the_poolers_connection(empty_database: str, source: Source, pgbouncer: Pooler) -> None:
    pooled = pgbouncer(default_pool_size=1).dsn(empty_database)
    source.add("0001_things", TABLE)
    source.migrate(pooled)
    names = (*migrate.SETTINGS, "client_connection_check_interval")
    changed = f"select name from pg_settings where name in ({', '.join(map(repr, names))}) and source = 'session'"
    assert rows(pooled, changed) == []
    assert rows(pooled, "select locktype from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'") == []


# ---- the real schema ----


def dumped(pg: Server, dsn: str) -> str:
    command: list[str | Path] = [pg.bindir / "pg_dump", "--schema-only", "--no-owner", "--dbname", dsn]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"^(?:--|\\(?:un)?restrict).*\n", "", text, flags=re.MULTILINE)


def test_the_replay_of_all_migrations_equals_the_schema(pg: Server, database: str) -> None:
    written = create_database(pg, "written")
    try:
        with psycopg.connect(written, autocommit=True) as connection:
            connection.execute(migrate.schema(form_of(connection.info.server_version)).encode())
        assert dumped(pg, written) == dumped(pg, database)
    finally:
        drop_database(pg, written)


def test_the_real_schema_is_current_and_documented(database: str) -> None:
    status = check(database)
    assert status.is_current
    tables = """
        select c.relname, a.attname from pg_class as c
        inner join pg_attribute as a on c.oid = a.attrelid
        where c.relnamespace = 'dwarf'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and a.attnum >= 0 and not a.attisdropped and col_description(c.oid, a.attnum) is null"""
    assert rows(database, tables) == []
    undocumented = "select relname from pg_class where relnamespace = 'dwarf'::regnamespace and relkind in ('r', 'p')"
    assert rows(database, f"{undocumented} and not relispartition and obj_description(oid, 'pg_class') is null") == []


def test_a_comparison_of_dumps_would_notice_a_difference(pg: Server, empty_database: str, source: Source) -> None:
    source.migrate(empty_database)
    before = dumped(pg, empty_database)
    assert "CREATE TABLE dwarf.migrations" in before
    execute(empty_database, "comment on column dwarf.migrations.name is 'other'")
    assert dumped(pg, empty_database) != before
