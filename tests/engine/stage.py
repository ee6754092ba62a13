"""A client and a player on one event loop, in one thread: nothing moves but what a test asks for.

A flow goes on only inside `play`, a waiter only inside `do`. So a test decides what happens before what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from dwarf.client import Client
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.hosts.app import App
from dwarf.keys import FlowKey
from dwarf.shards import Shard
from tests.sql.player import Player

T = TypeVar("T")
Tasks = Mapping[str, Callable[[Flow], Any]]

HANG_SECONDS = 120  # only turns a hang into a failure
CHILD_TOKEN = "0" * 16  # of all children that a player starts


def line(*tasks: str, name: str = "line") -> Graph:
    return Graph(name).add_transition_chain(*tasks, END)


class Stage:
    """A client on one or more shards, and a player on each. The client's host is an App with the graphs unless `host` says otherwise."""

    def __init__(self, dsns: list[str], graphs: Mapping[str, Graph], tasks: Tasks, **settings: Any) -> None:
        self.players = [Player(dsn, graphs, tasks) for dsn in dsns]
        self.runner = self.players[0].runner
        for player in self.players:
            player.one("select dwarf.ensure_partitions(1)")
        self.shards = [Shard(index, dsn) for index, dsn in enumerate(dsns, start=1)]
        self.app = App()
        for url, graph in graphs.items():
            self.app.add_graph(url, graph)
        self._clients: list[Client] = []
        self.client = self.open(**{"host": self.app, **settings})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            self.do(client.close())
        for player in reversed(self.players):
            player.close()

    @property
    def player(self) -> Player:
        return self.players[0]

    def open(self, **settings: Any) -> Client:
        """Open another client of the same shards."""
        client = Client(settings.pop("shards", self.shards), **settings)
        self._clients.append(client)
        self.do(client.start())
        return client

    def do(self, call: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
        """Let the loop run until a call, or a task spawned before, is done."""

        async def done() -> T:
            async with asyncio.timeout(HANG_SECONDS):
                return await call

        return self.runner.run(done())

    def spawn(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a call, and let the loop run until it waits for the database to change."""
        task = self.runner.get_loop().create_task(call)
        self.turn()
        return task

    def turn(self, seconds: float = 0.02) -> None:
        """Let the loop run for a moment. What is awaited must not depend on how long that is."""
        self.do(asyncio.sleep(seconds))

    def turn_until(self, is_so: Callable[[], object]) -> None:
        """Let the loop run until something is so."""

        async def seen() -> None:
            while not is_so():  # noqa: ASYNC110 - what it waits for may be in the database
                await asyncio.sleep(0.01)

        self.do(seen())

    def play(self) -> None:
        """Run every flow as far as it goes."""
        for player in self.players:
            player.run()

    def register(self) -> None:
        """Register the graphs under their URLs, as an engine does when it starts."""
        for player in self.players:
            player.do(player.store.register_workflows(player.graph_ids))

    # What is there

    def row(self, key: str, table: str = "live") -> Any:
        parsed = FlowKey.parse(key)
        return self.players[parsed.shard - 1].one(f"select * from dwarf.{table} where flow_id = %s", parsed.flow_id)

    def count(self, table: str = "live") -> int:
        return sum(int(player.one(f"select count(*) as n from dwarf.{table}").n) for player in self.players)

    def child(self, key: str, place: int = 0) -> str:
        """The key of a child of a root, in the order of their creation."""
        root = FlowKey.parse(key)
        player = self.players[root.shard - 1]
        rows = player.all(
            "select flow_id from (select flow_id, root_id from dwarf.live union all select flow_id, root_id from dwarf.flows) f"
            " where root_id = %s and flow_id <> root_id order by flow_id",
            root.flow_id,
        )
        return str(FlowKey(root.shard, rows[place].flow_id, CHILD_TOKEN))
