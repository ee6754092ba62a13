"""The heart: from a finished step to what must be stored. Pure; no clock, no I/O, no counting of siblings.

    decide          what a task did            -> Record     todo RUN, and FOLD once it is folded
    fail            an error of the step       -> Record     its onError edge, or the end of the branch
    cancel          a delivered cancellation   -> Record     todo CANCEL
    give_back       nothing happened           -> Record

`dwarf.cohorts` has the folding half: fold_join, resolve and expand_slice. A task's return value finds its successors
here: `decide` looks at signals, `_route` at transitions, `_advance` and its neighbours write the record. Who stores an
arrival counts it and sets what the joining row then asks for: `sql/functions/count_down_v1.sql`, and for the reference runner
`settle_cohort` in `dwarf.testing.memory`.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from dwarf.changes import NOTHING, Changes, fold
from dwarf.effect import ON_ERROR_FIELD, Effect, Failure, Interrupt, engine_failure
from dwarf.errors import ReducerError, StateValueError
from dwarf.graph import END, Graph
from dwarf.inputs import DELTA_BYTES_MAX, Document, Input, contribution, delta, extend, needs_snapshot, snapshot
from dwarf.limits import SEQ_MAX, SLICE_BRANCHES_MAX, VALUE_BYTES_MAX
from dwarf.record import Child, ClaimedStep, Kind, NewBranch, Record, Via
from dwarf.routing import Route, RoutingError, arrives, error_target, plan_of, route_goto, route_normal
from dwarf.state import State
from dwarf.status import StepStatus
from dwarf.values import EMPTY_OBJECT

_encode = msgspec.json.encode


def decide(graph: Graph, step: ClaimedStep, effect: Effect) -> Record:
    """Return what to store for a step whose task ran. Never raises for anything a task or a graph can do."""
    if effect.failure is not None:
        return fail(graph, step, effect.failure)
    signals = [bool(effect.goto), effect.retry is not None, effect.park is not None]
    if sum(signals) > 1:
        asked = [name for name, on in zip(("goto", "retry", _park_name(effect)), signals, strict=True) if on]
        return fail(graph, step, engine_failure(f"task {step.task!r} asked for {' and '.join(asked)} in one run; one is allowed"))
    if effect.retry is not None:
        delay = effect.retry.delay + effect.sleep
        return _record(step, Kind.RETRY, StepStatus.PENDING, kept=effect.changes.encode(), delay=delay)
    if effect.park is not None:
        return _park(step, effect)
    return _finish(graph, step, effect.changes, goto=effect.goto, delay=effect.sleep)


def fail(graph: Graph, step: ClaimedStep, failure: Failure) -> Record:
    """Return what to store for a step that failed: its onError edge when it has one and may take it, else the failure."""
    target = None if failure.by_engine else error_target(graph, step.task)
    if target is None:
        return _fail(graph, step, failure, StepStatus.FAILED, Via.ERROR)
    changes = Changes({ON_ERROR_FIELD: failure.on_error_value()})
    return _finish(graph, step, changes, via=Via.ERROR, target=target, error=failure.text)


def cancel(graph: Graph, step: ClaimedStep, reason: str) -> Record:
    """Deliver a cancellation to a step: through its onError edge when it has one, else the branch ends cancelled."""
    failure = cancellation(reason)
    target = error_target(graph, step.task)
    if target is None:
        return _fail(graph, step, failure, StepStatus.CANCELLED, Via.CANCEL)
    changes = Changes({ON_ERROR_FIELD: failure.on_error_value()})
    return _finish(graph, step, changes, via=Via.CANCEL, target=target, error=failure.text)


def cancellation(reason: str) -> Failure:
    """Describe a cancellation as the error that handlers read: status 499, and the properties `cancelled` and `reason`."""
    properties = {"cancelled": Raw(b"true"), "reason": Raw(_encode(reason))}
    return Failure(f"cancelled: {reason}" if reason else "cancelled", 499, properties)


def give_back(step: ClaimedStep) -> Record:
    """Return the record of a step that was not run after all: nothing is stored, it is claimable as it was."""
    return _record(step, Kind.NONE, StepStatus.PENDING)


def _finish(
    graph: Graph,
    step: ClaimedStep,
    changes: Changes,
    *,
    goto: str = "",
    delay: float = 0.0,
    via: Via = Via.NORMAL,
    target: str = "",
    error: str = "",
) -> Record:
    """Store a completed step: fold its writes, choose its route, and go on, fan out, arrive or close."""
    try:
        after = extend(step.input, changes, plan_of(graph).reducers)
        route = _route(graph, step, after.state, goto=goto, target=target)
        arriving = arrives(graph, step.task, route.target, in_cohort=step.in_cohort) if not route.arms else False
        if step.in_cohort and not route.target:
            raise RoutingError(f"no transition of task {step.task!r} matched inside a fan-out, so its branch cannot converge")
        if step.seq >= SEQ_MAX and not arriving and route.target not in ("", END):
            raise RoutingError(f"task {step.task!r} is step {SEQ_MAX} of its branch; no more are allowed")
        record = _record(step, Kind.ADVANCE, StepStatus.COMPLETED, via=Via.GOTO if goto else via, goto=goto, error=error, delay=delay)
        record.changes = changes.encode()
        if route.arms:
            return _fan_out(graph, step, record, after, route)
        if arriving:
            return _arrive(graph, step, record, after)
        if route.target in ("", END):
            return _close(record, StepStatus.COMPLETED, after.state)
        return _advance(graph, step, record, after, route.target)
    except RoutingError as problem:
        return _fail(graph, step, engine_failure(str(problem)), StepStatus.FAILED, Via.ERROR)
    except (ReducerError, StateValueError) as problem:
        return _fail(graph, step, engine_failure(f"task {step.task!r}: {problem}"), StepStatus.FAILED, Via.ERROR)


def _route(graph: Graph, step: ClaimedStep, state: State, *, goto: str, target: str) -> Route:
    if target:
        return Route(target)
    if goto:
        return route_goto(graph, step.task, goto)
    return route_normal(graph, step.task, state)


def _advance(graph: Graph, step: ClaimedStep, record: Record, after: Input, task: str) -> Record:
    record.task = task
    rest = delta(after)
    too_large = rest is not None and len(rest) > DELTA_BYTES_MAX
    if needs_snapshot(after) or (step.folded and too_large):  # what was folded cannot be read from the branch's own history
        record.snapshot, after = snapshot(after, (step.branch, step.seq), plan_of(graph).reducers)
        rest = delta(after)
    record.base, record.next_input = after.chain[-1], after
    record.delta = None if too_large and record.snapshot is None else rest
    record.delta_always = step.folded or record.snapshot is not None
    return record


def _fan_out(graph: Graph, step: ClaimedStep, record: Record, after: Input, route: Route) -> Record:
    """Open a cohort: the branches all stand on one document, which the source's own history row holds."""
    record.snapshot, after = snapshot(after, (step.branch, step.seq), plan_of(graph).reducers)
    record.kind, record.task, record.size = Kind.FAN_OUT, route.target, route.width
    record.base, record.delta, record.delta_always = after.chain[-1], delta(after), True
    record.branches = branches_from(route, 0)
    record.expanded = len(record.branches)
    record.next_input = after
    return record


