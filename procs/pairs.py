"""Pairs of ends: made by one process, handed to the two that will talk. Owns their descriptors until they are opened.

    pair = create_pair()                            in the supervisor
    with pair:
        hand_over(control_of_dispatcher, pair.near)
        hand_over(control_of_executor, pair.far)
    end = open_at_dispatcher(take_over(control))    in the dispatcher, inside its loop

`pack` and `unpack` do the same for those who have messages of their own on the control socket. A pair is made for two processes
and never used again when one of them has died. Who made it must close its own copies, as the block above does; so must a
process that forks. Otherwise the end of file by which each side sees the other's death never comes; a `peer` (a pidfd of the
process at the other end) shows it all the same.

The memory of a pair of rings is one sealed memfd: a page that begins with the *label*, the ring from the near end to the far
one, the ring back. The label says what both processes must agree on, and travels beside the descriptors too.
"""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import socket
from collections.abc import Callable
from enum import IntEnum
from mmap import PAGESIZE, mmap
from struct import Struct
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from dwarf.channel import ChannelClosed
from dwarf.errors import DwarfError
from dwarf.wire import ToDispatcher, ToExecutor, decode_for_dispatcher, decode_for_executor, encode

from .ends import MESSAGE_BYTES_MAX, End
from .ring import ALIGNMENT, RING_BYTES_MAX, RING_BYTES_MIN
from .ring_end import RingEnd, RingParts
from .stream_end import StreamEnd

VERSION = 1
RING_BYTES = 4 << 20
LABEL = Struct("<8sHBBIQ")  # magic, version, kind, place, bytes of each ring, bytes of a message at most
MAGIC = b"dwarf-rg"
DESCRIPTORS_MAX = 8

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class RingMismatch(DwarfError):
    """The two processes, or a process and the memory it was given, do not agree on what a ring is."""


class Kind(IntEnum):
    """What a pair is made of."""

    RING = 1
    STREAM = 2


class Label(NamedTuple):
    """What both ends must agree on, and which of the two this is: 0 is the near one."""

    kind: Kind
    place: int
    ring_bytes: int
    message_bytes_max: int

    def pack(self) -> bytes:
        return LABEL.pack(MAGIC, VERSION, self.kind, self.place, self.ring_bytes, self.message_bytes_max)


class Handle:
    """An end that has not been opened: its descriptors and its label. Closing it twice is fine."""

    def __init__(self, label: Label, descriptors: list[int]) -> None:
        self.label = label
        self._descriptors = descriptors

    def pack(self, *, peer: int | None = None) -> tuple[bytes, list[int]]:
        """Return what to send to the process that will open it. The descriptors stay this handle's: send, then close.

        `peer` is a pidfd of the process at the other end.
        """
        return self.label.pack(), [*self._descriptors, *([] if peer is None else [peer])]

    def release(self) -> list[int]:
        """Give the descriptors away."""
        descriptors, self._descriptors = self._descriptors, []
        return descriptors

    def close(self) -> None:
        for descriptor in self.release():
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Pair:
    """Two ends that belong together."""

    def __init__(self, near: Handle, far: Handle) -> None:
        self.near, self.far = near, far

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


# ---- making a pair ----


