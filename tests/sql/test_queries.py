"""Named statements: files are read and checked once, and the server accepts what stands in them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.queries import QUERIES, Queries, QueryError, load, parse, statements, tokens


def bad(text: str) -> str:
    with pytest.raises(QueryError, match=r"^lanes.sql: ") as caught:
        parse("lanes.sql", text)
    return str(caught.value)


# ---- reading SQL ----


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1", ["select 1"]),
        ("select 1;;\n ; select\n\t2 ;", ["select 1", "select 2"]),
        ("", []),
        ("-- only a comment", []),
        ("select ';' -- ; not here\n, 2; select 3", ["select ';' , 2", "select 3"]),
        ("select /* a ; /* nested ; */ b */ 1", ["select 1"]),
        ("select 'it''s;' ; select E'it\\'s;'", ["select 'it''s;'", "select E'it\\'s;'"]),
        ("select e'a\\\\'; select 1", ["select e'a\\\\'", "select 1"]),
        ("select 'a\\'; select 1", ["select 'a\\'", "select 1"]),
        ('select "a;""b" ; select 2', ['select "a;""b"', "select 2"]),
        ("do $$ begin a; end $$; select 1", ["do $$ begin a; end $$", "select 1"]),
        ("do $a$ $$ ; $b$ ; $a$; select 1", ["do $a$ $$ ; $b$ ; $a$", "select 1"]),
        ("select 'two  spaces\n  and a line'", ["select 'two  spaces\n  and a line'"]),
        ("select a$b$c; select $1", ["select a$b$c", "select $1"]),
        ("select 1 - -1 / 2 * 3", ["select 1 - -1 / 2 * 3"]),
        ('select données$1$ü from "é;"; select 1', ['select données$1$ü from "é;"', "select 1"]),
        ("select $1$2", ["select $1$2"]),
    ],
)
def test_statements_end_at_the_semicolons_that_count(sql: str, expected: list[str]) -> None:
    assert statements(sql) == expected


@pytest.mark.parametrize("sql", ["select 'x", 'select "x', "select $$ x", "select $a$ x $b$", "/* x /* y */", "select E'x\\'"])
def test_what_does_not_end_is_refused(sql: str) -> None:
    with pytest.raises(ValueError, match="never closed"):
        statements(sql)


@given(st.text(alphabet="ae$1'\"\\;-/* \n", max_size=40))
def test_tokens_join_to_the_text_or_are_refused(sql: str) -> None:
    try:
        found = list(tokens(sql))
    except ValueError:
        return
    assert "".join(token.text for token in found) == sql


# ---- files ----


def test_a_file_holds_statements_by_name() -> None:
    text = """
    -- What stands here is for readers. `name` is no name.
    -- name: find_lane
    -- The lane of a session.
    select lane.epoch from dwarf.lanes as lane -- the row
    where lane.session = $2 and lane.lane = $1 and lane.session <> $2;

    -- name: now_v1
    select dwarf.now()
    """
    find, now = parse("lanes.sql", text.replace("\n    ", "\n"))
    assert find.name == "find_lane"
    assert find.text == "select lane.epoch from dwarf.lanes as lane where lane.session = $2 and lane.lane = $1 and lane.session <> $2"
    assert find.encoded == find.text.encode()
    assert (find.parameters, find.file) == (2, "lanes.sql")
    assert (now.name, now.text, now.parameters) == ("now_v1", "select dwarf.now()", 0)


def test_parameters_inside_literals_and_names_are_none() -> None:
    [query] = parse("x.sql", "-- name: a\nselect '$1', \"$2\", $x$ $3 $x$, a$4 /* $5 */ -- $6\n, $1")
    assert query.parameters == 1


@pytest.mark.parametrize("body", ["select $2", "select $1, $3", "select $0", "select $1, $2, $4"])
def test_parameters_are_numbered_without_a_gap(body: str) -> None:
    assert "numbered from $1 without a gap" in bad(f"-- name: a\n{body}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select 1;", "stands before the first name"),
        ("-- a comment\nselect 1;\n-- name: a\nselect 1", "stands before the first name"),
        ("-- nothing else", "no statement in it has a name"),
        ("", "no statement in it has a name"),
        ("-- name: a\n", "a holds 0 statements"),
        ("-- name: a\nselect 1; select 2", "a holds 2 statements"),
        ("-- name: a\nselect 1\n-- name: a\nselect 2", "a is named twice"),
        ("-- name: Claim\nselect 1", "'Claim' cannot name"),
        ("-- name:\nselect 1", "'' cannot name"),
        ("-- name: two words\nselect 1", "'two words' cannot name"),
        ("-- name: _private\nselect 1", "cannot name"),
        ("-- name: items\nselect 1", "'items' cannot name"),
        ("-- name: a\nselect 'x", "never closed"),
        ("/* x\n-- name: a\nselect 1", "never closed"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(text: str, said: str) -> None:
    assert said in bad(text)


# ---- folders ----


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "lanes.sql").write_text("-- name: find_lane\nselect $1::int;")
    return tmp_path


def test_statements_are_attributes_and_items(source: Path) -> None:
    queries = Queries(source)
    assert queries.find_lane is queries["find_lane"]
    assert list(queries) == ["find_lane"]
    assert len(queries) == 1
    with pytest.raises(AttributeError, match="no statement is named 'find_lanes'"):
        _ = queries.find_lanes
    with pytest.raises(KeyError):
        _ = queries["find_lanes"]


def test_files_are_read_once(source: Path) -> None:
    queries = Queries(source)
    query = queries.find_lane
    (source / "queries" / "lanes.sql").unlink()
    assert queries.find_lane is query


def test_names_are_unique_over_all_files(source: Path) -> None:
    (source / "queries" / "other.sql").write_text("-- name: find_lane\nselect 1")
    with pytest.raises(QueryError, match=r"other.sql: the name find_lane is taken by lanes.sql"):
        load(source)


def test_nothing_but_sql_stands_there(source: Path) -> None:
    (source / "queries" / "notes.txt").write_text("")
    with pytest.raises(QueryError, match="only .sql files"):
        load(source)


def test_no_folder_is_no_statement(tmp_path: Path) -> None:
    assert load(tmp_path) == {}


def test_they_are_read_from_an_archive_as_well(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "sql.zip", "w") as archive:
        archive.write(source / "queries" / "lanes.sql", "sql/queries/lanes.sql")
    assert list(load(zipfile.Path(tmp_path / "sql.zip") / "sql")) == ["find_lane"]


def test_importing_reads_nothing() -> None:
    code = "import dwarf.queries as q, sys; sys.exit('_by_name' in vars(q.QUERIES) or 'psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- the real ones ----


def test_the_server_accepts_every_statement_as_it_stands(database: str) -> None:
    refused = {}
    with psycopg.connect(database, autocommit=True) as connection:
        for query in QUERIES.values():
            result = connection.pgconn.prepare(b"", query.encoded)
            if result.error_message:
                refused[query.name] = result.error_message.decode()
            elif (found := connection.pgconn.describe_prepared(b"").nparams) != query.parameters:
                refused[query.name] = f"{found} parameters"
    assert refused == {}
