"""What a claimed row asks for, and what must be stored once that is done: the two ends of `dwarf.decide`.

A `Record` is all bytes and small numbers. The dispatcher sorts, joins and passes them on and never decodes user state;
the database applies one record to one level of the tree: its own row, the rows it creates, one joining row, one caller.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from dwarf.changes import NOTHING, Changes
from dwarf.inputs import Input, Position
from dwarf.outcome import clean_error
from dwarf.status import StepStatus
from dwarf.values import EMPTY_OBJECT


class Todo(IntEnum):
    """What a claimable row asks for."""

    RUN = 0
    FOLD = 1  # a complete cohort: fold it, then run the fan-in's task
    RESOLVE = 2  # a complete cohort with a failed or cancelled member: no task runs
    CANCEL = 3  # take the onError edge with the cancellation, or end cancelled; a fan-in is folded first
    EXPAND = 4  # create the next branches of a fan-out


class Kind(IntEnum):
    """How a record changes the tree."""

    ADVANCE = 1  # the branch goes on with `task`
    FAN_OUT = 2  # `branches` are created, of `size` in all; the row becomes (or stays) the joining row of `task`
    ARRIVE = 3  # the branch ends and counts at its joining row
    PARK = 4  # the step waits for a resume or for a child
    RETRY = 5  # the step runs again after `delay`
    CLOSE = 6  # the flow ends
    NONE = 7  # nothing is stored: the step goes back as it was


class Via(IntEnum):
    """How the step was left: the history's `route`."""

    NORMAL = 0
    GOTO = 1
    ERROR = 2
    CANCEL = 3
    RESOLVE = 4  # a fan-in that never ran: its cohort had a failed or cancelled member


class ClaimedStep(msgspec.Struct):
    """A claimed row, as far as deciding goes.

    `branch` and `seq` name the step, `lease` the claim. `in_cohort`: the branch ends at a fan-in. `source` is the fan-out
    source of a joining or expanding row, `expanded` how many of its branches exist already. `folded`: `input` holds what
    the branches contributed (`dwarf.cohorts.fold_join`).
    """

    branch: int
    seq: int
    task: str
    input: Input
    lease: int = 0
    todo: Todo = Todo.RUN
    in_cohort: bool = False
    source: str = ""
    expanded: int = 0
    folded: bool = False


class Member(msgspec.Struct):
    """A branch of a complete cohort, as its last history row tells it."""

    ordinal: int
    status: StepStatus = StepStatus.COMPLETED
    contribution: Changes = NOTHING
    error: str = ""
    step_id: int = 0


class NewBranch(msgspec.Struct):
    """A branch to create: its task, its place in the cohort, and the delta that holds its element."""

    ordinal: int
    task: str
    delta: bytes | None = None


class Child(msgspec.Struct):
    """A child flow to start: the URL of its graph and its initial state."""

    url: str
    input: bytes


class Record(msgspec.Struct, kw_only=True):
    """What to store for one claimed row.

    History: `status`, `via`, `goto`, `error`, `changes`, `contribution` (where the branch's differs from `changes`),
    `snapshot` (a document of `dwarf.inputs`). Successor: `task`, `base`, `delta` (None keeps the row's old one),
    `delta_always` (also when the successor starts at once), `delay` in seconds. A flow that closes gets the
    `status` of its step, with `final_state` and `error`. `kept` are the writes that a retried or
    parked step keeps.
    """

    kind: Kind
    branch: int
    seq: int
    lease: int = 0
    status: StepStatus = StepStatus.COMPLETED
    via: Via = Via.NORMAL
    goto: str = ""
    error: str = ""
    changes: bytes = b"{}"
    contribution: bytes | None = None
    snapshot: bytes | None = None
    task: str = ""
    base: Position | None = None
    delta: bytes | None = None
    delta_always: bool = False
    delay: float = 0.0
    size: int = 0
    branches: list[NewBranch] = []
    expanded: int = 0
    final_state: bytes = b""
    payload: bytes | None = None
    child: Child | None = None
    kept: bytes | None = None
    next_input: Input | None = None  # stays in the executor: what a successor that starts at once reads

    @classmethod
    def of_failure(cls, step: tuple[int, int, int], error: str, *, in_cohort: bool) -> Record:
        """Return what to store for a step, by (branch, seq, lease), of which nothing but its error can be: no edge is taken."""
        branch, seq, lease = step
        return cls(
            kind=Kind.ARRIVE if in_cohort else Kind.CLOSE,
            branch=branch,
            seq=seq,
            lease=lease,
            status=StepStatus.FAILED,
            via=Via.ERROR,
            error=clean_error(error),
            final_state=b"" if in_cohort else EMPTY_OBJECT,
        )
