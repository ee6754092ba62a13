"""Situations in which several calls are possible at once, built with real graphs: see `Scene`. Players act at minute 1 and 2,
verbs later, so that whatever is stored tells whose it is."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from dwarf.errors import TaskError
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.store import Store
from tests.sql.stops import NOON, Act, Build, Scene, Stage

LIFE_MS = 30_000


def graphs() -> dict[str, Graph]:
    line = Graph("line").add_transition_chain("A", "B", END)
    caught = Graph("caught").add_transition_chain("A", "B", END).add_transition_on_error("A", "H").add_transition("H", END)
    fan = Graph("fan").add_transition_for_each("S", "W", "xs", "x").add_transition_chain("W", "J", END).set_fan_in("J")
    nest = Graph("nest").add_transition_for_each("S", "T", "xs", "x").add_transition_for_each("T", "W", "ys", "y")
    nest.add_transition_chain("W", "K", "J", END).set_fan_in("K").set_fan_in("J")
    kid = Graph("kid").add_transition("C", END)
    call = Graph("call").add_transition("P", END)
    calls = Graph("calls").add_transition_for_each("S", "P", "xs", "x").add_transition_chain("P", "J", END).set_fan_in("J")
    ask = Graph("ask").add_transition_chain("I", "B", END)
    asks = Graph("asks").add_transition_for_each("S", "I", "xs", "x").add_transition_chain("I", "J", END).set_fan_in("J")
    mixed = Graph("mixed").add_transition_for_each("S", "M", "xs", "x").add_transition_chain("M", "V", "J", END).set_fan_in("J")
    again = Graph("again").add_transition("R", END)
    sleeper = Graph("sleeper").add_transition_chain("Z", "B", END)
    return {graph.name: graph for graph in (line, caught, fan, nest, kid, call, calls, ask, asks, mixed, again, sleeper)}


def nothing(flow: Flow) -> None:
    pass


def work(flow: Flow) -> None:
    if flow.get("x") == "bad":
        raise TaskError("refused", status=418)


def calling(flow: Flow) -> None:
    flow.subgraph("kid", {})


def asking(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"question": 1})["a"]


def mixing(flow: Flow) -> None:
    if flow["x"] == "ask":
        flow.interrupt({"question": 1})


def retrying(flow: Flow) -> None:
    flow["tried"] = flow.attempt
    flow.retry(3600)


def sleeping(flow: Flow) -> None:
    flow.sleep(3600)


TASKS: dict[str, Callable[[Flow], None]] = {
    **dict.fromkeys("ABCHJKSTV", nothing), "W": work, "P": calling, "I": asking, "M": mixing, "R": retrying, "Z": sleeping,
}  # fmt: skip


# ---- acts ----


def verbs(stage: Stage) -> dict[str, Act]:
    """Terminate and cancel of the first flow, at minutes 3 and 4."""
    root = stage.roots[0]
    return {
        "terminate": stage.verb("terminate", lambda store, now: store.terminate_flow(root, "enough", now=now), minutes=3),
        "cancel": stage.verb("cancel", lambda store, now: store.cancel_flow(root, "stop", now=now), minutes=4),
    }


def resume(stage: Stage, name: str = "resume", *, minutes: int = 5) -> Act:
    root, answer = stage.roots[0], b'{"a":"%s"}' % name.encode()
    return stage.verb(name, lambda store, now: store.resume_flow(root, answer, now=now), minutes=minutes)


def delete(stage: Stage) -> Act:
    at = NOON + datetime.timedelta(minutes=6)
    return stage.query("delete", "select dwarf.delete_v1(%s, 'gone', %s)", stage.roots[0], at.isoformat())


def sweep(stage: Stage, name: str = "sweep", *, minutes: int = 7) -> Act:
    """A sweep after the deadline of what was claimed at noon: answers with the reasons."""

    async def call(store: Store, now: int) -> Any:
        return [row.why for row in await store.sweep(1, life_ms=LIFE_MS, by_session=False, limit=10, now=now)]

    return stage.verb(name, call, minutes=minutes, skipped=[])


def claim(stage: Stage, name: str = "B", *, minutes: int = 2) -> Act:
    """A claim of whatever is due: answers with the tasks."""

    async def call(store: Store, now: int) -> Any:
        rows = [await store.claim(stage.players[name].session, {"": 50}, half=half, priority=3, now=now) for half in (0, 1)]
        return sorted(row.task for half in rows for row in half)

    return stage.verb(name, call, minutes=minutes, skipped=[])


def wake(stage: Stage) -> Act:
    return stage.verb("wake", lambda store, now: store.wake(10, now=now), minutes=90, skipped=0)


def release(stage: Stage, rows: Sequence[tuple[int, int, int, bool]]) -> Act:
    session = stage.players["A"].session
    return stage.verb("release", lambda store, now: store.release(session, rows, now=now), minutes=8)


# ---- situations ----


def due(stage: Stage) -> Scene:
    """A step is due, and two sessions claim."""
    stage.create("line")
    return Scene({"claim": claim(stage), "claim too": claim(stage, "A", minutes=1), **verbs(stage)}, [stage.writes("active")])


def advancing(stage: Stage) -> Scene:
    """A step of the trunk has run; its successor is to wait for a claim, or to start at once."""
    stage.create("line")
    [entry] = stage.entries("A", stage.rows("A"))
    return Scene({"advance": stage.record("A", [entry]), **verbs(stage), "claim": claim(stage)})


def advancing_hot(stage: Stage) -> Scene:
    stage.create("line")
    [entry] = stage.entries("A", stage.rows("A"))
    entry.hot = True
    return Scene({"advance": stage.record("A", [entry]), **verbs(stage), "claim": claim(stage)})


def root_closing(stage: Stage) -> Scene:
    """The last step of a flow has run."""
    stage.create("line")
    stage.play("B")
    return Scene({"close": stage.record("A", stage.entries("A", stage.rows("B"))), **verbs(stage), "delete": delete(stage)})


def root_failing(stage: Stage) -> Scene:
    """A step has failed, and with it its flow: the general path of a close."""
    stage.create("fan", {"xs": "no list"})
    return Scene({"close": stage.record("A", stage.entries("A", stage.rows("S"))), **verbs(stage), "delete": delete(stage)})


def caught(stage: Stage) -> Scene:
    """A step with a handler for errors has run."""
    stage.create("caught")
    [entry] = stage.entries("A", stage.rows("A"))
    return Scene({"advance": stage.record("A", [entry]), **verbs(stage)})


def retried(stage: Stage) -> Scene:
    """A step has asked to run again in an hour, and keeps what it wrote."""
    stage.create("again")
    return Scene({"retry": stage.record("A", stage.entries("A", stage.rows("R"))), **verbs(stage), "wake": wake(stage)})


def asleep(stage: Stage) -> Scene:
    """A step sleeps, and its time has come."""
    stage.create("sleeper")
    stage.play()
    return Scene({"wake": wake(stage), **verbs(stage)})


def fan_out(stage: Stage) -> Scene:
    """A source has run and is about to open its cohort."""
    stage.create("fan", {"xs": [1, 2]})
    [entry] = stage.entries("A", stage.rows("S"))
    assert entry.first_branch is not None
    return Scene(
        {"fan out": stage.record("A", [entry]), **verbs(stage), "claim": claim(stage)}, [stage.key_of_branch(entry.flow_id, entry.first_branch)]
    )  # fmt: skip


def fan_out_empty(stage: Stage) -> Scene:
    """A source without elements has run: the fan-in comes next."""
    stage.create("fan", {"xs": []})
    return Scene({"advance": stage.record("A", stage.entries("A", stage.rows("S"))), **verbs(stage), "claim": claim(stage)})


def expanding(stage: Stage) -> Scene:
    """Two of five branches exist (slices of two); the next slice is ready, and so is the arrival of the first branch."""
    stage.create("fan", {"xs": [1, 2, 3, 4, 5]})
    stage.play("J", "W")
    [entry] = stage.entries("A", stage.rows("J"))
    first = stage.entries("B", stage.rows("W")[:1])
    assert entry.first_branch is not None
    acts = {"expand": stage.record("A", [entry]), "arrive": stage.record("B", first, minutes=2), **verbs(stage)}
    return Scene(acts, [stage.key_of_branch(entry.flow_id, entry.first_branch + 2)])


def expanding_last(stage: Stage) -> Scene:
    """The last slice is ready, one branch; the other two have arrived."""
    stage.create("fan", {"xs": [1, 2, 3]})
    stage.play("J", "W")
    assert stage.players["A"].record(stage.entries("A", stage.rows("W"))) == []
    return Scene({"expand": stage.record("A", stage.entries("A", stage.rows("J"))), **verbs(stage)})


def last_two(stage: Stage) -> Scene:
    """The last two branches of an inner cohort have run, each in a session of its own."""
    stage.create("nest", {"xs": [1, 2], "ys": [1, 2]})
    stage.play("W")
    rows = stage.rows("W")
    return Scene(
        {
            "arrive": stage.record("A", stage.entries("A", rows[:1])),
            "arrive too": stage.record("B", stage.entries("B", rows[1:2]), minutes=2),
            **verbs(stage),
        }
    )  # fmt: skip


def last_two_outer(stage: Stage) -> Scene:
    """The last two members of the outer cohort have run, fan-ins of inner ones, each in a session of its own."""
    stage.create("nest", {"xs": [1, 2], "ys": [1, 2]})
    stage.play("K")
    rows = stage.rows("K")
    return Scene(
        {
            "arrive": stage.record("A", stage.entries("A", rows[:1])),
            "arrive too": stage.record("B", stage.entries("B", rows[1:]), minutes=2),
            **verbs(stage),
        }
    )  # fmt: skip


def one_fails(stage: Stage) -> Scene:
    """Of the last two branches one has failed."""
    stage.create("fan", {"xs": ["bad", 1]})
    stage.play("W")
    rows = stage.rows("W")
    return Scene(
        {
            "fail": stage.record("A", stage.entries("A", rows[:1])),
            "arrive": stage.record("B", stage.entries("B", rows[1:]), minutes=2),
            **verbs(stage),
        }
    )  # fmt: skip


def resolving(stage: Stage) -> Scene:
    """A complete cohort with a failed member is to be resolved: the flow closes without a task."""
    stage.create("fan", {"xs": ["bad", 1]})
    stage.play("J")
    return Scene({"resolve": stage.record("A", stage.entries("A", stage.rows("J"))), **verbs(stage)})


def crosswise(stage: Stage) -> Scene:
    """Two sessions with a branch of each of two cohorts, in batches that name them in opposite orders."""
    for _ in range(2):
        stage.create("fan", {"xs": [1, 2]})
    stage.play("W")
    rows = stage.rows("W")
    return Scene(
        {
            "arrive": stage.record("A", stage.entries("A", rows[::2])),
            "arrive too": stage.record("B", stage.entries("B", rows[1::2])[::-1], minutes=2),
            **verbs(stage),
        }
    )  # fmt: skip


def child_parking(stage: Stage) -> Scene:
    """A step has called a child."""
    stage.create("call")
    return Scene({"park": stage.record("A", stage.entries("A", stage.rows("P"))), **verbs(stage), "claim": claim(stage)})


def child_parking_in_cohort(stage: Stage) -> Scene:
    """Two branches of a cohort have called children, one of them in another session."""
    stage.create("calls", {"xs": [1, 2]})
    stage.play("P")
    rows = stage.rows("P")
    return Scene(
        {
            "park": stage.record("A", stage.entries("A", rows[:1])),
            "park too": stage.record("B", stage.entries("B", rows[1:]), minutes=2),
            **verbs(stage),
        }
    )  # fmt: skip


def child_closing(stage: Stage) -> Scene:
    """A child's last step has run; its caller waits."""
    stage.create("call")
    stage.play("C")
    return Scene({"close": stage.record("A", stage.entries("A", stage.rows("C"))), **verbs(stage), "claim": claim(stage)})


