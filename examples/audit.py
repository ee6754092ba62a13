"""An audit of Python source: fans out over packages and over their files, folds what is found, asks, and writes a report.

By default it walks the standard library of the Python that runs it. A file that cannot be read takes the error route and is
listed at the end; a folder of your own is audited with

dwarf graph simulate examples.audit:app:audit --state '{"root": "dwarf", "out": "build/audit"}' --answer '{"approved": true}'
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dwarf import END, App, Flow, Graph, Reducer, Retry, TaskError
from examples import chart

app = App()

NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}
ROWS_SHOWN = 12


class Row(msgspec.Struct):
    """A package in the report."""

    package: str
    files: int
    lines: int
    functions: int


@app.graph("audit")
def audit() -> Graph:
    graph = Graph("Audit")
    graph.set_url("Survey", "audit.survey")
    graph.set_url("List", "audit.list")
    graph.set_url("Measure", "audit.measure")
    graph.set_url("Skip", "audit.skip")
    graph.set_url("Sum", "audit.sum")
    graph.set_url("Rank", "audit.rank")
    graph.set_url("Approve", "audit.approve")
    graph.set_url("Report", "audit.report")
    graph.add_transition_for_each("Survey", "List", "packages", "package")  # a branch for each package …
    graph.add_transition_for_each("List", "Measure", "names", "name")  # … and in it one for each file
    graph.add_transition("Measure", "Sum")
    graph.add_transition_on_error("Measure", "Skip")
    graph.add_transition("Skip", "Sum")
    graph.set_fan_in("Sum")  # the files of a package meet here
    graph.add_transition("Sum", "Rank")
    graph.set_fan_in("Rank")  # and all packages here
    graph.add_transition("Rank", "Approve")
    graph.add_transition_switch("Approve", "Report", "approved")
    graph.add_transition_switch("Approve", END, "true")
    graph.add_transition("Report", END)
    graph.set_reducer("files", Reducer.ADD)
    graph.set_reducer("lines", Reducer.ADD)
    graph.set_reducer("functions", Reducer.ADD)
    graph.set_reducer("longest", Reducer.MAX)
    graph.set_reducer("imports", Reducer.UNION)
    graph.set_reducer("skipped", Reducer.APPEND)
    graph.set_reducer("table", Reducer.APPEND)
    return graph


@app.task("audit.survey")
def survey(root: str = "") -> dict[str, object]:
    folder = Path(root or sysconfig.get_path("stdlib"))
    files = files_of(folder)
    packages = sorted({path.parent.as_posix() for path in files})
    return {"root": str(folder), "packages": packages, "found": len(files)}


def files_of(folder: Path) -> list[Path]:
    """Return the Python files below a folder, relative to it."""
    found = (path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file())
    return [path for path in found if NOT_THE_LIBRARY.isdisjoint(path.parts)]


@app.task("audit.list")
def list_files(root: str, package: str) -> dict[str, object]:
    return {"names": sorted(path.name for path in Path(root, package).glob("*.py") if path.is_file())}


@app.task("audit.measure", retry=Retry(on=TimeoutError, initial_delay=0.2, give_up_after=60))
def measure(flow: Flow, root: str, package: str, name: str) -> dict[str, object]:
    file = Path(package, name).as_posix()
    rehearse(flow, file)
    source = Path(root, file).read_bytes()
    nodes = list(statements(ast.parse(source)))  # raises SyntaxError for some files of the library's own tests
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        "files": 1,
        "lines": source.count(b"\n"),
        "functions": len(functions),
        "longest": max(((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions), default=0),
        "imports": sorted({top for node in nodes for top in imported(node)}),
    }


def rehearse(flow: Flow, file: str) -> None:
    """Fail where the flow was told to, so that one can see what happens then."""
    if file == flow.get_str("fail_on"):
        raise TaskError(f"{file} is unreadable, for the sake of the example", status=422)
    if file == flow.get_str("retry_on") and flow.attempt == 0:
        raise TimeoutError(f"{file} takes too long, the first time")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement below a node. (`ast.walk` would also visit the expressions, ten times as many.)"""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


def imported(node: ast.AST) -> set[str]:
    """Return the top-level names of what a statement imports."""
    match node:
        case ast.Import(names=names):
            return {alias.name.partition(".")[0] for alias in names}
        case ast.ImportFrom(module=str(module), level=0):
            return {module.partition(".")[0]}
    return set()


@app.task("audit.skip")
def skip(flow: Flow, package: str, name: str) -> None:
    flow["skipped"] = {"file": Path(package, name).as_posix(), "why": flow["onErr"]["error"]}
    flow.delete("onErr")


@app.task("audit.sum")
def sum_up(package: str, files: int = 0, lines: int = 0, functions: int = 0) -> dict[str, object]:
    return {"table": Row(package, files, lines, functions)}


@app.task("audit.rank")
def rank(flow: Flow) -> None:
    table = flow.get("table", [], type=list[Row])
    flow.overwrite("table", sorted(table, key=lambda row: row.lines, reverse=True))


@app.task("audit.approve")
def approve(flow: Flow, found: int, files: int = 0, lines: int = 0) -> None:
    skipped = len(flow.get_list("skipped"))
    answer = flow.interrupt({"question": f"publish {lines} lines in {files} of {found} files, {skipped} skipped?"})
    flow["approved"] = bool(answer.get("approved"))


@app.task("audit.report")
def report(flow: Flow, table: list[Row], out: str = "build/audit") -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    largest = {row.package: row.lines for row in table[:ROWS_SHOWN]}
    # Both are written whole and the same at every run of this step: it may run again.
    (folder / "report.md").write_text(as_text(table))
    (folder / "chart.svg").write_text(chart.bars("Lines of Python by package", largest))
    flow.update({"report": str(folder / "report.md"), "chart": str(folder / "chart.svg")})


def as_text(table: list[Row]) -> str:
    """Return the report's table, largest package first."""
    lines = ["| package | files | lines | functions |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {row.package} | {row.files} | {row.lines} | {row.functions} |" for row in table]
    return "\n".join(lines) + "\n"
