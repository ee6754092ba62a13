"""Which fan-in each fan-out converges on: known graphs, and a second opinion that walks every path with a real stack."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from dwarf.graph import END, Graph, Transition
from dwarf.scopes import scopes_of
from tests.strategies import sketch, valid_graphs

Stack = tuple[str, ...]
Place = tuple[str, Stack]  # a task, and the sources of the cohorts that are open there


# ---- known graphs ----


@pytest.mark.row("B-27", "B-31", "B-50")
def test_a_fan_out_and_its_branches() -> None:
    scopes = scopes_of(sketch("T->S S->A->J S-w->B->C->J S->J J->K->END J⊕"))
    assert scopes.fan_in_of == {"S": "J"}
    assert scopes.inside == {"A": "J", "B": "J", "C": "J"}
    assert scopes.depth == {"T": 0, "S": 0, "A": 1, "B": 1, "C": 1, "J": 0, "K": 0}
    assert scopes.problems == []
    itself = scopes_of(sketch("E-w->J E-w->J J->END J⊕"))
    assert (itself.fan_in_of, itself.inside, itself.problems) == ({"E": "J"}, {}, [])


@pytest.mark.row("B-44", "B-46")
def test_nested_and_chained_fan_outs() -> None:
    scopes = scopes_of(sketch("S-*xs->C-*ys->D->I->J-*zs->W->K->END I⊕ J⊕ K⊕ C-g->I D-e->I I-g->J J-g->K"))
    assert scopes.fan_in_of == {"S": "J", "C": "I", "J": "K"}
    assert scopes.inside == {"C": "J", "D": "I", "I": "J", "W": "K"}
    assert scopes.depth == {"S": 0, "C": 1, "D": 2, "I": 1, "J": 0, "W": 1, "K": 0}
    assert scopes.problems == []


@pytest.mark.row("B-41")
def test_what_is_reached_only_by_a_request_of_a_source() -> None:
    scopes = scopes_of(sketch("S-*xs->D-*ys->W->I D-g->J I->D J-*zs->V->L->END I⊕ J⊕ L⊕"))
    assert scopes.problems == []
    assert scopes.fan_in_of == {"S": "J", "D": "I", "J": "L"}
    assert scopes.depth == {"S": 0, "D": 1, "W": 2, "I": 1, "J": 0, "V": 1, "L": 0}
    rest = scopes_of(sketch("S-*xs->D-*ys->W-g->I D-g->J I->D J->K->END I⊕ J⊕ K-g->S"))
    assert rest.problems == []
    assert rest.depth == {"S": 0, "D": 1, "W": 2, "I": 1, "J": 0, "K": 0}


def test_requests_wait_for_one_another() -> None:
    """The fan-in of A is known only by way of B's request, that of B only by way of C's."""
    text = "A-*x->B B-*x->C C-*x->W W->K K->C C-g->J J->B B-g->I I->END A-g->I I⊕ J⊕ K⊕"
    scopes = scopes_of(sketch(text))
    assert scopes.problems == []
    assert scopes.fan_in_of == {"A": "I", "B": "J", "C": "K"}


def test_alternative_sources_share_their_cohort() -> None:
    scopes = scopes_of(sketch("R-s->S R-s->T S->A S->B T->B T->C A->J B->J C->J J->END J⊕ T-g->J S-e->J"))
    assert scopes.problems == []
    assert scopes.fan_in_of == {"S": "J", "T": "J"}
    assert scopes.inside == {"A": "J", "B": "J", "C": "J"}


@pytest.mark.parametrize(
    "text",
    [
        "R-s->S R-s->T S->A S->B A->A2->A3->J B->B2->B3->J T->J T->A J->END J⊕",
        "O-*x->R R-s->T R-s->S S->A S->B S-g->J T->C T->D T-g->X C-g->A D-g->A A-g->A2 B-g->A2 A2->J J->R X->END J⊕ X⊕",
        "O-*x->R O-g->X R-s->S R-s->T S->A S->B T->C T->D T-g->X C-g->A D-g->A A->J B->J J->R X->END J⊕ X⊕",
    ],
    ids=["the later one has the fan-in", "both wait", "one waits, the other has the fan-in"],
)
def test_what_is_known_of_cohorts_outlives_their_union(text: str) -> None:
    graph = sketch(text)
    graph.validate()
    assert scopes_of(graph).fan_in_of["S"] == scopes_of(graph).fan_in_of["T"] == "J"
    agree(graph)


def test_cohorts_that_meet_after_they_converged() -> None:
    graph = sketch("R-s->S R-s->T S->K S->A T->J T->A A->A2->A3->K J->END K->END J⊕ K⊕")
    assert scopes_of(graph).problems[0].rule == "two-fan-ins"
    assert agree(graph) == "two fan-ins"


def test_scopes_are_worked_out_once() -> None:
    graph = sketch("S->A->J S->B->J J->END J⊕")
    assert scopes_of(graph) is scopes_of(graph)
    before = scopes_of(graph)
    graph.set_reducer("f", "add")
    assert scopes_of(graph) is not before
    assert scopes_of(graph) == before


@pytest.mark.parametrize(
    ("text", "fan_in_of", "inside"),
    [
        ("S->A->J S->B->K J->END K->END J⊕ K⊕", {"S": "J"}, {"A": "J", "B": "J"}),
        ("S->A->J S->B->END J->END J⊕", {"S": "J"}, {"A": "J", "B": "J"}),
        ("S->A->END S->B->END", {}, {}),
        ("A->J->END J⊕", {}, {}),
        ("S->A->J S->B->J J->END K⊕ J⊕", {"S": "J"}, {"A": "J", "B": "J"}),
        ("R-*xs->S S->A->A S->B->B S-g->J J-*ys->J2->END J⊕ J2⊕", {"R": "J", "J": "J2"}, {"S": "J"}),
    ],
)
def test_broken_graphs_get_what_can_be_had(text: str, fan_in_of: dict[str, str], inside: dict[str, str]) -> None:
    scopes = scopes_of(sketch(text))
    assert scopes.fan_in_of == fan_in_of
    assert scopes.inside == inside


def test_graphs_without_an_entry_have_no_scopes() -> None:
    for graph in (Graph(), sketch("A->B").set_entry_point("Z"), sketch("A->B").set_entry_point(END)):
        scopes = scopes_of(graph)
        assert (scopes.depth, scopes.problems) == ({}, [])


# ---- the second opinion: every reachable place, one by one, with the stack a flow would have there ----


class Broken(Exception):
    """The graph breaks a rule; the message says which."""


class Places:
    """All places a flow of `graph` could be in. Judges nothing by a task's name alone: stacks are never merged."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.out = {task: [edge for edge in graph.transitions if edge.source == task] for task in graph}
        self.sources = {task for task in graph if self.forks(task)}
        self.closers: dict[str, set[str]] = {source: set() for source in self.sources}
        self.moves: dict[Place, list[tuple[Place | None, int]]] = {}  # to the place reached, and the depth passed through

    def forks(self, task: str) -> bool:
        arms = [edge for edge in self.out[task] if not (edge.goto or edge.on_error or edge.switch)]
        return len(arms) > 1 or any(edge.for_each for edge in arms)

    def known(self) -> dict[str, str]:
        return {source: next(iter(found)) for source, found in self.closers.items() if found}

    def judge(self) -> None:
        own: dict[str, str] = {}
        while True:
            self.explore(own)
            if self.known() == own:
                break
            own = self.known()
        reached = {task for task, _ in self.moves}
        for source in self.sources & reached:
            if not self.closers[source]:
                raise Broken("a fan-out never converges")
        if {task for task in self.graph.fan_ins if task in reached} - set(own.values()):
            raise Broken("a fan-in that nothing converges on")
        for place in self.moves:
            if place[1] and not self.can_close(place):
                raise Broken("a branch is stuck")

    def explore(self, own: dict[str, str]) -> None:
        start = (self.graph.entry_point, ())
        self.moves = {}
        depths: dict[str, int] = {}
        todo: deque[Place] = deque([start])
        while todo:
            place = todo.popleft()
            if place in self.moves:
                continue
            task, stack = place
            if depths.setdefault(task, len(stack)) != len(stack):
                raise Broken("a task at two depths")
            self.moves[place] = [move for edge in self.out[task] for move in self.move(edge, stack, own)]
            todo.extend(target for target, _ in self.moves[place] if target is not None)

    def move(self, edge: Transition, stack: Stack, own: dict[str, str]) -> Iterator[tuple[Place | None, int]]:
        forks = edge.source in self.sources
        request = edge.goto or edge.on_error
        if forks and request and self.graph.is_fan_in(edge.target):
            if edge.source not in own:
                return
            if own[edge.source] == edge.target:
                yield (edge.target, stack), len(stack)
                return
        if forks and not request:
            stack = (*stack, edge.source)
        if edge.target == END:
            if stack:
                raise Broken("a branch leads to END")
            yield None, 0
        elif self.graph.is_fan_in(edge.target):
            if not stack:
                raise Broken("a fan-in outside any fan-out")
            self.closers[stack[-1]].add(edge.target)
            if len(self.closers[stack[-1]]) > 1:
                raise Broken("two fan-ins")
            yield (edge.target, stack[:-1]), len(stack) - 1
        else:
            yield (edge.target, stack), len(stack)

    def can_close(self, place: Place) -> bool:
        """Tell whether some path closes the cohort that `place` is in, without closing one around it before."""
        depth = len(place[1])
        seen, todo = {place}, [place]
        while todo:
            for target, through in self.moves[todo.pop()]:
                if through < depth:
                    return True
                if target is not None and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False


