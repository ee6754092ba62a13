"""Group F: which step runs next, and when. One worker held at a gate makes the order visible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from dwarf import App, Flow, FlowOptions, Graph, TaskError
from dwarf.dispatch.claims import Claimer
from dwarf.keys import FlowKey
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import (
    COMPLETED,
    FAILED,
    RUNNING,
    Gate,
    Make,
    calm,
    invariants,
    make_app,
    on_loop,
    one,
    paths,
    play,
    settle,
    sql,
    until,
)
from tests.strategies import sketch

HOLD = FlowOptions(priority=1, fairness_key="holder")
CONNECTIONS_MAX = 12  # of an engine: claims, reads, renewal, background work, two lanes, and those of its client


class Order:
    """Tasks that note who ran, in order."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.gate = Gate()

    def app(self, graphs: dict[str, Graph | str] | None = None) -> App:
        tasks: dict[str, Any] = {"A": self.note, "B": self.note, "C": self.note, "Hold": self.gate}
        return make_app({"hold": "Hold->END", "g": "A->END", "long": "A->B->C->END", **(graphs or {})}, tasks)

    async def note(self, flow: Flow) -> None:
        self.ran.append((flow.get("tag"), flow.task_name))

    @property
    def tags(self) -> list[Any]:
        return [tag for tag, _ in self.ran]


@asynccontextmanager
async def held(dwarf_engine: Make, order: Order, **settings: Any) -> AsyncIterator[EngineUnderTest]:
    """An engine whose only worker is held until the gate opens."""
    async with dwarf_engine(order.app(), workers=1, **settings) as engine:
        await engine.create("hold", None, HOLD)
        await order.gate.reached()
        yield engine
        order.gate.open()


@pytest.mark.row("F1", "F5")
@on_loop
async def test_better_priorities_first_and_creation_order_within(dwarf_engine: Make) -> None:
    order = Order()
    async with held(dwarf_engine, order) as engine:
        keys = [await engine.create("g", {"tag": (p, n)}, FlowOptions(priority=p)) for n, p in enumerate((3, 1, 2, 5, 1, 3, 2, 4))]
        assert order.gate.left == 0  # what runs is not pushed aside by what is better
        order.gate.open()
        await asyncio.gather(*map(engine.wait, keys))
    assert [tuple(tag) for tag in order.tags] == [(1, 1), (1, 4), (2, 2), (2, 6), (3, 0), (3, 5), (4, 7), (5, 3)]


@pytest.mark.row("F3", "F5")
@on_loop
async def test_priority_one_work_that_keeps_coming_starves_the_fours(dwarf_engine: Make) -> None:
    order, left = Order(), 60

    async def brings_more(flow: Flow) -> None:
        nonlocal left
        order.ran.append((1, "more"))
        if left:
            left -= 1
            await flow.client.create("more it", None, FlowOptions(priority=1))

    app = order.app()
    app.task("More it")(brings_more)
    app.add_graph("more it", Graph("More").set_url("More", "More it").add_transition("More", "END"))
    async with dwarf_engine(app, workers=1) as engine:
        await engine.create("hold", None, HOLD)
        await order.gate.reached()
        fours = [await engine.create("g", {"tag": 4}, FlowOptions(priority=4)) for _ in range(5)]
        ones = [await engine.create("more it", None, FlowOptions(priority=1)) for _ in range(5)]
        await engine.advance(86_400)  # no ageing either
        order.gate.open()
        await asyncio.gather(*map(engine.wait, [*fours, *ones]))
    assert order.tags == [1] * 65 + [4] * 5


@pytest.mark.row("F7")
@on_loop
async def test_keys_share_by_weight(dwarf_engine: Make) -> None:
    order = Order()
    async with held(dwarf_engine, order) as engine:
        batch = [("g", {"tag": key}, FlowOptions(fairness_key=key, fairness_weight=weight)) for key, weight in (("H", 4), ("L", 1))] * 150
        keys = await engine.create_many(batch)
        order.gate.open()
        await asyncio.gather(*map(engine.wait, keys))
    both = order.tags[:150]  # as long as both have a backlog
    assert 105 <= both.count("H") <= 135, both.count("H")
    assert all("L" in both[n : n + 20] for n in range(0, 130, 20))


