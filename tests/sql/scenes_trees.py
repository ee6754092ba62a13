"""More situations in which a verb meets a tree: every state that a row, a cohort or a child can be in, with handlers where there
can be some. See `Scene`, and `tests.sql.scenes` for the first ones; acts are those of that module, and the times too."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import msgspec

from dwarf.batch import Entry
from dwarf.errors import TaskError
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.record import Kind, Record
from dwarf.rows import ClaimedRow
from dwarf.status import StepStatus
from tests.sql.scenes import claim, delete, release, resume, sweep, verbs, wake
from tests.sql.stops import NOON, Act, Build, Scene, Stage

HANDLERS = ("H", "HC", "HJ", "HW")


def graphs() -> dict[str, Graph]:
    line = Graph("line").add_transition_chain("A", "B", "C", END)
    caught = Graph("caught").add_transition_chain("A", "B", END).add_transition_on_error("A", "H").add_transition_on_error("B", "H")
    caught.add_transition("H", END)
    twice = Graph("twice").add_transition("A", END).add_transition_on_error("A", "H").add_transition("H", END)
    twice.add_transition_on_error("H", "HC").add_transition("HC", END)
    kid = Graph("kid").add_transition_chain("C", "D", END)
    bad = Graph("bad").add_transition("F", END)
    asking = Graph("asking").add_transition_chain("I", "D", END)
    careful = Graph("careful").add_transition("C", END).add_transition_on_error("C", "HC").add_transition("HC", END)
    call = Graph("call").add_transition_chain("P", "B", END).add_transition_on_error("P", "H").add_transition("H", END)
    deep = Graph("deep").add_transition_chain("Q", "B", END)
    calls = Graph("calls").add_transition_for_each("S", "P", "xs", "child").add_transition_chain("P", "J", END).set_fan_in("J")
    fan = Graph("fan").add_transition_for_each("S", "W", "xs", "x").add_transition_chain("W", "J", END).set_fan_in("J")
    fan.add_transition_on_error("W", "HW").add_transition("HW", "J").add_transition_on_error("J", "HJ").add_transition("HJ", END)
    plain = Graph("plain").add_transition_for_each("S", "W", "xs", "x").add_transition_chain("W", "J", END).set_fan_in("J")
    nest = Graph("nest").add_transition_for_each("S", "T", "xs", "x").add_transition_for_each("T", "W", "ys", "y")
    nest.add_transition_chain("W", "K", "J", END).set_fan_in("K").set_fan_in("J")
    joins = {}
    for name, task in (("ask_at_join", "I"), ("call_at_join", "P")):
        joins[name] = Graph(name).add_transition_for_each("S", "W", "xs", "x").add_transition_chain("W", task, "B", END).set_fan_in(task)
    again = Graph("again").add_transition("R", END).add_transition_on_error("R", "H").add_transition("H", END)
    recall = Graph("recall").add_transition_chain("Y", "B", END)
    sleeper = Graph("sleeper").add_transition_chain("Z", "B", END).add_transition_on_error("B", "H").add_transition("H", END)
    made = (line, caught, twice, kid, bad, asking, careful, call, deep, calls, fan, plain, nest, again, recall, sleeper)
    return {graph.name: graph for graph in made} | joins


def nothing(flow: Flow) -> None:
    pass


def work(flow: Flow) -> None:
    if flow.get("x") == "bad" or flow.get("y") == "bad":
        raise TaskError("refused", status=418)


def fails(flow: Flow) -> None:
    raise TaskError("broken")


def calling(flow: Flow) -> None:
    flow["asked"] = True
    flow["got"] = flow.subgraph(flow.get_str("child") or "kid", {})


def calling_deep(flow: Flow) -> None:
    flow["got"] = flow.subgraph("call", {"child": flow.get_str("child")})


def calling_again(flow: Flow) -> None:
    """Call a child, and once it has ended another one."""
    flow["got"] = flow.subgraph("kid", {"attempt": flow.attempt})
    if flow.attempt == 0:
        flow.retry(0)


def asking(flow: Flow) -> None:
    flow["answer"] = flow.interrupt({"question": 1}).get("a")


def retrying(flow: Flow) -> None:
    flow["tried"] = flow.attempt
    if flow.attempt == 0:
        flow.retry(3600)


def sleeping(flow: Flow) -> None:
    flow.sleep(3600)


TASKS: dict[str, Callable[[Flow], None]] = {
    **dict.fromkeys(["A", "B", "C", "D", "J", "K", "S", "T", *HANDLERS], nothing), "W": work, "F": fails, "P": calling, "Q": calling_deep,
    "Y": calling_again, "I": asking, "R": retrying, "Z": sleeping,
}  # fmt: skip


# ---- acts ----


def enders(stage: Stage, *, deletes: bool = True) -> dict[str, Act]:
    """Everything that ends the first flow: terminate and cancel, both twice, its expiration, a delete."""
    root = stage.roots[0]
    at = NOON + datetime.timedelta(minutes=10)
    acts = {
        **verbs(stage),
        "terminate too": stage.verb("terminate too", lambda store, now: store.terminate_flow(root, "at last", now=now), minutes=11),
        "cancel too": stage.verb("cancel too", lambda store, now: store.cancel_flow(root, "stop again", now=now), minutes=12),
        "expire": stage.query("expire", "select dwarf.expire_v1(%s, 1000, %s)", root, at.isoformat()),
    }
    return acts | ({"delete": delete(stage)} if deletes else {})


def keep(stage: Stage) -> Act:
    """Retention takes the tree out of the way of its day, and answers with the number of flows moved."""
    root = stage.roots[0]
    return stage.query("keep", "select dwarf.move_trees_v1(array[%s], dwarf.day_of(%s::timestamptz))", root, NOON.isoformat())


def scene(stage: Stage, acts: dict[str, Act]) -> Scene:
    return Scene({**acts, **enders(stage)})


def hot(stage: Stage, task: str) -> Entry:
    """Record a step whose successor starts at once, and return what came of the successor."""
    player = stage.players["A"]
    [row] = stage.take("A", stage.rows(task))
    [entry] = player.work([row])
    entry.hot = True
    assert player.record([entry]) == []
    following = msgspec.structs.replace(row, seq=row.seq + 1, lease=row.lease + 1, task=entry.record.task, todo=0, parked=False)
    [after] = player.work([following])
    return after


def cancelled(stage: Stage, reason: str = "first") -> None:
    player = stage.players["A"]
    assert player.do(player.store.cancel_flow(stage.roots[0], reason, now=player.micros))


# ---- one flow ----


def running_hot(stage: Stage) -> Scene:
    """A step that was started at once has run."""
    stage.create("line")
    return scene(stage, {"advance": stage.record("A", [hot(stage, "A")]), "claim": claim(stage)})


def ending_hot(stage: Stage) -> Scene:
    """A flow's last step was started at once, and has run."""
    stage.create("line")
    stage.play("B")
    return scene(stage, {"close": stage.record("A", [hot(stage, "B")])})


