"""No test of processes leaves a descriptor open, and the processes they kill come from one that is forked again and again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.procs.nursery import Nursery
from tests.procs.rig import open_descriptors


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(autouse=True)
def _no_descriptor_stays_open(request: pytest.FixtureRequest) -> Iterator[None]:
    if "nursery" in request.fixturenames:
        request.getfixturevalue("nursery")
    before = open_descriptors()
    yield
    assert open_descriptors() == before