@pytest.mark.row("F8")
@on_loop
async def test_a_share_does_not_grow_with_the_backlog(dwarf_engine: Make) -> None:
    order = Order()
    async with held(dwarf_engine, order) as engine:
        deep = [("g", {"tag": "X"}, FlowOptions(fairness_key="X"))] * 10_000
        keys = [*await engine.create_many(deep), *await engine.create_many([("g", {"tag": "Y"}, FlowOptions(fairness_key="Y"))] * 10)]
        order.gate.open()
        await asyncio.gather(*map(engine.wait, keys[-10:]))
        last = [n for n, tag in enumerate(order.tags) if tag == "Y"][-1]
        assert last <= 40, last


@pytest.mark.row("F11")
@on_loop
async def test_within_a_key_the_oldest_step_runs_first(dwarf_engine: Make) -> None:
    """By the step's own creation: the second step of a flow queues behind flows created before it."""
    order = Order()
    async with held(dwarf_engine, order) as engine:
        first = await engine.create("long", {"tag": "long"})
        keys = [await engine.create("g", {"tag": n}) for n in range(8)]
        order.gate.open()
        await asyncio.gather(*map(engine.wait, [first, *keys]))
    assert order.ran == [("long", "A"), *((n, "A") for n in range(8)), ("long", "B"), ("long", "C")]


@pytest.mark.row("F13")
@on_loop
async def test_a_damaged_weight_counts_as_one(dwarf_engine: Make) -> None:
    order = Order()
    async with held(dwarf_engine, order) as engine:
        keys = await engine.create_many([("g", {"tag": key}, FlowOptions(fairness_key=key)) for key in ("ok", "bad", "worse")] * 40)
        await sql(engine, "update dwarf.active set weight = 0 where fairness_key = 'bad'")
        await sql(engine, "update dwarf.active set weight = -5 where fairness_key = 'worse'")
        order.gate.open()
        await asyncio.gather(*map(engine.wait, keys))
    half = order.tags[:60]
    assert min(half.count(key) for key in ("ok", "bad", "worse")) >= 15, half


# ---- sleeps and retries ----


@pytest.mark.row("F15", "F16")
@on_loop
async def test_a_sleep_delays_what_comes_next_and_never_starts_it_early(dwarf_engine: Make) -> None:
    ran: list[str] = []

    def note(flow: Flow) -> None:
        ran.append(flow.task_name)

    def sleeps(flow: Flow) -> None:
        note(flow)
        seconds = flow.get(f"sleep{flow.task_name}")
        if seconds is not None:
            flow.sleep(seconds)

    graphs = {"line": "A->B->END", "fan": "S->A->J S->B->J J⊕ J->Z->END"}
    async with dwarf_engine(make_app(graphs, dict.fromkeys(("A", "S"), sleeps) | {"B": sleeps, "J": note, "Z": note})) as engine:
        for seconds in (0, -5, 0.0):
            _, outcome = await engine.run("line", {"sleepA": seconds})
            assert outcome.status is COMPLETED
        ran.clear()
        key = await engine.create("line", {"sleepA": 3600})
        assert timedelta(seconds=3500) < await calm(engine) <= timedelta(seconds=3600)  # type: ignore[operator]
        await engine.advance(3000)
        await calm(engine)
        assert ran == ["A"]
        await engine.advance(600)
        assert (await engine.wait(key)).status is COMPLETED
        a, b = await engine.history(key)
        assert b.started_at - a.updated_at >= timedelta(seconds=3600)  # type: ignore[operator]
        ran.clear()
        key = await engine.create("fan", {"sleepS": 60})
        await calm(engine)
        assert ran == ["S"]  # all branches are delayed
        await engine.advance(60)
        await engine.wait(key)


