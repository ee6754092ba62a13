"""Plays a trace on the reference runner and says, readably, where what happened is not what was expected."""

from __future__ import annotations

import builtins
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dwarf.errors import DwarfError, TaskError
from dwarf.flow import Flow, Parked
from dwarf.testing.reference import ReferenceRun
from tests.traces.notation import ANY, Act, Action, Line, Trace

Task = Callable[[Flow], None]
ABSENT = object()
READS: dict[str, str] = {kind: f"get_{kind}" for kind in ("str", "int", "float", "bool", "list", "dict")}


def play(trace: Trace, *, seed: int) -> list[str]:
    """Run a trace once and return the differences, none when all is as expected."""
    run = start(trace, seed=seed)
    found = [line for act in trace.story for line in perform(run, act)]
    found += compare_outcome(run.outcome, trace.outcome, "the outcome")
    found += compare_steps(run, trace)
    if trace.runs is not None and len(run.runs) != trace.runs:
        found.append(f"runs: expected {trace.runs}, got {len(run.runs)}")
    if trace.now is not None and run.now != trace.now:
        found.append(f"simulated seconds at the end: expected {trace.now}, got {run.now}")
    if found:
        found.append("ran in this order: " + (" ".join(f"{path}#{attempt}" for path, attempt in run.runs) or "nothing"))
    return found


def start(trace: Trace, *, seed: int) -> ReferenceRun:
    """Build the run of a trace: a task without a script does nothing."""
    urls = {node.url for graph in (trace.graph, *trace.graphs.values()) for node in graph.tasks}
    tasks = {url: task_of(trace.scripts.get(url, [])) for url in sorted(urls - set(trace.unknown))}
    return ReferenceRun(trace.graph, tasks, trace.state, seed=seed, graphs=trace.graphs, baggage=trace.baggage)


def perform(run: ReferenceRun, act: Act) -> list[str]:
    """Do one act of a story; `=> 409` says that it must be refused."""
    doing = f"after `{act.verb}{'' if act.argument is None else ' ' + json.dumps(act.argument)}`"
    verb: Callable[..., object] = getattr(run, act.verb)
    status = act.outcome.get("status", "")
    try:
        verb() if act.argument is None else verb(act.argument)
    except DwarfError as error:
        return [] if status == str(error.status) else [f"{doing}: refused with {error.status}: {error}"]
    if status.isdigit():
        return [f"{doing}: expected a refusal with {status}, got none"]
    return list(compare_outcome(run.outcome, act.outcome, doing))


# ---- tasks ----


def task_of(actions: list[Action]) -> Task:
    runs = Counter[str]()

    def task(flow: Flow) -> None:
        runs["all"] += 1
        Script(flow, run=runs["all"]).play(actions)

    return task


class Script:
    """One run of a scripted task. `found` holds what `$answer` and `$error` stand for."""

    def __init__(self, flow: Flow, *, run: int) -> None:
        self.flow = flow
        self.run = run
        self.found: dict[str, Any] = {"attempt": flow.attempt, "baggage": dict(flow.baggage)}

    def play(self, actions: list[Action]) -> None:
        for action in actions:
            if not all(self.holds(condition) for condition in action.when):
                continue
            try:
                going_on = self.do(action)
            except Exception as error:
                if action.guard != "try":
                    raise
                self.found["error"] = str(error)
                continue
            except Parked:
                if action.guard != "ignore":
                    raise
                continue
            if not going_on and action.guard != "also":
                return

    def holds(self, condition: str) -> bool:
        name, _, rest = condition.partition(" ")
        operator, _, wanted = rest.partition(" ")
        if name == "run":
            return self.run == int(operator)
        value = self.look_up(name)
        if operator in ("present", "absent"):
            return (value is None) == (operator == "absent")
        equal = value == json.loads(wanted)
        return equal if operator == "==" else not equal

    def look_up(self, path: str) -> Any:
        head, *rest = path.split(".")
        value = self.found[head] if head in self.found else self.flow.get(head)
        for part in rest:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def fill(self, value: Any) -> Any:
        """Replace every text `$name` by what it names."""
        if isinstance(value, str) and value.startswith("$"):
            return self.look_up(value[1:])
        if isinstance(value, list):
            return [self.fill(element) for element in value]
        if isinstance(value, dict):
            return {key: self.fill(member) for key, member in value.items()}
        return value

    def do(self, action: Action) -> bool:
        """Do one action; False ends the script."""
        values = [self.fill(value) for value in action.values]
        flow = self.flow
        match action.verb:
            case "set":
                flow.set(action.name, values[0])
            case "overwrite":
                flow.overwrite(action.name, values[0])
            case "delete":
                flow.delete(*values)
            case "clear":
                flow.clear()
            case "goto":
                flow.goto(action.name)
            case "sleep":
                flow.sleep(values[0])
            case "retry":
                return not flow.retry(*values)
            case "interrupt":
                self.found["answer"] = flow.interrupt(*values)
            case "subgraph":
                self.found["answer"] = flow.subgraph(action.name, *values)
            case "read":
                getattr(flow, READS[action.name])(action.values[0])
            case "raise":
                raise exception_of(action.name, *values)
            case _:
                return False
        return True


