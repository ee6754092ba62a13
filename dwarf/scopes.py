"""Which fan-in each fan-out converges on, and which tasks run inside which cohort.

A cohort opens where a fan-out source is left by its arms and closes at a fan-in. Every task therefore sits under a fixed
stack of open cohorts, whatever path led to it, and that is what `scopes_of` infers: it walks the graph from the entry
point, pushes the source on every arm, pops at every fan-in, and notes a problem where two paths disagree.

    S -> A, S -> B, A -> J, B -> J, J -> END, J a fan-in          S: []   A: [S]   B: [S]   J: []

* An arm that leads straight to a fan-in opens a cohort and closes it: the source converges on itself.
* A goto or onError edge starts no cohort. From a branch into its fan-in it closes the branch; from a source into the
  source's own fan-in it skips the fan-out and closes nothing. Which of the two it is turns out only when the fan-in of the
  source is known, so such edges wait for it.
* Two sources whose branches meet share one cohort and must share its fan-in (`same` is a union-find over sources). They
  are alternatives, as behind a switch: nothing tells apart which of them a shared task was reached from.

The walk never fails: `Scopes.problems` holds what is wrong (`validate` raises the first), the rest is as good as it gets,
which is what a flow frozen with an older graph needs. It takes time linear in the graph, and never recurses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from dwarf.graph import END, Graph, Transition
from dwarf.limits import COHORT_DEPTH_MAX
from dwarf.names import shown

Stack = tuple[str, ...]  # the sources of the open cohorts, outermost first


class Problem(msgspec.Struct, frozen=True):
    """A broken rule: its identifier, the task or edge where it is broken, and what is wrong there, in words."""

    rule: str
    place: str
    fault: str


class Scopes(msgspec.Struct):
    """`fan_in_of[source]` is where its cohort converges; `inside[task]` the fan-in that a branch at `task` runs towards.

    `inside` has no entry for trunk tasks; `depth[task]` counts the open cohorts.
    """

    fan_in_of: dict[str, str] = {}
    inside: dict[str, str] = {}
    depth: dict[str, int] = {}
    problems: list[Problem] = []


def scopes_of(graph: Graph) -> Scopes:
    """Return the scopes of a graph, worked out once for each version of it."""
    return graph.derived("scopes", _scopes)


def _scopes(graph: Graph) -> Scopes:
    walk = _Walk(graph)
    walk.run()
    return Scopes(
        fan_in_of={source: fan_in for source in walk.sources() if (fan_in := walk.fan_in((source,)))},
        inside={task: fan_in for task, stack in walk.stacks.items() if (fan_in := walk.fan_in(stack))},
        depth={task: len(stack) for task, stack in walk.stacks.items()},
        problems=_problems(walk),
    )


class _Walk:
    """One pass over a graph. `stacks` is what has been inferred, `queue` and `asked` the edges still to follow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.stacks: dict[str, Stack] = {}
        self.entered_by: dict[str, Transition] = {}  # the edge that gave a task its stack; none for the entry point
        self.same: dict[str, str] = {}  # union-find over sources: those whose branches meet
        self.fan_ins: dict[str, str] = {}  # by representative of a cohort
        self.queue: deque[Transition] = deque()
        self.asked: deque[Transition] = deque()  # goto and onError edges: followed when nothing else is left
        self.waiting: dict[str, list[Transition]] = {}  # by representative: edges of its sources into some fan-in
        self.is_last_call = False
        self.too_deep: list[Transition] = []
        self.conflicts: list[tuple[Transition, Stack]] = []  # an edge that reaches its target with another stack than known
        self.strays: list[Transition] = []  # edges into a fan-in from outside any cohort
        self.splits: list[tuple[str, Transition, str, str]] = []  # a source, the edge that gives it a second fan-in, both fan-ins
        self.ends: list[tuple[Transition, Stack]] = []  # edges to END from inside a cohort

    def run(self) -> None:
        if self.graph.entry_point in self.graph:
            self.enter(self.graph.entry_point, ())
        self.drain()
        self.is_last_call = True  # what still waits starts at sources that converge nowhere
        for edges in self.waiting.values():
            self.asked.extend(edges)
        self.drain()

    def drain(self) -> None:
        while self.queue or self.asked:
            if self.queue:
                self.follow(self.queue.popleft())
            else:
                self.follow_request(self.asked.popleft())

    def follow(self, edge: Transition) -> None:
        stack = self.stacks[edge.source]
        if edge.fires_by_itself and self.graph.is_fan_out_source(edge.source):
            stack = (*stack, edge.source)
        if len(stack) > COHORT_DEPTH_MAX:
            self.too_deep.append(edge)
        elif edge.target == END:
            if stack:
                self.ends.append((edge, stack))
        elif self.graph.is_fan_in(edge.target):
            self.converge(edge, stack)
        else:
            self.reach(edge, stack)

    def follow_request(self, edge: Transition) -> None:
        """Follow a goto or onError edge, or let it wait: from a source into a fan-in, it matters whether that is its own."""
        if self.graph.is_fan_out_source(edge.source) and self.graph.is_fan_in(edge.target):
            cohort = self.cohort(edge.source)
            own = self.fan_ins.get(cohort)
            if own is None and not self.is_last_call:
                self.waiting.setdefault(cohort, []).append(edge)
                return
            if own == edge.target:
                self.reach(edge, self.stacks[edge.source])
                return
        self.follow(edge)

    def converge(self, edge: Transition, stack: Stack) -> None:
        if not stack:
            self.strays.append(edge)
            return
        own = self.settle(self.cohort(stack[-1]), edge.target)
        if own == edge.target:
            self.reach(edge, stack[:-1])
        else:
            self.splits.append((stack[-1], edge, own, edge.target))

    def settle(self, cohort: str, fan_in: str) -> str:
        """Give a cohort its fan-in unless it has one; return the one it has."""
        own = self.fan_ins.get(cohort)
        if own is None:
            own = self.fan_ins[cohort] = fan_in
            self.asked.extend(self.waiting.pop(cohort, ()))
        return own

    def reach(self, edge: Transition, stack: Stack) -> None:
        known = self.stacks.get(edge.target)
        if known is None:
            if edge.target in self.graph:
                self.entered_by[edge.target] = edge
                self.enter(edge.target, stack)
        elif len(known) != len(stack):
            self.conflicts.append((edge, stack))
        else:
            for one, other in zip(known, stack, strict=True):
                self.unite(one, other, edge)

    def enter(self, task: str, stack: Stack) -> None:
        self.stacks[task] = stack
        for edge in self.graph.edges_from(task):
            (self.queue if edge.fires_by_itself else self.asked).append(edge)

    def cohort(self, source: str) -> str:
        """Return the source that stands for all whose branches meet those of `source`."""
        while (parent := self.same.get(source, source)) != source:
            self.same[source] = source = self.same.get(parent, parent)
        return source

    def unite(self, one: str, other: str, edge: Transition) -> None:
        one, other = self.cohort(one), self.cohort(other)
        if one == other:
            return
        if len(self.waiting.get(one, ())) < len(self.waiting.get(other, ())):
            one, other = other, one
        self.same[other] = one
        if waiting := self.waiting.pop(other, []):
            self.waiting[one].extend(waiting)  # which is there, since it is the longer list
        fan_in = self.fan_ins.pop(other, None)
        if fan_in is not None and (own := self.settle(one, fan_in)) != fan_in:
            self.splits.append((other, edge, own, fan_in))

    def fan_in(self, stack: Stack) -> str | None:
        """Return the fan-in of the innermost cohort of a stack; None on the trunk, and for a cohort that has none."""
        return self.fan_ins.get(self.cohort(stack[-1])) if stack else None

    def sources(self) -> list[str]:
        """Return the fan-out sources that the walk has met, in the order of the graph."""
        return [task for task in self.graph if task in self.stacks and self.graph.is_fan_out_source(task)]


