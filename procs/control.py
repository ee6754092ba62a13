"""What the supervisor and its children say to each other, over one socket of packets per child. Owns no process and no loop.

    Configure                 to a child, first: who it is and what the replica is told
    Attach (+ descriptors)    an end to talk to a peer with: executor n, or the dispatcher of shard n
    Retire                    to a dispatcher: give executor n nothing more, and part from it once it has nothing
    Drain                     start nothing new, let what runs end for so long, hand back the rest, and exit
    Ready                     from a child: it has booted, and takes what it is attached to
    Unfit                     from a child: it cannot boot, and why; it exits

The end of the socket tells a child that the supervisor is gone, and the supervisor that a child is.
"""

from __future__ import annotations

import array
import os
import socket

import msgspec

from dwarf.errors import DwarfError

MESSAGE_BYTES_MAX = 128 << 10
DESCRIPTORS_MAX = 8


class ControlClosed(DwarfError):
    """The process at the other side of a control socket is gone."""


class Configure(msgspec.Struct, tag=True, frozen=True):
    """`index` is the shard of a dispatcher, the number of an executor; `config` what `dwarf.config` makes of it."""

    index: int
    config: msgspec.Raw


class Attach(msgspec.Struct, tag=True, frozen=True):
    """`peer` is the number of the executor, or the shard of the dispatcher, at the other end; `label` goes with the descriptors."""

    peer: int
    label: bytes


class Retire(msgspec.Struct, tag=True, frozen=True):
    peer: int
    grace: float


class Drain(msgspec.Struct, tag=True, frozen=True):
    grace: float


class Ready(msgspec.Struct, tag=True, frozen=True):
    pass


class Unfit(msgspec.Struct, tag=True, frozen=True):
    why: str


ToChild = Configure | Attach | Retire | Drain
FromChild = Ready | Unfit

_for_child = msgspec.json.Decoder(ToChild)
_for_supervisor = msgspec.json.Decoder(FromChild)


def send(control: socket.socket, message: ToChild | FromChild, descriptors: list[int] | None = None) -> None:
    """Send a message, with descriptors, of which the receiver gets copies. Raises `ControlClosed`."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    encoded = msgspec.json.encode(message)
    assert len(encoded) <= MESSAGE_BYTES_MAX, len(encoded)
    try:
        control.sendmsg([encoded], rights)
    except (BrokenPipeError, ConnectionError) as error:
        raise ControlClosed("the process at the other side of the control socket is gone") from error


def receive_from_child(control: socket.socket) -> FromChild:
    """Receive what a child says. Raises `ControlClosed`."""
    packet, descriptors = _receive(control)
    for descriptor in descriptors:
        os.close(descriptor)
    return _for_supervisor.decode(packet)


def receive_in_child(control: socket.socket) -> tuple[ToChild, list[int]]:
    """Receive what the supervisor says, and the descriptors that came along, which are the caller's. Raises `ControlClosed`."""
    packet, descriptors = _receive(control)
    return _for_child.decode(packet), descriptors


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    cloexec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    try:
        packet, ancillary, _, _ = control.recvmsg(MESSAGE_BYTES_MAX, socket.CMSG_SPACE(4 * DESCRIPTORS_MAX), cloexec)
    except ConnectionError as error:
        raise ControlClosed("the process at the other side of the control socket is gone") from error
    if not packet:
        raise ControlClosed("the process at the other side of the control socket is gone")
    return packet, [descriptor for _, _, packed in ancillary for descriptor in array.array("i", packed)]
