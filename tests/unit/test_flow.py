"""The carrier: writes and how they read, control signals, the two passes of a wait, identity."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

import dwarf.decide
from dwarf.changes import NOTHING, Changes, fold
from dwarf.decide import decide
from dwarf.effect import Effect, Failure, Interrupt, RetryAfter, Subgraph, failure_of
from dwarf.errors import DwarfError, GraphError, InvalidArgument, SignalError, StateTypeError, StateValueError, SubgraphError
from dwarf.flow import Flow, Identity, Parked, Past
from dwarf.graph import END, Graph
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.run import run_sync
from dwarf.inputs import Input
from dwarf.record import ClaimedStep, Kind, Record
from dwarf.state import State
from dwarf.status import StepStatus

NULL = Raw(b"null")
GRAPH = (
    Graph("G").add_transition_chain("A", "B", END).add_transition_goto("A", "C").add_transition("C", END).add_transition_on_error("A", "H")
    .add_transition("H", END).set_reducer("log", "append")
)  # fmt: skip


def writes(flow: Flow) -> dict[str, Any]:
    return {field: msgspec.json.decode(raw) for field, raw in flow.effect().changes.fields.items()}


def run(task: Callable[[Flow], Any], flow: Flow | None = None) -> Effect:
    return run_sync(TaskFunction("u/a", task), flow or Flow(identity=Identity(task_name="A")))


def record_of(effect: Effect, **state: Any) -> Record:
    given = Input(dict(State(state).raw_fields()))
    return decide(GRAPH, ClaimedStep(0, 1, "A", given), effect)


def parked(flow: Flow, call: Callable[[], object]) -> Interrupt | Subgraph:
    with pytest.raises(Parked):
        call()
    park = flow.effect().park
    assert park is not None
    return park


# ---- writes ----


@pytest.mark.row("E-17", "E-18", "E-19")
def test_every_write_is_a_change_and_none_deletes() -> None:
    flow = Flow({"x": 1, "b": 2, "n": 3})
    flow["x"] = 1
    flow.set("n", None)
    del flow["b"]
    flow.delete("never", "there")
    assert writes(flow) == {"x": 1, "n": None, "b": None, "never": None, "there": None}
    assert [key in flow for key in ("x", "n", "b", "never")] == [True, False, False, False]
    assert flow.get("n", "gone") == "gone"
    with pytest.raises(KeyError):
        flow["b"]
    later = fold(State({"x": 1, "b": 2, "n": 3}).raw_fields(), flow.effect().changes, {})
    assert later == {"x": Raw(b"1")}
    assert dict(flow.snapshot()) == {"x": 1}
    assert list(flow) == ["x"]


@pytest.mark.row("E-18")
@pytest.mark.parametrize(
    "write",
    [lambda f: f.set("x", None), lambda f: f.set_json("x", " null "), lambda f: f.set("x", Raw(b"null")), lambda f: f.update({"x": None})],
)
def test_whatever_is_null_deletes(write: Callable[[Flow], None]) -> None:
    flow = Flow({"x": 1})
    write(flow)
    assert "x" not in flow
    assert flow.effect().changes == Changes({"x": NULL})
    flow["x"] = 2
    assert flow["x"] == 2
    assert writes(flow) == {"x": 2}


@pytest.mark.row("E-21")
def test_clear_deletes_everything_that_is_there_and_later_writes_count() -> None:
    flow = Flow({"a": 1, "b": 2, "gone": None})
    flow["c"] = 3
    flow.delete("b")
    flow.clear()
    assert [key in flow for key in "abc"] == [False, False, False]
    assert writes(flow) == {"a": None, "b": None, "c": None}
    assert flow.snapshot() == {}
    flow["a"] = 4
    assert writes(flow) == {"a": 4, "b": None, "c": None}
    assert flow["a"] == 4
    flow.clear()
    flow.clear()
    assert writes(flow) == {"a": None, "b": None, "c": None}


@pytest.mark.row("E-23")
def test_later_changes_to_a_written_value_do_not_reach_the_state() -> None:
    flow = Flow()
    lines: list[Any] = [1, {"k": [2]}]
    flow["lines"] = lines
    flow.update({"more": lines})
    lines[1]["k"].append(3)
    lines.clear()
    assert flow["lines"] == flow["more"] == [1, {"k": [2]}]
    flow["lines"].append(4)
    flow.get_list("lines").append(4)
    assert flow["lines"] == [1, {"k": [2]}]
    given: dict[str, Any] = {"a": [1]}
    other = Flow(given)
    given["a"].append(2)
    assert other["a"] == [1]


def test_update_writes_all_or_nothing() -> None:
    class Quote(msgspec.Struct, omit_defaults=True, rename="camel"):
        unit_price: float = 1.5
        note: str | None = None
        left_out: int | msgspec.UnsetType = UNSET

    flow = Flow({"a": 1, "note": "old"})
    for bad in ({"a": 2, "b": {"c": math.nan}}, {"a": 2, "b": b"x"}, {"a": 2, 5: 1}):
        with pytest.raises(StateValueError) as caught:
            flow.update(bad)
        assert caught.value.path in {"b.c", "b", "5"}
    assert flow.effect().changes == NOTHING
    flow.update({"a": 2, "b": None, "c": UNSET})
    assert writes(flow) == {"a": 2, "b": None}
    flow.update(Quote())
    assert writes(flow) == {"a": 2, "b": None, "unitPrice": 1.5, "note": None}
    flow.update(State({"s": 1, "a": None}))
    assert writes(flow)["a"] is None
    for wrong in (5, "a", [("a", 1)], object()):
        with pytest.raises(InvalidArgument, match="update"):
            flow.update(wrong)


@pytest.mark.row("F-42")
def test_overwrite_replaces_and_the_last_write_counts() -> None:
    """One step makes one contribution to a field: its last write, whatever kind the earlier ones were."""
    kinds = {"log": "append"}
    base = State({"log": ["a"]}).raw_fields()

    def after(*calls: Callable[[Flow], None]) -> Any:
        flow = Flow({"log": ["a"]})
        for call in calls:
            call(flow)
        return dict(State.of(fold(base, flow.effect().changes, kinds))).get("log")

    def overwrite(flow: Flow) -> None:
        flow.overwrite("log", ["o"])

    def write(flow: Flow) -> None:
        flow["log"] = ["w"]

    def delete(flow: Flow) -> None:
        flow.delete("log")

    assert after(write) == ["a", "w"]
    assert after(overwrite) == ["o"]
    assert after(delete) is None
    assert after(write, overwrite) == ["o"]
    assert after(overwrite, write) == ["a", "w"]
    assert after(delete, write) == ["a", "w"]
    assert after(overwrite, delete) is None
    assert after(write, delete) is None
    assert after(delete, overwrite) == ["o"]
    assert after(lambda flow: flow.overwrite("log", None)) is None
    assert after(overwrite, lambda flow: flow.update({"log": ["u"]})) == ["a", "u"]
    assert after(overwrite, lambda flow: flow.set_json("log", '["j"]')) == ["a", "j"]
    flow = Flow()
    flow.overwrite("log", ["o"])
    assert flow["log"] == ["o"]
    with pytest.raises(StateValueError):
        flow.overwrite("log", math.nan)
    assert flow.effect().changes == Changes({"log": Raw(b'["o"]')}, frozenset({"log"}))


def test_a_task_reads_its_own_write_and_not_what_it_will_be_folded_into() -> None:
    flow = Flow({"log": ["a"]})
    flow["log"] = ["b"]
    assert flow["log"] == ["b"]
    assert flow.get_list("log", type=str) == ["b"]


@pytest.mark.row("E-31")
def test_a_snapshot_keeps_what_was_and_holds_earlier_writes() -> None:
    flow = Flow({"a": 1, "b": 1})
    flow["c"] = 1
    flow.delete("b")
    snapshot = flow.snapshot()
    flow["a"] = 2
    flow.delete("c")
    assert snapshot == {"a": 1, "c": 1}
    assert flow.snapshot() == {"a": 2}


class Inner(msgspec.Struct):
    n: float = 0.5
    m: int = 1


class View(msgspec.Struct):
    a: int = 0
    b: str | None = None
    c: list[int] = []


@dataclasses.dataclass
class SameView:
    a: int
    b: str | None
    c: list[int]


@pytest.mark.row("E-34", "E-36")
@pytest.mark.parametrize("make", [View, SameView, lambda a, b, c: {"a": a, "b": b, "c": c}], ids=["struct", "dataclass", "mapping"])
def test_set_changes_writes_what_differs_from_the_snapshot(make: Callable[..., Any]) -> None:
    flow = Flow(State.from_json('{"a":1.0,"b":"\\u0062","c":[1, 2],"other":9}'))
    snapshot = flow.snapshot()
    flow.set_changes(make(1, "b", [1, 2]), snapshot)
    assert flow.effect().changes == NOTHING, "equal is equal, however it is spelled"
    flow.set_changes(make(5, "b", [1, 2]), snapshot)
    assert writes(flow) == {"a": 5}
    assert flow["a"] == 5
    assert flow["other"] == 9
    flow.set_changes(make(5, None, [1]), snapshot)
    assert writes(flow) == {"a": 5, "b": None, "c": [1]}
    assert "b" not in flow
    flow = Flow({"a": 1, "c": []})
    flow.set_changes(make(1, None, []), flow.snapshot())
    assert flow.effect().changes == NOTHING, "null where nothing was is no change"
    flow.set_changes(make(True, None, [True]), flow.snapshot())
    assert writes(flow) == {"a": True, "c": [True]}


@pytest.mark.row("E-34")
def test_a_view_that_was_read_and_not_changed_changes_nothing() -> None:
    """Whatever its type makes of numbers, times, sets and defaults: a write to a reduced field would count twice."""

    class Full(msgspec.Struct, rename="camel"):
        total: float
        moment: datetime.datetime
        wait_for: datetime.timedelta
        tags: set[str]
        inner: Inner
        absent: int = 7
        none: str | None = None

    data = '{"total":10,"moment":"2024-01-01T00:00:00+00:00","waitFor":90000000001,"tags":["b","a","b"],"inner":{"n":1},"x":1}'
    flow = Flow(State.from_json(data))
    snapshot = flow.snapshot()
    view = flow.parse(Full)
    flow.set_changes(view, snapshot)
    assert flow.effect().changes == NOTHING
    view.total = 11.0
    view.inner.m = 2
    flow.set_changes(view, snapshot)
    assert writes(flow) == {"total": 11.0, "inner": {"n": 1.0, "m": 2}}
    flow = Flow({"a": "mistyped"})
    flow.set_changes(View(1, "b"), flow.snapshot())
    assert writes(flow) == {"a": 1, "b": "b", "c": []}


@pytest.mark.row("E-36")
@pytest.mark.parametrize("view", [5, "text", [1], object(), 1.5])
def test_set_changes_refuses_what_has_no_fields(view: Any) -> None:
    flow = Flow()
    with pytest.raises(InvalidArgument, match="set_changes"):
        flow.set_changes(view, flow.snapshot())
    with pytest.raises(StateValueError):
        flow.set_changes({"a": math.inf}, flow.snapshot())


@pytest.mark.row("E-29")
def test_a_large_value_is_kept_to_the_byte() -> None:
    text = "".join(chr(0x4E00 + place % 5000) for place in range(70_000))
    effect = run(lambda flow: flow.set("text", text))
    last = decide(GRAPH, ClaimedStep(0, 1, "B", Input({})), effect)
    assert State.from_json(last.final_state)["text"] == text
    assert len(effect.changes.fields["text"]) > 200_000
    assert effect.changes.fields["text"] == Raw(msgspec.json.encode(text))


@pytest.mark.row("E-30")
def test_a_final_state_over_the_limit_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dwarf.decide, "VALUE_BYTES_MAX", 100)
    step = ClaimedStep(0, 1, "B", Input(dict(State({"a": "x" * 60}).raw_fields())))
    record = decide(GRAPH, step, Effect(Changes(dict(State({"b": "x" * 60}).raw_fields()))))
    assert record.status is StepStatus.FAILED
    assert "100" in record.error


def test_an_effect_cannot_be_changed_by_what_a_task_leaves_running() -> None:
    flow = Flow()
    flow["a"] = 1
    effect = flow.effect()
    flow["a"] = 2
    flow["b"] = 2
    assert effect.changes == Changes({"a": Raw(b"1")})


def test_a_flow_takes_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Flow().amount = 5  # type: ignore[attr-defined]


# ---- goto, retry, sleep ----


@pytest.mark.row("C-24")
def test_the_last_goto_counts_and_the_empty_one_takes_it_back() -> None:
    flow = Flow()
    flow.goto("B")
    flow.goto("C")
    assert flow.effect().goto == "C"
    flow.goto("")
    assert flow.effect().goto == ""
    flow.goto(END)
    assert flow.effect().goto == "END"
    for wrong in (5, None, "x" * 513, "\ud800"):
        with pytest.raises(GraphError, match="goto"):
            flow.goto(wrong)  # type: ignore[arg-type]


@pytest.mark.row("G-10")
def test_a_retry_keeps_the_writes_for_the_next_attempt() -> None:
    def task(flow: Flow) -> None:
        flow["tries"] = flow.get_int("tries") + 1
        flow.overwrite("log", [flow.attempt])
        assert flow.retry(1)

    effect = run(task, Flow({"tries": 5}))
    record = record_of(effect, tries=5)
    assert (record.kind, record.status, record.delay) == (Kind.RETRY, StepStatus.PENDING, 1.0)
    again = Flow({"tries": 5}, past=Past(changes=Changes.decode(record.kept)), identity=Identity(attempt=1))
    assert (again["tries"], again["log"], again.attempt) == (6, [0], 1)
    assert again.effect().changes == effect.changes, "kept although the second attempt writes nothing"
    again["log"] = ["plain"]
    assert again.effect().changes.overwrites == frozenset()
    again.clear()
    assert writes(again) == {"tries": None, "log": None}


@pytest.mark.row("G-14")
def test_an_error_wins_over_a_requested_retry() -> None:
    def task(flow: Flow) -> None:
        flow["x"] = 1
        flow.retry(1)
        raise ValueError("no")

    assert run(task) == Effect(failure=Failure("no"))


@pytest.mark.row("G-15", "G-16", "G-17", "G-36")
def test_sleep_delays_the_next_step_or_the_next_attempt() -> None:
    flow = Flow()
    flow.sleep(10)
    assert record_of(flow.effect()).delay == 10.0
    flow.sleep(datetime.timedelta(milliseconds=200))
    assert record_of(flow.effect()).delay == 0.2
    flow.retry(0.2)
    assert record_of(flow.effect()).delay == pytest.approx(0.4)
    flow = Flow(identity=Identity(attempt=9))
    flow.sleep(5)
    flow.retry(1, max_delay=2)
    assert record_of(flow.effect()).delay == 7.0, "the cap is the backoff's"
    for nothing in (0, -5, datetime.timedelta(days=-1)):
        flow = Flow()
        flow.sleep(10)
        flow.sleep(nothing)
        assert record_of(flow.effect()).delay == 0.0
    for wrong in (math.nan, math.inf, "5s", None, True):
        with pytest.raises(InvalidArgument, match="sleep"):
            flow.sleep(wrong)  # type: ignore[arg-type]
    flow.sleep(1)
    flow.goto("C")
    record = record_of(flow.effect())
    assert (record.task, record.delay) == ("C", 1.0)


@pytest.mark.row("G-20", "G-36")
@pytest.mark.parametrize("wait", [lambda flow: flow.interrupt(), lambda flow: flow.subgraph("child")])
def test_sleep_has_no_effect_on_a_wait(wait: Callable[[Flow], Any]) -> None:
    def task(flow: Flow) -> None:
        flow.sleep(10)
        wait(flow)

    record = record_of(run(task))
    assert (record.kind, record.delay) == (Kind.PARK, 0.0)


SIGNALS: dict[str, Callable[[Flow], Any]] = {
    "goto": lambda flow: flow.goto("C"),
    "retry": lambda flow: flow.retry(1),
    "interrupt": lambda flow: flow.interrupt(),
    "subgraph": lambda flow: flow.subgraph("child"),
}


@pytest.mark.row("G-35")
@pytest.mark.parametrize(("first", "second"), [(a, b) for a in SIGNALS for b in SIGNALS if a != b])
def test_two_signals_in_one_run_fail_the_step(first: str, second: str) -> None:
    """Two waits at once already fail at the second call, which tells the task (B25); left alone, the first one stands."""

    def task(flow: Flow) -> None:
        flow["x"] = 1
        for name in (first, second):
            try:
                SIGNALS[name](flow)
            except Parked:
                continue

    effect = run(task)
    if {first, second} == {"interrupt", "subgraph"}:
        assert effect.failure is not None
        assert "wait" in effect.failure.text
        return
    record = record_of(effect)
    assert record.status is StepStatus.FAILED, "no onError edge is taken"
    assert record.kind is Kind.CLOSE
    assert first in record.error
    assert second in record.error
    assert record.final_state == b"{}"


# ---- interrupt ----


@pytest.mark.row("G-21")
def test_the_first_interrupt_parks_with_its_payload_and_keeps_writes() -> None:
    def task(flow: Flow) -> None:
        flow["before"] = 1
        try:
            flow.interrupt({"question": "ok?"})
        finally:
            flow["after"] = 2

    effect = run(task)
    assert effect.park == Interrupt(b'{"question":"ok?"}')
    assert effect.changes == Changes(dict(State({"before": 1, "after": 2}).raw_fields()))
    record = record_of(effect, given=1)
    assert (record.kind, record.status, record.payload) == (Kind.PARK, StepStatus.INTERRUPTED, b'{"question":"ok?"}')
    assert Changes.decode(record.kept) == effect.changes


@pytest.mark.row("G-22", "G-26", "G-27")
def test_after_a_resume_the_same_call_returns_the_data() -> None:
    tickets = []

    def task(flow: Flow) -> None:
        if "ticket" not in flow:
            tickets.append("made")
            flow["ticket"] = 7
        answer = flow.interrupt({"ticket": flow["ticket"]})
        flow["answer"] = answer["ok"]

    first = run(task, Flow({"given": 1}))
    again = Flow({"given": 1}, past=Past(changes=first.changes, resume=b'{"ok":true,"given":2}'))
    second = run(task, again)
    assert tickets == ["made"]
    assert second.park is None
    assert writes(again) == {"ticket": 7, "answer": True}
    assert again["given"] == 1, "resume data is not merged into the state"


@pytest.mark.row("G-26")
@pytest.mark.parametrize("data", [b"{}", b"null", b""])
def test_without_resume_data_the_answer_is_empty(data: bytes) -> None:
    flow = Flow(past=Past(resume=data))
    assert flow.interrupt() == {}
    assert flow.interrupt({"any": "payload"}) == {}
    assert flow.interrupt(type=View) == View()
    assert flow.interrupt(type=dict[str, int]) == {}
    assert flow.effect().park is None


@pytest.mark.row("G-26", "L15")
def test_resume_data_is_decoded_as_the_type_asked_for() -> None:
    class Answer(msgspec.Struct):
        ok: bool
        note: str | None
        wait: datetime.timedelta = datetime.timedelta(0)

    flow = Flow(past=Past(resume=b'{"ok":true,"note":null,"big":123456789012345678901,"nul":"\\u0000"}'))
    assert flow.interrupt() == {"ok": True, "note": None, "big": 123456789012345678901, "nul": "\x00"}
    flow.interrupt()["ok"] = False
    assert flow.interrupt()["ok"] is True
    assert flow.interrupt(type=Answer) == Answer(True, None)
    with pytest.raises(StateTypeError, match="resume data") as caught:
        flow.interrupt(type=dict[str, bool])
    assert flow.effect(failure_of(caught.value)).failure is not None
    failed = run(lambda flow: flow.interrupt(type=Answer), Flow(past=Past(resume=b'{"ok":5}')))
    assert failed.failure is not None
    assert "ok" in failed.failure.text
    assert not failed.failure.by_engine, "an error of the task: onError applies"


@pytest.mark.row("G-25", "B26")
@pytest.mark.parametrize(
    "payload", [[1], "text", 5, 1.5, True, object(), {"a": object()}, {"a": math.nan}, {1: 2}, {"a": b"x"}, {"\ud800": 1}]
)
def test_a_payload_that_is_no_object_is_refused_and_nothing_is_armed(payload: Any) -> None:
    flow = Flow()
    with pytest.raises((InvalidArgument, StateValueError), match="payload|input") as caught:
        flow.interrupt(payload)
    assert caught.value.status == 400
    with pytest.raises((InvalidArgument, StateValueError)):
        flow.subgraph("child", payload)
    assert flow.effect().park is None
    assert parked(flow, lambda: flow.interrupt({"a": 1})) == Interrupt(b'{"a":1}')


@pytest.mark.row("G-25", "E-27")
def test_payloads() -> None:
    for payload, stored in ((None, b"{}"), ({}, b"{}"), (View(1), b'{"a":1,"b":null,"c":[]}'), (State({"a": [1]}), b'{"a":[1]}')):
        flow = Flow()
        assert parked(flow, lambda flow=flow, payload=payload: flow.interrupt(payload)) == Interrupt(stored)  # type: ignore[misc]
    text = "\t\n\"'\\ 日本 שלום 👧\x00"
    flow = Flow()
    park = parked(flow, lambda: flow.interrupt({text: text}))
    assert isinstance(park, Interrupt)
    assert State.from_json(park.payload) == {text: text}
    assert Flow(past=Past(resume=park.payload)).interrupt() == {text: text}


@pytest.mark.row("G-24", "B25")
@pytest.mark.parametrize("second", ["interrupt", "subgraph"])
@pytest.mark.parametrize("first", ["interrupt", "subgraph"])
def test_a_second_wait_in_one_run_is_an_error_to_the_task_and_the_first_stays(first: str, second: str) -> None:
    """In Python the first call leaves the task by `Parked`; a second one can only follow where that was swallowed."""

    def task(flow: Flow, *, swallow: bool) -> None:
        for name in (first, second):
            try:
                flow.interrupt({"n": name}) if name == "interrupt" else flow.subgraph("child", {"n": name})
            except Parked:
                continue
            except SignalError:
                if not swallow:
                    raise

    failed = run(lambda flow: task(flow, swallow=False))
    assert failed.failure is not None
    assert not failed.failure.by_engine
    park = run(lambda flow: task(flow, swallow=True)).park
    payload = f'{{"n":"{first}"}}'.encode()
    assert park == (Interrupt(payload) if first == "interrupt" else Subgraph("child", payload))


@pytest.mark.row("B27")
@pytest.mark.parametrize("wait", [lambda flow: flow.interrupt({"a": 1}), lambda flow: flow.subgraph("child")])
def test_a_task_that_waits_and_then_raises_takes_the_error_path(wait: Callable[[Flow], Any]) -> None:
    def task(flow: Flow) -> None:
        try:
            wait(flow)
        finally:
            raise ValueError("on the way out")

    effect = run(task)
    assert effect == Effect(failure=Failure("on the way out"))
    record = record_of(effect)
    assert (record.kind, record.task, record.status) == (Kind.ADVANCE, "H", StepStatus.COMPLETED)
    assert record.payload is None
    assert record.child is None


@pytest.mark.row("G-37")
@pytest.mark.parametrize("wait", [lambda flow: flow.interrupt({"a": 1}), lambda flow: flow.subgraph("child")])
def test_a_task_that_swallows_the_park_and_returns_parks_anyway(wait: Callable[[Flow], Any]) -> None:
    def task(flow: Flow) -> None:
        try:
            wait(flow)
        except Parked:
            flow["after"] = 1

    effect = run(task)
    assert effect.park is not None
    assert record_of(effect).kind is Kind.PARK
    assert effect.changes == Changes({"after": Raw(b"1")})


def test_an_interrupt_passes_through_handlers_of_exceptions() -> None:
    def task(flow: Flow) -> None:
        try:
            flow.interrupt()
        except Exception:
            pytest.fail("Parked is no Exception")

    assert run(task).park == Interrupt(b"{}")


# ---- subgraph ----


@pytest.mark.row("G-28")
def test_the_first_subgraph_call_parks_with_the_input_given() -> None:
    def task(flow: Flow) -> None:
        flow["w"] = 1
        flow.subgraph("child", {"a": [1], "b": None})

    effect = run(task, Flow({"parent": 1}))
    assert effect.park == Subgraph("child", b'{"a":[1],"b":null}')
    record = record_of(effect)
    assert (record.kind, record.status) == (Kind.PARK, StepStatus.PARKED)
    assert record.child is not None
    assert (record.child.url, record.child.input) == ("child", b'{"a":[1],"b":null}')
    flow = Flow({"parent": 1})
    assert parked(flow, lambda: flow.subgraph("child")) == Subgraph("child", b"{}")
    flow = Flow({"parent": 1})
    assert parked(flow, lambda: flow.subgraph("child", flow.snapshot())) == Subgraph("child", b'{"parent":1}')
    for wrong in ("", 5, None, "x" * 513):
        flow = Flow()
        with pytest.raises(DwarfError, match="subgraph"):
            flow.subgraph(wrong)  # type: ignore[arg-type]
        assert flow.effect().park is None


@pytest.mark.row("G-29", "F-41")
def test_a_completed_child_s_final_state_is_the_answer_and_nothing_is_adopted() -> None:
    past = Past(result=b'{"a":5,"c":[1]}')
    flow = Flow({"a": 1}, past=past)
    assert flow.subgraph("child") == {"a": 5, "c": [1]}
    assert flow.effect().changes == NOTHING
    assert flow["a"] == 1
    assert Flow(past=past).subgraph("child", type=View) == View(5, None, [1])
    with pytest.raises(StateTypeError, match="child's final state"):
        Flow(past=past).subgraph("child", type=dict[str, int])
    assert Flow(past=Past(result=b"{}")).subgraph("child") == {}


@pytest.mark.row("G-30", "G-31")
def test_a_failed_child_raises_its_text() -> None:
    flow = Flow(past=Past(child_error="no such order"))
    with pytest.raises(SubgraphError, match="no such order") as caught:
        flow.subgraph("child")
    assert caught.value.status == 500
    effect = run(lambda flow: flow.subgraph("child"), Flow(past=Past(child_error="no such order")))
    assert effect == Effect(failure=Failure("no such order"))
    assert record_of(effect).task == "H"
    handled = run(catch_subgraph_error, Flow(past=Past(child_error="")))
    assert handled.changes == Changes({"failed": Raw(b"true")})


def catch_subgraph_error(flow: Flow) -> None:
    try:
        flow.subgraph("child")
    except SubgraphError:
        flow["failed"] = True


@pytest.mark.row("E21")
@pytest.mark.parametrize("past", [Past(result=b"{}"), Past(child_error="no")])
@pytest.mark.parametrize("swallow", [True, False])
def test_a_second_subgraph_call_in_a_resolved_step_fails_it(past: Past, swallow: bool) -> None:
    def task(flow: Flow) -> None:
        flow["x"] = 1
        for _ in range(2):
            try:
                flow.subgraph("child")
            except SubgraphError:
                continue
            except SignalError:
                if not swallow:
                    raise

    effect = run(task, Flow(past=past, identity=Identity(task_name="A")))
    assert effect.failure is not None
    assert effect.failure.by_engine
    assert "'A'" in effect.failure.text
    assert "second" in effect.failure.text
    record = record_of(effect)
    assert (record.kind, record.status) == (Kind.CLOSE, StepStatus.FAILED), "onError is not consulted"


@pytest.mark.parametrize("swallow", [True, False])
@pytest.mark.parametrize(
    ("past", "wait"),
    [
        (Past(resume=b"{}"), lambda flow: flow.subgraph("child")),
        (Past(result=b"{}"), lambda flow: flow.interrupt()),
        (Past(child_error="no"), lambda flow: flow.interrupt()),
    ],
)
def test_a_wait_of_another_kind_in_a_resolved_step_fails_it(past: Past, wait: Callable[[Flow], Any], swallow: bool) -> None:
    def task(flow: Flow) -> None:
        try:
            wait(flow)
        except SignalError:
            if not swallow:
                raise

    effect = run(task, Flow(past=past))
    assert effect.park is None
    assert effect.failure is not None
    assert effect.failure.by_engine
    assert "already resolved" in effect.failure.text


def test_a_retry_clears_what_was_resolved() -> None:
    """The store hands the next attempt the writes alone, so that it may wait again, for anything."""
    kept = Changes({"x": Raw(b"1")})
    flow = Flow(past=Past(changes=kept))
    assert parked(flow, lambda: flow.subgraph("child")) == Subgraph("child", b"{}")
    flow = Flow(past=Past(changes=kept))
    assert parked(flow, lambda: flow.interrupt()) == Interrupt(b"{}")


# ---- identity, time, baggage ----


@pytest.mark.row("E-42")
def test_identity_is_read_only_and_set_by_the_engine() -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    identity = Identity(
        flow_key="1-0-1-f", step_key="1-0-1-2-f", workflow_url="checkout", task_name="A", task_url="u/a", attempt=3, created_at=moment,
        updated_at=moment, step_created_at=moment, deadline=moment, priority=2, fairness_key="ada",
    )  # fmt: skip
    flow = Flow(identity=identity)
    for name in Identity.__struct_fields__:
        assert getattr(flow, name) == getattr(identity, name)
        with pytest.raises(AttributeError):
            setattr(flow, name, "other")
    assert Flow().attempt == 0
    assert repr(flow) == "<Flow 'A' attempt 3>"


@pytest.mark.row("E-43")
def test_baggage_is_one_object_that_no_task_can_change() -> None:
    baggage = State({"actor": "ada", "n": 5, "tags": [1]})
    flow = Flow(baggage=baggage)
    assert flow.baggage == {"actor": "ada", "n": 5, "tags": [1]}
    assert flow.baggage.get_int("n") == 5
    flow.baggage["tags"].append(2)
    with pytest.raises(TypeError):
        flow.baggage["actor"] = "eve"  # type: ignore[index]
    with pytest.raises(AttributeError):
        flow.baggage = State()  # type: ignore[misc]
    assert flow.baggage == {"actor": "ada", "n": 5, "tags": [1]}
    assert "actor" not in flow
    assert Flow().baggage == {}
    empty = State()
    assert Flow(baggage=empty).baggage is empty


def test_cancelled_resources_and_client() -> None:
    flow, other = Flow(), Flow()
    assert not flow.cancelled.is_set()
    flow.cancelled.set()
    assert flow.cancelled.is_set()
    assert not other.cancelled.is_set()
    assert flow.resources is None
    with pytest.raises(DwarfError, match="no engine"):
        flow.client  # noqa: B018
    flow.bind_client(lambda _: "client")
    assert flow.client == "client"


def test_a_retry_effect_is_what_was_asked() -> None:
    flow = Flow()
    flow.retry(2)
    assert flow.effect() == Effect(retry=RetryAfter(2.0))
