"""The App that the process tree is tested with. What ran is noted in a directory: one file a run, named by step and process."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dwarf import END, App, Flow, Graph, Reducer

app = App()
if Path(os.environ.get("DWARF_TEST_BROKEN", "/nowhere")).exists():
    raise RuntimeError("this code is broken")


def note(flow: Flow, what: str = "ran") -> None:
    """Write down that a step ran here."""
    name = f"{what}-{flow.task_name}-{flow.step_key.rsplit('-', 1)[0]}-{os.getpid()}-{time.monotonic_ns()}"
    (Path(flow.get_str("notes")) / name).touch()


@app.lifespan
@asynccontextmanager
async def resources(_: App) -> AsyncIterator[dict[str, int]]:
    yield {"pid": os.getpid()}


@app.graph("line")
def line() -> Graph:
    return Graph("line").add_transition_chain("A", "B", "C", END)


@app.graph("mixed")
def mixed() -> Graph:
    graph = Graph("mixed").add_transition_for_each("Split", "Work", "items", "item").add_transition_chain("Work", "Join", "Call", END)
    return graph.set_fan_in("Join").set_reducer("sum", Reducer.ADD)


@app.graph("held")
def held() -> Graph:
    return Graph("held").add_transition_chain("Hold", "B", END)


async def plain(flow: Flow) -> None:
    note(flow)
    flow[flow.task_name.lower()] = flow.resources["pid"]


for name in ("A", "B", "C", "Split", "Join"):
    app.task(name)(plain)


@app.task("Work")
def work(flow: Flow) -> None:
    note(flow)
    flow["sum"] = flow["item"]


@app.task("Call")
async def call(flow: Flow) -> None:
    flow["child"] = flow.subgraph("line", {"notes": flow["notes"]}).get("c")
    flow["created"] = await flow.client.create("line", {"notes": flow["notes"]})


@app.task("Hold")
async def hold(flow: Flow) -> None:
    """Run until a file says that it may end; the first run notes that it has begun."""
    note(flow, "began")
    while not (Path(flow.get_str("notes")) / "go").exists():  # noqa: ASYNC110 - another process says so
        await asyncio.sleep(0.01)
    note(flow)