def running_in_a_chain(stage: Stage) -> Scene:
    """Two steps have run one after the other, and are recorded together."""
    stage.create("line")
    player = stage.players["A"]
    [row] = stage.take("A", stage.rows("A"))
    player.chain_steps_max = 2
    entry = next(entry for _ in range(100) for entry in player.work([row]) if entry.prefix)
    player.chain_steps_max = 1
    return scene(stage, {"advance": stage.record("A", [entry]), "claim": claim(stage)})


def failing(stage: Stage) -> Scene:
    """A step whose child has failed has failed in turn, and has a handler."""
    stage.create("call", {"child": "bad"})
    stage.play("F")
    assert stage.players["A"].record(stage.entries("A", stage.rows("F"))) == []
    return scene(stage, {"advance": stage.record("A", stage.entries("A", stage.rows("P"))), "claim": claim(stage)})


def handing_back(stage: Stage) -> Scene:
    """A claimed step is handed back, since its executor ends."""
    stage.create("caught")
    [row] = stage.take("A", stage.rows("A"))
    record = Record(kind=Kind.NONE, branch=0, seq=row.seq, lease=row.lease, status=StepStatus.PENDING)
    acts = {"give back": stage.record("A", [Entry(row.flow_id, row.root_id, record)]), "claim": claim(stage)}
    return scene(stage, acts | {"release": release(stage, [_place(row)])})


def _place(row: ClaimedRow) -> tuple[int, int, int, bool]:
    return row.flow_id, row.branch, row.lease, True


def backing_off(stage: Stage) -> Scene:
    """A step waits to run again, with what it wrote kept."""
    stage.create("again")
    stage.play()
    return scene(stage, {"wake": wake(stage), "claim": claim(stage)})


def sleeping_with_a_handler(stage: Stage) -> Scene:
    stage.create("sleeper")
    stage.play()
    return scene(stage, {"wake": wake(stage)})


