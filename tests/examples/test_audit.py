"""The audit, on a small tree: what it counts, its error route, its retry, its human, its report."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dwarf import Status
from dwarf.testing.reference import ReferenceRun
from examples import audit, chart


def begin(library: Path, *, seed: int = 0, **state: Any) -> ReferenceRun:
    given = {"root": str(library), "out": str(library.parent / "out"), **state}
    return ReferenceRun(audit.audit(), audit.app, given, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_counted(library: Path, seed: int) -> None:
    state = begin(library, seed=seed).advance().state
    assert (state["found"], state["files"], state["lines"], state["functions"], state["longest"]) == (5, 4, 16, 5, 3)
    assert sorted(state["imports"]) == ["codecs", "json", "os", "sys"]
    assert [entry["file"] for entry in state["skipped"]] == ["bad/broken.py"]
    assert state["table"] == [
        {"package": "zoo", "files": 2, "lines": 11, "functions": 4},
        {"package": ".", "files": 2, "lines": 5, "functions": 1},
        {"package": "bad", "files": 0, "lines": 0, "functions": 0},
    ]


def test_a_file_that_fails_takes_the_error_route_and_is_counted_once(library: Path) -> None:
    run = begin(library, fail_on="this.py")
    state = run.advance().state
    assert [entry["file"] for entry in state["skipped"]] == ["this.py", "bad/broken.py"]
    assert "for the sake of the example" in state["skipped"][0]["why"]
    assert state["files"] + len(state["skipped"]) == state["found"] == 5
    assert "onErr" not in state
    assert sorted(step.via for step in run.steps if step.task == "Measure") == ["error", "error", "normal", "normal", "normal"]


def test_a_file_that_takes_too_long_is_tried_again(library: Path) -> None:
    run = begin(library, retry_on="zoo/apes.py")
    assert run.advance().state["files"] == 4
    assert [step.attempt for step in run.steps if step.task == "Measure"].count(1) == 1
    assert len([path for path, attempt in run.runs if attempt == 1]) == 1
    assert run.now == pytest.approx(0.2)


def test_the_report_is_written_when_it_is_approved(library: Path) -> None:
    run = begin(library)
    asked = run.advance()
    assert asked.status is Status.INTERRUPTED
    assert asked.interrupt_payload["question"] == "publish 16 lines in 4 of 5 files, 1 skipped?"
    assert not (library.parent / "out").exists()
    run.resume({"approved": True})
    state = run.advance().state
    assert "| zoo | 2 | 11 | 4 |" in Path(state["report"]).read_text()
    assert ElementTree.fromstring(Path(state["chart"]).read_text()).tag.endswith("svg")


def test_nothing_is_written_when_it_is_refused(library: Path) -> None:
    run = begin(library)
    run.advance()
    run.resume({"approved": False})
    assert run.advance().status is Status.COMPLETED
    assert [step.task for step in run.steps][-1] == "Approve"
    assert not (library.parent / "out").exists()


def test_a_folder_without_python(tmp_path: Path) -> None:
    outcome = begin(tmp_path).advance()
    assert outcome.interrupt_payload["question"] == "publish 0 lines in 0 of 0 files, 0 skipped?"


def test_the_standard_library_is_what_is_audited_by_default() -> None:
    found = audit.survey()
    assert found["root"] == sysconfig.get_path("stdlib")
    assert isinstance(found["found"], int)
    assert found["found"] > 200
    assert {"json", "asyncio"} <= set(found["packages"])  # type: ignore[call-overload]


def test_the_bars_of_a_chart() -> None:
    picture = ElementTree.fromstring(chart.bars("Size & <shape>", {"a<b": 10, "c": 5, "none": 0}))
    svg = "{http://www.w3.org/2000/svg}"
    widths = [int(bar.attrib["width"]) for bar in picture.findall(f"{svg}rect")[1:]]
    assert widths == [chart.BAR_WIDTH, chart.BAR_WIDTH // 2, 0]
    assert [text.text for text in picture.findall(f"{svg}text")] == ["Size & <shape>", "a<b", "10", "c", "5", "none", "0"]
    ElementTree.fromstring(chart.bars("nothing", {}))
