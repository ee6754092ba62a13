"""Graphs and state for tests: drawn from a line of text, or at random.

    sketch("S->A->J S->B->J J->END J⊕")     the graph that the behaviour rows would write so
    valid_graphs()      graphs that pass `validate()`, built from blocks that are valid by construction
    states()            initial states: the fields that such a graph's conditions and forEach edges read
    changes(graph)      what one step of a random task may write to fit them, its reducers included

The fields, which every graph of `valid_graphs` shares:

    f0 f1               small integers; conditions compare them            INT_FIELDS
    f2 f3               booleans; conditions test them                     BOOL_FIELDS
    l0 l1 l2            short lists of integers; forEach edges expand them LIST_FIELDS
    r_<reducer>         one per reducer, read by nothing                   REDUCED_FIELDS: name -> values that fit its reducer

A graph may also put a reducer on f0, f2, l0 or l1 that fits the field's type. Conditions and forEach edges read f0..f3 and
l0..l2 only, so tasks that write nothing but these fields, with values of their types, never fail a step by type; `onErr`
and the aliases item, x and y (with their Index and Count) appear beside them. Task `T7` calls the URL `task.T7`.

What a random task may ask for is what its edges allow: `flow.goto(edge.target)` for an edge with `goto`, raising for any
task (`on_error` edges lead forward only). Only goto edges lead back, so that a flow ends as soon as its tasks stop asking.
A flow of such a graph may still fail: a branch whose conditions all turn out false cannot converge; pass `certain=True`
to leave such routing out of branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import strategies as st

from dwarf.graph import END, Graph, Transition
from dwarf.reducers import Reducer

Block = tuple[Any, ...]
Arm = tuple[str, str, str, Block]

INT_FIELDS = ("f0", "f1")
BOOL_FIELDS = ("f2", "f3")
LIST_FIELDS = ("l0", "l1", "l2")
CONDITIONS = (
    "f0 > 1", "f0 == f1", "f1 < 2 && !f2", "f2", "!f3", "f2 || f0 >= 3", "(f0 != 1 || f3) && f1 <= 2", "true", "f3 == true",
)  # fmt: skip
ALIASES = ("item", "x", "y")
COMPATIBLE_REDUCERS = {
    "f0": (Reducer.REPLACE, Reducer.ADD, Reducer.MIN, Reducer.MAX),
    "f2": (Reducer.REPLACE, Reducer.AND, Reducer.OR),
    "l0": (Reducer.REPLACE, Reducer.APPEND),
    "l1": (Reducer.REPLACE, Reducer.UNION),
}

small = st.integers(0, 3)
lists = st.lists(small, max_size=3)
REDUCED_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "r_replace": small | st.sampled_from(["a", "b"]),
    "r_append": lists,
    "r_add": st.integers(-5, 5),
    "r_min": small,
    "r_max": small,
    "r_union": lists,
    "r_merge": st.dictionaries(st.sampled_from(["a", "b", "c"]), small, max_size=2),
    "r_and": st.booleans(),
    "r_or": st.booleans(),
    "r_concat": st.sampled_from(["", "a", "bc"]),
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(INT_FIELDS, small), **dict.fromkeys(BOOL_FIELDS, st.booleans()), **dict.fromkeys(LIST_FIELDS, lists)
}  # fmt: skip


def sketch(text: str, name: str = "G") -> Graph:
    """Return the graph of a sketch: edges or chains of edges between blanks, the first task being the entry.

    A->B plain, A-w->B when, A-s->B switch, A-*xs->B forEach over xs, A-g->B goto, A-e->B onError; J⊕ marks a fan-in. A
    when edge has the condition `ok`, a switch arm `pick`.
    """
    graph = Graph(name)
    for token in text.split():
        if token.endswith("⊕"):
            graph.set_fan_in(token[:-1])
            continue
        source, *steps = re.split(r"-(?:([wsge]|\*\w+)-)?>", token)
        for kind, target in zip(steps[::2], steps[1::2], strict=True):
            _sketch_edge(graph, source, target, kind)
            source = target
    return graph


def _sketch_edge(graph: Graph, source: str, target: str, kind: str | None) -> None:
    if not kind:
        graph.add_transition(source, target)
        return
    match kind[0]:
        case "w":
            graph.add_transition_when(source, target, "ok")
        case "s":
            graph.add_transition_switch(source, target, "pick")
        case "*":
            graph.add_transition_for_each(source, target, kind[1:])
        case "g":
            graph.add_transition_goto(source, target)
        case _:
            graph.add_transition_on_error(source, target)


def states() -> st.SearchStrategy[dict[str, Any]]:
    """Initial states: any part of f0..f3 and l0..l2, with values of their types."""
    return st.fixed_dictionaries({}, optional=_VALUES)


def changes(graph: Graph) -> st.SearchStrategy[dict[str, Any]]:
    """The writes of one step: a few of f0..f3, l0..l2 and the reduced fields of `graph`, with values that fit."""
    values = {**_VALUES, **{name: fits for name, fits in REDUCED_FIELDS.items() if name in graph.reducers}}
    return st.lists(st.sampled_from(sorted(values)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: values[name] for name in names})
    )


@st.composite
def valid_graphs(draw: st.DrawFn, *, leaves: int = 12, certain: bool = False) -> Graph:
    """Return a graph with nested fan-outs, switches, when and forEach edges, gotos, error routes and reducers.

    `leaves` bounds its size (a graph has about one to three times as many tasks). With `certain` no branch can get stuck on its
    conditions. The graph is named "Random", its tasks T0, T1, … in the order in which they are met from the entry, T0.
    """
    emission = _Emission(certain=certain)
    drawing = _Drawing(draw, draw(st.integers(1, leaves)))
    entry = emission.emit(("sequence", [drawing.block(), ("task", None, False)]), END, in_branch=False)
    reducers = {name: Reducer(name.removeprefix("r_")) for name in draw(_some(REDUCED_FIELDS, 3))}
    reducers.update({name: draw(st.sampled_from(COMPATIBLE_REDUCERS[name])) for name in draw(_some(COMPATIBLE_REDUCERS, 1))})
    return _renamed(emission, entry, reducers)


def _some(names: Iterable[str], count: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(sorted(names)), max_size=count, unique=True)


def _renamed(emission: _Emission, entry: str, reducers: dict[str, Reducer]) -> Graph:
    """Name the tasks in the order of a walk from the entry."""
    names = {entry: "T0"}
    order = [entry]
    for old in order:
        for edge in emission.edges[old]:
            if edge.target not in names and edge.target != END:
                names[edge.target] = f"T{len(names)}"
                order.append(edge.target)
    names[END] = END
    return Graph.assemble(
        name="Random",
        entry_point="T0",
        urls={names[old]: f"task.{names[old]}" for old in order},
        transitions=[
            msgspec.structs.replace(edge, source=names[old], target=names[edge.target]) for old in order for edge in emission.edges[old]
        ],
        fan_ins=[names[old] for old in order if old in emission.fan_ins],
        reducers=reducers,
    )


# A block has one way in, and leads on to one place; an empty sequence is no block at all.
#   ("task", condition or None, gotos)     condition: on its only edge; gotos: it may also goto where it leads, or out
#   ("sequence", blocks)      ("switch", [(condition, block)…])      ("loop", block)      ("guard", block, handler)
#   ("fan_out", stages, gotos, twin)       stages: lists of arms (kind, condition or field, alias, block); the fan-in of one
#                                          stage is the source of the next; twin: a switch picks one of two first sources
#                                          that share their branches

_EMPTY: Block = ("sequence", [])
_DEPTH = 4
_conditions = st.sampled_from(CONDITIONS)
_kinds = st.sampled_from(["task", "fan_out", "fan_out", "sequence", "switch", "guard", "loop"])
_arm_kinds = st.sampled_from(["plain", "when", "each"])


class _Drawing:
    """Draws blocks until the leaves are used up; what is drawn after that are tasks."""

    def __init__(self, draw: st.DrawFn, leaves: int) -> None:
        self.draw = draw
        self.leaves = leaves

    def block(self, depth: int = 0) -> Block:
        kind = self.draw(_kinds) if depth < _DEPTH and self.leaves > 0 else "task"
        made: Block = getattr(self, f"_{kind}")(depth + 1)
        return made

    def maybe(self, depth: int) -> Block:
        return self.block(depth) if self.leaves > 0 and self.draw(st.integers(0, 3)) else _EMPTY

    def _several(self, most: int, least: int = 1) -> range:
        return range(self.draw(st.integers(least, most)))

    def _task(self, _: int) -> Block:
        self.leaves -= 1
        return ("task", self.draw(st.none() | st.none() | _conditions), self.draw(st.booleans()))

    def _sequence(self, depth: int) -> Block:
        return ("sequence", [self.block(depth) for _ in self._several(3, 2)])

    def _switch(self, depth: int) -> Block:
        return ("switch", [(self.draw(_conditions), self.maybe(depth)) for _ in self._several(3)])

    def _loop(self, depth: int) -> Block:
        return ("loop", self.block(depth))

    def _guard(self, depth: int) -> Block:
        return ("guard", self.block(depth), self.maybe(depth))

    def _fan_out(self, depth: int) -> Block:
        stages = [[self._arm(depth) for _ in self._several(3)] for _ in self._several(2)]
        return ("fan_out", stages, self.draw(st.booleans()), self.draw(st.booleans()))

    def _arm(self, depth: int) -> Arm:
        kind = self.draw(_arm_kinds)
        text = self.draw({"plain": st.just(""), "when": _conditions, "each": st.sampled_from(LIST_FIELDS)}[kind])
        return (kind, text, self.draw(st.sampled_from(ALIASES)), self.maybe(depth))


class _Emission:
    """Writes blocks as edges, by source, under provisional names."""

    def __init__(self, *, certain: bool) -> None:
        self.certain = certain
        self.edges: dict[str, list[Transition]] = {}
        self.fan_ins: set[str] = set()

    def name(self) -> str:
        name = str(len(self.edges))
        self.edges[name] = []
        return name

    def add(self, source: str, target: str, **marks: Any) -> None:
        self.edges[source].append(Transition(source, target, **marks))

    def emit(self, block: Block, onward: str, *, in_branch: bool) -> str:
        """Write `block` so that it leads to `onward`; return its first task, which is `onward` for an empty block."""
        kind, *parts = block
        first: str = getattr(self, f"_{kind}")(*parts, onward, in_branch)
        return first

    def _task(self, condition: str | None, gotos: bool, onward: str, in_branch: bool) -> str:
        name = self.name()
        self.add(name, onward, when="" if in_branch and self.certain else condition or "")
        if gotos:
            self.add(name, onward, goto=True)
            if not in_branch:
                self.add(name, END, goto=True)
        return name

    def _sequence(self, blocks: list[Block], onward: str, in_branch: bool) -> str:
        for block in reversed(blocks):
            onward = self.emit(block, onward, in_branch=in_branch)
        return onward

    def _switch(self, arms: list[tuple[str, Block]], onward: str, in_branch: bool) -> str:
        name = self.name()
        for condition, block in arms:
            self.add(name, self.emit(block, onward, in_branch=in_branch), when=condition, switch=True)
        if in_branch and self.certain:
            self.add(name, onward, when="true", switch=True)
        return name

    def _loop(self, block: Block, onward: str, in_branch: bool) -> str:
        back = self.name()
        first = self.emit(block, back, in_branch=in_branch)
        self.add(back, onward)
        self.add(back, first, goto=True)
        return first

    def _guard(self, block: Block, handler: Block, onward: str, in_branch: bool) -> str:
        """Give the first task of a block an error route around it."""
        first = self.emit(block, onward, in_branch=in_branch)
        if not any(edge.on_error for edge in self.edges[first]):
            self.add(first, self.emit(handler, onward, in_branch=in_branch), on_error=True)
        return first

    def _fan_out(self, stages: list[list[Arm]], gotos: bool, twin: bool, onward: str, in_branch: bool) -> str:
        first = source = self.name()
        sources = [source]
        if twin:
            router, other = self.name(), self.name()
            self.add(router, source, when=CONDITIONS[0], switch=True)
            self.add(router, other, when="true", switch=True)
            first, sources = router, [source, other]
        for arms in stages:
            fan_in = self.name()
            self.fan_ins.add(fan_in)
            self._cohort(sources, arms, fan_in)
            if gotos:
                self.add(sources[0], fan_in, goto=True)
            sources = [fan_in]
        self.add(sources[0], onward)
        return first

    def _cohort(self, sources: list[str], arms: list[Arm], fan_in: str) -> None:
        if len(arms) == 1 and arms[0][0] != "each":
            arms = [*arms, ("plain", "", "", _EMPTY)]
        for kind, text, alias, block in arms:
            target = self.emit(block, fan_in, in_branch=True)
            for source in sources:
                if kind == "each":
                    self.add(source, target, for_each=text, alias=alias)
                else:
                    self.add(source, target, when=text)