def delivering(stage: Stage) -> Scene:
    """A cancellation is being delivered: the handler is to run next."""
    stage.create("twice")
    cancelled(stage)
    return scene(stage, {"advance": stage.record("A", stage.entries("A", stage.rows("A"))), "claim": claim(stage), "sweep": sweep(stage)})


def delivering_to_nobody(stage: Stage) -> Scene:
    """A cancellation is being delivered, and nobody handles it: the flow is to end."""
    stage.create("line")
    cancelled(stage)
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("A"))), "sweep": sweep(stage)})


def handling(stage: Stage) -> Scene:
    """The handler of a cancellation has run, and has a handler of its own."""
    stage.create("twice")
    cancelled(stage)
    stage.play("H")
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("H"))), "claim": claim(stage)})


def answered(stage: Stage) -> Scene:
    """An interrupted step has its answer, and is due."""
    root = stage.create("asking")
    stage.play()
    player = stage.players["A"]
    assert player.do(player.store.resume_flow(root, b'{"a":1}', now=player.micros))
    return scene(stage, {"claim": claim(stage), "resume": resume(stage)})


def answered_and_running(stage: Stage) -> Scene:
    """An interrupted step has run again with its answer."""
    root = stage.create("asking")
    stage.play()
    player = stage.players["A"]
    assert player.do(player.store.resume_flow(root, b'{"a":1}', now=player.micros))
    acts = {"advance": stage.record("A", stage.entries("A", stage.rows("I"))), "resume": resume(stage), "sweep": sweep(stage)}
    return scene(stage, acts)


# ---- cohorts ----


def expanding_and_due(stage: Stage) -> Scene:
    """Two of five branches exist, the row that makes the others is due, a branch has run and arrives, the other one runs."""
    stage.create("fan", {"xs": [1, 2, 3, 4, 5]})
    stage.play("J", "W")
    first, _ = stage.entries("B", stage.rows("W"))
    return scene(stage, {"arrive": stage.record("B", [first], minutes=2), "claim": claim(stage, "A", minutes=1)})


def expanding_and_arrived(stage: Stage) -> Scene:
    """Two of three branches exist and have arrived, and the row that makes the last one is due."""
    stage.create("plain", {"xs": [1, 2, 3]})
    stage.play("J", "W")
    assert stage.players["A"].record(stage.entries("A", stage.rows("W"))) == []
    return scene(stage, {"claim": claim(stage)})


def last_arrival(stage: Stage) -> Scene:
    """All branches but one have arrived, and that one has run."""
    stage.create("plain", {"xs": [1, 2]})
    stage.play("W")
    assert stage.players["A"].record(stage.entries("A", stage.rows("W")[:1])) == []
    return scene(stage, {"arrive": stage.record("A", stage.entries("A", stage.rows("W"))), "claim": claim(stage)})


def last_arrival_by_a_handler(stage: Stage) -> Scene:
    """The last branch arrives by the handler of a cancellation; the other one arrived before that."""
    stage.create("fan", {"xs": [1, 2]})
    stage.play("W")
    assert stage.players["A"].record(stage.entries("A", stage.rows("W")[:1])) == []
    cancelled(stage)
    stage.play("HW", "J")
    return scene(stage, {"arrive": stage.record("A", stage.entries("A", stage.rows("HW"))), "claim": claim(stage)})


def last_arrival_cancelled(stage: Stage) -> Scene:
    """Two branches end cancelled, each in a session of its own."""
    stage.create("plain", {"xs": [1, 2]})
    stage.play("W")
    cancelled(stage)
    rows = stage.rows("W")
    acts = {
        "arrive": stage.record("A", stage.entries("A", rows[:1])),
        "arrive too": stage.record("B", stage.entries("B", rows[1:]), minutes=2),
    }
    return scene(stage, acts)


def folding(stage: Stage) -> Scene:
    """A cohort is complete, and its fan-in has run."""
    stage.create("fan", {"xs": [1, 2]})
    stage.play("J")
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("J"))), "sweep": sweep(stage)})


def folding_and_due(stage: Stage) -> Scene:
    """A cohort is complete, and its fan-in is due."""
    stage.create("fan", {"xs": [1, 2]})
    stage.play("J")
    return scene(stage, {"claim": claim(stage)})


