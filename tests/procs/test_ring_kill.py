"""A ring between two processes of which one is killed: at every line of a write, at every line of a read, at any moment.

What the other then has is a beginning of what was sent, in order, every message whole; after it the channel is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import Any

import pytest

from dwarf.channel import ChannelClosed
from dwarf.procs.pairs import Kind, Pair, create_pair, open_end
from tests.procs.nursery import RING_BYTES, Death, Nursery, Order, drawn, messages
from tests.procs.rig import both_kinds, play, receive_all

SENT = list(itertools.chain.from_iterable(messages()))
MESSAGE_BYTES_MAX = 1 << 20


def pair_of(kind: Kind) -> Pair:
    return create_pair(kind, ring_bytes=RING_BYTES, message_bytes_max=MESSAGE_BYTES_MAX)


def opened(pair: Pair) -> Any:
    return open_end(pair.near, encode=bytes, decode=bytes, message_bytes_max=MESSAGE_BYTES_MAX)


async def take_from_a_writer(nursery: Nursery, kind: Kind, die_at: int) -> Death:
    pair = pair_of(kind)
    nursery.bear(pair.far, Order("writes", die_at=die_at))
    end = opened(pair)
    received = await receive_all(end)
    death = nursery.death()
    assert received == SENT[: len(received)]
    assert len(received) >= death.sent
    assert end.failure is None
    assert end.closed
    if not death.signal:
        assert (received, death.error) == (SENT, "")
    return death


async def send_to_a_reader(nursery: Nursery, kind: Kind, die_at: int) -> Death:
    pair = pair_of(kind)
    nursery.bear(pair.far, Order("echoes", die_at=die_at))
    end = opened(pair)
    for turn in messages():
        for message in turn:
            end.send(message)
    echoed: list[bytes] = []
    try:
        while len(echoed) < len(SENT):
            echoed += await end.receive()
    except ChannelClosed:
        pass
    end.close()
    death = nursery.death()
    assert echoed == SENT[: len(echoed)]
    assert end.failure is None
    if not death.signal:
        assert (echoed, death.error) == (SENT, "")
    return death


@both_kinds
@pytest.mark.parametrize("scene", [take_from_a_writer, send_to_a_reader])
def test_killed_at_every_line_it_leaves_a_beginning(nursery: Nursery, kind: Kind, scene: Any) -> None:
    async def every_line() -> None:
        lines = (await scene(nursery, kind, 0)).lines
        assert lines > 100
        deaths = [(await scene(nursery, kind, point)).signal for point in range(1, lines)]
        # How many lines a run has depends on how the two meet: near the end, a run may be over before it comes to that line.
        assert deaths[: lines // 2] == [signal.SIGKILL] * (lines // 2)

    play("asyncio", every_line)


@both_kinds
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_it_leaves_a_beginning(nursery: Nursery, kind: Kind, loop: str, seed: int) -> None:
    async def kill() -> None:
        pair = pair_of(kind)
        pid = nursery.bear(pair.far, Order("streams", seed=seed, loop=loop))
        end = opened(pair)
        received: list[bytes] = []
        while len(received) < 1 + 150 * seed:
            received += await end.receive()
        os.kill(pid, signal.SIGKILL)
        received += await receive_all(end)
        assert nursery.death().signal == signal.SIGKILL
        assert received == drawn(seed, len(received))
        assert end.failure is None

    play(loop, kill)


@both_kinds
def test_a_producer_that_waits_for_room_hears_of_the_death(nursery: Nursery, kind: Kind) -> None:
    async def park() -> None:
        pair = pair_of(kind)
        pid = nursery.bear(pair.far, Order("streams"))  # sends and never receives
        end = opened(pair)
        for _ in range(50):
            end.send(bytes(40_000))
        waiting = asyncio.create_task(end.flushed())
        await end.receive()
        assert end.parked_bytes
        assert not waiting.done()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChannelClosed):
            await waiting
        await receive_all(end)
        assert end.parked_bytes == 0
        assert nursery.death().signal == signal.SIGKILL

    play("asyncio", park)


@both_kinds
def test_a_stopped_reader_gets_it_all_when_it_goes_on(nursery: Nursery, kind: Kind) -> None:
    async def stop() -> None:
        pair = pair_of(kind)
        pid = nursery.bear(pair.far, Order("receives"))
        end = opened(pair)
        os.kill(pid, signal.SIGSTOP)
        for _ in range(60):
            end.send(bytes(30_000))
        end.send(b"end")
        await asyncio.sleep(0)
        assert end.parked_bytes
        os.kill(pid, signal.SIGCONT)
        await end.flushed()
        assert end.parked_bytes == 0
        end.close()
        death = nursery.death()
        assert (death.signal, death.sent) == (0, 61)

    play("asyncio", stop)


@both_kinds
def test_a_fork_that_lives_on_does_not_hide_the_death(nursery: Nursery, kind: Kind) -> None:
    async def fork() -> None:
        pair = pair_of(kind)
        nursery.bear(pair.far, Order("forks"))
        end = opened(pair)
        [pid] = map(int, await receive_all(end))
        os.kill(pid, signal.SIGKILL)  # it is still there
        assert nursery.death().signal == signal.SIGKILL

    play("asyncio", fork)