def second_opinion(graph: Graph) -> str:
    try:
        Places(graph).judge()
    except Broken as broken:
        return str(broken)
    return ""


TASKS = "ABCDEFG"


def edge_of(source: str, target: str, kind: str) -> Transition:
    return {
        "plain": Transition(source, target),
        "when": Transition(source, target, when="x"),
        "switch": Transition(source, target, when="x", switch=True),
        "each": Transition(source, target, for_each="xs", alias="item"),
        "goto": Transition(source, target, goto=True),
        "error": Transition(source, target, on_error=True),
    }[kind]


def assembled(edges: list[Transition], fan_ins: list[str]) -> Graph:
    names = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target) if end != END)
    return Graph.assemble(
        name="G", entry_point=next(iter(names)), urls={name: name for name in names}, transitions=edges, fan_ins=fan_ins, reducers={}
    )


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    """Small graphs of arbitrary edges; most are broken in some way."""
    tasks = TASKS[: draw(st.integers(2, 6))]
    kinds = st.sampled_from(["plain", "plain", "when", "switch", "each", "goto", "error"])
    edges = st.builds(edge_of, st.sampled_from(tasks), st.sampled_from([*tasks, *tasks, END]), kinds)
    return assembled(draw(st.lists(edges, min_size=2, max_size=9)), draw(st.lists(st.sampled_from(tasks), max_size=2, unique=True)))


