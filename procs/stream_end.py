"""One end of a pair of stream sockets, for systems without memfd or eventfd. The same frames, the same rules, more copies.

Frames go one behind the other, whatever their size. An end reads ahead up to `AHEAD_BYTES`, and beyond that only when somebody
receives; so the socket fills, and what the other end sends is parked there.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from dwarf.wire import ProtocolViolation

from .ends import End, Received, Sent
from .frames import HANDED, HEAD, HEAD_BYTES, LENGTH_BYTES, WRAP, Frame, lengths

FRAME_BYTES = 256 << 10  # what is gathered into one frame, unless it is a single message
AHEAD_BYTES = 1 << 20
READ_BYTES = 256 << 10
LAST_READS_MAX = 64  # at the end of it: a socket holds less
JOIN_BYTES_MAX = 32 << 10


class StreamEnd(End[Sent, Received]):
    """An end over a socket. It owns the socket and `peer`, a pidfd of the other process, or -1."""

    def __init__(
        self,
        link: socket.socket,
        peer: int,
        *,
        encode: Callable[[Sent], bytes],
        decode: Callable[[bytes], Received],
        message_bytes_max: int,
    ) -> None:
        super().__init__(encode=encode, decode=decode, message_bytes_max=message_bytes_max, frame_bytes=FRAME_BYTES)
        self._link, self._peer = link, peer
        self._rest: list[memoryview] = []  # of the frame that is being written
        self._ahead = bytearray()
        self._watching_room = False
        self._watching_link = True
        self._loop.add_reader(link.fileno(), self._read)
        if peer >= 0:
            self._loop.add_reader(peer, self._shut)

    # ---- sending ----

    def _write(self, frame: Frame) -> bool:
        if self._rest and not self._write_rest():
            return False
        if frame.size <= JOIN_BYTES_MAX:
            self._rest = [memoryview(b"".join((frame.head, *frame.messages)))]
        else:
            self._rest = [memoryview(part) for part in (frame.head, *frame.messages) if part]
        if not self._write_rest() and not self._watching_room:
            self._watch_room()
        return True

    def _write_rest(self) -> bool:
        """Go on with the frame that is being written; tell whether it has gone."""
        try:
            while self._rest:
                sent = self._link.send(self._rest[0])
                if sent == len(self._rest[0]):
                    self._rest.pop(0)
                else:
                    self._rest[0] = self._rest[0][sent:]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._loop.call_soon(self._shut)
            return False
        return True

    def _announce(self) -> None:
        """What was written is seen."""

    @property
    def parked_bytes(self) -> int:
        return self._parked_bytes + sum(map(len, self._rest))

    def _is_idle(self) -> bool:
        return not self._parked and not self._rest

    def _watch_room(self) -> None:
        self._watching_room = True
        self._loop.add_writer(self._link.fileno(), self._find_room)

    def _unwatch_room(self) -> None:
        self._watching_room = False
        self._loop.remove_writer(self._link.fileno())

    def _find_room(self) -> None:
        try:
            if self._write_rest():
                self._pump()
        except Exception as error:
            self._break(error)

    # ---- receiving ----

    def _read(self) -> None:
        """Read what is there, up to a bound."""
        try:
            if not self._read_once():
                self._shut()
                return
        except BlockingIOError:
            return
        except Exception as error:
            self._break(error)
            return
        if self._holds_a_frame():
            self._wake()
            if len(self._ahead) >= AHEAD_BYTES:
                self._watching_link = False
                self._loop.remove_reader(self._link.fileno())

    def _read_once(self) -> bool:
        """Read once; False at the end of the stream. Raises BlockingIOError when nothing is there."""
        try:
            chunk = self._link.recv(READ_BYTES)
        except ConnectionResetError:
            return False
        self._ahead += chunk
        return bool(chunk)

    def _holds_a_frame(self) -> bool:
        if len(self._ahead) < HEAD_BYTES:
            return False
        return len(self._ahead) - HEAD_BYTES >= self._head(0)[0]

    def _hear_last(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(LAST_READS_MAX):
                if not self._read_once():
                    break

    def _take_raw(self, into: list[bytes], bytes_max: int) -> None:
        ahead, at = self._ahead, 0
        with memoryview(ahead) as view:
            while len(ahead) >= at + HEAD_BYTES:
                body_bytes, count = self._head(at)
                if len(ahead) < at + HEAD_BYTES + body_bytes:
                    break
                at += HEAD_BYTES
                sizes: tuple[int, ...] = (body_bytes,)
                if count > 1:
                    sizes = lengths(ahead, at, body_bytes, count)
                    at += LENGTH_BYTES * count
                for size in sizes:
                    into.append(bytes(view[at : at + size]))
                    at += size
        del ahead[:at]
        if not self._watching_link and not self._closed:
            self._watching_link = True
            self._loop.add_reader(self._link.fileno(), self._read)

    def _head(self, at: int) -> tuple[int, int]:
        """Return the length of a body and its number of messages. Raises `ProtocolViolation` at what cannot be a frame."""
        body_bytes, count = HEAD.unpack_from(self._ahead, at)
        if count in {WRAP, HANDED} or body_bytes > self._message_bytes_max:
            raise ProtocolViolation(
                f"a frame of {body_bytes} bytes with {count} messages, and a message may have {self._message_bytes_max}"
            )
        return body_bytes, count

    # ---- the other end ----

    def _unwatch(self) -> None:
        if self._watching_link:
            self._watching_link = False
            self._loop.remove_reader(self._link.fileno())
        if self._watching_room:
            self._unwatch_room()
        if self._peer >= 0:
            self._loop.remove_reader(self._peer)

    def _close_descriptors(self) -> None:
        self._rest.clear()
        self._link.close()
        if self._peer >= 0:
            os.close(self._peer)
