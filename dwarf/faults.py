"""Named points of the engine at which a test can make this process fail: raise, wait, or die.

    with faults.armed("record.committed", die): ...          in this process
    DWARF_FAULT=record.committed:3 python worker.py          the process kills itself when it comes to the point a third time

Nothing is armed unless somebody arms it; a point that is passed then costs one look at an empty dict. The points, and where
a process that dies there leaves the database:

    claim.sent          before a claim: nothing has happened
    claim.taken         rows are running under this session, and no executor has them
    assign.sent         an executor has them
    report.taken        a task has ended, its outcome is in memory alone
    record.sent         before the record call: as above
    record.committed    the outcome is stored; nobody here has been told
    create.committed    flows exist, born claimed or due; their creator has not been told
    renew.sent          before a session is renewed
    sweep.sent          before others are judged
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

VARIABLE = "DWARF_FAULT"
POINTS = (
    "claim.sent", "claim.taken", "assign.sent", "report.taken", "record.sent", "record.committed", "create.committed", "renew.sent",
    "sweep.sent",
)  # fmt: skip

Action = Callable[[object], None]
_armed: dict[str, Action] = {}


def reach(point: str, what: object = None) -> None:
    """Pass a point with `what` is at hand there. Does what a test has armed it with."""
    if _armed:
        action = _armed.get(point)
        if action is not None:
            action(what)


def arm(point: str, action: Action) -> None:
    assert point in POINTS, point
    _armed[point] = action


def disarm(point: str) -> None:
    _armed.pop(point, None)


@contextmanager
def armed(point: str, action: Action) -> Iterator[None]:
    """Arm a point for a block."""
    arm(point, action)
    try:
        yield
    finally:
        disarm(point)


def die(_: object) -> None:
    """Kill this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class Times:
    """An action that acts when the point is passed for the `count`th time, and never again."""

    def __init__(self, count: int, action: Action) -> None:
        self._left, self._action = count, action

    def __call__(self, what: object) -> None:
        self._left -= 1
        if self._left == 0:
            self._action(what)


def arm_from_environment() -> None:
    """Arm what the environment asks for: a point, a colon, and at which pass of it the process dies."""
    asked = os.environ.get(VARIABLE)
    if asked:
        point, _, count = asked.partition(":")
        arm(point, Times(int(count or 1), die))
