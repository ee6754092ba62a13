"""The pytest fixture `dwarf_engine`. Loaded by pytest wherever this package is installed, so it imports nothing of it before use.

async def test_checkout(dwarf_engine):
    async with dwarf_engine(app) as engine:
        key, outcome = await engine.run("checkout", {"lines": []})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dwarf.testing.engine import EngineUnderTest


@pytest.fixture
def dwarf_engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., EngineUnderTest]]:
    """Make engines for a test: `dwarf_engine(app, **settings)`, to be entered with `async with`.

    Each has databases of its own, named for the test; whatever is left of them is dropped when the test ends.
    """
    from dwarf.testing.engine import EngineUnderTest

    made: list[EngineUnderTest] = []

    def make(app: Any, name: str = request.node.name, **settings: Any) -> EngineUnderTest:
        made.append(EngineUnderTest(app, name, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.drop()
