"""Lint the SQL of a folder: `lint_sql.py FOLDER`, exit code 1 when anything is wrong.

sqlfluff reads tables and statements, squawk what is under `migrations/` (locks and rewrites that would stop a live system),
and PostgreSQL's own parsers everything, down to the bodies of functions, of which a linter sees one opaque string. Says so
when there is nothing to lint.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pglast
from pglast import ast

BIN = Path(sys.executable).parent
CONFIG = Path(__file__).parent.parent / "pyproject.toml"
POSTGRES_OLDEST = "14.0"
SQUAWK_EXCLUDED = (
    "prefer-bigint-over-int",  # narrow columns are chosen on purpose: what every step writes should be small
    "prefer-bigint-over-smallint",
    "require-lock-timeout",  # `dwarf.migrate` sets both for every migration
    "require-statement-timeout",
)


def main(folder: str) -> int:
    files = sorted(Path(folder).rglob("*.sql"))
    if not files:
        print(f"no .sql file under {folder}/ yet: nothing to lint")
        return 0
    statements = [str(path) for path in files if "functions" not in path.parts]
    migrations = [str(path) for path in files if "migrations" in path.parts]
    failed = bool(statements) and run("sqlfluff", "lint", "--config", str(CONFIG), *statements)
    if migrations:
        failed |= run(
            "squawk", "--assume-in-transaction", "--pg-version", POSTGRES_OLDEST, "--exclude", ",".join(SQUAWK_EXCLUDED), *migrations
        )
    complaints = [f"{path}: {complaint}" for path in files for complaint in parse(path.read_text())]
    print("\n".join(complaints) or f"{len(files)} files parse as PostgreSQL, {len(migrations)} of them migrations")
    return int(failed or bool(complaints))


def run(tool: str, *arguments: str) -> bool:
    """Run a linter of this environment and tell whether it complained."""
    return subprocess.run([BIN / tool, *arguments], check=False).returncode != 0


def parse(text: str) -> list[str]:
    """List what PostgreSQL's parsers refuse: the file itself, or else a body in plpgsql, or else bodies in SQL."""
    try:
        statements = [raw.stmt for raw in pglast.parse_sql(text)]
        # The parser of bodies resolves types in no schema but `public`.
        # Types of ours are unknown to the parser, and arrays of an unknown type are refused: read them as text[].
        pglast.parse_plpgsql(re.sub(r"\bdwarf\.", "public.", re.sub(r"\bdwarf\.\w+\[\]", "text[]", text)))
    except pglast.Error as error:
        return [str(error)]
    functions = [statement for statement in statements if isinstance(statement, ast.CreateFunctionStmt)]
    return [complaint for function in functions for complaint in parse_sql_body(function)]


def parse_sql_body(function: ast.CreateFunctionStmt) -> list[str]:
    options = {option.defname: option.arg for option in function.options or ()}
    if options.get("language") != ast.String("sql") or "as" not in options:
        return []
    try:
        pglast.parse_sql(options["as"][0].sval)
    except pglast.Error as error:
        return [f"function {'.'.join(part.sval for part in function.funcname)}: {error}"]
    return []


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
