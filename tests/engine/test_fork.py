"""Forks: a new flow goes on at any step of one that has ended, and does what the flow would have done from there."""

from __future__ import annotations

from typing import Any

import pytest

from dwarf import END, Flow, FlowOptions, Graph, Reducer, TaskError
from tests.engine.rows_support import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RUNNING,
    TERMINATED,
    Make,
    invariants,
    line,
    make_app,
    on_loop,
    one,
    refused,
    settle,
    shape,
    sql,
    unknown,
    until,
    walk,
    wrong_token,
)


def add(field: str, value: Any) -> Any:
    def task(flow: Flow) -> None:
        flow[field] = value

    return task


@on_loop
@pytest.mark.row("D1", "D2", "D6")
async def test_a_failed_flow_goes_on_with_a_repaired_input(dwarf_engine: Make) -> None:
    def check(flow: Flow) -> None:
        if flow.get_int("amount") < 0:
            raise TaskError("negative", status=422)
        flow["checked"] = flow["amount"]

    app = make_app({"pay": line("Read", "Check", "Pay")}, {"Read": add("amount", -5), "Check": check, "Pay": add("paid", True)})
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("pay", {"customer": 7, "note": "x"})
        assert outcome.status is FAILED
        before = await sql(engine, "select * from dwarf.history order by 1, 2, 3"), await sql(engine, "select * from dwarf.flows")
        failed = (await engine.history(key))[1]
        fork = await engine.fork(failed.step_key, {"amount": 5, "note": None})
        assert fork != key
        assert (await engine.wait(fork, 20)).state == {"customer": 7, "amount": 5, "checked": 5, "paid": True}
        assert shape(await engine.history(fork)) == [("Read", "completed"), ("Check", "completed"), ("Pay", "completed")]
        assert (await engine.snapshot(key)).status is FAILED
        origin = await sql(engine, "select * from dwarf.history where flow_id = (select min(flow_id) from dwarf.flows) order by 1, 2, 3")
        assert origin == before[0]
        checked = await engine.step((await engine.history(fork))[1].step_key)
        assert checked.state == {"customer": 7, "amount": 5}
        assert await invariants(engine) == []
