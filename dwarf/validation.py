"""The structural rules of a graph. `validate` raises the first one broken, naming the graph, the rule and the place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dwarf.errors import ExpressionError, GraphError
from dwarf.expression import Expression
from dwarf.graph import END, Graph, Transition
from dwarf.limits import FIELD_CHARS_MAX, GRAPH_BYTES_MAX, NAME_CHARS_MAX, TASKS_MAX
from dwarf.names import check_field, check_text
from dwarf.reducers import Reducer
from dwarf.scopes import scopes_of

Problem = tuple[str, str, str]  # rule, place, what is wrong there


def validate(graph: Graph) -> None:
    """Raise `GraphError` for the first rule that `graph` breaks. A graph found valid is not checked again."""
    error = graph.derived("violation", _first_violation)
    if error is not None:
        raise error


def _first_violation(graph: Graph) -> GraphError | None:
    for rule in _RULES:
        for name, place, what in rule(graph):
            return GraphError(f"graph {graph.name!r}, {place}: {what}", graph=graph.name, rule=name, place=place)
    return scopes_of(graph).problems[0] if scopes_of(graph).problems else None


def _names(graph: Graph) -> Iterator[Problem]:
    if not graph.name.strip():
        yield "graph-name", "name", "a graph needs a name"
    if not len(list(graph)):
        yield "no-tasks", "tasks", "a graph needs at least one task"
    if len(list(graph)) > TASKS_MAX:
        yield "too-many-tasks", "tasks", f"more than {TASKS_MAX} tasks"
    for task in graph.tasks:
        if not task.name:
            yield "task-name", "task ''", "a task needs a name"
        if not task.url:
            yield "task-url", f"task {task.name!r}", "the task URL is empty"
        for what, text in (("the name", task.name), ("the URL", task.url)):
            if len(text) > NAME_CHARS_MAX:
                yield "name-length", f"task {task.name[:40]!r}", f"{what} has {len(text)} characters; at most {NAME_CHARS_MAX} are allowed"


def _entry(graph: Graph) -> Iterator[Problem]:
    entry = graph.entry_point
    if not entry or entry == END or entry not in graph:
        yield "entry-point", f"entry point {entry!r}", "the entry point must be a task of the graph"


def _fan_in_marks(graph: Graph) -> Iterator[Problem]:
    for task in graph.fan_ins:
        if task == END or task not in graph:
            yield "unknown-fan-in", f"fan-in {task!r}", "only a task of the graph can be a fan-in"


def _ends(graph: Graph) -> Iterator[Problem]:
    for edge in graph.transitions:
        if edge.source == END:
            yield "end-has-no-exit", str(edge), "nothing can follow END"
        elif edge.source not in graph:
            yield "unknown-task", str(edge), f"{edge.source!r} is no task of the graph"
        if edge.target != END and edge.target not in graph:
            yield "unknown-task", str(edge), f"{edge.target!r} is no task of the graph"


def _edge_kinds(graph: Graph) -> Iterator[Problem]:
    for edge in graph.transitions:
        kinds = [name for name, on in _kinds(edge) if on]
        for one, other in _EXCLUSIVE:
            if one in kinds and other in kinds:
                yield "edge-kinds", str(edge), f"one transition cannot be {one} and {other}"
        if edge.alias and not edge.for_each:
            yield "alias-without-for-each", str(edge), f"the alias {edge.alias!r} needs a forEach field"
        if edge.switch and not edge.when:
            yield "switch-without-condition", str(edge), "a switch arm needs a condition; `true` makes a default arm"
        if edge.on_error and edge.source == edge.target:
            yield "error-loop", str(edge), "a task cannot handle its own error; use retry"


def _kinds(edge: Transition) -> tuple[tuple[str, bool], ...]:
    return (
        ("forEach", bool(edge.for_each)), ("goto", edge.goto), ("onError", edge.on_error),
        ("switch", edge.switch), ("when", bool(edge.when)),
    )  # fmt: skip


_EXCLUSIVE = (
    ("forEach", "goto"), ("forEach", "onError"), ("goto", "onError"), ("onError", "when"), ("switch", "forEach"),
    ("switch", "goto"), ("switch", "onError"), ("goto", "when"),
)  # fmt: skip


def _conditions(graph: Graph) -> Iterator[Problem]:
    for edge in graph.transitions:
        if not edge.when:
            continue
        try:
            bad = Expression(edge.when).bad_pattern()
        except ExpressionError as error:
            yield error.rule, str(edge), str(error)
            continue
        if bad:
            yield "expression-pattern", str(edge), bad


def _fields(graph: Graph) -> Iterator[Problem]:
    for edge in graph.transitions:
        if edge.for_each:
            yield from _field("the forEach field", edge.for_each, str(edge))
        if edge.alias:
            yield from _field("the forEach alias", edge.alias, str(edge))
    for field, reducer in graph.reducers.items():
        yield from _field("the reducer's field", field, f"reducer of {field!r}")
        if reducer not in list(Reducer):
            yield "unknown-reducer", f"reducer of {field!r}", f"{str(reducer)!r} is none of {', '.join(Reducer)}"


def _field(what: str, name: str, place: str) -> Iterator[Problem]:
    try:
        check_text(what, name, chars_max=FIELD_CHARS_MAX)
        check_field(what, name)
    except GraphError as error:
        yield error.rule, place, str(error)


def _siblings(graph: Graph) -> Iterator[Problem]:
    for task in graph:
        edges = graph.edges_from(task)
        if sum(edge.on_error for edge in edges) > 1:
            yield "two-error-routes", f"task {task!r}", "a task has at most one onError transition"
        firing = [edge for edge in edges if edge.fires_by_itself]
        mixed = next((edge for edge in firing if not edge.switch), None)
        if mixed is not None and any(edge.switch for edge in firing):
            yield "switch-mixed", f"task {task!r}", f"a switch excludes plain, when and forEach transitions such as {mixed}"


def _reachable(graph: Graph) -> Iterator[Problem]:
    seen, todo, ends = {graph.entry_point}, [graph.entry_point], False
    while todo:
        for edge in graph.edges_from(todo.pop()):
            ends |= edge.target == END
            if edge.target not in seen and edge.target != END:
                seen.add(edge.target)
                todo.append(edge.target)
    lost = [task for task in graph if task not in seen]
    if lost:
        yield "unreachable", f"task {lost[0]!r}", f"no path leads here from the entry point {graph.entry_point!r}"
    if not ends:
        yield "no-end", "transitions", "no transition leads to END"


def _size(graph: Graph) -> Iterator[Problem]:
    size = len(graph.to_json())
    if size > GRAPH_BYTES_MAX:
        yield "graph-size", "graph", f"{size} bytes as JSON; at most {GRAPH_BYTES_MAX} are allowed"


_RULES: tuple[Callable[[Graph], Iterator[Problem]], ...] = (
    _names, _entry, _fan_in_marks, _ends, _edge_kinds, _conditions, _fields, _siblings, _reachable, _size,
)  # fmt: skip
