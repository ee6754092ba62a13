"""Which fan-in each fan-out converges on, and which tasks run inside which cohort.

A cohort opens where a fan-out source is left by its arms and closes at a fan-in. Every task therefore sits under a fixed
stack of open cohorts, whatever path led to it, and that is what `scopes_of` infers: it walks the graph from the entry
point, pushes the source on every arm, pops at every fan-in, and notes a problem where two paths disagree. Two sources
whose branches meet share one cohort and must share its fan-in.

The walk never fails: `Scopes.problems` holds what is wrong (`validate` raises the first), the rest is as good as it gets,
which is what a flow frozen with an older graph needs.
"""

from __future__ import annotations

from collections import deque

import msgspec

from dwarf.errors import GraphError
from dwarf.graph import END, Graph, Transition
from dwarf.limits import COHORT_DEPTH_MAX

Stack = tuple[str, ...]  # the sources of the open cohorts, outermost first


class Scopes(msgspec.Struct):
    """`fan_in_of[source]` is where its cohort converges; `inside[task]` the fan-in that a branch at `task` runs towards.

    `inside` has no entry for trunk tasks; `depth[task]` counts the open cohorts.
    """

    fan_in_of: dict[str, str] = {}
    inside: dict[str, str] = {}
    depth: dict[str, int] = {}
    problems: list[GraphError] = []


def scopes_of(graph: Graph) -> Scopes:
    """Return the scopes of a graph, worked out once for each version of it."""
    scopes: Scopes = graph.derived("scopes", lambda g: _Walk(g).run())
    return scopes


class _Walk:
    """One pass over a graph. `stacks` is what has been inferred, `queue` the edges still to follow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edges = {task: graph.edges_from(task) for task in graph}
        self.sources = {task for task in graph if graph.is_fan_out_source(task)}
        self.stacks: dict[str, Stack] = {}
        self.same: dict[str, str] = {}  # union-find over sources: those whose branches meet
        self.fan_ins: dict[str, str] = {}  # by representative of a cohort
        self.asked: deque[Transition] = deque()  # goto and onError edges: followed when nothing else is left
        self.queue: deque[Transition] = deque()
        self.problems: list[GraphError] = []

    def run(self) -> Scopes:
        if self.graph.entry_point in self.graph:
            self.reach(self.graph.entry_point, ())
        own_fan_in: list[Transition] = []
        while self.queue or self.asked:
            if self.queue:
                self.follow(self.queue.popleft())
            else:
                edge = self.asked.popleft()
                if edge.source in self.sources and self.graph.is_fan_in(edge.target):
                    own_fan_in.append(edge)  # its own fan-in, or that of the cohort around it: known at the end
                else:
                    self.follow(edge)
        for edge in own_fan_in:
            if self.fan_ins.get(self.cohort(edge.source)) == edge.target:
                self.reach(edge.target, self.stacks[edge.source])
            else:
                self.follow(edge)
        self.check_convergence()
        return self.result()

    def follow(self, edge: Transition) -> None:
        stack = self.stacks[edge.source]
        if edge.source in self.sources and edge.fires_by_itself:
            stack = (*stack, edge.source)
        if len(stack) > COHORT_DEPTH_MAX:
            return self.problem("cohort-depth", edge.source, f"nests fan-outs deeper than {COHORT_DEPTH_MAX}")
        if edge.target == END:
            if stack:
                self.problem("branch-to-end", edge.source, f"{edge} leaves the fan-out of {stack[-1]!r} without passing its fan-in")
        elif self.graph.is_fan_in(edge.target):
            self.converge(edge, stack)
        elif edge.target in self.graph:
            self.reach(edge.target, stack)

    def converge(self, edge: Transition, stack: Stack) -> None:
        if not stack:
            return self.problem("fan-in-without-fan-out", edge.target, f"{edge} enters the fan-in from outside any fan-out")
        cohort = self.cohort(stack[-1])
        known = self.fan_ins.setdefault(cohort, edge.target)
        if known != edge.target:
            return self.problem(
                "two-fan-ins", edge.target, f"the fan-out of {stack[-1]!r} converges on both {known!r} and {edge.target!r}"
            )
        self.reach(edge.target, stack[:-1])

    def reach(self, task: str, stack: Stack) -> None:
        known = self.stacks.get(task)
        if known is None:
            self.stacks[task] = stack
            for edge in self.edges[task]:
                (self.queue if edge.fires_by_itself else self.asked).append(edge)
        elif len(known) != len(stack):
            where = [f"inside the fan-out of {s[-1]!r}" if s else "outside any fan-out" for s in (known, stack)]
            self.problem("two-scopes", task, f"{task!r} is reached {where[0]} and {where[1]}; give the second use a name of its own")
        else:
            for one, other in zip(known, stack, strict=True):
                self.unite(one, other, task)

    def cohort(self, source: str) -> str:
        while (parent := self.same.get(source, source)) != source:
            self.same[source] = source = self.same.get(parent, parent)
        return source

    def unite(self, one: str, other: str, task: str) -> None:
        one, other = self.cohort(one), self.cohort(other)
        if one == other:
            return
        self.same[other] = one
        fan_in = self.fan_ins.pop(other, None)
        if fan_in is not None and self.fan_ins.setdefault(one, fan_in) != fan_in:
            self.problem("two-fan-ins", task, f"branches meet at {task!r} and then converge on {self.fan_ins[one]!r} and {fan_in!r}")

    def check_convergence(self) -> None:
        for source in self.graph:
            if source in self.sources and source in self.stacks and self.cohort(source) not in self.fan_ins:
                self.problem("fan-out-without-fan-in", source, f"the fan-out of {source!r} converges on no fan-in")
        for task in self.stuck():
            source = self.stacks[task][-1]
            self.problem("branch-dead-end", task, f"a branch of {source!r} that reaches {task!r} can never reach the fan-in")
        converged = set(self.fan_ins.values())
        for task in self.graph.fan_ins:
            if task in self.stacks and task not in converged:
                self.problem("fan-in-without-fan-out", task, f"nothing fans out into the fan-in {task!r}")

    def stuck(self) -> list[str]:
        """Return the tasks inside a cohort from which no path, over goto and onError too, leads to its fan-in."""
        before: dict[str, list[str]] = {}  # on one level: an inner fan-out counts as a step from its source to its fan-in
        leaving: list[str] = []
        for task, stack in self.stacks.items():
            for edge in self.edges[task]:
                if task in self.sources and edge.fires_by_itself:
                    before.setdefault(self.fan_ins.get(self.cohort(task), ""), []).append(task)
                elif stack and edge.target == self.fan_ins.get(self.cohort(stack[-1])):
                    leaving.append(task)
                else:
                    before.setdefault(edge.target, []).append(task)
        free = set(leaving)
        while leaving:
            for task in before.get(leaving.pop(), ()):
                if task not in free:
                    free.add(task)
                    leaving.append(task)
        return [task for task, stack in self.stacks.items() if stack and task not in free]

    def problem(self, rule: str, place: str, what: str) -> None:
        name = self.graph.name
        self.problems.append(GraphError(f"graph {name!r}, task {place!r}: {what}", graph=name, rule=rule, place=place))

    def result(self) -> Scopes:
        fan_in_of = {source: self.fan_ins[self.cohort(source)] for source in self.sources if self.cohort(source) in self.fan_ins}
        inside = {
            task: self.fan_ins[self.cohort(stack[-1])]
            for task, stack in self.stacks.items()
            if stack and self.cohort(stack[-1]) in self.fan_ins
        }
        return Scopes(fan_in_of, inside, {task: len(stack) for task, stack in self.stacks.items()}, self.problems)
