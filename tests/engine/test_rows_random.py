"""Random graphs with random tasks: an engine does what the reference runner does, step by step, whoever runs the steps.

Every flow of a round is created at once and runs beside the others. Sleepers are woken by moving the clock. What a task received is
written down at its first run and held against `engine.step`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dwarf import App, Graph, Outcome, Status, Step, TaskError
from dwarf.flow import Flow
from dwarf.state import canonical
from dwarf.testing import EngineUnderTest
from dwarf.testing.reference import ReferenceRun
from tests.engine.rows_support import Make, calm, invariants, paths
from tests.strategies import changes, states, valid_graphs

HOPS_MAX = 4
CHILD_DEPTH_MAX = 2
FLOWS = 6
TEXTS = ["", "ä\n\"\\'", "🧌" * 3, "nul\x00nul", "x" * 9_000, 2**70, -(2**63) - 1, 0.1, [], {"a": [None, {"b": "\u2028"}]}]
ROUNDS = settings(
    max_examples=int(os.environ.get("ROUNDS", "3")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


class Example:
    """One random flow: its graph, its children's graph, what its tasks do, and what they received."""

    def __init__(self, graph: Graph, child: Graph, menus: list[list[dict[str, Any]]], state: dict[str, Any], seed: int) -> None:
        self.graph, self.child, self.menus, self.state, self.seed = graph, child, menus, state, seed
        self.received: dict[str, bytes] = {}
        self.runs: Counter[str] = Counter()
        self.key = ""
        self.expected = self.refer()

    def tasks(self, url: str, *, note: Callable[[Flow], bytes], child_url: str) -> dict[str, Callable[[Flow], None]]:
        graph = self.child if url == "child" else self.graph
        return {
            task.url: self.behave(graph, task.name, self.menus[index % len(self.menus)], note, child_url)
            for index, task in enumerate(graph.tasks)
        }

    def behave(
        self, graph: Graph, name: str, menu: list[dict[str, Any]], note: Callable[[Flow], bytes], child_url: str
    ) -> Callable[[Flow], None]:
        gotos = [edge.target for edge in graph.edges_from(name) if edge.goto]
        fields = {*graph.reducers, "f0", "f1", "f2", "f3", "l0", "l1", "l2"}

        def task(flow: Flow) -> None:
            # Throws depend on the input and on what earlier runs of the step wrote: no two runs need to decide alike.
            read = note(flow) + canonical({field: raw for field, raw in flow.snapshot().raw_fields().items() if field in ("hops", "f0")})
            numbers = iter(hashlib.sha256(f"{self.seed} {name} {flow.attempt}".encode() + read).digest())

            def throw(sides: int) -> int:
                return next(numbers) % sides

            write(flow, menu, fields, throw)
            depth, hops = flow.get_int("depth"), flow.get_int("hops")
            flow["hops"] = hops + 1
            if throw(12) == 0 and flow.attempt < 2 and flow.retry(1):
                return
            choice = throw(12)
            if choice == 0:
                flow["answer"] = flow.interrupt({"from": name, "n": hops}).get("n")
            elif choice in (1, 2) and depth < CHILD_DEPTH_MAX:
                flow["got"] = [flow.subgraph(child_url, {"depth": depth + 1, "f0": flow.get_int("f0"), "l0": [1, 2]}).get("hops")]
            if throw(10) == 0:
                raise TaskError(f"{name} fails", status=418)
            if gotos and hops < HOPS_MAX and throw(2) == 0:
                flow.goto(gotos[throw(len(gotos))])

        return task

    def refer(self) -> ReferenceRun:
        read: dict[str, bytes] = {}

        def note(flow: Flow) -> bytes:
            return read.setdefault(flow.step_key, canonical(flow.snapshot().raw_fields()))

        mine = self.tasks("", note=note, child_url="child")
        graphs = {"child": prefixed(self.child, "c/")}
        theirs = {f"c/{url}": task for url, task in self.tasks("child", note=note, child_url="child").items()}
        run = ReferenceRun(self.graph, {**mine, **theirs}, self.state, seed=self.seed, graphs=graphs)
        outcome = run.advance()
        while outcome.status is Status.INTERRUPTED:
            run.resume({"n": 1})
            outcome = run.advance()
        return run

    def register(self, app: App, number: int) -> None:
        for kind, graph in (("", self.graph), ("child", self.child)):
            prefix = f"{number}/{kind}/"
            app.add_graph(prefix, prefixed(graph, prefix))
            for url, task in self.tasks(kind, note=self.note, child_url=f"{number}/child/").items():
                app.task(prefix + url)(task)

    def note(self, flow: Flow) -> bytes:
        """Return what the step received: what its first run reads, with no writes of its own over it."""
        self.runs[flow.step_key] += 1
        if self.runs[flow.step_key] == 1:
            self.received[flow.step_key] = canonical(flow.snapshot().raw_fields())
        return self.received[flow.step_key]

    # ---- comparing ----

    def trace(self, run: ReferenceRun, prefix: str = "") -> dict[str, tuple[Any, ...]]:
        found = {}
        for step in run.steps:
            found[prefix + step.path] = (step.task, str(step.status), step.attempt, step.depth, step.changes)
            if step.child is not None and not step.attempt:
                found.update(self.trace(step.child, f"{prefix}{step.path}>"))
        return found

    async def check(self, engine: EngineUnderTest) -> None:
        outcome = await engine.snapshot(self.key)
        steps = childless(paths(await engine.history(self.key)))
        whole = {path: await engine.step(step.step_key) for path, step in steps.items()}
        expected = self.expected.outcome
        assert outcome.status is expected.status, (outcome, expected)
        if outcome.status is Status.COMPLETED:
            assert outcome.state == expected.state, (dict(outcome.state), dict(expected.state))
        assert bool(outcome.error) == bool(expected.error)
        mine = {path: facts(step) for path, step in whole.items()}
        theirs = {path: comparable(fact) for path, fact in self.trace(self.expected).items()}
        assert mine == theirs
        for step in whole.values():
            if step.step_key in self.received:
                assert step.state is not None
                assert canonical(step.state.raw_fields()) == self.received[step.step_key], step  # type: ignore[attr-defined]
            assert (step.step_key in self.received) == (step.started_at is not None and self.runs[step.step_key] > 0), step


