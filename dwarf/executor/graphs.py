"""The graphs an executor knows: those it was sent, by number, and those its host has for children, as they are stored."""

from __future__ import annotations

import asyncio

from dwarf.graph import Graph
from dwarf.hosts.host import Host, loading_baggage
from dwarf.new_flow import freeze
from dwarf.state import State
from dwarf.wire import GraphForm


class Graphs:
    """Graphs by number and by URL."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_id: dict[int, Graph | Exception] = {}

    def add(self, form: GraphForm) -> None:
        if form.graph_id not in self._by_id:
            try:
                self._by_id[form.graph_id] = Graph.from_json(form.definition)
            except Exception as error:  # of a newer version, or damaged: every step of it will say so
                self._by_id[form.graph_id] = error

    def __getitem__(self, graph_id: int) -> Graph:
        """Return a graph. Raises why it cannot be read."""
        graph = self._by_id[graph_id]
        if isinstance(graph, Exception):
            raise graph
        return graph

    async def of_child(self, url: str, baggage: State, *, seconds: float) -> GraphForm:
        """Ask the host for a child's graph and return it as it is stored. Raises what the host raises, and `TimeoutError`."""
        token = loading_baggage.set(baggage)
        try:
            async with asyncio.timeout(seconds):
                graph = await self._host.load_graph(url)
        finally:
            loading_baggage.reset(token)
        frozen = freeze(url, graph)
        return GraphForm(0, frozen.hash, frozen.name, frozen.entry_task, frozen.definition)
