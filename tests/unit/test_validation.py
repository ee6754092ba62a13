"""The structural rules: for each, graphs that keep it and graphs that break it, and what the error says."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import dwarf.scopes
import dwarf.validation
from dwarf.errors import GraphError
from dwarf.graph import END, Graph, Transition
from dwarf.limits import COHORT_DEPTH_MAX, GRAPH_BYTES_MAX, TASKS_MAX
from tests.strategies import sketch

DIAMOND = "S->A->J S->B->J J->END J⊕"


def read(*edges: dict[str, Any], **members: Any) -> Graph:
    """Return graph G of JSON edges over the tasks A, B, …: what the building methods would not let pass."""
    tasks = dict.fromkeys(name for edge in edges for name in (edge["from"], edge["to"]) if name != END)
    form = {"name": "G", "entryPoint": next(iter(tasks), ""), "tasks": [{"name": name} for name in tasks], "transitions": edges}
    return Graph.from_json(json.dumps({**form, **members}))


def edge(source: str, target: str, **members: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **members}


def refused(graph: Graph | str, rule: str, *words: str) -> GraphError:
    """Assert that validation names the rule, the graph and the words; say the same when asked again."""
    graph = sketch(graph) if isinstance(graph, str) else graph
    for _ in range(2):
        with pytest.raises(GraphError) as caught:
            graph.validate()
        error = caught.value
        assert error.rule == rule, str(error)
        assert error.graph == graph.name
        assert error.status == 400
        assert str(error).startswith(f"graph {graph.name!r}: ")
        for word in words:
            assert word in str(error)
    return error


def accepted(*texts: str) -> None:
    for text in texts:
        graph = sketch(text)
        before = graph.to_json()
        graph.validate()
        graph.validate()
        assert graph.to_json() == before
        Graph.from_json(before).validate()


# ---- names, tasks, entry point, marks ----


@pytest.mark.row("B-01")
def test_a_graph_needs_a_name_and_a_task() -> None:
    refused(sketch("A->END", name=""), "graph-name", "needs a name")
    refused(sketch("A->END", name="  "), "graph-name")
    refused(Graph("G"), "no-tasks", "at least one task")
    refused(Graph("G").add_transition(END, END), "no-tasks")
    refused(Graph(), "graph-name")
    accepted("A->END")


def test_task_names_are_there_and_differ() -> None:
    refused(read(edge("A", END), tasks=[{"name": "A"}, {}]), "task-name", "a task needs a name")
    refused(read(edge("A", END), tasks=[{"name": "A", "url": "1"}, {"name": "A", "url": "2"}]), "repeated-task", "'A'")
    refused(read(edge("A", END), tasks=[{"name": "A"}, {"name": "END"}]), "reserved-name", "END")
    refused(read(edge("A", END), tasks=[{"name": "A"}, {"name": "END"}], entryPoint="END"), "reserved-name")


@pytest.mark.row("B-03")
def test_an_empty_url() -> None:
    graph = Graph("G").set_url("A", "").add_transition("A", END)
    assert refused(graph, "task-url", "'A'").place == "A"
    refused(Graph.from_json(graph.to_json()), "task-url", "'A'")
    read(edge("A", END)).validate()
    graph.set_url("A", "u").validate()


@pytest.mark.row("B-04")
def test_the_entry_point_is_a_task() -> None:
    refused(sketch("A->END").set_entry_point(""), "entry-point", "''")
    refused(sketch("A->END").set_entry_point("Z"), "entry-point", "'Z'")
    refused(sketch("A->END").set_entry_point(END), "entry-point", "'END'")
    refused(sketch("A->B->END").set_entry_point("B"), "unreachable", "'A'", "'B'")
    sketch("A->B->A B-g->END").set_entry_point("B").validate()
    refused(read(edge("A", END), entryPoint=""), "entry-point")


@pytest.mark.row("B-05")
def test_marks_are_on_tasks() -> None:
    refused("A->END Z⊕", "unknown-fan-in", "'Z'")
    refused(DIAMOND + " Z⊕", "unknown-fan-in", "'Z'")
    refused(DIAMOND + " END⊕", "unknown-fan-in", "'END'")
    accepted(DIAMOND)


@pytest.mark.row("B-06")
def test_nothing_follows_end() -> None:
    refused("A->END END->B", "end-has-no-exit", "'END' -> 'B'", "nothing can follow")
    refused("A->END->B", "end-has-no-exit")
    refused("A->END END->END", "end-has-no-exit")
    refused("A->END END-g->A", "end-has-no-exit")
    refused("A->END END-e->A", "end-has-no-exit")


@pytest.mark.row("B-07")
def test_transitions_join_tasks_of_the_graph() -> None:
    tasks = [{"name": "A"}]
    refused(read(edge("A", END), edge("Z", "A"), tasks=tasks), "unknown-task", "'Z'", "'A'")
    refused(read(edge("A", END), edge("A", "Z"), tasks=tasks), "unknown-task", "'Z'", "'A'")
    refused(read(edge("A", END), edge("A", ""), tasks=tasks), "unknown-task", "''")
    refused(read(edge("A", END), edge("A", "a"), tasks=tasks), "unknown-task", "'a'")
    refused(read(edge("A", END), edge("A", "END "), tasks=tasks), "unknown-task")


@pytest.mark.row("B-55")
def test_lengths_and_texts_of_imported_names() -> None:
    long = "x" * 513
    refused_names = [
        (read(edge("A", END), name=long), "name-length"),
        (read(edge(long, END)), "name-length"),
        (read(edge("A", END), tasks=[{"name": "A", "url": long}]), "name-length"),
        (read(edge("A", END), scheduler=long), "name-length"),
        (read(edge("A", END), name="a\0"), "name-text"),
        (read(edge("a\0", END)), "name-text"),
        (read(edge("A", END), tasks=[{"name": "A", "url": "a\0"}]), "name-text"),
    ]
    for graph, rule in refused_names:
        with pytest.raises(GraphError) as caught:
            graph.validate()
        assert (caught.value.rule, caught.value.status) == (rule, 400)
    read(edge("x" * 512, END), name="n" * 512).validate()


def test_a_graph_has_at_most_ten_thousand_tasks() -> None:
    tasks = [{"name": f"t{number}"} for number in range(TASKS_MAX + 1)]
    transitions = [edge(f"t{number}", f"t{number + 1}") for number in range(TASKS_MAX)]
    refused(read(*transitions, tasks=tasks), "too-many-tasks", "10001")


def test_a_graph_takes_at_most_sixteen_megabytes() -> None:
    parts: dict[str, Any] = {"name": "G", "entry_point": "A", "urls": {"A": "a"}, "fan_ins": [], "reducers": {}}
    large = Graph.assemble(**parts, transitions=[Transition("A", END, when="x" * GRAPH_BYTES_MAX)])
    refused(large, "graph-size", str(len(large.to_json())))


# ---- kinds of transitions ----


@pytest.mark.row("B-08")
def test_aliases_belong_to_for_each() -> None:
    refused(read(edge("A", END, **{"as": "x"})), "alias-without-for-each", "'A' -> 'END'", "'x'")
    join = {"tasks": [{"name": "A"}, {"name": "J", "fanIn": True}]}
    read(edge("A", "J", forEach="xs"), edge("J", END), **join).validate()
    read(edge("A", "J", forEach="xs", **{"as": "x"}), edge("J", END), **join).validate()


@pytest.mark.row("B-09")
def test_one_error_route_per_task() -> None:
    accepted("A->END A-e->H->END")
    refused("A->END A-e->H->END A-e->H", "two-error-routes", "'A'", "'H'")
    refused("A->END A-e->H->END A-e->K->END", "two-error-routes", "'A'", "'H'", "'K'")
    accepted("A->B->END A-e->H->END B-e->H")


@pytest.mark.row("B-10")
@pytest.mark.parametrize(
    "members",
    [
        {"forEach": "xs", "withGoto": True},
        {"onError": True, "forEach": "xs"},
        {"onError": True, "withGoto": True},
        {"onError": True, "when": "x"},
        {"switch": True, "when": "x", "forEach": "xs"},
        {"switch": True, "when": "x", "withGoto": True},
        {"switch": True, "when": "x", "onError": True},
        {"withGoto": True, "when": "x"},
        {"switch": True, "when": "x", "onError": True, "withGoto": True, "forEach": "xs"},
    ],
)
def test_kinds_that_exclude_each_other(members: dict[str, Any]) -> None:
    error = refused(read(edge("A", "B", **members), edge("A", END), edge("B", END)), "edge-kinds", "'A' -> 'B'", "cannot have both")
    assert error.place.startswith("'A' -> 'B'")


def test_kinds_that_go_together() -> None:
    join = {"tasks": [{"name": "A"}, {"name": "J", "fanIn": True}]}
    read(edge("A", "J", forEach="xs", when="x"), edge("J", END), **join).validate()
    read(edge("A", END, switch=True, when="x")).validate()


@pytest.mark.row("B-11")
def test_a_switch_arm_has_a_condition() -> None:
    refused(read(edge("A", END, switch=True)), "switch-without-condition", "'A' -> 'END' switch", "'true'")
    refused(read(edge("A", END, switch=True, when="")), "switch-without-condition")
    refused(read(edge("A", END, switch=True, when=" ")), "expression-syntax")
    Graph("G").add_transition_switch("A", END, "true").validate()


@pytest.mark.row("B-12")
def test_no_error_route_to_itself() -> None:
    refused("A->END A-e->A", "error-loop", "'A' -> 'A' onError", "flow.retry")
    accepted("A->END A-e->H->A")


@pytest.mark.row("B-13")
def test_self_loops() -> None:
    accepted("A-g->A A->END", "A->A A-g->END", "A-s->A A-s->END", "A-w->A A-g->END")
    refused("A->A A->END", "two-scopes", "'A'")


@pytest.mark.row("B-15")
def test_conditions_are_parsed() -> None:
    Graph("G").add_transition_when("A", END, "score > 5 && !guest").validate()
    for when in ("(((", " ", "\t\n", "x == ", "a b"):
        refused(read(edge("A", END, when=when)), "expression-syntax", "the condition of 'A' -> 'END'")
    refused(read(edge("A", END, when="x" * 20_000)), "expression-length")
    read(edge("A", END, when="")).validate()


@pytest.mark.row("B-17")
def test_patterns_are_checked() -> None:
    graph = Graph("G").add_transition_when("A", END, "name =~ '(('")
    assert "'A' -> 'END'" in str(refused(graph, "expression-pattern", "'A' -> 'END'"))
    refused(read(edge("A", END, when="true || name !~ '['")), "expression-pattern")
    Graph("G").add_transition_when("A", END, "name =~ '^a.*$' && name =~ pattern").validate()


@pytest.mark.row("B-18")
@pytest.mark.parametrize("other", ["R->B", "R-w->B", "R-*xs->B"])
def test_a_switch_stands_alone(other: str) -> None:
    for text in (f"R-s->A {other} A->END B->END", f"{other} R-s->A A->END B->END"):
        refused(text, "switch-mixed", "'R'", "'R' -> 'A' switch", "'R' -> 'B'")


@pytest.mark.row("B-19")
def test_a_switch_goes_with_goto_and_on_error() -> None:
    accepted("R-s->A R-s->B R-g->C R-e->H A->END B->END C->END H->END", "R-g->A R-e->A R-s->A A->END")


# ---- reachability ----


@pytest.mark.row("B-20", "A13")
def test_every_task_is_reachable() -> None:
    assert refused(sketch("A->END").set_url("C", "c"), "unreachable", "'C'", "'A'").place == "C"
    refused("A->END C->END", "unreachable", "'C'")
    refused("A->END C->D->C", "unreachable", "'C'")
    refused("A->END C->A", "unreachable", "'C'")
    accepted("A->END A-g->C C->END", "A->END A-e->C C->END")
    Graph("G").add_transition("A", END).add_transition_goto("A", "B").add_transition_when("B", "C", "false").validate()


@pytest.mark.row("B-21", "A13")
def test_some_transition_leads_to_end() -> None:
    refused("A->B->A", "no-end", "END")
    refused(Graph("G").set_url("A", "a"), "no-end")
    refused("A->B", "no-end")
    accepted("A->B->A B-g->END", "A->B->A A-e->END", "A-s->B->A A-s->END")


@pytest.mark.row("B-23")
def test_a_dead_end_on_the_trunk_is_legal() -> None:
    accepted("A-s->B A-s->END", "A->B A-g->END", "A-w->B A-e->END")


# ---- fan-outs ----


@pytest.mark.row("B-24")
def test_conditions_that_exclude_each_other_fan_out_all_the_same() -> None:
    graph = Graph("G").add_transition_when("S", "A", "x > 0").add_transition_when("S", "B", "x <= 0")
    refused(graph.add_transition("A", END).add_transition("B", END), "fan-out-without-fan-in", "'S'", "set_fan_in")
    refused("S-w->A S-w->B", "no-end")
    accepted("S-s->A S-s->B A->END B->END")


@pytest.mark.row("B-25")
def test_one_condition_is_no_fan_out() -> None:
    accepted("A-w->B B->END", "A-w->END")


@pytest.mark.row("B-27")
def test_every_fan_out_converges() -> None:
    accepted(DIAMOND)
    error = refused("S->A->J S->B->J J->END", "fan-out-without-fan-in", "'S'", "mark 'J' with set_fan_in")
    assert error.place == "S"
    refused("S->A->END S->B->END", "fan-out-without-fan-in", "'S'", "lead them to one task and mark it with set_fan_in")
    refused("S->END S->END", "fan-out-without-fan-in")
    refused("S->A S->END A->END", "fan-out-without-fan-in")


@pytest.mark.row("B-28", "A13")
def test_a_fan_out_has_one_fan_in() -> None:
    assert refused("S->A->J S->B->K J->END K->END J⊕ K⊕", "two-fan-ins", "'S'", "'J'", "'K'").place == "S"
    refused("S->A-s->J A-s->K S->J J->END K->END J⊕ K⊕", "two-fan-ins", "'S'")
    refused("S->A->J S->B->J A-g->K J->K->END J⊕ K⊕", "two-fan-ins")
    refused("S->J S->K J->END K->END J⊕ K⊕", "two-fan-ins")


@pytest.mark.row("B-29")
def test_a_branch_does_not_skip_the_fan_in() -> None:
    error = refused("S->A->J S->B->END J->END J⊕", "branch-to-end", "'B' -> 'END'", "'S'", "'J'")
    assert error.place == "B"
    refused("S->A->J S->END J->END J⊕", "branch-to-end", "'S' -> 'END'")
    refused("S->A->J S->B-w->END J->END J⊕", "branch-to-end", "'B' -> 'END'")


@pytest.mark.row("B-30")
def test_a_fan_in_needs_a_fan_out() -> None:
    assert refused("A->B->END B⊕", "fan-in-without-fan-out", "'A' -> 'B'").place == "B"
    refused("A-w->B->END B⊕", "fan-in-without-fan-out")
    refused("A-s->B A-s->END B->END B⊕", "fan-in-without-fan-out")


@pytest.mark.row("B-31")
def test_a_branch_may_go_straight_to_the_fan_in() -> None:
    accepted("S->A->J S->J J->END J⊕", "S->J S->A->J J->END J⊕", "S-w->J S-w->A->J J->END J⊕")


@pytest.mark.row("B-32")
def test_for_each_converges() -> None:
    accepted("S-*xs->W->J J->END J⊕", "S-*xs->J J->END J⊕")
    refused("S-*xs->END", "fan-out-without-fan-in", "'S'")
    refused("S-*xs->W->END", "fan-out-without-fan-in", "'S'")


@pytest.mark.row("B-34")
def test_arms_of_several_kinds() -> None:
    accepted(
        "S-*xs->W->J S->P->J J->END J⊕",
        "S-*xs->W->J S-*ys->P->J J->END J⊕",
        "S-*xs->W->J S-*xs->W J->END J⊕",
        "S-*xs->W->J S-w->P->J S->J J->END J⊕",
    )


@pytest.mark.row("B-36")
@pytest.mark.parametrize("kind", ["g", "e"])
def test_the_trunk_does_not_request_a_fan_in(kind: str) -> None:
    for text in (f"T->S {DIAMOND} T-{kind}->J", f"S->A->J S->B->J J->K->END J⊕ K-{kind}->J"):
        refused(text, "fan-in-without-fan-out", "'J'", {"g": "goto", "e": "onError"}[kind])


@pytest.mark.row("B-36")
def test_a_fan_in_does_not_enter_itself() -> None:
    refused(f"{DIAMOND} J-g->J", "fan-in-without-fan-out", "'J' -> 'J' goto")
    refused("S->A->J S->B->J J-s->J J-s->END J⊕", "fan-in-without-fan-out")


@pytest.mark.row("B-37")
def test_a_branch_may_request_its_fan_in() -> None:
    accepted(
        f"{DIAMOND} A-g->J",
        f"{DIAMOND} A-e->J",
        f"{DIAMOND} A-g->J A-e->J B-e->J",
        "S->A-s->J A-s->C->J S->B->J J->END J⊕",
        "S->A-g->J S->B->J J->END J⊕",
        "S-*xs->W W-g->J W-e->J J->END J⊕",
        f"{DIAMOND} A-e->H H->J",
    )


@pytest.mark.row("B-38")
def test_a_branch_may_not_request_end() -> None:
    refused(f"{DIAMOND} A-g->END", "branch-to-end", "'A' -> 'END' goto")
    refused(f"{DIAMOND} A-e->END", "branch-to-end", "'A' -> 'END' onError")
    refused("S->A-s->J A-s->END S->B->J J->END J⊕", "branch-to-end", "'A' -> 'END' switch")


@pytest.mark.row("B-39")
@pytest.mark.parametrize("kind", ["g", "e"])
def test_a_branch_does_not_jump_past_its_fan_in(kind: str) -> None:
    error = refused(f"S->A->J S->B->J J->K->END J⊕ A-{kind}->K", "two-scopes", "'K'", "'A' -> 'K'", "inside the fan-out of 'S'")
    assert error.place == "K"
    refused("S->A->J S->B-s->J B-s->K J->K->END J⊕", "two-scopes", "'K'", "'B' -> 'K'", "'S'")


@pytest.mark.row("B-41")
@pytest.mark.parametrize("extra", ["D-g->END", "D-e->END", "D-g->J", "D-e->J", "D-g->END D-e->J", "D-g->J D-e->END", "D-g->J D-e->J"])
def test_a_source_may_go_elsewhere_instead_of_fanning_out(extra: str) -> None:
    accepted(f"D-*xs->W->J J->END J⊕ {extra}", f"A->D D-*xs->W->J J->K->END J⊕ {extra} D-g->K D-g->A")


@pytest.mark.row("B-41")
@pytest.mark.parametrize("extra", ["D-g->I", "D-e->I", "D-g->J", "D-e->J", "D-g->I D-e->J", "D-g->J D-e->I"])
def test_a_source_in_a_branch_may_go_to_both_fan_ins(extra: str) -> None:
    accepted(f"S-*xs->D-*ys->W->I->J J->END I⊕ J⊕ {extra}")
    refused(f"S-*xs->D-*ys->W->I->J J->END I⊕ J⊕ D-g->END {extra}", "branch-to-end", "'D' -> 'END' goto")


@pytest.mark.row("B-42")
@pytest.mark.parametrize("extra", ["D-g->W", "D-e->W", "D-g->V"])
def test_a_source_does_not_enter_its_own_branch(extra: str) -> None:
    error = refused(f"D-*xs->W->V->J J->END J⊕ {extra}", "two-scopes", "'D'", "outside any fan-out", "inside the fan-out of 'D'")
    assert error.place == extra[-1]


@pytest.mark.row("B-44")
def test_nested_fan_outs() -> None:
    accepted("S-*xs->C-*ys->D->I->J J->END I⊕ J⊕")
    assert refused("S-*xs->C-*ys->D->J J->END J⊕", "fan-out-without-fan-in", "'S'").place == "S"
    refused("S->C-*ys->D->J S->J J->END J⊕", "two-scopes", "'J'")
    refused("S->C S->K C->A->I C->B->I K->J I->END J->END I⊕ J⊕", "branch-to-end", "'I' -> 'END'", "'S'", "'J'")


def test_nested_fan_outs_of_all_kinds() -> None:
    accepted(
        "S->O S->P O->A->I O->B->I I->J P->J J->END I⊕ J⊕",
        "S->O S->P O->A->I O->B->I I->J P->C->K P->D->K K->J J->END I⊕ J⊕ K⊕",
        "S-*a->T-*b->U-*c->V->K->I->J->END K⊕ I⊕ J⊕ V-g->V T-e->J U-e->I V-e->K U-g->K T-g->I",
    )


@pytest.mark.row("B-46")
def test_a_fan_in_may_fan_out() -> None:
    accepted("S->A->J S->B->J J->C->K J->D->K K->END J⊕ K⊕", "S-*xs->J-*ys->K K->END J⊕ K⊕", "S-*xs->J-*ys->K-*zs->L->END J⊕ K⊕ L⊕")
    refused("S->A->J S->B->J J->C->K J->D->K K->END J⊕", "fan-out-without-fan-in", "'J'", "mark 'K'")


@pytest.mark.row("B-47")
def test_loops() -> None:
    accepted(
        "D-*xs->W->J J->D D-g->END J⊕",
        "Think-s->Tools Think-s->END Tools->Think",
        "I->D D-*xs->W->J J->D D-g->END J⊕ J-e->I W-g->W",
        "J->A->J J->B->J J-g->END J⊕",
        "S->A->J S->B->C->J A-g->A C-g->B J->END J⊕",
    )


@pytest.mark.row("B-48")
def test_a_task_is_inside_or_outside() -> None:
    error = refused("S-*xs->W->J J->W J⊕ W-g->END", "two-scopes", "'W'")
    assert "a second task with the same URL" in str(error)
    refused("S->A->J S->B->J J-g->A J->END J⊕", "two-scopes", "'A'", "'J' -> 'A' goto")
    refused("R-s->W R-s->S S-*xs->W W->J J->END J⊕", "two-scopes", "'W'")
    alias = Graph("G").set_url("S", "s").set_url("W", "work").set_url("W2", "work")
    alias.add_transition_for_each("S", "W", "xs").add_transition_chain("W", "J", "W2", END).set_fan_in("J").validate()


def test_a_task_is_at_one_depth() -> None:
    refused("S->A S->C-*xs->A A->I I->J C-g->J I⊕ J⊕ J->END", "two-scopes", "'A'")
    refused("S->S S->J J->END J⊕", "two-scopes", "'S'")
    refused("S->A->J S->B->J B->C->J J->END J⊕", "two-scopes", "'J'", "where 'B' fans out")
    refused("S->A->S S->J J->END J⊕", "two-scopes", "'S'")


@pytest.mark.row("B-50")
def test_a_source_may_converge_on_itself() -> None:
    accepted("E-w->J E-w->J J->END J⊕", "E->J E->J J->END J⊕", "E-w->J E->J J->END J⊕", "E-*xs->J J->END J⊕")


@pytest.mark.row("B-52")
def test_a_mark_that_means_nothing_is_refused() -> None:
    assert refused("A->END A⊕", "fan-in-without-fan-out", "'A'").place == "A"
    refused("A->B->END A⊕", "fan-in-without-fan-out", "'A'")
    refused(f"{DIAMOND} S⊕", "fan-in-without-fan-out", "'S'")
    refused(f"T-g->J2 T->S {DIAMOND} J2->END J2⊕", "fan-in-without-fan-out", "'J2'")


def test_the_entry_may_be_a_fan_in_of_a_loop() -> None:
    accepted("J-*xs->W->J J-g->END J⊕", "J->D-*xs->W->J D-g->END J⊕")


@pytest.mark.row("B-53", "B-54")
def test_reducers_of_imported_graphs() -> None:
    refused(read(edge("A", END), reducers={"f": "sum"}), "unknown-reducer", "'sum'", "'f'", "append")
    refused(read(edge("A", END), reducers={"f": ""}), "unknown-reducer")
    read(edge("A", END), reducers={"f": "add", "g": "concat"}).validate()


@pytest.mark.row("B-54", "A13")
@pytest.mark.parametrize("field", ["a.b", "a-b", "a b", "é", "true", "12", "a\n"])
def test_fields_of_imported_graphs(field: str) -> None:
    join = {"tasks": [{"name": "A"}, {"name": "J", "fanIn": True}]}
    for graph in (
        read(edge("A", "J", forEach=field), edge("J", END), **join),
        read(edge("A", "J", forEach="xs", **{"as": field}), edge("J", END), **join),
        read(edge("A", END), reducers={field: "add"}),
    ):
        assert refused(graph, "field-name", repr(field), "that a condition can spell").place == field
    refused(read(edge("A", END), reducers={"": "add"}), "field-name")
    refused(read(edge("A", END), reducers={"x" * 513: "add"}), "name-length")


# ---- shared cohorts ----


def test_alternative_sources_may_share_branches() -> None:
    accepted(
        "R-s->S R-s->T S->A S->B T->A T->B A->J B->J J->END J⊕",
        "R-s->S R-s->T S->A S->B T->B T->C A->J B->J C->J J->END J⊕",
        "R-s->S R-s->T S-*xs->A T-*ys->A A->J J->END J⊕ S-g->J T-e->J",
        "R-s->S R-s->T S->A->J S->B->J T->C->J T->D->J J->END J⊕",
        "S->A->J S->B->J J->T T->A T->C->J J-g->END J⊕",
    )
    refused("R-s->S R-s->T S->A S->B T->A T->C A->J B->J C->K J->END K->END J⊕ K⊕", "two-fan-ins", "'T'", "'J'", "'K'")


# ---- dead ends inside branches ----


def test_a_branch_can_reach_its_fan_in() -> None:
    assert refused("S->A->J S->B J->END J⊕", "branch-dead-end", "'B'", "'S'", "'J'").place == "B"
    refused("S->A->J S->B->C->B J->END J⊕", "branch-dead-end", "'B'")
    refused("S->A->J S->A A-g->H J->END J⊕", "branch-dead-end", "'H'")
    refused("S->A->J S->A A-e->H H->K J->END J⊕", "branch-dead-end", "'H'")
    accepted(
        "S->A->J S->B-g->J J->END J⊕",
        "S->A->J S->B-e->J J->END J⊕",
        "S->A->J S->B-w->J J->END J⊕",
        "S->A->J S->B->C->B C-g->J J->END J⊕",
        "S->A->J S->B-*xs->J2 J2->J J->END J⊕ J2⊕",
    )
    refused("S->A->J S->B-*xs->W->J2 J->END J⊕ J2⊕", "branch-dead-end", "'B'")


# ---- depth ----


def nested(depth: int) -> Graph:
    graph = Graph("G")
    for level in range(depth):
        graph.add_transition_for_each(f"s{level}", f"s{level + 1}" if level < depth - 1 else "w", "xs")
    after = "w"
    for level in reversed(range(depth)):
        graph.add_transition(after, f"j{level}").set_fan_in(f"j{level}")
        after = f"j{level}"
    return graph.add_transition(after, END)


def test_fan_outs_nest_thirty_two_deep() -> None:
    nested(COHORT_DEPTH_MAX).validate()
    error = refused(nested(COHORT_DEPTH_MAX + 1), "cohort-depth", "'s32'", "32")
    assert error.place == "s32"
    refused(nested(200), "cohort-depth")
    assert COHORT_DEPTH_MAX == 32


# ---- size: linear in the graph, without recursion ----


def chain(count: int) -> Graph:
    return Graph("G").add_transition_chain(*(f"t{number}" for number in range(count)), END)


def wide(count: int) -> Graph:
    targets = [f"t{number}" for number in range(count - 2)]
    graph = Graph("G").add_transition_fan_out("s", *targets).set_fan_in("j")
    for target in targets:
        graph.add_transition(target, "j")
    return graph.add_transition("j", END)


def fan_outs_in_a_row(count: int) -> Graph:
    graph = Graph("G")
    for number in range(count // 4):
        source, fan_in = f"s{number}", f"j{number}"
        graph.add_transition_fan_out(source, f"a{number}", f"b{number}").set_fan_in(fan_in)
        graph.add_transition(f"a{number}", fan_in).add_transition_goto(f"b{number}", fan_in).add_transition_goto(source, fan_in)
        graph.add_transition(fan_in, f"s{number + 1}" if number < count // 4 - 1 else END)
    return graph


def alternatives(count: int) -> Graph:
    graph = Graph("G")
    for number in range(count - 4):
        graph.add_transition_switch("r", f"s{number}", "true").add_transition_fan_out(f"s{number}", "a", "b")
        graph.add_transition_goto(f"s{number}", "j")
    return graph.add_transition("a", "j").add_transition("b", "j").set_fan_in("j").add_transition("j", END)


def goto_chain(count: int) -> Graph:
    graph = Graph("G")
    for number in range(count):
        graph.add_transition_goto(f"t{number}", f"t{number + 1}" if number < count - 1 else END)
        graph.add_transition_goto(f"t{number}", "t0")
    return graph


@pytest.mark.parametrize("build", [chain, wide, fan_outs_in_a_row, alternatives, goto_chain])
def test_ten_thousand_tasks(build: Callable[[int], Graph]) -> None:
    graph = build(TASKS_MAX)
    assert len(list(graph)) == TASKS_MAX
    graph.validate()


def test_ten_thousand_mistakes() -> None:
    graph = Graph("G")
    for number in range(TASKS_MAX // 4):
        graph.add_transition_switch("r", f"s{number}", "true").add_transition_fan_out(f"s{number}", f"a{number}", END)
        graph.add_transition_goto(f"s{number}", "j").add_transition(f"a{number}", "x").set_fan_in("j")
    refused(graph, "fan-out-without-fan-in", "'s0'")


# ---- what errors say, and in which order ----


@pytest.mark.row("B-57")
def test_the_first_violation_is_raised_and_named() -> None:
    graph = Graph("Orders").add_transition("A", END).set_url("Lonely", "u")
    with pytest.raises(GraphError, match=r"^graph 'Orders': no path leads from the entry point 'A' to task 'Lonely'$") as caught:
        graph.validate()
    assert (caught.value.graph, caught.value.rule, caught.value.place) == ("Orders", "unreachable", "Lonely")


def test_mending_one_rule_after_another() -> None:
    """Form comes before structure, and each repair leads to the next rule."""
    graph = Graph.from_json(
        b'{"tasks":[{"name":"S"},{"name":"A"},{"name":"B"},{"name":"J"},{"name":"X"}],"transitions":[{"from":"S","to":"A","as":"x"},'
        b'{"from":"S","to":"B","when":"((("},{"from":"A","to":"J"},{"from":"B","to":"J"},{"from":"J","to":"END"}],"reducers":{"a.b":"sum"}}'
    )
    refused(graph, "graph-name")
    form = {**json.loads(graph.to_json()), "name": "G"}
    repairs: list[tuple[str, Callable[[], object]]] = [
        ("entry-point", lambda: form.update(entryPoint="S")),
        ("alias-without-for-each", lambda: form["transitions"][0].pop("as")),
        ("expression-syntax", lambda: form["transitions"][1].pop("when")),
        ("field-name", lambda: form.update(reducers={"ab": "sum"})),
        ("unknown-reducer", lambda: form.update(reducers={"ab": "add"})),
        ("unreachable", lambda: form["tasks"].pop()),
        ("fan-out-without-fan-in", lambda: form["tasks"][3].update(fanIn=True)),
    ]
    for rule, repair in repairs:
        refused(Graph.from_json(json.dumps(form)), rule)
        repair()
    Graph.from_json(json.dumps(form)).validate()


def test_each_validation_raises_an_error_of_its_own() -> None:
    graph = sketch("A->B->A")
    errors = []
    for _ in range(2):
        with pytest.raises(GraphError) as caught:
            graph.validate()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


def test_long_names_are_cut_in_messages() -> None:
    name = "n" * 512
    with pytest.raises(GraphError) as caught:
        Graph(name).add_transition(name, "b" * 512).add_transition_when("b" * 512, name, "x" * 10_000 + " && y").validate()
    assert len(str(caught.value)) < 700
    huge = "h" * 1_000_000
    with pytest.raises(GraphError) as caught:
        read(edge("A", huge, when=f"{'x' * 16_000}"), tasks=[{"name": "A"}]).validate()
    assert caught.value.rule == "unknown-task"
    assert len(str(caught.value)) < 700
    assert len(caught.value.place) < 700


def test_every_rule_is_listed() -> None:
    assert dwarf.validation.__doc__
    table = dwarf.validation.__doc__.split("place\n", 1)[1].split("\n\n", 1)[0]
    listed = {word for line in table.splitlines() for word in line[:30].split() if re.fullmatch("[a-z]+(-[a-z…]+)*", word)}
    source = inspect.getsource(dwarf.validation) + inspect.getsource(dwarf.scopes)
    raised = set(re.findall(r'Problem\(\s*"([a-z-]+)"', source))
    assert raised - {"expression-pattern"} <= listed
    assert listed - raised == {"name-length", "name-text", "expression-…", "field-name"}
