"""Around the rows: what tasks of every kind may count on while an engine runs them, in every place of a flow.

Who they are, what they read, that nothing of one run shows in another, caps, policies, hosts, and flows they create themselves.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dwarf import App, Flow, FlowOptions, Graph, NotFound, Retry, StateTypeError, TaskError
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    Gate,
    Make,
    calm,
    invariants,
    line,
    make_app,
    on_loop,
    one,
    paths,
    settle,
    until,
    walk,
)
from tests.strategies import sketch

PLACES = {
    "trunk": "T->END",
    "branch": "S-*xs->T->J J⊕ J->END",
    "nested": "O-*ys->S S-*xs->T->J J⊕ J->K K⊕ K->END",
    "child": "P->END",
}  # fmt: skip
COUNTS = {"trunk": 1, "branch": 2, "nested": 4, "child": 2}
STATE = {"xs": [1, 2], "ys": [1, 2]}


def calls_branch(flow: Flow) -> None:
    flow["out"] = flow.subgraph("branch", STATE).get("out", [])


def placed(task: Callable[..., Any], **declared: Any) -> App:
    """An App whose task T stands on the trunk, in branches, in nested branches and in a child; `out` collects."""
    graphs = {url: sketch(text, url).set_reducer("out", "append") for url, text in PLACES.items()}
    return make_app(graphs, {"T": task, "P": calls_branch}, T=declared)


@pytest.mark.row("A2", "A49", "I-14", "E4")
@on_loop
async def test_a_task_knows_who_it_is_in_every_place(dwarf_engine: Make) -> None:
    seen: dict[str, list[dict[str, Any]]] = {}

    def look(flow: Flow) -> None:
        names = ("flow_key", "step_key", "workflow_url", "task_name", "task_url", "attempt", "priority", "fairness_key", "created_at",
                 "updated_at", "step_created_at", "deadline")  # fmt: skip
        facts = {name: getattr(flow, name) for name in names}
        seen.setdefault(flow.workflow_url, []).append({**facts, "baggage": dict(flow.baggage)})

    async with dwarf_engine(placed(look)) as engine:
        now = await one(engine, "select dwarf.now()")
        options = FlowOptions(priority=2, fairness_key="team.a", fairness_weight=3, time_budget=40, baggage={"who": {"id": 1}})
        for url, count in COUNTS.items():
            seen.clear()
            key, outcome = await engine.run(url, STATE, options)
            assert outcome.status is COMPLETED
            [(where, found)] = seen.items()
            assert where == ("branch" if url == "child" else url)
            assert len(found) == count
            steps = {step.step_key: step for step in walk(await engine.history(key))}
            for facts in found:
                step = steps[facts["step_key"]]
                assert (facts["task_name"], facts["task_url"], facts["attempt"]) == ("T", "T", 0)
                assert (facts["priority"], facts["fairness_key"], facts["baggage"]) == (2, "team.a", {"who": {"id": 1}})
                assert (facts["flow_key"] == key) == (url != "child")
                assert facts["step_created_at"] == step.created_at
                assert facts["created_at"] <= facts["step_created_at"] <= facts["deadline"]
                assert timedelta(0) < facts["deadline"] - facts["updated_at"] < timedelta(seconds=50)
                assert all(facts[name].tzinfo is not None and abs(facts[name] - now) < timedelta(minutes=5) for name in
                           ("created_at", "updated_at", "step_created_at"))  # fmt: skip


@pytest.mark.row("A52", "A50")
@on_loop
async def test_plain_functions_read_fields_and_return_changes(dwarf_engine: Make) -> None:
    class Customer(msgspec.Struct):
        name: str
        limit: Decimal = Decimal(10)

    class Quote(msgspec.Struct):
        price: Decimal
        at: datetime
        ident: UUID
        tags: set[str]
        gone: str | None = None

    def quote(item: int, customer: Customer, note: str = "none") -> Quote:
        return Quote(Decimal("0.10") * item, datetime(2026, 1, 2, tzinfo=UTC), UUID(int=item), {note}, None)

    async def check(flow: Flow, price: Decimal, *, at: datetime, ident: UUID) -> dict[str, Any]:
        assert (price, at, ident) == (Decimal("0.70"), datetime(2026, 1, 2, tzinfo=UTC), UUID(int=7))
        flow["carrier"] = flow.get_datetime("at") == at
        return {"big": 2**80, "delta": timedelta(seconds=90), "kind": Kind.A}

    class Kind(Enum):
        A = "a"

    def last(flow: Flow) -> None:
        flow["typed"] = [flow.get_duration("delta") == timedelta(seconds=90), flow.get_int("big") == 2**80, flow.get_str("kind")]
        with pytest.raises(StateTypeError, match="kind"):
            flow.get_int("kind")
        assert flow.parse(Customer) is not None if "name" in flow else True

    async with dwarf_engine(make_app({"g": "A->B->C->END"}, {"A": quote, "B": check, "C": last})) as engine:
        _, outcome = await engine.run("g", {"item": 7, "customer": {"name": "ä"}, "gone": "x", "more": 1})
        assert outcome.status is COMPLETED, outcome
        assert dict(outcome.state) == {
            "item": 7, "customer": {"name": "ä"}, "more": 1, "price": "0.70", "at": "2026-01-02T00:00:00Z", "ident": str(UUID(int=7)),
            "tags": ["none"], "carrier": True, "big": 2**80, "delta": outcome.state["delta"], "kind": "a", "typed": [True, True, "a"],
        }  # fmt: skip


@pytest.mark.row("L7")
@on_loop
async def test_context_variables_and_state_stay_with_their_run(dwarf_engine: Make) -> None:
    """Steps that run at the same time, on the loop and in threads, share neither variables nor what they read."""
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="unset")
    barrier = threading.Barrier(8)
    met = asyncio.Event()
    entered = 0
    leaks: list[str] = []

    def check(flow: Flow) -> None:
        if mine.get() != "unset":
            leaks.append(f"{flow.task_name} sees {mine.get()}")

    def blocking(flow: Flow) -> None:
        check(flow)
        mine.set(f"sync {flow['item']}")
        shared = flow["shared"]
        shared["by"].append(flow["item"])
        flow["mine"] = [shared["by"]]
        barrier.wait(60)
        if mine.get() != f"sync {flow['item']}" or flow["shared"] != {"by": [0]}:
            leaks.append("a thread")

    async def waiting(flow: Flow) -> None:
        nonlocal entered
        check(flow)
        mine.set(f"async {flow['item']}")
        shared = flow["shared"]
        shared["by"].append(flow["item"])
        flow["mine"] = [shared["by"]]
        entered += 1
        if entered == 8:
            met.set()
        await met.wait()
        if mine.get() != f"async {flow['item']}" or flow["shared"] != {"by": [0]}:
            leaks.append("a coroutine")

    graphs = {"g": sketch("S-*xs->A->J S-*xs->B->J J⊕ J->Z->END").set_reducer("mine", "append")}
    app = make_app(graphs, {"A": blocking, "B": waiting, "J": check, "Z": check})
    async with dwarf_engine(app, threads=8) as engine:
        _, outcome = await engine.run("g", {"xs": list(range(8)), "shared": {"by": [0]}})
        assert outcome.status is COMPLETED, outcome
        assert outcome.state["mine"] == [[0, n] for n in (*range(8), *range(8))]
        assert outcome.state["shared"] == {"by": [0]}
        assert leaks == []


@on_loop
async def test_caps_on_workers_threads_and_tasks_hold(dwarf_engine: Make) -> None:
    running: dict[str, int] = {"capped": 0, "sync": 0, "free": 0}
    most = dict(running)
    lock = threading.Lock()

    def enter(name: str, by: int) -> None:
        with lock:
            running[name] += by
            most[name] = max(most[name], running[name])

    async def capped(flow: Flow) -> None:
        enter("capped", 1)
        await asyncio.sleep(0.001)
        enter("capped", -1)

    def sync(flow: Flow) -> None:
        enter("sync", 1)
        threading.Event().wait(0.001)
        enter("sync", -1)

    async def free(flow: Flow) -> None:
        enter("free", 1)
        await asyncio.sleep(0.001)
        enter("free", -1)

    graph = sketch("S-*xs->C->J S-*xs->Y->J S-*xs->F->J J⊕ J->END")
    app = make_app({"g": graph}, {"C": capped, "Y": sync, "F": free}, C={"concurrency": 3})
    async with dwarf_engine(app, workers=20, threads=4) as engine:
        _, outcome = await engine.run("g", {"xs": list(range(60))})
        assert outcome.status is COMPLETED
        assert most["capped"] <= 3
        assert most["sync"] <= 4
        assert most["free"] <= 20
        assert min(most.values()) > 1


@pytest.mark.row("L19", "F17")
@on_loop
async def test_policies_and_own_retries_in_every_place(dwarf_engine: Make) -> None:
    runs: dict[str, list[int]] = {}

    async def flaky(flow: Flow) -> None:
        runs.setdefault(flow.step_key, []).append(flow.attempt)
        flow["n"] = len(runs[flow.step_key])
        if flow.attempt == 0:
            raise ConnectionError("once")
        if flow.attempt == 1 and flow.retry(0):
            flow["out"] = ["dropped for the later write"]
            return
        flow["out"] = [flow["n"]]

    async with dwarf_engine(placed(flaky, retry=Retry(on=ConnectionError, initial_delay=5))) as engine:
        for url, count in COUNTS.items():
            runs.clear()
            outcome = await settle(engine, await engine.create(url, STATE))
            assert (outcome.status, outcome.state["out"]) == (COMPLETED, [3] * count)
            assert list(runs.values()) == [[0, 1, 2]] * count
        assert await invariants(engine) == []


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.row("A49")
@on_loop
async def test_flows_that_a_task_creates_are_created_once(dwarf_engine: Make, style: str) -> None:
    """The step runs again after a retry, an interrupt and a crash: the same flows, in the same order."""
    made: list[list[str]] = []
    gate = Gate()

    async def creates(flow: Flow) -> None:
        keys = [await flow.client.create("other", {"n": n}) for n in range(2)]
        keys += await flow.client.create_many([("other", {"n": 2}), ("other", {"n": 3})])
        key, outcome = await flow.client.run("other", {"n": 4})
        assert outcome.state["n"] == 4
        made.append([*keys, key])
        if len(made) == 3:
            await gate(flow)
        if flow.attempt == 0 and flow.retry(0):
            return
        flow.interrupt()

    def blocking(flow: Flow) -> None:
        keys = [flow.client.create("other", {"n": n}) for n in range(2)]
        keys += flow.client.create_many([("other", {"n": 2}), ("other", {"n": 3})])
        key, outcome = flow.client.run("other", {"n": 4})
        assert outcome.state["n"] == 4
        made.append([*keys, key])
        if len(made) == 3:
            gate.entered += 1
            flow.cancelled.wait(60)
        if flow.attempt == 0 and flow.retry(0):
            return
        flow.interrupt()

    app = make_app({"g": "A->END", "other": "X->END"}, {"A": creates if style == "async" else blocking})
    settings = {"session_seconds": 2, "sweep_seconds": 1}
    first = dwarf_engine(app, **settings)
    await first.start()
    key = await first.create("g")
    await first.wait(key)
    await first.resume(key)
    await gate.reached()  # in its third run
    await first.kill()
    async with dwarf_engine(app, dsns=first.dsns, **settings) as engine:
        outcome = await engine.wait(key)
        assert outcome.status is COMPLETED, outcome
        assert len(made) == 4
        assert {tuple(keys) for keys in made} == {tuple(made[0])}
        assert len(set(made[0])) == 5
        assert await one(engine, "select count(*) from dwarf.flows where workflow = 'other'") == 5
        gate.open()


@pytest.mark.row("A49")
@on_loop
async def test_a_task_drives_other_flows(dwarf_engine: Make) -> None:
    async def drives(flow: Flow) -> None:
        client = flow.client
        key, outcome = await client.run("ask")
        await client.resume(key, {"a": outcome.interrupt_payload["q"]})
        ended = await client.wait(key)
        other = await client.create("ask", {"second": 1})
        await client.wait(other)
        await client.terminate(other, "by a task")
        flow["seen"] = [ended.state["a"], (await client.snapshot(other)).reason, len(await client.history(key))]
        with pytest.raises(NotFound):
            await client.create("nowhere")

    def asks(flow: Flow) -> None:
        flow["a"] = flow.interrupt({"q": 42})["a"]

    async with dwarf_engine(make_app({"g": "A->END", "ask": "Q->END"}, {"A": drives, "Q": asks})) as engine:
        _, outcome = await engine.run("g")
        assert outcome.state == {"seen": [42, "by a task", 1]}, outcome


@pytest.mark.row("A10", "L9")
@on_loop
async def test_any_host_will_do(dwarf_engine: Make) -> None:
    """A host that is no App: sync work on the loop, awaits, retries, parks, children, unknown tasks."""

    class Own:
        async def load_graph(self, url: str) -> Graph:
            graphs = {"g": sketch("A->B->C->D->END D-e->H->END"), "child": sketch("X->END")}
            if url not in graphs:
                raise NotFound(f"no such graph: {url}")
            return graphs[url]

        async def execute_task(self, url: str, flow: Flow) -> None:
            await asyncio.sleep(0)
            match url:
                case "A":
                    flow["a"] = flow.attempt
                    if flow.attempt < 2:
                        flow.retry(0)
                case "B":
                    flow["b"] = flow.interrupt({"q": 1})["b"]
                case "C":
                    flow["c"] = flow.subgraph("child", {"x": 1})
                case "X" | "H":
                    flow["x"] = [url, flow.get("x")]
                case _:
                    raise NotFound(f"no such task: {url}")

    async with dwarf_engine(Own()) as engine:
        key, outcome = await engine.run("g")
        await engine.resume(key, {"b": 2})
        outcome = await engine.wait(key)
        assert (outcome.status, outcome.state["onErr"]) == (COMPLETED, {"error": "no such task: D", "statusCode": 404})
        assert {name: outcome.state[name] for name in "abcx"} == {"a": 2, "b": 2, "c": {"x": ["X", 1]}, "x": ["H", None]}


@pytest.mark.row("L9")
@on_loop
async def test_mounted_hosts_and_aliases(dwarf_engine: Make) -> None:
    inner, outer = App(), App()
    inner.task("in/a")(lambda flow: flow.set("a", 1))
    inner.add_graph("in/g", line("in/a"))
    outer.task("new", aliases=("old",))(lambda flow: flow.set("b", 2))
    outer.add_graph("g", Graph("G").set_url("A", "in/a").set_url("B", "old").add_transition_chain("A", "B", "END"))
    outer.mount("in/", inner)
    async with dwarf_engine(outer) as engine:
        assert (await engine.run("g"))[1].state == {"a": 1, "b": 2}
        assert (await engine.run("in/g"))[1].state == {"a": 1}


@pytest.mark.row("L7")
@on_loop
async def test_one_bad_task_among_many_neighbours_fails_alone(dwarf_engine: Make) -> None:
    async def swallow(flow: Flow) -> None:
        """A task that cancels itself, and one that leaves a task behind which writes too late."""
        if flow["n"] % 10 == 0:
            raise asyncio.CancelledError
        if flow["n"] % 10 == 1:
            flow["kept"] = asyncio.get_running_loop().call_soon(flow.set, "late", 1).cancelled()
        if flow["n"] % 10 == 2:
            raise KeyError("n")

    async with dwarf_engine(make_app({"g": "A->END"}, {"A": swallow})) as engine:
        keys = await engine.create_many([("g", {"n": n}) for n in range(100)])
        outcomes = await asyncio.gather(*map(engine.wait, keys))
        failed = [n for n, outcome in enumerate(outcomes) if outcome.status is FAILED]
        assert failed == [n for n in range(100) if n % 10 in (0, 2)]
        assert all(outcome.status is COMPLETED for n, outcome in enumerate(outcomes) if n not in failed)
        assert all("late" not in outcome.state for outcome in outcomes)


@pytest.mark.row("A42", "A44")
@on_loop
async def test_step_shows_what_each_step_really_received(dwarf_engine: Make) -> None:
    """With reducers, overwrites, deletes, aliases and nested cohorts."""
    received: dict[str, dict[str, Any]] = {}

    def note(flow: Flow) -> None:
        received[flow.step_key] = dict(flow.snapshot())
        flow["log"] = [flow.task_name]
        flow["sum"] = 1
        if flow.task_name == "V":
            flow.overwrite("log", [f"over {flow['item']}"])
        if flow.task_name == "K":
            flow.delete("xs", "sum")
        flow[f"f{flow.task_name}"] = {"deep": ["x" * 2_000]}

    graph = sketch("O-*ys->S S-*xs->W->V->J J⊕ J->K K⊕ K->Z->END").set_reducer("log", "append").set_reducer("sum", "add")
    async with dwarf_engine(make_app({"g": graph}, dict.fromkeys("OSWVJKZ", note))) as engine:
        key, outcome = await engine.run("g", STATE)
        assert outcome.status is COMPLETED
        steps = paths(await engine.history(key))
        assert len(steps) == len(received) == 1 + 2 + 8 + 2 + 2
        for step in steps.values():
            assert (await engine.step(step.step_key)).state == received[step.step_key], step
        assert (await engine.step(steps["2"].step_key)).changes["sum"] is None  # type: ignore[index] # deleted


@pytest.mark.row("G8", "C18")
@on_loop
async def test_a_task_in_a_thread_is_told_that_its_time_is_up(dwarf_engine: Make) -> None:
    told: list[bool] = []

    def stubborn(flow: Flow) -> None:
        told.append(flow.cancelled.wait(60))
        flow["late"] = 1

    async with dwarf_engine(make_app({"g": "A->END"}, {"A": stubborn})) as engine:
        key = await engine.create("g", None, FlowOptions(time_budget=0.2))
        await until(lambda: told)
        assert told == [True]
        outcome = await engine.wait(key)
        assert outcome.status in (COMPLETED, FAILED)
        assert await calm(engine) is None


@pytest.mark.row("E9", "L4")
@on_loop
async def test_failures_in_every_place(dwarf_engine: Make) -> None:
    def fails(flow: Flow) -> None:
        flow["out"] = ["never"]
        if flow.get("item", 2) == 2:
            raise TaskError("the second is broken", status=409)

    async with dwarf_engine(placed(fails)) as engine:
        for url in COUNTS:
            _, outcome = await engine.run(url, STATE)
            assert (outcome.status, outcome.error) == (FAILED, "the second is broken"), url
        assert await invariants(engine) == []