def children_closing(stage: Stage) -> Scene:
    """Two children of two branches have run, each in a session of its own."""
    stage.create("calls", {"xs": [1, 2]})
    stage.play("C")
    rows = stage.rows("C")
    return Scene(
        {
            "close": stage.record("A", stage.entries("A", rows[:1])),
            "close too": stage.record("B", stage.entries("B", rows[1:]), minutes=2),
            **verbs(stage),
        }
    )  # fmt: skip


def child_cancelled(stage: Stage) -> Scene:
    """A cancellation has been delivered to a child's step, which ends the child."""
    root = stage.create("call")
    stage.play("C")
    player = stage.players["A"]
    assert player.do(player.store.cancel_flow(root, "stop", now=player.micros))
    return Scene({"close": stage.record("A", stage.entries("A", stage.rows("C"))), **verbs(stage)})


def interrupting(stage: Stage) -> Scene:
    """A step has asked a question."""
    stage.create("ask")
    return Scene(
        {
            "park": stage.record("A", stage.entries("A", stage.rows("I"))),
            "resume": resume(stage),
            "delete": delete(stage),
            **verbs(stage),
        }
    )  # fmt: skip


def interrupted(stage: Stage) -> Scene:
    """A step waits for an answer."""
    stage.create("ask")
    stage.play("B")
    acts = {"resume": resume(stage), "resume too": resume(stage, "resume too", minutes=6), "delete": delete(stage), **verbs(stage)}
    return Scene({**acts, "claim": claim(stage)})


