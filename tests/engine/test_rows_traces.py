"""Every trace of tests/traces on a real engine: what the reference runner must do, PostgreSQL and the engine must do too.

The traces of a file share one engine, one after the other. Facts that no public call shows (how a step was left) are not looked
at, and times only ever as "not before": a database's clock goes on while steps run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dwarf import App, DwarfError, FlowOptions, Graph, Outcome, Step
from dwarf.flow import Flow
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import Make, invariants, on_loop, paths, play
from tests.traces.notation import ANY, Action, Line, Trace, read_file
from tests.traces.play import Script, compare, compare_outcome

FOLDER = Path(__file__).parent.parent / "traces"
FILES = sorted(path.stem for path in FOLDER.glob("*.toml"))
ONLY = os.environ.get("TRACE", "")  # the id of a single trace, for whoever looks into one
LATER = timedelta(hours=1)
SIMULATED = {"exactly-at-the-horizon"}  # to the microsecond, which only a simulated clock keeps


class Prefixed(Script):
    """A script whose subgraph calls name the graphs of its own trace."""

    def __init__(self, flow: Flow, *, run: int, prefix: str) -> None:
        super().__init__(flow, run=run)
        self.prefix = prefix

    def do(self, action: Action) -> bool:
        if action.verb == "subgraph":
            values = [self.fill(value) for value in action.values]
            self.found["answer"] = self.flow.subgraph(self.prefix + action.name, *values)
            return True
        return super().do(action)


class Played:
    """One trace on an engine: its graphs and tasks under a prefix of their own, and which steps ran how often."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.prefix = f"{trace.id}/"
        self.runs: Counter[str] = Counter()
        self.key = ""

    def register(self, app: App) -> None:
        trace = self.trace
        urls = set()
        for url, graph in [("", trace.graph), *trace.graphs.items()]:
            mine = Graph.from_json(graph.to_json())
            for node in mine.tasks:
                mine.set_url(node.name, self.prefix + node.url)
                urls.add(node.url)
            app.add_graph(self.prefix + url, mine)
        for url in sorted(urls - set(trace.unknown)):
            app.task(self.prefix + url)(self.task(trace.scripts.get(url, [])))

    def task(self, actions: list[Action]) -> Any:
        count = 0

        def run(flow: Flow) -> None:
            nonlocal count
            count += 1
            self.runs[flow.step_key] += 1
            Prefixed(flow, run=count, prefix=self.prefix).play(actions)

        return run

    async def check(self, engine: EngineUnderTest) -> list[str]:
        trace = self.trace
        begins_standing = trace.story[0].verb != "advance"
        options = FlowOptions(baggage=trace.baggage, start_at=await engine_now(engine) + LATER if begins_standing else None)
        self.key = await engine.create(self.prefix, trace.state, options)
        found = [report for act in trace.story for report in await self.perform(engine, act)]
        outcome = await engine.snapshot(self.key)
        steps = await engine.history(self.key)
        found += compare_outcome(outcome, trace.outcome, "the outcome")
        found += [report async for report in self.compare_steps(engine, paths(steps))]
        mine = sum(self.runs[step.step_key] for step in steps)
        if trace.runs is not None and mine != trace.runs:
            found.append(f"runs: expected {trace.runs}, got {mine}")
        if outcome.status.closed:
            found += [f"{step}: its flow is closed" for step in steps if not step.status.closed]
        elif outcome.stopped:
            await engine.terminate(self.key)
        return found

    async def perform(self, engine: EngineUnderTest, act: Any) -> list[str]:
        doing = f"after `{act.verb} {act.argument}`"
        status = act.outcome.get("status", "")
        try:
            if act.verb == "advance":
                await play(engine)
            else:
                await getattr(engine, act.verb)(self.key, *([] if act.argument is None else [act.argument]))
        except DwarfError as error:
            return [] if status == str(error.status) else [f"{doing}: refused with {error.status}: {error}"]
        if status.isdigit():
            return [f"{doing}: expected a refusal with {status}, got none"]
        return list(compare_outcome(await self.shown(engine, act.verb, status), act.outcome, doing)) if status else []

    async def shown(self, engine: EngineUnderTest, verb: str, status: str) -> Outcome:
        """Return where the flow stands: after a verb at once, as far as the engine has not gone on already."""
        return await engine.snapshot(self.key)

    async def compare_steps(self, engine: EngineUnderTest, steps: dict[str, Step]) -> Any:
        for expected in self.trace.steps:
            where = f"step {expected.path} ({expected.name})"
            if expected.path not in steps:
                yield f"{where}: expected, but it never existed"
                continue
            whole = await engine.step(steps[expected.path].step_key)
            for report in self.compare_step(steps[expected.path], whole, expected):
                yield f"{where}: {report}"
        if self.trace.whole:
            for path in sorted(steps.keys() - {expected.path for expected in self.trace.steps}):
                yield f"step {path} ({steps[path].task_name}): not expected"
        for expected in self.trace.children:
            caller = steps.get(expected.path)
            if caller is None or not caller.sub_flow_key:
                yield f"the child of step {expected.path}: expected, but there is none"
            else:
                for report in compare_outcome(await engine.snapshot(caller.sub_flow_key), expected.facts, f"the child of {expected.path}"):
                    yield report

    def compare_step(self, step: Step, whole: Step, expected: Line) -> Iterator[str]:
        if step.task_name != expected.name:
            yield f"expected task {expected.name}, got {step.task_name}"
        if (step.state, step.changes, step.interrupt_payload) != (None, None, None):
            yield "a history shows state"
        got: dict[str, Any] = {
            "status": str(step.status), "attempt": step.attempt, "depth": step.step_depth, "runs": self.runs[step.step_key],
        }  # fmt: skip
        for fact, value in expected.facts.items():
            if fact == "error":
                if value not in step.error:
                    yield f"error: expected {value!r} in it, got {step.error!r}"
            elif fact in got and value != ANY and got[fact] != value:
                yield f"{fact}: expected {value}, got {got[fact]}"
        if (whole.task_name, whole.status, whole.attempt, whole.error) != (step.task_name, step.status, step.attempt, step.error):
            yield f"history shows {step!r}, step() {whole!r}"
        if expected.input != ANY:
            yield from compare(expected.input, dict(whole.state or {}), "input")
        yield from compare(expected.changes, dict(whole.changes or {}), "changes")


async def engine_now(engine: EngineUnderTest) -> Any:
    from tests.engine.rows_support import one

    return await one(engine, "select dwarf.now()")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.row(
    "A41", "A42", "B2", "B4", "B6", "B12", "B14", "B18", "B26", "B27", "E1", "E2", "E9", "E12", "F33", "F34", "F36", "L3", "L4", "L5"
)
@pytest.mark.row("L11", "L12", "L19", "L20", "I-26")
def test_an_engine_plays_the_traces(file: str, dwarf_engine: Make) -> None:
    traces = [trace for trace in read_file(FOLDER / f"{file}.toml") if ONLY in ("", trace.id) and trace.id not in SIMULATED]

    @on_loop
    async def run() -> None:
        app = App()
        played = [Played(trace) for trace in traces]
        for each in played:
            each.register(app)
        reports = {}
        async with dwarf_engine(app, f"traces {file}") as engine:
            for each in played:
                if found := await each.check(engine):
                    reports[each.trace.id] = found
            assert await invariants(engine) == []
        text = "\n".join(f"{name}:\n  " + "\n  ".join(found) for name, found in reports.items())
        assert not reports, text

    run()
