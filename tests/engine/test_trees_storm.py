"""Cancel and terminate at every moment of trees of every kind, on live engines: what a verb answered is what became of the flow.

DWARF_TEST_HEAVY=1 lets many more trees meet their verbs.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest

from dwarf import FlowOptions, Outcome
from dwarf.steps import Step
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import CANCELLED, COMPLETED, INTERRUPTED, TERMINATED, Make, calm, done, invariants, one, play, until
from tests.engine.test_rows_storm import LEFT, slots_taken
from tests.engine.trees_moments import GRAPHS, STATE, WAITING, Moments, answered, app_of, verb_of

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
TREES = 100 if HEAVY else 8  # of each kind and verb
SECONDS_MAX = 3600 if HEAVY else 300  # only turns a hang into a failure
MOMENTS_MAX = {
    "line": 7,
    "bare": 7,
    "ask": 7,
    "sleep": 6,
    "retry": 8,
    "deep": 20,
    "nest": 24,
    "wide": 30,
    "fan": 18,
    "calls": 40,
    "bare_fan": 20,
}
VERBS = {
    "terminate": [("terminate", "over")],
    "cancel": [("cancel", "stop")],
    "cancel twice": [("cancel", "stop"), ("cancel", "again")],
    "both": [("cancel", "stop"), ("terminate", "over")],
}
STRANDED = """
    select count(*) from dwarf.live l
    where not exists (select from dwarf.active a where a.flow_id = l.flow_id)
    or l.root_id <> l.flow_id and not exists (select from dwarf.active a where a.flow_id = l.caller_flow and a.branch = l.caller_branch and a.status = 5)
