"""The rules that `make check` applies do refuse what they are there for: each is shown a planted offence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


class Outcome:
    def __init__(self, *command: str | Path, cwd: Path) -> None:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        self.ok = done.returncode == 0
        self.text = done.stdout + done.stderr


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """A copy of what the rules read, to plant an offence in."""
    for folder in ("dwarf", "procs"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(tree: Path) -> Outcome:
    return Outcome(BIN / "lint-imports", "--no-cache", "--no-logo", cwd=tree)


def ruff(tree: Path) -> Outcome:
    return Outcome(BIN / "ruff", "check", "--no-cache", "--select", "TID", "dwarf", "procs", cwd=tree)


# ---- import rules ----


def test_the_tree_as_it_is_breaks_no_import_rule(tree: Path) -> None:
    assert lint_imports(tree).ok
    assert ruff(tree).ok


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("import dwarf.cli", "pure <- codec"),
        ("from dwarf import testing", "pure <- codec"),
        ("def later() -> None:\n    import dwarf.testing", "pure <- codec"),
        ("import procs", "nothing imports the processes"),
        ("def later() -> None:\n    import asyncio", "no loop, driver"),
        ("from psycopg.rows import dict_row", "no loop, driver"),
    ],
)
def test_import_linter_refuses(tree: Path, statement: str, rule: str) -> None:
    plant(tree / "dwarf" / "names.py", statement)
    outcome = lint_imports(tree)
    assert not outcome.ok
    assert any(rule in line and "BROKEN" in line for line in outcome.text.splitlines()), outcome.text


def test_a_module_without_a_place_in_the_layers_is_refused(tree: Path) -> None:
    (tree / "dwarf" / "stray.py").write_text('"""Belongs nowhere."""\n')
    outcome = lint_imports(tree)
    assert not outcome.ok
    assert "- dwarf.stray" in outcome.text


@pytest.mark.parametrize("statement", ["import os", "from time import monotonic", "import os.path", "from concurrent import futures"])
def test_ruff_refuses_in_the_pure_part(tree: Path, statement: str) -> None:
    plant(tree / "dwarf" / "names.py", statement)
    outcome = ruff(tree)
    assert not outcome.ok
    assert "TID251" in outcome.text


def test_the_impure_part_may(tree: Path) -> None:
    for module in ("client.py", "testing/planted.py", "cli/planted.py"):
        (tree / "dwarf" / module).write_text("import asyncio\nimport os\nimport socket\n")
    assert ruff(tree).ok
    assert lint_imports(tree).ok


def plant(module: Path, statement: str) -> None:
    module.write_text(f"{module.read_text()}\n\n{statement}\n")


# ---- SQL ----

CLEAN = {
    "schema.sql": "create table dwarf.peers (\n  peer_id bigint primary key\n  , due_at timestamptz not null\n);\n",
    "queries/peers.sql": "select\n  peers.peer_id\n  , peers.due_at\nfrom dwarf.peers\nwhere peers.peer_id = $1;\n",
    "functions/one_v1.sql": (
        "create function dwarf.one_v1()\nreturns bigint\nlanguage plpgsql\nas $$\nbegin\n  return 1;\nend\n$$;\n\n"
        "create function dwarf.two_v1()\nreturns bigint\nlanguage sql\nas $$\n  select 2::bigint;\n$$;\n"
    ),
    "migrations/0001_peers.sql": (
        "set local lock_timeout = '1s';\nset local statement_timeout = '5s';\nalter table dwarf.peers add column title text;\n"
    ),
}


def lint_sql(root: Path, folder: Path, files: dict[str, str]) -> Outcome:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Outcome(sys.executable, root / ".ci" / "lint_sql.py", folder, cwd=root)


def test_sql_lint_says_when_there_is_nothing_to_lint(root: Path, tmp_path: Path) -> None:
    outcome = lint_sql(root, tmp_path, {})
    assert outcome.ok
    assert "nothing to lint" in outcome.text


def test_sql_lint_passes_clean_files(root: Path, tmp_path: Path) -> None:
    outcome = lint_sql(root, tmp_path, CLEAN)
    assert outcome.ok, outcome.text
    assert "4 files parse as PostgreSQL, 1 of them migrations" in outcome.text


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("queries/peers.sql", "SELECT peers.peer_id FROM dwarf.peers;\n", "capitalisation.keywords"),
        ("migrations/0002_rename.sql", "alter table dwarf.peers rename column title to name;\n", "renaming-column"),
        ("functions/one_v1.sql", CLEAN["functions/one_v1.sql"].replace("return 1", "retrn 1"), "retrn"),
        ("functions/one_v1.sql", CLEAN["functions/one_v1.sql"].replace("select 2", "selec 2"), "dwarf.two_v1: syntax error"),
        ("schema.sql", "create tabel dwarf.x (id bigint);\n", "tabel"),
    ],
)
def test_sql_lint_refuses(root: Path, tmp_path: Path, name: str, text: str, complaint: str) -> None:
    outcome = lint_sql(root, tmp_path, {name: text})
    assert not outcome.ok
    assert complaint in outcome.text
