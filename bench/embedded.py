"""The embedded engine: steps a second, latency and WAL of whole flows, created and waited for through the engine.

    python -m bench.embedded                          every workload, three runs
    python -m bench.embedded --workloads linear,idle --runs 1 --loop asyncio

One process runs dispatcher, executor, client and the load; PostgreSQL beside it. Every flow's outcome is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench.sql_rig import Rig
from dwarf import END, App, Engine, Flow, FlowOptions, Graph, Reducer, Shard, Status

AGENT_TURNS, AGENT_BYTES = 500, 2048
app = App()


def noise(size: int) -> str:
    """Return text that does not compress."""
    return os.urandom(size // 2).hex()


@app.task("noop")
async def noop(flow: Flow) -> None:
    flow["n"] = flow.get_int("n") + 1


@app.task("noop.sync")
def noop_sync(flow: Flow) -> None:
    flow["n"] = flow.get_int("n") + 1


@app.task("rewrite")
async def rewrite(flow: Flow) -> None:
    flow["blob"] = noise(flow.get_int("size"))


@app.task("each")
async def each(flow: Flow) -> None:
    item = flow.get_int("item")
    flow["found"] = [item]
    flow["total"] = item


@app.task("call")
async def call(flow: Flow) -> None:
    flow["n"] = flow.subgraph("single", {"n": flow.get_int("n")})["n"]


@app.task("turn")
async def turn(flow: Flow) -> None:
    turns = flow.get_int("turns") + 1
    flow["turns"] = turns
    flow["messages"] = [noise(AGENT_BYTES)]
    if turns < AGENT_TURNS:
        flow.goto("Turn")


def chain(name: str, url: str, steps: int) -> Graph:
    graph = Graph(name)
    names = [f"S{place}" for place in range(steps)]
    for task in names:
        graph.set_url(task, url)
    return graph.add_transition_chain(*names, END)


for graph_name, task_url, length in (
    ("linear", "noop", 10), ("sync", "noop.sync", 10), ("single", "noop", 1), ("rewrite", "rewrite", 5), ("carry", "noop", 10),
    ("caller", "call", 1),
):  # fmt: skip
    app.add_graph(graph_name, chain(graph_name, task_url, length))

fan = Graph("fan").set_url("Start", "noop").set_url("Each", "each").set_url("End", "noop")
fan.add_transition_for_each("Start", "Each", "items", "item").add_transition("Each", "End").set_fan_in("End").add_transition("End", END)
fan.set_reducer("found", Reducer.APPEND).set_reducer("total", Reducer.ADD)
app.add_graph("fan", fan)
agent = Graph("agent").set_url("Turn", "turn").add_transition_goto("Turn", "Turn").add_transition("Turn", END)
agent.set_reducer("messages", Reducer.APPEND)
app.add_graph("agent", agent)


class Figure(msgspec.Struct):
    """What one workload came to. `units` a second, and processor time of server and client, and WAL, of a unit."""

    workload: str
    load: int
    unit: str
    rate: float
    pg_us: float
    client_us: float
    wal_bytes: float
    p50_ms: float
    p99_ms: float
    hot: float


class Workload(msgspec.Struct):
    graph: str
    state: dict[str, object]
    unit: str
    units: int  # of a flow
    loads: tuple[int, ...]
    check: Callable[[dict[str, object]], bool]
    seconds: float = 3.0


WORKLOADS = {
    "linear": Workload("linear", {"n": 0}, "step", 10, (1, 32, 128, 1000), lambda state: state["n"] == 10),
    "sync": Workload("sync", {"n": 0}, "step", 10, (128,), lambda state: state["n"] == 10),
    "single": Workload("single", {"n": 0}, "flow", 1, (128,), lambda state: state["n"] == 1),
    "idle": Workload("single", {"n": 0}, "flow", 1, (1,), lambda state: state["n"] == 1),
    "fanout": Workload("fan", {"items": list(range(1000))}, "branch", 1000, (2,), lambda state: state["total"] == 499_500),
    "wide": Workload("fan", {"items": list(range(50_000))}, "branch", 50_000, (1,), lambda state: state["total"] == 1_249_975_000, 1.0),
    "subgraph": Workload("caller", {"n": 0}, "parent", 1, (128,), lambda state: state["n"] == 1),
    "state8k": Workload("rewrite", {"size": 8192, "blob": ""}, "step", 5, (32,), lambda state: len(str(state["blob"])) == 8192),
    "state1k": Workload("rewrite", {"size": 1024, "blob": ""}, "step", 5, (32,), lambda state: len(str(state["blob"])) == 1024),
    "carry": Workload("carry", {"n": 0, "blob": noise(100 << 10)}, "step", 10, (32,), lambda state: state["n"] == 10),
    "agent": Workload("agent", {"turns": 0}, "turn", AGENT_TURNS, (1, 8), lambda state: state["turns"] == AGENT_TURNS, 1.0),
}


async def drive(engine: Engine, work: Workload, load: int) -> list[float]:
    """Keep `load` flows under way for the workload's seconds; return how long each took."""
    took: list[float] = []
    until = time.perf_counter() + work.seconds

    async def one_after_another() -> None:
        while True:
            began = time.perf_counter()
            _, outcome = await engine.run(work.graph, work.state, FlowOptions())
            assert outcome.status is Status.COMPLETED, outcome
            assert work.check(dict(outcome.state)), outcome.state
            took.append(time.perf_counter() - began)
            if time.perf_counter() > until:
                return

    await asyncio.gather(*(one_after_another() for _ in range(load)))
    return took