"""


class Storm:
    """Trees of one kind on a fleet, each with verbs that are called at a moment of its own."""

    def __init__(self, fleet: list[EngineUnderTest], moments: Moments, url: str, verbs: str, dice: random.Random) -> None:
        self.fleet, self.moments, self.url, self.verbs, self.dice = fleet, moments, url, verbs, dice
        self.trees = moments.trees(TREES)
        self.keys: dict[int, asyncio.Future[str]] = {}
        self.answers: dict[int, list[tuple[str, str, bool]]] = {}
        self.counts: Counter[str] = Counter()

    async def blow(self) -> None:
        for tree in self.trees:
            self._plan(tree)
        for tree in self.trees:
            self.keys[tree].set_result(await self.dice.choice(self.fleet).create(self.url, STATE, FlowOptions(baggage={"tree": tree})))
        await self._end({tree: key.result() for tree, key in self.keys.items()})

    def _plan(self, tree: int) -> None:
        """Choose when the verbs of a tree are called: at its moments, or when nothing goes on any more."""
        self.answers[tree] = []
        key = self.keys[tree] = asyncio.get_running_loop().create_future()
        for verb, reason in VERBS[self.verbs]:
            turns, engine = self.dice.randrange(8), self.dice.choice(self.fleet)

            async def call(verb: str = verb, reason: str = reason, turns: int = turns, engine: EngineUnderTest = engine) -> None:
                name = await key
                for _ in range(turns):
                    await asyncio.sleep(0)
                await answered(verb_of(engine, verb, name, reason), self.answers[tree], verb, reason)

            self.moments.at(tree, self.dice.randint(1, MOMENTS_MAX[self.url]), call)

    async def _end(self, keys: dict[int, str]) -> None:
        """Let everything end: verbs are called for what waits, then sleeps are slept out and questions answered."""
        first = self.fleet[0]
        await calm(first)
        assert await one(first, STRANDED) == 0
        if self.url in ("ask", "sleep", "retry", "calls", "bare_fan"):  # they wait for somebody, or for a time
            self.moments.overdue()
        await self.moments.over()
        for _ in range(100):
            await play(first)
            outcomes = await asyncio.gather(*map(first.snapshot, keys.values()))
            if all(outcome.status.closed for outcome in outcomes):
                break
            for key, outcome in zip(keys.values(), outcomes, strict=True):
                if outcome.status is INTERRUPTED:
                    await done(self.dice.choice(self.fleet).resume(key))
        self.moments.overdue()
        await self.moments.over()
        for tree, key in keys.items():
            self._judge(tree, await first.wait(key), await first.history(key))

    def _judge(self, tree: int, outcome: Outcome, steps: list[Step]) -> None:
        status, answers = outcome.status, self.answers[tree]
        told = (self.url, self.verbs, answers, str(status), outcome.reason, outcome.error)
        ended = [reason for verb, reason, was_done in answers if was_done and verb == "terminate"]
        asked = [reason for verb, reason, was_done in answers if was_done and verb == "cancel"]
        assert len(answers) == len(VERBS[self.verbs]), told
        if ended:
            assert (status, outcome.reason) == (TERMINATED, ended[0]), told
        elif asked:
            assert (status, outcome.reason) in [(COMPLETED, ""), *((CANCELLED, reason) for reason in asked)], told
        else:
            assert (status, outcome.reason, outcome.error) == (COMPLETED, "", ""), told
        handled = self._check_runs(tree, everything(steps), told)
        if status is COMPLETED:
            assert (handled > 0) == bool(asked), told
        self.counts.update(f"{verb}: {'done' if was_done else 'too late'}" for verb, _, was_done in answers)
        self.counts["tried"] += len(answers)
        self.counts[f"flow {status}"] += 1

    def _check_runs(self, tree: int, steps: list[Step], told: Any) -> int:
        """Check that nothing ran more often than it should have; return how many handlers ran to their end."""
        runs = self.moments.runs.pop(tree, Counter())
        for (task, run), count in runs.items():
            assert count <= 1 + (task in WAITING), (told, task, run, count)
        handlers = {step.step_key: str(step.status) for step in steps if step.task_name.startswith("H")}
        ran = Counter(run.split()[0] for task, run in runs if task.startswith("H"))
        for key, status in handlers.items():
            assert ran[key] == 1 if status == "completed" else ran[key] <= 1, (told, key, status)
        assert set(ran) <= set(handlers), told
        return sum(status == "completed" for status in handlers.values())


def everything(steps: list[Step]) -> list[Step]:
    """The steps of a history and of those inside it, without recursion."""
    found = list(steps)
    for step in found:
        found.extend(step.sub_history)
    return found


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.row("C10", "C12", "C18", "C29", "C31", "C32", "M35", "A03")
def test_what_a_verb_answers_is_what_becomes_of_the_tree(dwarf_engine: Make, engines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dwarf.decide.SLICE_BRANCHES_MAX", 2)  # so that a few branches are several slices
    counts: Counter[str] = Counter()

    async def storm() -> None:
        moments = Moments()
        app = app_of(moments)
        async with dwarf_engine(app, workers=40) as first:
            fleet = [first]
            for _ in range(engines - 1):
                fleet.append(dwarf_engine(app, dsns=first.dsns, workers=40))
                await fleet[-1].start()
            for number, url in enumerate(GRAPHS):
                for verbs in VERBS:
                    blown = Storm(fleet, moments, url, verbs, random.Random(f"{number} {verbs} {engines}"))
                    await blown.blow()
                    counts.update(blown.counts)
            assert await one(first, LEFT) == 0
            assert await invariants(first) == []
            for engine in fleet:
                await until(lambda engine=engine: slots_taken(engine) == 0, "all slots are free")  # type: ignore[misc]
                counters = engine.counters(1)
                assert (counters.write_failed, counters.poisoned, counters.swept) == (0, 0, 0)
            for other in fleet[1:]:
                await other.close()

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await storm()

    asyncio.run(bounded())
    print(dict(counts))
    assert counts["tried"] == len(GRAPHS) * TREES * sum(map(len, VERBS.values()))
    assert min(counts[f"{verb}: {answer}"] for verb in ("cancel", "terminate") for answer in ("done", "too late")) > 0
