"""What a client reads of flows: outcomes, histories, steps, fingerprints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import END, FlowKey, FlowOptions, Graph, InvalidArgument, NotFound, Status, Step, StepKey, StepStatus, TaskError
from dwarf.flow import Flow
from tests.engine.conftest import MakeStage
from tests.engine.stage import Stage, line

WILD = '😀 "quoted" back\\slash עברית 漢字 \x01\x1f\x7f \u2028 \u0000'.replace("\u0000", "")
HUGE = 2**200 + 1


def nothing(flow: Flow) -> None:
    pass


def write(flow: Flow) -> None:
    flow["ran"] = [flow.task_name]


def ask(flow: Flow) -> None:
    flow["seen"] = flow.get("x", 0)
    flow.delete("secret")
    flow["answer"] = flow.interrupt({"question": flow.get("x", 0)})


def call(flow: Flow) -> None:
    flow["kept"] = True
    flow["got"] = flow.subgraph(flow.get_str("child"), {"x": 7, "secret": 1, "child": flow.get_str("below")})


def fail(flow: Flow) -> None:
    if not flow.get("quiet"):
        raise TaskError("out of paper")


def retry(flow: Flow) -> None:
    flow["tries"] = flow.attempt
    if flow.attempt < 2:
        flow.retry(0)


TASKS = {"A": write, "B": write, "C": write, "Z": nothing, "S": nothing, "J": write, "Q": ask, "P": call, "F": fail, "R": retry}


def fan(task: str, name: str) -> Graph:
    graph = Graph(name).add_transition_for_each("S", task, "xs", "x").add_transition_chain(task, "J").set_fan_in("J")
    return graph.add_transition_chain("J", "Z", END).set_reducer("ran", "append")


GRAPHS = {
    "line": line("A", "B", "C"),
    "ask": line("Q", "Z", name="ask"),
    "call": line("A", "P", "B", name="call"),
    "fail": line("F", name="fail"),
    "again": line("R", "Z", name="again"),
    "fan": fan("B", "fan"),
    "asks": fan("Q", "asks"),
    "fails": fan("F", "fails"),
    "two": Graph("two steps").add_transition_for_each("S", "A", "xs", "x").add_transition_chain("A", "B", "J", END).set_fan_in("J"),
}


def step_once(on: Stage) -> None:
    on.player.record(on.player.work(on.player.claim()))


def names(steps: list[Step]) -> list[str]:
    return [step.task_name for step in steps]


def by_key(steps: list[Step]) -> dict[str, Step]:
    """All steps, those of children included."""
    found: dict[str, Step] = {}
    waiting = list(steps)
    while waiting:
        step = waiting.pop()
        found[step.step_key] = step
        waiting += step.sub_history
    return found


# Outcomes


@pytest.mark.row("A40")
def test_a_snapshot_shows_what_belongs_to_the_status(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = {url: on.do(on.client.create(url, {"x": 1})) for url in ("line", "fail", "ask")}
    cut, cancelled = on.do(on.client.create_many([("line", {"x": 1})] * 2))
    for key in keys.values():
        running = on.do(on.client.snapshot(key))
        assert (running.status, running.state, running.error, running.reason) == (Status.RUNNING, {}, "", "")
    step_once(on)
    on.do(on.client.terminate(cut, "no more"))
    on.do(on.client.cancel(cancelled, "not now"))
    on.play()
    done, failed, asked = (on.do(on.client.snapshot(keys[url])) for url in ("line", "fail", "ask"))
    assert (done.status, done.state, done.error, done.reason) == (Status.COMPLETED, {"x": 1, "ran": ["C"]}, "", "")
    assert (failed.status, failed.state, failed.error, failed.reason) == (Status.FAILED, {"x": 1}, "out of paper", "")
    assert (asked.status, asked.interrupt_payload, asked.error) == (Status.INTERRUPTED, {"question": 1}, "")
    terminated, ended = on.do(on.client.snapshot(cut)), on.do(on.client.snapshot(cancelled))
    assert (terminated.status, terminated.reason, terminated.error) == (Status.TERMINATED, "no more", "")
    assert terminated.state == {"x": 1, "ran": ["A"]}
    assert (ended.status, ended.reason, ended.error) == (Status.CANCELLED, "not now", "")
    assert ended.state == {"x": 1, "ran": ["A"]}
    assert on.do(on.client.wait(cut)) == terminated


@pytest.mark.row("A41", "A42")
def test_an_interrupted_flow_shows_the_input_with_the_writes_before_it(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("ask", {"x": 3, "secret": "s"}))
    on.play()
    outcome = on.do(on.client.snapshot(key))
    assert (outcome.state, outcome.interrupt_payload) == ({"x": 3, "seen": 3}, {"question": 3})
    assert "secret" not in outcome.state.keys() | outcome.to_wire()["state"].keys()
    on.do(on.client.resume(key, {"ok": True}))
    on.play()
    final = on.do(on.client.snapshot(key)).state
    assert final == {"x": 3, "seen": 3, "answer": {"ok": True}}
    assert "secret" not in final


@pytest.mark.row("A41", "B9", "B11", "A46")
def test_an_interrupt_far_below_shows_at_every_level(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("call", {"child": "call", "below": "ask"}))
    on.play()
    middle, leaf = on.child(key, 0), on.child(key, 1)
    for each in (key, middle, leaf):
        outcome = on.do(on.client.snapshot(each))
        assert (outcome.status, outcome.interrupt_payload) == (Status.INTERRUPTED, {"question": 7})
        assert outcome.state == {"x": 7, "child": "", "seen": 7}
        assert on.do(on.client.wait(each)) == outcome
        assert on.do(on.client.fingerprint(each))[1] is Status.INTERRUPTED
    on.do(on.client.resume(key, {"a": 1}))
    on.play()
    assert on.do(on.client.snapshot(leaf)).state["answer"] == {"a": 1}
    assert on.do(on.client.snapshot(key)).state["got"]["got"]["answer"] == {"a": 1}


@pytest.mark.row("B12", "B13", "B14")
def test_of_two_interrupts_the_first_is_shown_and_answered(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("asks", {"xs": [10, 11, 12]}))
    on.play()
    seen = []
    while (outcome := on.do(on.client.snapshot(key))).status is Status.INTERRUPTED:
        seen.append(outcome.interrupt_payload["question"])
        assert outcome.state["x"] == outcome.state["seen"] == seen[-1]
        assert outcome.state["xCount"] == 3
        on.do(on.client.resume(key, {"to": seen[-1]}))
        on.turn(0)
    assert seen == [10, 11, 12]
    on.play()
    assert on.do(on.client.snapshot(key)).status is Status.COMPLETED


@pytest.mark.row("A41")
def test_an_interrupt_at_a_fan_in_shows_what_its_cohort_brought(stage: MakeStage) -> None:
    graph = Graph("ends with a question").add_transition_for_each("S", "B", "xs", "x").add_transition_chain("B", "Q", END).set_fan_in("Q")
    on = stage({"g": graph.set_reducer("ran", "append")}, TASKS)
    key = on.do(on.client.create("g", {"xs": [1, 2, 3], "secret": 1}))
    on.play()
    outcome = on.do(on.client.snapshot(key))
    assert outcome.state == {"xs": [1, 2, 3], "ran": ["B"] * 3, "seen": 0}
    [step] = [step for step in on.do(on.client.history(key)) if step.task_name == "Q"]
    assert on.do(on.client.step(step.step_key)).state == {"xs": [1, 2, 3], "ran": ["B"] * 3, "secret": 1}


def test_an_interrupt_late_in_a_long_flow_shows_all_that_was_written(stage: MakeStage) -> None:
    def grow(flow: Flow) -> None:
        flow["log"] = [flow.task_name + "x" * 2_000]
        flow["n"] = flow.get_int("n") + 1

    names = [f"T{n}" for n in range(90)]
    graph = Graph("long").add_transition_chain(*names, "Q", END).set_reducer("log", "append")
    on = stage({"g": graph}, {**TASKS, **dict.fromkeys(names, grow)})
    key = on.do(on.client.create("g", {"big": "y" * 50_000}))
    on.play()
    shown = on.do(on.client.snapshot(key)).state
    assert [entry.rstrip("x") for entry in shown["log"]] == names
    assert (shown["n"], shown["seen"], len(shown["big"])) == (90, 0, 50_000)
    on.do(on.client.terminate(key))
    assert on.do(on.client.snapshot(key)).state == {name: value for name, value in shown.items() if name != "seen"}


@pytest.mark.row("A50", "A51", "A52", "B2")
def test_texts_and_numbers_come_back_as_they_were(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    nul = "a\0b"
    state = {"text": WILD, "nul": nul, "big": HUGE, "list": [HUGE, WILD], "long": "x" * 200_000, "secret": 0}
    key = on.do(on.client.create("ask", state))
    on.play()
    shown = on.do(on.client.snapshot(key)).state
    assert dict(shown) == {**{name: value for name, value in state.items() if name != "secret"}, "seen": 0}
    on.do(on.client.resume(key, {"text": WILD, "nul": nul, "big": HUGE}))
    on.play()
    final = on.do(on.client.wait(key)).state
    assert final["answer"] == {"text": WILD, "nul": nul, "big": HUGE}
    assert (final["big"], final["list"], final["text"], final["nul"], final["long"]) == (HUGE, [HUGE, WILD], WILD, nul, "x" * 200_000)
    assert final.get_int("big") == HUGE  # type: ignore[attr-defined]


@pytest.mark.row("A51")
def test_a_large_final_state_reaches_a_waiter_too(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    import random

    text = "".join(random.Random(1).choices("0123456789abcdefghijklmnopqrstuvwxyz", k=400_000))
    running = on.spawn(on.client.run("line", {"long": text}))
    on.turn_until(on.count)
    on.play()
    assert on.do(running)[1].state == {"long": text, "ran": ["C"]}


# Keys


@pytest.mark.row("A22", "J7")
def test_keys_that_name_nothing_are_refused_by_every_reader(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = FlowKey.parse(on.do(on.client.create("line")))
    on.play()
    client = on.client
    readers: list[Any] = [
        client.wait, client.snapshot, client.fingerprint, client.history, client.history_mermaid, client.resume, client.cancel, client.terminate,
        client.delete,
    ]  # fmt: skip
    malformed = ("", "x", "1-2-3", f"0-{key.hour}-{key.low}-{key.token}", f"{key}-1", f"{key} ", "a-b-c-d", None, 7, f"-1-2-3-{key.token}")
    unknown = (FlowKey(1, key.flow_id, "f" * 16), FlowKey(1, key.flow_id + 1000, key.token), FlowKey(2, key.flow_id, key.token))
    for read in readers:
        for text in malformed:
            with pytest.raises(InvalidArgument) as refused:
                on.do(read(text))
            assert refused.value.status == 400
            assert key.token not in str(refused.value)
        for other in unknown:
            with pytest.raises(NotFound) as missing:
                on.do(read(str(other)))
            assert missing.value.status == 404
            assert other.token not in str(missing.value)
    step = key.step(1 << 0)
    for text in ("", str(key), f"1-{key.hour}-{key.low}-0-{step.token}"):
        with pytest.raises(InvalidArgument):
            on.do(client.step(text))
    for each in (StepKey(1, key.flow_id, 1, "f" * 16), key.step(999), FlowKey(3, key.flow_id, key.token).step(1)):
        with pytest.raises(NotFound) as missing:
            on.do(client.step(str(each)))
        assert each.token not in str(missing.value)


# Histories


@pytest.mark.row("A44")
def test_a_history_is_the_steps_in_order(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    [pending] = on.do(on.client.history(key))
    assert (pending.status, pending.started_at, pending.successor_key, pending.predecessor_key) == (StepStatus.PENDING, None, "", "")
    step_once(on)
    on.player.claim()
    assert [(step.task_name, step.status) for step in on.do(on.client.history(key))] == [
        ("A", StepStatus.COMPLETED),
        ("B", StepStatus.RUNNING),
    ]
    on.player.all("update dwarf.active set owner = null, status = 1, claimable = now() returning 1")
    on.play()
    steps = on.do(on.client.history(key))
    assert names(steps) == ["A", "B", "C"]
    assert [step.step_key for step in steps] == [str(FlowKey.parse(key).step(seq)) for seq in (1, 2, 3)]
    assert [step.step_id for step in steps] == [1, 2, 3]
    assert [step.step_depth for step in steps] == [1, 2, 3]
    assert [step.task_url for step in steps] == ["A", "B", "C"]
    assert [step.predecessor_key for step in steps] == ["", steps[0].step_key, steps[1].step_key]
    assert [step.successor_key for step in steps] == [steps[1].step_key, steps[2].step_key, ""]
    assert [step.previous_key for step in steps] == ["", steps[0].step_key, steps[1].step_key]
    assert [step.next_key for step in steps] == [steps[1].step_key, steps[2].step_key, ""]
    assert {step.engine_id for step in steps} == {on.player.engine}
    for step in steps:
        assert step.started_at is not None
        assert step.created_at <= step.started_at <= step.updated_at  # type: ignore[operator]
        assert step.created_at.tzinfo is not None  # type: ignore[union-attr]
        assert (step.state, step.changes, step.interrupt_payload, step.error) == (None, None, None, "")


@pytest.mark.row("A44", "L22")
def test_a_failed_step_tells_its_error(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("fail"))
    on.play()
    [step] = on.do(on.client.history(key))
    assert (step.status, step.error) == (StepStatus.FAILED, "out of paper")


def test_a_retried_step_counts_its_attempts(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("again"))
    step_once(on)
    [step] = on.do(on.client.history(key))
    assert (step.attempt, step.status) == (1, StepStatus.PENDING)
    assert on.do(on.client.step(step.step_key)).changes == {"tries": 0}
    on.play()
    steps = on.do(on.client.history(key))
    assert [step.attempt for step in steps] == [2, 0]


def test_branches_lead_from_their_source_to_their_fan_in(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("two", {"xs": [1, 2, 3]}))
    step_once(on)
    steps = on.do(on.client.history(key))
    assert names(steps) == ["S", "A", "A", "A"]
    assert [step.successor_key for step in steps[1:]] == ["", "", ""]
    on.play()
    steps = on.do(on.client.history(key))
    assert names(steps) == ["S", "A", "A", "A", "B", "B", "B", "J"]
    assert [step.step_depth for step in steps] == [1, 2, 2, 2, 3, 3, 3, 4]
    source, firsts, lasts, join = steps[0], steps[1:4], steps[4:7], steps[7]
    assert source.successor_key == firsts[0].step_key
    assert {step.predecessor_key for step in firsts} == {source.step_key}
    assert [step.successor_key for step in firsts] == [step.step_key for step in lasts]
    assert [step.predecessor_key for step in lasts] == [step.step_key for step in firsts]
    assert {step.successor_key for step in lasts} == {join.step_key}
    assert join.predecessor_key in {step.step_key for step in lasts}
    assert (join.successor_key, join.next_key) == ("", "")


def test_an_empty_fan_out_leads_straight_to_its_fan_in(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("fan", {"xs": []}))
    on.play()
    source, join, last = on.do(on.client.history(key))
    assert (source.successor_key, join.predecessor_key, join.successor_key) == (join.step_key, source.step_key, last.step_key)


def test_a_fan_in_that_never_ran_is_no_step(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("fails", {"xs": [1, 2]}))
    on.play()
    steps = on.do(on.client.history(key))
    assert names(steps) == ["S", "F", "F"]
    assert [step.successor_key for step in steps[1:]] == ["", ""]
    assert on.do(on.client.snapshot(key)).error == "out of paper"


@pytest.mark.row("A45", "A46")
def test_children_are_nested_and_steps_lead_through_them(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("call", {"child": "call", "below": "line"}))
    on.play()
    a, p, b = on.do(on.client.history(key))
    assert (p.subgraph, p.sub_workflow_url, p.sub_workflow_name, p.sub_flow_key) == (True, "call", "call", on.child(key, 0))
    assert (a.subgraph, a.sub_history, a.sub_flow_key) == (False, [], "")
    inner_a, inner_p, inner_b = p.sub_history
    assert (inner_p.sub_workflow_url, names(inner_p.sub_history)) == ("line", ["A", "B", "C"])
    leaf_a, leaf_b, leaf_c = inner_p.sub_history
    assert [step.step_depth for step in (a, p, inner_a, inner_p, leaf_a, leaf_b, leaf_c, inner_b, b)] == [1, 2, 3, 4, 5, 6, 7, 5, 3]
    path = [a, inner_a, leaf_a, leaf_b, leaf_c, inner_b, b]
    assert [step.next_key for step in path] == [*(step.step_key for step in path[1:]), ""]
    assert [step.previous_key for step in path] == ["", *(step.step_key for step in path[:-1])]
    assert (a.successor_key, b.predecessor_key) == (p.step_key, p.step_key)
    assert (inner_a.predecessor_key, inner_b.successor_key) == ("", "")
    assert (p.previous_key, p.next_key) == (a.step_key, b.step_key)
    below = on.do(on.client.history(inner_p.sub_flow_key))
    assert names(below) == ["A", "B", "C"]
    assert on.do(on.client.step(leaf_b.step_key)).task_name == "B"


@pytest.mark.row("A45")
def test_a_caller_that_waits_shows_its_child_and_only_the_last_one(stage: MakeStage) -> None:
    def twice(flow: Flow) -> None:
        flow.subgraph("line" if flow.attempt else "fail", {"quiet": True})
        if not flow.attempt:
            flow.retry(0)

    on = stage(GRAPHS, {**TASKS, "P": twice})
    key = on.do(on.client.create("call"))
    step_once(on)
    step_once(on)
    waiting = on.do(on.client.history(key))[1]
    assert (waiting.status, waiting.parked, waiting.sub_workflow_url, names(waiting.sub_history)) == (
        StepStatus.PARKED,
        True,
        "fail",
        ["F"],
    )
    on.play()
    done = on.do(on.client.history(key))[1]
    assert (done.status, done.parked, done.attempt, done.sub_workflow_url) == (StepStatus.COMPLETED, False, 1, "line")
    assert names(done.sub_history) == ["A", "B", "C"]
    assert done.sub_flow_key == on.child(key, 1)


def test_a_history_deep_as_children_may_nest(stage: MakeStage) -> None:
    def deeper(flow: Flow) -> None:
        depth = flow.get_int("depth")
        if depth:
            flow["below"] = flow.subgraph("deep", {"depth": depth - 1})["depth"]

    on = stage({"deep": line("D", name="deep")}, {"D": deeper})
    key = on.do(on.client.create("deep", {"depth": 60}))
    on.play()
    assert len(by_key(on.do(on.client.history(key)))) == 61
    assert on.do(on.client.history_mermaid(key)).count("subgraph ") == 60


@pytest.mark.row("I-29")
def test_a_history_as_a_flowchart(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    step_once(on)
    text = on.do(on.client.history_mermaid(key))
    assert 's0["A"]:::completed' in text
    assert 's1["B"]:::pending' in text
    assert "_end" not in text
    on.play()
    assert "s2 --> _end" in on.do(on.client.history_mermaid(key))


# Single steps


def test_a_step_shows_what_it_was_given_and_what_it_did(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("fan", {"xs": [5, 6]}))
    on.play()
    history = on.do(on.client.history(key))
    source, first, second, join, last = (on.do(on.client.step(step.step_key)) for step in history)
    assert (source.state, source.changes) == ({"xs": [5, 6]}, {})
    assert (first.state, first.changes) == ({"xs": [5, 6], "x": 5, "xIndex": 0, "xCount": 2}, {"ran": ["B"]})
    assert second.state["x"] == 6  # type: ignore[index]
    assert join.state == {"xs": [5, 6], "ran": ["B", "B"]}
    assert last.state == {"xs": [5, 6], "ran": ["B", "B", "J"]}
    assert (last.changes, last.interrupt_payload) == ({}, {})
    assert first.predecessor_key == source.step_key


@pytest.mark.row("A46", "B2")
def test_a_parked_step_shows_its_payload_and_the_writes_it_keeps(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("call", {"child": "ask"}))
    on.play()
    _, caller = on.do(on.client.history(key))
    assert caller.status is StepStatus.PARKED
    assert on.do(on.client.step(caller.step_key)).changes == {"kept": True}
    [asking] = caller.sub_history
    step = on.do(on.client.step(asking.step_key))
    assert (step.status, step.parked, step.interrupt_payload) == (StepStatus.INTERRUPTED, True, {"question": 7})
    assert step.state == {"x": 7, "secret": 1, "child": ""}
    assert step.changes == {"seen": 7, "secret": None}
    on.do(on.client.resume(key))
    on.play()
    step = on.do(on.client.step(asking.step_key))
    assert (step.status, step.interrupt_payload) == (StepStatus.COMPLETED, {"question": 7})
    assert step.changes == {"seen": 7, "secret": None, "answer": {}}


# Fingerprints


@pytest.mark.row("A43")
def test_a_fingerprint_changes_with_every_transition_and_only_then(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("call", {"child": "asks"}))
    other = on.do(on.client.create("line"))
    seen = [on.do(on.client.fingerprint(key))]
    for _ in range(50):
        assert on.do(on.client.fingerprint(key)) == seen[-1]
        rows = on.player.claim(1)
        if not rows:
            break
        if any(row.root_id == FlowKey.parse(key).flow_id for row in rows):
            seen.append(on.do(on.client.fingerprint(key)))
        on.player.record(on.player.work(rows))
        seen.append(on.do(on.client.fingerprint(key)))
        if any(row.root_id == FlowKey.parse(key).flow_id for row in rows):
            assert seen[-1] != seen[-2]
    texts = [text for text, _ in seen]
    assert len(set(texts)) > 8
    assert seen[0][1] is Status.RUNNING
    on.play()
    closed = on.do(on.client.fingerprint(key))
    assert closed[1].closed
    assert on.do(on.client.fingerprint(other))[0] != closed[0]
    assert on.do(on.client.fingerprint(key)) == closed


@pytest.mark.row("A43", "A46")
def test_a_fingerprint_of_a_child_is_its_own(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("asks", {"xs": [1]}))
    calls = on.do(on.client.create("call", {"child": "call", "below": "ask"}))
    on.play()
    middle, leaf = on.child(calls, 0), on.child(calls, 1)
    before = [on.do(on.client.fingerprint(each))[0] for each in (calls, middle, leaf, key)]
    on.do(on.client.resume(calls))
    after = [on.do(on.client.fingerprint(each))[0] for each in (calls, middle, leaf, key)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, False, True]


# Flows that are on their way out


@pytest.mark.row("I10", "I12", "I23")
def test_a_deleted_flow_has_an_outcome_and_no_history(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    by_hand = on.do(on.client.create("line"))
    by_option = on.do(on.client.create("line", None, FlowOptions(delete_on_completion=True)))
    on.play()
    on.do(on.client.delete(by_hand))
    for key in (by_hand, by_option):
        assert on.do(on.client.snapshot(key)).status is Status.COMPLETED
        assert on.do(on.client.wait(key)).state == {"ran": ["C"]}
        for read in (on.client.history, on.client.history_mermaid):
            with pytest.raises(NotFound):
                on.do(read(key))
        with pytest.raises(NotFound):
            on.do(on.client.step(str(FlowKey.parse(key).step(1))))
        assert on.do(on.client.list_closed()).items == []
    on.do(on.client.delete(by_hand))
    on.player.one("select dwarf.reap_v1(100, now() + interval '1 day')")
    for key in (by_hand, by_option):
        with pytest.raises(NotFound):
            on.do(on.client.snapshot(key))


@pytest.mark.row("A49")
def test_a_task_can_read_its_own_flow_and_step(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    key = on.do(on.client.create("line"))
    on.player.claim()
    step = on.do(on.client.step(str(FlowKey.parse(key).step(1))))
    assert (step.status, step.task_name) == (StepStatus.RUNNING, "A")
    assert on.do(on.client.history(key))[0].step_key == step.step_key


def test_readers_may_ask_all_at_once(stage: MakeStage) -> None:
    on = stage(GRAPHS, TASKS)
    keys = on.do(on.client.create_many([("fan", {"xs": [1, 2]})] * 30))
    on.play()

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(read(key) for key in keys for read in (on.client.snapshot, on.client.history, on.client.fingerprint)))

    assert len(on.do(all_of_them())) == 90
    assert on.client._shards[1].pool.connections_open <= 4


@pytest.mark.row("A45")
def test_a_retried_caller_keeps_its_last_child(stage: MakeStage) -> None:
    def again(flow: Flow) -> None:
        if flow.attempt < 2:
            flow.subgraph(("line", "fail")[flow.attempt], {"quiet": True})
            flow.retry(0)

    on = stage(GRAPHS, {**TASKS, "P": again})
    key = on.do(on.client.create("call"))
    seen: list[tuple[int, str, list[str]]] = []
    for _ in range(12):
        step_once(on)
        steps = on.do(on.client.history(key))
        if len(steps) > 1 and (not seen or seen[-1] != (steps[1].attempt, steps[1].sub_workflow_url, names(steps[1].sub_history))):
            seen.append((steps[1].attempt, steps[1].sub_workflow_url, names(steps[1].sub_history)))
    [*_, last] = seen
    assert last == (2, "fail", ["F"])
    assert (1, "line", ["A", "B", "C"]) in seen
    assert on.do(on.client.snapshot(key)).status is Status.COMPLETED
    assert on.do(on.client.history(key))[1].sub_flow_key == on.child(key, 1)
