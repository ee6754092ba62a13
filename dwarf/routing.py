"""Which transitions leave a finished step: from (graph, task, what it asked for, the state it leaves) to a `Route`.

Pure choice: nothing is folded, stored or counted here. `error_target` and `route_goto` serve what a task raised or asked
for; `route_normal` evaluates switches, conditions and forEach fields over the state as folded.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw

from dwarf.errors import ExpressionError
from dwarf.expression import Expression
from dwarf.graph import END, Graph, Transition
from dwarf.limits import FAN_OUT_WIDTH_MAX
from dwarf.scopes import scopes_of
from dwarf.state import State
from dwarf.values import Fields, decode_elements, is_null, opens_with


class RoutingError(Exception):
    """The engine cannot route the step; it fails and takes no onError edge. The message is the step's error."""


class Arm(msgspec.Struct):
    """A fired transition of a fan-out: `target` once (`elements` None) or once per element, read as `alias`."""

    target: str
    alias: str = ""
    elements: list[Raw] | None = None

    @property
    def width(self) -> int:
        return 1 if self.elements is None else len(self.elements)

    def fields(self, place: int) -> Fields:
        """Return what the branch at `place` of this arm reads beside the state: its element, its index, the width."""
        if self.elements is None:
            return {}
        element, index, count = alias_fields(self.alias)
        return {element: self.elements[place], index: Raw(b"%d" % place), count: Raw(b"%d" % len(self.elements))}


class Route(msgspec.Struct):
    """Where a step leads.

    `target`: a task, `END`, or "" when nothing matched. A fan-out has `arms` besides, and `target` is its fan-in.
    """

    target: str
    arms: list[Arm] | None = None

    @property
    def width(self) -> int:
        return sum(arm.width for arm in self.arms or ())

    @property
    def aliases(self) -> list[str]:
        """The fields that exist only inside the cohort."""
        return sorted({name for arm in self.arms or () if arm.alias for name in alias_fields(arm.alias)})

    def branch(self, ordinal: int) -> tuple[str, Fields]:
        """Return the first task of the branch at place `ordinal`, and the fields that hold its element."""
        for arm in self.arms or ():
            if ordinal < arm.width:
                return arm.target, arm.fields(ordinal)
            ordinal -= arm.width
        raise IndexError(ordinal)


class Node(msgspec.Struct):
    """What routing needs to know of one task.

    `fan_in` is where the cohort of a fan-out source converges, `inside` the fan-in that a branch at this task runs towards.
    """

    switch: list[tuple[Expression, str]] = []
    arms: list[tuple[Expression | None, Transition]] = []
    gotos: frozenset[str] = frozenset()
    on_error: str | None = None
    is_source: bool = False
    fan_in: str | None = None
    inside: str | None = None


class Plan(msgspec.Struct):
    """A graph as deciding needs it, worked out once: look-ups instead of walks, and no copies."""

    nodes: dict[str, Node]
    reducers: dict[str, str]
    fan_ins: frozenset[str]

    def node(self, task: str) -> Node:
        """Return what is known of a task. Raises `RoutingError` for one that the graph does not have."""
        node = self.nodes.get(task)
        if node is None:
            raise RoutingError(f"the graph has no task {task!r}")
        return node


def plan_of(graph: Graph) -> Plan:
    """Return the plan of a graph; any later change of the graph forgets it."""
    return graph.derived("plan", _compile)


def route_normal(graph: Graph, task: str, state: State) -> Route:
    """Choose among the plain, when, switch and forEach transitions of `task`. Raises `RoutingError`.

    In a fan-out, branches that would start at the fan-in itself are no branches; without any other the fan-in follows
    at once.
    """
    node = plan_of(graph).node(task)
    if node.switch:
        return Route(next((target for condition, target in node.switch if _holds(task, condition, state)), ""))
    if node.is_source:
        return _fan_out(node, task, state)
    for condition, edge in node.arms:
        if condition is None or _holds(task, condition, state):
            return Route(edge.target)
    return Route("")


