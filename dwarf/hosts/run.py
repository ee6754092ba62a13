"""One run of a task over a `Flow`, turned into the `Effect` that `dwarf.decide` takes.

`settle` is the rule, pure; `run_sync` and `run_async` only call the task. What is no failure of the task (a keyboard
interrupt, a cancelled asyncio task) is not turned into anything: it is raised on. An exit that a task asks for is its error.
"""

from __future__ import annotations

from dwarf.effect import Effect, engine_failure, failure_of
from dwarf.flow import Flow, Parked
from dwarf.hosts.functions import TaskFunction
from dwarf.retry import Retry


def run_sync(task: TaskFunction, flow: Flow) -> Effect:
    """Run a task that is not async, in this thread."""
    try:
        task.call(flow)
    except BaseException as error:
        return settle(flow, error, retry=task.retry)
    return settle(flow, None)


async def run_async(task: TaskFunction, flow: Flow) -> Effect:
    """Run a task on this loop; one that is not async blocks it meanwhile."""
    try:
        pending = task.call(flow)
        if pending is not None:
            await pending
    except BaseException as error:
        return settle(flow, error, retry=task.retry)
    return settle(flow, None)


def settle(flow: Flow, error: BaseException | None, *, retry: Retry | None = None) -> Effect:
    """Return what a run did that ended with `error`, or returned (None). `retry` is the task's policy.

    A task that misused a signal fails, whatever it made of the error it got. One that armed a wait and returned all the
    same waits. An exception that the policy covers becomes another attempt while that is granted: it keeps the writes
    and the sleep of this one, and drops its goto and its wait.
    """
    if error is None:
        return flow.effect()
    error = _without_parks(error)
    if error is None or isinstance(error, Parked):
        effect = flow.effect()
        if effect.park is None and effect.failure is None:
            effect = Effect(failure=engine_failure(f"task {flow.task_name!r} raised Parked without waiting for anything"))
        return effect
    if not isinstance(error, Exception | SystemExit | GeneratorExit):
        raise error
    if retry is not None and retry.covers(error) and flow.retry_by(retry.backoff):
        effect = flow.effect()
        if effect.failure is None:
            return Effect(effect.changes, retry=effect.retry, sleep=effect.sleep)
        return effect
    return flow.effect(failure_of(error))


def _without_parks(error: BaseException) -> BaseException | None:
    """Take every `Parked` out of a group (what an asyncio task group raises); None when there was nothing else in it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    parks, others = error.split(Parked)
    return error if parks is None else others