def preferred_kind() -> Kind:
    """Return RING where the system has what it takes."""
    if not (hasattr(os, "memfd_create") and hasattr(os, "eventfd")):
        return Kind.STREAM
    try:
        os.close(os.memfd_create("dwarf-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL}:  # not in this kernel, or filtered
            return Kind.STREAM
        raise
    return Kind.RING


def create_pair(kind: Kind | None = None, *, ring_bytes: int = RING_BYTES, message_bytes_max: int = MESSAGE_BYTES_MAX) -> Pair:
    """Make a pair, of rings where that is possible. `ring_bytes` is the size of each ring, a multiple of 8."""
    if kind is None:
        kind = preferred_kind()
    if not RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX or ring_bytes % ALIGNMENT:
        raise RingMismatch(f"a ring of {ring_bytes} bytes: a multiple of {ALIGNMENT} from {RING_BYTES_MIN} to {RING_BYTES_MAX} is possible")
    if not 0 < message_bytes_max <= MESSAGE_BYTES_MAX:
        raise RingMismatch(f"messages of up to {message_bytes_max} bytes: the maximum may be 1 to {MESSAGE_BYTES_MAX}")
    near, far = (Handle(Label(kind, place, ring_bytes, message_bytes_max), []) for place in (0, 1))
    pair = Pair(near, far)
    try:
        for handle, link in zip((near, far), socket.socketpair(), strict=True):
            handle._descriptors.append(link.detach())
        if kind is Kind.RING:
            _add_rings(pair)
    except BaseException:
        pair.close()
        raise
    return pair


def _add_rings(pair: Pair) -> None:
    """Add memory and eventfds: records and credit of what the near end sends, then of what the far end sends."""
    label = pair.near.label
    memory = os.memfd_create("dwarf-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    pair.near._descriptors.append(memory)
    os.ftruncate(memory, PAGESIZE + 2 * label.ring_bytes)
    os.pwrite(memory, label.pack(), 0)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    for _ in range(4):
        pair.near._descriptors.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    for descriptor in pair.near._descriptors[1:]:
        pair.far._descriptors.append(os.dup(descriptor))


_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


# ---- handing an end over ----


def unpack(label: bytes, descriptors: list[int]) -> Handle:
    """Make a handle of what `pack` returned in another process. Raises `RingMismatch`; the descriptors are closed then."""
    handle = Handle(Label(Kind.STREAM, 0, 0, 0), descriptors)
    try:
        handle.label = _read_label(label)
        expected = 6 if handle.label.kind is Kind.RING else 1
        if len(descriptors) not in {expected, expected + 1}:
            raise RingMismatch(f"{len(descriptors)} descriptors came with an end of kind {handle.label.kind.name}, {expected} make one")
    except BaseException:
        handle.close()
        raise
    return handle


def hand_over(control: socket.socket, handle: Handle, *, peer: int | None = None) -> None:
    """Send an end to the process at the other side of a control socket. Close the handle afterwards."""
    label, descriptors = handle.pack(peer=peer)
    control.sendmsg([label], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


def take_over(control: socket.socket) -> Handle:
    """Receive an end. Raises `RingMismatch`, and `ChannelClosed` when the control socket is closed."""
    cloexec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    label, ancillary, flags, _ = control.recvmsg(LABEL.size, socket.CMSG_SPACE(4 * DESCRIPTORS_MAX), cloexec)
    descriptors = [descriptor for _, _, packed in ancillary for descriptor in array.array("i", packed)]
    if not label:
        raise ChannelClosed("the control socket was closed")
    if flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise RingMismatch("not all descriptors of an end arrived: this process may have too many open")
    for descriptor in descriptors if not cloexec else ():
        os.set_inheritable(descriptor, False)
    return unpack(label, descriptors)


def _read_label(packed: bytes) -> Label:
    if len(packed) != LABEL.size:
        raise RingMismatch(f"the label of an end has {LABEL.size} bytes, not {len(packed)}")
    magic, version, kind, place, ring_bytes, message_bytes_max = LABEL.unpack(packed)
    if magic != MAGIC:
        raise RingMismatch(f"the label of an end begins with {MAGIC!r}, not {magic!r}")
    if version != VERSION:
        raise RingMismatch(f"a ring of version {version}: this process knows version {VERSION}")
    if kind not in set(Kind) or place > 1:
        raise RingMismatch(f"an end of kind {kind} at place {place}")
    return Label(Kind(kind), place, ring_bytes, message_bytes_max)


# ---- opening an end ----


def open_at_dispatcher(handle: Handle) -> End[ToExecutor, ToDispatcher]:
    """Open the dispatcher's end of a pair."""
    return open_end(handle, encode=encode, decode=decode_for_dispatcher)


def open_at_executor(handle: Handle) -> End[ToDispatcher, ToExecutor]:
    """Open the executor's end of a pair."""
    return open_end(handle, encode=encode, decode=decode_for_executor)


def open_end(
    handle: Handle, *, encode: Callable[[Sent], bytes], decode: Callable[[bytes], Received], message_bytes_max: int = MESSAGE_BYTES_MAX
) -> End[Sent, Received]:
    """Make a channel of an end, on the running loop. The handle is used up, also when this raises `RingMismatch`."""
    with handle:
        asyncio.get_running_loop()
        label = handle.label
        if label.message_bytes_max != message_bytes_max:
            raise RingMismatch(f"a ring for messages of {label.message_bytes_max} bytes: this process uses {message_bytes_max}")
        if label.kind is Kind.STREAM:
            link, *peer = handle.release()
            return StreamEnd(_link(link), *(peer or [-1]), encode=encode, decode=decode, message_bytes_max=message_bytes_max)
        memory = _map(handle)
        return RingEnd(_parts(label, memory, handle.release()), encode=encode, decode=decode, message_bytes_max=message_bytes_max)


def _map(handle: Handle) -> mmap:
    """Map the memory of a pair of rings. Raises `RingMismatch` unless it is what the label says and can never shrink."""
    label, descriptor = handle.label, handle._descriptors[1]
    size = PAGESIZE + 2 * label.ring_bytes
    actual = os.fstat(descriptor).st_size
    if actual != size or label.ring_bytes < RING_BYTES_MIN or label.ring_bytes % ALIGNMENT:
        raise RingMismatch(f"two rings of {label.ring_bytes} bytes take {size} bytes of memory, this one has {actual}")
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise RingMismatch("the memory of a ring is sealed against any change of its size, this one is not")
    memory = mmap(descriptor, size)
    inside = _read_label(memory[: LABEL.size])
    if inside._replace(place=label.place) != label:
        memory.close()
        raise RingMismatch(f"the memory of a ring says {inside}, what came with it {label}")
    return memory


def _parts(label: Label, memory: mmap, descriptors: list[int]) -> RingParts:
    """Tell which ring and which eventfds are for what, as seen from this end."""
    link, memory_descriptor, near_records, near_credit, far_records, far_credit, *peer = descriptors
    os.close(memory_descriptor)
    near, far = (PAGESIZE, near_records, near_credit), (PAGESIZE + label.ring_bytes, far_records, far_credit)
    sends, receives = (far, near) if label.place else (near, far)
    return RingParts(memory, label.ring_bytes, *sends, *receives, _link(link), *(peer or [-1]))


def _link(descriptor: int) -> socket.socket:
    link = socket.socket(fileno=descriptor)
    link.setblocking(False)
    return link