@pytest.mark.row("F16")
@on_loop
async def test_only_the_last_arrival_delays_the_fan_in(dwarf_engine: Make) -> None:
    gates = {"A": Gate(), "B": Gate()}

    async def branch(flow: Flow) -> None:
        await gates[flow.task_name](flow)
        if flow.get("sleeper") == flow.task_name:
            flow.sleep(3600)

    async with dwarf_engine(make_app({"g": "S->A->J S->B->J J⊕ J->END"}, {"A": branch, "B": branch})) as engine:
        for last, sleeper in (("B", "A"), ("A", "A")):
            for name in gates:
                gates[name] = Gate()
            first = "A" if last == "B" else "B"
            key = await engine.create("g", {"sleeper": sleeper})
            await gates["A"].reached()
            await gates["B"].reached()
            gates[first].open()
            await until(lambda: one(engine, "select count(*) = 1 from dwarf.active where arrived = 1"))
            gates[last].open()
            if last == sleeper:
                wait = await calm(engine)
                assert wait is not None
                assert wait > timedelta(seconds=3500)
                await engine.advance(3600)
            assert (await engine.wait(key)).status is COMPLETED


@pytest.mark.row("F17", "F18", "F19", "L19")
@on_loop
async def test_retries_wait_as_they_say(dwarf_engine: Make) -> None:
    starts: list[Any] = []

    def task(flow: Flow) -> None:
        starts.append(flow.updated_at)
        sleep, first, factor, most, horizon = flow["plan"]
        if sleep:
            flow.sleep(sleep)
        if flow.attempt < 4 and flow.retry(first, factor, most, horizon):
            return
        if flow.attempt < 4:
            flow.sleep(0)
            raise TaskError(f"gave up after {flow.attempt}")

    async with dwarf_engine(make_app({"g": "A->END"}, {"A": task})) as engine:

        async def gaps(*plan: float) -> tuple[list[float], Any]:
            starts.clear()
            key = await engine.create("g", {"plan": plan})
            waits = []
            while (wait := await calm(engine)) is not None:
                waits.append(wait.total_seconds())
                await engine.advance(wait)
            return waits, await engine.wait(key)

        def near(found: list[float], expected: list[float]) -> bool:
            return len(found) == len(expected) and all(want - 5 <= have <= want for have, want in zip(found, expected, strict=True))

        waits, outcome = await gaps(0, 100, 2, 0, 0)
        assert near(waits, [100, 200, 400, 800]), waits
        waits, _ = await gaps(50, 100, 2, 300, 0)  # sleep beside it adds; the cap holds for the backoff alone
        assert near(waits, [150, 250, 350, 350]), waits
        waits, _ = await gaps(0, 100, 0, 0, 0)
        assert near(waits, [100] * 4), waits
        waits, _ = await gaps(0, 100, -3, 0, 0)
        assert near(waits, [100] * 4), waits
        assert (await gaps(0, 0, 2, 0, 0))[0] == []
        waits, outcome = await gaps(0, 1000, 1e300, 0, 1_000_000)
        assert (len(waits), outcome.status, outcome.error) == (1, FAILED, "gave up after 1")
        waits, outcome = await gaps(0, 100, 2, 0, 750)
        # 100 + 200 have passed; 400 more end at 700 < 750; then 800 would not
        assert near(waits, [100, 200, 400]), waits
        assert (outcome.status, outcome.error) == (FAILED, "gave up after 3")
        waits, _ = await gaps(0, 100, 2, 0, -1)
        assert len(waits) == 4


@pytest.mark.row("F15")
@on_loop
async def test_a_sleeper_among_many_wakes_on_time(dwarf_engine: Make) -> None:
    async def sleeps(flow: Flow) -> None:
        flow.sleep(flow["for"])

    async with dwarf_engine(make_app({"g": "A->B->END"}, {"A": sleeps})) as engine:
        others = await engine.create_many([("g", {"for": 100_000 + n}) for n in range(5_000)])
        mine = await engine.create("g", {"for": 500})
        await calm(engine)
        await engine.advance(501)
        assert (await engine.wait(mine)).status is COMPLETED
        assert await one(engine, "select count(*) from dwarf.active where wake_at is not null") == len(others)


