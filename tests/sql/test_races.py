"""Two sessions that meet at the same rows, one of them stopped at each of its locks in turn, in both orders.

Every scene is a situation in which several calls are possible. Of any two of them, whatever the interleaving, the answers and
all that is stored are those of one call after the other; nobody deadlocks; who needs nothing that is held goes ahead; and
the invariants hold. What each order brings is asked first, scene by scene.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dwarf.errors import TaskError
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.store import Store
from tests.sql.stops import Act, Race, Scene, Stage


def graphs() -> dict[str, Graph]:
    line = Graph("line").add_transition_chain("A", "B", END)
    fan = Graph("fan").add_transition_for_each("S", "W", "xs", "x").add_transition("W", "J").set_fan_in("J").add_transition("J", END)
    nest = Graph("nest").add_transition_for_each("S", "T", "xs", "x").add_transition_for_each("T", "W", "ys", "y")
    nest.add_transition_chain("W", "K", "J", END).set_fan_in("K").set_fan_in("J")
    kid = Graph("kid").add_transition("C", END)
    call = Graph("call").add_transition("P", END)
    calls = Graph("calls").add_transition_for_each("S", "P", "xs", "x").add_transition_chain("P", "J", END).set_fan_in("J")
    ask = Graph("ask").add_transition_chain("I", "B", END)
    asks = Graph("asks").add_transition_for_each("S", "I", "xs", "x").add_transition_chain("I", "J", END).set_fan_in("J")
    return {graph.name: graph for graph in (line, fan, nest, kid, call, calls, ask, asks)}


def nothing(flow: Flow) -> None:
    pass


def work(flow: Flow) -> None:
    if flow.get("x") == "bad":
        raise TaskError("refused", status=418)


def calling(flow: Flow) -> None:
    flow.subgraph("kid", {})


def asking(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"question": 1})["a"]


TASKS: dict[str, Callable[[Flow], None]] = dict.fromkeys("ABCJKST", nothing) | {"W": work, "P": calling, "I": asking}


@pytest.fixture
def stage(database: str) -> Any:
    with Stage(database, graphs(), TASKS) as stage:
        yield stage


def terminate(stage: Stage) -> Act:
    root = stage.roots[0]
    return stage.verb("C", lambda store, now: store.terminate_flow(root, "enough", now=now), minutes=3)


def cancel(stage: Stage) -> Act:
    root = stage.roots[0]
    return stage.verb("D", lambda store, now: store.cancel_flow(root, "stop", now=now), minutes=4)


def verbs(stage: Stage) -> dict[str, Act]:
    return {"terminate": terminate(stage), "cancel": cancel(stage)}


def fan_out(stage: Stage) -> Scene:
    """A source that has run and is about to open its cohort."""
    stage.create("fan", {"xs": [1, 2]})
    [entry] = stage.entries("A", stage.rows("S"))
    key = stage.key_of_branch(entry.flow_id, entry.first_branch)
    return Scene({"fan out": stage.record("A", [entry]), **verbs(stage)}, [key])


def test_try(stage):
    for pair in (("fan out", "terminate"), ("fan out", "cancel"), ("terminate", "cancel")):
        race = Race(stage, fan_out, *pair)
        for n, path in race.paths.items():
            print(n, [(s.point.name, s.is_shared) for s in path])
        race.run()
        print(race.runs)
        for p in race.problems: print(p)
