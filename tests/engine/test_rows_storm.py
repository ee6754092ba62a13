"""Many flows, many verbs at random moments, several engines: nobody hangs, nothing is left over, no slot is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from dwarf import App, Flow, FlowOptions, TaskError
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import COMPLETED, Gate, Make, calm, done, invariants, make_app, on_loop, one, play, until
from tests.strategies import sketch

LEFT = "select (select count(*) from dwarf.live) + (select count(*) from dwarf.active) + (select count(*) from dwarf.parks)"
BORN = "select count(*) >= %s from dwarf.active where branch > 0"


async def any_task(flow: Flow) -> None:
    """By the place and the element: go on, yield, retry, sleep, ask, call a child, fail."""
    dice = random.Random(f"{flow.get('seed')} {flow.task_name} {flow.get('item')} {flow.attempt}")
    flow["log"] = [flow.task_name]
    for _ in range(dice.randrange(4)):
        await asyncio.sleep(0)
    match dice.randrange(9):
        case 0:
            flow.retry(0 if dice.randrange(2) else 30)
        case 1:
            flow.sleep(dice.choice([0, 20]))
        case 2:
            flow["answer"] = flow.interrupt({"task": flow.task_name})
        case 3:
            flow["got"] = flow.subgraph("leaf" if flow.get("depth") else "fan", {"seed": dice.random(), "depth": 1, "xs": [1, 2]})
        case 4:
            raise TaskError("by chance")
        case _:
            pass


def sync_task(flow: Flow) -> None:
    dice = random.Random(f"{flow.get('seed')} {flow.task_name} {flow.get('item')} {flow.attempt}")
    flow["log"] = [flow.task_name]
    if dice.randrange(5) == 0:
        flow["answer"] = flow.interrupt()
    elif dice.randrange(5) == 0:
        flow.retry(10)


def storm_app() -> App:
    graphs: dict[str, Any] = {
        "line": sketch("A->B->C->END A-e->H->END"),
        "fan": sketch("S-*xs->W->V->J S->X->J X-e->H2->J J⊕ J->Z->END"),
        "nested": sketch("O-*ys->S S-*xs->W->J S->X->J X-e->H2->J J⊕ J->K O->Y->K K⊕ K->END"),
        "leaf": sketch("L->M->END"),
    }
    for graph in graphs.values():
        graph.set_reducer("log", "append")
    tasks = dict.fromkeys("ABCWXYZLO", any_task) | dict.fromkeys(("V", "M", "H", "H2"), sync_task)
    return make_app(graphs, tasks)


def ledger(engine: EngineUnderTest) -> Any:
    return engine._embedded[1].dispatcher._ledger


def slots_taken(engine: EngineUnderTest) -> int:
    """How many slots are in use, counting what a withdrawn task still holds."""
    return sum(seat.busy for seat in ledger(engine).seats)


@pytest.mark.parametrize("engines", [1, 3])
@pytest.mark.row("C16", "C32", "B8", "F23", "A32")
@on_loop
async def test_a_storm_of_verbs_leaves_nothing_behind(dwarf_engine: Make, engines: int) -> None:
    app, dice = storm_app(), random.Random(engines)
    async with dwarf_engine(app, workers=12) as first:
        others = [dwarf_engine(app, dsns=first.dsns, workers=12) for _ in range(engines - 1)]
        for other in others:
            await other.start()
        fleet = [first, *others]
        state = [{"seed": n, "xs": [1, 2, 3], "ys": [1, 2]} for n in range(70)]
        urls = ["line", "fan", "nested"]
        keys = [await dice.choice(fleet).create(dice.choice(urls), each, FlowOptions(priority=dice.randrange(6))) for each in state]

        async def disturb() -> None:
            for _ in range(250):
                engine, key = dice.choice(fleet), dice.choice(keys)
                verb = dice.choice(["resume", "resume", "resume", "resume", "cancel", "terminate", "snapshot", "fingerprint", "history"])
                await done(getattr(engine, verb)(key))

        await asyncio.gather(*(disturb() for _ in range(3)))
        for _ in range(400):
            await play(first)
            outcomes = dict(zip(keys, await asyncio.gather(*map(first.snapshot, keys)), strict=True))
            waiting = [key for key, outcome in outcomes.items() if not outcome.status.closed]
            if not waiting:
                break
            for key in waiting:
                await done(dice.choice(fleet).resume(key))
        assert all(outcome.status.closed for outcome in outcomes.values())
        assert len({outcome.status for outcome in outcomes.values()}) == 4
        assert await one(first, LEFT) == 0
        assert await invariants(first) == []
        for engine in fleet:
            await until(lambda engine=engine: slots_taken(engine) == 0, "all slots are free")  # type: ignore[misc]
            assert len(ledger(engine)) == 0
            counters = engine.counters(1)
            assert (counters.write_failed, counters.poisoned, counters.swept) == (0, 0, 0)
        for other in others:
            await other.close()


@pytest.mark.parametrize("verb", ["terminate", "cancel"])
@pytest.mark.row("C1", "C6")
@on_loop
async def test_a_wide_fan_out_is_ended_at_any_moment(dwarf_engine: Make, verb: str) -> None:
    async def work(flow: Flow) -> None:
        await asyncio.sleep(0)

    async with dwarf_engine(make_app({"g": "S-*xs->W->J J⊕ J->Z->END"}, {"W": work}), workers=50) as engine:
        for wanted in (0, 1, 1_100):
            key = await engine.create("g", {"xs": list(range(3_000))})
            await until(lambda wanted=wanted: one(engine, BORN, min(wanted, 400)))  # type: ignore[misc]
            ended = await done(getattr(engine, verb)(key, "enough"))
            outcome = await engine.wait(key)
            assert str(outcome.status) == ({"terminate": "terminated", "cancel": "cancelled"}[verb] if ended else "completed")
            await calm(engine)
            assert await one(engine, LEFT) == 0
            assert await invariants(engine) == []
        await until(lambda: slots_taken(engine) == 0, "all slots are free")


@pytest.mark.row("G8")
@on_loop
async def test_steps_that_wait_for_a_thread_lose_neither_time_nor_their_turn(dwarf_engine: Make) -> None:
    """One thread, held; others wait for it longer than their budgets, and async tasks go on beside them."""
    import threading

    gate, entered = threading.Event(), Gate()

    def holds(flow: Flow) -> None:
        entered.entered += 1
        gate.wait(60)

    def quick(flow: Flow) -> None:
        flow["ran"] = flow.deadline is not None

    app = make_app({"hold": "Hold->END", "quick": "Q->END", "async": "A->END"}, {"Hold": holds, "Q": quick})
    async with dwarf_engine(app, threads=1) as engine:
        held = await engine.create("hold")
        await entered.reached()
        options = FlowOptions(time_budget=0.2)
        waiting = [await engine.create("quick", None, options) for _ in range(5)]
        clock = asyncio.get_running_loop().time
        began = clock()
        await until(lambda: clock() - began > 0.5)
        gate.set()
        for key in [held, *waiting]:
            assert (await engine.wait(key)).status is COMPLETED
        assert await calm(engine) is None
        await until(lambda: slots_taken(engine) == 0, "all slots are free")


@pytest.mark.row("C8", "B1")
@on_loop
async def test_no_slot_is_lost_to_what_ends_in_any_way(dwarf_engine: Make) -> None:
    """With two workers: each way a step can end, many times over."""
    gate = Gate()

    async def ends(flow: Flow) -> None:
        match flow["n"] % 6:
            case 0:
                raise TaskError("x")
            case 1:
                flow.interrupt()
            case 2:
                flow.subgraph("child")
            case 3:
                flow.sleep(1000)
            case 4:
                if flow.attempt < 2:
                    flow.retry(0)
            case 5:
                await gate(flow)

    app = make_app({"g": "A->B->END", "child": "C->END"}, {"A": ends})
    async with dwarf_engine(app, workers=2) as engine:
        for verb in ("terminate", "cancel"):
            keys = await engine.create_many([("g", {"n": n}) for n in range(60) if n % 6 != 5])
            await calm(engine)
            for n in range(5, 25, 6):
                keys.append(await engine.create("g", {"n": n}))
                await until(lambda: gate.entered > gate.left)
                await getattr(engine, verb)(keys[-1])
                gate.left = gate.entered
            for key in keys:
                if not (await engine.snapshot(key)).status.closed:
                    await getattr(engine, verb)(key)
            assert all([(await engine.wait(key)).status.closed for key in keys])
            await until(lambda: slots_taken(engine) == 0, "all slots are free")
        assert (await engine.run("child"))[1].status is COMPLETED
