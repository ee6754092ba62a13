"""Building graphs: what each call registers, what it refuses at once, and that a graph's parts cannot be changed from outside."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from dwarf.errors import ExpressionError, GraphError
from dwarf.graph import END, Graph, Task, Transition
from dwarf.limits import FIELD_CHARS_MAX, NAME_CHARS_MAX, TASKS_MAX
from dwarf.reducers import Reducer
from dwarf.scopes import scopes_of
from tests.strategies import sketch


def edges(graph: Graph) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in graph.transitions]


@pytest.mark.row("A-01")
def test_a_new_graph_is_empty() -> None:
    graph = Graph("N")
    assert graph.name == "N"
    assert graph.entry_point == ""
    assert graph.tasks == []
    assert graph.transitions == []
    assert graph.fan_ins == []
    assert graph.reducers == {}
    assert graph.scheduler == ""
    assert list(graph) == []
    assert "A" not in graph
    assert Graph().name == ""


@pytest.mark.row("A-02")
def test_the_first_task_is_the_entry_point() -> None:
    graph = Graph().set_url("A", "u/a").set_url("B", "u/b")
    assert graph.tasks == [Task("A", "u/a"), Task("B", "u/b")]
    assert list(graph) == ["A", "B"]
    assert graph.entry_point == "A"


@pytest.mark.row("A-03")
def test_setting_a_url_again_changes_only_the_url() -> None:
    graph = Graph().set_url("A", "u/a").set_url("B", "u/b").set_url("A", "u/x")
    assert graph.tasks == [Task("A", "u/x"), Task("B", "u/b")]
    assert graph.entry_point == "A"
    graph.add_transition("A", "B").set_url("B", "u/y")
    assert graph.url_of("B") == "u/y"
    assert edges(graph) == [("A", "B")]


@pytest.mark.row("A-04")
def test_end_is_never_registered() -> None:
    graph = Graph().set_url(END, "u")
    assert graph.tasks == []
    assert graph.entry_point == ""
    graph.add_transition("A", END).add_transition_goto("B", END).add_transition_on_error("B", END).add_transition(END, "C")
    assert list(graph) == ["A", "B", "C"]
    assert END not in graph


@pytest.mark.row("A-05")
def test_an_edge_registers_both_of_its_ends() -> None:
    graph = Graph().add_transition("A", "B")
    assert graph.tasks == [Task("A", "A"), Task("B", "B")]
    assert graph.entry_point == "A"
    assert graph.transitions == [Transition("A", "B")]
    later = Graph().add_transition(END, "B")
    assert list(later) == ["B"]
    assert later.entry_point == "B"


def test_transitions_before_urls() -> None:
    graph = Graph().add_transition_chain("A", "B", END).set_url("B", "u/b").set_url("A", "u/a")
    assert graph.tasks == [Task("A", "u/a"), Task("B", "u/b")]
    assert graph.add_transition("A", "B").url_of("A") == "u/a"


@pytest.mark.row("A-08")
def test_the_entry_point_is_not_checked_when_it_is_set() -> None:
    graph = Graph().set_url("A", "a").set_url("B", "b")
    assert graph.set_entry_point("B").entry_point == "B"
    assert graph.set_entry_point("nowhere").entry_point == "nowhere"
    assert list(graph) == ["A", "B"]
    early = Graph().set_entry_point("B").add_transition_chain("A", "B", END)
    assert early.entry_point == "B"
    assert list(early) == ["A", "B"]


@pytest.mark.row("A-10")
def test_one_url_under_two_names() -> None:
    graph = Graph("G").set_url("X", "u").set_url("Y", "u").add_transition("X", "Y").add_transition("Y", END)
    assert [graph.url_of(task) for task in graph] == ["u", "u"]
    assert graph.edges_from("X") == [Transition("X", "Y")]
    assert graph.edges_from("Y") == [Transition("Y", END)]
    graph.validate()


@pytest.mark.row("A-11")
def test_a_chain() -> None:
    graph = Graph().add_transition_chain("a", "b", "c", END)
    assert graph.transitions == [Transition("a", "b"), Transition("b", "c"), Transition("c", END)]
    assert list(graph) == ["a", "b", "c"]
    assert graph.entry_point == "a"


@pytest.mark.parametrize("tasks", [(), ("solo",)])
def test_a_chain_of_fewer_than_two_is_none(tasks: tuple[str, ...]) -> None:
    graph = Graph().add_transition_chain(*tasks)
    assert (graph.tasks, graph.transitions, graph.entry_point) == ([], [], "")


def test_end_in_the_middle_of_a_chain_is_left_to_validation() -> None:
    graph = Graph("G").add_transition_chain("a", END, "b")
    assert edges(graph) == [("a", END), (END, "b")]
    assert list(graph) == ["a", "b"]


@pytest.mark.row("A-13")
def test_a_static_fan_out() -> None:
    graph = Graph().add_transition_fan_out("a", "b", "c")
    assert graph.transitions == [Transition("a", "b"), Transition("a", "c")]
    assert list(graph) == ["a", "b", "c"]
    assert graph.fan_ins == []
    assert [task.fan_in for task in graph.tasks] == [False] * 3
    assert Graph().add_transition_fan_out("a").tasks == []


@pytest.mark.row("A-14")
def test_the_default_alias() -> None:
    stored = [
        Graph().add_transition_for_each("s", "w", "xs", "").transitions,
        Graph().add_transition_for_each("s", "w", "xs").transitions,
        Graph().add_transition_for_each("s", "w", "xs", "item").transitions,
    ]
    assert stored == [[Transition("s", "w", for_each="xs", alias="item")]] * 3
    assert Graph().add_transition_for_each("s", "w", "xs", "x").transitions[0].alias == "x"


@pytest.mark.row("A-15")
def test_an_edge_added_twice_is_there_twice() -> None:
    graph = Graph().add_transition_when("A", "B", "x").add_transition("A", "C").add_transition_when("A", "B", "x")
    assert graph.transitions == [Transition("A", "B", when="x"), Transition("A", "C"), Transition("A", "B", when="x")]
    assert graph.edges_from("A") == graph.transitions


@pytest.mark.row("A-16")
def test_the_last_reducer_of_a_field_counts() -> None:
    graph = Graph().set_reducer("f", Reducer.ADD).set_reducer("f", Reducer.APPEND)
    assert graph.reducers == {"f": Reducer.APPEND}
    assert Graph().set_reducer("f", "append").reducers == {"f": Reducer.APPEND}


def test_every_reducer_can_be_named() -> None:
    graph = Graph()
    for reducer in Reducer:
        graph.set_reducer(f"f_{reducer}", str(reducer))
    assert list(graph.reducers.values()) == list(Reducer)
    assert len(graph.reducers) == 10


@pytest.mark.row("A-18")
def test_a_fan_in_mark_registers_nothing() -> None:
    graph = Graph().set_fan_in("J")
    assert graph.tasks == []
    assert graph.entry_point == ""
    assert graph.is_fan_in("J")
    assert not graph.is_fan_in("K")
    assert graph.fan_ins == ["J"]
    graph.set_fan_in("J").set_url("J", "j")
    assert graph.tasks == [Task("J", "j", fan_in=True)]
    assert graph.fan_ins == ["J"]


@pytest.mark.row("A-19")
@pytest.mark.parametrize(
    ("text", "fans_out"),
    [
        ("X->A", False),
        ("X->A X->B", True),
        ("X->A X->A", True),
        ("X-w->A", False),
        ("X-w->A X-w->B", True),
        ("X->A X-w->B", True),
        ("X-w->A X->B", True),
        ("X-*xs->A", True),
        ("X-*xs->A X->B", True),
        ("X-s->A X-s->B", False),
        ("X-g->A X-g->B X-e->C", False),
        ("X->A X-g->B X-e->C X-e->D", False),
        ("X->A Y->B", False),
        ("X->END X-w->END", True),
        ("Y->X", False),
    ],
)
def test_fan_out_sources(text: str, fans_out: bool) -> None:
    assert sketch(text).is_fan_out_source("X") is fans_out
    assert not Graph().is_fan_out_source("X")


def test_calls_chain() -> None:
    graph = Graph("G")
    calls: list[Callable[[], Graph]] = [
        lambda: graph.set_url("A", "a"),
        lambda: graph.set_url(END, "a"),
        lambda: graph.set_entry_point("A"),
        lambda: graph.set_fan_in("A"),
        lambda: graph.set_reducer("f", "add"),
        lambda: graph.set_scheduler("chain"),
        lambda: graph.add_transition("A", "B"),
        lambda: graph.add_transition_when("A", "B", "x"),
        lambda: graph.add_transition_switch("A", "B", "x"),
        lambda: graph.add_transition_fan_out("A", "B"),
        lambda: graph.add_transition_chain("A", "B"),
        lambda: graph.add_transition_for_each("A", "B", "xs"),
        lambda: graph.add_transition_goto("A", "B"),
        lambda: graph.add_transition_on_error("A", "B"),
    ]
    assert all(call() is graph for call in calls)


def test_marks_of_edges() -> None:
    graph = sketch("A->B A-w->B A-s->B A-*xs->B A-g->B A-e->B")
    assert [edge.fires_by_itself for edge in graph.transitions] == [True, True, True, True, False, False]
    assert [str(edge) for edge in graph.transitions] == [
        "'A' -> 'B'",
        "'A' -> 'B' when 'ok'",
        "'A' -> 'B' switch when 'pick'",
        "'A' -> 'B' forEach 'xs'",
        "'A' -> 'B' goto",
        "'A' -> 'B' onError",
    ]


def test_urls_are_looked_up_by_name() -> None:
    graph = sketch("A->END").set_url("A", "u/a")
    assert graph.url_of("A") == "u/a"
    assert graph.url_of(END) == END
    for name in ("B", "", "u/a", None, ["A"]):
        with pytest.raises(GraphError, match="graph 'G': .* is no task of the graph") as caught:
            graph.url_of(name)  # type: ignore[arg-type]
        assert caught.value.rule == "unknown-task"


def test_repr_names_the_graph() -> None:
    assert repr(sketch("A->B")) == "<Graph 'G': 2 tasks, 1 transitions>"


# ---- copies and derived results ----


def test_what_a_graph_returns_is_a_copy() -> None:
    graph = sketch("A->B A->C B->J C->J J->END J⊕").set_reducer("f", "add")
    before = graph.to_json()
    graph.tasks.clear()
    graph.transitions.append(Transition("A", "Z"))
    graph.reducers["g"] = Reducer.ADD
    graph.fan_ins.clear()
    graph.edges_from("A").clear()
    assert graph.to_json() == before
    assert graph.edges_from("A") == [Transition("A", "B"), Transition("A", "C")]
    graph.validate()


def test_tasks_and_transitions_cannot_be_changed() -> None:
    graph = sketch("A->B")
    with pytest.raises(AttributeError):
        graph.tasks[0].url = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        graph.transitions[0].target = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        graph.name = "other"  # type: ignore[misc]


CHANGES: list[Callable[[Graph], Graph]] = [
    lambda graph: graph.set_url("New", "u"),
    lambda graph: graph.set_url("A", ""),
    lambda graph: graph.set_entry_point("J"),
    lambda graph: graph.set_fan_in("A"),
    lambda graph: graph.add_transition("A", END),
    lambda graph: graph.add_transition_when("A", END, "x"),
    lambda graph: graph.add_transition_switch("S", "A", "x"),
    lambda graph: graph.add_transition_fan_out("A", END, "J"),
    lambda graph: graph.add_transition_chain("A", END),
    lambda graph: graph.add_transition_for_each("S", END, "xs"),
    lambda graph: graph.add_transition_goto("A", END),
    lambda graph: graph.add_transition_on_error("A", END),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_validation_is_seen(change: Callable[[Graph], Graph]) -> None:
    graph = sketch("S->A->J S->B->J J->END J⊕")
    graph.validate()
    assert graph.edges_from("A") == [Transition("A", "J")]
    assert scopes_of(graph).fan_in_of == {"S": "J"}
    change(graph)
    with pytest.raises(GraphError):
        graph.validate()
    assert graph.edges_from("A") == [edge for edge in graph.transitions if edge.source == "A"]


def test_a_graph_can_be_mended_after_validation() -> None:
    graph = sketch("S->A->J S->B->J J->END")
    with pytest.raises(GraphError):
        graph.validate()
    assert scopes_of(graph).fan_in_of == {}
    graph.set_fan_in("J").validate()
    assert scopes_of(graph).fan_in_of == {"S": "J"}
    graph.set_reducer("f", "add").validate()


def test_derived_results_are_built_once() -> None:
    graph, built = sketch("A->END"), []

    def build(given: Graph) -> int:
        built.append(given)
        return len(built)

    assert [graph.derived("count", build), graph.derived("count", build)] == [1, 1]
    graph.set_entry_point("A")
    assert graph.derived("count", build) == 2
    assert built == [graph, graph]


def test_graphs_can_be_copied_and_pickled() -> None:
    graph = sketch("S->A->J S->B->J J->END J⊕").set_reducer("f", "add")
    graph.validate()
    for twin in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert twin.to_json() == graph.to_json()
        twin.validate()
    apart = copy.deepcopy(graph).add_transition("A", END)
    assert apart.to_json() != graph.to_json()
    graph.validate()


# ---- what is refused at once ----


def every_place_for_a_name(graph: Graph, name: Any) -> list[Callable[[], object]]:
    return [
        lambda: graph.set_url(name, "u"),
        lambda: graph.add_transition(name, "B"),
        lambda: graph.add_transition("A", name),
        lambda: graph.add_transition_when(name, "B", "x"),
        lambda: graph.add_transition_when("A", name, "x"),
        lambda: graph.add_transition_switch(name, "B", "x"),
        lambda: graph.add_transition_switch("A", name, "x"),
        lambda: graph.add_transition_fan_out(name, "B", "C"),
        lambda: graph.add_transition_fan_out(name),
        lambda: graph.add_transition_fan_out("A", "B", name),
        lambda: graph.add_transition_chain("A", "B", name),
        lambda: graph.add_transition_chain(name),
        lambda: graph.add_transition_for_each(name, "B", "xs"),
        lambda: graph.add_transition_for_each("A", name, "xs"),
        lambda: graph.add_transition_goto(name, "B"),
        lambda: graph.add_transition_goto("A", name),
        lambda: graph.add_transition_on_error(name, "B"),
        lambda: graph.add_transition_on_error("A", name),
    ]


BAD_TEXTS: list[tuple[Any, str]] = [
    (None, "name-type"),
    (7, "name-type"),
    (True, "name-type"),
    (b"A", "name-type"),
    (["A"], "name-type"),
    (("A", "B"), "name-type"),
    ({"A": 1}, "name-type"),
    (object(), "name-type"),
    (Task("A", "a"), "name-type"),
    ("x" * (NAME_CHARS_MAX + 1), "name-length"),
    ("x" * 1_000_000, "name-length"),
    ("a\0b", "name-text"),
    ("\ud800", "name-text"),
]


@pytest.mark.row("B-55")
@pytest.mark.parametrize(("name", "rule"), [*BAD_TEXTS, ("", "task-name")])
def test_bad_task_names_are_refused_by_every_call(name: Any, rule: str) -> None:
    graph = sketch("A->B")
    before = graph.to_json()
    for call in every_place_for_a_name(graph, name):
        with pytest.raises(GraphError, match=r"^graph 'G': a task's name ") as caught:
            call()
        assert (caught.value.rule, caught.value.graph, caught.value.status) == (rule, "G", 400)
        assert len(str(caught.value)) < 300
        assert graph.to_json() == before


@pytest.mark.row("B-55")
@pytest.mark.parametrize(("text", "rule"), BAD_TEXTS)
def test_other_bad_texts_are_refused_at_once(text: Any, rule: str) -> None:
    graph = sketch("A->B")
    before = graph.to_json()
    calls: list[Callable[[], object]] = [
        lambda: Graph(text),
        lambda: graph.set_url("A", text),
        lambda: graph.set_entry_point(text),
        lambda: graph.set_fan_in(text),
        lambda: graph.set_scheduler(text),
    ]
    for call in calls:
        with pytest.raises(GraphError) as caught:
            call()
        assert caught.value.rule == rule
        assert len(str(caught.value)) < 300
    assert graph.to_json() == before


@pytest.mark.row("B-55")
def test_the_longest_names() -> None:
    longest = "é" * NAME_CHARS_MAX
    graph = Graph(longest).set_url(longest, longest).add_transition(longest, END)
    graph.validate()
    assert Graph.from_json(graph.to_json()).url_of(longest) == longest


def test_names_may_hold_anything_else() -> None:
    for name in (" ", "a b", "https://host:8080/a?b=c#d", 'quo"te', "né", "😀", "\t\n", "end", "End", "name\x7f"):
        graph = Graph(name + "!").set_url(name, name).add_transition(name, END)
        graph.validate()
        assert list(Graph.from_json(graph.to_json())) == [name]


BAD_FIELDS = ["a.b", "a-b", "a b", " a", "a\n", "é", "ａ", "a$", "a[0]", "true", "false", "TRUE", "fAlse", "12", "1e3", "0E0", "٣"]


@pytest.mark.row("B-54")
@pytest.mark.parametrize("field", [*BAD_FIELDS, ""])
def test_fields_that_no_condition_can_spell(field: str) -> None:
    graph = sketch("A->B")
    before = graph.to_json()
    for call in (lambda: graph.add_transition_for_each("A", "B", field), lambda: graph.set_reducer(field, Reducer.ADD)):
        with pytest.raises(GraphError, match="not a name that a condition can spell") as caught:
            call()
        assert (caught.value.rule, caught.value.place, caught.value.graph) == ("field-name", field, "G")
    if field:
        with pytest.raises(GraphError, match="alias .* is not a name that a condition can spell"):
            graph.add_transition_for_each("A", "B", "xs", field)
    assert graph.to_json() == before


@pytest.mark.row("B-54")
@pytest.mark.parametrize(("field", "rule"), [*BAD_TEXTS[:9], ("x" * (FIELD_CHARS_MAX + 1), "name-length")])
def test_fields_of_wrong_types_and_lengths(field: Any, rule: str) -> None:
    graph = Graph("G")
    calls: list[Callable[[], object]] = [
        lambda: graph.set_reducer(field, "add"),
        lambda: graph.add_transition_for_each("A", "B", field),
        lambda: graph.add_transition_for_each("A", "B", "xs", field),
    ]
    for call in calls:
        with pytest.raises(GraphError, match="graph 'G'") as caught:
            call()
        assert caught.value.rule == rule
    assert graph.tasks == []


@pytest.mark.parametrize("field", ["a", "A9_", "_", "5a", "null", "Trues", "and", "1_0", "trueish", "x" * FIELD_CHARS_MAX])
def test_fields_that_a_condition_can_spell(field: str) -> None:
    graph = Graph("G").set_reducer(field, "add").add_transition_for_each("A", "J", field, field).add_transition("J", END)
    graph.set_fan_in("J").validate()


@pytest.mark.row("B-53")
@pytest.mark.parametrize("reducer", ["sum", "", "ADD", "add ", None, 3, ["add"], {}, b"add", Reducer])
def test_unknown_reducers_are_refused_when_set(reducer: Any) -> None:
    graph = Graph("G").set_reducer("f", "min")
    with pytest.raises(GraphError, match=r"^graph 'G': .* is no reducer for field 'f'; the reducers are replace, append, add, ") as caught:
        graph.set_reducer("f", reducer)
    assert (caught.value.rule, caught.value.place) == ("unknown-reducer", "f")
    assert graph.reducers == {"f": Reducer.MIN}


@pytest.mark.row("B-15", "B-11")
@pytest.mark.parametrize(
    ("when", "rule"),
    [
        ("(((", "expression-syntax"),
        ("", "expression-syntax"),
        ("  \t", "expression-syntax"),
        ("a and b", "expression-syntax"),
        ("x" * 20_000, "expression-length"),
        (None, "expression-type"),
        (True, "expression-type"),
        (b"x", "expression-type"),
        (["x"], "expression-type"),
    ],
)
def test_bad_conditions_are_refused_at_once(when: Any, rule: str) -> None:
    graph = Graph("G")
    for add in (graph.add_transition_when, graph.add_transition_switch):
        with pytest.raises(ExpressionError, match=r"^graph 'G': the condition of 'A' -> 'B': ") as caught:
            add("A", "B", when)
        assert (caught.value.rule, caught.value.graph, caught.value.place) == (rule, "G", "'A' -> 'B'")
    assert graph.tasks == []


def test_a_condition_with_a_bad_name_is_refused_whichever_comes_first() -> None:
    for source in ("", None, ["A"]):
        with pytest.raises(GraphError):
            Graph("G").add_transition_when(source, "B", "(((")  # type: ignore[arg-type]


def test_an_edge_that_needs_one_task_too_many_adds_none() -> None:
    graph = Graph("G").add_transition_chain(*(f"t{number}" for number in range(TASKS_MAX - 1)))
    before = graph.to_json()
    with pytest.raises(GraphError) as caught:
        graph.add_transition("new", "newer")
    assert caught.value.rule == "too-many-tasks"
    assert graph.to_json() == before
    graph.add_transition("new", "new")


def test_too_many_tasks_are_refused_when_added() -> None:
    graph = Graph("G").add_transition_chain(*(f"t{number}" for number in range(TASKS_MAX - 1)), "last", END)
    graph.validate()
    before = graph.to_json()
    for call in (
        lambda: graph.set_url("more", "u"),
        lambda: graph.add_transition("last", "more"),
        lambda: graph.add_transition("more", "last"),
        lambda: graph.add_transition_chain("t0", "more", "last"),
    ):
        with pytest.raises(GraphError, match="no more than 10000 tasks") as caught:
            call()
        assert (caught.value.rule, caught.value.place) == ("too-many-tasks", "more")
    assert graph.to_json() == before
    graph.set_url("last", "u").add_transition_goto("last", "t0").validate()


def test_a_scheduler_may_be_asked_for() -> None:
    graph = sketch("A->END")
    assert graph.set_scheduler("chain").scheduler == "chain"
    graph.validate()
    assert graph.set_scheduler("").scheduler == ""
