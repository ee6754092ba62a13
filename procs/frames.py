"""How messages stand one behind the other, on a ring or in a stream. Pure: owns the layout of a frame, no descriptor and no memory.

A frame is what one turn of a loop has sent, or a part of it:

    4 bytes   length of what follows the head: the body
    2 bytes   messages in it
    2 bytes   kind
    PLAIN     body: the length of each message as 4 bytes, unless there is only one; then the messages
    HANDED    no body here: its one message is in a memfd of that many bytes, which travels over the pair's socket
    WRAP      nothing more up to the end of the ring, the next frame stands at its beginning

All numbers are little-endian.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from dwarf.wire import ProtocolViolation

PLAIN, HANDED, WRAP = 1, 2, 3
MESSAGES_MAX = 4_096  # in one frame
HEAD = Struct("<IHH")
HEAD_BYTES = HEAD.size
LENGTH_BYTES = 4
WRAP_HEAD = HEAD.pack(0, 0, WRAP)


class Frame(NamedTuple):
    """A frame to write. `head` is the head with the lengths behind it, `size` the bytes of head, lengths and messages."""

    head: bytes
    messages: list[bytes]
    size: int


def frame_of(messages: list[bytes], message_bytes: int) -> Frame:
    """Lay out messages that are `message_bytes` long together."""
    count = len(messages)
    if count == 1:
        return Frame(HEAD.pack(message_bytes, 1, PLAIN), messages, HEAD_BYTES + message_bytes)
    table = LENGTH_BYTES * count
    head = pack(f"<IHH{count}I", table + message_bytes, count, PLAIN, *map(len, messages))
    return Frame(head, messages, HEAD_BYTES + table + message_bytes)


def lengths(memory: mmap | bytearray, at: int, body_bytes: int, count: int) -> tuple[int, ...]:
    """Return how long each message of the body at `at` is. Raises `ProtocolViolation` unless they are exactly the body."""
    if count == 1:
        return (body_bytes,)
    if not 0 < count <= MESSAGES_MAX or body_bytes < LENGTH_BYTES * count:
        raise ProtocolViolation(f"a frame of {body_bytes} bytes says that it holds {count} messages")
    found: tuple[int, ...] = unpack_from(f"<{count}I", memory, at)
    if sum(found) != body_bytes - LENGTH_BYTES * count:
        raise ProtocolViolation(f"the {count} messages of a frame are {sum(found)} bytes, its body has {body_bytes - LENGTH_BYTES * count}")
    return found
