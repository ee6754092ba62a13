"""A process killed with SIGKILL at every point and with every kind of record: another one finishes its flows as if nothing had been."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dwarf import faults
from tests.engine.victims import killed_and_finished

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
FLOWS = 3
COUNTS = (1, 2, 5, 9, 17, 33) if HEAVY else (4,)
COUNT_MAX = {"create.committed": 1}  # of one engine that creates once
KINDS = {
    "advance": ("ADVANCE", "Begin", 1),
    "advance in a branch": ("ADVANCE", "Item", 3),
    "fan-out": ("FAN_OUT", "Plan", 1),
    "first inner fan-out": ("FAN_OUT", "Group", 1),
    "last inner fan-out": ("FAN_OUT", "Group", 2),
    "inner arrival": ("ARRIVE", "Polish", 1),
    "last inner arrival": ("ARRIVE", "Polish", 5),
    "outer arrival": ("ARRIVE", "Merge", 1),
    "last outer arrival": ("ARRIVE", "Merge", 2),
    "retry": ("RETRY", "Flaky", 1),
    "second retry": ("RETRY", "Flaky", 2),
    "sleep": ("ADVANCE", "Nap", 1),
    "interrupt": ("PARK", "Ask", 1),
    "child": ("PARK", "Call", 1),
    "end of the child": ("CLOSE", "Return", 1),
    "end": ("CLOSE", "Finish", 1),
}


@pytest.mark.row("G2", "M13")
@pytest.mark.parametrize("point", faults.POINTS)
def test_a_process_dies_at_a_point(point: str, tmp_path: Path) -> None:
    counts = sorted({min(count, COUNT_MAX.get(point, count)) for count in COUNTS})

    async def all_counts() -> None:
        async with asyncio.TaskGroup() as group:
            for count in counts:
                group.create_task(killed_and_finished(f"{point}_{count}", tmp_path, FLOWS, f"{point}:{count}"))

    asyncio.run(all_counts())


@pytest.mark.row("G2", "M13")
@pytest.mark.parametrize("when", ["record.sent", "record.committed"])
def test_a_process_dies_with_a_record_of_each_kind(when: str, tmp_path: Path) -> None:
    """One flow, so that it is known which of its records it dies with. By default each kind with one of the two points."""
    faults_of_mine = list(KINDS.values()) if HEAVY else list(KINDS.values())[when == "record.sent" :: 2]

    async def all_kinds() -> None:
        turns = asyncio.Semaphore(4)

        async def one(number: int, kind: str, task: str, count: int) -> None:
            async with turns:
                await killed_and_finished(f"{when}_{number}", tmp_path, 1, (when, kind, task, str(count)))

        async with asyncio.TaskGroup() as group:
            for number, fault in enumerate(faults_of_mine):
                group.create_task(one(number, *fault))

    asyncio.run(all_kinds())
