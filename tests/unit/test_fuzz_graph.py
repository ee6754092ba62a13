"""Graphs out of anything: whatever is read, built or validated, nothing but `GraphError` is raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dwarf.errors import ExpressionError, GraphError
from dwarf.expression import Expression
from dwarf.graph import END, Graph
from dwarf.names import check_field
from dwarf.reducers import Reducer
from dwarf.scopes import scopes_of
from tests.strategies import changes, sketch, states, valid_graphs

NAMES = ["A", "B", "C", "J", END, "", "end", "A.b", "é", "x" * 513, "a\0b"]
WHENS = ["", "x", "true", "x > 1 && !y", "(((", " ", "x =~ '['", "a or b"]
FIELDS = ["", "xs", "a.b", "item", "true", "7"]

names = st.sampled_from(NAMES)
common = st.sampled_from(NAMES[:5])
flags = st.booleans()
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=5
)


def members(required: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


edges = members(
    {"from": common | names, "to": common | names},
    {
        "when": st.sampled_from(WHENS), "withGoto": flags, "forEach": st.sampled_from(FIELDS), "as": st.sampled_from(FIELDS),
        "onError": flags, "switch": flags,
    },
)  # fmt: skip
plain_edges = members({"from": common, "to": common}, {"withGoto": st.just(True)})
tasks = members({"name": common | names}, {"url": names, "fanIn": flags})
well_formed = members(
    {"name": st.sampled_from(["G", "G", "", " "]), "entryPoint": common, "tasks": st.lists(tasks, max_size=5)},
    {
        "transitions": st.lists(plain_edges | edges, max_size=8),
        "reducers": st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(["add", "append", "sum", ""]), max_size=2),
        "scheduler": names,
    },
)


def only_graph_errors(call: Callable[[], object]) -> bool:
    try:
        call()
    except GraphError as error:
        refusal = error
    else:
        return True
    assert refusal.rule
    assert str(refusal)
    return False


def put_through(graph: Graph) -> None:
    """Do to a graph all that can be done to one."""
    valid = only_graph_errors(graph.validate)
    scopes = scopes_of(graph)
    assert valid <= (not scopes.problems)
    assert set(scopes.depth) <= set(graph)
    twin = Graph.from_json(graph.to_json())
    assert twin.to_json() == graph.to_json()
    assert only_graph_errors(twin.validate) == valid or set(graph.fan_ins) - set(graph)


@given(st.binary(max_size=60) | st.text(max_size=40))
@example(b"")
@example("\ud800")
def test_any_bytes_are_read_or_refused(data: bytes | str) -> None:
    only_graph_errors(lambda: put_through(Graph.from_json(data)))


@given(anything)
def test_any_json_is_read_or_refused(value: Any) -> None:
    only_graph_errors(lambda: put_through(Graph.from_json(json.dumps(value))))


@given(st.dictionaries(st.sampled_from(["name", "entryPoint", "tasks", "transitions", "reducers", "scheduler"]), anything))
def test_wrong_types_anywhere_are_refused(form: dict[str, Any]) -> None:
    only_graph_errors(lambda: put_through(Graph.from_json(json.dumps(form))))


@given(well_formed, st.data())
def test_one_wrong_type_in_a_good_form(form: dict[str, Any], data: st.DataObject) -> None:
    parts = [form, *form["tasks"], *form.get("transitions", [])]
    part = data.draw(st.sampled_from(parts))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(anything)
    only_graph_errors(lambda: put_through(Graph.from_json(json.dumps(form))))


@settings(max_examples=200)
@given(well_formed)
def test_well_formed_json_is_read_and_judged(form: dict[str, Any]) -> None:
    put_through(Graph.from_json(json.dumps(form)))


@settings(max_examples=60)
@given(valid_graphs(leaves=5), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3), st.integers(0, 4)), min_size=1, max_size=3))
def test_damaged_json_is_read_or_refused(graph: Graph, cuts: list[tuple[float, bytes, int]]) -> None:
    data = graph.to_json()
    for where, put, taken in cuts:
        place = int(where * len(data))
        data = data[:place] + put + data[place + taken :]
    only_graph_errors(lambda: put_through(Graph.from_json(data)))


@pytest.mark.row("A-25", "A-32")
@settings(max_examples=60)
@given(valid_graphs())
def test_valid_graphs_survive_a_round_trip(graph: Graph) -> None:
    before = graph.to_json()
    graph.validate()
    assert graph.to_json() == before
    twin = Graph.from_json(before)
    assert twin.to_json() == before
    assert (twin.name, twin.entry_point, twin.tasks, twin.transitions) == (graph.name, graph.entry_point, graph.tasks, graph.transitions)
    assert (twin.reducers, twin.fan_ins) == (graph.reducers, graph.fan_ins)
    twin.validate()
    assert scopes_of(twin) == scopes_of(graph)


@settings(max_examples=60)
@given(valid_graphs())
def test_a_valid_graph_can_be_built_call_by_call(graph: Graph) -> None:
    built = Graph(graph.name)
    for task in graph.tasks:
        built.set_url(task.name, task.url)
    for edge in graph.transitions:
        if edge.goto:
            built.add_transition_goto(edge.source, edge.target)
        elif edge.on_error:
            built.add_transition_on_error(edge.source, edge.target)
        elif edge.for_each:
            built.add_transition_for_each(edge.source, edge.target, edge.for_each, edge.alias)
        elif edge.switch:
            built.add_transition_switch(edge.source, edge.target, edge.when)
        elif edge.when:
            built.add_transition_when(edge.source, edge.target, edge.when)
        else:
            built.add_transition(edge.source, edge.target)
    for fan_in in graph.fan_ins:
        built.set_fan_in(fan_in)
    for field, reducer in graph.reducers.items():
        built.set_reducer(field, reducer)
    assert built.to_json() == graph.to_json()


@settings(max_examples=30)
@given(st.data())
def test_the_strategies_keep_their_word(data: st.DataObject) -> None:
    """Fields, types and forward-only error routes, as `tests.strategies` promises them to the tests of the engine."""
    graph = data.draw(valid_graphs(certain=data.draw(st.booleans())))
    read = {field for edge in graph.transitions if edge.when for field in Expression(edge.when).fields}
    read |= {edge.for_each for edge in graph.transitions if edge.for_each}
    assert read <= {"f0", "f1", "f2", "f3", "l0", "l1", "l2"}
    assert all(graph.url_of(task) == f"task.{task}" for task in graph)
    assert list(graph) == [f"T{number}" for number in range(len(graph.tasks))]
    for written in (data.draw(states()), data.draw(changes(graph))):
        assert {name[:2] for name in written} <= {"f0", "f1", "f2", "f3", "l0", "l1", "l2", "r_"}
    forward = [edge for edge in graph.transitions if not edge.goto and edge.target != END]
    assert is_acyclic([(edge.source, edge.target) for edge in forward])


def is_acyclic(pairs: list[tuple[str, str]]) -> bool:
    left = set(pairs)
    while left:
        entered = {target for _, target in left}
        free = {pair for pair in left if pair[0] not in entered}
        if not free:
            return False
        left -= free
    return True


arguments = st.one_of(names, st.sampled_from(WHENS + FIELDS), anything, st.binary(max_size=2), st.sampled_from([*Reducer, object(), Graph]))
CALLS = [name for name in dir(Graph) if name.startswith(("add_transition", "set_"))]


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(CALLS), st.lists(arguments, min_size=3, max_size=3)), max_size=5))
def test_any_argument_is_taken_or_refused(calls: list[tuple[str, list[Any]]]) -> None:
    graph = sketch("A->B->END")
    for name, given_arguments in calls:
        arity = {"set_url": 2, "set_reducer": 2, "set_entry_point": 1, "set_fan_in": 1, "set_scheduler": 1}.get(name, 2)
        arity += name.endswith(("_when", "_switch", "_for_each"))
        before = graph.to_json()
        if not only_graph_errors(lambda: getattr(graph, name)(*given_arguments[:arity])):  # noqa: B023
            assert graph.to_json() == before
    put_through(graph)


@given(st.text(max_size=5) | st.text(alphabet="aA9_eE.0 truefalsTRUEFALS", max_size=6))
@example("true")
@example("TruE")
@example("1e3")
@example("1e")
@example("00")
@example("")
def test_a_field_name_is_what_a_condition_reads_as_one(text: str) -> None:
    try:
        spelled = Expression(text).fields == {text}
    except ExpressionError:
        spelled = False
    assert only_graph_errors(lambda: check_field("a field", text)) == spelled
