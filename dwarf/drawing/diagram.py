"""The shape of a drawn graph: its nodes and arrows, before any output format.

A task is one node. What decides or gathers gets a node of its own beside it: a switch or a when diamond behind a source of
conditions, a reduce circle in front of a fan-in. `_start` and `_end` are shared circles. A name that an arrow mentions and
the graph does not know, as an unchecked import can hold, is a node too: an invalid graph is drawn, never refused.

    t0 … tN           tasks, in the order of the graph
    t0_switch t0_when the diamonds of t0's conditions
    t3_reduce         the circle in front of t3
    x0 … xN           names that are no tasks, in order of mention
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dwarf.graph import Graph, Transition

END = "END"
START_ID = "_start"
END_ID = "_end"

TASK = "task"
SWITCH = "switch"
WHEN = "when"
REDUCE = "reduce"
START = "start"
FINISH = "end"
UNKNOWN = "unknown"


class Node(msgspec.Struct, frozen=True):
    """One drawn node. `shape` is one of the constants above; `detail` is a task's URL where it says more than its name."""

    id: str
    shape: str
    label: str = ""
    detail: str = ""


class Arrow(msgspec.Struct, frozen=True):
    """One drawn arrow between node ids. `transition` is the transition it shows; None for the arrows we add ourselves."""

    source: str
    target: str
    label: str = ""
    transition: Transition | None = None


class Diagram(msgspec.Struct, frozen=True):
    """Everything to draw. Nodes: tasks with their diamonds and circles, unknown names, then start and end."""

    name: str
    nodes: list[Node]
    arrows: list[Arrow]


def diagram_of(graph: Graph) -> Diagram:
    """Return the nodes and arrows of `graph`, valid or not; the same graph gives the same diagram."""
    tasks = graph.tasks
    ids = {task.name: f"t{place}" for place, task in enumerate(tasks)}
    ids[END] = END_ID
    unknown = _unknown_names(graph, ids)
    ids.update({name: f"x{place}" for place, name in enumerate(unknown)})
    entries = {name: f"{ids[name]}_reduce" if name != END and graph.is_fan_in(name) else ids[name] for name in ids}

    nodes: list[Node] = []
    arrows: list[Arrow] = []
    diamonds = _diamonds(graph.transitions)
    boxes = [Node(ids[task.name], TASK, task.name, "" if task.url == task.name else task.url) for task in tasks]
    for node in [*boxes, *(Node(ids[name], UNKNOWN, name) for name in unknown)]:
        _add_with_neighbours(node, diamonds.get(node.label, ()), fan_in=entries[node.label] != node.id, nodes=nodes, arrows=arrows)
    for shape in diamonds.get(END, ()):
        nodes.append(Node(f"{END_ID}_{shape}", shape, shape))
        arrows.append(Arrow(END_ID, f"{END_ID}_{shape}"))
    arrows.extend(Arrow(_exit(ids[edge.source], edge), entries[edge.target], label_of(edge), edge) for edge in graph.transitions)
    nodes.append(Node(START_ID, START))
    if graph.entry_point:
        arrows.append(Arrow(START_ID, entries[graph.entry_point]))
    if any(END_ID in (arrow.source, arrow.target) for arrow in arrows):
        nodes.append(Node(END_ID, FINISH))
    return Diagram(graph.name, nodes, arrows)


def is_arm(edge: Transition) -> bool:
    """True for an edge that leaves through a diamond: a switch arm, or a plain condition.

    A conditional forEach, and a condition on a goto or onError edge, stay on an arrow of their own and are labelled with both.
    """
    if edge.goto or edge.on_error:
        return False
    return edge.switch or (edge.when != "" and not edge.for_each)


def label_of(edge: Transition) -> str:
    """Return the words on an edge: an arm's expression (`default` for a switch arm that is exactly true), or its marks."""
    if is_arm(edge) and not edge.for_each:
        return "default" if edge.switch and edge.when == "true" else edge.when
    words = [word for word, present in (("goto", edge.goto), ("onError", edge.on_error), ("for each", edge.for_each)) if present]
    if edge.when:
        words.append(f"{'switch' if edge.switch else 'when'} {edge.when}")
    return "; ".join(words)


def _exit(source: str, edge: Transition) -> str:
    return f"{source}_{SWITCH if edge.switch else WHEN}" if is_arm(edge) else source


def _unknown_names(graph: Graph, known: dict[str, str]) -> list[str]:
    mentioned: dict[str, None] = {}
    for edge in graph.transitions:
        mentioned.update({edge.source: None, edge.target: None})
    if graph.entry_point:
        mentioned[graph.entry_point] = None
    return [name for name in mentioned if name not in known]


def _diamonds(edges: list[Transition]) -> dict[str, list[str]]:
    """Return, by source, the diamonds that its conditions need: a switch before a when."""
    found: dict[str, list[str]] = {}
    for shape in (SWITCH, WHEN):
        for edge in edges:
            if is_arm(edge) and edge.switch == (shape == SWITCH) and shape not in found.setdefault(edge.source, []):
                found[edge.source].append(shape)
    return found


def _add_with_neighbours(node: Node, diamonds: list[str] | tuple[()], *, fan_in: bool, nodes: list[Node], arrows: list[Arrow]) -> None:
    nodes.append(node)
    if fan_in:
        nodes.append(Node(f"{node.id}_reduce", REDUCE, REDUCE))
        arrows.append(Arrow(f"{node.id}_reduce", node.id))
    for shape in diamonds:
        nodes.append(Node(f"{node.id}_{shape}", shape, shape))
        arrows.append(Arrow(node.id, f"{node.id}_{shape}"))