def alias_fields(alias: str) -> tuple[str, str, str]:
    return alias, f"{alias}Index", f"{alias}Count"


def route_goto(graph: Graph, task: str, target: str) -> Route:
    """Follow the goto transition from `task` to `target`. Raises `RoutingError` when there is none."""
    if target not in plan_of(graph).node(task).gotos:
        raise RoutingError(f"task {task!r} asked for goto {target!r}, but no goto transition leads from {task!r} to {target!r}")
    return Route(target)


def error_target(graph: Graph, task: str) -> str | None:
    """Return where the onError transition of `task` leads, or None."""
    node = plan_of(graph).nodes.get(task)
    return None if node is None else node.on_error


def arrives(graph: Graph, task: str, target: str, *, in_cohort: bool) -> bool:
    """Tell whether going from `task` to `target` ends the branch at its fan-in.

    Raises `RoutingError` where the graph (a frozen one, older than today's rules) leads a branch out of its cohort or a
    trunk step into a fan-in. A fan-out source may go to its own fan-in without fanning out.
    """
    plan = plan_of(graph)
    if not in_cohort and target not in plan.fan_ins:
        return False
    node = plan.node(task)
    if in_cohort and target == node.inside and target != node.fan_in:
        return True
    if in_cohort and target == END:
        raise RoutingError(f"task {task!r} leads to END from inside a fan-out, past the fan-in {node.inside!r}")
    if target in plan.fan_ins and target != node.fan_in:
        raise RoutingError(f"task {task!r} leads into the fan-in {target!r} without being a branch of its fan-out")
    return False


def _fan_out(node: Node, task: str, state: State) -> Route:
    if node.fan_in is None:
        raise RoutingError(f"the fan-out of task {task!r} converges on no fan-in")
    arms = [arm for arm in _fired(node, task, state) if arm.target != node.fan_in and arm.width]
    route = Route(node.fan_in, arms or None)
    if route.width > FAN_OUT_WIDTH_MAX:
        raise RoutingError(f"the fan-out of task {task!r} is {route.width} wide; at most {FAN_OUT_WIDTH_MAX} branches are allowed")
    return route


def _fired(node: Node, task: str, state: State) -> Iterator[Arm]:
    for condition, edge in node.arms:
        if condition is not None and not _holds(task, condition, state):
            continue
        yield Arm(edge.target, edge.alias, _elements(task, edge.for_each, state)) if edge.for_each else Arm(edge.target)


def _elements(task: str, field: str, state: State) -> list[Raw]:
    raw = state.raw_fields().get(field)
    if raw is None or is_null(raw):
        return []
    if not opens_with(raw, b"["):
        raise RoutingError(f"task {task!r} fans out over field {field!r}, which is not a list")
    return decode_elements(raw)


def _holds(task: str, condition: Expression, state: State) -> bool:
    try:
        return condition.evaluate(state)
    except ExpressionError as error:
        raise RoutingError(f"a condition of task {task!r} cannot be evaluated: {error}") from None


def _compile(graph: Graph) -> Plan:
    scopes = scopes_of(graph)
    nodes = {}
    for task in graph:
        edges = graph.edges_from(task)
        firing = [edge for edge in edges if edge.fires_by_itself]
        nodes[task] = Node(
            switch=[(Expression(edge.when), edge.target) for edge in firing if edge.switch],
            arms=[(Expression(edge.when) if edge.when else None, edge) for edge in firing if not edge.switch],
            gotos=frozenset(edge.target for edge in edges if edge.goto),
            on_error=next((edge.target for edge in edges if edge.on_error), None),
            is_source=graph.is_fan_out_source(task),
            fan_in=scopes.fan_in_of.get(task),
            inside=scopes.inside.get(task),
        )
    return Plan(nodes, {field: str(reducer) for field, reducer in graph.reducers.items()}, frozenset(graph.fan_ins))
