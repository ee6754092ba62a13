"""One run of a step in an executor: the carrier it is given, and the record that comes of what it did.

Pure but for the graph of a child, which its host may have to fetch. `prepare` reads an assignment, `finish` turns an effect
into a record; whatever goes wrong in either fails the step with a text and never the executor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from dwarf import cohorts
from dwarf.arrays import moment
from dwarf.changes import Changes
from dwarf.decide import cancel, decide, fail
from dwarf.effect import Effect, Subgraph, engine_failure
from dwarf.errors import DwarfError
from dwarf.flow import Flow, Past
from dwarf.graph import Graph
from dwarf.inputs import Base, Input
from dwarf.keys import LOW_BITS, LOW_MAX, SEQ_BITS, FlowKey
from dwarf.limits import SUBGRAPH_DEPTH_MAX
from dwarf.record import ClaimedStep, Record, Todo
from dwarf.routing import plan_of
from dwarf.state import State
from dwarf.status import StepStatus
from dwarf.wire import Assignment

log = logging.getLogger("dwarf.executor")

MICROS = 1_000_000
NO_BAGGAGE = State.of({})
NO_PAST = Past()


class Run(msgspec.Struct, gc=False):
    """A step in an executor, from its assignment to the commit of its record; then the next one under the same ticket."""

    assignment: Assignment
    graph: Graph
    step: ClaimedStep | None = None
    flow: Flow | None = None
    task: Any = None  # the asyncio task or the thread's future
    timer: Any = None
    budget: float = 0.0
    out_of_time: bool = False
    withdrawn: bool = False
    started: bool = False  # the task has begun
    record: Record | None = None
    next_input: Input | None = None


def prepare(run: Run, base: Base) -> Record | None:
    """Read what a step was assigned; return the record of one that runs no task, else None."""
    assigned, graph = run.assignment, run.graph
    step = run.step = assigned.step(base, plan_of(graph).reducers)
    if assigned.todo == Todo.EXPAND:
        return cohorts.expand_slice(graph, step)
    if assigned.todo == Todo.RESOLVE:
        return cohorts.resolve(graph, step, assigned.members(), last=assigned.last_ordinal, reason=assigned.reason)
    if assigned.cohort is not None:
        folded = cohorts.fold_join(graph, step, [member.contribution for member in assigned.members()])
        if isinstance(folded, Record):
            return folded
        step = run.step = folded
    if assigned.todo == Todo.CANCEL:
        return cancel(graph, step, assigned.reason)
    return None


class StepIdentity:
    """Who a step is, worked out of its assignment when somebody asks: most tasks ask for nothing, or for the key alone."""

    __slots__ = ("_assigned", "_graph", "_shard", "deadline_micros")

    def __init__(self, run: Run, shard: int, deadline_micros: int) -> None:
        self._assigned, self._graph, self._shard = run.assignment, run.graph, shard
        self.deadline_micros = deadline_micros

    @property
    def _key(self) -> FlowKey:
        return FlowKey(self._shard, self._assigned.flow_id, self._assigned.token)

    @property
    def flow_key(self) -> str:
        return str(self._key)

    @property
    def step_key(self) -> str:
        return str(self._key.step(self._assigned.branch << SEQ_BITS | self._assigned.seq))

    @property
    def workflow_url(self) -> str:
        return self._assigned.workflow

    @property
    def task_name(self) -> str:
        return self._assigned.task

    @property
    def task_url(self) -> str:
        return self._graph.url_of(self._assigned.task)

    @property
    def attempt(self) -> int:
        return self._assigned.attempt

    @property
    def created_at(self) -> datetime:
        return moment(self._assigned.flow_created_at)

    @property
    def updated_at(self) -> datetime:
        return moment(self._assigned.step_created_at)

    @property
    def step_created_at(self) -> datetime:
        return moment(self._assigned.step_created_at)

    @property
    def deadline(self) -> datetime:
        return moment(self.deadline_micros)

    @property
    def priority(self) -> int:
        return self._assigned.priority

    @property
    def fairness_key(self) -> str:
        return self._assigned.fairness_key


def carrier(run: Run, shard: int, now_micros: Callable[[], int]) -> Flow:
    """Return the carrier for a run of the step."""
    assigned, step = run.assignment, run.step
    assert step is not None
    identity = StepIdentity(run, shard, now_micros() + int(run.budget * MICROS))
    return Flow(
        step.input.state, identity=identity, past=past_of(assigned), baggage=baggage_of(assigned), clock=lambda: moment(now_micros())
    )  # fmt: skip


def finish(run: Run, effect: Effect) -> Record:
    """Return what to store for a step whose task has run."""
    assert run.step is not None
    return decide(run.graph, run.step, effect)


def child_failed(run: Run, error: BaseException) -> Record:
    """Return what to store for a step whose child's graph could not be loaded; no onError edge is taken."""
    assert run.step is not None
    text = str(error) or type(error).__name__
    status = error.status if isinstance(error, DwarfError) else 500
    return fail(run.graph, run.step, engine_failure(f"task {run.step.task!r}: the subgraph cannot be loaded: {text}", status))


def too_deep(run: Run) -> Record | None:
    """Return what to store for a step that calls a child where no more are allowed; None where one is."""
    if run.assignment.nesting < SUBGRAPH_DEPTH_MAX:
        return None
    assert run.step is not None
    text = f"task {run.step.task!r}: subgraphs are nested {SUBGRAPH_DEPTH_MAX} deep; no more are allowed"
    return fail(run.graph, run.step, engine_failure(text))


def broken(assigned: Assignment, error: BaseException) -> Record:
    """Return what to store for a step that cannot be read or decided: a defect, or damage, that no further run will mend."""
    log.error("branch %d of flow %d-%d", assigned.branch, assigned.flow_id >> LOW_BITS, assigned.flow_id & LOW_MAX, exc_info=error)
    text = f"task {assigned.task!r}: the engine failed: {type(error).__name__}: {error}"
    return Record.of_failure((assigned.branch, assigned.seq, assigned.lease), text, in_cohort=assigned.in_cohort)


def child_of(effect: Effect) -> str:
    """Return the URL of the graph that a run wants to call, or nothing."""
    return effect.park.url if effect.failure is None and isinstance(effect.park, Subgraph) else ""


def go_on(run: Run, now_micros: int) -> Run:
    """Return the run of the successor that starts at once, with the input that was kept."""
    assigned, record = run.assignment, run.record
    assert record is not None
    assert run.next_input is not None
    following = msgspec.structs.replace(
        assigned, seq=assigned.seq + 1, lease=assigned.lease + 1, task=record.task, todo=int(Todo.RUN), attempt=0, chain=[], documents=[],
        delta=None, later=[], expanded=0, last_ordinal=None, cohort=None, park=None, step_created_at=now_micros, claimed_at=now_micros,
    )  # fmt: skip
    step = ClaimedStep(following.branch, following.seq, following.task, run.next_input, following.lease, in_cohort=following.in_cohort)
    return Run(following, run.graph, step)


def past_of(assigned: Assignment) -> Past:
    """Return what earlier runs of the step left."""
    park = assigned.park
    if park is None:
        return NO_PAST
    ended = assigned.child_ended()
    return Past(
        changes=Changes.decode(park.kept),
        resume=park.answer,
        result=park.result if ended is StepStatus.COMPLETED else None,
        child_error=park.child_error or "" if ended not in (None, StepStatus.COMPLETED) else None,
    )


def baggage_of(assigned: Assignment) -> State:
    return NO_BAGGAGE if assigned.baggage is None else State.from_json(assigned.baggage)
