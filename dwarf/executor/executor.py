"""The executor: runs what it is assigned, many tasks at a time, decides what each came to, and goes on once it is recorded.

    assigned -> prepared -> task runs -> decided -> Report -> Committed -> the successor at once, or over
                   |           |
                   |           +- withdrawn: the task is stopped, nothing is stored, Freed
                   +- draining, or waiting too long for a thread or under a cap: Unstarted

Async tasks run on the loop, each in a context of its own; sync tasks in a pool of threads. Owns no connection: it knows its
host and its channel. A task that has left the executor (withdrawn, out of time and never coming back) keeps its slot until
it ends.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from dwarf.channel import Channel, ChannelClosed
from dwarf.effect import Effect
from dwarf.errors import TaskError, TimeBudgetExceeded
from dwarf.executor.graphs import Graphs
from dwarf.executor.runs import Run, baggage_of, broken, carrier, child_failed, child_of, finish, go_on, prepare, too_deep
from dwarf.executor.signals import LoopFlag, ThreadFlag
from dwarf.flow import Flow, Parked
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.host import Host
from dwarf.hosts.run import settle
from dwarf.inputs import Base
from dwarf.keys import flow_name
from dwarf.outcome import clean_error
from dwarf.record import Record
from dwarf.routing import plan_of
from dwarf.wire import (
    Assign,
    Committed,
    Drain,
    Freed,
    GraphForm,
    Hello,
    Report,
    Reports,
    ToDispatcher,
    ToExecutor,
    Unstarted,
    Withdraw,
)  # fmt: skip

UNSTARTED_SECONDS_MAX = 10.0  # how long a step may wait for a thread, or under a task's cap, before it goes back
WATCHED_SECONDS_MAX = 1.0  # how long an async task that watches `flow.cancelled` may go on once it is set

log = logging.getLogger("dwarf.executor")

MakeClient = Callable[[Flow, bool], Any]


class Executor:
    """Runs the tasks of one host for one dispatcher. `make_client(flow, is_sync)` makes what `flow.client` gives."""

    def __init__(
        self,
        host: Host,
        channel: Channel[ToDispatcher, ToExecutor],
        *,
        shard: int,
        slots: int,
        threads: int,
        resources: Any = None,
        make_client: MakeClient | None = None,
    ) -> None:
        self._host, self._channel, self._shard = host, channel, shard
        self._slots, self._resources = slots, resources
        self._make_client = None if make_client is None else (lambda flow: make_client(flow, False), lambda flow: make_client(flow, True))
        self._task_for: Callable[[str], TaskFunction | None] = getattr(host, "task_for", lambda url: None)
        self._threads = ThreadPoolExecutor(min(threads, slots) or 1, thread_name_prefix="dwarf-task")
        self._threads_free = min(threads, slots) or 1
        self._graphs = Graphs(host)
        self._runs: dict[int, Run] = {}
        self._reports: list[Report] = []
        self._unstarted: list[int] = []
        self._freed: list[int] = []
        self._queues: dict[TaskFunction | None, deque[tuple[float, Run, TaskFunction]]] = {}
        self._running: dict[TaskFunction, int] = {}
        self._draining = False
        self._flushing = False
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._clock_at = (0, self._loop.time())  # the database's microseconds, and the loop's time at which it showed them

    # ---- its life ----

    async def run(self) -> None:
        """Work until the channel closes."""
        self._channel.send(Hello(self._slots))
        watch = self._loop.create_task(self._give_back_late())
        try:
            while True:
                for message in await self._channel.receive():
                    self._take(message)
        except ChannelClosed:
            pass
        finally:
            watch.cancel()
            self._stop_all()

    def _take(self, message: ToExecutor) -> None:
        match message:
            case Assign():
                self._assign(message)
            case Committed(started=started, over=over):
                for ticket in over:
                    self._runs.pop(ticket, None)
                for ticket in started:
                    self._go_on(ticket)
            case Withdraw(tickets=tickets):
                for ticket in tickets:
                    self._withdraw(ticket)
            case Drain():
                self._drain()

    def _stop_all(self) -> None:
        """Stop every task: nobody takes what they come to any more."""
        for run in list(self._runs.values()):
            run.withdrawn = True  # so that no cancellation of ours is reported as what the task came to
            self._interrupt(run)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- steps ----

    def _assign(self, message: Assign) -> None:
        for form in message.graphs:
            self._graphs.add(form)
        bases: dict[tuple[int, tuple[int, ...]], Base] = {}
        for assigned in message.steps:
            self._see_clock(assigned.claimed_at)
            try:
                graph = self._graphs[assigned.graph_id]
                under = (assigned.graph_id, tuple(assigned.documents))
                base = bases.get(under)
                if base is None:
                    base = bases[under] = message.base(assigned, plan_of(graph).reducers)
                run = self._runs[assigned.ticket] = Run(assigned, graph)
                record = prepare(run, base)
            except Exception as error:
                self._runs.pop(assigned.ticket, None)
                self._send_report(Report(assigned.ticket, broken(assigned, error)))
                continue
            if record is not None:
                self._report(run, record)
            else:
                self._begin(run)

    def _go_on(self, ticket: int) -> None:
        """Start the successor of a step whose record has been committed."""
        run = self._runs.get(ticket)
        if run is None:
            return
        following = self._runs[ticket] = go_on(run, self._now_micros())
        self._begin(following)

    def _begin(self, run: Run) -> None:
        try:
            self._start_task(run)
        except Exception as error:
            self._report(run, broken(run.assignment, error))

    def _start_task(self, run: Run) -> None:
        assigned = run.assignment
        url = run.graph.url_of(assigned.task)
        task = self._task_for(url)
        budget_ms = assigned.budget_ms
        if task is not None and task.time_budget_ms:
            budget_ms = min(budget_ms, task.time_budget_ms)
        run.budget = budget_ms / 1000
        if self._draining:
            self._give_back([run])
        elif task is None or (task.is_async and not task.concurrency):
            self._start_async(run, self._open_flow(run, is_sync=False), task)
        else:
            self._queue(run, task)

    def _open_flow(self, run: Run, *, is_sync: bool) -> Flow:
        flow = carrier(run, self._shard, self._now_micros)
        flow.resources = self._resources
        flow.cancelled = ThreadFlag() if is_sync else LoopFlag()
        if self._make_client is not None:
            flow.bind_client(self._make_client[is_sync])  # a function of the flow: one that knew it would keep it alive, and itself
        run.flow = flow
        run.started = True
        run.timer = self._loop.call_later(run.budget, self._expire, run)
        return flow

    # ---- async tasks ----

    def _start_async(self, run: Run, flow: Flow, task: TaskFunction | None) -> None:
        run.task = self._loop.create_task(self._run_async(run, flow, task), context=self._context.copy())

    async def _run_async(self, run: Run, flow: Flow, task: TaskFunction | None) -> None:
        error: BaseException | None = None
        try:
            if task is None:
                await self._host.execute_task(flow.task_url, flow)
            else:
                pending = task.call(flow)
                if pending is not None:
                    await pending
        except BaseException as raised:
            if isinstance(raised, KeyboardInterrupt) and self._draining:  # the second of a user who does not want to wait
                raise
            error = raised
        await self._end(run, flow, task, error)

    async def _end(self, run: Run, flow: Flow, task: TaskFunction | None, error: BaseException | None) -> None:
        try:
            await self._ended(run, flow, task, error)
        except asyncio.CancelledError:  # while its child's graph was loaded: taken away, or it has cancelled itself
            if run.withdrawn:
                self._free(run)
            else:
                self._report(run, broken(run.assignment, TaskError("it was cancelled while its child's graph was loaded")))

    async def _ended(self, run: Run, flow: Flow, task: TaskFunction | None, error: BaseException | None) -> None:
        """Turn what a task did into a record, and report it."""
        run.timer.cancel()
        self._leave(task)
        if run.withdrawn:
            self._free(run)
            return
        try:
            effect = settle(flow, _as_task_error(run, error), retry=task.retry if task else None)
            if effect.failure is not None:
                self._tell_failure(run, effect.failure.text, error)
            form = None
            url = child_of(effect)
            if url:
                form, record = await self._with_child(run, effect, url)
            else:
                record = finish(run, effect)
            if run.withdrawn:
                self._free(run)
                return
        except Exception as defect:
            form, record = None, broken(run.assignment, defect)
        self._report(run, record, form)

    def _tell_failure(self, run: Run, text: str, error: BaseException | None) -> None:
        """Log what failed and where in the task: a flow keeps the text alone."""
        assigned = run.assignment
        name = flow_name(self._shard, assigned.flow_id)
        trace = "" if error is None else "\n" + clean_error("".join(traceback.format_exception(error)))  # any text may be in it
        log.info("task %r of flow %s (%s) failed: %s%s", assigned.task, name, assigned.workflow, text, trace)

    async def _with_child(self, run: Run, effect: Effect, url: str) -> tuple[GraphForm | None, Record]:
        if (refusal := too_deep(run)) is not None:
            return None, refusal
        try:
            form = await self._graphs.of_child(url, baggage_of(run.assignment), seconds=run.budget)
        except Exception as error:
            return None, child_failed(run, error)
        return form, finish(run, effect)

    # ---- sync tasks, and tasks with a cap ----

    def _queue(self, run: Run, task: TaskFunction) -> None:
        """Start a task, or let it wait until a thread is free and its cap allows another run."""
        if self._may_start(task):
            self._start_capped(run, task)
        else:
            key = task if task.concurrency else None
            self._queues.setdefault(key, deque()).append((self._loop.time(), run, task))

    def _may_start(self, task: TaskFunction) -> bool:
        if not task.is_async and self._threads_free <= 0:
            return False
        return not task.concurrency or self._running.get(task, 0) < task.concurrency

    def _start_capped(self, run: Run, task: TaskFunction) -> None:
        flow = self._open_flow(run, is_sync=not task.is_async)  # which may fail: then no place is taken
        if task.concurrency:
            self._running[task] = self._running.get(task, 0) + 1
        if task.is_async:
            self._start_async(run, flow, task)
            return
        self._threads_free -= 1
        context = self._context.copy()
        run.task = self._loop.run_in_executor(self._threads, context.run, _call, task, flow)
        run.task.add_done_callback(lambda future: self._thread_ended(run, flow, task, future))

    def _thread_ended(self, run: Run, flow: Flow, task: TaskFunction, future: asyncio.Future[BaseException | None]) -> None:
        error = None if future.cancelled() else future.result()
        run.task = self._loop.create_task(self._end(run, flow, task, error))

    def _leave(self, task: TaskFunction | None) -> None:
        """Take note that a run has ended, and start those that waited for its place, the longest first."""
        if task is None or (task.is_async and not task.concurrency):
            return
        if task.concurrency:
            self._running[task] -= 1
        if not task.is_async:
            self._threads_free += 1
        for queue in sorted((queue for queue in self._queues.values() if queue), key=lambda queue: queue[0][0]):
            while queue and self._may_start(queue[0][2]):
                run = queue.popleft()[1]
                if not run.withdrawn:
                    self._begin(run)

    async def _give_back_late(self) -> None:
        """Hand back what has waited too long for its start: elsewhere there may be room."""
        while True:
            await asyncio.sleep(UNSTARTED_SECONDS_MAX / 4)
            before = self._loop.time() - UNSTARTED_SECONDS_MAX
            for queue in self._queues.values():
                late = []
                while queue and queue[0][0] < before:
                    late.append(queue.popleft()[1])
                self._give_back([run for run in late if not run.withdrawn])

    # ---- out of time, withdrawn, draining ----

    def _expire(self, run: Run) -> None:
        """End a task whose time is up. One in a thread can only be told."""
        run.out_of_time = True
        self._interrupt(run)

    def _interrupt(self, run: Run) -> None:
        if run.flow is not None:
            run.flow.cancelled.set()
        if isinstance(run.task, asyncio.Task):
            self._loop.call_soon(run.task.cancel)  # in its turn: cancelled before it has begun, it would never come to its end

    def _withdraw(self, ticket: int) -> None:
        run = self._runs.get(ticket)
        if run is None:
            self._freed.append(ticket)
            self._flush_soon()
            return
        run.withdrawn = True
        if not run.started or run.record is not None:
            self._free(run)
        elif isinstance(run.task, asyncio.Task) and run.flow is not None and run.flow.cancelled.is_watched:
            run.flow.cancelled.set()  # who watches is let to end by itself
            self._loop.call_later(WATCHED_SECONDS_MAX, run.task.cancel)
        else:
            self._interrupt(run)

    def _free(self, run: Run) -> None:
        ticket = run.assignment.ticket
        if self._runs.get(ticket) is run:
            del self._runs[ticket]
        self._freed.append(ticket)
        self._flush_soon()

    def _drain(self) -> None:
        self._draining = True
        for queue in self._queues.values():
            self._give_back([run for _, run, _ in queue if not run.withdrawn])
            queue.clear()

    def _give_back(self, runs: list[Run]) -> None:
        for run in runs:
            self._runs.pop(run.assignment.ticket, None)
            self._unstarted.append(run.assignment.ticket)
        if runs:
            self._flush_soon()

    # ---- telling ----

    def _report(self, run: Run, record: Record, form: GraphForm | None = None) -> None:
        run.record, run.next_input, record.next_input = record, record.next_input, None
        run.step = run.flow = run.task = run.timer = None
        self._send_report(Report(run.assignment.ticket, record, form))

    def _send_report(self, report: Report) -> None:
        self._reports.append(report)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send what this turn of the loop brings in one message of each kind."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._reports:
            items, self._reports = self._reports, []
            self._channel.send(Reports(items))
        if self._freed:
            freed, self._freed = self._freed, []
            self._channel.send(Freed(freed))
        if self._unstarted:
            unstarted, self._unstarted = self._unstarted, []
            self._channel.send(Unstarted(unstarted))

    # ---- the database's time ----

    def _see_clock(self, claimed_at: int) -> None:
        """Take the latest time that the database is known to have shown, as of its arrival here."""
        now = self._loop.time()
        if claimed_at > self._now_micros():
            self._clock_at = claimed_at, now

    def _now_micros(self) -> int:
        at, seen = self._clock_at
        return at + int((self._loop.time() - seen) * 1_000_000)


def _call(task: TaskFunction, flow: Flow) -> BaseException | None:
    """Run a sync task in its thread; what it raises is returned, since a future cannot hold every exception."""
    try:
        task.call(flow)
    except BaseException as error:
        return error
    return None


def _as_task_error(run: Run, error: BaseException | None) -> BaseException | None:
    """Read what a task ended with as an error of its own: a cancelled coroutine, and whatever else is no `Exception`."""
    if isinstance(error, asyncio.CancelledError) and run.out_of_time:
        return TimeBudgetExceeded(f"task {run.assignment.task!r} has used up its time budget of {run.budget:g} s")
    rest = error
    if isinstance(error, BaseExceptionGroup):
        rest = error.split(Parked)[1]
    if rest is None or isinstance(rest, Exception | Parked | SystemExit | GeneratorExit):
        return error
    said = str(rest) or ("nobody had cancelled it" if isinstance(rest, asyncio.CancelledError) else "")
    return TaskError(f"task {run.assignment.task!r} ended with {type(rest).__name__}" + (f": {said}" if said else ""))