def exception_of(name: str, text: str, status: int = 0, properties: dict[str, Any] | None = None) -> Exception:
    if status:
        return TaskError(text, status=status, **(properties or {}))
    kind: type[Exception] = getattr(builtins, name or "RuntimeError")
    return kind(text)


# ---- comparing ----


def compare_steps(run: ReferenceRun, trace: Trace) -> Iterator[str]:
    flows = dict(walk(run))
    steps = {prefix + step.path: step for prefix, flow in flows.items() for step in flow.steps}
    counts = Counter(prefix + path for prefix, flow in flows.items() for path, _ in flow.runs)
    if len(steps) != sum(len(flow.steps) for flow in flows.values()):
        yield "two steps have the same path"
    for line in trace.steps:
        where = f"step {line.path} ({line.name})"
        if line.path not in steps:
            yield f"{where}: expected, but it never existed"
        else:
            yield from compare_step(steps[line.path], line, where, runs=counts[line.path])
    if trace.whole:
        for path in sorted(steps.keys() - {line.path for line in trace.steps}):
            yield f"step {path} ({steps[path].task}): not expected"
    for line in trace.children:
        child = steps[line.path].child if line.path in steps else None
        where = f"the child of step {line.path}"
        yield from [f"{where}: expected, but there is none"] if child is None else compare_outcome(child.outcome, line.facts, where)


def walk(run: ReferenceRun, prefix: str = "") -> Iterator[tuple[str, ReferenceRun]]:
    """Yield a run and its children at any depth, each with the prefix of its steps' paths."""
    yield prefix, run
    for step in run.steps:
        if step.child is not None:
            yield from walk(step.child, f"{prefix}{step.path}>")


def compare_step(step: Any, line: Line, where: str, *, runs: int) -> Iterator[str]:
    if step.task != line.name:
        yield f"{where}: expected task {line.name}, got {step.task}"
    got = {
        "status": str(step.status), "via": step.via, "attempt": step.attempt, "depth": step.depth, "runs": runs,
        "at": step.started_at, "until": step.ended_at,
    }  # fmt: skip
    for key, expected in line.facts.items():
        if key == "error":
            if expected not in (step.error or ""):
                yield f"{where}: error: expected {expected!r} in it, got {step.error!r}"
        elif got[key] != expected:
            yield f"{where}: {key}: expected {expected}, got {got[key]}"
    if line.input != ANY:
        given = None if step.input is None else dict(step.input)
        yield from compare(line.input, given, f"{where}: input")
    yield from compare(line.changes, dict(step.changes or {}), f"{where}: changes")


def compare_outcome(outcome: Any, expected: dict[str, Any], where: str) -> Iterator[str]:
    if not expected:
        return
    if str(outcome.status) != expected["status"]:
        yield f"{where}: status: expected {expected['status']}, got {outcome.status} {outcome.error or outcome.reason}".rstrip()
    if expected.get("error", "") not in outcome.error:
        yield f"{where}: error: expected {expected['error']!r} in it, got {outcome.error!r}"
    if expected.get("reason", outcome.reason) != outcome.reason:
        yield f"{where}: reason: expected {expected['reason']!r}, got {outcome.reason!r}"
    for key, name in (("state", "state"), ("payload", "interrupt_payload")):
        if key in expected:
            yield from compare(expected[key], dict(getattr(outcome, name)), f"{where}: {key}")


def compare(expected: Any, got: Any, where: str) -> Iterator[str]:
    """Yield the differences of two JSON values. Expected: `"?"` is any value, `"~x"` a text with x in it, a member `"..."` any more."""
    if expected == ANY and isinstance(expected, str):
        return
    if isinstance(expected, dict) and isinstance(got, dict):
        more = "..." in expected
        for key in {**expected, **got}:
            if key == "..." or (more and key not in expected):
                continue
            yield from compare(expected.get(key, ABSENT), got.get(key, ABSENT), f"{where}.{key}")
    elif not same(expected, got):
        yield f"{where}: expected {shown(expected)}, got {shown(got)}"


def same(expected: Any, got: Any) -> bool:
    if expected is ABSENT or got is ABSENT:
        return expected is got
    if isinstance(expected, str) and expected.startswith("~"):
        return isinstance(got, str) and expected[1:] in got
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and not any(line for pair in zip(expected, got, strict=True) for line in compare(*pair, ""))
    return bool(expected == got)


def shown(value: Any) -> str:
    return "nothing" if value is ABSENT else json.dumps(value, ensure_ascii=False)
