"""Graphs: named tasks and the transitions between them.

A `Graph` is built by its `set_*` and `add_*` methods, or read with `Graph.from_json`. Building refuses what can be seen
to be wrong at once (a name, a field, a condition); `validate()` checks the structure. A graph never runs anything:
`dwarf.routing` decides which transitions fire, `dwarf.scopes` which fan-in each fan-out converges on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from dwarf.errors import ExpressionError, GraphError
from dwarf.expression import Expression
from dwarf.limits import TASKS_MAX
from dwarf.names import check_field, check_name, check_text, shown
from dwarf.reducers import Reducer

END = "END"
ALIAS_DEFAULT = "item"

T = TypeVar("T")


class Task(msgspec.Struct, frozen=True):
    """A node: `name` in the graph, the task `url` it calls, and whether it is marked as a fan-in."""

    name: str
    url: str
    fan_in: bool = False


class Transition(msgspec.Struct, frozen=True):
    """An edge from `source` to `target` (a task name or `END`).

    `when` is a condition; with `switch` it is an arm of its source's switch. `for_each` names the field whose elements
    each get a branch, which reads its element as `alias`. `goto` and `on_error` edges are taken only on request.
    An edge with none of these is plain.
    """

    source: str
    target: str
    when: str = ""
    switch: bool = False
    for_each: str = ""
    alias: str = ""
    goto: bool = False
    on_error: bool = False

    @property
    def fires_by_itself(self) -> bool:
        """True for plain, when, switch and forEach edges; goto and onError edges wait for a request."""
        return not (self.goto or self.on_error)

    def __str__(self) -> str:
        marks = [
            f" forEach {shown(self.for_each)}" if self.for_each else "",
            " switch" if self.switch else "",
            f" when {shown(self.when)}" if self.when else "",
            " goto" if self.goto else "",
            " onError" if self.on_error else "",
        ]
        return f"{shown(self.source)} -> {shown(self.target)}{''.join(marks)}"


class Graph:
    """A workflow: tasks in order of first mention, transitions in order of registration, reducers by field.

    All `set_*` and `add_*` methods return the graph, so calls chain. They raise `GraphError` for what is wrong at once,
    and then leave the graph as it was. Lists and dicts that a graph returns are copies.
    """

    __slots__ = ("_derived", "_entry", "_fan_ins", "_name", "_reducers", "_repeated", "_scheduler", "_transitions", "_urls")

    def __init__(self, name: str = "") -> None:
        self._name = check_text("the graph's name", name)
        self._entry = ""
        self._urls: dict[str, str] = {}
        self._repeated: list[Task] = []
        self._transitions: list[Transition] = []
        self._fan_ins: dict[str, None] = {}
        self._reducers: dict[str, Reducer] = {}
        self._scheduler = ""
        self._derived: dict[str, Any] = {}

    @classmethod
    def assemble(
        cls,
        *,
        name: str,
        entry_point: str,
        urls: dict[str, str],
        transitions: Iterable[Transition],
        fan_ins: Iterable[str],
        reducers: dict[str, Reducer],
        repeated: Iterable[Task] = (),
        scheduler: str = "",
    ) -> Graph:
        """Put a graph together from its parts without any check; `validate` has the last word on it.

        `repeated` are tasks whose name another task has already; validation refuses them.
        """
        graph = cls()
        graph._name, graph._entry, graph._scheduler = name, entry_point, scheduler
        graph._urls, graph._repeated = dict(urls), list(repeated)
        graph._transitions = list(transitions)
        graph._fan_ins, graph._reducers = dict.fromkeys(fan_ins), dict(reducers)
        return graph

    # Inspection

    @property
    def name(self) -> str:
        return self._name

    @property
    def entry_point(self) -> str:
        return self._entry

    @property
    def tasks(self) -> list[Task]:
        """The tasks, last those of an import whose name is taken."""
        return [Task(name, url, name in self._fan_ins) for name, url in self._urls.items()] + self._repeated

    @property
    def transitions(self) -> list[Transition]:
        return list(self._transitions)

    @property
    def reducers(self) -> dict[str, Reducer]:
        return dict(self._reducers)

    @property
    def fan_ins(self) -> list[str]:
        """Every name marked as a fan-in, also one that is no task (validation refuses that)."""
        return list(self._fan_ins)

    @property
    def scheduler(self) -> str:
        """The scheduler that the graph asks for; empty for the engine's own."""
        return self._scheduler

    def __contains__(self, task: object) -> bool:
        return task in self._urls

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __repr__(self) -> str:
        return f"<Graph {shown(self._name)}: {len(self._urls)} tasks, {len(self._transitions)} transitions>"

    def url_of(self, task: str) -> str:
        """Return the task URL that the node `task` calls; `END` stands for itself. `GraphError` for an unknown name."""
        if task == END:
            return END
        if not isinstance(task, str) or task not in self._urls:
            raise self._refusal("unknown-task", f"{shown(task)} is no task of the graph", place=str(task))
        return self._urls[task]

    def is_fan_in(self, task: str) -> bool:
        return task in self._fan_ins

    def is_fan_out_source(self, task: str) -> bool:
        """True when leaving `task` starts a cohort: a forEach edge, or two or more plain and when edges."""
        return task in self.derived("sources", _fan_out_sources)

    def edges_from(self, task: str) -> list[Transition]:
        """Return the transitions that leave `task`, in order of registration."""
        return list(self.derived("edges", _edges_by_source).get(task, ()))

    def derived(self, key: str, build: Callable[[Graph], T]) -> T:
        """Return what `build(graph)` made of this graph, building it once; any later change of the graph forgets it."""
        try:
            made: T = self._derived[key]
        except KeyError:
            made = self._derived[key] = build(self)
        return made

    # Building

    def set_url(self, task: str, url: str) -> Graph:
        """Bind node `task` to a task URL; the first node of a graph becomes its entry point. `END` is left alone."""
        check_name("a task's name", task, graph=self._name)
        check_text(f"the URL of task {shown(task)}", url, graph=self._name)
        if task == END:
            return self
        self._register(task)
        self._urls[task] = url
        return self._changed()

    def set_entry_point(self, task: str) -> Graph:
        """Start at `task`. Registers nothing; validation checks the name."""
        self._entry = check_text("the entry point", task, graph=self._name)
        return self._changed()

    def set_fan_in(self, task: str) -> Graph:
        """Mark `task` as the place where a fan-out converges. Registers nothing; validation checks the name."""
        self._fan_ins[check_text("a fan-in", task, graph=self._name)] = None
        return self._changed()

    def set_reducer(self, field: str, reducer: Reducer | str) -> Graph:
        """Combine contributions to `field` with `reducer`, one of `Reducer` or its name; the last call for a field counts."""
        check_field("a reducer's field", field, graph=self._name)
        try:
            self._reducers[field] = Reducer(reducer)
        except ValueError:
            known = ", ".join(Reducer)
            fault = f"{shown(reducer)} is no reducer for field {shown(field)}; the reducers are {known}"
            raise self._refusal("unknown-reducer", fault, place=field) from None
        return self._changed()

    def set_scheduler(self, scheduler: str) -> Graph:
        """Ask for a scheduler: default, chain, batch, adaptive, or a registered name; the empty name asks for none."""
        self._scheduler = check_text("the scheduler", scheduler, graph=self._name)
        return self._changed()

    def add_transition(self, source: str, target: str) -> Graph:
        """Go on to `target` unconditionally. Several plain and when edges from one source fan out."""
        return self._add(Transition(source, target))

    def add_transition_when(self, source: str, target: str, when: str) -> Graph:
        """Fire when the condition holds. Several matching plain and when edges fan out."""
        return self._add(Transition(source, target, when=self._condition(source, target, when)))

    def add_transition_switch(self, source: str, target: str, when: str) -> Graph:
        """Add an arm to the switch of `source`: the first arm whose condition holds fires, in order of registration."""
        return self._add(Transition(source, target, when=self._condition(source, target, when), switch=True))

    def add_transition_fan_out(self, source: str, *targets: str) -> Graph:
        """Add a plain edge from `source` to each target."""
        check_name("a task's name", source, graph=self._name)
        return self._add(*(Transition(source, target) for target in targets))

    def add_transition_chain(self, *tasks: str) -> Graph:
        """Add a plain edge from each task to the next; fewer than two tasks make none."""
        for task in tasks:
            check_name("a task's name", task, graph=self._name)
        return self._add(*(Transition(source, target) for source, target in pairwise(tasks)))

    def add_transition_for_each(self, source: str, target: str, field: str, alias: str = ALIAS_DEFAULT) -> Graph:
        """Run `target` once per element of the list in `field`.

        A branch reads its element as `alias`, its place (from 0) as `<alias>Index` and their number as `<alias>Count`.
        """
        check_field("a forEach field", field, graph=self._name)
        alias = check_field("a forEach alias", ALIAS_DEFAULT if alias == "" else alias, graph=self._name)
        return self._add(Transition(source, target, for_each=field, alias=alias))

    def add_transition_goto(self, source: str, target: str) -> Graph:
        """Allow a task at `source` to call `flow.goto(target)`."""
        return self._add(Transition(source, target, goto=True))

    def add_transition_on_error(self, source: str, target: str) -> Graph:
        """Run `target` next when the task at `source` raises; it reads the error as the field `onErr`."""
        return self._add(Transition(source, target, on_error=True))

    def _condition(self, source: str, target: str, text: str) -> str:
        try:
            return Expression(text).text
        except ExpressionError as error:
            place = f"{shown(source)} -> {shown(target)}"
            refusal = ExpressionError(f"graph {shown(self._name)}: the condition of {place}: {error}", text=error.text, rule=error.rule)
            refusal.offset, refusal.graph, refusal.place = error.offset, self._name, place
            raise refusal from None

    def _add(self, *edges: Transition) -> Graph:
        ends = [check_name("a task's name", end, graph=self._name) for edge in edges for end in (edge.source, edge.target)]
        self._register(*(end for end in ends if end != END))
        self._transitions.extend(edges)
        return self._changed()

    def _register(self, *tasks: str) -> None:
        new = [task for task in dict.fromkeys(tasks) if task not in self._urls]
        if new and len(self._urls) + len(new) > TASKS_MAX:
            raise self._refusal("too-many-tasks", f"no more than {TASKS_MAX} tasks are allowed", place=new[-1])
        self._urls.update((task, task) for task in new)
        if new and not self._entry:
            self._entry = new[0]

    def _changed(self) -> Graph:
        self._derived.clear()
        return self

    def _refusal(self, rule: str, fault: str, *, place: str) -> GraphError:
        return GraphError(f"graph {shown(self._name)}: {fault}", graph=self._name, rule=rule, place=place)

    # Forms

    def validate(self) -> None:
        """Raise `GraphError` for the first structural rule that the graph breaks, naming the rule and the place."""
        from dwarf.validation import validate

        validate(self)

    def to_json(self) -> bytes:
        """Return the graph as JSON; members that are empty are left out. The same graph gives the same bytes."""
        from dwarf.graph_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Graph:
        """Read a graph from JSON. Raises `GraphError` for malformed JSON or wrong types; structure is for `validate`."""
        from dwarf.graph_json import from_json

        return from_json(data)

    def to_mermaid(self, *, title: bool = True, direction: str = "LR") -> str:
        """Return the graph as a Mermaid flowchart, `direction` LR or TD."""
        from dwarf.mermaid import render

        return render(self, title=title, direction=direction)

    def to_svg(self) -> str:
        """Return the graph as a stand-alone SVG document."""
        from dwarf.svg import render

        return render(self)


def _edges_by_source(graph: Graph) -> dict[str, list[Transition]]:
    edges: dict[str, list[Transition]] = {}
    for edge in graph.transitions:
        edges.setdefault(edge.source, []).append(edge)
    return edges


def _fan_out_sources(graph: Graph) -> set[str]:
    """Return the tasks that a forEach edge, or two or more plain and when edges leave."""
    count: dict[str, int] = {}
    for edge in graph.transitions:
        if edge.fires_by_itself and not edge.switch:
            count[edge.source] = count.get(edge.source, 0) + (2 if edge.for_each else 1)
    return {task for task, edges in count.items() if edges > 1}