def interrupted_twice(stage: Stage) -> Scene:
    """Two branches wait for answers."""
    stage.create("asks", {"xs": [1, 2]})
    stage.play("J")
    acts = {"resume": resume(stage), "resume too": resume(stage, "resume too", minutes=6), "delete": delete(stage), **verbs(stage)}
    return Scene(acts)


def answered(stage: Stage) -> Scene:
    """Of two branches that have run in one session, the second one had been interrupted and answered."""
    root = stage.create("mixed", {"xs": [1, "ask"]})
    stage.play("M")
    plain, asking = stage.rows("M")
    player = stage.players["A"]
    assert player.record(stage.entries("A", [asking])) == []
    assert player.do(player.store.resume_flow(root, b"{}", now=player.micros))
    return Scene({"advance": stage.record("A", stage.entries("A", [plain, asking])), **verbs(stage), "resume": resume(stage)})


def held_by_the_dead(stage: Stage) -> Scene:
    """A session holds a branch and, numbered after it, the fan-in of another; its executor has died."""
    stage.create("nest", {"xs": [1, 2], "ys": [1]})
    stage.play("T")
    first, second = stage.rows("T")
    player = stage.players["A"]
    assert player.record(stage.entries("A", [second])) == []
    assert player.record(stage.entries("A", stage.rows("W"))) == []
    places = [(row.flow_id, row.branch, row.lease, False) for row in stage.take("A", [first, *stage.rows("K")])]
    return Scene({"release": release(stage, places), **verbs(stage)})