@pytest.mark.row("F20", "G25")
@on_loop
async def test_sleepers_keep_their_time_across_a_restart(dwarf_engine: Make) -> None:
    def sleeps(flow: Flow) -> None:
        flow.sleep(1000)

    def backs_off(flow: Flow) -> None:
        if flow.attempt == 0:
            flow.retry(2000)

    app = make_app({"s": "A->B->END", "r": "R->END"}, {"A": sleeps, "R": backs_off})
    first = dwarf_engine(app)
    await first.start()
    keys = [await first.create(url) for url in ("s", "r")]
    await calm(first)
    due = await sql(first, "select flow_id, wake_at from dwarf.active order by flow_id")
    await first.kill()
    async with dwarf_engine(app, dsns=first.dsns) as engine:
        await engine.advance(900)
        await calm(engine)
        assert await sql(engine, "select flow_id, wake_at from dwarf.active order by flow_id") == due
        await engine.advance(100)
        assert (await engine.wait(keys[0])).status is COMPLETED
        await engine.advance(1000)
        assert (await engine.wait(keys[1])).status is COMPLETED
        [step] = await engine.history(keys[1])
        assert step.attempt == 1


# ---- several engines ----


@pytest.mark.row("F22")
@on_loop
async def test_an_engine_without_workers_creates_and_runs_nothing(dwarf_engine: Make) -> None:
    ran: list[str] = []
    graphs = {"g": "A->B->END"}

    def engine_app(name: str) -> App:
        return make_app(graphs, dict.fromkeys("AB", lambda flow: ran.append(name)))

    async with dwarf_engine(engine_app("creator"), workers=0) as creator:
        keys = await creator.create_many([("g", None, None)] * 20)
        await creator.create("g")
        assert ran == []
        async with dwarf_engine(engine_app("worker"), dsns=creator.dsns) as worker:
            keys.append(await creator.create("g"))
            for key in keys:
                assert (await creator.wait(key)).status is COMPLETED
            assert {step.engine_id for step in await creator.history(keys[0])} == {worker.engine_id}
        assert set(ran) == {"worker"}


@pytest.mark.row("F23", "F24")
@on_loop
async def test_three_engines_run_each_step_once(dwarf_engine: Make) -> None:
    runs: dict[str, set[int]] = {}
    count = 0

    def engine_app(number: int) -> App:
        async def note(flow: Flow) -> None:
            nonlocal count
            count += 1
            runs.setdefault(flow.step_key, set()).add(number)
            if flow.task_name == "W":
                flow["log"] = [flow["item"]]
                await asyncio.sleep(0)

        graph = sketch("S-*xs->W->V->J J⊕ J->Z->END").set_reducer("log", "append")
        return make_app({"g": graph}, dict.fromkeys("SWVJZ", note))

    async with dwarf_engine(engine_app(0), workers=5) as first:
        others = [dwarf_engine(engine_app(n), dsns=first.dsns, workers=5) for n in (1, 2)]
        for other in others:
            await other.start()
        engines = [first, *others]
        keys = [await engines[n % 3].create("g", {"xs": list(range(20))}) for n in range(30)]
        for n, key in enumerate(keys):
            outcome = await engines[(n + 1) % 3].wait(key)
            assert (outcome.status, outcome.state["log"]) == (COMPLETED, list(range(20)))
        assert count == len(runs) == 30 * 43
        assert all(len(by) == 1 for by in runs.values())
        assert {next(iter(by)) for by in runs.values()} == {0, 1, 2}
        fans = [[next(iter(runs[step.step_key])) for step in await first.history(key) if step.task_name == "W"] for key in keys]
        assert any(len(set(by)) > 1 for by in fans)  # some cohort was spread over engines
        for other in others:
            await other.close()
        assert await invariants(first) == []


@pytest.mark.row("F28")
@on_loop
async def test_work_is_found_without_a_hint(dwarf_engine: Make) -> None:
    """Rows made claimable behind the engine's back: nobody rings for them."""
    ran: list[str] = []
    gate = Gate()
    app = make_app({"g": "A->END", "held": "H->END"}, {"A": lambda flow: ran.append(flow.flow_key), "H": gate})
    async with dwarf_engine(app) as engine, dwarf_engine(app, dsns=engine.dsns, workers=0) as creator:
        keys = await creator.create_many([("g", None, None)] * 50)
        for key in keys:
            assert (await creator.wait(key)).status is COMPLETED
        held = await engine.create("held")
        await gate.reached()
        gone, _ = await engine.run("g")
        await engine.delete(gone)
        dispatcher = engine._embedded[1].dispatcher
        for key in [held, gone, *keys]:  # stale hints: for a step that runs, for one that was deleted, for closed ones; each three times
            dispatcher._hints += [(FlowKey.parse(key).flow_id, 0)] * 3
            engine._ring(1)
        await until(lambda: not dispatcher._hints)
        gate.open()
        assert (await engine.wait(held)).status is COMPLETED
        await calm(engine)
        assert sorted(ran) == sorted([*keys, gone])
        assert gate.entered == 1


