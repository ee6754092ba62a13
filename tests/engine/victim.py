"""A process that runs flows until it is killed, and the flows themselves: every kind of record, and a note of every start of a task.

    DWARF_FAULT=record.sent:3 python -m tests.engine.victim DSN NOTES FLOWS        creates flows, dies at the third batch
    python -m tests.engine.victim DSN NOTES 0 record.committed PARK Ask 1      dies once the first park of a task `Ask` is stored

The notes are lines of `step key, task, attempt, process`, appended by one write each, so that nothing of them is torn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any

import msgspec

from dwarf import END, App, Conflict, Engine, Flow, FlowOptions, Graph, Query, Reducer, Shard, Status, faults
from dwarf.record import Kind
from dwarf.testing.reference import ReferenceRun

SESSION_SECONDS = 1
ANSWER = {"answer": 42}
STATE: dict[str, Any] = {"groups": [[1, 2], [3, 4, 5]], "log": ["begun"]}
PARKING = {"Ask", "Call"}  # run once more when what they waited for has come

app = App()


class Note(msgspec.Struct, frozen=True):
    """One start of a task."""

    step_key: str
    task: str
    attempt: int
    process: int


def note(flow: Flow) -> None:
    path = flow.baggage.get("notes")
    if path:
        line = msgspec.json.encode(Note(flow.step_key, flow.task_name, flow.attempt, os.getpid())) + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read_notes(path: str) -> list[Note]:
    try:
        with open(path, "rb") as file:
            return [msgspec.json.decode(line, type=Note) for line in file]
    except FileNotFoundError:
        return []


@app.graph("voyage")
def voyage() -> Graph:
    graph = Graph("Voyage").add_transition_chain("Begin", "Plan")
    graph.add_transition_for_each("Plan", "Group", "groups", "group")
    graph.add_transition_for_each("Group", "Item", "group", "item")
    graph.add_transition_chain("Item", "Polish", "Merge").set_fan_in("Merge")
    graph.add_transition("Merge", "Gather").set_fan_in("Gather")
    graph.add_transition_chain("Gather", "Flaky", "Nap", "Ask", "Call", "Finish", END)
    return graph.set_reducer("log", Reducer.APPEND).set_reducer("total", Reducer.ADD)


@app.graph("errand")
def errand() -> Graph:
    return Graph("Errand").add_transition_chain("Errand", "Return", END)


@app.task("Item")
async def item(flow: Flow) -> None:
    note(flow)
    flow["total"] = flow.get_int("item")
    flow["log"] = [flow.get_int("item")]


@app.task("Polish")
def polish(flow: Flow) -> None:
    note(flow)
    flow["log"] = [flow.get_int("item") * 10]


@app.task("Flaky")
async def flaky(flow: Flow) -> None:
    note(flow)
    flow["tried"] = flow.attempt
    if flow.attempt < 2:
        flow.retry(0.01)


@app.task("Nap")
async def nap(flow: Flow) -> None:
    note(flow)
    flow.sleep(0.02)


@app.task("Ask")
async def ask(flow: Flow) -> None:
    note(flow)
    flow["answer"] = flow.interrupt({"total": flow.get_int("total")})["answer"]


@app.task("Call")
def call(flow: Flow) -> None:
    note(flow)
    flow["errand"] = flow.subgraph("errand", {"n": flow.get_int("total")})["n"]


@app.task("Return")
async def come_back(flow: Flow) -> None:
    note(flow)
    flow["n"] = flow.get_int("n") + 1


async def plain(flow: Flow) -> None:
    note(flow)


for name in ("Begin", "Plan", "Group", "Merge", "Gather", "Finish", "Errand"):
    app.task(name)(plain)


def voyages(path: object, count: int) -> list[tuple[str, dict[str, Any], FlowOptions]]:
    """Return what creates flows whose tasks note their starts in a file."""
    return [("voyage", STATE, FlowOptions(baggage={"notes": str(path)}))] * count


def undisturbed() -> ReferenceRun:
    """Run a flow in memory."""
    flow = ReferenceRun(voyage(), app, STATE)
    assert flow.advance().status is Status.INTERRUPTED
    flow.resume(ANSWER)
    assert flow.advance().status is Status.COMPLETED
    return flow


async def drive(engine: Engine, key: str) -> Any:
    """Answer a flow's interrupt and return its outcome."""
    while True:
        outcome = await engine.wait(key)
        if outcome.status is not Status.INTERRUPTED:
            return outcome
        with contextlib.suppress(Conflict):  # another process has answered
            await engine.resume(key, ANSWER)


def arm(point: str, kind: str, task: str, count: int) -> None:
    """Die when a point is passed with the `count`th record of a kind that a task made."""
    wanted = Kind[kind]
    seen = 0

    def action(pairs: Any) -> None:
        nonlocal seen
        seen += sum(entry.record.kind is wanted and held.row.task == task for held, entry in pairs)
        if seen >= count:
            faults.die(None)

    faults.arm(point, action)


async def live(dsn: str, path: str, flows: int) -> None:
    async with Engine(app, [Shard(1, dsn)], session_seconds=SESSION_SECONDS, migrates=False) as engine:
        await engine.create_many(voyages(path, flows))
        keys = [item.flow_key for item in (await engine.list_open(Query(limit=1000))).items]
        await asyncio.gather(*(drive(engine, key) for key in keys))
        await asyncio.sleep(60)  # until it is killed, or somebody has waited too long for that


def main(dsn: str, path: str, flows: str, *fault: str) -> None:
    if fault:
        point, kind, task, count = fault
        arm(point, kind, task, int(count))
    faults.arm_from_environment()
    asyncio.run(live(dsn, path, int(flows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