def childless(steps: dict[str, Step]) -> dict[str, Step]:
    """Leave out what is below steps of several attempts: which of their children a history shows is looked at elsewhere."""
    retried = [f"{path}>" for path, step in steps.items() if step.attempt]
    return {path: step for path, step in steps.items() if not any(path.startswith(above) for above in retried)}


def prefixed(graph: Graph, prefix: str) -> Graph:
    """The same graph with its tasks under other URLs."""
    copy = Graph.from_json(graph.to_json())
    for task in copy.tasks:
        copy.set_url(task.name, prefix + task.url)
    return copy


def write(flow: Flow, menu: list[dict[str, Any]], fields: set[str], throw: Callable[[int], int]) -> None:
    for field, value in menu[throw(len(menu))].items() if menu else ():
        if field in fields or not field.startswith("r_"):
            flow.overwrite(field, value) if throw(6) == 0 else flow.set(field, value)
    if throw(8) == 0:
        flow.delete("r_append")
    if throw(4) == 0:
        flow[f"text{throw(3)}"] = TEXTS[throw(len(TEXTS))]
    if throw(8) == 0:
        flow.sleep(throw(5))


def facts(step: Step) -> tuple[Any, ...]:
    return comparable((step.task_name, str(step.status), step.attempt, step.step_depth, step.changes))


def comparable(fact: tuple[Any, ...]) -> tuple[Any, ...]:
    *plain, written = fact
    return (*plain, {field: canonical_value(value) for field, value in (written or {}).items()})


def canonical_value(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value, order="sorted")


@st.composite
def examples(draw: st.DrawFn, leaves: int = 8) -> Example:
    graph, child = draw(valid_graphs(leaves=leaves)), draw(valid_graphs(leaves=3))
    menus = draw(st.lists(st.lists(changes(graph), max_size=3), min_size=1, max_size=6))
    return Example(graph, child, menus, draw(states()), draw(st.integers(0, 999)))


async def finish(engine: EngineUnderTest, keys: list[str]) -> list[Outcome]:
    """Let all flows run to their end: answer every interrupt, wake every sleeper."""
    while True:
        wait = await calm(engine)
        outcomes = await asyncio.gather(*map(engine.snapshot, keys))
        waiting = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome.status is Status.INTERRUPTED]
        await asyncio.gather(*(engine.resume(key, {"n": 1}) for key in waiting))
        if wait is not None:
            await engine.advance(wait)
        elif not waiting:
            return outcomes


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.row("F23", "F24", "F33", "A44")
def test_random_flows_end_as_in_the_reference(dwarf_engine: Make, engines: int) -> None:
    @given(flows=st.lists(examples(), min_size=FLOWS, max_size=FLOWS), workers=st.sampled_from([1, 3, 1000]))
    @ROUNDS
    def round_of_flows(flows: list[Example], workers: int) -> None:
        async def play() -> None:
            app = App()
            for number, flow in enumerate(flows):
                flow.register(app, number)
            async with asyncio.timeout(120), dwarf_engine(app, f"random {engines}", workers=workers) as engine:
                others = [dwarf_engine(app, dsns=engine.dsns, workers=workers) for _ in range(engines - 1)]
                for other in others:
                    await other.start()
                calls = [(f"{number}//", flow.state) for number, flow in enumerate(flows)]
                keys = await engine.create_many(calls)
                for flow, key in zip(flows, keys, strict=True):
                    flow.key = key
                await finish(engine, keys)
                for flow in flows:
                    await flow.check([engine, *others][flow.seed % engines])
                assert await invariants(engine) == []
                for other in others:
                    await other.close()

        asyncio.run(play())

    round_of_flows()
