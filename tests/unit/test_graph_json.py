"""Graphs as JSON: the exact form, what survives a round trip, and what reading forgives and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dwarf.errors import GraphError
from dwarf.graph import END, Graph, Task, Transition
from dwarf.limits import GRAPH_BYTES_MAX
from dwarf.reducers import Reducer
from dwarf.scopes import scopes_of
from tests.strategies import sketch


def full() -> Graph:
    """A graph that has everything there is, built edge by edge."""
    return (
        Graph("Full")
        .set_url("Intake", "orders.intake")
        .set_url("Each", "orders.each")
        .set_entry_point("Intake")
        .add_transition_switch("Intake", "Split", "amount >= 10")
        .add_transition_switch("Intake", "Small", "true")
        .add_transition_for_each("Split", "Each", "lines", "line")
        .add_transition_when("Split", "Each", "rush")
        .add_transition("Each", "Join")
        .add_transition_on_error("Each", "Join")
        .add_transition_goto("Split", "Join")
        .add_transition("Join", END)
        .add_transition_when("Small", END, "ok == 'é\"😀'")
        .set_fan_in("Join")
        .set_reducer("total", Reducer.ADD)
        .set_reducer("notes", Reducer.APPEND)
    )


def decoded(graph: Graph) -> dict[str, Any]:
    form: dict[str, Any] = json.loads(graph.to_json())
    return form


def read(form: Any) -> Graph:
    return Graph.from_json(json.dumps(form))


@pytest.mark.row("A-21")
def test_an_unnamed_empty_graph() -> None:
    assert Graph().to_json() == b'{"entryPoint":"","tasks":[],"transitions":[]}'


@pytest.mark.row("A-22")
def test_the_keys_of_a_full_graph() -> None:
    full().validate()
    assert list(decoded(full())) == ["name", "entryPoint", "tasks", "transitions", "reducers"]


@pytest.mark.row("A-23")
def test_the_keys_of_tasks_and_transitions() -> None:
    form = decoded(full())
    assert form["name"] == "Full"
    assert form["entryPoint"] == "Intake"
    assert form["tasks"] == [
        {"name": "Intake", "url": "orders.intake"},
        {"name": "Each", "url": "orders.each"},
        {"name": "Split", "url": "Split"},
        {"name": "Small", "url": "Small"},
        {"name": "Join", "url": "Join", "fanIn": True},
    ]
    assert form["transitions"] == [
        {"from": "Intake", "to": "Split", "when": "amount >= 10", "switch": True},
        {"from": "Intake", "to": "Small", "when": "true", "switch": True},
        {"from": "Split", "to": "Each", "forEach": "lines", "as": "line"},
        {"from": "Split", "to": "Each", "when": "rush"},
        {"from": "Each", "to": "Join"},
        {"from": "Each", "to": "Join", "onError": True},
        {"from": "Split", "to": "Join", "withGoto": True},
        {"from": "Join", "to": "END"},
        {"from": "Small", "to": "END", "when": "ok == 'é\"😀'"},
    ]
    assert form["reducers"] == {"notes": "append", "total": "add"}


@pytest.mark.row("A-21", "A-23")
def test_no_reducers_no_key() -> None:
    assert list(decoded(sketch("A->END"))) == ["name", "entryPoint", "tasks", "transitions"]


@pytest.mark.row("A-24")
def test_the_default_alias_is_written() -> None:
    graph = Graph().add_transition_for_each("s", "w", "xs", "")
    assert decoded(graph)["transitions"] == [{"from": "s", "to": "w", "forEach": "xs", "as": "item"}]


@pytest.mark.row("A-25")
def test_a_round_trip_changes_nothing() -> None:
    for graph in (full(), Graph(), Graph("N"), sketch("B->A A->B B-g->END").set_entry_point("A"), sketch("A->A A->A END->A")):
        twin = Graph.from_json(graph.to_json())
        assert twin.to_json() == graph.to_json()
        assert (twin.name, twin.entry_point) == (graph.name, graph.entry_point)
        assert (twin.tasks, twin.transitions) == (graph.tasks, graph.transitions)
        assert (twin.reducers, twin.fan_ins) == (graph.reducers, graph.fan_ins)
        assert all(type(reducer) is Reducer for reducer in twin.reducers.values())


@pytest.mark.row("A-25")
def test_an_imported_graph_can_be_built_further() -> None:
    twin = Graph.from_json(full().to_json()).set_url("More", "u").add_transition_on_error("Small", "More").set_reducer("x", "max")
    twin.validate()
    assert list(twin) == ["Intake", "Each", "Split", "Small", "Join", "More"]
    assert twin.entry_point == "Intake"


def test_equal_graphs_have_equal_json() -> None:
    one = sketch("A->B->END").set_reducer("a", "add").set_reducer("b", "min").set_fan_in("B")
    other = sketch("A->B->END").set_fan_in("B").set_reducer("b", "max").set_reducer("a", "add").set_reducer("b", "min")
    assert one.to_json() == other.to_json()
    assert sketch("A->B A->C").to_json() != sketch("A->C A->B").to_json()


def test_a_scheduler_is_written_when_there_is_one() -> None:
    graph = sketch("A->END").set_scheduler("chain")
    assert decoded(graph)["scheduler"] == "chain"
    assert Graph.from_json(graph.to_json()).scheduler == "chain"
    assert "scheduler" not in decoded(sketch("A->END"))


@pytest.mark.row("A-26", "B-03")
@pytest.mark.parametrize("task", [{"name": "A"}, {"name": "A", "url": None}])
def test_a_task_without_url_is_called_by_its_name(task: dict[str, Any]) -> None:
    graph = read({"name": "G", "entryPoint": "A", "tasks": [task], "transitions": [{"from": "A", "to": "END"}]})
    assert graph.tasks == [Task("A", "A")]
    graph.validate()


@pytest.mark.row("A-25", "B-03")
def test_an_empty_url_stays_empty() -> None:
    graph = sketch("A->END").set_url("A", "")
    assert decoded(graph)["tasks"] == [{"name": "A", "url": ""}]
    twin = Graph.from_json(graph.to_json())
    assert twin.to_json() == graph.to_json()
    with pytest.raises(GraphError, match="the URL of task 'A' is empty"):
        twin.validate()


@pytest.mark.row("A-28")
def test_unknown_keys_are_ignored() -> None:
    form = decoded(full())
    for part in (form, *form["tasks"], *form["transitions"]):
        part.update({"extra": [{"deep": None}], "Name": 7, "fan_in": True, "statusCode": 408, "": {}})
    assert read(form).to_json() == full().to_json()


@pytest.mark.row("A-30")
def test_a_mark_on_no_task_is_lost() -> None:
    graph = sketch("A->END J⊕ END⊕")
    with pytest.raises(GraphError) as caught:
        graph.validate()
    assert caught.value.rule == "unknown-fan-in"
    twin = Graph.from_json(graph.to_json())
    assert twin.fan_ins == []
    assert not twin.is_fan_in("J")
    twin.validate()


@pytest.mark.row("A-31")
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"name": "G", "tasks": [{"name": "A"}], "transitions": [{"from": "A", "to": "END"}]},
        {"name": "G", "entryPoint": "A", "tasks": [{"name": "A"}], "transitions": [{"from": "A", "to": "B"}]},
        {"name": "G", "entryPoint": "A", "tasks": [{"name": "A"}, {"name": "A"}], "transitions": [{"from": "A", "to": "END"}]},
        {"name": "G", "entryPoint": "A", "tasks": [{"name": "A"}], "transitions": [{"from": "A", "to": "END", "when": "((("}]},
        {"name": "G", "entryPoint": "A", "tasks": [{"name": "A"}], "transitions": [{"from": "A", "to": "END"}], "reducers": {"f": "sum"}},
        {"name": "G", "entryPoint": "A", "tasks": [{}], "transitions": [{}]},
        {"name": "G" * 600, "entryPoint": "A", "tasks": [{"name": "A"}], "transitions": [{"from": "A", "to": "END"}]},
    ],
)
def test_broken_structure_is_for_validation(form: dict[str, Any]) -> None:
    graph = read(form)
    with pytest.raises(GraphError):
        graph.validate()
    assert Graph.from_json(graph.to_json()).to_json() == graph.to_json()


@pytest.mark.row("A-31")
@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "nonsense", "[]", "null", "1", '"G"', "true", '{"name":"G"', '{"name":"G"}x', "{'name':'G'}", '{"name":\'G\'}',
        '{"tasks":{}}', '{"tasks":"A"}', '{"tasks":["A"]}', '{"tasks":[null]}', '{"tasks":[[]]}', '{"tasks":[{"name":1}]}',
        '{"tasks":[{"name":null}]}', '{"tasks":[{"name":["A"]}]}', '{"tasks":[{"name":"A","url":1}]}',
        '{"tasks":[{"name":"A","fanIn":"true"}]}', '{"tasks":[{"name":"A","fanIn":1}]}', '{"tasks":7}', '{"tasks":true}',
        '{"transitions":{}}', '{"transitions":["A"]}', '{"transitions":[null]}', '{"transitions":[{"from":1,"to":"B"}]}',
        '{"transitions":[{"from":"A","to":null}]}', '{"transitions":[{"from":"A","to":"B","when":true}]}',
        '{"transitions":[{"from":"A","to":"B","when":["x"]}]}', '{"transitions":[{"from":"A","to":"B","withGoto":"yes"}]}',
        '{"transitions":[{"from":"A","to":"B","onError":0}]}', '{"transitions":[{"from":"A","to":"B","switch":1}]}',
        '{"transitions":[{"from":"A","to":"B","forEach":["xs"]}]}', '{"transitions":[{"from":"A","to":"B","as":1}]}',
        '{"reducers":[]}', '{"reducers":{"f":1}}', '{"reducers":{"f":null}}', '{"reducers":{"f":{}}}', '{"reducers":"add"}',
        '{"name":1}', '{"name":{}}', '{"entryPoint":1}', '{"entryPoint":["A"]}', '{"scheduler":1}', "\ufeff{}", '{"name":"\\ud800"}',
        '{"name":NaN}', '{"name":"a\nb"}',
    ],
)  # fmt: skip
def test_malformed_json_and_wrong_types_are_refused(text: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(GraphError, match="^this is not the JSON of a graph: ") as caught:
            Graph.from_json(data)
        assert caught.value.rule == "graph-json"
        assert caught.value.status == 400


@pytest.mark.parametrize("data", [None, 1, {}, [], {"name": "G"}, object(), Graph("G")])
def test_only_text_and_bytes_are_read(data: Any) -> None:
    with pytest.raises(GraphError, match="text or bytes, not ") as caught:
        Graph.from_json(data)
    assert caught.value.rule == "graph-json"


def test_every_kind_of_text_and_bytes_is_read() -> None:
    data = full().to_json()
    for same in (data.decode(), bytearray(data), memoryview(data), memoryview(data + data)[: len(data)]):
        assert Graph.from_json(same).to_json() == data  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"\xff", b'{"name":"\xff"}', "\ud800", '{"name":"\ud800"}', b"\x00", b'{"x":' + b"[" * 100_000])
def test_bytes_that_are_no_text(data: bytes | str) -> None:
    with pytest.raises(GraphError, match="this is not the JSON of a graph"):
        Graph.from_json(data)


def test_null_is_as_good_as_missing() -> None:
    form = {
        "name": None, "entryPoint": None, "tasks": None, "transitions": None, "reducers": None, "scheduler": None,
    }  # fmt: skip
    assert read(form).to_json() == Graph().to_json()
    edge = {"from": "A", "to": "B", "when": None, "withGoto": None, "forEach": None, "as": None, "onError": None, "switch": None}
    graph = read({"tasks": [{"name": "A", "url": None, "fanIn": None}], "transitions": [edge]})
    assert graph.tasks == [Task("A", "A")]
    assert graph.transitions == [Transition("A", "B")]


def test_false_and_empty_members_are_as_good_as_missing() -> None:
    edge = {"from": "A", "to": "B", "when": "", "withGoto": False, "forEach": "", "as": "", "onError": False, "switch": False}
    graph = read({"name": "", "tasks": [{"name": "A", "fanIn": False}], "transitions": [edge], "reducers": {}})
    assert graph.to_json() == b'{"entryPoint":"","tasks":[{"name":"A","url":"A"}],"transitions":[{"from":"A","to":"B"}]}'


def test_transitions_register_no_tasks_when_read() -> None:
    graph = read({"entryPoint": "A", "tasks": [{"name": "A"}], "transitions": [{"from": "A", "to": "B"}]})
    assert list(graph) == ["A"]
    assert read({"tasks": [{"name": "A"}]}).entry_point == ""


@pytest.mark.row("B-08")
def test_a_missing_alias_is_read_as_the_default() -> None:
    assert read({"transitions": [{"from": "A", "to": "B", "forEach": "xs"}]}).transitions[0].alias == "item"
    assert read({"transitions": [{"from": "A", "to": "B", "as": "x"}]}).transitions[0].alias == "x"


def test_the_last_of_repeated_members_counts() -> None:
    graph = Graph.from_json('{"name":"A","tasks":[{"name":"T","url":"u","url":"v"}],"name":"B","reducers":{"f":"add","f":"min"}}')
    assert (graph.name, graph.url_of("T"), graph.reducers) == ("B", "v", {"f": Reducer.MIN})


def test_repeated_tasks_are_kept_and_refused() -> None:
    tasks = [{"name": "A", "url": "1"}, {"name": "B", "url": "2"}, {"name": "A", "url": "3", "fanIn": True}]
    graph = read({"name": "G", "entryPoint": "A", "tasks": tasks, "transitions": [{"from": "A", "to": "B"}, {"from": "B", "to": "END"}]})
    assert [(task.name, task.url) for task in graph.tasks] == [("A", "1"), ("B", "2"), ("A", "3")]
    with pytest.raises(GraphError, match="two tasks are named 'A'") as caught:
        graph.validate()
    assert caught.value.rule == "repeated-task"
    assert graph.url_of("A") == "1"


@pytest.mark.row("A-32")
def test_validation_leaves_no_trace() -> None:
    graph = full()
    before = graph.to_json()
    graph.validate()
    assert scopes_of(graph).fan_in_of == {"Split": "Join"}
    assert graph.to_json() == before
    assert Graph.from_json(before).to_json() == before


def test_escapes_and_other_scripts() -> None:
    name = 'q"uo\\te\tline\nπ😀\u2028</script>'
    graph = Graph(name).set_url(name, name).add_transition(name, END)
    assert json.loads(graph.to_json())["name"] == name
    assert list(Graph.from_json(graph.to_json())) == [name]


def test_too_much_json_is_refused_unread() -> None:
    for data in (b" " * (GRAPH_BYTES_MAX + 1), "é" * (GRAPH_BYTES_MAX // 2 + 1)):
        with pytest.raises(
            GraphError, match=f"has {GRAPH_BYTES_MAX + 1 if isinstance(data, bytes) else GRAPH_BYTES_MAX + 2} bytes"
        ) as caught:
            Graph.from_json(data)
        assert caught.value.rule == "graph-size"
    assert Graph.from_json(b"{}" + b" " * (GRAPH_BYTES_MAX - 2)).name == ""
