"""What the tests of rings share: both loops, pairs whose two ends are in this process, codecs, descriptors that are open."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import uvloop

from dwarf.channel import ChannelClosed
from dwarf.procs.pairs import Kind, create_pair, open_end

TEST_SECONDS_MAX = 60.0
FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
RING_BYTES = 4096
uvloop.new_event_loop().close()  # the first one opens a pipe for good

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

both_kinds = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())


def play(loop: str, test: Callable[..., Coroutine[Any, Any, None]], *args: Any, **kwargs: Any) -> None:
    """Run an async test on a loop of the named kind; one that hangs fails."""

    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS_MAX):
            await test(*args, **kwargs)

    with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
        runner.run(bounded())


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make two tests of an async one, one for each loop."""

    @functools.wraps(test)
    def run(loop: str, **kwargs: Any) -> None:
        play(loop, test, **kwargs)

    own = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    setattr(run, "__signature__", own.replace(parameters=[*own.parameters.values(), loop]))  # noqa: B010 - mypy knows of none
    marked: Callable[..., None] = pytest.mark.parametrize("loop", list(FACTORIES))(run)
    return marked


def joined(
    kind: Kind = Kind.RING, *, encode: Any = bytes, decode: Any = bytes, ring_bytes: int = RING_BYTES, message_bytes_max: int = 1 << 20
) -> tuple[Any, Any]:
    """Return two ends in this process that are joined."""
    pair = create_pair(kind, ring_bytes=ring_bytes, message_bytes_max=message_bytes_max)
    codec = {"encode": encode, "decode": decode, "message_bytes_max": message_bytes_max}
    return open_end(pair.near, **codec), open_end(pair.far, **codec)


async def receive_all(end: Any) -> list[Any]:
    """Receive until there is no more."""
    received: list[Any] = []
    try:
        while True:
            received += await end.receive()
    except ChannelClosed:
        return received


async def receive(end: Any, count: int) -> list[Any]:
    """Receive so many messages, and none beyond."""
    received: list[Any] = []
    while len(received) < count:
        received += await end.receive()
    assert len(received) == count
    return received


async def turns(count: int = 20) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(is_so: Callable[[], Any]) -> None:
    """Let the loop turn until something is so; the deadline of the test bounds it."""
    while not is_so():  # noqa: ASYNC110 - what it waits for tells nobody
        await asyncio.sleep(0)


def open_descriptors() -> set[tuple[int, str]]:
    """The descriptors of this process that lead to no file, and what they lead to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith("/") or target.startswith("/memfd:"):
                found.add((int(name), target))
    return found
