"""The ring itself, without a loop: order, wrapping at every place, credit, and what does not look like a frame."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dwarf.procs import ring
from dwarf.procs.frames import HEAD, HEAD_BYTES, frame_of
from dwarf.procs.ring import RingReader, RingWriter, frame_bytes_max
from dwarf.wire import ProtocolViolation

START = 4096
EVERYTHING = 1 << 40


class Ring:
    """A ring, both of its sides, and what is in it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap(-1, START + size + 64)
        self.memory[START + size :] = b"!" * 64  # whoever writes beyond the end is found out
        self.records, self.credit = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self.handed: list[bytes] = []
        eventfds = {"records": self.records, "credit": self.credit}
        self.writer: Any = RingWriter(self.memory, START, size, **eventfds)
        self.reader: Any = RingReader(self.memory, START, size, **eventfds, handed=lambda size: self.handed.pop(0))

    def put(self, *messages: bytes) -> bool:
        return bool(self.writer.put(frame_of(list(messages), sum(map(len, messages)))))

    def take(self, bytes_max: int = EVERYTHING) -> list[bytes]:
        self.reader.hear()
        into: list[bytes] = []
        self.reader.take(into, bytes_max)
        return into

    def through(self, *messages: bytes) -> list[bytes]:
        assert self.put(*messages)
        self.writer.announce()
        return self.take()

    def close(self) -> None:
        assert self.memory[START + self.size :] == b"!" * 64
        os.close(self.records)
        os.close(self.credit)
        self.memory.close()


@contextmanager
def ring_of(size: int) -> Iterator[Ring]:
    made = Ring(size)
    try:
        yield made
    finally:
        made.close()


def message(length: int, mark: int = 0) -> bytes:
    return bytes((mark + place) % 256 for place in range(length))


def test_what_is_not_announced_is_not_there() -> None:
    with ring_of(256) as rings:
        assert rings.put(b"a", b"bc")
        assert rings.take() == []
        rings.writer.announce()
        assert rings.put(b"d")
        assert rings.take() == [b"a", b"bc"]
        rings.writer.announce()
        rings.writer.announce()
        assert rings.take() == [b"d"]
        assert rings.take() == []


@pytest.mark.parametrize("size", [256, 264, 512])
def test_a_frame_of_every_size_goes_through_at_every_place(size: int) -> None:
    largest = frame_bytes_max(size) - HEAD_BYTES
    for place in range(0, size, 8):
        for length in range(largest + 1):
            with ring_of(size) as rings:
                rings.writer._at = rings.reader._at = place
                assert rings.through(message(length, place)) == [message(length, place)]
                assert rings.through(message(length, 1), b"") == [message(length, 1), b""] if length + 8 <= largest else True


@pytest.mark.parametrize("size", [256, 512])
def test_a_full_ring_takes_nothing_and_then_everything(size: int) -> None:
    for place in range(0, size, 8):
        for length in range(0, frame_bytes_max(size) - HEAD_BYTES + 1, 5):
            with ring_of(size) as rings:
                rings.writer._at = rings.reader._at = place
                sent = 0
                while rings.put(message(length, sent)):
                    sent += 1
                assert sent >= 2
                at, free = rings.writer._at, rings.writer._free
                assert not rings.put(message(length))
                assert (rings.writer._at, rings.writer._free) == (at, free)
                rings.writer.announce()
                assert rings.take() == [message(length, number) for number in range(sent)]
                assert rings.through(message(length, 99)) == [message(length, 99)]


def test_a_large_ring_that_is_little_used_stays_at_its_beginning() -> None:
    with ring_of(1 << 20) as rings:
        places = set()
        for number in range(5000):
            assert rings.through(message(200, number)) == [message(200, number)]
            places.add(rings.writer._at)
        assert max(places) < 2 * ring.WARM_BYTES
        assert min(places) < 1000


def test_credit_is_given_back_in_portions_and_at_once_for_what_was_handed_over() -> None:
    with ring_of(1024) as rings:
        rings.through(b"a")
        with pytest.raises(BlockingIOError):
            os.eventfd_read(rings.credit)
        rings.handed.append(b"large")
        rings.writer.point(5)
        rings.writer.announce()
        assert rings.take() == [b"large"]
        assert os.eventfd_read(rings.credit) == rings.writer.used == 24


def test_a_call_takes_no_more_than_it_is_asked_for_and_the_rest_stays() -> None:
    with ring_of(1024) as rings:
        for number in range(8):
            assert rings.put(message(50, number))
        rings.writer.announce()
        assert [rings.take(bound) for bound in (1, 100, 101, EVERYTHING)] == [
            [message(50, number) for number in some] for some in ([0], [1, 2], [3, 4, 5], [6, 7])
        ]


