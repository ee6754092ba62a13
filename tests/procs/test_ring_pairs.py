"""Making a pair and handing it over: what travels, what does not match, what is closed when it fails."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from typing import Any

import pytest

from dwarf.channel import ChannelClosed
from dwarf.procs import pairs
from dwarf.procs.pairs import Kind, Label, RingMismatch, create_pair, hand_over, open_end, preferred_kind, take_over, unpack
from tests.procs.nursery import Nursery, Order
from tests.procs.rig import both_kinds, on_both_loops, open_descriptors, receive, receive_all

BYTES = {"encode": bytes, "decode": bytes}


@both_kinds
@on_both_loops
async def test_ends_travel_over_control_sockets(kind: Kind) -> None:
    before = open_descriptors()
    near_control, far_control = socket.socketpair()
    with near_control, far_control:
        with create_pair(kind) as pair:
            hand_over(near_control, pair.near)
            hand_over(near_control, pair.far)
        one: Any = open_end(take_over(far_control), **BYTES)
        other: Any = open_end(take_over(far_control), **BYTES)
        for descriptor, _ in open_descriptors() - before:
            assert not os.get_inheritable(descriptor)
    one.send(b"there")
    other.send(b"and back")
    assert await other.receive() == [b"there"]
    assert await one.receive() == [b"and back"]
    one.close()
    other.close()
    assert open_descriptors() == before


@both_kinds
@on_both_loops
async def test_what_is_sent_before_the_other_end_is_open_waits(kind: Kind) -> None:
    pair = create_pair(kind, ring_bytes=1024)
    one: Any = open_end(pair.near, **BYTES)
    sent = [bytes(number) for number in range(0, 3000, 7)]
    for message in sent:
        one.send(message)
    one.send(b"")
    other: Any = open_end(pair.far, **BYTES)
    assert await receive(other, len(sent) + 1) == [*sent, b""]
    one.close()
    assert await receive_all(other) == []


@both_kinds
@on_both_loops
async def test_an_end_that_is_never_opened_closes_the_other(kind: Kind) -> None:
    pair = create_pair(kind)
    one: Any = open_end(pair.near, **BYTES)
    pair.close()
    pair.close()
    assert await receive_all(one) == []


def test_a_handle_is_used_once() -> None:
    with create_pair() as pair:
        label, descriptors = pair.near.pack()
        assert len(descriptors) == 6
        assert pair.near.release() == descriptors
        assert pair.near.release() == []
        pair.near.close()
        unpack(label, descriptors).close()


# ---- what does not match ----


def changed(label: bytes, **change: Any) -> bytes:
    names = ("magic", "version", "kind", "place", "ring_bytes", "message_bytes_max")
    return bytes(pairs.LABEL.pack(*(dict(zip(names, pairs.LABEL.unpack(label), strict=True)) | change).values()))


@both_kinds
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "a ring of version 2: this process knows version 1"),
        ({"magic": b"somebody"}, "begins with b'dwarf-rg', not b'somebody'"),
        ({"kind": 9}, "an end of kind 9"),
        ({"place": 2}, "at place 2"),
    ],
)
def test_a_label_of_another_kind_is_refused(kind: Kind, change: dict[str, Any], complaint: str) -> None:
    with create_pair(kind) as pair:
        label, _ = pair.near.pack()
        with pytest.raises(RingMismatch, match=complaint):
            unpack(changed(label, **change), pair.near.release())


@both_kinds
def test_another_number_of_descriptors_is_refused(kind: Kind) -> None:
    with create_pair(kind) as pair:
        label, _ = pair.near.pack()
        descriptors = pair.near.release()
        with pytest.raises(RingMismatch, match=f"{len(descriptors) + 2} descriptors came with an end of kind {kind.name}"):
            unpack(label, [*descriptors, os.dup(0), os.dup(0)])
        with pytest.raises(RingMismatch, match="0 descriptors came"):
            unpack(label, [])
        with pytest.raises(RingMismatch, match=f"has {pairs.LABEL.size} bytes, not 3"):
            unpack(label[:3], [])


@both_kinds
@on_both_loops
async def test_another_maximum_is_refused_by_name(kind: Kind) -> None:
    with create_pair(kind, message_bytes_max=1000) as pair:
        with pytest.raises(RingMismatch, match="a ring for messages of 1000 bytes: this process uses 2000"):
            open_end(pair.near, **BYTES, message_bytes_max=2000)
        other: Any = open_end(pair.far, **BYTES, message_bytes_max=1000)
        assert await receive_all(other) == []  # the one that refused has closed its own


@on_both_loops
async def test_memory_that_says_something_else_is_refused() -> None:
    for change, complaint in (({"version": 7}, "a ring of version 7"), ({"message_bytes_max": 5}, "the memory of a ring says")):
        with create_pair() as pair:
            label, descriptors = pair.near.pack()
            os.pwrite(descriptors[1], changed(label, **change), 0)
            with pytest.raises(RingMismatch, match=complaint):
                open_end(pair.near, **BYTES)


@on_both_loops
async def test_memory_of_another_size_or_that_could_shrink_is_refused() -> None:
    with create_pair() as pair:
        label, descriptors = pair.near.pack()
        size = os.fstat(descriptors[1]).st_size
        loose = os.memfd_create("loose", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.pwrite(loose, label, 0)
        os.dup2(loose, descriptors[1], inheritable=False)
        with pytest.raises(RingMismatch, match=f"take {size} bytes of memory, this one has {len(label)}"):
            open_end(pair.near, **BYTES)
        os.ftruncate(loose, size)
        os.dup2(loose, pair.far.pack()[1][1], inheritable=False)
        with pytest.raises(RingMismatch, match="is sealed against any change of its size"):
            open_end(pair.far, **BYTES)
        os.close(loose)


def test_the_memory_of_a_pair_cannot_be_cut_off() -> None:
    with create_pair() as pair:
        memory = pair.near.pack()[1][1]
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


@pytest.mark.parametrize("ring_bytes", [0, 8, 255, 257, -4096, (1 << 30) + 8])
def test_sizes_that_are_not_possible_are_refused(ring_bytes: int) -> None:
    with pytest.raises(RingMismatch, match=f"a ring of {ring_bytes} bytes"):
        create_pair(ring_bytes=ring_bytes)


@pytest.mark.parametrize("maximum", [0, -1, (1 << 30) + 1])
def test_maxima_that_are_not_possible_are_refused(maximum: int) -> None:
    with pytest.raises(RingMismatch, match=f"messages of up to {maximum} bytes"):
        create_pair(message_bytes_max=maximum)


def test_a_process_with_another_maximum_lets_go(nursery: Nursery) -> None:
    pair = create_pair(message_bytes_max=1 << 20)
    nursery.bear(pair.far, Order("receives", message_bytes_max=1 << 10))
    pair.close()
    assert nursery.death().error == "RingMismatch('a ring for messages of 1048576 bytes: this process uses 1024')"


# ---- systems and moments that have not everything ----


def test_rings_where_the_system_has_them_and_streams_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preferred_kind() is Kind.RING
    with create_pair() as pair:
        assert pair.near.label.kind is Kind.RING
    for name in ("memfd_create", "eventfd"):
        with monkeypatch.context() as without:
            without.delattr(os, name)
            assert preferred_kind() is Kind.STREAM
            with create_pair() as pair:
                assert pair.far.label == Label(Kind.STREAM, 1, pairs.RING_BYTES, pairs.MESSAGE_BYTES_MAX)


@pytest.mark.parametrize("name", ["memfd_create", "eventfd"])
def test_a_kernel_that_refuses_is_one_that_has_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> Any:
        def refused(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return refused

    monkeypatch.setattr(os, name, refuse(errno.EPERM))
    assert preferred_kind() is Kind.STREAM
    monkeypatch.setattr(os, name, refuse(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        preferred_kind()


@pytest.mark.parametrize("fails_at", range(1, 5))
def test_a_pair_that_cannot_be_made_leaves_nothing_open(fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    real = os.eventfd

    def eventfd(*arguments: int) -> int:
        nonlocal made
        made += 1
        if made == fails_at:
            raise OSError(errno.EMFILE, "too many")
        return real(*arguments)

    before = open_descriptors()
    monkeypatch.setattr(os, "eventfd", eventfd)
    with pytest.raises(OSError, match="too many"):
        create_pair(Kind.RING)
    assert open_descriptors() == before


def test_a_control_socket_that_is_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(ChannelClosed, match="the control socket was closed"):
            take_over(ours)


def test_an_order_without_descriptors_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, create_pair() as pair:
        theirs.send(pair.near.pack()[0])
        with pytest.raises(RingMismatch, match="0 descriptors came with an end of kind RING"):
            take_over(ours)


def test_more_descriptors_than_an_end_has_are_refused_and_closed() -> None:
    ours, theirs = socket.socketpair()
    before = open_descriptors()
    with ours, theirs, create_pair() as pair:
        label, descriptors = pair.near.pack()
        socket.send_fds(theirs, [label], [*descriptors, *descriptors])
        with pytest.raises(RingMismatch, match="not all descriptors of an end arrived"):
            take_over(ours)
    assert len(open_descriptors()) <= len(before)
