"""`flow.cancelled` while a task runs: an event for tasks on the loop, and one for tasks in a thread.

Both are set when the step is cancelled, taken away or out of time. What they wait on is made when a task first waits: most
never do.
"""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from dwarf.flow import Flag


class LoopFlag(Flag):
    """For async tasks: `await flow.cancelled.wait()`. `is_watched` once the task has looked."""

    __slots__ = ("_event", "is_watched")

    def __init__(self) -> None:
        super().__init__()
        self._event: asyncio.Event | None = None
        self.is_watched = False

    def is_set(self) -> bool:
        self.is_watched = True
        return super().is_set()

    def set(self) -> None:
        super().set()
        if self._event is not None:
            self._event.set()

    async def wait(self) -> bool:
        """Wait until the flag is set."""
        if not self.is_set():
            self._event = self._event or asyncio.Event()
            await self._event.wait()
        return True


class ThreadFlag(Flag):
    """For tasks in a thread: `flow.cancelled.wait(timeout)`, as on a `threading.Event`.

    Whether the task watches it makes no difference: a thread cannot be stopped, and what is done for it afterwards may be.
    """

    __slots__ = ("_event",)
    is_watched: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._event = threading.Event()

    def set(self) -> None:
        super().set()
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most `timeout` seconds; tell whether it is."""
        return self._event.wait(timeout)
