"""The two ends between a dispatcher and an executor that live in one process: the interface of the ring, without its bytes.

An end sends messages in order and receives all that have arrived at once. Owns no loop and no task. `send` never waits:
what an executor may be sent is bounded by its slots, and what it may send by what it holds.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

Sent_contra = TypeVar("Sent_contra", contravariant=True)
Received = TypeVar("Received")


class ChannelClosed(Exception):
    """The other end is gone, or this one was closed; what had arrived before has been received."""


class Channel(Protocol[Sent_contra, Received]):
    """One end. One task at a time receives."""

    def send(self, message: Sent_contra) -> None:
        """Send a message. To an end that is closed: nothing happens; who receives will know."""
        ...

    async def receive(self) -> list[Received]:
        """Wait until messages are there and return them all, in order. Raises `ChannelClosed` once there will be no more."""
        ...

    def close(self) -> None: ...


A = TypeVar("A")
B = TypeVar("B")


class MemoryEnd(Generic[A, B]):
    """One end of `memory_pair`: sends A, receives B."""

    def __init__(self) -> None:
        self._arrived: list[B] = []
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._peer: MemoryEnd[B, A]

    def send(self, message: A) -> None:
        self._peer._accept(message)

    async def receive(self) -> list[B]:
        while not self._arrived:
            if self._closed:
                raise ChannelClosed
            assert self._waiter is None, "one task at a time receives"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        self._shut()
        self._peer._shut()

    def _accept(self, message: B) -> None:
        if not self._closed:
            self._arrived.append(message)
            self._wake()

    def _shut(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def memory_pair() -> tuple[MemoryEnd[A, B], MemoryEnd[B, A]]:
    """Return two ends that are joined: what one sends the other receives."""
    one: MemoryEnd[A, B] = MemoryEnd()
    other: MemoryEnd[B, A] = MemoryEnd()
    one._peer, other._peer = other, one
    return one, other
