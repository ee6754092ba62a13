"""Forking every failed flow that a query finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import END, Flow, Graph, Query, RecoveredFlow, Reducer, Shard, Status, SyncClient, TaskError
from tests.engine.rows_support import COMPLETED, FAILED, Make, invariants, line, make_app, on_loop, one, paths, refused, shape


class Weather:
    """Tasks that fail while it is bad."""

    def __init__(self) -> None:
        self.is_bad = True

    def task(self, flow: Flow) -> None:
        if self.is_bad and flow.get_int("item", 1) % 2:
            raise TaskError("bad weather")
        flow["done"] = [flow.get_int("item", 1)]


def app_of(weather: Weather) -> Any:
    wide = Graph("wide").add_transition_for_each("Split", "Work", "items", "item").add_transition_chain("Work", "Join", END)
    wide.set_fan_in("Join").set_reducer("done", Reducer.APPEND)

    def call(flow: Flow) -> None:
        flow["got"] = flow.subgraph("line")["done"]

    return make_app({"line": line("Before", "Work"), "wide": wide, "call": line("Call", "After")}, {"Work": weather.task, "Call": call})


@on_loop
async def test_every_flow_goes_on_where_it_failed(dwarf_engine: Make) -> None:
    weather = Weather()
    async with dwarf_engine(app_of(weather)) as engine:
        lines = await engine.create_many([("line",)] * 5)
        wide, call = await engine.create("wide", {"items": [1, 2, 3, 4, 5]}), await engine.create("call")
        keys = [*lines, wide, call]
        assert [(await engine.wait(key, 20)).status for key in keys] == [FAILED] * 7
        weather.is_bad = False
        planned = await engine.recover(dry_run=True)
        assert {flow.flow_key for flow in planned.flows} == set(keys)
        assert planned.forked == await one(engine, "select count(*) from dwarf.forks") == 0
        by_key = {flow.flow_key: flow for flow in planned.flows}
        theirs = paths(await engine.history(wide))
        assert sorted(by_key[wide].step_keys) == sorted(theirs[f"1/{n}.1"].step_key for n in (0, 2, 4))
        assert by_key[call].step_keys == [paths(await engine.history(call))["1>2"].step_key]
        told: list[RecoveredFlow] = []
        recovery = await engine.recover(Query(status=Status.FAILED), on_flow=told.append)
        assert (recovery.forked, recovery.errors, told) == (7, {}, recovery.flows)
        for flow in recovery.flows:
            assert flow.step_keys == by_key[flow.flow_key].step_keys
            assert (await engine.wait(flow.fork_key, 20)).status is COMPLETED
        forked = {flow.flow_key: flow.fork_key for flow in recovery.flows}
        assert (await engine.snapshot(forked[wide])).state["done"] == [1, 2, 3, 4, 5]
        assert shape(await engine.history(forked[call])) == [("Call", "completed"), ("After", "completed")]
        again = await engine.recover()
        assert (again.forked, [flow for flow in again.flows if flow.step_keys or flow.error]) == (0, [])
        assert await invariants(engine) == []


@on_loop
async def test_a_fork_that_fails_is_recovered_in_its_turn(dwarf_engine: Make) -> None:
    weather = Weather()
    async with dwarf_engine(app_of(weather)) as engine:
        await engine.run("line")
        [first] = (await engine.recover()).flows
        assert (await engine.wait(first.fork_key, 20)).status is FAILED
        weather.is_bad = False
        second = await engine.recover()
        assert [flow.flow_key for flow in second.flows if flow.fork_key] == [first.fork_key]
        assert [(await engine.wait(flow.fork_key, 20)).status for flow in second.flows if flow.fork_key] == [COMPLETED]


@on_loop
async def test_recoveries_side_by_side_fork_nothing_twice(dwarf_engine: Make) -> None:
    weather = Weather()
    async with dwarf_engine(app_of(weather)) as engine:
        keys = await engine.create_many([("line",)] * 30)
        for key in keys:
            await engine.wait(key, 20)
        weather.is_bad = False
        recoveries = await asyncio.gather(*(engine.recover() for _ in range(4)))
        assert sum(recovery.forked for recovery in recoveries) == 30
        assert await one(engine, "select count(distinct root_id) = 30 and count(*) = 30 from dwarf.forks")


@on_loop
async def test_filters_pages_and_pace(dwarf_engine: Make) -> None:
    weather = Weather()
    async with dwarf_engine(app_of(weather)) as engine:
        keys = await engine.create_many([("line",)] * 7 + [("wide", {"items": [1]})])
        for key in keys:
            await engine.wait(key, 20)
        clock = asyncio.get_running_loop().time
        began = clock()
        recovery = await engine.recover(Query(workflow_url="line", limit=2), per_second=50)
        assert recovery.forked == 7
        assert clock() - began >= 6 / 50
        assert {flow.flow_key for flow in recovery.flows} == set(keys[:7])


@on_loop
@pytest.mark.parametrize(
    ("query", "options"),
    [
        (Query(status=Status.COMPLETED), {}),
        (Query(include_subgraphs=True), {}),
        (Query(workflow_url="x" * 600), {}),
        ("failed", {}),
        (None, {"per_second": 0}),
        (None, {"per_second": "1"}),
        (None, {"per_second": float("nan")}),
        (None, {"dry_run": 1}),
    ],
)
async def test_what_cannot_be_recovered(dwarf_engine: Make, query: Any, options: dict[str, Any]) -> None:
    async with dwarf_engine(app_of(Weather())) as engine:
        await engine.run("line")
        await refused(engine.recover(query, **options), 400)
        assert await one(engine, "select count(*) from dwarf.forks") == 0


@on_loop
async def test_from_a_thread(dwarf_engine: Make) -> None:
    weather = Weather()
    async with dwarf_engine(app_of(weather)) as engine:
        await engine.run("line")
        weather.is_bad = False

        def recover() -> int:
            with SyncClient([Shard(1, engine.dsn)]) as client:
                return client.recover(dry_run=True).forked + client.recover().forked

        assert await asyncio.to_thread(recover) == 1
