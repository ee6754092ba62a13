"""The history of a flow as a Mermaid flowchart."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dwarf.history_mermaid import render
from dwarf.status import StepStatus
from dwarf.steps import Step


def step(number: int, name: str = "", *, after: int = 0, before: int = 0, status: str = "completed", **fields: Any) -> Step:
    return Step(
        step_key=f"k{number}", step_id=number, task_name=name or f"T{number}", status=StepStatus(status),
        predecessor_key=f"k{after}" if after else "", successor_key=f"k{before}" if before else "", **fields,
    )  # fmt: skip


def body(steps: list[Any], *, closed: bool = True) -> list[str]:
    return [line.strip() for line in render(steps, closed=closed).partition("\n\n")[2].splitlines()]


def arrows(steps: list[Any], *, closed: bool = True) -> list[str]:
    return [line for line in body(steps, closed=closed) if "-->" in line]


@pytest.mark.row("I-29")
@pytest.mark.parametrize("closed", [True, False])
def test_an_empty_history_is_two_circles(closed: bool) -> None:
    assert body([], closed=closed) == ['_start((" ")):::term', '_end((" ")):::term']


@pytest.mark.row("I-29")
def test_a_finished_flow_has_an_end() -> None:
    assert body([step(1, "A"), step(2, "B", after=1)]) == [
        '_start((" ")):::term', '_end((" ")):::term', 's0["A"]:::completed', 's1["B"]:::completed',
        "_start --> s0", "s0 --> s1", "s1 --> _end",
    ]  # fmt: skip


@pytest.mark.row("I-29")
def test_a_running_flow_has_none() -> None:
    text = render([step(1, "A"), step(2, "B", after=1, status="running")], closed=False)
    assert "_end" not in text
    assert "s0 --> s1" in text


@pytest.mark.row("I-29")
def test_branches_of_one_source_are_grouped() -> None:
    steps = [step(1, "Split"), *(step(n, after=1, before=5) for n in (2, 3, 4)), step(5, "Join", after=2), step(6, "Last", after=5)]
    lines = body(steps)
    assert lines[3:8] == ['subgraph g0 [" "]', 's1["T2"]:::completed', 's2["T3"]:::completed', 's3["T4"]:::completed', "end"]
    assert [line for line in lines if line.startswith("subgraph")] == ['subgraph g0 [" "]']
    assert set(arrows(steps)) == {
        "_start --> s0", "s0 --> s1", "s0 --> s2", "s0 --> s3", "s1 --> s4", "s2 --> s4", "s3 --> s4", "s4 --> s5", "s5 --> _end",
    }  # fmt: skip
    assert len(arrows(steps)) == 9


def test_each_source_has_a_group_of_its_own() -> None:
    steps = [step(1), step(2, after=1), step(3, after=1), step(4, after=2), step(5, after=2), step(6, after=3)]
    lines = body(steps)
    groups = [lines[at + 1 : lines.index("end", at)] for at, line in enumerate(lines) if line.startswith("subgraph")]
    assert [[line.split("[")[0] for line in group] for group in groups] == [["s1", "s2"], ["s3", "s4"]]


def test_a_fan_in_that_names_the_source_as_predecessor_is_no_branch() -> None:
    steps = [step(1), step(2, after=1, before=4), step(3, after=1, before=4), step(4, "Join", after=1)]
    lines = body(steps)
    assert lines.index("end") < lines.index('s3["Join"]:::completed')


@pytest.mark.row("I-29")
def test_labels_are_escaped() -> None:
    [line] = [line for line in body([step(1, "a#\"'<>`[]{}()|\n&lt;")]) if line.startswith("s0[")]
    assert line == 's0["a#35;#quot;#39;#lt;#gt;#96;#91;#93;#123;#125;#40;#41;#124; #amp;lt;"]:::completed'


@pytest.mark.parametrize("status", list(StepStatus))
def test_the_status_is_the_class(status: StepStatus) -> None:
    text = render([step(1, status=status.value)], closed=False)
    assert f's0["T1"]:::{status}\n' in text
    assert re.search(rf"^    classDef {status} fill:", text, re.MULTILINE)


def test_a_status_of_a_later_version_is_drawn_as_pending() -> None:
    class Odd:
        step_key, task_name, attempt, status = "k", "T", 0, "]:::x\nclick s0 href"
        predecessor_key = successor_key = sub_workflow_name = sub_workflow_url = sub_history = None

    assert 's0["T"]:::pending' in body([Odd()])


def test_a_retried_step_tells_its_attempt() -> None:
    assert 's0["T1 · attempt 2"]:::failed' in body([step(1, attempt=2, status="failed")])


def test_a_child_is_a_block_between_its_caller_and_what_follows() -> None:
    child = [step(10, "In"), step(11, "Out", after=10)]
    steps = [step(1, "Call", subgraph=True, sub_workflow_name='Sub "[x]"', sub_history=child), step(2, "Next", after=1)]
    lines = body(steps)
    assert lines[2:7] == ['s0["Call"]:::completed', 'subgraph c0 ["Sub #quot;#91;x#93;#quot;"]', "direction TB", 's2["In"]:::completed',
                          's3["Out"]:::completed']  # fmt: skip
    assert lines[7] == "end"
    assert sorted(arrows(steps)) == ["_start --> s0", "c0 --> s1", "s0 --> c0", "s1 --> _end", "s2 --> s3"]


def test_a_child_without_a_name_shows_its_url_and_a_caller_without_history_is_a_step() -> None:
    named = step(1, subgraph=True, sub_workflow_url="shipping.quote", sub_history=[step(10)])
    assert 'subgraph c0 ["shipping.quote"]' in body([named])
    assert not any("subgraph" in line for line in body([step(1, subgraph=True, sub_workflow_name="Sub")]))


def test_a_last_step_that_called_a_child_ends_after_it() -> None:
    steps = [step(1, subgraph=True, sub_history=[step(10)])]
    assert arrows(steps) == ["_start --> s0", "s0 --> c0", "c0 --> _end"]
    assert arrows(steps, closed=False) == ["_start --> s0", "s0 --> c0"]


def test_branches_may_call_children_with_branches() -> None:
    child = [step(10), step(11, after=10), step(12, after=10)]
    steps = [step(1), step(2, after=1), step(3, after=1, subgraph=True, sub_history=child)]
    lines = body(steps)
    ids = [line.split("[")[0] for line in lines if line.startswith("s") and "[" in line and not line.startswith("subgraph")]
    assert ids == ["s0", "s1", "s2", "s3", "s4", "s5"]
    assert lines.count("end") == sum(line.startswith("subgraph") for line in lines) == 3


def test_children_nest_a_thousand_deep() -> None:
    history = [step(1001)]
    for depth in range(1000, 0, -1):
        history = [step(depth, subgraph=True, sub_history=history)]
    text = render(history, closed=True)
    assert text.count("subgraph ") == 1000
    assert text.count("-->") == 1002
    assert len(text) < 300_000


def test_neighbours_outside_the_history_and_cycles_are_ignored() -> None:
    assert arrows([step(1, after=99, before=98)]) == ["_start --> s0", "s0 --> _end"]
    assert arrows([step(1, after=1, before=1)]) == ["_start --> s0", "s0 --> _end"]
    assert arrows([step(1, after=2), step(2, after=1)]) == ["s1 --> s0", "s0 --> s1"]


def test_a_wide_fan_out_takes_one_line_a_branch() -> None:
    steps = [step(1), *(step(n, after=1, before=9000) for n in range(2, 5002)), step(9000, after=2)]
    assert len(body(steps)) == 2 + 5002 + 3 + 10_000 + 2