def delivering_to_a_fan_in(stage: Stage) -> Scene:
    """A cancellation is being delivered to a fan-in with a handler."""
    stage.create("fan", {"xs": [1, 2]})
    stage.play("J")
    cancelled(stage)
    return scene(stage, {"advance": stage.record("A", stage.entries("A", stage.rows("J"))), "claim": claim(stage)})


def resolving_and_due(stage: Stage) -> Scene:
    """A cohort with a failed branch is to be resolved."""
    stage.create("plain", {"xs": ["bad", 1]})
    stage.play("J")
    return scene(stage, {"claim": claim(stage)})


def resolving_inside(stage: Stage) -> Scene:
    """An inner cohort with a failed branch is resolved, beside one that is still at work."""
    stage.create("nest", {"xs": [1, 2], "ys": [1, "bad"]})
    stage.play("W")
    assert stage.players["A"].record(stage.entries("A", stage.rows("W")[:2])) == []
    acts = {
        "resolve": stage.record("A", stage.entries("A", stage.rows("K"))),
        "arrive": stage.record("B", stage.entries("B", stage.rows("W")[:1]), minutes=2),
    }
    return scene(stage, acts)


def resolving_last(stage: Stage) -> Scene:
    """The last inner cohort with a failed branch is resolved: the outer one is to be resolved next."""
    stage.create("nest", {"xs": [1, 2], "ys": ["bad", 1]})
    stage.play("K")
    assert stage.players["A"].record(stage.entries("A", stage.rows("K")[:1])) == []
    return scene(stage, {"resolve": stage.record("A", stage.entries("A", stage.rows("K"))), "claim": claim(stage)})


def fan_in_interrupting(stage: Stage) -> Scene:
    """A fan-in has asked a question."""
    stage.create("ask_at_join", {"xs": [1, 2]})
    stage.play("I")
    return scene(stage, {"park": stage.record("A", stage.entries("A", stage.rows("I"))), "resume": resume(stage)})


def fan_in_interrupted(stage: Stage) -> Scene:
    """A fan-in waits for an answer."""
    stage.create("ask_at_join", {"xs": [1, 2]})
    stage.play()
    return scene(stage, {"resume": resume(stage), "claim": claim(stage)})


def fan_in_calling(stage: Stage) -> Scene:
    """A fan-in has called a child, whose last step has run."""
    stage.create("call_at_join", {"xs": [1, 2]})
    stage.play("D")
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("D"))), "claim": claim(stage)})


# ---- children ----


def child_starting(stage: Stage) -> Scene:
    """A step with a handler has called a child."""
    stage.create("call")
    return scene(stage, {"park": stage.record("A", stage.entries("A", stage.rows("P"))), "claim": claim(stage), "sweep": sweep(stage)})


def child_due(stage: Stage) -> Scene:
    """A child's first step is due; its caller waits."""
    stage.create("call")
    stage.play("C")
    return scene(stage, {"claim": claim(stage), "keep": keep(stage)})


def child_running(stage: Stage) -> Scene:
    """A child's first step has run, which has a successor."""
    stage.create("call")
    stage.play("C")
    return scene(stage, {"advance": stage.record("A", stage.entries("A", stage.rows("C"))), "keep": keep(stage), "sweep": sweep(stage)})


def child_ending(stage: Stage) -> Scene:
    """A child's last step has run; its caller has a handler."""
    stage.create("call")
    stage.play("D")
    acts = {"close": stage.record("A", stage.entries("A", stage.rows("D"))), "claim": claim(stage), "keep": keep(stage)}
    return scene(stage, acts)


def child_failing(stage: Stage) -> Scene:
    """A child has failed."""
    stage.create("call", {"child": "bad"})
    stage.play("F")
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("F"))), "claim": claim(stage)})


def child_interrupted(stage: Stage) -> Scene:
    """A child's step waits for an answer."""
    stage.create("call", {"child": "asking"})
    stage.play()
    return scene(stage, {"resume": resume(stage), "claim": claim(stage), "keep": keep(stage)})


def child_delivering(stage: Stage) -> Scene:
    """A cancellation is being delivered to a child's step: the child is to end, and its caller to hear of it."""
    stage.create("call")
    stage.play("C")
    cancelled(stage)
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("C"))), "claim": claim(stage)})


def child_handling(stage: Stage) -> Scene:
    """A child has handled a cancellation, and ends completed."""
    stage.create("call", {"child": "careful"})
    stage.play("C")
    cancelled(stage)
    stage.play("HC")
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("HC"))), "claim": claim(stage)})


