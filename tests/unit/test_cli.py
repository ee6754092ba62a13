"""`dwarf graph`: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dwarf import __version__
from dwarf.cli import main

ROOT = Path(__file__).parents[2]
CHECKOUT = "examples.checkout:app:checkout"
ORDER = '{"lines": [{"sku": "A1", "price": 20, "count": 2}], "card": "expired"}'


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "graph" in capsys.readouterr().out
    assert main(["nonsense"]) == 2


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "check", CHECKOUT]) == 0
    assert main(["graph", "check", "examples.checkout:app"]) == 0, "an App with one graph needs no URL"
    assert capsys.readouterr().out.startswith("checkout: valid, 9 tasks")


@pytest.mark.parametrize(("target", "named"), [
    ("examples.checkout", "MODULE:ATTRIBUTE"),
    ("examples.nowhere:app", "examples.nowhere"),
    ("examples.checkout:nothing", "nothing"),
    ("examples.checkout:Line", "neither an App nor a Graph"),
    ("examples.checkout:app:other", "it has checkout"),
])  # fmt: skip
def test_a_target_that_leads_nowhere_is_named(capsys: pytest.CaptureFixture[str], target: str, named: str) -> None:
    assert main(["graph", "check", target]) == 1
    output = capsys.readouterr()
    assert named in output.err
    assert output.out == ""


def test_render(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["graph", "render", CHECKOUT]) == 0
    assert "graph LR" in capsys.readouterr().out
    for name, start in (("a.svg", "<svg"), ("a.json", '{"name"'), ("a.mmd", "---")):
        assert main(["graph", "render", CHECKOUT, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().lstrip().startswith(start)
    assert main(["graph", "render", CHECKOUT, "--format", "png"]) == 2


def test_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "simulate", CHECKOUT, "--state", ORDER]) == 0
    printed = capsys.readouterr().out
    assert "1/0.1" in printed
    assert "the card has expired" in printed
    assert "completed after 0 s" in printed


def test_simulate_with_answers_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text('{"lines": [{"sku": "B2", "price": 2000}]}')
    assert main(["graph", "simulate", CHECKOUT, "--state", f"@{state}"]) == 1, "it waits for an answer"
    assert "charge 2000?" in capsys.readouterr().out
    answer = ["--answer", '{"approved": true}', "--json", "--seed", "3"]
    assert main(["graph", "simulate", CHECKOUT, "--state", f"@{state}", *answer]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"]["state"]["confirmed"] is True
    assert [step["path"] for step in told["steps"]] == ["1", "1/0.1", "2", "3", "4", "5"]


@pytest.mark.parametrize(("options", "named"), [
    (["--state", "{"], "--state is not JSON"),
    (["--state", "@/nowhere/state.json"], "cannot read"),
    (["--state", "[1]"], "must be an object"),
])  # fmt: skip
def test_bad_input_is_named(capsys: pytest.CaptureFixture[str], options: list[str], named: str) -> None:
    assert main(["graph", "simulate", CHECKOUT, *options]) == 1
    assert named in capsys.readouterr().err
