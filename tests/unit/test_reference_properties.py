"""Random valid graphs with random tasks in the reference runner: they end, the order of ready steps does not matter, and
history alone gives every step's input and the final state back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dwarf.errors import TaskError
from dwarf.flow import Flow
from dwarf.graph import Graph
from dwarf.keys import branch_seq
from dwarf.state import State, canonical
from dwarf.status import Status, StepStatus
from dwarf.testing.reference import ReferenceRun
from tests.strategies import changes, states, valid_graphs

SEEDS = range(4)
HOPS_MAX = 4
calm = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def dice(task: str, flow: Flow) -> Callable[[int], int]:
    """Return throws that depend on nothing but the task and what it reads: the same in every order of steps."""
    seed = hashlib.sha256(f"{task} {flow.attempt}".encode() + canonical(flow.snapshot().raw_fields())).digest()
    numbers = iter(seed)
    return lambda sides: next(numbers) % sides


def behave(graph: Graph, name: str, menu: list[dict[str, Any]], *, troubles: bool) -> Callable[[Flow], None]:
    """Return a task that writes one of `menu`, and at times overwrites, deletes, sleeps, jumps, fails, retries or waits."""
    gotos = [edge.target for edge in graph.edges_from(name) if edge.goto]

    def task(flow: Flow) -> None:
        throw = dice(name, flow)
        for field, value in menu[throw(len(menu))].items() if menu else ():
            flow.overwrite(field, value) if throw(6) == 0 else flow.set(field, value)
        if throw(8) == 0:
            flow.delete("r_append")
        if throw(8) == 0:
            flow.sleep(throw(5))
        hops = flow.get_int("hops")
        flow["hops"] = hops + 1
        if not troubles:
            return
        if throw(12) == 0 and flow.attempt < 2 and flow.retry(1, give_up_after=3600):
            return
        if throw(12) == 0:
            flow["answer"] = flow.interrupt({"from": name}).get("n")
        if throw(10) == 0:
            raise TaskError(f"{name} fails", status=418)
        if gotos and hops < HOPS_MAX and throw(2) == 0:
            flow.goto(gotos[throw(len(gotos))])

    return task


def finish(run: ReferenceRun) -> None:
    outcome = run.advance()
    while outcome.status is Status.INTERRUPTED:
        run.resume({"n": 1})
        outcome = run.advance()


def picture(run: ReferenceRun) -> dict[str, Any]:
    """Return all that must not depend on the order of steps; which failed branch gives the error text may."""
    steps = {
        step.path: (step.task, step.status, step.via, step.attempt, step.depth, canonical(step.input.raw_fields()), step.changes)
        for step in run.steps
    }
    return {"status": run.outcome.status, "state": canonical(run.outcome.state.raw_fields()), "steps": steps, "runs": sorted(run.runs)}  # type: ignore[attr-defined]


def check_rebuild(graph: Graph, run: ReferenceRun) -> None:
    rebuild = run.rebuild()
    for step in run.steps:
        if step.started_at is not None:
            branch, seq = branch_seq(step.step_id)
            assert rebuild.input(branch, seq) == step.input, step
    assert rebuild.final_state() == run.outcome.state


@given(data=st.data())
@calm
@pytest.mark.parametrize("troubles", [False, True])
@pytest.mark.row("H-01", "H-02", "F-28", "F-29", "H-33")
def test_the_order_of_ready_steps_does_not_matter(data: st.DataObject, troubles: bool) -> None:
    graph = data.draw(valid_graphs())
    state = data.draw(states())
    menus = {task.name: data.draw(st.lists(changes(graph), max_size=3)) for task in graph.tasks}
    tasks = {task.url: behave(graph, task.name, menus[task.name], troubles=troubles) for task in graph.tasks}
    pictures = []
    for seed in SEEDS:
        run = ReferenceRun(graph, tasks, state, seed=seed)
        finish(run)
        assert run.outcome.status in (Status.COMPLETED, Status.FAILED)
        check_rebuild(graph, run)
        pictures.append(picture(run))
    assert all(other == pictures[0] for other in pictures[1:])
    if not any(status is StepStatus.FAILED for _, status, *_ in pictures[0]["steps"].values()):
        assert pictures[0]["status"] is Status.COMPLETED


@given(data=st.data(), stop=st.integers(0, 12), verb=st.sampled_from(["cancel", "terminate"]))
@calm
def test_cancelling_and_terminating_at_any_step_leaves_a_closed_tree(data: st.DataObject, stop: int, verb: str) -> None:
    graph = data.draw(valid_graphs())
    menus = {task.name: data.draw(st.lists(changes(graph), max_size=2)) for task in graph.tasks}
    tasks = {task.url: behave(graph, task.name, menus[task.name], troubles=True) for task in graph.tasks}
    run = ReferenceRun(graph, tasks, data.draw(states()), seed=stop)
    run.advance(steps_max=stop)
    if not run.outcome.status.closed:
        getattr(run, verb)("enough")
        assert (run.outcome.status is Status.TERMINATED) == (verb == "terminate")
    finish(run)
    assert run.outcome.status.closed
    assert all(step.status.closed for step in run.steps)
    assert (run.outcome.reason == "enough") == (run.outcome.status in (Status.CANCELLED, Status.TERMINATED))
    check_rebuild(graph, run)


def test_the_same_seed_repeats_a_run_step_by_step() -> None:
    graph = Graph("twice").add_transition_for_each("S", "W", "xs").add_transition("W", "J").set_fan_in("J").add_transition("J", "END")
    orders = [ReferenceRun(graph, dict.fromkeys("SWJ", lambda flow: None), {"xs": list(range(20))}, seed=7) for _ in range(2)]
    for run in orders:
        run.advance()
    assert orders[0].runs == orders[1].runs
    assert isinstance(orders[0].outcome.state, State)
