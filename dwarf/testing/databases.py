"""Fresh, migrated databases on a test server, cheap enough for one per test.

The schema is applied once, to a template named for the migrations' text and the form of the functions; a database is then a
copy of the template. Owns every database whose name begins with `dwarf_template_`, and those it hands out.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from dwarf import migrate
from dwarf.testing.postgres import Server

NAME_CHARS_MAX = 40  # of the part that a caller chooses; PostgreSQL cuts names at 63 bytes
TEMPLATE_LOCK = int.from_bytes(b"template", "big")
STRATEGY_SERVER_VERSION_MIN = 15_00_00


@contextmanager
def fresh_database(server: Server, name: str, *, source: Traversable | None = None) -> Iterator[str]:
    """Yield the connection string of a new migrated database, and drop it afterwards with whatever is still connected."""
    dsn = create_database(server, name, template=template_database(server, source))
    try:
        yield dsn
    finally:
        drop_database(server, dsn)


def create_database(server: Server, name: str, *, template: str = "template0") -> str:
    """Create a database, its name made of `name` and chance, and return its connection string."""
    safe = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:NAME_CHARS_MAX]
    database = f"{safe}_{secrets.token_hex(5)}"
    with _maintenance(server) as connection:
        _create(connection, database, template)
    return server.dsn(database)


def drop_database(server: Server, dsn: str) -> None:
    """Drop a database that `create_database` made, ending every session in it."""
    database = str(conninfo_to_dict(dsn)["dbname"])
    with _maintenance(server) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))


def template_database(server: Server, source: Traversable | None = None) -> str:
    """Return the name of the template for these migrations; the first to ask makes it, and others wait for that."""
    with _maintenance(server) as connection:
        form = migrate.form_of(connection.info.server_version)
        name = "dwarf_template_" + hashlib.sha256(migrate.render(form, source).encode()).hexdigest()[:16]
        if not _is_template(connection, name):
            connection.execute("select pg_advisory_lock(%s::bigint)", (TEMPLATE_LOCK,))  # this session's, which ends below
            if not _is_template(connection, name):
                _make_template(connection, server, name, source)
    return name


def _make_template(connection: psycopg.Connection, server: Server, name: str, source: Traversable | None) -> None:
    # One that is not marked as a template is left over from whoever was killed while making it.
    identifier = sql.Identifier(name)
    connection.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))
    _create(connection, name, "template0")
    migrate.migrate(server.dsn(name), source)
    connection.execute(sql.SQL("alter database {} with is_template true allow_connections false").format(identifier))


def _is_template(connection: psycopg.Connection, name: str) -> bool:
    found = connection.execute("select datistemplate from pg_catalog.pg_database where datname = %s", (name,)).fetchone()
    return found == (True,)


def _create(connection: psycopg.Connection, name: str, template: str) -> None:
    # With fsync off, copying the files takes a third of the time that copying block by block through the log does.
    strategy = sql.SQL(" strategy file_copy" if connection.info.server_version >= STRATEGY_SERVER_VERSION_MIN else "")
    statement = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
    connection.execute(statement + strategy)


def _maintenance(server: Server) -> psycopg.Connection:
    return psycopg.connect(server.dsn(), autocommit=True, prepare_threshold=None)
