"""The demo's own parts: its scenario against the reference runner, its journal, and what its checks refuse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dwarf import App, Flow, Outcome, Status, Step, StepStatus
from dwarf.flow import Identity, Parked
from dwarf.hosts.functions import TaskFunction
from dwarf.testing.reference import ReferenceRun
from examples import agent, audit, checkout
from examples.demo import journal
from examples.demo.checks import Evidence, checks
from examples.demo.journal import Journal, Run, why_again
from examples.demo.scenario import Part, parts

APPS = {"audit": (audit.app, audit.audit), "checkout": (checkout.app, checkout.checkout), "agent": (agent.app, agent.agent)}
KILLED, NEXT = 100, 101


def play(part: Part) -> ReferenceRun:
    app, graph = APPS[part.workflow]
    run = ReferenceRun(graph(), app, part.state)
    while run.advance().status is Status.INTERRUPTED:
        run.resume(part.answer)
    part.outcome = run.outcome
    return run


@pytest.fixture
def cast(library: Path) -> list[Part]:
    return parts(library, library.parent / "out", 5)


# ---- the scenario ----


def test_every_part_ends_as_it_should(cast: list[Part]) -> None:
    for part in cast:
        play(part)
        assert part.outcome is not None
        assert part.outcome.status is Status.COMPLETED, part.title
        assert part.holds(part.outcome.state), (part.title, dict(part.outcome.state))
        assert part.told(part.outcome.state)


# ---- the journal ----


def flow(step: str, *, attempt: int = 0) -> Flow:
    return Flow(identity=Identity(step_key=step, task_name="T", attempt=attempt))


def test_runs_are_noted_with_how_they_ended(tmp_path: Path) -> None:
    def work(flow: Flow) -> None:
        if flow.step_key == "bad":
            raise ZeroDivisionError
        if flow.step_key == "waits":
            flow.interrupt()

    async def work_async(flow: Flow) -> None:
        await asyncio.sleep(0)
        work(flow)

    path = tmp_path / "journal"
    noted = Journal(path)
    plain = TaskFunction("plain", journal.journalled(TaskFunction("t", work), noted))
    other = TaskFunction("other", journal.journalled(TaskFunction("t", work_async), noted))
    assert not plain.is_async
    assert other.is_async
    plain.call(flow("good"))
    with pytest.raises(ZeroDivisionError):
        plain.call(flow("bad"))
    with pytest.raises(Parked):
        plain.call(flow("waits"))
    pending = other.call(flow("later", attempt=2))
    assert pending is not None
    asyncio.run(pending)  # type: ignore[arg-type]
    found = journal.read(path)
    assert {step: run.ended for step, (run,) in found.items()} == {
        "good": "done",
        "bad": "ZeroDivisionError",
        "waits": "Parked",
        "later": "done",
    }
    assert found["later"][0].attempt == 2


def test_a_run_that_was_cut_off_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    cut, again = Run("s", "T", 0, KILLED), Run("s", "T", 0, NEXT)
    whole = Run("s", "T", 0, NEXT, "done")
    path.write_bytes(b"".join(msgspec.json.encode(run) + b"\n" for run in (cut, again, whole)))
    assert journal.read(path) == {"s": [cut, whole]}


def test_apps_are_combined_with_their_retries() -> None:
    whole = asyncio.run(journal.combine([app for app, _ in APPS.values()], Journal(Path("/dev/null"))))
    assert whole.graphs == ("audit", "checkout", "agent")
    assert whole.tasks["audit.measure"].retry == audit.app.tasks["audit.measure"].retry
    assert isinstance(whole, App)


@pytest.mark.parametrize(("ended", "pid", "attempt", "why"), [
    ("", KILLED, 0, "it was cut off"),
    ("done", KILLED, 0, "its result was not committed"),
    ("SyntaxError", KILLED, 0, "its result was not committed"),
    ("Parked", NEXT, 0, "it waited for an answer"),
    ("TimeoutError", NEXT, 1, "it asked for another attempt"),
    ("done", NEXT, 0, ""),
    ("", NEXT, 0, ""),
])  # fmt: skip
def test_why_a_step_ran_again(ended: str, pid: int, attempt: int, why: str) -> None:
    assert why_again(Run("s", "T", 0, pid, ended), Run("s", "T", attempt, NEXT, "done"), KILLED) == why


# ---- the checks ----


@pytest.fixture
def evidence(cast: list[Part], tmp_path: Path) -> Evidence:
    """What a demo leaves that went well: the first step was committed before the kill, the second was cut off by it."""
    cast[0].outcome = play(cast[0]).outcome
    for part in cast[1:]:
        play(part)
    history = [
        Step(step_key=f"m{number}", step_id=number, task_name="Measure", attempt=int(number == 2), status=StepStatus.COMPLETED)
        for number in range(5)
    ]
    runs = {f"m{number}": [Run(f"m{number}", "Measure", 0, NEXT, "done")] for number in range(2, 5)}
    runs["m0"] = [Run("m0", "Measure", 0, KILLED, "done")]
    runs["m1"] = [Run("m1", "Measure", 0, KILLED), Run("m1", "Measure", 0, NEXT, "done")]
    return Evidence(cast, 5, history, {"m0"}, runs, KILLED)


def broken(evidence: Evidence) -> list[str]:
    return [rule for rule, holds in checks(evidence) if not holds]


def test_all_checks_hold_when_all_is_well(evidence: Evidence) -> None:
    assert broken(evidence) == []
    assert evidence.repeated() == {"m1": ["it was cut off"]}


def spoil_lost_step(evidence: Evidence) -> None:
    evidence.history.pop()


def spoil_second_run(evidence: Evidence) -> None:
    evidence.runs["m4"].append(Run("m4", "Measure", 0, NEXT, "done"))


def spoil_committed_step(evidence: Evidence) -> None:
    evidence.runs["m0"].append(Run("m0", "Measure", 0, NEXT, "done"))


def spoil_committed_and_lost(evidence: Evidence) -> None:
    evidence.committed.add("gone")


def spoil_unfinished_run(evidence: Evidence) -> None:
    evidence.runs["m1"].pop()


def spoil_outcome(evidence: Evidence) -> None:
    evidence.parts[1].outcome = Outcome.of(Status.FAILED, error="boom", state={})


def spoil_missing_outcome(evidence: Evidence) -> None:
    evidence.parts[2].outcome = None


def spoil_state(evidence: Evidence) -> None:
    evidence.parts[4].outcome = Outcome.of(Status.COMPLETED, state={})


def spoil_chart(evidence: Evidence) -> None:
    assert evidence.parts[0].outcome is not None
    Path(evidence.parts[0].outcome.state["chart"]).unlink()


def spoil_retry(evidence: Evidence) -> None:
    evidence.history[:] = [msgspec.structs.replace(step, attempt=0) for step in evidence.history]


SPOILS: dict[str, Any] = {name.removeprefix("spoil_"): function for name, function in dict(globals()).items() if name.startswith("spoil_")}


@pytest.mark.parametrize(("spoil", "told"), [
    ("lost_step", "5 files, 4 results"),
    ("second_run", "had a reason to"),
    ("committed_step", "none ran again"),
    ("committed_and_lost", "2 steps committed before the kill"),
    ("unfinished_run", "every run that was begun"),
    ("outcome", "failed boom"),
    ("missing_outcome", "did not end"),
    ("state", "final state lacks"),
    ("chart", "the chart"),
    ("retry", "was tried twice"),
])  # fmt: skip
def test_what_went_wrong_is_seen(evidence: Evidence, spoil: str, told: str) -> None:
    SPOILS[spoil](evidence)
    assert [rule for rule in broken(evidence) if told in rule], broken(evidence)
