"""Graphs: named tasks and the transitions between them.

A `Graph` is built by its `set_*` and `add_*` methods, or read with `Graph.from_json`. Building refuses what can be seen
to be wrong at once (a name, a field, a condition); `validate()` checks the structure. A graph never runs anything:
`dwarf.routing` decides which transitions fire, `dwarf.scopes` which fan-in each fan-out converges on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from dwarf.errors import GraphError
from dwarf.expression import Expression
from dwarf.limits import TASKS_MAX
from dwarf.names import check_field, check_text
from dwarf.reducers import Reducer

END = "END"
ALIAS_DEFAULT = "item"


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
            f" forEach {self.for_each}" if self.for_each else "",
            " switch" if self.switch else "",
            f" when {self.when!r}" if self.when else "",
            " goto" if self.goto else "",
            " onError" if self.on_error else "",
        ]
        return f"{self.source} -> {self.target}{''.join(marks)}"


class Graph:
    """A workflow: tasks in order of first mention, transitions in order of registration, reducers by field.

    All `set_*` and `add_*` methods return the graph, so calls chain, and raise `GraphError` for what is wrong at once.
    """

    __slots__ = ("_derived", "_entry", "_fan_ins", "_name", "_reducers", "_transitions", "_urls")

    def __init__(self, name: str = "") -> None:
        self._name = check_text("the graph's name", name)
        self._entry = ""
        self._urls: dict[str, str] = {}
        self._transitions: list[Transition] = []
        self._fan_ins: dict[str, None] = {}
        self._reducers: dict[str, Reducer] = {}
        self._derived: dict[str, Any] = {}

    @classmethod
    def assemble(
        cls,
        *,
        name: str,
        entry_point: str,
        urls: dict[str, str],
        transitions: list[Transition],
        fan_ins: list[str],
        reducers: dict[str, Reducer],
    ) -> Graph:
        """Put a graph together from its parts without any check; `validate` has the last word on it."""
        graph = cls()
        graph._name, graph._entry = name, entry_point
        graph._urls, graph._transitions = dict(urls), list(transitions)
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
        return [Task(name, url, name in self._fan_ins) for name, url in self._urls.items()]

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

    def __contains__(self, task: object) -> bool:
        return task in self._urls

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __repr__(self) -> str:
        return f"<Graph {self._name!r}: {len(self._urls)} tasks, {len(self._transitions)} transitions>"

    def url_of(self, task: str) -> str:
        """Return the task URL that the node `task` calls; `GraphError` for an unknown name."""
        try:
            return self._urls[task]
        except KeyError:
            raise GraphError(
                f"graph {self._name!r} has no task {task!r}", graph=self._name, rule="unknown-task", place=task
            ) from None

    def is_fan_in(self, task: str) -> bool:
        return task in self._fan_ins

    def is_fan_out_source(self, task: str) -> bool:
        """True when leaving `task` starts a cohort: a forEach edge, or two or more plain and when edges."""
        plain = 0
        for edge in self.edges_from(task):
            if edge.for_each:
                return True
            plain += edge.fires_by_itself and not edge.switch
        return plain > 1

    def edges_from(self, task: str) -> list[Transition]:
        """Return the transitions that leave `task`, in order of registration."""
        edges = self._derived.get("edges")
        if edges is None:
            edges = {}
            for edge in self._transitions:
                edges.setdefault(edge.source, []).append(edge)
            self._derived["edges"] = edges
        return list(edges.get(task, ()))

    def derived(self, key: str, build: Any) -> Any:
        """Return what `build(graph)` made of this graph, building it once; any later change of the graph forgets it."""
        if key not in self._derived:
            self._derived[key] = build(self)
        return self._derived[key]

    # Building

    def set_url(self, task: str, url: str) -> Graph:
        """Bind node `task` to a task URL; the first node of a graph becomes its entry point. `END` is left alone."""
        check_text("a task name", task, graph=self._name)
        check_text("a task URL", url, graph=self._name)
        if task != END:
            self._register(task, url)
            self._urls[task] = url
            self._derived.clear()
        return self

    def set_entry_point(self, task: str) -> Graph:
        self._entry = check_text("the entry point", task, graph=self._name)
        self._derived.clear()
        return self

    def set_fan_in(self, task: str) -> Graph:
        """Mark `task` as the place where a fan-out converges. Registers nothing; validation checks the name."""
        self._fan_ins[check_text("a fan-in", task, graph=self._name)] = None
        self._derived.clear()
        return self

    def set_reducer(self, field: str, reducer: Reducer | str) -> Graph:
        """Combine contributions to `field` with `reducer`, one of `Reducer` or its name."""
        check_field("a reducer's field", field, graph=self._name)
        try:
            self._reducers[field] = Reducer(reducer)
        except ValueError:
            known = ", ".join(Reducer)
            raise GraphError(
                f"graph {self._name!r}: {reducer!r} is no reducer for field {field!r}; the reducers are {known}",
                graph=self._name, rule="unknown-reducer", place=field,
            ) from None
        self._derived.clear()
        return self

    def add_transition(self, source: str, target: str) -> Graph:
        return self._add(Transition(source, target))

    def add_transition_when(self, source: str, target: str, when: str) -> Graph:
        """Fire when the condition holds. Several matching plain and when edges fan out."""
        return self._add(Transition(source, target, when=self._condition(when)))

    def add_transition_switch(self, source: str, target: str, when: str) -> Graph:
        """Add an arm to the switch of `source`: the first arm whose condition holds fires, in order of registration."""
        return self._add(Transition(source, target, when=self._condition(when), switch=True))

    def add_transition_fan_out(self, source: str, *targets: str) -> Graph:
        for target in targets:
            self.add_transition(source, target)
        return self

    def add_transition_chain(self, *tasks: str) -> Graph:
        for source, target in zip(tasks, tasks[1:], strict=False):
            self.add_transition(source, target)
        return self

    def add_transition_for_each(self, source: str, target: str, field: str, alias: str = ALIAS_DEFAULT) -> Graph:
        """Run `target` once per element of the list in `field`.

        A branch reads its element as `alias`, its place (from 0) as `<alias>Index` and their number as `<alias>Count`.
        """
        check_field("a forEach field", field, graph=self._name)
        alias = check_field("a forEach alias", alias or ALIAS_DEFAULT, graph=self._name)
        return self._add(Transition(source, target, for_each=field, alias=alias))

    def add_transition_goto(self, source: str, target: str) -> Graph:
        """Allow a task at `source` to call `flow.goto(target)`."""
        return self._add(Transition(source, target, goto=True))

    def add_transition_on_error(self, source: str, target: str) -> Graph:
        """Run `target` next when the task at `source` raises; it reads the error as the field `onErr`."""
        return self._add(Transition(source, target, on_error=True))

    def _condition(self, text: str) -> str:
        try:
            Expression(text)
        except GraphError as error:
            error.graph = self._name
            raise
        return text

    def _add(self, edge: Transition) -> Graph:
        for end in (edge.source, edge.target):
            check_text("a task name", end, graph=self._name)
        for end in (edge.source, edge.target):
            if end not in (END, ""):
                self._register(end, end)
        self._transitions.append(edge)
        self._derived.clear()
        return self

    def _register(self, task: str, url: str) -> None:
        if task in self._urls:
            return
        if len(self._urls) >= TASKS_MAX:
            raise GraphError(
                f"graph {self._name!r} has {TASKS_MAX} tasks; no more are allowed",
                graph=self._name, rule="too-many-tasks", place=task,
            )
        self._urls[task] = url
        self._entry = self._entry or task

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
