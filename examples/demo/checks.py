"""What must hold at the end of the demo, each rule with whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from dwarf import Status, Step
from examples.demo.journal import Run, why_again
from examples.demo.scenario import FAIL_ON, RETRY_ON, Part


class Evidence(msgspec.Struct):
    """What is known when all flows have ended: `history` and `committed` are the audit's."""

    parts: list[Part]
    found: int  # files below the audit's root, counted by the demo itself
    history: list[Step]
    committed: set[str]  # keys of the steps that were completed when the engine was killed
    runs: dict[str, list[Run]]
    killed: int  # the process

    def repeated(self) -> dict[str, list[str]]:
        """Return why each step that ran more than once did; an empty text is a repetition that nothing explains."""
        return {
            step: [why_again(run, later, self.killed) for run, later in pairwise(runs)] for step, runs in self.runs.items() if len(runs) > 1
        }


Check = tuple[str, bool]


def checks(evidence: Evidence) -> Iterator[Check]:
    """Yield every rule and whether it holds."""
    for part in evidence.parts:
        yield f"{part.title}: {told(part)}", holds(part)
    history = {step.step_key: step for step in evidence.history}
    measured = [step for step in evidence.history if step.task_name == "Measure"]
    yield f"nothing was lost: {evidence.found} files, {len(measured)} results", len(measured) == evidence.found
    again = evidence.repeated()
    kept = f"the {len(evidence.committed)} steps committed before the kill are all there, and none ran again after it"
    survivors = {key for key in evidence.committed if key in history and last_pid(evidence, key) == evidence.killed}
    yield kept, survivors == evidence.committed
    yield "every run that was begun was finished, by the next engine if need be", all(runs[-1].ended for runs in evidence.runs.values())
    yield f"each of the {len(again)} steps that ran more than once had a reason to", all(all(reasons) for reasons in again.values())
    yield from routes(evidence)


def last_pid(evidence: Evidence, step: str) -> int:
    """Return the process that ran a step last, 0 when nobody did."""
    runs = evidence.runs.get(step)
    return runs[-1].pid if runs else 0


def routes(evidence: Evidence) -> Iterator[Check]:
    """Yield the rules about the file that fails, the file that is tried again, and the report."""
    state = evidence.parts[0].outcome.state if evidence.parts[0].outcome else {}
    skipped = [entry["file"] for entry in state.get("skipped", [])]
    yield f"{FAIL_ON} failed and took its error route, once", skipped.count(FAIL_ON) == 1
    retried = [step for step in evidence.history if step.task_name == "Measure" and step.attempt == 1]
    yield f"{RETRY_ON} was tried twice", len(retried) == 1
    yield "the report and the chart are written", all(Path(state.get(name, "missing")).is_file() for name in ("report", "chart"))


def told(part: Part) -> str:
    if part.outcome is None or part.outcome.status is not Status.COMPLETED:
        return f"{part.outcome.status} {part.outcome.error}" if part.outcome else "did not end"
    try:
        return part.told(part.outcome.state)
    except KeyError as missing:
        return f"its final state lacks {missing}"


def holds(part: Part) -> bool:
    try:
        return part.outcome is not None and part.outcome.status is Status.COMPLETED and part.holds(part.outcome.state)
    except KeyError:
        return False
