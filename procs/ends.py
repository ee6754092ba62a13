"""What the ends of a ring and of a stream have in common: the `Channel` of `dwarf.channel`, with bytes below it.

`send` turns a message into bytes at once and gathers what one turn of the loop sends; at the turn's end it is written as one
frame. What finds no room waits here, in order, until the other end has taken something. `receive` takes from the ring or the
stream only when it is called: who does not receive makes the sender wait, whose own memory then fills up to `PARKED_BYTES_MAX`.

An end is over, for good, when it is closed, when the other process closes its own or dies, or when something comes that
cannot be read (`ChannelBroken`). What had been announced until then is still received, then `ChannelClosed` is raised. What was
parked is lost: `flushed` waits until nothing is.

A fork does not own the ends of its parent: they are closed in it, so that nobody takes it for the parent.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dwarf.channel import ChannelClosed
from dwarf.errors import DwarfError

from .frames import HEAD_BYTES, LENGTH_BYTES, Frame, frame_of

MESSAGE_BYTES_MAX = 1 << 30
RECEIVE_BYTES = 1 << 20  # what one call returns, and the frame that goes beyond it
PARKED_BYTES_MAX = 2 << 30  # twice the largest message: an end that takes nothing for so long is as good as dead

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class MessageTooLarge(DwarfError):
    """A message is larger than the two ends have agreed to carry; nothing was sent."""

    status = 413


class ChannelBroken(ChannelClosed):
    """The channel was closed for a fault of the other end or of the system, which is the cause of this error."""


class End(ABC, Generic[Sent, Received]):
    """One end: sends `Sent`, receives `Received`. Made inside the loop that drives it; one task at a time receives."""

    def __init__(
        self, *, encode: Callable[[Sent], bytes], decode: Callable[[bytes], Received], message_bytes_max: int, frame_bytes: int
    ) -> None:
        self.failure: Exception | None = None  # why the channel broke
        self._encode, self._decode = encode, decode
        self._message_bytes_max = message_bytes_max
        self._gather_bytes_max = min(frame_bytes - HEAD_BYTES, message_bytes_max)  # lengths included
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._flushing = False
        self._parked: deque[Frame] = deque()
        self._parked_bytes = 0
        self._lost = False  # something was sent that never left
        self._drained: list[Received] = []  # what had been announced when the end was over
        self._waiter: asyncio.Future[None] | None = None
        self._flushed: list[asyncio.Future[None]] = []
        _open_ends.add(self)

    # ---- the channel ----

    def send(self, message: Sent) -> None:
        """Send a message. Raises `MessageTooLarge`, and what the encoder raises."""
        if self._closed:
            return
        encoded = self._encode(message)
        total = self._gathered_bytes + LENGTH_BYTES + len(encoded)
        if total > self._gather_bytes_max:
            if len(encoded) > self._message_bytes_max:
                raise MessageTooLarge(f"a message of {len(encoded)} bytes, at most {self._message_bytes_max} may be sent")
            self._flush_gathered()
            if self._closed:
                return
            total = LENGTH_BYTES + len(encoded)
        self._gathered.append(encoded)
        self._gathered_bytes = total
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def receive(self) -> list[Received]:
        while True:
            messages = self._drained if self._closed else self._take(RECEIVE_BYTES)
            if messages:
                self._drained = []
                return messages
            if self._closed:
                raise self._ended()
            await self._arrival()

    def close(self) -> None:
        """Close the end, after sending what there is room for. Doing it again does nothing."""
        if not self._closed:
            self._flush_gathered()
            self._shut()

    # ---- what a channel in memory does not have ----

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def parked_bytes(self) -> int:
        """Bytes that wait because the other end does not take what it has."""
        return self._parked_bytes

    async def flushed(self) -> None:
        """Wait until all that was sent has left this process. Raises `ChannelClosed` when some of it never will."""
        if not self._closed:
            self._flush_gathered()
        while not self._closed and not self._is_idle():
            waiter = self._loop.create_future()
            self._flushed.append(waiter)
            await waiter
        if self._lost or self.failure is not None:
            raise self._ended()

    # ---- sending ----

    def _flush(self) -> None:
        self._flushing = False
        if not self._closed:
            self._flush_gathered()

    def _flush_gathered(self) -> None:
        """Write what was gathered as a frame, or park it."""
        if not self._gathered:
            return
        messages, self._gathered = self._gathered, []
        frame = frame_of(messages, self._gathered_bytes - LENGTH_BYTES * len(messages))
        self._gathered_bytes = 0
        try:
            if self._parked or not self._write(frame):
                self._park(frame)
            self._announce()
        except Exception as error:
            self._break(error)

    def _park(self, frame: Frame) -> None:
        self._parked.append(frame)
        self._parked_bytes += frame.size
        if self._parked_bytes > PARKED_BYTES_MAX:
            raise BufferError(f"{self._parked_bytes} bytes wait to be taken by the other end, at most {PARKED_BYTES_MAX} may")
        if len(self._parked) == 1:
            self._watch_room()

    def _pump(self) -> None:
        """Write what is parked, as far as there is room, now that there may be some."""
        while self._parked and self._write(self._parked[0]):
            self._parked_bytes -= self._parked.popleft().size
        self._announce()
        if self._is_idle():
            self._unwatch_room()
            self._wake_flushed()

    def _is_idle(self) -> bool:
        """Tell whether nothing waits for room."""
        return not self._parked

    # ---- receiving ----

    def _take(self, bytes_max: int) -> list[Received]:
        """Take and decode what is there. When that breaks off, the end is over."""
        raw: list[bytes] = []
        failure: Exception | None = None
        try:
            self._take_raw(raw, bytes_max)
        except Exception as error:
            failure = error
        try:
            messages = list(map(self._decode, raw))
        except Exception:
            messages, failure = self._decode_up_to_a_fault(raw)
        if failure is not None:
            self.failure = failure
            self._let_go()
        return messages

    def _decode_up_to_a_fault(self, raw: list[bytes]) -> tuple[list[Received], Exception | None]:
        messages: list[Received] = []
        try:
            for encoded in raw:
                messages.append(self._decode(encoded))  # noqa: PERF401 - what was decoded before the fault is kept
        except Exception as error:
            return messages, error
        return messages, None

    async def _arrival(self) -> None:
        assert self._waiter is None, "one task at a time receives"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake_flushed(self) -> None:
        waiters, self._flushed = self._flushed, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---- the end of it ----

    def _shut(self) -> None:
        """Take what has been announced, then let go of everything."""
        if not self._closed:
            self._hear_last()
            self._drained = self._take(sys.maxsize)
            self._let_go()

    def _break(self, error: Exception) -> None:
        """End it for a fault that is not in what was received."""
        if not self._closed:
            self._shut()
            self.failure = error  # what it led to is not told

    def _let_go(self) -> None:
        if self._closed:
            return
        self._closed = True
        _open_ends.discard(self)
        self._lost = bool(self._gathered) or not self._is_idle()
        self._gathered.clear()
        self._parked.clear()
        self._parked_bytes = 0
        self._unwatch()
        self._close_descriptors()
        self._wake()
        self._wake_flushed()

    def _ended(self) -> ChannelClosed:
        if self.failure is None:
            return ChannelClosed("the other end is gone, or this one was closed")
        broken = ChannelBroken(f"the channel was closed: {self.failure}")
        broken.__cause__ = self.failure
        return broken

    def _abandon(self) -> None:
        """Close the descriptors in a fork, and nothing else: the loop's own are shared with the parent."""
        self._closed = True
        self._close_descriptors()

    # ---- what rings and streams do differently ----

    @abstractmethod
    def _write(self, frame: Frame) -> bool:
        """Write a frame; without room return False and do nothing."""

    @abstractmethod
    def _announce(self) -> None:
        """Let the other end see what was written."""

    @abstractmethod
    def _watch_room(self) -> None:
        """Call `_pump` when there may be room, until `_unwatch_room`."""

    @abstractmethod
    def _unwatch_room(self) -> None: ...

    @abstractmethod
    def _take_raw(self, into: list[bytes], bytes_max: int) -> None:
        """Take messages that are there, not many more than `bytes_max` bytes. What comes before a fault is in `into` when it raises."""

    @abstractmethod
    def _hear_last(self) -> None:
        """Learn of everything that the other end has made known so far, however much that is."""

    @abstractmethod
    def _unwatch(self) -> None:
        """Take every descriptor out of the loop."""

    @abstractmethod
    def _close_descriptors(self) -> None: ...


_open_ends: weakref.WeakSet[End[Any, Any]] = weakref.WeakSet()


def _abandon_all() -> None:
    for end in list(_open_ends):
        end._abandon()
    _open_ends.clear()


os.register_at_fork(after_in_child=_abandon_all)
