"""The structural rules of a graph. `validate` raises the first one broken, naming the graph, the rule and the place.

What is wrong in form is found before what is wrong in structure, causes before consequences, and always in this order:

    rule                      a graph breaks it by                                                        place
    graph-name                no name                                                                     name
    no-tasks too-many-tasks   no task, or more than 10,000                                                tasks
    task-name task-url        a task without a name or URL                                                the task
    repeated-task             two tasks of one name (in JSON)                                             the task
    reserved-name             a task named END (in JSON)                                                  the task
    name-length name-text     a name or URL of over 512 characters, or one that cannot be stored          the name
    entry-point               an entry point that is no task                                              the entry point
    unknown-fan-in            a fan-in mark on what is no task                                            the name
    end-has-no-exit           a transition from END                                                       the transition
    unknown-task              a transition from or to what is no task (in JSON)                           the transition
    edge-kinds                a transition of two kinds that exclude each other (in JSON)                 the transition
    alias-without-for-each    an alias on a transition that has no forEach field (in JSON)                the transition
    switch-without-condition  a switch arm without a condition (in JSON)                                  the transition
    error-loop                an onError transition from a task to itself                                 the transition
    graph-size                more than 16 MB as JSON                                                     graph
    expression-…              a condition that cannot be parsed, or with a pattern that RE2 refuses       the transition
    field-name                a forEach field, alias or reducer field that no condition can spell         the field
    unknown-reducer           a reducer that is none of the ten (in JSON)                                 the field
    two-error-routes          a second onError transition from one task                                   the task
    switch-mixed              a switch beside plain, when or forEach transitions of the same task         the task
    unreachable               a task to which no path leads from the entry point                          the task
    no-end                    no transition to END                                                        transitions
    cohort-depth              more than 32 fan-outs inside one another                                    the source
    two-scopes                a task reached both inside and outside a fan-out, or at two depths          the task
    two-fan-ins               a fan-out whose branches converge on two fan-ins                            the source
    fan-in-without-fan-out    a fan-in entered from outside any fan-out, or at which none converges       the fan-in
    fan-out-without-fan-in    a fan-out whose branches converge on no fan-in                              the source
    branch-to-end             a branch that leads to END                                                  the task before END
    branch-dead-end           a task in a branch from which no path leads to the fan-in                   the task

Building and reading raise some of these at once, and besides: name-type (a name that is not text), expression-type (a
condition that is not), graph-json (no JSON, or a wrong type in it). The rules from cohort-depth on are `dwarf.scopes`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dwarf.errors import ExpressionError, GraphError
from dwarf.expression import Expression
from dwarf.graph import END, Graph, Transition
from dwarf.limits import GRAPH_BYTES_MAX, TASKS_MAX
from dwarf.names import check_field, check_text, shown
from dwarf.reducers import Reducer
from dwarf.scopes import Problem, scopes_of


def validate(graph: Graph) -> None:
    """Raise `GraphError` for the first rule that `graph` breaks. An unchanged graph is not checked again."""
    problem = graph.derived("problem", _first_problem)
    if problem is not None:
        message = f"graph {shown(graph.name)}: {problem.fault}"
        raise GraphError(message, graph=graph.name, rule=problem.rule, place=problem.place)


def _first_problem(graph: Graph) -> Problem | None:
    return next((problem for rule in _RULES for problem in rule(graph)), None)


def _tasks(graph: Graph) -> Iterator[Problem]:
    if not graph.name.strip():
        yield Problem("graph-name", "name", "a graph needs a name")
    yield from _refused(check_text, "the graph's name", graph.name)
    yield from _refused(check_text, "the scheduler", graph.scheduler)
    tasks = graph.tasks
    if not tasks:
        yield Problem("no-tasks", "tasks", "a graph needs at least one task")
    if len(tasks) > TASKS_MAX:
        yield Problem("too-many-tasks", "tasks", f"it has {len(tasks)} tasks; no more than {TASKS_MAX} are allowed")
    for task in tasks:
        yield from _refused(check_text, "a task's name", task.name)
        if not task.name:
            yield Problem("task-name", "", "a task needs a name")
        if task.name == END:
            yield Problem("reserved-name", END, f"no task can be named {END}, which is where flows end")
        if not task.url:
            yield Problem("task-url", task.name, f"the URL of task {shown(task.name)} is empty")
        yield from _refused(check_text, f"the URL of task {shown(task.name)}", task.url)
    for name in _repeated(task.name for task in tasks):
        yield Problem("repeated-task", name, f"two tasks are named {shown(name)}")


def _repeated(names: Iterator[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def _entry(graph: Graph) -> Iterator[Problem]:
    entry = graph.entry_point
    if entry not in graph:
        yield Problem("entry-point", entry, f"the entry point {shown(entry)} is no task of the graph")


def _fan_in_marks(graph: Graph) -> Iterator[Problem]:
    for task in graph.fan_ins:
        if task not in graph:
            yield Problem("unknown-fan-in", task, f"{shown(task)} is marked as a fan-in, but is no task of the graph")


def _edges(graph: Graph) -> Iterator[Problem]:
    for edge in graph.transitions:
        if edge.source == END:
            yield Problem("end-has-no-exit", str(edge), f"{edge} leaves END, where flows end: nothing can follow it")
        for end in (edge.source, edge.target):
            if end != END and end not in graph:
                yield Problem("unknown-task", str(edge), f"{shown(end)} in {edge} is no task of the graph")
        yield from _edge_kinds(edge)


def _edge_kinds(edge: Transition) -> Iterator[Problem]:
    marks = {
        "forEach": edge.for_each, "goto": edge.goto, "onError": edge.on_error, "switch": edge.switch, "when": edge.when,
    }  # fmt: skip
    for one, other in _EXCLUSIVE:
        if marks[one] and marks[other]:
            yield Problem("edge-kinds", str(edge), f"{edge} cannot have both {one} and {other}")
    if edge.alias and not edge.for_each:
        yield Problem("alias-without-for-each", str(edge), f"{edge} has the alias {shown(edge.alias)}, but no forEach field")
    if edge.switch and not edge.when:
        yield Problem("switch-without-condition", str(edge), f"{edge} needs a condition; 'true' makes it the default arm")
    if edge.on_error and edge.source == edge.target:
        yield Problem("error-loop", str(edge), f"{edge} would repeat the task without bound; use flow.retry in the task instead")


_EXCLUSIVE = (
    ("forEach", "goto"), ("forEach", "onError"), ("goto", "onError"), ("onError", "when"), ("switch", "forEach"),
    ("switch", "goto"), ("switch", "onError"), ("goto", "when"),
)  # fmt: skip


def _conditions(graph: Graph) -> Iterator[Problem]:
    sound: set[str] = set()
    for edge in graph.transitions:
        if edge.when in sound or not edge.when:
            continue
        place = f"{shown(edge.source)} -> {shown(edge.target)}"
        try:
            bad = Expression(edge.when).bad_pattern()
        except ExpressionError as error:
            yield Problem(error.rule, place, f"the condition of {place}: {error}")
            continue
        if bad:
            yield Problem("expression-pattern", place, f"the condition of {place}: {bad}")
        sound.add(edge.when)


def _fields(graph: Graph) -> Iterator[Problem]:
    for edge in graph.transitions:
        if edge.for_each:
            yield from _refused(check_field, f"the forEach field of {edge}:", edge.for_each)
        if edge.alias:
            yield from _refused(check_field, f"the forEach alias of {edge}:", edge.alias)
    for field, reducer in graph.reducers.items():
        yield from _refused(check_field, "the reducer's field", field)
        if reducer not in _REDUCERS:
            fault = f"{shown(reducer)} is no reducer for field {shown(field)}; the reducers are {', '.join(Reducer)}"
            yield Problem("unknown-reducer", field, fault)


_REDUCERS = frozenset(Reducer)


def _refused(check: Callable[[str, object], str], what: str, value: str) -> Iterator[Problem]:
    try:
        check(what, value)
    except GraphError as error:
        yield Problem(error.rule, error.place, str(error))


def _size(graph: Graph) -> Iterator[Problem]:
    size = len(graph.to_json())
    if size > GRAPH_BYTES_MAX:
        yield Problem("graph-size", "graph", f"it has {size} bytes as JSON; at most {GRAPH_BYTES_MAX} are allowed")


def _siblings(graph: Graph) -> Iterator[Problem]:
    for task in graph:
        edges = graph.edges_from(task)
        routes = [edge for edge in edges if edge.on_error]
        if len(routes) > 1:
            fault = f"task {shown(task)} has more than one onError transition: {routes[0]} and {routes[1]}"
            yield Problem("two-error-routes", task, fault)
        switch = next((edge for edge in edges if edge.switch), None)
        other = next((edge for edge in edges if edge.fires_by_itself and not edge.switch), None)
        if switch and other:
            fault = f"task {shown(task)} has the switch arm {switch} and beside it {other}; make all of them arms, 'true' being the default"
            yield Problem("switch-mixed", task, fault)


def _reachable(graph: Graph) -> Iterator[Problem]:
    entry = graph.entry_point
    seen = {entry, END}
    todo = [entry]
    while todo:
        for edge in graph.edges_from(todo.pop()):
            if edge.target not in seen:
                seen.add(edge.target)
                todo.append(edge.target)
    for task in graph:
        if task not in seen:
            yield Problem("unreachable", task, f"no path leads from the entry point {shown(entry)} to task {shown(task)}")
    if all(edge.target != END for edge in graph.transitions):
        yield Problem("no-end", "transitions", "no transition leads to END, so no flow could end as planned")


def _convergence(graph: Graph) -> Iterator[Problem]:
    yield from scopes_of(graph).problems


_RULES: tuple[Callable[[Graph], Iterator[Problem]], ...] = (
    _tasks, _entry, _fan_in_marks, _edges, _size, _conditions, _fields, _siblings, _reachable, _convergence,
)  # fmt: skip
