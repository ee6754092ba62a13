"""One end of a pair of rings: what it sends goes into one, what it receives comes out of the other. Linux only.

Beside the two rings there is a socket to the other end. Its end of file is the other's death; and a message that is larger
than a frame may be travels over it, as the descriptor of a memfd that is used once. On the ring a frame of kind HANDED holds
the message's place; the descriptor is sent before that frame is announced, so it is there when it is looked for.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable
from mmap import mmap
from typing import NamedTuple

from dwarf.wire import ProtocolViolation

from .ends import End, Received, Sent
from .frames import Frame
from .ring import RingReader, RingWriter, frame_bytes_max

HANDED_MAX = 16  # memfds that are on their way at one time


class RingParts(NamedTuple):
    """What a ring end is made of, as seen from it. It owns all of it. `peer` is a pidfd of the other process, or -1."""

    memory: mmap
    ring_bytes: int
    sends_at: int
    sent_records: int
    sent_credit: int
    receives_at: int
    received_records: int
    received_credit: int
    link: socket.socket
    peer: int


class RingEnd(End[Sent, Received]):
    """An end over shared memory."""

    def __init__(
        self, parts: RingParts, *, encode: Callable[[Sent], bytes], decode: Callable[[bytes], Received], message_bytes_max: int
    ) -> None:
        self._frame_bytes_max = frame_bytes_max(parts.ring_bytes)
        super().__init__(encode=encode, decode=decode, message_bytes_max=message_bytes_max, frame_bytes=self._frame_bytes_max)
        self._parts = parts
        self._writer = RingWriter(parts.memory, parts.sends_at, parts.ring_bytes, records=parts.sent_records, credit=parts.sent_credit)
        self._reader = RingReader(
            parts.memory, parts.receives_at, parts.ring_bytes,
            records=parts.received_records, credit=parts.received_credit, handed=self._read_handed,
        )  # fmt: skip
        self._handed: deque[int] = deque()  # descriptors that have come and whose frames have not been taken
        self._under_way: deque[int] = deque()  # how much was used of the ring once each memfd of ours was handed over
        self._watching_room = False
        self._loop.add_reader(parts.received_records, self._hear)
        self._loop.add_reader(parts.link.fileno(), self._look_at_link)
        if parts.peer >= 0:
            self._loop.add_reader(parts.peer, self._shut)

    # ---- sending ----

    def _write(self, frame: Frame) -> bool:
        if frame.size <= self._frame_bytes_max:
            return self._writer.put(frame)
        return self._hand_over(frame.messages[0])

    def _hand_over(self, message: bytes) -> bool:
        writer, under_way = self._writer, self._under_way
        if len(under_way) == HANDED_MAX:
            writer.take_credit()
        while under_way and under_way[0] <= writer.given_back:
            under_way.popleft()
        if len(under_way) == HANDED_MAX or not writer.has_room_to_point():
            return False
        memory = os.memfd_create("dwarf-message", os.MFD_CLOEXEC)
        try:
            _write_all(memory, message)
            if not self._send_descriptor(memory):
                return False
        finally:
            os.close(memory)
        writer.point(len(message))
        under_way.append(writer.used)
        return True

    def _send_descriptor(self, descriptor: int) -> bool:
        """Send it over the socket. False when the other end is gone: its end of file is on the way."""
        try:
            self._parts.link.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _announce(self) -> None:
        self._writer.announce()

    def _watch_room(self) -> None:
        self._watching_room = True
        self._loop.add_reader(self._parts.sent_credit, self._find_room)

    def _unwatch_room(self) -> None:
        self._watching_room = False
        self._loop.remove_reader(self._parts.sent_credit)

    def _find_room(self) -> None:
        try:
            self._writer.take_credit()
            self._pump()
        except Exception as error:
            self._break(error)

    # ---- receiving ----

    def _hear(self) -> None:
        if self._reader.hear():
            self._wake()

    def _hear_last(self) -> None:
        self._reader.hear()

    def _take_raw(self, into: list[bytes], bytes_max: int) -> None:
        self._reader.take(into, bytes_max)

    def _read_handed(self, size: int) -> bytes:
        """Return the next message that was handed over."""
        if not self._handed:
            self._take_descriptors()
        if not self._handed:
            raise ProtocolViolation(f"a message of {size} bytes was announced and not handed over")
        descriptor = self._handed.popleft()
        try:
            if size > self._message_bytes_max:
                raise ProtocolViolation(f"a message of {size} bytes was handed over, at most {self._message_bytes_max} may be")
            message = os.pread(descriptor, size, 0)
        finally:
            os.close(descriptor)
        if len(message) != size:
            raise ProtocolViolation(f"{len(message)} bytes were handed over where {size} were announced")
        return message

    # ---- the other end ----

    def _look_at_link(self) -> None:
        try:
            if not self._take_descriptors():
                self._shut()
        except Exception as error:
            self._break(error)

    def _take_descriptors(self) -> bool:
        """Take the descriptors that have come. False when nothing will come any more: the other end is gone."""
        while True:
            try:
                byte, ancillary, flags, _ = self._parts.link.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            for _level, _kind, descriptors in ancillary:
                self._handed.extend(array.array("i", descriptors))
            if not byte:
                return False
            if flags & socket.MSG_CTRUNC or not ancillary:
                raise OSError("a descriptor of the other end did not arrive: this process may have too many open")
            if len(self._handed) > HANDED_MAX:
                raise ProtocolViolation(f"more than {HANDED_MAX} messages were handed over at one time")

    def _unwatch(self) -> None:
        parts, loop = self._parts, self._loop
        loop.remove_reader(parts.received_records)
        loop.remove_reader(parts.link.fileno())
        if parts.peer >= 0:
            loop.remove_reader(parts.peer)
        if self._watching_room:
            self._unwatch_room()

    def _close_descriptors(self) -> None:
        parts = self._parts
        for descriptor in (parts.sent_records, parts.sent_credit, parts.received_records, parts.received_credit, *self._handed):
            os.close(descriptor)
        if parts.peer >= 0:
            os.close(parts.peer)
        self._handed.clear()
        parts.link.close()
        parts.memory.close()


def _write_all(descriptor: int, message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
