"""How messages stand one behind the other, on a ring or in a stream. Pure: owns the layout of a frame, no descriptor and no memory.

A frame is what one turn of a loop has sent, or a part of it. Its head is two numbers of 4 bytes, little-endian: the length of
the *body*, which follows, and the number of messages in it. The body holds the length of each message as 4 bytes, unless
there is only one; then the messages. Two numbers of messages mean something else, and no body follows:

    HANDED    one message, in a memfd of that many bytes, which travels over the pair's socket
    WRAP      nothing more up to the end of the ring: the next frame stands at its beginning
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from dwarf.wire import ProtocolViolation

WRAP, HANDED = 0, 0xFFFF_FFFF
HEAD = Struct("<II")
HEAD_BYTES = HEAD.size
LENGTH_BYTES = 4
WRAP_HEAD = HEAD.pack(0, WRAP)


class Frame(NamedTuple):
    """A frame to write. `head` is the head with the lengths behind it, `size` the bytes of head, lengths and messages."""

    head: bytes
    messages: list[bytes]
    size: int


def frame_of(messages: list[bytes], message_bytes: int) -> Frame:
    """Lay out messages that are `message_bytes` long together."""
    count = len(messages)
    if count == 1:
        return Frame(HEAD.pack(message_bytes, 1), messages, HEAD_BYTES + message_bytes)
    body_bytes = LENGTH_BYTES * count + message_bytes
    head = pack(f"<II{count}I", body_bytes, count, *map(len, messages))
    return Frame(head, messages, HEAD_BYTES + body_bytes)


def lengths(memory: mmap | bytearray, at: int, body_bytes: int, count: int) -> tuple[int, ...]:
    """Return how long each of the `count` > 1 messages of the body at `at` is, none of which need be there.

    Raises `ProtocolViolation` unless lengths and messages are exactly the body.
    """
    message_bytes = body_bytes - LENGTH_BYTES * count
    if message_bytes < 0:
        raise ProtocolViolation(f"a frame of {body_bytes} bytes says that it holds {count} messages")
    found: tuple[int, ...] = unpack_from(f"<{count}I", memory, at)
    if sum(found) != message_bytes:
        raise ProtocolViolation(f"the {count} messages of a frame are {sum(found)} bytes, its body has room for {message_bytes}")
    return found