def _problems(walk: _Walk) -> list[Problem]:
    """Return what the walk has found, causes before their consequences."""
    found: list[Problem] = []
    for edge in walk.too_deep:
        fault = (
            f"the fan-out of {shown(edge.source)} lies in {COHORT_DEPTH_MAX} other fan-outs; fan-outs nest {COHORT_DEPTH_MAX} deep at most"
        )
        found.append(Problem("cohort-depth", edge.source, fault))
    for edge, stack in walk.conflicts:
        found.append(Problem("two-scopes", edge.target, _conflict(walk, edge, stack)))
    for source, edge, own, second in walk.splits:
        fault = f"the branches of {shown(source)} converge on {shown(own)} and, by {edge}, on {shown(second)}; let all lead to one fan-in"
        found.append(Problem("two-fan-ins", source, fault))
    found.extend(_unconverged(walk))
    for edge in walk.strays:
        fault = f"{edge} enters a fan-in, but no fan-out is open at {shown(edge.source)} that could converge there"
        found.append(Problem("fan-in-without-fan-out", edge.target, fault))
    for edge, stack in walk.ends:
        fan_in = walk.fan_in(stack)
        fault = f"{edge} leaves the fan-out of {shown(stack[-1])}; a branch has to lead to the fan-in"
        found.append(Problem("branch-to-end", edge.source, f"{fault} {shown(fan_in)}" if fan_in else fault))
    found.extend(_stuck(walk))
    idle = sorted(set(walk.stacks).difference(walk.fan_ins.values()).intersection(walk.graph.fan_ins))
    fault = "is marked as a fan-in, but no fan-out converges there"
    found.extend(Problem("fan-in-without-fan-out", task, f"{shown(task)} {fault}") for task in idle)
    return found


