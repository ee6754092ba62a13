"""`Host`: what an engine needs of whoever keeps the graphs and runs the tasks."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from dwarf.flow import Flow
from dwarf.graph import Graph
from dwarf.state import State

# While a graph is being loaded for a flow: that flow's baggage, as its tasks will read it. Empty at all other times.
loading_baggage: ContextVar[State] = ContextVar("loading_baggage", default=State())  # noqa: B039 - a State never changes


@runtime_checkable
class Host(Protocol):
    """Resolves graphs and tasks by their URLs."""

    async def load_graph(self, url: str) -> Graph:
        """Return the graph of this URL. Raises `NotFound` when there is none."""
        ...

    async def execute_task(self, url: str, flow: Flow) -> None:
        """Run the task once, over `flow`, which collects what it does.

        What it raises fails the step; `Parked` leaves a task that waits. Raises `NotFound` when there is no such task.
        """
        ...
