"""Whatever is in the schema says what it is, in one line."""

from __future__ import annotations

import re

import psycopg
import pytest

NAMELESS = {
    "columns": """select c.relname || '.' || a.attname, col_description(c.oid, a.attnum) from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'dwarf'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0
        and not a.attisdropped""",
    "relations": """select relname, obj_description(oid, 'pg_class') from pg_class
        where relnamespace = 'dwarf'::regnamespace and relkind in ('r', 'p', 'v', 'S') and not relispartition
        and not exists (select from pg_depend d where d.objid = pg_class.oid and d.deptype = 'i' and pg_class.relkind = 'S')""",
    "functions": "select oid::regprocedure::text, obj_description(oid, 'pg_proc') from pg_proc where pronamespace = 'dwarf'::regnamespace",
    "types": """select t.typname, coalesce(obj_description(t.oid, 'pg_type'), obj_description(c.oid, 'pg_class')) from pg_type t
        join pg_class c on c.oid = t.typrelid where t.typnamespace = 'dwarf'::regnamespace and c.relkind = 'c'""",
    "the schema": "select nspname, obj_description(oid, 'pg_namespace') from pg_namespace where nspname = 'dwarf'",
}


@pytest.mark.parametrize("what", NAMELESS)
def test_everything_has_a_comment(database: str, what: str) -> None:
    with psycopg.connect(database) as connection:
        found = connection.execute(NAMELESS[what].encode()).fetchall()
    assert found
    assert [name for name, comment in found if not comment] == []
    odd = [name for name, comment in found if comment and not re.fullmatch(r"[^\s'\"].{1,200}[.?)]", comment)]
    assert odd == [], "one line that ends as a sentence does"


def test_the_codes_are_explained_where_they_are_stored(database: str) -> None:
    with psycopg.connect(database) as connection:
        for table, column, codes in (("active", "status", range(1, 6)), ("history", "status", range(6, 10)), ("flows", "status", range(6, 10)),
                                     ("active", "todo", range(5)), ("history", "via", range(5)), ("parks", "kind", range(3)),
                                     ("signals", "kind", range(1, 4))):  # fmt: skip
            query = """select col_description(format('dwarf.%%s', %s::text)::regclass, (select attnum from pg_attribute
                where attrelid = format('dwarf.%%s', %s::text)::regclass and attname = %s))"""
            [(comment,)] = connection.execute(query, (table, table, column)).fetchall()
            assert [code for code in codes if not re.search(rf"\b{code} ", comment)] == [], (table, column)