@pytest.mark.parametrize(
    "head",
    [(1000, 1), (249, 1), (0xFFFF_FFFF, 1), (8, 3), (16, 2), (4, 0x7FFF_FFFF), (0xFFFF_FFFF, 0xFFFF_FFFE)],
)
def test_what_does_not_look_like_a_frame_is_refused_and_what_came_before_is_kept(head: tuple[int, int]) -> None:
    with ring_of(1024) as rings:
        assert rings.put(b"good")
        place = START + rings.writer._at
        assert rings.put(bytes(16))
        rings.memory[place : place + HEAD_BYTES] = HEAD.pack(*head)
        rings.writer.announce()
        into: list[bytes] = []
        rings.reader.hear()
        with pytest.raises(ProtocolViolation):
            rings.reader.take(into, EVERYTHING)
        assert into == [b"good"]


def test_more_credit_than_was_used_is_refused() -> None:
    with ring_of(256) as rings:
        rings.through(b"a")
        os.eventfd_write(rings.credit, 17)
        with pytest.raises(ProtocolViolation, match="17 bytes of a ring were given back, more than were in use"):
            rings.writer.take_credit()


def test_a_wrap_that_leads_to_a_wrap_is_refused() -> None:
    with ring_of(256) as rings:
        rings.memory[START : START + HEAD_BYTES] = HEAD.pack(0, 0)
        os.eventfd_write(rings.records, 1)
        with pytest.raises(ProtocolViolation, match="is no frame"):
            rings.take()


def test_lengths_that_are_not_the_body_are_refused() -> None:
    with ring_of(1024) as rings:
        assert rings.put(b"ab", b"cd")
        rings.memory[START + HEAD_BYTES] = 3
        rings.writer.announce()
        with pytest.raises(ProtocolViolation, match="2 messages of a frame are 5 bytes, its body has room for 4"):
            rings.take()


@given(sizes=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=6), max_size=60), size=st.sampled_from([1024, 1032, 2048]))
def test_frames_come_out_as_they_went_in(sizes: list[list[int]], size: int) -> None:
    with ring_of(size) as rings:
        frames = [[message(length, place) for length in frame] for place, frame in enumerate(sizes)]
        frames = [frame for frame in frames if sum(map(len, frame)) + 4 * len(frame) + HEAD_BYTES <= frame_bytes_max(size)]
        for frame in frames:
            assert rings.through(*frame) == frame


class Use(RuleBasedStateMachine):
    """Both sides in any order, beside a list of what is under way. Warmth is small, so that rings rewind too."""

    @initialize(words=st.sampled_from([32, 33, 40, 128, 129, 1024]))
    def make(self, words: int) -> None:
        self.warm, ring.WARM_BYTES = ring.WARM_BYTES, 128
        self.rings = Ring(words * 8)
        self.largest = frame_bytes_max(words * 8) - HEAD_BYTES
        self.written: list[list[bytes]] = []
        self.announced: list[list[bytes]] = []
        self.number = 0

    @rule(share=st.floats(0, 1), count=st.integers(1, 5))
    def put(self, share: float, count: int) -> None:
        body = int(share * self.largest) - (4 * count if count > 1 else 0)
        lengths = [max(body, 0)] if count == 1 else [max(body, 0) // count] * count
        if HEAD_BYTES + sum(lengths) + (4 * count if count > 1 else 0) > self.largest + HEAD_BYTES:
            return
        messages = [message(length, self.number + place) for place, length in enumerate(lengths)]
        self.number += 1
        if self.rings.put(*messages):
            self.written.append(messages)
        else:
            assert self.written or self.announced, "an empty ring has room for every frame"

    @rule(length=st.integers(0, 10_000))
    def hand_over(self, length: int) -> None:
        if self.rings.writer.has_room_to_point():
            self.rings.writer.point(length)
            self.rings.handed.append(message(length % 50, self.number))
            self.written.append([self.rings.handed[-1]])
            self.number += 1

    @rule()
    def announce(self) -> None:
        self.rings.writer.announce()
        self.announced += self.written
        self.written = []

    @precondition(lambda self: self.announced)
    @rule(bytes_max=st.sampled_from([1, 30, EVERYTHING]))
    def take(self, bytes_max: int) -> None:
        taken = self.rings.take(bytes_max)
        expected: list[bytes] = []
        while len(expected) < len(taken):
            expected += self.announced.pop(0)
        assert taken == expected
        if bytes_max == EVERYTHING:
            assert self.announced == []

    @invariant()
    def nothing_is_used_that_was_not_given_back(self) -> None:
        if hasattr(self, "rings"):
            assert 0 <= self.rings.writer._free <= self.rings.size

    def teardown(self) -> None:
        if hasattr(self, "rings"):
            ring.WARM_BYTES = self.warm
            self.rings.close()


TestUse = Use.TestCase