async def measure(rig: Rig, name: str, load: int) -> Figure:
    work = WORKLOADS[name]
    rig.empty()
    async with Engine(app, [Shard(1, rig.client_dsn)], workers=max(1000, load)) as engine:
        warm = msgspec.structs.replace(work, seconds=0.3)
        await drive(engine, warm, min(load, 32))
        rig.reset()
        updates = rig.updates()
        with rig.metering("run"):
            began = time.perf_counter()
            took = await drive(engine, work, load)
            seconds = time.perf_counter() - began
    updated, hot = (after - before for after, before in zip(rig.updates(), updates, strict=True))
    cost, units = rig.costs["run"], len(took) * work.units
    ordered = sorted(took)
    return Figure(
        name, load, work.unit, units / seconds, cost.backend_ns / units / 1e3, cost.client_ns / units / 1e3, cost.wal_bytes / units,
        ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3, hot / updated if updated else 1.0,
    )  # fmt: skip


COLUMNS = {"rate": ",.0f", "pg_us": ".1f", "client_us": ".1f", "wal_bytes": ",.0f", "hot": ".3f", "p50_ms": ".2f", "p99_ms": ".2f"}
HEAD = ("units/s", "PG us", "client us", "WAL B", "HOT", "p50 ms", "p99 ms", "x pgbench")


def table(runs: list[tuple[float, list[Figure]]]) -> str:
    """Return medians of the runs as text."""
    tps = statistics.median(each for each, _ in runs)
    lines = [f"pgbench -N -c 32 -j 2: {tps:,.0f}/s; load average {os.getloadavg()[0]:.1f}; medians of {len(runs)}"]
    lines += [f"{'workload':<10}{'load':>6}{'unit':>8}" + "".join(f"{title:>11}" for title in HEAD)]
    for figures in zip(*(figures for _, figures in runs), strict=True):
        middle = {name: statistics.median(getattr(each, name) for each in figures) for name in COLUMNS}
        cells = [format(middle[name], form) for name, form in COLUMNS.items()] + [format(middle["rate"] / tps, ".2f")]
        lines.append(f"{figures[0].workload:<10}{figures[0].load:>6}{figures[0].unit:>8}" + "".join(f"{cell:>11}" for cell in cells))
    lines.append(f"RSS of this process at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return "\n".join(lines)


def runner(loop: str) -> Callable[[Awaitable[Figure]], Figure]:
    """Return what runs a measurement on a fresh loop of the kind asked for."""
    if loop == "uvloop":
        import uvloop

        return lambda work: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(work)  # type: ignore[arg-type]
    return lambda work: asyncio.Runner().run(work)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.embedded", description=__doc__)
    parser.add_argument("--pg", default="18", help="major version of PostgreSQL")
    parser.add_argument("--workloads", default=list(WORKLOADS), type=lambda text: text.split(","))
    parser.add_argument(
        "--loads", default=[], type=lambda text: [int(load) for load in text.split(",")], help="instead of the workload's own"
    )
    parser.add_argument("--runs", default=3, type=int)
    parser.add_argument("--loop", default="uvloop", choices=["uvloop", "asyncio"])
    parser.add_argument("--partitions", default=1, type=int)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rig = Rig(chosen.pg, partitions=chosen.partitions)
    run = runner(chosen.loop)
    runs: list[tuple[float, list[Figure]]] = []
    try:
        for _ in range(chosen.runs):
            tps = rig.pgbench()
            figures = []
            for name in chosen.workloads:
                for load in chosen.loads or WORKLOADS[name].loads:
                    figures.append(run(measure(rig, name, load)))
                    print(figures[-1], file=sys.stderr)
            runs.append((tps, figures))
    finally:
        rig.close()
    print(table(runs))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))


if __name__ == "__main__":
    main()