def children_closing_together(stage: Stage) -> Scene:
    """Two children of one tree have run in one session; in the table the one with the smaller number stands behind the other."""
    stage.create("calls", {"xs": [1, 2]})
    stage.play("C")
    stage.observer.execute("""
        with d as (delete from dwarf.live where flow_id = (select min(flow_id) from dwarf.live where nesting = 1) returning *)
        insert into dwarf.live select * from d
    """)
    return Scene({"close": stage.record("A", stage.entries("A", stage.rows("C"))), **verbs(stage), "delete": delete(stage)})


def overdue(stage: Stage) -> Scene:
    """A step is past its deadline and has ended just now."""
    stage.create("line")
    [entry] = stage.entries("A", stage.rows("A"))
    place = (entry.flow_id, 0, entry.record.lease, True)
    return Scene(
        {
            "success": stage.record("A", [entry], minutes=9),
            "sweep": sweep(stage),
            "sweep too": sweep(stage, "sweep too", minutes=8),
            "release": release(stage, [place]),
            "claim": claim(stage),
            **verbs(stage),
        },
        [stage.writes("signals")],
    )  # fmt: skip


def overdue_failure(stage: Stage) -> Scene:
    """A step is past its deadline and has failed just now."""
    stage.create("fan", {"xs": "no list"})
    return Scene({"failure": stage.record("A", stage.entries("A", stage.rows("S")), minutes=9), "sweep": sweep(stage)})


def swept(stage: Stage) -> Scene:
    """A step that was swept has succeeded after all, and is due again."""
    stage.create("line")
    [entry] = stage.entries("A", stage.rows("A"))
    assert sweep(stage).call() == ["deadline"]
    return Scene({"success": stage.record("A", [entry], minutes=9), "claim": claim(stage), "sweep": sweep(stage), **verbs(stage)})


def swept_failure(stage: Stage) -> Scene:
    """A step that was swept has failed after all, and is due again."""
    stage.create("fan", {"xs": "no list"})
    entries = stage.entries("A", stage.rows("S"))
    assert sweep(stage).call() == ["deadline"]
    return Scene({"failure": stage.record("A", entries, minutes=9), "claim": claim(stage)})


SCENES: dict[str, Build] = {
    build.__name__: build
    for build in (
        due, advancing, advancing_hot, root_closing, root_failing, caught, retried, asleep, fan_out, fan_out_empty, expanding, expanding_last,
        last_two, last_two_outer, one_fails, resolving, crosswise, child_parking, child_parking_in_cohort, child_closing,
        children_closing, children_closing_together, child_cancelled, answered, held_by_the_dead, interrupting, interrupted, interrupted_twice, overdue, overdue_failure, swept, swept_failure,
    )
}  # fmt: skip
