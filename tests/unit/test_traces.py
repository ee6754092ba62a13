"""The expected traces of `tests/traces`, each run with several orders of its ready steps.

One test per file of traces; its marks claim the rows that the traces of that file cover from the graph to the final state.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dwarf.flow import Flow
from dwarf.testing.reference import ReferenceRun
from tests.traces.notation import Line, NotationError, Trace, read_action, read_file, read_graph, read_step, read_trace
from tests.traces.play import compare, play, start

SEEDS = range(4)
FOLDER = Path(__file__).parent.parent / "traces"
TRACES = {path.stem: read_file(path) for path in sorted(FOLDER.glob("*.toml"))}
ALL = [trace for traces in TRACES.values() for trace in traces]
TOPICS = sorted(TRACES)


def of(topic: str) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("trace", [pytest.param(trace, id=trace.id) for trace in TRACES[topic]])


def check(trace: Trace) -> None:
    """Play a trace with every seed; fail with what differs, seeds that differ alike together."""
    found: dict[str, list[int]] = {}
    for seed in SEEDS:
        if differences := play(trace, seed=seed):
            found.setdefault("\n  ".join(differences), []).append(seed)
    text = "".join(f"\nwith seed {', '.join(map(str, seeds))}:\n  {report}" for report, seeds in found.items())
    assert not found, f"trace {trace.id} in {trace.file} ({trace.title}; rows {', '.join(trace.rows)}){text}"


@pytest.mark.row("C-01", "C-03", "C-05", "C-06", "C-08", "C-36", "C-38", "E-17", "E-19", "F-01", "A42", "L11")
@of("conditions")
def test_conditions(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("C-02", "C-04", "H-02", "H-08", "H-19", "H-27", "F-28", "F36", "B-46", "B-47", "B-50")
@of("fan_out")
def test_fan_out(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("C-09", "C-11", "C-12", "C-14", "C-16", "H-03", "H-04", "H-12", "H-13", "H-16", "F-29", "F34", "B-34")
@of("for_each")
def test_for_each(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("C-19", "C-20", "C-21", "C-23", "C-24", "H-09", "H-30")
@of("goto")
def test_goto(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("C-25", "C-26", "C-27", "C-31", "C-33", "C-34", "C-35", "H-20", "H-22", "H-25", "L3", "L4", "L5", "L9", "L20")
@of("errors")
def test_errors(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("F-03", "F-08", "F-09", "F-11", "F-14", "F-16", "F-18", "F-22", "F-33", "F-34", "F-37", "F-40")
@of("reducers")
def test_reducers(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("F-42")
@of("overwrites")
def test_overwrites(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("H-15", "H-17", "H-18", "F33")
@of("nested")
def test_nested(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("H-24")
@of("nested_resets_and_failures")
def test_nested_resets_and_failures(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("G-01", "G-03", "G-05", "G-06", "G-07", "G-14", "G-16", "G-17", "G-36", "F16", "F17", "F18", "F19", "L19")
@of("retry_and_sleep")
def test_retry_and_sleep(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("G-20", "G-21", "G-22", "G-24", "G-25", "G-27", "G-37", "H-28", "A41", "B2", "B4", "B6", "B12", "B13", "B14", "B18", "B25")
@pytest.mark.row("B26", "B27")
@of("interrupts")
def test_interrupts(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("G-35", "L12")
@of("signals")
def test_signals(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("G-28", "G-29", "G-30", "G-31", "F-41", "H-31", "H-32", "A45", "G-33", "B11", "B16", "E1", "E2", "E9", "E12", "E21")
@of("subgraphs")
def test_subgraphs(trace: Trace) -> None:
    check(trace)


@pytest.mark.row("C-42", "C-43", "C-44", "C18", "C19", "C20", "C21", "C24", "C27", "C29", "C31", "C1", "C8", "I-19")
@of("cancel")
def test_cancel(trace: Trace) -> None:
    check(trace)


# ---- too wide to write out ----


@pytest.mark.row("F-29", "H-33", "F33")
def test_a_hundred_branches_give_what_a_chain_gives() -> None:
    """A large carried field, branches of two steps, every third one retried: input order, and every branch reads all of it."""
    text = "carried " * 5_000
    seen: list[bool] = []

    def work(flow: Flow) -> None:
        seen.append(flow["text"] == text)
        if flow["x"] % 3 == 0 and flow.attempt == 0 and flow.retry(100 - flow["x"]):
            return
        flow["log"] = [flow["x"]]

    def again(flow: Flow) -> None:
        flow["log"] = [-flow["x"]]

    graph = read_graph("wide", "S -> W each xs as x\nW -> V -> J⊕ -> END\nreduce log append")
    for seed in SEEDS:
        run = ReferenceRun(graph, {"S": idle, "W": work, "V": again, "J": idle}, {"xs": list(range(100)), "text": text}, seed=seed)
        outcome = run.advance()
        assert outcome.status == "completed"
        assert dict(outcome.state) == {"xs": list(range(100)), "text": text, "log": [y for x in range(100) for y in (x, -x)]}
        assert len(run.runs) == 1 + 100 + 34 + 100 + 1
    assert all(seen)


def idle(flow: Flow) -> None:
    """Do nothing."""


# ---- the traces themselves ----


def test_every_file_has_a_test_and_every_claim_a_trace() -> None:
    tests = {name.removeprefix("test_"): test for name, test in vars(sys.modules[__name__]).items() if hasattr(test, "pytestmark")}
    assert set(TRACES) <= set(tests)
    for topic, traces in TRACES.items():
        claimed = {row for mark in tests[topic].pytestmark if mark.name == "row" for row in mark.args}
        assert claimed <= {row for trace in traces for row in trace.rows}, topic


def test_ids_are_unique_within_a_file_and_rows_are_rows() -> None:
    for topic, traces in TRACES.items():
        ids = [trace.id for trace in traces]
        assert len(ids) == len(set(ids)), topic
    assert all(trace.rows and all(re.fullmatch(r"[A-M]-?\d+", row) for row in trace.rows) for trace in ALL)


def test_a_seed_repeats_itself_and_seeds_differ() -> None:
    def order(trace: Trace, seed: int) -> list[tuple[str, int]]:
        run = start(trace, seed=seed)
        run.advance()
        return list(run.runs)

    trace = next(trace for trace in ALL if trace.id == "nested-failure")
    assert order(trace, 3) == order(trace, 3)
    assert len({tuple(order(trace, seed)) for seed in SEEDS}) > 1


# ---- the checks bite ----


@pytest.mark.parametrize("topic", TOPICS)
def test_a_wrong_expectation_is_noticed(topic: str) -> None:
    """Each expectation of each trace, spoiled alone, is reported."""
    for trace in TRACES[topic]:
        for spoiled in spoil(trace):
            assert play(spoiled, seed=0), f"{trace.id}: {spoiled.outcome} {spoiled.steps}"


def spoil(trace: Trace) -> list[Trace]:
    other = "failed" if trace.outcome["status"] != "failed" else "completed"
    spoiled = [replace(trace, outcome={**trace.outcome, "status": other})]
    if "state" in trace.outcome:
        spoiled.append(replace(trace, outcome={**trace.outcome, "state": {**trace.outcome["state"], "spoiled": 1}}))
    if trace.whole and trace.steps:
        spoiled.append(replace(trace, steps=trace.steps[:-1]))
    spoiled.append(replace(trace, steps=[*trace.steps, Line("99", "Z", {})]))
    first, *rest = trace.steps
    lines = [
        replace(first, name="Other"),
        replace(first, input={"spoiled": 1}),
        replace(first, changes={"spoiled": 1}),
        replace(first, facts={**first.facts, "attempt": 99}),
    ]
    return [*spoiled, *(replace(trace, steps=[line, *rest]) for line in lines)]


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (2**53 + 1, float(2**53), False),
        ("x", "x", True),
        ("~boom", "a boom!", True),
        ("~boom", "a bang", False),
        ("~boom", 5, False),
        ("?", None, True),
        (None, None, True),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": None}, {}, False),
        ({"a": 1, "...": True}, {"a": 1, "b": 2}, True),
        ({"a": 1, "...": True}, {"b": 2}, False),
        ([{"a": "?"}], [{"a": [1]}], True),
    ],
)
def test_values_are_compared_with_their_types(expected: Any, got: Any, same: bool) -> None:
    assert (not list(compare(expected, got, "x"))) is same


def test_a_report_names_the_step_and_the_field() -> None:
    trace = next(trace for trace in TRACES["fan_out"] if trace.id == "both")
    index, line = next((index, line) for index, line in enumerate(trace.steps) if line.path == "2")
    steps = [*trace.steps[:index], replace(line, input={**line.input, "a": 4, "b": 3}), *trace.steps[index + 1 :]]
    report = play(replace(trace, steps=steps), seed=0)
    assert report[0] == "step 2 (J): input.a: expected 4, got 3"
    assert report[1].startswith("ran in this order: 1#0 ")


# ---- the notation ----


def test_graphs_are_read() -> None:
    graph = read_graph(
        "g",
        """
        # a comment
        S -> A, B
        A, B -> J⊕ -> Z
        Z -> X switch s == "a -> b"
        Z -> END switch true
        Z -> S goto
        A -> J onError
        X -> END
        url X = tasks.x
        reduce log append, sum add
        """.replace("\n        ", "\n"),
    )
    edges = [(edge.source, edge.target, edge.when, edge.switch, edge.goto, edge.on_error) for edge in graph.transitions]
    assert edges == [
        ("S", "A", "", False, False, False),
        ("S", "B", "", False, False, False),
        ("A", "J", "", False, False, False),
        ("B", "J", "", False, False, False),
        ("J", "Z", "", False, False, False),
        ("Z", "X", 's == "a -> b"', True, False, False),
        ("Z", "END", "true", True, False, False),
        ("Z", "S", "", False, True, False),
        ("A", "J", "", False, False, True),
        ("X", "END", "", False, False, False),
    ]
    assert graph.entry_point == "S"
    assert graph.fan_ins == ["J"]
    assert graph.url_of("X") == "tasks.x"
    assert {field: str(reducer.value) for field, reducer in graph.reducers.items()} == {"log": "append", "sum": "add"}


def test_steps_are_read() -> None:
    line = read_step('1/0.2 W failed via=goto error="a : b" depth=? : {"x": [1]} => ?')
    assert line == Line("1/0.2", "W", {"status": "failed", "via": "goto", "attempt": 0, "error": "a : b"}, {"x": [1]}, "?")
    assert read_step("1 A") == Line("1", "A", {"status": "completed", "via": "normal", "attempt": 0})


@pytest.mark.parametrize("line", ["fly away", "set", "[attempt == 0]", "set x = {"])
def test_what_is_no_action_is_refused(line: str) -> None:
    with pytest.raises((NotationError, ValueError)):
        read_action(line)


def test_a_misspelled_key_is_refused_naming_the_trace() -> None:
    with pytest.raises(NotationError, match=r"f\.toml: trace t: .*outcom"):
        read_trace({"id": "t", "title": "", "rows": ["C-01"], "graph": "A -> END", "outcom": "completed"}, "f.toml")


def test_indented_lines_continue_the_line_above() -> None:
    entry = {"id": "t", "title": "", "rows": ["C-01"], "graph": "A -> END", "outcome": "completed", "steps": "1 A\n  : {} =>\n  {}\n2 B\n"}
    assert [line.path for line in read_trace(entry, "f.toml").steps] == ["1", "2"]


def test_each_step_of_a_trace_is_listed_once() -> None:
    for trace in ALL:
        paths = sorted(line.path for line in trace.steps)
        assert all(left != right for left, right in pairwise(paths)), trace.id
