"""The reference runner: a graph with Python callables, run to its end in memory, one step at a time.

It repeats `decide` and is otherwise as plain as can be: rows and history are dicts, time is a number, and the ready step
that runs next is drawn by a seeded choice, so that every order can be tried and any can be repeated. The lifespan of an App is
not entered: `flow.resources` is None. Counting arrivals
and storing are done here, apart from `decide`, the way a database would do them: inputs are kept as the bytes of their
documents and read back. It is the oracle for property tests, and what `dwarf graph simulate` runs.
"""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dwarf import cohorts
from dwarf.decide import cancel as decide_cancel
from dwarf.decide import decide, fail, visible_state
from dwarf.effect import Effect, Subgraph, engine_failure, failure_of
from dwarf.errors import Conflict, DwarfError, InvalidArgument, NotFound
from dwarf.flow import Flow, Identity, Past
from dwarf.graph import Graph
from dwarf.hosts.app import App
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.run import run_async, run_sync
from dwarf.inputs import Input
from dwarf.keys import FlowKey, flow_id, step_id
from dwarf.limits import SUBGRAPH_DEPTH_MAX
from dwarf.outcome import Outcome, clean_reason
from dwarf.rebuild import Rebuild
from dwarf.record import ClaimedStep, Kind, Record, Todo
from dwarf.state import State
from dwarf.status import Status, StepStatus
from dwarf.testing.memory import Row, Store, TraceStep
from dwarf.values import encode_object

T = TypeVar("T")

STEPS_MAX = 100_000
_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_SECONDS_MAX = 7_000 * 365 * 86_400.0


def run(
    graph: Graph,
    tasks: Mapping[str, Callable[..., Any]] | App,
    state: Any = None,
    *,
    seed: int = 0,
    graphs: Mapping[str, Graph] | None = None,
    baggage: Any = None,
) -> Outcome:
    """Run a graph until it stops and return its outcome.

    `tasks` maps task URLs to callables written as App tasks are, or is an App; `seed` chooses the order of ready steps. Sleeps and
    retries cost no time. `graphs` are those that subgraph calls may name, by URL; an App brings its own. Raises what
    `Graph.validate` raises.
    """
    return ReferenceRun(graph, tasks, state, seed=seed, graphs=graphs, baggage=baggage).advance()


class _World:
    """What a whole tree of flows shares: the clock, the dice, the callables, the graphs, the loop for async tasks."""

    def __init__(self, tasks: Mapping[str, Callable[..., Any]] | App, graphs: Mapping[str, Graph], seed: int, baggage: State) -> None:
        self.tasks = _task_functions(tasks)
        self.app = tasks if isinstance(tasks, App) else None
        self.graphs = graphs
        self.dice = random.Random(seed)
        self.baggage = baggage
        self.now = 0.0
        self.flows = 0
        self.steps_left = STEPS_MAX

    def time(self) -> datetime.datetime:
        return _time(self.now)

    def graph_at(self, url: str) -> Graph:
        """Return the graph that a subgraph call names, validated. Raises what loading and validating it raise."""
        graph = self.graphs.get(url)
        if graph is None and self.app is not None:
            graph = _finish(self.app.load_graph(url))
        if graph is None:
            raise NotFound(f"no graph is registered for {url!r}")
        graph.validate()
        return graph

    def execute(self, url: str, flow: Flow) -> Effect:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise DwarfError(f"the reference runner gave up after {STEPS_MAX} steps: does the graph end?")
        task = self.app.task_for(url) if self.app else self.tasks.get(url)
        if task is None:
            return flow.effect(failure_of(NotFound(f"no task is registered for {url!r}")))
        return _finish(run_async(task, flow)) if task.is_async else run_sync(task, flow)


