"""Clients over a real database, and flows that go on only when a test plays them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.engine.stage import Stage

MakeStage = Callable[..., Stage]


@pytest.fixture
def stage(pg: Server, request: pytest.FixtureRequest) -> Iterator[MakeStage]:
    """Open stages: `stage(graphs, tasks, shards=1)`; each has databases of its own."""
    with ExitStack() as stack:

        def opened(*args: Any, shards: int = 1, **settings: Any) -> Stage:
            dsns = [stack.enter_context(fresh_database(pg, request.node.name)) for _ in range(shards)]
            return stack.enter_context(Stage(dsns, *args, **settings))

        yield opened