def child_ended(stage: Stage) -> Scene:
    """A child has ended, and its caller is due."""
    stage.create("call")
    stage.play("P")
    stage.play("D")
    assert stage.players["A"].record(stage.entries("A", stage.rows("D"))) == []
    return scene(stage, {"claim": claim(stage), "keep": keep(stage)})


def child_read(stage: Stage) -> Scene:
    """A caller has run again with what its child came to."""
    stage.create("call")
    stage.play("D")
    assert stage.players["A"].record(stage.entries("A", stage.rows("D"))) == []
    acts = {"advance": stage.record("A", stage.entries("A", stage.rows("P"))), "keep": keep(stage), "sweep": sweep(stage)}
    return scene(stage, acts)


def child_cancelled_before(stage: Stage) -> Scene:
    """A child has ended cancelled, and its caller is due, to take the cancellation in turn."""
    stage.create("call")
    stage.play("C")
    cancelled(stage)
    assert stage.players["A"].record(stage.entries("A", stage.rows("C"))) == []
    return scene(stage, {"advance": stage.record("A", stage.entries("A", stage.rows("P"))), "claim": claim(stage)})


def child_discarded(stage: Stage) -> Scene:
    """A caller has its child's result, and asks to run again: the child is discarded."""
    stage.create("recall")
    stage.play("D")
    assert stage.players["A"].record(stage.entries("A", stage.rows("D"))) == []
    return scene(stage, {"retry": stage.record("A", stage.entries("A", stage.rows("Y"))), "claim": claim(stage)})


def child_called_again(stage: Stage) -> Scene:
    """A caller that runs anew calls its second child."""
    stage.create("recall")
    stage.play("D")
    player = stage.players["A"]
    assert player.record(stage.entries("A", stage.rows("D"))) == []
    assert player.record(stage.entries("A", stage.rows("Y"))) == []
    return scene(stage, {"park": stage.record("A", stage.entries("A", stage.rows("Y"))), "claim": claim(stage)})


def grandchild_starting(stage: Stage) -> Scene:
    """A child has called a child."""
    stage.create("deep")
    stage.play("P")
    return scene(stage, {"park": stage.record("A", stage.entries("A", stage.rows("P"))), "claim": claim(stage), "keep": keep(stage)})


def grandchild_ending(stage: Stage) -> Scene:
    """The last step of a child's child has run."""
    stage.create("deep")
    stage.play("D")
    return scene(stage, {"close": stage.record("A", stage.entries("A", stage.rows("D"))), "claim": claim(stage), "keep": keep(stage)})


def grandchild_interrupted(stage: Stage) -> Scene:
    """A child's child waits for an answer."""
    stage.create("deep", {"child": "asking"})
    stage.play()
    return scene(stage, {"resume": resume(stage), "claim": claim(stage), "keep": keep(stage)})


def children_of_every_kind(stage: Stage) -> Scene:
    """Of four branches one has a child that ends, one a child that asks, one is to call, and one has its answer."""
    stage.create("calls", {"xs": ["kid", "asking", "kid", "kid"]})
    stage.play("P")
    player = stage.players["A"]
    rows = stage.rows("P")
    assert player.record(stage.entries("A", rows[:2] + rows[3:])) == []
    stage.play("P", "D")
    ends = stage.rows("D")
    assert player.record(stage.entries("A", ends[1:])) == []
    starting, resumed = stage.rows("P")
    acts = {
        "close": stage.record("A", stage.entries("A", stage.rows("D"))),
        "park and arrive": stage.record("B", stage.entries("B", [starting, resumed]), minutes=2),
        "resume": resume(stage),
    }
    return scene(stage, acts)


SCENES: dict[str, Build] = {
    build.__name__: build
    for build in (
        running_hot, ending_hot, running_in_a_chain, failing, handing_back, backing_off, sleeping_with_a_handler, delivering,
        delivering_to_nobody, handling, answered, answered_and_running, expanding_and_due, expanding_and_arrived, last_arrival,
        last_arrival_by_a_handler, last_arrival_cancelled, folding, folding_and_due, delivering_to_a_fan_in, resolving_and_due,
        resolving_inside, resolving_last, fan_in_interrupting, fan_in_interrupted, fan_in_calling, child_starting, child_due,
        child_running, child_ending, child_failing, child_interrupted, child_delivering, child_handling, child_ended, child_read,
        child_cancelled_before, child_discarded, child_called_again, grandchild_starting, grandchild_ending, grandchild_interrupted,
        children_of_every_kind,
    )
}  # fmt: skip