class ReferenceRun:
    """One flow, its steps, and what can be done to it from outside. Children are runs of their own."""

    _nesting: int

    def __init__(
        self,
        graph: Graph,
        tasks: Mapping[str, Callable[..., Any]] | App,
        state: Any = None,
        *,
        seed: int = 0,
        graphs: Mapping[str, Graph] | None = None,
        baggage: Any = None,
    ) -> None:
        """Create the flow; nothing runs yet. `graphs` are the graphs that subgraph calls may name; an App brings its own."""
        given = State.from_json(encode_object(baggage, "baggage"))
        self._url = graph.name if isinstance(graph, Graph) else ""
        self._open(_World(tasks, graphs or {}, seed, given), graph, encode_object(state, "the initial state"), None)

    def _open(self, world: _World, graph: Graph, state: bytes, caller: tuple[ReferenceRun, Row] | None) -> None:
        if not isinstance(graph, Graph):
            raise InvalidArgument(f"the reference runner runs a Graph, not {type(graph).__name__}")
        graph.validate()
        self._nesting = caller[0]._nesting + 1 if caller else 0
        self._created_at = world.now
        self._world, self._graph, self._caller = world, Graph.from_json(graph.to_json()), caller  # frozen as it is now
        world.flows += 1
        self.key = FlowKey(1, flow_id(0, world.flows), f"{world.flows:016x}")
        self._store = Store(State.from_json(state).enacted().to_json(), graph.reducers)
        self._status, self._final, self._error, self._reason = Status.RUNNING, State(), "", ""
        self._cancel_reason = ""
        self._store.add(Row(0, 1, graph.entry_point, depth=caller[1].depth + 1 if caller else 1, ready_at=world.now), "1")

    # What a test looks at

    @property
    def now(self) -> float:
        """Seconds of simulated time since the root was created."""
        return self._world.now

    @property
    def steps(self) -> list[TraceStep]:
        """Every step that ever existed, by path; fan-ins that never ran are left out."""
        return self._store.trace()

    @property
    def runs(self) -> list[tuple[str, int]]:
        """The (path, attempt) of every task run, in order."""
        return list(self._store.runs)

    def rebuild(self) -> Rebuild:
        """Return the flow's history, ready to be asked for inputs and the final state."""
        return self._store.rebuild(self._graph)

    @property
    def outcome(self) -> Outcome:
        """Where the flow stands now."""
        if self._status.closed:
            return Outcome(status=self._status, state=self._final, error=self._error, reason=self._reason)
        waiting = self._first_interrupt()
        if waiting is None:
            return Outcome(status=Status.RUNNING)
        run, row = waiting
        mine = row
        while run is not self:
            assert run._caller is not None
            run, mine = run._caller
        state = visible_state(self._input(mine), mine.past.changes)
        return Outcome(status=Status.INTERRUPTED, state=state, interrupt_payload=State.from_json(row.payload))

    # What a test does

    def advance(self, *, steps_max: int | None = None) -> Outcome:
        """Run ready steps until the flow stops, moving the clock on when all that is left waits for a time.

        `steps_max` stops after so many rows have been worked off; `advance` again goes on from there.
        """
        left = -1 if steps_max is None else steps_max
        while not self._status.closed and left:
            waiting = [(run, row) for run in self._tree() for row in run._store.rows() if row.status is StepStatus.PENDING]
            if not waiting:
                break
            ready = [entry for entry in waiting if entry[1].ready_at <= self._world.now]
            if not ready:
                self._world.now = min(row.ready_at for _, row in waiting)
                continue
            run, row = self._world.dice.choice(ready)
            run._process(row)
            left -= 1
        return self.outcome

    def resume(self, data: Any = None) -> None:
        """Answer the earliest interrupt of the tree. `Conflict` when none is open."""
        self._root_only("resume")
        answer = encode_object(data, "resume data")
        waiting = self._first_interrupt()
        if waiting is None:
            raise Conflict("the flow is not interrupted")
        _, row = waiting
        row.past = Past(changes=row.past.changes, resume=answer)
        row.wake(self._world.now)

    def cancel(self, reason: str = "") -> None:
        """Deliver a cancellation to every step in progress. `Conflict` when the flow is closed."""
        self._root_only("cancel")
        for run in list(self._tree()):
            run._cancel_reason = clean_reason(reason)
            for row in run._store.rows():
                row.cancel(self._world.now)

    def terminate(self, reason: str = "") -> None:
        """End the flow, its children and their unfinished steps at once. `Conflict` when the flow is closed."""
        self._root_only("terminate")
        for run in list(self._tree()):
            run._store.end_all(StepStatus.TERMINATED, self._world.now)
            run._final = run.rebuild().final_state()
            run._status, run._reason = Status.TERMINATED, clean_reason(reason)

    def _root_only(self, verb: str) -> None:
        if self._caller is not None:
            raise InvalidArgument(f"{verb} takes the root of the tree, not a child flow")
        if self._status.closed:
            raise Conflict(f"the flow is {self._status}; {verb} needs an open one")

    # The tree

    def _tree(self) -> Iterator[ReferenceRun]:
        """Yield this flow and its open descendants."""
        todo = [self]
        while todo:
            run = todo.pop()
            yield run
            todo += [row.child for row in run._store.rows() if row.child is not None and row.status is StepStatus.PARKED]

    def _first_interrupt(self) -> tuple[ReferenceRun, Row] | None:
        waiting = [(run, row) for run in self._tree() for row in run._store.rows() if row.status is StepStatus.INTERRUPTED]
        return min(waiting, key=lambda entry: entry[1].parked, default=None)

    # One step

    def _process(self, row: Row) -> None:
        """Do what the row asks for and store the record of it."""
        step = self._claim(row)
        if row.todo is Todo.EXPAND:
            return self._store_record(row, cohorts.expand_slice(self._graph, step))
        if row.todo is Todo.RESOLVE:
            members = self._store.members(row)
            record = cohorts.resolve(self._graph, step, members, last=row.last_arrival, reason=self._cancel_reason)
            return self._store_record(row, record)
        if row.is_joining:
            folded = cohorts.fold_join(self._graph, step, [member.contribution for member in self._store.members(row)])
            if isinstance(folded, Record):
                return self._store_record(row, folded)
            step = folded
        self._store.show_input(row, step.input.state)
        if row.todo is Todo.CANCEL:
            return self._store_record(row, decide_cancel(self._graph, step, self._cancel_reason))
        self._store_record(row, self._run(row, step))

    def _claim(self, row: Row) -> ClaimedStep:
        row.started_at = self._world.now if row.started_at is None else row.started_at
        return ClaimedStep(
            row.branch, row.seq, row.task, self._input(row), row.lease, row.todo,
            in_cohort=row.join_branch is not None, source=self._store.source_of(row), expanded=row.expanded,
        )  # fmt: skip

    def _input(self, row: Row) -> Input:
        """Read the row's input back from what is stored; what a hot successor would have kept must be the same."""
        stored = self._store.load(row)
        if row.hot_input is not None:
            assert row.hot_input.state == stored.state, (row, row.hot_input, stored)
            return self._world.dice.choice([row.hot_input, stored])
        return stored

    def _run(self, row: Row, step: ClaimedStep) -> Record:
        url = self._graph.url_of(row.task)
        effect = self._world.execute(url, self._flow(row, step, url))
        self._store.runs.append((self._store.path(row), row.attempt))
        if isinstance(effect.park, Subgraph):
            if self._nesting >= SUBGRAPH_DEPTH_MAX:
                text = f"task {row.task!r}: subgraphs are nested {SUBGRAPH_DEPTH_MAX} deep; no more are allowed"
                return fail(self._graph, step, engine_failure(text))
            try:
                self._world.graph_at(effect.park.url)
            except Exception as error:
                return fail(self._graph, step, engine_failure(f"task {row.task!r}: {error}", failure_of(error).status))
        return decide(self._graph, step, effect)

    def _flow(self, row: Row, step: ClaimedStep, url: str) -> Flow:
        identity = Identity(
            flow_key=str(self.key),
            step_key=str(self.key.step(step_id(row.branch, row.seq))),
            workflow_url=self._url,
            task_name=row.task,
            task_url=url,
            attempt=row.attempt,
            created_at=_time(self._created_at),
            step_created_at=_time(row.created_at),
            updated_at=self._world.time(),
        )
        return Flow(step.input.state, identity=identity, past=row.past, baggage=self._world.baggage, clock=self._world.time)

    # Storing

    def _store_record(self, row: Row, record: Record) -> None:
        now = self._world.now
        if record.kind is Kind.PARK:
            self._store.park(row, record, now)
            if record.child is not None:
                row.child = self._spawn(row, record.child.url, record.child.input)
        elif record.kind is Kind.RETRY:
            self._store.retry(row, record, now)
        elif record.kind is Kind.CLOSE:
            self._store.end(row, record, now)
            self._close(record)
        else:
            self._store.apply(row, record, now)

    def _spawn(self, row: Row, url: str, state: bytes) -> ReferenceRun:
        child = ReferenceRun.__new__(ReferenceRun)
        child._url = url
        child._open(self._world, self._world.graph_at(url), state, (self, row))
        return child

    def _close(self, record: Record) -> None:
        self._status = Status(record.status.value)
        self._final = State.from_json(record.final_state)
        if self._status is Status.FAILED:
            self._error = record.error
        elif self._status is Status.CANCELLED:
            self._reason = self._cancel_reason
        if self._caller is not None:
            self._wake_caller(record)

    def _wake_caller(self, record: Record) -> None:
        assert self._caller is not None
        run, row = self._caller
        if self._status is Status.COMPLETED:
            row.past = Past(changes=row.past.changes, result=record.final_state)
        elif self._status is Status.FAILED:
            row.past = Past(changes=row.past.changes, child_error=record.error)
        else:
            row.todo, row.past = Todo.CANCEL, Past()  # the cancellation goes on to the caller's own edge
        row.wake(run._world.now)


def _time(seconds: float) -> datetime.datetime:
    """Return a simulated time; what lies behind the last year that has a date stays in that year."""
    return _EPOCH + datetime.timedelta(seconds=min(seconds, _SECONDS_MAX))


def _task_functions(tasks: Mapping[str, Callable[..., Any]] | App) -> Mapping[str, TaskFunction]:
    if isinstance(tasks, App):
        return tasks.tasks
    if not isinstance(tasks, Mapping):
        raise InvalidArgument(f"tasks are an App, or callables by task URL, not {type(tasks).__name__}")
    return {url: task if isinstance(task, TaskFunction) else TaskFunction(url, task) for url, task in tasks.items()}


def _finish(running: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on a loop of its own thread where this one already runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(running)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, running).result()


__all__ = ["ReferenceRun", "TraceStep", "run"]
