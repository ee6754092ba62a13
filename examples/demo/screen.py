"""What the demo shows while it runs: a live table, and above it a line for each thing that happens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from examples.demo.scenario import Part

TELL_SECONDS = 5
COLOURS = {"completed": "green", "failed": "red", "interrupted": "yellow", "running": "cyan"}


class Count(msgspec.Struct, frozen=True):
    """How many steps of a task are in a status."""

    workflow: str
    task: str
    status: str
    steps: int


class Screen:
    """A `rich` live display. What is no terminal gets lines alone, one every few seconds for the progress."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._began = self._last_told = time.monotonic()
        self._live = Live(console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line, with the seconds since the demo began."""
        self.console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/dim]  {text}", style=style, soft_wrap=True)

    def show(self, counts: Iterable[Count], statuses: dict[str, str], parts: list[Part], tasks: list[str]) -> None:
        """Draw the table. `statuses` are those of the flows, by key; `tasks` the audit's, in the order of its graph."""
        if self.console.is_terminal:
            self._live.update(Group(audit_table(counts, tasks), flow_table(statuses, parts)), refresh=True)
        elif time.monotonic() > self._last_told + TELL_SECONDS:
            self._last_told = time.monotonic()
            self.say(", ".join(f"{count.steps} {count.task} {count.status}" for count in counts if count.workflow == "audit"))


def audit_table(counts: Iterable[Count], tasks: list[str]) -> RenderableType:
    by_task: dict[str, Counter[str]] = {task: Counter() for task in tasks}
    for count in counts:
        if count.workflow == "audit":
            by_task[count.task][count.status] += count.steps
    table = Table(title="the audit's steps", title_justify="left", box=None)
    for heading in ("task", "", "done", "running", "waiting"):
        table.add_column(heading, justify="left" if heading in {"task", ""} else "right")
    for task, steps in by_task.items():
        done = steps["completed"] + steps["failed"]
        bar = ProgressBar(total=max(steps.total(), 1), completed=done, width=40)
        table.add_row(task, bar, str(done), str(steps["running"]), str(steps.total() - done - steps["running"]))
    return table


def flow_table(statuses: dict[str, str], parts: list[Part]) -> RenderableType:
    table = Table(title="flows", title_justify="left", box=None)
    for heading in ("workflow", "", "status"):
        table.add_column(heading)
    for part in parts:
        status = statuses.get(part.key, "")
        table.add_row(part.workflow, part.title, f"[{COLOURS.get(status, 'white')}]{status}")
    return table