def _conflict(walk: _Walk, edge: Transition, stack: Stack) -> str:
    first = walk.entered_by.get(edge.target)
    ways = [(walk.stacks[edge.target], f"by {first}" if first else "as the entry point"), (stack, f"by {edge}")]
    where = [f"{_where(stack)} {way}" for stack, way in ways]
    fault = f"task {shown(edge.target)} is reached {where[0]}, and {where[1]}"
    own = dict.fromkeys(e.source for e in (first, edge) if e and e.fires_by_itself and walk.graph.is_fan_out_source(e.source))
    if own:
        fault += f" (where {' and '.join(map(shown, own))} fans out)"
    remedy = "a second task with the same URL can stand in the second place"
    if stack and walk.fan_in(stack) is None:
        remedy += f"; or the fan-out of {shown(stack[-1])} is to converge before: mark the task where with set_fan_in"
    return f"{fault}: {remedy}"


def _where(stack: Stack) -> str:
    if not stack:
        return "outside any fan-out"
    depth = f" ({len(stack)} fan-outs deep)" if len(stack) > 1 else ""
    return f"inside the fan-out of {shown(stack[-1])}{depth}"


def _unconverged(walk: _Walk) -> Iterator[Problem]:
    """Yield the fan-outs without a fan-in, each with the first task where two of its edges meet as a suggestion."""
    missing = [source for source in walk.sources() if walk.fan_in((source,)) is None]
    entered: set[str] = set()
    meeting: dict[str, str] = {}
    for task in walk.stacks if missing else ():
        for edge in walk.graph.edges_from(task):
            stack = walk.stacks.get(edge.target, ())
            if stack and edge.target in entered and edge.fires_by_itself and edge.target != task:
                meeting.setdefault(walk.cohort(stack[-1]), edge.target)
            entered.add(edge.target)
    for source in missing:
        where = meeting.get(walk.cohort(source))
        remedy = f"mark {shown(where)} with set_fan_in" if where else "lead them to one task and mark it with set_fan_in"
        yield Problem("fan-out-without-fan-in", source, f"the branches of {shown(source)} converge on no fan-in: {remedy}")


def _stuck(walk: _Walk) -> Iterator[Problem]:
    """Yield the tasks of a cohort from which no path, over goto and onError too, leads to its fan-in."""
    before: dict[str, list[str]] = {}  # on one level: an inner fan-out counts as a step from its source to its fan-in
    leaving: list[str] = []
    for task, stack in walk.stacks.items():
        fan_in = walk.fan_in(stack)
        if walk.graph.is_fan_out_source(task):
            before.setdefault(walk.fan_in((task,)) or "", []).append(task)
        for edge in walk.graph.edges_from(task):
            if edge.fires_by_itself and walk.graph.is_fan_out_source(task):
                continue
            if edge.target == fan_in:
                leaving.append(task)
            else:
                before.setdefault(edge.target, []).append(task)
    free = set(leaving)
    while leaving:
        for task in before.get(leaving.pop(), ()):
            if task not in free:
                free.add(task)
                leaving.append(task)
    for task, stack in walk.stacks.items():
        fan_in = walk.fan_in(stack)
        if fan_in and task not in free:
            fault = f"a branch of {shown(stack[-1])} that reaches task {shown(task)} can never reach the fan-in {shown(fan_in)} from there"
            yield Problem("branch-dead-end", task, fault)
