"""Both kinds of ends as channels, on both loops: order, room, large messages, cancelling, closing, faults."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import resource
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf import embedded
from dwarf.channel import Channel, ChannelClosed
from dwarf.procs import ends, ring_end, stream_end
from dwarf.procs.pairs import Kind, create_pair, open_at_dispatcher, open_at_executor, open_end
from dwarf.procs.pairs import unpack as unpack_handle
from dwarf.wire import Committed, Drain, Freed, Hello, ProtocolViolation, encode
from tests.engine import test_channel
from tests.procs.rig import both_kinds, joined, on_both_loops, open_descriptors, pack, play, receive, receive_all, turns, unpack, until

LARGE = 300_000  # more than a frame of these rings, more than a socket takes at once


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + bytes(size) for number in range(count)]


# ---- what the channel in memory does, these do ----


@both_kinds
@pytest.mark.parametrize("name", [name for name in dir(test_channel) if name.startswith("test_") and "bytes" not in name])
def test_as_a_channel_in_memory(kind: Kind, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def memory_pair() -> tuple[Any, Any]:
        opened.extend(joined(kind, encode=pack, decode=unpack))
        return opened[-2], opened[-1]

    monkeypatch.setattr(test_channel, "memory_pair", memory_pair)
    test = getattr(test_channel, name).__wrapped__

    async def closed_afterwards() -> None:
        await test()
        for end in opened:
            end.close()

    play("asyncio", closed_afterwards)


@both_kinds
def test_an_engine_works_over_them(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Kind] = []

    def pair() -> tuple[Any, Any]:
        pair = create_pair(kind)
        made.append(kind)
        return open_at_dispatcher(pair.near), open_at_executor(pair.far)

    patcher: Any = SimpleNamespace(setattr=lambda *_: monkeypatch.setattr(embedded, "memory_pair", pair))
    test_channel.test_an_engine_works_over_bytes(patcher)
    assert made


def test_they_are_channels() -> None:
    async def check() -> None:
        one, other = joined()
        channel: Channel[bytes, bytes] = one
        channel.close()
        other.close()

    play("asyncio", check)


# ---- order and room ----


@both_kinds
@on_both_loops
async def test_thousands_of_small_messages_keep_their_order(kind: Kind) -> None:
    one, other = joined(kind)
    sent = numbered(20_000)
    for message in sent:
        one.send(message)
    assert await receive(other, len(sent)) == sent
    one.close()
    assert await receive_all(other) == []


@both_kinds
@on_both_loops
async def test_messages_of_every_size_keep_their_order_among_each_other(kind: Kind) -> None:
    one, other = joined(kind)
    chance = random.Random(7)
    sent = [os.urandom(chance.choice((0, 1, 100, 1000, 1015, 1016, 1017, 4096, 20_000, LARGE))) for _ in range(150)]
    for message in sent:
        one.send(message)
        other.send(message)
    assert await receive(other, len(sent)) == sent
    assert await receive(one, len(sent)) == sent
    one.close()
    other.close()


@both_kinds
@on_both_loops
async def test_who_does_not_receive_makes_the_sender_wait_and_nothing_spins(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    end_type: Any = {Kind.RING: ring_end.RingEnd, Kind.STREAM: stream_end.StreamEnd}[kind]
    real = end_type._find_room

    def find_room(end: Any) -> None:
        looked.append(1)
        real(end)

    monkeypatch.setattr(end_type, "_find_room", find_room)
    one, other = joined(kind)
    sent = numbered(3000, 1000)
    for message in sent:
        one.send(message)
    await turns(200)
    assert one.parked_bytes > 1_000_000
    assert len(other._ahead if kind is Kind.STREAM else b"") < 2 * stream_end.AHEAD_BYTES
    looked.clear()
    await turns(200)
    assert looked == []
    waiting = asyncio.create_task(one.flushed())
    await turns()
    assert not waiting.done()
    assert await receive(other, len(sent)) == sent
    await waiting
    assert one.parked_bytes == 0
    one.send(b"more")
    assert await other.receive() == [b"more"]
    one.close()
    other.close()


@both_kinds
@on_both_loops
async def test_what_is_sent_while_others_wait_queues_behind_them(kind: Kind) -> None:
    one, other = joined(kind)
    sent = [b"%d" % number + bytes(random.Random(number).choice((0, 500, LARGE))) for number in range(100)]
    for message in sent[:50]:
        one.send(message)
    await turns()
    got: list[bytes] = []
    for message in sent[50:]:
        one.send(message)
        got += await other.receive()
        await asyncio.sleep(0)
    got += await receive(other, len(sent) - len(got))
    assert got == sent
    one.close()
    other.close()


@on_both_loops
async def test_more_large_messages_than_may_be_under_way() -> None:
    one, other = joined()
    sent = [bytes([number]) * 5000 for number in range(3 * ring_end.HANDED_MAX)]
    for message in sent:
        one.send(message)
    await turns()
    assert len(one._under_way) == ring_end.HANDED_MAX
    assert one.parked_bytes
    assert await receive(other, len(sent)) == sent
    one.close()
    other.close()


@both_kinds
@on_both_loops
async def test_one_call_returns_a_bounded_part(kind: Kind) -> None:
    one, other = joined(kind, ring_bytes=16 << 20)
    sent = [bytes([number]) * 400_000 for number in range(20)]
    for message in sent:
        one.send(message)
    await turns(100)
    sizes = []
    got: list[bytes] = []
    while len(got) < len(sent):
        part = await other.receive()
        sizes.append(sum(map(len, part)))
        got += part
    assert got == sent
    assert max(sizes) <= ends.RECEIVE_BYTES + 4 * 400_000
    one.close()
    other.close()


# ---- any interleaving ----

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([0, 1, 30, 200, 1000, 1010, 1020, 5000, 40_000]), st.integers(1, 5)),
        st.tuples(st.just("turn"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("receive"), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@both_kinds
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@settings(max_examples=40)
@given(steps=STEPS, closes=st.booleans())
def test_any_interleaving_delivers_everything_once_and_in_order(
    kind: Kind, loop: str, steps: list[tuple[str, int, int]], closes: bool
) -> None:
    play(loop, interleaved, kind, steps, closes)


async def interleaved(kind: Kind, steps: list[tuple[str, int, int]], closes: bool) -> None:
    one, other = joined(kind)
    sent: list[bytes] = []
    got: list[bytes] = []
    for step, amount, count in steps:
        if step == "send":
            for _ in range(count):
                sent.append(b"%d:" % len(sent) + bytes(amount))
                one.send(sent[-1])
        elif step == "turn":
            await turns(amount)
        elif step == "receive" and len(got) < len(sent):
            got += await other.receive()
        elif step == "cancel":
            waiting = asyncio.create_task(other.receive())
            await turns(amount)
            waiting.cancel()
            await asyncio.wait([waiting])
            got += [] if waiting.cancelled() else waiting.result()
        elif step == "flush":
            waiting = asyncio.create_task(one.flushed())
            while not waiting.done():
                await turns(1)
                got += await other.receive() if len(got) < len(sent) and not waiting.done() else []
    if closes:
        one.close()
        got += await receive_all(other)
        assert got == sent[: len(got)]
    else:
        got += await receive(other, len(sent) - len(got))
        assert got == sent
    one.close()
    other.close()


# ---- the end of it ----


@both_kinds
@on_both_loops
async def test_closing_while_messages_wait_delivers_a_beginning(kind: Kind) -> None:
    one, other = joined(kind)
    sent = numbered(3000, 1000)
    for message in sent:
        one.send(message)
    await turns()
    waiting = asyncio.create_task(one.flushed())
    await turns()
    assert one.parked_bytes
    one.close()
    assert one.parked_bytes == 0
    with pytest.raises(ChannelClosed):
        await waiting
    with pytest.raises(ChannelClosed):
        await one.flushed()
    got = await receive_all(other)
    assert 0 < len(got) < len(sent)
    assert got == sent[: len(got)]


@both_kinds
@on_both_loops
async def test_flushed_says_what_became_of_it(kind: Kind) -> None:
    one, other = joined(kind)
    await one.flushed()
    one.send(b"a")
    await one.flushed()
    one.close()
    await one.flushed()  # nothing was lost
    assert await other.receive() == [b"a"]
    other.close()


@both_kinds
@on_both_loops
async def test_closing_again_does_nothing_and_frees_everything(kind: Kind) -> None:
    before = open_descriptors()
    one, other = joined(kind)
    for end in (one, other):
        end.send(bytes(LARGE))  # on its way when both are closed
    await turns()
    for end in (one, one, other, other):
        end.close()
    assert open_descriptors() == before
    assert one.closed
    assert one.failure is None
    one.send(b"nothing happens")
    await one.flushed()


@both_kinds
@on_both_loops
async def test_who_closes_still_receives_what_had_arrived(kind: Kind) -> None:
    one, other = joined(kind)
    sent = [b"a", bytes(5000), b"b"]
    for message in sent:
        other.send(message)
    await other.flushed()
    one.close()
    assert await receive_all(one) == sent
    assert await receive_all(other) == []


@both_kinds
@on_both_loops
async def test_both_ends_close_at_once_with_large_messages_on_their_way(kind: Kind) -> None:
    one, other = joined(kind)
    one.send(bytes(5000))
    other.send(bytes(6000))
    await turns()
    one.close()
    other.close()
    assert [len(message) for message in await receive_all(one)] == [6000]
    assert [len(message) for message in await receive_all(other)] == [5000]


@both_kinds
@on_both_loops
async def test_the_end_of_the_other_wakes_who_receives_and_who_flushes(kind: Kind) -> None:
    one, other = joined(kind)
    for message in numbered(3000, 1000):
        one.send(message)
    receiving, flushing = asyncio.create_task(one.receive()), asyncio.create_task(one.flushed())
    await turns()
    other.close()
    for waiting in (receiving, flushing):
        with pytest.raises(ChannelClosed):
            await waiting
    assert one.closed


@both_kinds
@on_both_loops
async def test_an_end_is_seen_while_nobody_receives(kind: Kind) -> None:
    one, other = joined(kind)
    other.send(b"last")
    await other.flushed()
    other.close()
    await until(lambda: one.closed)
    assert await receive_all(one) == [b"last"]


@both_kinds
@on_both_loops
async def test_a_cancelled_receive_loses_nothing(kind: Kind) -> None:
    one, other = joined(kind)
    for number in range(30):
        waiting = asyncio.create_task(other.receive())
        await turns(number % 4)
        one.send(b"%d" % number)
        await turns(number % 3)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (await other.receive() if waiting.cancelled() else waiting.result()) == [b"%d" % number]
    one.close()
    other.close()


@both_kinds
@on_both_loops
async def test_one_task_at_a_time_receives(kind: Kind) -> None:
    one, other = joined(kind)
    waiting = asyncio.create_task(one.receive())
    await turns()
    with pytest.raises(AssertionError, match="one task at a time"):
        await one.receive()
    one.close()
    with pytest.raises(ChannelClosed):
        await waiting
    other.close()


@both_kinds
@on_both_loops
async def test_the_death_of_the_peer_is_seen_although_somebody_holds_its_descriptors(kind: Kind) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # noqa: ASYNC220 - nothing else runs here
    pidfd = os.pidfd_open(process.pid)
    pair = create_pair(kind)
    label, descriptors = pair.near.pack(peer=pidfd)
    end: Any = open_end(unpack_handle(label, [os.dup(descriptor) for descriptor in descriptors]), encode=bytes, decode=bytes)
    os.close(pidfd)
    pair.near.close()
    far: Any = open_end(pair.far, encode=bytes, decode=bytes)
    far.send(b"last")
    await far.flushed()
    process.kill()
    assert await receive_all(end) == [b"last"]
    process.communicate()
    far.close()


# ---- faults ----


def refuse(message: bytes) -> bytes:
    if message == b"bad":
        raise ProtocolViolation("a message cannot be read")
    return message


@both_kinds
@on_both_loops
async def test_a_message_that_cannot_be_decoded_closes_the_channel_by_name(kind: Kind) -> None:
    one, other = joined(kind, decode=refuse)
    for message in (b"a", b"b", b"bad", b"c"):
        one.send(message)
    assert await other.receive() == [b"a", b"b"]
    for _ in range(2):
        with pytest.raises(ends.ChannelBroken, match="the channel was closed: a message cannot be read") as caught:
            await other.receive()
        assert isinstance(caught.value.__cause__, ProtocolViolation)
    assert other.closed
    assert isinstance(other.failure, ProtocolViolation)
    with pytest.raises(ChannelClosed) as closed:
        await one.receive()
    assert type(closed.value) is ChannelClosed


@both_kinds
@on_both_loops
async def test_a_bad_message_in_what_the_dead_left_behind(kind: Kind) -> None:
    one, other = joined(kind, decode=refuse)
    for message in (b"a", b"bad", b"c"):
        one.send(message)
    one.close()
    await until(lambda: other.closed)
    assert await other.receive() == [b"a"]
    with pytest.raises(ends.ChannelBroken):
        await other.receive()


@both_kinds
@on_both_loops
async def test_messages_of_the_wire_and_bytes_that_are_none(kind: Kind) -> None:
    pair = create_pair(kind)
    dispatcher, executor = open_at_dispatcher(pair.near), open_at_executor(pair.far)
    dispatcher.send(Drain())
    dispatcher.send(Committed([1, 2], [3]))
    executor.send(Hello(10))
    assert await executor.receive() == [Drain(), Committed([1, 2], [3])]
    assert await dispatcher.receive() == [Hello(10)]
    executor.send(Drain())
    with pytest.raises(ends.ChannelBroken, match="a message for the dispatcher cannot be read"):
        await dispatcher.receive()
    executor.close()


@both_kinds
@on_both_loops
async def test_a_message_beyond_the_maximum_is_refused_and_nothing_else_happens(kind: Kind) -> None:
    one, other = joined(kind, message_bytes_max=10_000)
    one.send(b"a")
    with pytest.raises(ends.MessageTooLarge, match="a message of 10001 bytes, at most 10000 may be sent"):
        one.send(bytes(10_001))
    one.send(bytes(10_000))
    assert [len(message) for message in await receive(other, 2)] == [1, 10_000]
    one.close()
    other.close()


@both_kinds
@pytest.mark.parametrize("maximum", [1, 5, 12, 100])
def test_a_small_maximum_is_kept(kind: Kind, maximum: int) -> None:
    async def check() -> None:
        one, other = joined(kind, message_bytes_max=maximum)
        sent = [bytes(maximum), b"", bytes(maximum), bytes(maximum)]
        for message in sent:
            one.send(message)
        with pytest.raises(ends.MessageTooLarge):
            one.send(bytes(maximum + 1))
        assert await receive(other, len(sent)) == sent
        one.close()
        other.close()

    play("asyncio", check)


@both_kinds
@on_both_loops
async def test_what_the_encoder_refuses_is_the_senders_error(kind: Kind) -> None:
    one, other = joined(kind, encode=encode)
    one.send(Freed([1]))
    with pytest.raises(TypeError):
        one.send(object())
    one.send(Freed([2]))
    assert await receive(other, 2) == [encode(Freed([1])), encode(Freed([2]))]
    one.close()
    other.close()


@both_kinds
@on_both_loops
async def test_too_much_that_waits_closes_the_channel_by_name(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "PARKED_BYTES_MAX", 2_000_000)
    one, other = joined(kind)
    for message in numbered(4000, 1000):
        one.send(message)
    assert one.closed
    with pytest.raises(ends.ChannelBroken, match="bytes wait to be taken by the other end, at most 2000000 may"):
        await receive_all_raising(one)
    assert len(await receive_all(other)) < 4000


async def receive_all_raising(end: Any) -> None:
    while True:
        await end.receive()


@on_both_loops
async def test_a_ring_that_was_written_over_closes_the_channel_by_name() -> None:
    one, other = joined()
    other.send(b"still good")
    one.send(b"good")
    await turns()
    one.send(b"bad")
    await one.flushed()
    parts = one._parts
    parts.memory[parts.sends_at + 16 : parts.sends_at + 20] = b"\xff\xff\xff\x7f"
    assert await other.receive() == [b"good"]
    with pytest.raises(ends.ChannelBroken, match="is no frame"):
        await other.receive()
    assert await receive_all(one) == [b"still good"]


@on_both_loops
async def test_credit_out_of_nowhere_closes_the_channel_by_name() -> None:
    one, other = joined()
    for message in numbered(100, 1000):
        one.send(message)
    await turns()
    assert one.parked_bytes
    os.eventfd_write(other._parts.received_credit, 1_000_000)
    with pytest.raises(ends.ChannelBroken, match="1000000 bytes of a ring were given back"):
        await one.receive()
    assert len(await receive_all(other)) < 100


@on_both_loops
async def test_a_stream_of_anything_else_closes_the_channel_by_name() -> None:
    for garbage in (b"\0" * 8, b"\xff" * 8, b"\x10\0\0\0\x03\0\0\0" + b"\xff" * 16):
        one, other = joined(Kind.STREAM)
        one.send(b"good")
        await one.flushed()
        one._link.send(garbage)
        assert await other.receive() == [b"good"]
        with pytest.raises(ends.ChannelBroken):
            await other.receive()
        await receive_all(one)


@on_both_loops
async def test_a_large_message_that_was_announced_and_never_came() -> None:
    one, other = joined()
    one._writer.point(5000)
    one._announce()
    with pytest.raises(ends.ChannelBroken, match="a message of 5000 bytes was announced and not handed over"):
        await other.receive()
    one.close()


@on_both_loops
async def test_a_large_message_that_is_not_as_long_as_announced() -> None:
    one, other = joined()
    memory = os.memfd_create("short", os.MFD_CLOEXEC)
    os.write(memory, bytes(100))
    one._send_descriptor(memory)
    os.close(memory)
    one._writer.point(5000)
    one._announce()
    with pytest.raises(ends.ChannelBroken, match="100 bytes were handed over where 5000 were announced"):
        await other.receive()
    one.close()


@on_both_loops
async def test_more_large_messages_than_agreed() -> None:
    one, other = joined()
    memory = os.memfd_create("again", os.MFD_CLOEXEC)
    for _ in range(ring_end.HANDED_MAX + 1):
        one._send_descriptor(memory)
    os.close(memory)
    with pytest.raises(ends.ChannelBroken, match="more than 16 messages were handed over"):
        await other.receive()
    one.close()


@on_both_loops
async def test_a_system_that_refuses_memory_closes_the_channel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.ENFILE, "too many open files in the system")

    one, other = joined()
    other.send(b"good")
    await other.flushed()
    monkeypatch.setattr(os, "memfd_create", refused)
    one.send(b"before")
    one.send(bytes(5000))
    one.send(b"after")
    with pytest.raises(ends.ChannelBroken, match="too many open files in the system"):
        await one.flushed()
    assert await one.receive() == [b"good"]
    with pytest.raises(ends.ChannelBroken, match="too many open files in the system"):
        await one.receive()
    assert await receive_all(other) == [b"before"]


@on_both_loops
async def test_a_process_that_may_open_no_more_closes_the_channel_by_name() -> None:
    one, other = joined()
    one.send(b"before")
    one.send(bytes(5000))
    await one.flushed()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(number for number, _ in open_descriptors()) + 1, hard))
        while True:
            try:
                fillers.append(os.dup(0))
            except OSError:
                break
        got, failure = await until_broken(other)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    assert got == [b"before"]
    assert "a descriptor of the other end did not arrive" in str(failure)
    one.close()


async def until_broken(end: Any) -> tuple[list[bytes], Exception]:
    got: list[bytes] = []
    try:
        while True:
            got += await end.receive()
    except ChannelClosed as error:
        return got, error


@both_kinds
@on_both_loops
async def test_an_end_that_is_dropped_after_its_close_leaves_nothing_behind(kind: Kind) -> None:
    one, other = joined(kind)
    one.close()
    await receive_all(other)
    assert one not in ends._open_ends
    assert other not in ends._open_ends
    del one, other
    gc.collect()


def test_it_needs_a_running_loop() -> None:
    with create_pair() as pair, pytest.raises(RuntimeError, match="no running event loop"):
        open_end(pair.near, encode=bytes, decode=bytes)


@on_both_loops
async def test_the_link_of_a_ring_carries_nothing_but_descriptors() -> None:
    one, other = joined()
    one._parts.link.send(b"x")
    with pytest.raises(ends.ChannelBroken, match="a descriptor of the other end did not arrive"):
        await other.receive()
    assert isinstance(one._parts.link, socket.socket)
    one.close()
