"""What no linter checks: sizes, names, the package list, what a file may speak of, what `import dwarf` loads."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
NAME_PARTS_FORBIDDEN = {"manager", "helper", "util", "data", "info"}
# Loaded by nobody who only says `import dwarf`.
HEAVY = {"anyio", "asyncio", "click", "concurrent.futures", "http.server", "prometheus_client", "psycopg", "socket", "threading", "uvloop"}
# Folders of this machine, and the hosts that packages and images come from.
MACHINE_PATH = re.compile(r"(?<![\w.~*$}-])/(?:work|root|home|Users|tmp|opt|mnt)/[\w.]")
REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs|crates|debian|golang|docker|ghcr|quay|rubygems)\.(?:org|com|io)\b")


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def own_files() -> list[Path]:
    """Every file that is committed or would be; without git (an unpacked archive), every file outside hidden and build folders."""
    listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]
    made = re.compile(r"(\.|(dist|build|__pycache__)/|.*\.egg-info/)")
    return [path for path in ROOT.rglob("*") if path.is_file() and not any(map(made.match, re.findall("[^/]+/?", relative(path))))]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imported(path: Path) -> set[str]:
    """The dotted names a module imports anywhere in it, relative ones spelled out."""
    package = list(path.relative_to(ROOT).parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*stem, *([node.module] if node.module else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


# ---- sizes and names ----


def test_no_file_is_too_long() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in modules("dwarf", "procs", "sql", "bench")}
    assert {name: count for name, count in lengths.items() if count > FILE_LINES_MAX} == {}


def test_no_function_is_too_long() -> None:
    long = [
        f"{relative(path)}:{function.lineno} {function.name}"
        for path in modules("dwarf", "procs", "sql", "bench")
        for function in functions(ast.parse(path.read_text()))
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_file_name_is_a_noun_that_says_something() -> None:
    vague = [
        relative(path)
        for path in own_files()
        for part in path.relative_to(ROOT).parts
        for word in re.split(r"[^a-z]+", part.lower())
        if word.removesuffix("s") in NAME_PARTS_FORBIDDEN or word in NAME_PARTS_FORBIDDEN
    ]
    assert vague == []


def test_every_module_says_what_it_owns() -> None:
    silent = [path for path in modules("dwarf", "procs", "sql", "bench") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


# ---- packaging ----


def test_the_package_list_equals_the_folders() -> None:
    setuptools = project()["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in modules("dwarf")}
    mapped = {f"dwarf.{top}" for top in ("procs", "sql")}
    nested = {path.parent for path in modules("procs", "sql")} - {ROOT / "procs", ROOT / "sql"}
    assert sorted(setuptools["packages"]) == sorted(folders | mapped)
    assert setuptools["package-dir"] == {"dwarf.procs": "procs", "dwarf.sql": "sql"}
    assert nested == set(), "a folder below procs/ or sql/ with modules in it needs a place in the package list and in this test"


def test_every_package_has_an_init() -> None:
    folders = {path.parent for path in modules("dwarf", "procs", "sql")}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_version_is_the_same_in_both_places() -> None:
    import dwarf

    assert dwarf.__version__ == project()["project"]["version"]


def test_the_typed_marker_is_there() -> None:
    assert (ROOT / "dwarf" / "py.typed").is_file()


# ---- what files speak of ----


def test_no_file_names_a_path_of_some_machine_or_a_registry() -> None:
    found = []
    for path in own_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if match := MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                found.append(f"{relative(path)}:{number}: {match.group()}")
    assert found == []


def test_the_patterns_for_paths_and_registries_catch_what_they_should() -> None:
    folder, host = Path("/") / "home" / "ann", "https://pypi" + chr(ord(".")) + "org/simple"
    assert MACHINE_PATH.search(f"see {folder}")
    assert MACHINE_PATH.search(f'"{folder}"')
    assert not MACHINE_PATH.search("dwarf/tmp/x and https://example.com/home/x and /v1/flows")
    assert REGISTRY_HOST.search(host)
    assert not REGISTRY_HOST.search("https://example.org and pypi.orga")


# ---- imports ----


def test_nothing_in_dwarf_imports_the_processes() -> None:
    guilty = {
        relative(path): sorted(names)
        for path in modules("dwarf", "sql")
        if (names := {n for n in imported(path) if re.match(r"(dwarf\.)?procs(\.|$)", n)})
    }
    assert guilty == {}


def test_processes_and_statements_are_imported_by_their_installed_names() -> None:
    guilty = {
        relative(path): sorted(names)
        for path in modules("dwarf", "procs", "sql", "bench", "tests")
        if (names := {n for n in imported(path) if re.match(r"(procs|sql)(\.|$)", n) and not relative(path).startswith(("procs/", "sql/"))})
    }
    assert guilty == {}


def test_both_tools_hold_the_same_modules_to_be_impure() -> None:
    """Ruff forbids direct imports by file, import-linter chains of imports by module: their lists of exceptions must agree."""
    tool = project()["tool"]
    allowed = [glob for glob, codes in tool["ruff"]["lint"]["per-file-ignores"].items() if "TID251" in codes and glob.startswith("dwarf")]
    contract = next(contract for contract in tool["importlinter"]["contracts"] if contract["id"] == "pure")
    ignored = [line.removesuffix(" -> *") for line in contract["ignore_imports"]]
    globs = [choice for glob in allowed for choice in braces(glob)]
    by_ruff = {glob.removesuffix(".py").removesuffix("/**").rstrip("*").replace("/", ".") for glob in globs}
    assert by_ruff == {name.removesuffix(".**") for name in ignored}


def braces(glob: str) -> list[str]:
    """Expand the one brace of a glob: `a/{b,c}.py` is `a/b.py` and `a/c.py`."""
    if not (match := re.search(r"\{([^}]*)\}", glob)):
        return [glob]
    return [glob.replace(match.group(), choice) for choice in match.group(1).split(",")]


def test_every_module_has_a_place_in_the_layers() -> None:
    contract = next(contract for contract in project()["tool"]["importlinter"]["contracts"] if contract["id"] == "layers")
    placed = {name.strip("() ") for layer in contract["layers"] for name in re.split("[:|]", layer)}
    there = {path.relative_to(ROOT / "dwarf").parts[0].removesuffix(".py") for path in modules("dwarf")} - {"__init__"}
    assert there - placed == set(), "name the new module in the layers of pyproject.toml: the last layer is the pure one"


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after a statement."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_dwarf_loads_no_driver_loop_or_server() -> None:
    loaded = loaded_by("import dwarf")
    assert "dwarf" in loaded
    assert loaded & HEAVY == set()


def test_building_checking_and_rendering_a_graph_loads_none_either() -> None:
    build = "graph = dwarf.Graph('G').set_url('A', 'a').add_transition_when('A', dwarf.END, 'x > 1')"
    loaded = loaded_by(f"import dwarf; {build}; graph.validate(); graph.to_mermaid(); graph.to_svg(); graph.to_json()")
    assert "dwarf.graph" in loaded
    assert loaded & HEAVY == set()


def test_type_checkers_see_the_public_names_where_they_are() -> None:
    """`dwarf` loads its names on first use; the imports that type checkers read instead must say the same."""
    import dwarf

    tree = ast.parse((ROOT / "dwarf" / "__init__.py").read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"dwarf.{module}" for module, names in dwarf._HOMES.items() for name in names}
    assert sorted(seen) == sorted(dwarf.__all__)


# ---- documentation ----


def test_every_public_name_is_there_and_has_a_docstring() -> None:
    import dwarf

    public = {name: getattr(dwarf, name) for name in dwarf.__all__}
    silent = [name for name, thing in public.items() if (inspect.isclass(thing) or callable(thing)) and not (thing.__doc__ or "").strip()]
    assert silent == []
    assert len(set(dwarf.__all__)) == len(dwarf.__all__)


@pytest.mark.parametrize("page", [relative(path) for path in sorted((ROOT / "docs").rglob("*.md"))] + ["README.md", "deploy/README.md"])
def test_every_relative_link_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_page_of_the_docs_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []
