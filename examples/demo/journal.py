"""A journal of what was really run: a line when a run of a task begins and a line when it ends, kept outside the database.

The engine knows nothing of it. So it shows what the engine's own history cannot: which steps ran more than once, and why.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dwarf import App, Flow
from dwarf.hosts.functions import TaskFunction

DONE = "done"


class Run(msgspec.Struct):
    """One run of a step. `ended` is "done", the name of what it raised, or empty: it was cut off."""

    step: str
    task: str
    attempt: int
    pid: int
    ended: str = ""


class Journal:
    """The file that all workers append to. A line written before a process is killed stays written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @contextmanager
    def run(self, flow: Flow) -> Iterator[None]:
        """Note that a run of a task begins, and how it ends."""
        run = Run(flow.step_key, flow.task_name, flow.attempt, os.getpid())
        self._write(run)
        try:
            yield
        except BaseException as error:
            run.ended = type(error).__name__
            raise
        else:
            run.ended = DONE
        finally:
            self._write(run)

    def _write(self, run: Run) -> None:
        os.write(self._file, msgspec.json.encode(run) + b"\n")  # one call, so that lines of other threads do not mix with it


def journalled(task: TaskFunction, journal: Journal) -> Callable[[Flow], Awaitable[None] | None]:
    """Return a task that does the same and has its runs noted."""

    def run(flow: Flow) -> None:
        with journal.run(flow):
            task.call(flow)

    async def run_async(flow: Flow) -> None:
        with journal.run(flow):
            pending = task.call(flow)
            if pending is not None:
                await pending

    return run_async if task.is_async else run


async def combine(apps: list[App], journal: Journal) -> App:
    """Return one App with the graphs and tasks of several, all of them journalled."""
    whole = App()
    for app in apps:
        for url in app.graphs:
            whole.add_graph(url, await app.load_graph(url))
        for url, task in app.tasks.items():
            whole.task(url, retry=task.retry)(journalled(task, journal))
    return whole


def read(path: Path) -> dict[str, list[Run]]:
    """Return the runs of every step, in the order in which they began."""
    runs: dict[str, list[Run]] = {}
    for line in path.read_bytes().splitlines():
        noted = msgspec.json.decode(line, type=Run)
        of_step = runs.setdefault(noted.step, [])
        begun = [run for run in of_step if (run.pid, run.attempt, run.ended) == (noted.pid, noted.attempt, "")]
        if noted.ended and begun:
            begun[0].ended = noted.ended
        else:
            of_step.append(noted)
    return runs


def why_again(run: Run, later: Run, killed: int) -> str:
    """Return why a step ran once more after `run`, or nothing: then it should not have."""
    if run.ended == "Parked":
        return "it waited for an answer"
    if later.attempt > run.attempt:
        return "it asked for another attempt"
    if run.pid == killed:
        return "its result was not committed" if run.ended else "it was cut off"
    return ""
