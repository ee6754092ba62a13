"""Records: what decide makes of an effect, kind by kind, and what it never does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dwarf import cohorts
from dwarf.changes import NOTHING, Changes
from dwarf.decide import cancel, decide, give_back
from dwarf.effect import Effect, Failure, Interrupt, RetryAfter, Subgraph, engine_failure
from dwarf.errors import InvalidArgument, ReducerError
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.inputs import Input, branch_input, decode_document, snapshot
from dwarf.limits import SEQ_MAX
from dwarf.record import ClaimedStep, Kind, Member, Record, Todo, Via
from dwarf.state import State
from dwarf.status import StepStatus
from dwarf.testing.reference import ReferenceRun
from dwarf.turns import continue_state


def fields(values: Mapping[str, Any]) -> dict[str, Raw]:
    return {field: Raw(json.dumps(value).encode()) for field, value in values.items()}


def wrote(**values: Any) -> Changes:
    return Changes(fields(values))


def at(task: str, state: Mapping[str, Any] | None = None, **place: Any) -> ClaimedStep:
    return ClaimedStep(place.pop("branch", 0), place.pop("seq", 1), task, Input(fields(state or {})), **place)


def in_branch(task: str, state: Mapping[str, Any] | None = None, **place: Any) -> ClaimedStep:
    _, spawned = snapshot(Input(fields(state or {})), (0, 1), {})
    return ClaimedStep(7, place.pop("seq", 1), task, branch_input(spawned, 7, {}), in_cohort=True, **place)


def chain() -> Graph:
    graph = Graph("chain").add_transition_chain("A", "B", END)
    return graph.add_transition_goto("A", "A").add_transition_on_error("A", "H").add_transition("H", END)


def diamond() -> Graph:
    graph = Graph("diamond").add_transition_for_each("S", "W", "xs").add_transition_when("W", "J", "ok").set_fan_in("J")
    return (
        graph.add_transition("J", END)
        .add_transition_on_error("W", "J")
        .add_transition_for_each("S", "V", "ys", "y")
        .add_transition("V", "J")
    )


def test_advance() -> None:
    record = decide(chain(), at("A", {"n": 1}, seq=3, lease=9), Effect(wrote(n=2), sleep=1.5))
    assert (record.kind, record.branch, record.seq, record.lease) == (Kind.ADVANCE, 0, 3, 9)
    assert (record.status, record.via, record.task, record.delay) == (StepStatus.COMPLETED, Via.NORMAL, "B", 1.5)
    assert json.loads(record.changes) == {"n": 2}
    assert json.loads(record.delta or b"") == {"net": {"n": 2}}
    assert record.next_input is not None
    assert record.next_input.state == {"n": 2}
    assert (record.snapshot, record.base, record.delta_always, record.contribution) == (None, (0, 0), False, None)


def test_a_goto_and_an_error_route_say_so_in_history() -> None:
    again = decide(chain(), at("A"), Effect(goto="A"))
    assert (again.kind, again.task, again.via, again.goto) == (Kind.ADVANCE, "A", Via.GOTO, "A")
    routed = decide(chain(), at("A", {"x": 0}), Effect(wrote(x=1), failure=Failure("no", 418, {"why": Raw(b"1")})))
    assert (routed.kind, routed.task, routed.via, routed.status, routed.error) == (Kind.ADVANCE, "H", Via.ERROR, StepStatus.COMPLETED, "no")
    assert json.loads(routed.changes) == {"onErr": {"error": "no", "statusCode": 418, "why": 1}}


@pytest.mark.row("C-39")
def test_a_time_out_is_an_error_like_any_other() -> None:
    record = decide(chain(), at("A"), Effect(failure=Failure("the time budget of 1 s has passed", 408)))
    assert (record.task, json.loads(record.changes)["onErr"]["statusCode"]) == ("H", 408)


def test_close() -> None:
    record = decide(chain(), at("B", {"a": 1, "gone": 2}), Effect(wrote(b=None, gone=None)))
    assert (record.kind, record.status) == (Kind.CLOSE, StepStatus.COMPLETED)
    assert json.loads(record.final_state) == {"a": 1}
    failed = decide(chain(), at("B", {"a": 1}), Effect(wrote(a=5), failure=Failure("broken")))
    assert (failed.kind, failed.status, failed.error) == (Kind.CLOSE, StepStatus.FAILED, "broken")
    assert (json.loads(failed.final_state), failed.changes) == ({"a": 1}, b"{}")


def test_engine_failures_never_take_the_error_route() -> None:
    for effect in (Effect(goto="B"), Effect(goto="A", retry=RetryAfter(1)), Effect(failure=engine_failure("bad"))):
        record = decide(chain(), at("A"), effect)
        assert (record.kind, record.status, record.changes) == (Kind.CLOSE, StepStatus.FAILED, b"{}")


def test_park_and_retry_keep_writes_and_raise_no_seq() -> None:
    parked = decide(chain(), at("A"), Effect(wrote(t=1), park=Interrupt(b'{"q":1}'), sleep=5))
    assert (parked.kind, parked.status, parked.payload, parked.kept, parked.delay) == (
        Kind.PARK,
        StepStatus.INTERRUPTED,
        b'{"q":1}',
        b'{"t":1}',
        0,
    )
    waiting = decide(chain(), at("A"), Effect(wrote(t=1), park=Subgraph("child", b'{"i":1}')))
    assert (waiting.kind, waiting.status) == (Kind.PARK, StepStatus.PARKED)
    assert waiting.child is not None
    assert (waiting.child.url, waiting.child.input) == ("child", b'{"i":1}')
    retried = decide(chain(), at("A"), Effect(wrote(t=1), retry=RetryAfter(2), sleep=0.5))
    assert (retried.kind, retried.delay, retried.kept) == (Kind.RETRY, 2.5, b'{"t":1}')
    assert decide(chain(), at("A"), Effect(park=Interrupt(b"{}"), retry=RetryAfter(1))).kind is Kind.CLOSE
    assert give_back(at("A", lease=3)).kind is Kind.NONE


def test_fan_out_leaves_a_document_that_its_branches_stand_on() -> None:
    record = decide(diamond(), at("S", {"xs": ["a", "b"], "ys": [5]}, seq=4), Effect(wrote(n=1)))
    assert (record.kind, record.task, record.size, record.expanded) == (Kind.FAN_OUT, "J", 3, 3)
    assert record.base == (0, 4)
    assert record.snapshot is not None
    assert [(branch.ordinal, branch.task) for branch in record.branches] == [(0, "W"), (1, "W"), (2, "V")]
    aliases = [json.loads(branch.delta or b"{}")["alias"] for branch in record.branches]
    assert aliases == [
        {"item": "a", "itemIndex": 0, "itemCount": 2}, {"item": "b", "itemIndex": 1, "itemCount": 2}, {"y": 5, "yIndex": 0, "yCount": 1},
    ]  # fmt: skip
    assert not decode_document(record.branches[0].delta or b"").on


def test_a_wide_fan_out_is_created_in_slices() -> None:
    graph = diamond()
    step = at("S", {"xs": list(range(1500)), "ys": list(range(700))})
    record = decide(graph, step, Effect())
    assert (record.size, record.expanded, len(record.branches)) == (2200, 1000, 1000)
    seen = list(record.branches)
    while record.expanded < record.size:
        assert record.next_input is not None
        joining = ClaimedStep(0, 2, "J", record.next_input, todo=Todo.EXPAND, source="S", expanded=record.expanded)
        record = cohorts.expand_slice(graph, joining)
        assert record.kind is Kind.FAN_OUT
        assert len(record.branches) <= 1000
        seen += record.branches
    assert [branch.ordinal for branch in seen] == list(range(2200))
    assert [branch.task for branch in seen] == ["W"] * 1500 + ["V"] * 700
    assert json.loads(seen[1700].delta or b"")["alias"] == {"y": 200, "yIndex": 200, "yCount": 700}


def test_arrive_brings_the_contribution_where_it_differs_from_the_changes() -> None:
    first = decide(diamond(), in_branch("W", {"ok": True}), Effect(wrote(a=1)))
    assert (first.kind, first.status, json.loads(first.changes), first.contribution) == (Kind.ARRIVE, StepStatus.COMPLETED, {"a": 1}, None)
    step = in_branch("W", {"ok": True}, seq=2)
    step.input.net = wrote(b=2)
    second = decide(diamond(), step, Effect(wrote(a=1)))
    assert json.loads(second.contribution or b"") == {"b": 2, "a": 1}
    stuck = decide(diamond(), step, Effect(wrote(ok=False)))
    assert (stuck.kind, stuck.status, stuck.changes, json.loads(stuck.contribution or b"")) == (
        Kind.ARRIVE,
        StepStatus.FAILED,
        b"{}",
        {"b": 2},
    )
    assert "no transition" in stuck.error


def joining(state: Mapping[str, Any], **place: Any) -> ClaimedStep:
    return at("J", state, seq=2, todo=Todo.FOLD, source="S", **place)


def test_fold_join_folds_in_order_and_forgets_the_aliases() -> None:
    graph = diamond().set_reducer("log", "append")
    folded = cohorts.fold_join(graph, joining({"xs": [1, 2], "item": 9}), [wrote(log="a", item=5), NOTHING, wrote(log=["b"], v=1)])
    assert isinstance(folded, ClaimedStep)
    assert folded.folded
    assert folded.input.state == {"xs": [1, 2], "log": ["a", "b"], "v": 1}
    after = decide(graph, folded, Effect())
    assert (after.kind, json.loads(after.final_state)) == (Kind.CLOSE, {"xs": [1, 2], "log": ["a", "b"], "v": 1})


def test_a_contribution_that_does_not_fit_fails_the_fan_in() -> None:
    graph = diamond().set_reducer("n", "add")
    record = cohorts.fold_join(graph, joining({"xs": [1]}), [wrote(n="text")])
    assert isinstance(record, Record)
    assert (record.kind, record.status, record.final_state) == (Kind.CLOSE, StepStatus.FAILED, b"{}")
    assert "'n'" in record.error
    assert "add" in record.error


@pytest.mark.row("L5", "L18")
def test_resolve_picks_the_error_and_the_state() -> None:
    graph = diamond().set_reducer("log", "append")
    members = [
        Member(0, StepStatus.COMPLETED, wrote(log="a"), step_id=9),
        Member(1, StepStatus.FAILED, wrote(log="b"), "late", step_id=8),
        Member(2, StepStatus.FAILED, NOTHING, "early", step_id=3),
        Member(3, StepStatus.CANCELLED, NOTHING, "cancelled", step_id=1),
    ]
    for last, error in ((1, "late"), (2, "early"), (0, "early"), (None, "early")):
        record = cohorts.resolve(graph, joining({"xs": [1]}), members, last=last)
        assert (record.kind, record.status, record.via, record.error) == (Kind.CLOSE, StepStatus.FAILED, Via.RESOLVE, error)
        assert json.loads(record.final_state) == {"xs": [1], "log": ["a", "b"]}
    cancelled = cohorts.resolve(graph, joining({}), [members[0], members[3]])
    assert (cancelled.status, cancelled.error) == (StepStatus.CANCELLED, "cancelled")
    inner = cohorts.resolve(graph, joining({}, in_cohort=True), members)
    assert (inner.kind, json.loads(inner.contribution or b"")) == (Kind.ARRIVE, {"log": ["a", "b"]})
    unfit = cohorts.resolve(graph, joining({"log": "text"}), members)
    assert (unfit.status, unfit.final_state) == (StepStatus.FAILED, b"{}")
    cut = cohorts.resolve(graph, joining({}), [members[0]], reason="enough")
    assert (cut.status, cut.error) == (StepStatus.CANCELLED, "cancelled: enough")


@pytest.mark.row("C-41")
def test_a_cancellation_takes_the_error_route_without_a_run() -> None:
    """decisions.md has the last word: a step in progress does not finish its run first."""
    record = cancel(chain(), at("A", {"x": 1}), "stop it")
    assert (record.kind, record.task, record.via, record.status) == (Kind.ADVANCE, "H", Via.CANCEL, StepStatus.COMPLETED)
    assert json.loads(record.changes) == {
        "onErr": {"error": "cancelled: stop it", "statusCode": 499, "cancelled": True, "reason": "stop it"}
    }
    ended = cancel(chain(), at("B", {"x": 1}), "")
    assert (ended.kind, ended.status, ended.error, json.loads(ended.final_state)) == (
        Kind.CLOSE,
        StepStatus.CANCELLED,
        "cancelled",
        {"x": 1},
    )
    assert cancel(diamond(), in_branch("V"), "").kind is Kind.ARRIVE


@pytest.mark.row("L21")
def test_an_old_graph_that_leads_a_trunk_step_into_a_fan_in_fails_the_step() -> None:
    graph = Graph("old").add_transition("A", "J").set_fan_in("J").add_transition("J", END)
    record = decide(graph, at("A"), Effect())
    assert (record.kind, record.status) == (Kind.CLOSE, StepStatus.FAILED)
    assert "fan-in" in record.error
    out = Graph("out").add_transition_for_each("S", "W", "xs").add_transition("W", END).set_fan_in("W")
    assert decide(out, in_branch("W"), Effect()).status is StepStatus.FAILED


def test_a_branch_has_an_end() -> None:
    record = decide(chain(), at("A", seq=SEQ_MAX), Effect())
    assert record.status is StepStatus.FAILED
    assert str(SEQ_MAX) in record.error
    assert decide(chain(), at("B", seq=SEQ_MAX), Effect()).status is StepStatus.COMPLETED


def test_records_are_bytes_and_small_numbers() -> None:
    record = decide(diamond(), at("S", {"xs": [1]}), Effect(wrote(n=1)))
    record.next_input = None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record) == record


@pytest.mark.row("F-36")
def test_a_continued_flow_starts_from_the_folded_final_state() -> None:
    graph = Graph("turns").add_transition("A", END).set_reducer("log", "append")
    final = State({"log": ["a"], "v": 1, "w": 1})
    assert continue_state(graph, final, {"log": ["b"], "v": 2, "w": None}) == {"log": ["a", "b"], "v": 2}
    assert continue_state(graph, final) == final
    for wrong in ([1], "text", 5):
        with pytest.raises(InvalidArgument):
            continue_state(graph, final, wrong)
    with pytest.raises(ReducerError, match="log"):
        continue_state(graph, State({"log": "text"}), {"log": ["b"]})


@pytest.mark.row("C-37")
def test_each_visit_of_a_loop_is_a_step_of_its_own() -> None:
    graph = Graph("loop").add_transition_switch("A", "B", "n < 3").add_transition_switch("A", END, "true").add_transition("B", "A")
    seen: list[tuple[str, str, int]] = []

    def task(flow: Flow) -> None:
        flow["n"] = flow.get_int("n") + 1
        seen.append((flow.task_name, flow.step_key, flow.attempt))

    run = ReferenceRun(graph, {"A": task, "B": task})
    run.advance()
    assert [name for name, _, _ in seen] == ["A", "B", "A"]
    assert len({key for _, key, _ in seen}) == 3
    assert {attempt for _, _, attempt in seen} == {0}
    assert [step.path for step in run.steps] == ["1", "2", "3"]


@pytest.mark.row("C-40")
def test_a_flow_keeps_the_graph_it_was_created_with() -> None:
    graph = Graph("frozen").add_transition("A", END)
    run = ReferenceRun(graph, {"A": lambda flow: None, "B": lambda flow: None})
    graph.add_transition("A", "B")
    run.advance()
    assert [step.task for step in run.steps] == ["A"]


@pytest.mark.row("G-34", "E-43")
def test_a_child_has_the_baggage_and_goes_on_counting_depth() -> None:
    parent = Graph("parent").add_transition_chain("A", "B", END)
    child = Graph("child").add_transition("C", END)
    seen = []

    def call(flow: Flow) -> None:
        flow.subgraph("child", {})

    def inner(flow: Flow) -> None:
        seen.append((dict(flow.baggage), dict(flow.snapshot())))

    run = ReferenceRun(parent, {"A": lambda flow: None, "B": call, "C": inner}, {"x": 1}, graphs={"child": child}, baggage={"actor": "ada"})
    run.advance()
    assert seen == [({"actor": "ada"}, {})]
    caller = run.steps[1]
    assert (caller.depth, [step.depth for step in caller.child.steps]) == (2, [3])
    assert caller.child.key != run.key


@pytest.mark.row("H-21")
def test_a_flow_with_a_failed_branch_runs_until_its_siblings_have_settled() -> None:
    graph = Graph("siblings").add_transition_fan_out("S", "A", "B").add_transition("A", "J").add_transition("B", "J")
    graph.set_fan_in("J").add_transition("J", END)

    def fails(flow: Flow) -> None:
        raise ValueError("broken")

    def slow(flow: Flow) -> None:
        if flow.attempt == 0:
            flow.retry(60)

    run = ReferenceRun(graph, {"S": lambda flow: None, "A": fails, "B": slow, "J": lambda flow: None})
    run.advance(steps_max=3)
    assert not run.outcome.stopped
    assert run.advance().error == "broken"
    assert run.now == 60