@pytest.mark.row("F30")
@on_loop
async def test_one_worker_works_off_a_deep_backlog(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS_MIN", "POLL_SECONDS_MAX"):  # nothing is found by looking again: only by what rings
        monkeypatch.setattr(f"dwarf.dispatch.dispatcher.{name}", 30.0)
    ran = 0

    async def note(flow: Flow) -> None:
        nonlocal ran
        ran += 1

    async with dwarf_engine(make_app({"g": "A->B->END"}, {"A": note, "B": note}), workers=1) as engine:
        keys = await engine.create_many([("g", None, FlowOptions(fairness_key=f"k{n % 7}", priority=1 + n % 5)) for n in range(200)])
        await asyncio.gather(*map(engine.wait, keys))
        assert ran == 400


@on_loop
async def test_long_tasks_go_beyond_the_connections(dwarf_engine: Make) -> None:
    gate = Gate()
    async with dwarf_engine(make_app({"g": "A->END"}, {"A": gate}), workers=2_000) as engine:
        keys = await engine.create_many([("g", None, None)] * 1_500)
        await gate.reached(1_500)
        assert await one(engine, "select count(*) from pg_stat_activity where datname = current_database()") < 30
        gate.open()
        await asyncio.gather(*map(engine.wait, keys))


# ---- fan-outs ----


@pytest.mark.row("F33", "F34", "F36")
@on_loop
async def test_fan_ins_fold_in_array_order_whoever_ends_first(dwarf_engine: Make) -> None:
    """Branches of two steps end in reverse, nested; empty and missing arrays; a value that is no array; conditions that all fail."""
    joins: list[Any] = []

    def work(flow: Flow) -> None:
        flow["log"] = [f"{flow['item']}a"]
        flow.sleep(100 - 10 * flow["item"])

    def again(flow: Flow) -> None:
        flow["log"] = [f"{flow['item']}b"]

    def source(flow: Flow) -> None:
        flow["log"] = ["s"]

    def join(flow: Flow) -> None:
        joins.append(list(flow["log"]))

    flat = sketch("S-*xs->W->V->J J⊕ J->END").set_reducer("log", "append")
    nested = sketch("T-*ys->S S-*xs->W->V->J J⊕ J->K K⊕ K->END").set_reducer("log", "append")
    stuck = sketch("S->A->J S->B J⊕ J->END").add_transition_when("B", "J", "n > 5")
    trunk = sketch("A-w->B->END")
    tasks = {"S": source, "W": work, "V": again, "J": join}
    async with dwarf_engine(make_app({"flat": flat, "nested": nested, "stuck": stuck, "trunk": trunk}, tasks)) as engine:
        key = await engine.create("flat", {"xs": [0, 1, 2, 3]})
        outcome = await settle(engine, key)
        assert outcome.state["log"] == ["s", *(f"{n}{part}" for n in range(4) for part in "ab")]
        empty: list[dict[str, Any]] = [{"xs": []}, {}, {"xs": None}]
        for state in empty:
            joins.clear()
            _, outcome = await engine.run("flat", state)
            assert (outcome.status, joins) == (COMPLETED, [["s"]])
        key = await engine.create("nested", {"ys": [1, 2], "xs": [0, 1]})
        outcome = await settle(engine, key)
        inner = ["s", "0a", "0b", "1a", "1b"]
        assert outcome.state["log"] == [*inner, *inner]
        _, outcome = await engine.run("nested", {"ys": [1, 2]})
        assert outcome.state["log"] == ["s", "s"]  # members of the outer cohort still
        for value in ("text", 5, {"a": 1}, True):
            key, outcome = await engine.run("flat", {"xs": value})
            assert (outcome.status, "xs" in outcome.error) == (FAILED, True)
        joins.clear()
        key, outcome = await engine.run("stuck", {"n": 1})
        assert outcome.status is FAILED
        assert joins == []
        assert {path: str(step.status) for path, step in paths(await engine.history(key)).items()} == {
            "1": "completed", "1/0.1": "completed", "1/1.1": "failed"
        }  # fmt: skip
        _, outcome = await engine.run("trunk", {"ok": False})
        assert outcome.status is COMPLETED
        await play(engine)


@pytest.mark.row("F33")
@on_loop
async def test_a_wide_fan_out(dwarf_engine: Make) -> None:
    """Wider than one slice of branches."""

    async def work(flow: Flow) -> None:
        flow["log"] = [flow["itemIndex"]]
        flow["sum"] = flow["item"]

    graph = sketch("S-*xs->W->J J⊕ J->END").set_reducer("log", "append").set_reducer("sum", "add")
    async with dwarf_engine(make_app({"g": graph}, {"W": work})) as engine:
        key, outcome = await engine.run("g", {"xs": list(range(2_500))})
        assert outcome.state["log"] == list(range(2_500))
        assert outcome.state["sum"] == sum(range(2_500))
        assert len(await engine.history(key)) == 2_502
        assert await invariants(engine) == []


@pytest.mark.row("F29")
@on_loop
async def test_claims_that_fail_stop_nothing_that_runs_and_no_other_shard(dwarf_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed out goes on from step to step; what waits is claimed once claiming works again."""
    gate, original = Gate(), Claimer.claim
    broken: set[int] = set()
    failures: list[int] = []

    async def claim(self: Claimer, store: Any, *args: Any) -> None:
        if id(self) in broken:
            failures.append(id(self))
            raise RuntimeError("the scan fails")
        await original(self, store, *args)

    monkeypatch.setattr(Claimer, "claim", claim)
    async with dwarf_engine(make_app({"g": "A->B B->C C->END"}, {"A": gate}), "scan errors", shards=2, workers=4) as engine:
        running = await engine.create_many([("g",)] * 4)
        await gate.reached(len(running))
        broken.add(id(engine._embedded[1].dispatcher._claimer))
        gate.open()
        assert [(await engine.wait(key, 20)).status for key in running] == [COMPLETED] * 4
        dispatcher = engine._embedded[1].dispatcher
        await until(lambda: len(failures) > 0, "a scan has failed")
        monkeypatch.setattr(dispatcher, "_room", lambda flows: False)  # what is created has to be claimed
        keys = await engine.create_many([("g",)] * 40)
        theirs, mine = [key for key in keys if key.startswith("2-")], [key for key in keys if key.startswith("1-")]
        assert theirs
        assert mine
        assert [(await engine.wait(key, 20)).status for key in theirs] == [COMPLETED] * len(theirs)
        assert {(await engine.snapshot(key)).status for key in mine} == {RUNNING}
        broken.clear()
        assert [(await engine.wait(key, 20)).status for key in mine] == [COMPLETED] * len(mine)


@pytest.mark.row("F31")
@on_loop
async def test_tasks_in_flight_need_no_connections(dwarf_engine: Make) -> None:
    gate = Gate()
    connections = "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'dwarf%%'"
    async with dwarf_engine(make_app({"long": "A->END", "short": "S->T T->U U->END"}, {"A": gate}), workers=600) as engine:
        long = await engine.create_many([("long",)] * 500)
        await gate.reached(500)
        assert await one(engine, connections) <= CONNECTIONS_MAX
        short = await engine.create_many([("short",)] * 300)
        most = 0
        waiting = asyncio.gather(*(engine.wait(key, 30) for key in short))
        while not waiting.done():
            most = max(most, await one(engine, connections))
        assert {outcome.status for outcome in await waiting} == {COMPLETED}
        assert most <= CONNECTIONS_MAX
        gate.open()
        for key in long:
            assert (await engine.wait(key, 30)).status is COMPLETED
