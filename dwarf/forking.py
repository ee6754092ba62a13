"""What a fork copies of a flow that has ended, and where it starts again. Pure: rows in, rows out.

A fork is a new flow that begins in the middle. Of the flow that holds the chosen step, and of each caller above it, it gets a
copy whose branches stop at the same place: behind the last step before the chosen one, or before the caller's.

    in the chosen step's branch         the steps before it, with the whole cohorts that they opened; the step is due
    in the branch that spawned it       the steps up to the source of its cohort; the fan-in waits, with all that have arrived
    its siblings in the cohort          as they ended; those that never settled count as cancelled and bring what they had done
    further out                         the same again, up to the trunk
    in a caller                         the same; the caller's step is parked on the copy of the child
    children of copied steps            as they are (that is for the database, which finds them)

What the rows of a copy stand on is rebuilt from history and stored anew, with the steps before them: a document with the chosen
step's whole input, overrides included, and one for each source around it. The first step of a branch has none before it: its
overrides travel in its row's delta. The first step of a flow is given another initial state instead. Overrides of earlier forks
hold for copied steps and for the chosen one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from dwarf.errors import Conflict, NotFound, ReducerError
from dwarf.graph import Graph
from dwarf.inputs import START, Document, Input, Position, override
from dwarf.rebuild import HistoryRow, Rebuild
from dwarf.record import Via
from dwarf.routing import RoutingError, plan_of
from dwarf.status import StepStatus
from dwarf.values import EMPTY_OBJECT, Fields

Place = tuple[int, int]  # branch, seq

ALL = (1 << 31) - 1  # of a branch's steps
PENDING, JOINING, PARKED = 1, 3, 5  # a row's status as it is stored
_SETTLED = (StepStatus.COMPLETED, StepStatus.FAILED)
_ENDED = (*_SETTLED, StepStatus.CANCELLED, StepStatus.TERMINATED)
_encode = msgspec.json.encode


class PastStep(HistoryRow, kw_only=True):
    """A finished step, as far as forking goes."""

    depth: int
    attempt: int = 0
    child_id: int | None = None
    kept: bytes | None = None  # what it had written when it called that child


class Due(msgspec.Struct, kw_only=True):
    """A row that the copy begins with: a step that is due, or one that waits for its child, or a fan-in for its cohort."""

    branch: int
    seq: int
    task: str
    depth: int
    status: int
    attempt: int = 0
    base: Position = START
    delta: bytes | None = None
    join_branch: int | None = None
    ordinal: int | None = None
    size: int | None = None
    arrived: int | None = None
    failed: int | None = None


class Cut(msgspec.Struct, kw_only=True):
    """One flow as it is copied.

    `kept` says up to which step each branch is copied, `documents` what stands with copied steps in place of their own, `input`
    what the copy is created with if not with the same. `cancelled` are copied steps that had not settled, with what their
    branches bring to the fan-in. `failed` are branches that have arrived at a fan-in which waits, as failed ones. `kept_writes`:
    what a caller's step had written when it called its child. `overrides`: those of the steps at which the copy goes on.
    """

    kept: dict[int, int] = {}
    steps: int = 0
    rows: list[Due] = []
    documents: dict[Place, bytes] = {}
    input: bytes | None = None
    cancelled: dict[Place, bytes] = {}
    failed: list[Place] = []
    kept_writes: bytes | None = None
    overrides: dict[Place, Fields] = {}


class Past:
    """A flow that has ended: its steps by place, and where its branches came from."""

    def __init__(self, rows: Iterable[PastStep]) -> None:
        self.rows: dict[int, dict[int, PastStep]] = {}
        self.spawned: dict[int, tuple[int, int, int]] = {}  # branch -> branch and seq of its source, and its place in the cohort
        for row in rows:
            self.rows.setdefault(row.branch, {})[row.seq] = row
            for ordinal in range(row.fan_size):
                self.spawned[row.fan_first + ordinal] = (row.branch, row.seq, ordinal)

    def step(self, place: Place) -> PastStep | None:
        """Return a step that ran, or was to run, a task."""
        row = self.rows.get(place[0], {}).get(place[1])
        return None if row is None or row.via is Via.RESOLVE else row

    def last(self, branch: int) -> PastStep:
        steps = self.rows[branch]
        return steps[max(steps)]

    def members(self, source: PastStep) -> list[int]:
        """Return the branches of a cohort that had been made."""
        return [branch for branch in range(source.fan_first, source.fan_first + source.fan_size) if branch in self.rows]

    def outward(self, branch: int) -> list[Place]:
        """Return the sources around a branch, the nearest first."""
        around = []
        while branch:
            parent, seq, _ = self.spawned[branch]
            around.append((parent, seq))
            branch = parent
        return around


def stops(past: Past, places: Iterable[Place]) -> dict[int, int]:
    """Return where each branch that goes on does so, by branch: at one of `places`, or at a fan-in that waits for one.

    Raises `NotFound` for a place where there was no step, `Conflict` when one of them comes before another.
    """
    found: dict[int, int] = {}
    for branch, seq in places:
        if past.step((branch, seq)) is None or (branch and branch not in past.spawned):
            raise NotFound(f"there is no step {seq} of branch {branch}")
        for at, stop in [(branch, seq), *((parent, behind + 1) for parent, behind in past.outward(branch))]:
            if found.setdefault(at, stop) != stop:
                raise Conflict("of two steps to run again one comes before the other")
    return found


def failed_places(past: Past) -> list[Place]:
    """Return the steps for which a flow failed: the last one of the trunk, or of each branch that failed in the last cohort."""
    found: list[Place] = []
    left = [0]
    while left:
        last = past.last(left.pop())
        if last.status is not StepStatus.FAILED:
            continue
        if last.via is not Via.RESOLVE:
            found.append((last.branch, last.seq))
        else:
            left += past.members(past.rows[last.branch][last.seq - 1])
    return found


class Fork:
    """The copying of one flow. `places` are those where it goes on, each with its overrides.

    `child_id` is the flow whose caller the place is, for all but the one in which steps run again.
    """

    def __init__(
        self,
        graph: Graph,
        past: Past,
        rebuild: Rebuild,
        places: Mapping[Place, Fields],
        *,
        child_id: int | None = None,
    ) -> None:
        self._graph, self._past, self._rebuild = graph, past, rebuild
        self._places, self._child_id = places, child_id

    def cut(self) -> Cut:
        """Return the copy; a caller's step is parked on its child. Raises as `stops`, and `Conflict` where what is stored forbids it."""
        stop = stops(self._past, self._places)
        made = Cut(kept=self._kept(stop))
        for branch, last in made.kept.items():
            for seq, row in self._past.rows.get(branch, {}).items():
                if seq <= last:
                    made.steps += 1
                    _check_ended(row)
        for place, overrides in self._places.items():
            made.overrides[place] = {**self._rebuild.overrides.get(place, {}), **overrides}
            made.rows.append(self._going_on(made, place, overrides))
        for source in {source for branch, _ in self._places for source in self._past.outward(branch)}:
            made.rows.append(self._waiting(made, source, stop))
        return made

    def _kept(self, stop: Mapping[int, int]) -> dict[int, int]:
        """Return up to which step each branch is kept; one that is not named is not kept at all."""
        kept: dict[int, int] = {}
        left = [0]
        while left:
            branch = left.pop()
            last = kept[branch] = stop[branch] - 1 if branch in stop else ALL
            for seq, row in self._past.rows.get(branch, {}).items():
                if row.fan_size and seq <= last:
                    left += self._past.members(row)
        return kept

    def _going_on(self, made: Cut, place: Place, overrides: Fields) -> Due:
        """Return the row of a step that runs again, or is a caller's; put what it stands on."""
        branch, seq = place
        step = self._past.rows[branch][seq]
        due = Due(branch=branch, seq=seq, task=step.task, depth=step.depth, status=PENDING)
        if self._child_id is not None:
            due.status = PARKED
            if step.child_id == self._child_id:  # else the call was made in an earlier attempt, nobody knows which
                due.attempt, made.kept_writes = step.attempt, step.kept
        if branch:
            parent, parent_seq, due.ordinal = self._past.spawned[branch]
            due.join_branch, due.base = parent, (parent, parent_seq)
        given = override(self._given(place), overrides)
        if seq > 1:
            due.base = (branch, seq - 1)
            made.documents[due.base] = self._whole(given)
        elif branch:
            due.delta = Document(alias=given.alias, exact=given.exact).encode() if given.alias or given.exact else None
        elif overrides:
            made.input = _encode(given.fields)
        return due

    def _given(self, place: Place) -> Input:
        try:
            return self._rebuild.step_input(*place)
        except (ReducerError, RoutingError) as error:
            raise Conflict(
                f"what step {place[1]} of branch {place[0]} was to be given cannot be folded: {error}; fork a step before it"
            ) from error

    def _whole(self, given: Input) -> bytes:
        """Return a document with an input: alone in the trunk, in a branch on top of what that was spawned from."""
        if not given.branch:
            return Document(state=Raw(_encode(given.fields))).encode()
        below = list(reversed(self._past.outward(given.branch)))
        net = Raw(given.net.encode()) if given.net else Raw()
        return Document(on=below, alias=given.alias, net=net, exact=given.exact).encode()

    def _waiting(self, made: Cut, source: Place, stop: Mapping[int, int]) -> Due:
        """Return the row of a fan-in that waits for those of its cohort that go on; note those that had not settled, or failed."""
        branch, seq = source
        made.documents[source] = self._whole(self._rebuild.spread(branch, seq))
        spawning = self._past.rows[branch][seq]
        members = self._past.members(spawning)
        arrived = [self._past.last(member) for member in members if member not in stop]
        failed = [(last.branch, last.seq) for last in arrived if last.status is StepStatus.FAILED]
        made.failed += failed
        made.cancelled |= {(last.branch, last.seq): self._brought(last.branch) for last in arrived if last.status not in _SETTLED}
        _, _, ordinal = self._past.spawned.get(branch, (None, None, None))
        return Due(
            branch=branch,
            seq=seq + 1,
            task=plan_of(self._graph).nodes[spawning.task].fan_in or "",
            depth=max([spawning.depth, *(last.depth for last in arrived)]) + 1,
            status=JOINING,
            base=source,
            join_branch=self._past.spawned[branch][0] if branch else None,
            ordinal=ordinal,
            size=len(members),
            arrived=len(arrived),
            failed=len(failed),
        )

    def _brought(self, branch: int) -> bytes:
        try:
            return self._rebuild.contribution(branch).encode()
        except (ReducerError, RoutingError):
            return EMPTY_OBJECT


def _check_ended(row: PastStep) -> None:
    if row.status not in _ENDED:
        raise Conflict(f"step {row.seq} of branch {row.branch} is {row.status.value} though its flow has ended: it cannot be copied")
