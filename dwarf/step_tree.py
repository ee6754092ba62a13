"""A history as its readers see it, made of the rows of a flow and of the children below it: which step led to which, what
is nested where. Pure; nothing here recurses: children may nest a thousand deep.

Edges follow from the numbers of steps. In a branch, (branch, seq) leads to (branch, seq + 1). A fan-out source leads to the
first steps of its branches, and the last step of each branch to the fan-in, which stands in the source's own branch right
behind the source. The fan-in names the member that ended last as its predecessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from dwarf.batch import STATUS_OF
from dwarf.keys import FlowKey, step_id
from dwarf.read_rows import StepRow
from dwarf.status import StepStatus
from dwarf.steps import Step, order_history

_WAITING = (StepStatus.INTERRUPTED, StepStatus.PARKED)

Place = tuple[int, int]  # branch, seq


class FlowFacts(msgspec.Struct):
    """What its steps do not say of a flow."""

    key: FlowKey
    workflow_url: str
    workflow_name: str
    url_of: Callable[[str], str]


class _Flow:
    """One flow of the tree: its steps by place, and what leads to what among them."""

    def __init__(self, facts: FlowFacts, caller: tuple[_Flow, StepRow] | None) -> None:
        self.facts = facts
        self.caller = caller
        self.rows: dict[Place, StepRow] = {}
        self.last: dict[int, StepRow] = {}  # of each branch
        self.children: dict[Place, _Flow] = {}

    def add(self, row: StepRow) -> None:
        self.rows[row.branch, row.seq] = row
        last = self.last.get(row.branch)
        if last is None or last.seq < row.seq:
            self.last[row.branch] = row

    @property
    def entry(self) -> StepRow | None:
        return self.rows.get((0, 1))

    @property
    def end(self) -> StepRow | None:
        return self.last.get(0)

    def key(self, row: StepRow) -> str:
        return str(self.facts.key.step(step_id(row.branch, row.seq)))

    def before(self, row: StepRow) -> StepRow | None:
        """Return the step that led to `row`; of a fan-in the member that ended last."""
        if row.seq == 1:
            return None if row.branch == 0 else self.rows.get((row.parent_branch or 0, row.parent_seq or 0))
        before = self.rows.get((row.branch, row.seq - 1))
        if before is not None and before.fan_size:
            first = before.fan_first or 0
            members = [last for branch in range(first, first + before.fan_size) if (last := self.last.get(branch)) is not None]
            return max(members, key=lambda member: (member.updated_at, member.branch), default=before)
        return before

    def after(self, row: StepRow) -> StepRow | None:
        """Return the step that `row` led to; of a fan-out source the first branch."""
        if row.fan_size:
            return self.rows.get((row.fan_first or 0, 1))
        after = self.rows.get((row.branch, row.seq + 1))
        if after is None and row.branch != 0:
            first = self.rows.get((row.branch, 1))
            if first is not None and first.parent_seq is not None:
                return self.rows.get((first.parent_branch or 0, first.parent_seq + 1))
        return after


def build_history(rows: Iterable[StepRow], flows: Mapping[int, FlowFacts], root: int) -> list[Step]:
    """Return the history of flow `root`. Rows of flows that are not in `flows`, and children nobody knows, are left out."""
    by_flow: dict[int, list[StepRow]] = {}
    for row in rows:
        by_flow.setdefault(row.flow_id, []).append(row)
    tree = _nest(by_flow, flows, root)
    histories: dict[int, list[Step]] = {}
    for flow in reversed(tree):
        steps = [_step(flow, row, histories) for row in flow.rows.values()]
        histories[id(flow)] = steps
    return order_history(histories[id(tree[0])])


def _nest(by_flow: Mapping[int, list[StepRow]], flows: Mapping[int, FlowFacts], root: int) -> list[_Flow]:
    """Return the flows of the tree, every one before those it called."""
    tree = [_Flow(flows[root], None)]
    for flow in tree:
        for row in by_flow.get(flow.facts.key.flow_id, ()):
            flow.add(row)
            if row.child_id is not None and row.child_id in flows:
                child = flow.children[row.branch, row.seq] = _Flow(flows[row.child_id], (flow, row))
                tree.append(child)
    return tree


def _step(flow: _Flow, row: StepRow, histories: Mapping[int, list[Step]]) -> Step:
    child = flow.children.get((row.branch, row.seq))
    status = STATUS_OF[row.status]
    before, after = flow.before(row), flow.after(row)
    return Step(
        step_key=flow.key(row),
        step_id=step_id(row.branch, row.seq),
        step_depth=row.depth,
        task_name=row.task,
        task_url=flow.facts.url_of(row.task),
        attempt=row.attempt,
        status=status,
        parked=status in _WAITING,
        error=row.error or "",
        predecessor_key=flow.key(before) if before is not None else "",
        successor_key=flow.key(after) if after is not None else "",
        previous_key=_previous(flow, row),
        next_key=_next(flow, row),
        subgraph=row.child_id is not None,
        sub_workflow_url=child.facts.workflow_url if child else "",
        sub_workflow_name=child.facts.workflow_name if child else "",
        sub_flow_key=str(child.facts.key) if child else "",
        sub_history=histories[id(child)] if child else [],
        engine_id=row.engine_id or 0,
        created_at=row.created_at,
        started_at=row.started_at,
        updated_at=row.updated_at,
    )


def _previous(flow: _Flow, row: StepRow) -> str:
    """Return the key of the step that ran before: out of a child through its caller, into one at its end."""
    found = flow.before(row)
    while found is None:
        if flow.caller is None:
            return ""
        flow, row = flow.caller
        found = flow.before(row)
    while (child := flow.children.get((found.branch, found.seq))) is not None and child.end is not None:
        flow, found = child, child.end
    return flow.key(found)


def _next(flow: _Flow, row: StepRow) -> str:
    """Return the key of the step that ran next: out of a child through its caller, into one at its entry."""
    found = flow.after(row)
    while found is None:
        if flow.caller is None:
            return ""
        flow, row = flow.caller
        found = flow.after(row)
    while (child := flow.children.get((found.branch, found.seq))) is not None and child.entry is not None:
        flow, found = child, child.entry
    return flow.key(found)
