"""The archives that users get: what is inside, and whether an installation of them works away from this tree.

The source archive is built from a copy of the tree and the wheel from that archive, as a release does. All workers of a
test run share one build and one environment of each kind.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

NOT_OURS = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")
# Put into the copy, at the top of sql/ and below, whatever else is there.
SAMPLE_SQL = "select 1 as answer;\n"
SAMPLE_FILES = ("sample.sql", "deep/er/sample.sql")


class Archives(NamedTuple):
    tree: Path
    sdist: Path
    wheel: Path


class Installed(NamedTuple):
    python: Path
    command: Path
    away: Path

    def run(self, *arguments: str | Path) -> str:
        """Run a program of the environment from a folder that has nothing to do with the tree; return what it prints."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        done = subprocess.run(arguments, cwd=self.away, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def evaluate(self, expression: str, *, imports: str = "dwarf") -> str:
        return self.run(self.python, "-c", f"import {imports}; print({expression})")


@pytest.fixture(scope="module")
def archives(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Archives:
    def build(folder: Path) -> None:
        tree = shutil.copytree(root, folder / "tree", ignore=NOT_OURS)
        for name in SAMPLE_FILES:
            sample = tree / "sql" / name
            sample.parent.mkdir(parents=True, exist_ok=True)
            sample.write_text(SAMPLE_SQL)
        run_or_fail(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", tree)

    folder = once(tmp_path_factory, "build", build)
    [sdist] = (folder / "dist").glob("*.tar.gz")
    [wheel] = (folder / "dist").glob("*.whl")
    return Archives(folder / "tree", sdist, wheel)


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A virtual environment that holds nothing but Dwarf, installed one way or the other, and what it declares to need."""

    def install(folder: Path) -> None:
        (folder / "away").mkdir()
        venv.create(folder / "environment", with_pip=True)
        what = [archives.wheel] if request.param == "wheel" else ["--editable", archives.tree]
        run_or_fail(folder / "environment/bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *what)

    folder = once(tmp_path_factory, request.param, install)
    return Installed(folder / "environment/bin/python", folder / "environment/bin/dwarf", folder / "away")


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Fill a folder in the first worker of this test run that asks for it; the others wait and take it as it is."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def run_or_fail(*arguments: str | Path) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


def package_files(tree: Path) -> set[str]:
    """What a wheel of the tree should hold, by the names it has when installed."""
    dwarf = {path for path in (tree / "dwarf").rglob("*") if path.suffix == ".py" or path.name == "py.typed"}
    mapped = {path for top in ("procs", "sql") for path in (tree / top).rglob("*") if path.suffix in {".py", ".sql"}}
    return {path.relative_to(tree).as_posix() for path in dwarf} | {f"dwarf/{path.relative_to(tree).as_posix()}" for path in mapped}


# ---- contents ----


def test_the_wheel_holds_the_packages_their_sql_and_nothing_else(archives: Archives) -> None:
    names = zipfile.ZipFile(archives.wheel).namelist()
    metadata = {name for name in names if name.startswith("dwarf_engine-")}
    assert set(names) - metadata == package_files(archives.tree)
    assert {"dwarf/py.typed", "dwarf/sql/sample.sql", "dwarf/sql/deep/er/sample.sql", "dwarf/procs/__init__.py"} <= set(names)
    assert {name.partition("/")[2] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    }


def test_the_wheel_is_pure_python_and_named_for_the_distribution(archives: Archives) -> None:
    version = tomllib.loads((archives.tree / "pyproject.toml").read_text())["project"]["version"]
    assert archives.wheel.name == f"dwarf_engine-{version}-py3-none-any.whl"
    assert archives.sdist.name == f"dwarf_engine-{version}.tar.gz"


def test_the_source_archive_holds_what_a_build_needs_and_no_tests(archives: Archives) -> None:
    with tarfile.open(archives.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    sources = {re.sub("^dwarf/(procs|sql)/", r"\1/", name) for name in package_files(archives.tree)}
    generated = {name for name in names if name.startswith("dwarf_engine.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - generated == sources | {"LICENSE", "README.md", "pyproject.toml"}


# ---- installed ----


def test_every_package_is_importable_and_comes_from_where_it_should(installed: Installed, archives: Archives) -> None:
    place = "pathlib.Path(dwarf.__file__).parent, pathlib.Path(dwarf.procs.__file__).parent, pathlib.Path(dwarf.sql.__file__).parent"
    found = installed.evaluate(f"*map(str, ({place}))", imports="pathlib, dwarf, dwarf.procs, dwarf.sql").split()
    home = Path(found[0])
    if home == archives.tree / "dwarf":
        assert found[1:] == [str(archives.tree / "procs"), str(archives.tree / "sql")]
    else:
        assert home.parent.name == "site-packages"
        assert found[1:] == [str(home / "procs"), str(home / "sql")]


@pytest.mark.parametrize("name", SAMPLE_FILES)
def test_sql_is_read_through_importlib_resources(installed: Installed, name: str) -> None:
    file = f"importlib.resources.files('dwarf.sql').joinpath(*{name.split('/')})"
    text = installed.evaluate(f"{file}.read_text()", imports="importlib.resources")
    assert text == SAMPLE_SQL.strip()


def test_the_command_runs(installed: Installed) -> None:
    assert "Usage: dwarf" in installed.run(installed.command, "--help")


def test_the_package_runs_as_a_module(installed: Installed) -> None:
    assert "Usage: " in installed.run(installed.python, "-m", "dwarf", "--help")


def test_a_graph_is_built_and_checked_away_from_the_tree(installed: Installed) -> None:
    graph = "dwarf.Graph('G').set_url('A', 'a').add_transition('A', dwarf.END)"
    assert installed.evaluate(f"{graph}.validate() or {graph}.to_json().decode()").startswith("{")


def test_the_types_reach_a_user(installed: Installed) -> None:
    typed = installed.evaluate("importlib.resources.files('dwarf').joinpath('py.typed').is_file()", imports="importlib.resources")
    assert typed == "True"


def test_declared_dependencies_do_not_contradict_each_other(installed: Installed) -> None:
    installed.run(installed.python, "-m", "pip", "check", "--disable-pip-version-check")
