"""Forks of random flows: forked at any of its steps, a flow comes to what it came to, by the steps it took, as in the reference.

The tasks of a random flow decide by what they read alone. So the steps that a fork copies, and those that it runs again, must
be the origin's, step by step, whatever the chosen step is: in the trunk, in branches of branches, in children, a caller, a fan-in.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf import App, Conflict, Flow, State, Step
from dwarf.state import canonical
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import FAILED, Make, invariants, paths, walk
from tests.engine.test_rows_random import ROUNDS, Example, childless, examples, facts, finish

FLOWS = 4
FORKS_MAX = 10  # of each flow


def note_input(flow: Flow) -> bytes:
    """Return what a step was given, whatever its earlier runs wrote: a caller's step has had its first run in the origin."""
    return canonical(State.of(flow._fields).enacted().raw_fields())


async def told(engine: EngineUnderTest, key: str) -> dict[str, tuple[Any, ...]]:
    """Return what is told of each step of a flow, by path."""
    steps = childless(paths(await engine.history(key)))
    return {path: facts(await engine.step(step.step_key)) for path, step in steps.items()}


async def check_forks(engine: EngineUnderTest, flow: Example) -> None:
    origin = await engine.snapshot(flow.key)
    steps = walk(await engine.history(flow.key))
    forkable = list(childless(paths(await engine.history(flow.key))).values())  # a retry has discarded the others
    theirs = await told(engine, flow.key)
    chosen = random.Random(flow.seed).sample(forkable, min(FORKS_MAX, len(forkable)))
    forks: dict[str, Step] = {}
    for step, made in zip(
        chosen, await asyncio.gather(*(engine.fork(step.step_key) for step in chosen), return_exceptions=True), strict=True
    ):
        if isinstance(made, str):
            forks[made] = step
        else:  # a fan-in that failed since there was nothing to give it
            assert isinstance(made, Conflict), made
            assert "cannot be folded" in str(made)
            assert step.status == "failed"
    outcomes = await finish(engine, list(forks))
    for (key, step), outcome in zip(forks.items(), outcomes, strict=True):
        assert outcome.status is origin.status, (step, outcome, origin)
        assert outcome.state == origin.state, step
        assert bool(outcome.error) == bool(origin.error)
        mine = await told(engine, key)
        if outcome.status is FAILED or any(attempts(fact) for fact in theirs.values()):
            assert {path: fact[:2] for path, fact in mine.items()} == {path: fact[:2] for path, fact in theirs.items()}, step
        else:
            assert mine == theirs, step
    assert await told(engine, flow.key) == theirs
    preview_of = random.Random(flow.seed).choice(steps)
    try:
        preview = await engine.fork(preview_of.step_key, preview=True)
    except Conflict:
        return
    assert preview.kept + len(preview.reruns) == len(steps)
    assert preview_of.step_key in [step.step_key for step in preview.reruns]


def attempts(fact: tuple[Any, ...]) -> int:
    return int(fact[2])


@pytest.mark.row("D1", "D9", "D11", "D13")
def test_forks_of_random_flows_do_what_their_origins_did(dwarf_engine: Make) -> None:
    @given(flows=st.lists(examples(), min_size=FLOWS, max_size=FLOWS))
    @ROUNDS
    def round_of_flows(flows: list[Example]) -> None:
        async def play() -> None:
            app = App()
            for number, flow in enumerate(flows):
                flow.note = note_input  # type: ignore[method-assign]
                flow.register(app, number)
            async with asyncio.timeout(300), dwarf_engine(app, "forks") as engine:
                keys = await engine.create_many([(f"{number}//", flow.state) for number, flow in enumerate(flows)])
                for flow, key in zip(flows, keys, strict=True):
                    flow.key = key
                await finish(engine, keys)
                for flow in flows:
                    await check_forks(engine, flow)
                assert await invariants(engine) == []

        asyncio.run(play())

    round_of_flows()