def branches_from(route: Route, first: int) -> list[NewBranch]:
    """Return the branches of a fan-out from place `first` on, at most one slice of them."""
    made = []
    for ordinal in range(first, min(first + SLICE_BRANCHES_MAX, route.width)):
        task, alias = route.branch(ordinal)
        made.append(NewBranch(ordinal, task, Document(alias=alias).encode() if alias else None))
    return made


def _arrive(graph: Graph, step: ClaimedStep, record: Record, after: Input) -> Record:
    record.kind = Kind.ARRIVE
    whole = contribution(after, plan_of(graph).reducers).encode()
    record.contribution = whole if whole != record.changes else None
    return record


def _close(record: Record, status: StepStatus, state: State) -> Record:
    final = state.to_json()
    if len(final) > VALUE_BYTES_MAX:
        raise StateValueError(f"the final state takes {len(final)} bytes; at most {VALUE_BYTES_MAX} are allowed")
    record.kind, record.status, record.final_state = Kind.CLOSE, status, final
    return record


def _fail(graph: Graph, step: ClaimedStep, failure: Failure, status: StepStatus, via: Via) -> Record:
    """End the branch: on the trunk the flow closes with what the step was given, in a cohort the branch arrives as failed."""
    record = _record(step, Kind.CLOSE, status, via=via, error=failure.text)
    if step.in_cohort:
        record.kind = Kind.ARRIVE
        try:
            whole = contribution(step.input, plan_of(graph).reducers)
        except ReducerError:
            whole = NOTHING
        record.contribution = whole.encode() if whole else None
        return record
    record.final_state = step.input.state.to_json()
    if len(record.final_state) > VALUE_BYTES_MAX:
        record.final_state = EMPTY_OBJECT
    return record


def _park(step: ClaimedStep, effect: Effect) -> Record:
    park = effect.park
    kept = effect.changes.encode()
    if isinstance(park, Interrupt):
        return _record(step, Kind.PARK, StepStatus.INTERRUPTED, kept=kept, payload=park.payload)
    assert park is not None
    return _record(step, Kind.PARK, StepStatus.PARKED, kept=kept, child=Child(park.url, park.input))


def _park_name(effect: Effect) -> str:
    return "interrupt" if isinstance(effect.park, Interrupt) else "subgraph"


def _record(step: ClaimedStep, kind: Kind, status: StepStatus, **parts: object) -> Record:
    return Record(kind=kind, branch=step.branch, seq=step.seq, lease=step.lease, status=status, **parts)  # type: ignore[arg-type]


def visible_state(given: Input, kept: Changes) -> State:
    """Return what an interrupted step shows: its input with the writes it keeps applied as they were made."""
    return State.of(fold(given.fields, kept, {}))
