"""The folding half of deciding: what happens to a joining row once its branches are there, and how it gets them.

    expand_slice   the next branches of a fan-out                  -> Record        todo EXPAND
    fold_join      a complete cohort                               -> the fan-in's step, ready to run     todo FOLD
    resolve        a complete cohort with a failed member          -> Record        todo RESOLVE

Whoever stores does the counting and hands the members over; nothing here knows when the last one arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dwarf.changes import Changes
from dwarf.decide import branches_from, cancellation, fail
from dwarf.effect import engine_failure
from dwarf.errors import ReducerError
from dwarf.graph import Graph
from dwarf.inputs import Input, contribution, delta, join
from dwarf.limits import VALUE_BYTES_MAX
from dwarf.record import ClaimedStep, Kind, Member, Record, Via
from dwarf.routing import plan_of, route_normal
from dwarf.status import StepStatus
from dwarf.values import EMPTY_OBJECT


def expand_slice(graph: Graph, step: ClaimedStep) -> Record:
    """Return the record that creates the next branches; `step.expanded` exist already."""
    route = route_normal(graph, step.source, step.input.state)
    branches = branches_from(route, step.expanded)
    return Record(
        kind=Kind.FAN_OUT,
        branch=step.branch,
        seq=step.seq,
        lease=step.lease,
        task=route.target,
        base=step.input.chain[-1],
        delta=delta(step.input),
        size=route.width,
        branches=branches,
        expanded=step.expanded + len(branches),
        next_input=step.input,
    )


def fold_join(graph: Graph, step: ClaimedStep, contributions: Iterable[Changes]) -> ClaimedStep | Record:
    """Return the fan-in's step with the contributions, in branch order, folded into its input.

    A contribution that does not fit its reducer fails the step: then the `Record` of that is returned.
    """
    try:
        folded = _folded(graph, step, contributions)
    except ReducerError as error:
        record = fail(graph, step, engine_failure(f"task {step.task!r}: {error}"))
        if record.kind is Kind.CLOSE:
            record.final_state = EMPTY_OBJECT
        return record
    return msgspec.structs.replace(step, input=folded, folded=True)


def resolve(graph: Graph, step: ClaimedStep, members: Sequence[Member], *, last: int | None = None, reason: str = "") -> Record:
    """Return the record of a cohort that cannot converge: the flow closes, or the branch around it arrives as failed.

    `members` are all branches in order, with what each contributed before it ended; `last` is the place of the last
    arriver, whose error wins when it failed. A cohort without failed members ends cancelled: some members did, or the
    cancellation, for `reason`, came before all branches existed.
    """
    failed = [member for member in members if member.status is StepStatus.FAILED]
    status = StepStatus.FAILED if failed else StepStatus.CANCELLED
    culprits = failed or [member for member in members if member.status is StepStatus.CANCELLED]
    culprits = culprits or [Member(0, error=cancellation(reason).text)]
    chosen = next((member for member in culprits if member.ordinal == last), None) or min(culprits, key=lambda member: member.step_id)
    record = Record(
        kind=Kind.ARRIVE if step.in_cohort else Kind.CLOSE,
        branch=step.branch,
        seq=step.seq,
        lease=step.lease,
        status=status,
        via=Via.RESOLVE,
        error=chosen.error,
    )
    try:
        folded = _folded(graph, step, (member.contribution for member in members))
        if step.in_cohort:
            whole = contribution(folded, plan_of(graph).reducers)
            record.contribution = whole.encode() if whole else None
        else:
            record.final_state = folded.state.to_json()
    except ReducerError:
        record.contribution = None
    if not step.in_cohort and not 0 < len(record.final_state) <= VALUE_BYTES_MAX:
        record.final_state = EMPTY_OBJECT
    return record


def _folded(graph: Graph, step: ClaimedStep, contributions: Iterable[Changes]) -> Input:
    drops = route_normal(graph, step.source, step.input.state).aliases
    return join(step.input, contributions, drops, plan_of(graph).reducers)
