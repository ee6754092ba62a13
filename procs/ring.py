"""A ring of bytes in shared memory between one producer and one consumer. Owns the memory's layout; knows no loop and no message.

Nothing is shared but the bytes and two eventfds. The producer writes frames (see `frames`) and then their number to `records`;
what the consumer reads there is complete, since the system call orders memory on every processor. The consumer copies the
frames out and writes their bytes to `credit`; the producer writes over nothing for which it has no credit. Each side keeps
its own place and never looks at the other's, so a side that dies half way leaves nothing half done: a frame that was not
announced was never there.

    |  frame  | frame | WRAP ······ |      a frame begins at a multiple of 8 and is never cut in two: what remains
    0                              size    before the end is skipped, and counts as used until it is given back

A frame is at most a quarter of the ring, and room is given back once an eighth of it (or `OWED_BYTES_MAX`) has been taken. So
whoever waits for room gets it: a frame and what is skipped before it need less than half of a ring. When `WARM_BYTES` have been
written and the beginning of the ring is free, the producer goes back there: a large ring that is little used stays in few
pages and in the processor's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from mmap import mmap

from dwarf.wire import ProtocolViolation

from .frames import HANDED, HEAD, HEAD_BYTES, LENGTH_BYTES, WRAP, WRAP_HEAD, Frame, lengths

RING_BYTES_MIN = 256
RING_BYTES_MAX = 1 << 30
ALIGNMENT = 8
WARM_BYTES = 64 << 10
OWED_BYTES_MAX = 32 << 10
JOIN_BYTES_MAX = 32 << 10  # up to here one copy more is cheaper than one assignment a message


def frame_bytes_max(ring_bytes: int) -> int:
    """Return the size of the largest frame, head included, that goes through a ring of that size."""
    return ring_bytes // 4 // ALIGNMENT * ALIGNMENT


class RingWriter:
    """The producer's side. `memory` holds the ring from `start` on; `records` and `credit` are eventfds that do not block."""

    def __init__(self, memory: mmap, start: int, size: int, *, records: int, credit: int) -> None:
        assert size >= RING_BYTES_MIN
        assert size % ALIGNMENT == 0
        self._memory, self._start, self._size = memory, start, size
        self._records, self._credit = records, credit
        self._at = 0
        self._free = size
        self._used = 0  # bytes ever written: what has been given back of them is `given_back`
        self._unannounced = 0
        self._rewind_at = WARM_BYTES

    @property
    def used(self) -> int:
        """Bytes ever written, those that were skipped among them."""
        return self._used

    @property
    def given_back(self) -> int:
        """Bytes ever given back. At most `used`; where they meet, the consumer has taken everything."""
        return self._used - (self._size - self._free)

    def put(self, frame: Frame) -> bool:
        """Write a frame; it is announced later. Without room: False, and nothing has happened."""
        assert frame.size <= frame_bytes_max(self._size)
        place = self._place(frame.size)
        if place is None:
            return False
        memory, at = self._memory, place
        if frame.size <= JOIN_BYTES_MAX:
            memory[at : at + frame.size] = b"".join((frame.head, *frame.messages))
        else:
            for part in (frame.head, *frame.messages):
                memory[at : at + len(part)] = part
                at += len(part)
        return True

    def has_room_to_point(self) -> bool:
        """Tell whether the head of a frame that is handed over fits."""
        return self._free >= HEAD_BYTES or (self.take_credit() and self._free >= HEAD_BYTES)

    def point(self, message_bytes: int) -> None:
        """Write that the next message is in the memory that was handed over. There must be room."""
        place = self._place(HEAD_BYTES)
        assert place is not None
        self._memory[place : place + HEAD_BYTES] = HEAD.pack(message_bytes, HANDED)

    def announce(self) -> None:
        """Tell the consumer what has been written since the last time."""
        if self._unannounced:
            os.eventfd_write(self._records, self._unannounced)
            self._unannounced = 0

    def take_credit(self) -> bool:
        """Take what has been given back. Raises `ProtocolViolation` when that is more than was used."""
        try:
            credit = os.eventfd_read(self._credit)
        except BlockingIOError:
            return False
        self._free += credit
        if self._free > self._size:
            raise ProtocolViolation(f"{credit} bytes of a ring were given back, more than were in use")
        return True

    def _place(self, size: int) -> int | None:
        """Take room for `size` bytes and return where in the memory they go, or None."""
        at, need = self._at, -(-size // ALIGNMENT) * ALIGNMENT
        tail = self._size - at
        skipped = tail if need > tail else 0
        if at >= self._rewind_at:
            self._rewind_at = at + WARM_BYTES
            self.take_credit()
            if need <= at - (self._size - self._free):
                skipped = tail
        if self._free < skipped + need and not (self.take_credit() and self._free >= skipped + need):
            return None
        if skipped:
            place = self._start + at
            self._memory[place : place + HEAD_BYTES] = WRAP_HEAD
            at = 0
            self._rewind_at = WARM_BYTES
        self._free -= skipped + need
        self._used += skipped + need
        self._unannounced += 1
        self._at = at + need
        if self._at == self._size:
            self._at, self._rewind_at = 0, WARM_BYTES
        return self._start + at


class RingReader:
    """The consumer's side. `handed` returns a message that was handed over; it is told how long that is."""

    def __init__(self, memory: mmap, start: int, size: int, *, records: int, credit: int, handed: Callable[[int], bytes]) -> None:
        self._memory, self._start, self._size = memory, start, size
        self._records, self._credit = records, credit
        self._handed = handed
        self._at = 0
        self._announced = 0  # frames that can be taken
        self._owed = 0  # bytes that were taken and not given back yet
        self._owed_max = min(OWED_BYTES_MAX, size // 8)
        self._owes_at_once = False
        self._frame_bytes_max = frame_bytes_max(size)

    def hear(self) -> bool:
        """Read how many frames have been announced; tell whether there are any to take."""
        try:
            self._announced += os.eventfd_read(self._records)
        except BlockingIOError:
            return self._announced > 0
        return True

    def take(self, into: list[bytes], bytes_max: int) -> None:
        """Copy the messages of frames that were announced, up to the one that makes them `bytes_max` bytes, and give their room back.

        Raises `ProtocolViolation` at a frame that breaks the layout; `into` then holds the messages before it.
        """
        while self._announced and bytes_max > 0:
            bytes_max -= self._take_frame(into)
            self._announced -= 1
        if self._owed >= self._owed_max or self._owes_at_once:
            os.eventfd_write(self._credit, self._owed)
            self._owed, self._owes_at_once = 0, False

    def _take_frame(self, into: list[bytes]) -> int:
        """Copy the messages of the next frame, and return how many bytes they are about."""
        memory, at, skipped = self._memory, self._at, 0
        body_bytes: int
        body_bytes, count = HEAD.unpack_from(memory, self._start + at)
        if count == WRAP:
            skipped, at = self._size - at, 0
            body_bytes, count = HEAD.unpack_from(memory, self._start)
        used = HEAD_BYTES
        if count == HANDED:
            into.append(self._handed(body_bytes))
            self._owes_at_once = True  # the producer has only so many under way
        else:
            used = -(-(HEAD_BYTES + body_bytes) // ALIGNMENT) * ALIGNMENT
            if used > self._frame_bytes_max or at + used > self._size or count == WRAP:
                raise ProtocolViolation(f"at {at} of a ring of {self._size} bytes is no frame: {body_bytes} bytes, {count} messages")
            place = self._start + at + HEAD_BYTES
            if count == 1:
                into.append(memory[place : place + body_bytes])
            else:
                sizes = lengths(memory, place, body_bytes, count)
                place += LENGTH_BYTES * count
                for size in sizes:
                    into.append(memory[place : place + size])
                    place += size
        at += used
        self._at = 0 if at == self._size else at
        self._owed += skipped + used
        return body_bytes