@st.composite
def nearly_valid_graphs(draw: st.DrawFn) -> Graph:
    """Valid graphs with up to two edges or marks added, taken away or turned elsewhere."""
    graph = draw(valid_graphs(leaves=6))
    tasks, edges, fan_ins = list(graph), graph.transitions, graph.fan_ins
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(edges) - 1))
        match draw(st.sampled_from(["add", "take", "turn", "mark", "unmark", "request"])):
            case "add":
                edges.append(draw(st.builds(edge_of, st.sampled_from(tasks), st.sampled_from([*tasks, END]), st.just("plain"))))
            case "request":
                target, kind = draw(st.sampled_from([*tasks, *fan_ins, END])), draw(st.sampled_from(["goto", "error"]))
                edges.append(edge_of(draw(st.sampled_from(tasks)), target, kind))
            case "take" if len(edges) > 1:
                del edges[place]
            case "turn":
                edges[place] = msgspec.structs.replace(edges[place], target=draw(st.sampled_from([*tasks, *fan_ins, END])))
            case "mark":
                fan_ins.append(draw(st.sampled_from(tasks)))
            case "unmark" if fan_ins:
                fan_ins.remove(draw(st.sampled_from(fan_ins)))
    return assembled(edges, fan_ins)


def agree(graph: Graph) -> str:
    """Assert that both opinions of a graph are the same, and return what is broken."""
    scopes, opinion = scopes_of(graph), second_opinion(graph)
    assert (not scopes.problems) == (not opinion), (opinion, scopes.problems, [str(edge) for edge in graph.transitions], graph.fan_ins)
    if opinion:
        return opinion
    places = Places(graph)
    places.judge()
    assert scopes.fan_in_of == places.known()
    assert scopes.depth == {task: len(stack) for task, stack in places.moves}
    assert scopes.inside == {task: places.known()[stack[-1]] for task, stack in places.moves if stack}
    return ""


@settings(max_examples=150)
@given(any_graphs())
@example(sketch("A-*x->B B-*x->C C-*x->W W->K K->C C-g->J J->B B-g->I I->END A-g->I I⊕ J⊕ K⊕"))
@example(sketch("R-s->S R-s->T S->A S->B T->A T->C A->J B->J C->K J->END K->END J⊕ K⊕"))
@example(sketch("S-*xs->S S->J J->END J⊕"))
@example(sketch("S->A->J S->A S-g->J J->END J⊕ J-g->S A-g->J"))
def test_any_graph_is_judged_as_by_walking_it(graph: Graph) -> None:
    event(agree(graph) or "sound")


@settings(max_examples=100)
@given(nearly_valid_graphs())
def test_nearly_valid_graphs_are_judged_as_by_walking_them(graph: Graph) -> None:
    event(agree(graph) or "sound")


@settings(max_examples=40)
@given(valid_graphs(leaves=8))
def test_valid_graphs_are_valid_to_both(graph: Graph) -> None:
    graph.validate()
    assert agree(graph) == ""
