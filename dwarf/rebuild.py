"""Any step's input and any final state, rebuilt from history alone by the functions that made them.

History holds what every finished step changed; a branch's first row says where it was spawned, a fan-out source's row
which branches it opened. That is enough: `rebuild_input` serves `step()`, forks and damaged rows, `rebuild_final_state`
flows that were ended from outside. Documents and deltas (`dwarf.inputs`) are shortcuts to the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from dwarf.changes import NOTHING, Changes
from dwarf.errors import NotFound
from dwarf.graph import Graph
from dwarf.inputs import Input, branch_input, contribution, extend, join, override
from dwarf.record import Via
from dwarf.routing import Route, plan_of, route_normal
from dwarf.state import State
from dwarf.status import StepStatus
from dwarf.values import Fields

NO_OVERRIDES: Mapping[tuple[int, int], Fields] = MappingProxyType({})


class HistoryRow(msgspec.Struct, kw_only=True):
    """A finished step, as far as rebuilding goes.

    `parent_branch`, `parent_seq` and `ordinal` are set on a branch's first row, `fan_first` and `fan_size` on the row of
    a fan-out source: its branches are numbered from `fan_first`.
    """

    branch: int
    seq: int
    task: str
    status: StepStatus = StepStatus.COMPLETED
    via: Via = Via.NORMAL
    changes: Changes = NOTHING
    error: str = ""
    parent_branch: int | None = None
    parent_seq: int | None = None
    ordinal: int | None = None
    fan_first: int = 0
    fan_size: int = 0


class Rebuild:
    """The history of one flow, with what has been rebuilt of it so far. Nests as deep as cohorts do, not as flows grow.

    `overrides`: what a fork put in the place of some steps' own input, by (branch, seq).
    """

    def __init__(
        self, graph: Graph, initial: State, rows: Iterable[HistoryRow], overrides: Mapping[tuple[int, int], Fields] = NO_OVERRIDES
    ) -> None:
        self._graph = graph
        self._reducers = plan_of(graph).reducers
        self._initial = initial
        self.overrides = overrides
        self._rows: dict[int, dict[int, HistoryRow]] = {}
        self._spawned: dict[tuple[int, int], tuple[Input, Route]] = {}
        self._parents: dict[int, tuple[int, int, int]] = {}
        for row in rows:
            self._rows.setdefault(row.branch, {})[row.seq] = row
            if row.fan_size:
                for ordinal in range(row.fan_size):
                    self._parents[row.fan_first + ordinal] = (row.branch, row.seq, ordinal)

    def input(self, branch: int, seq: int) -> State:
        """Return what step (branch, seq) was, or would be, given. Raises `NotFound` when history has no way to it."""
        return self.step_input(branch, seq).state

    def step_input(self, branch: int, seq: int) -> Input:
        """Return the same with what it takes to store it, standing on nothing that is stored already."""
        return self._overridden(self._walk(branch, seq), branch, seq)

    def spread(self, branch: int, seq: int) -> Input:
        """Return what the branches of fan-out source (branch, seq) were spawned from."""
        return extend(self.step_input(branch, seq), self._rows[branch][seq].changes, self._reducers)

    def contribution(self, branch: int) -> Changes:
        """Return what a branch has brought about so far. Raises as `input`, and `ReducerError`."""
        rows = self._rows.get(branch)
        return contribution(self._walk(branch, max(rows) + 1), self._reducers) if rows else NOTHING

    def final_state(self) -> State:
        """Return the state the flow has reached: all that completed steps contributed, folded in branch order."""
        return self._walk(0, max(self._rows.get(0, {0: None})) + 1).state

    def _walk(self, branch: int, seq: int) -> Input:
        """Follow a branch from where it was spawned up to, not including, step `seq`."""
        given = self._start(branch)
        rows = self._rows.get(branch, {})
        for place in range(1, seq):
            row = rows.get(place)
            if row is None:
                raise NotFound(f"history has no step {place} of branch {branch}")
            given = extend(self._overridden(given, branch, place), row.changes, self._reducers)
            if row.fan_size:
                given = self._join(row, given)
        return given

    def _overridden(self, given: Input, branch: int, seq: int) -> Input:
        return override(given, self.overrides[branch, seq]) if (branch, seq) in self.overrides else given

    def _start(self, branch: int) -> Input:
        if branch == 0:
            return Input(dict(self._initial.enacted().raw_fields()))
        try:
            parent, parent_seq, ordinal = self._parents[branch]
        except KeyError:
            raise NotFound(f"history does not say where branch {branch} was spawned") from None
        if (parent, parent_seq) not in self._spawned:
            # The cohort itself is not folded: that may be impossible, and is no matter of one branch.
            self._spawn(self._rows[parent][parent_seq], self.spread(parent, parent_seq))
        spawned, route = self._spawned[parent, parent_seq]
        return branch_input(spawned, branch, route.branch(ordinal)[1])

    def _spawn(self, row: HistoryRow, spawned: Input) -> Route:
        """Note what the branches of a fan-out were spawned from."""
        route = route_normal(self._graph, row.task, spawned.state)
        self._spawned[row.branch, row.seq] = spawned, route
        return route

    def _join(self, row: HistoryRow, spawned: Input) -> Input:
        route = self._spawn(row, spawned)
        branches = range(row.fan_first, row.fan_first + row.fan_size)
        return join(spawned, (self.contribution(branch) for branch in branches), route.aliases, self._reducers)
