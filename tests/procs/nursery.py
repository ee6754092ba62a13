"""Processes for tests to kill: one interpreter, started once, that forks a child for every end it is handed.

    python -m tests.procs.nursery DESCRIPTOR      the descriptor is its control socket

The nursery takes an end and an order, forks, tells the child's process id, waits for its death and tells how it died. A child
plays one of the parts below. With `die_at` it kills itself when it comes to that many lines of the code under test.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

import msgspec
import uvloop

from dwarf.procs import ends
from dwarf.procs.pairs import Handle, hand_over, open_end, take_over
from tests.procs.rig import receive_all

PROCS = Path(ends.__file__).parent
TRACED = {str(PROCS / name) for name in ("ends.py", "frames.py", "ring.py", "ring_end.py", "stream_end.py")}
# What a turn sends, as sizes: several in one frame, an empty one, one that is handed over, more than a ring of 512 bytes holds.
TURNS = ((5, 0, 30), (61,), (5000,), (100, 110, 90, 2000, 77, 104), (1,))
RING_BYTES = 512


class Order(msgspec.Struct):
    """What a child is to do. `seed` draws what `streams` sends."""

    part: str
    die_at: int = 0
    seed: int = 0
    loop: str = "asyncio"
    message_bytes_max: int = 1 << 20
    peer: bool = False


class Birth(msgspec.Struct):
    pid: int


class Death(msgspec.Struct):
    """How a child ended: by which signal (0: by itself) or error, how many messages had surely left it, how many lines it came to."""

    signal: int
    sent: int
    lines: int
    error: str


def messages() -> list[list[bytes]]:
    """What `writes` sends, by turns. Every message says which it is."""
    made: list[list[bytes]] = []
    number = 0
    for sizes in TURNS:
        made.append([bytes([(number + place) % 251]) * size for place, size in enumerate(sizes)])
        number += len(sizes)
    return made


def drawn(seed: int, count: int) -> list[bytes]:
    """What `streams` begins with."""
    chance = random.Random(seed)
    return [bytes([number % 251]) * chance.choice((0, 1, 7, 40, 100, 119, 120, 121, 300, 4000)) for number in range(count)]


# ---- this side ----


class Nursery:
    """The nursery as tests see it."""

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.procs.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2])
        self._answers = self._control.makefile("rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._control.close()
        self._process.wait()

    def bear(self, handle: Handle, order: Order) -> int:
        """Hand an end to a new child and return its process id. The handle is closed."""
        with handle:
            hand_over(self._control, handle)
        self._control.sendall(msgspec.json.encode(order) + b"\n")
        return msgspec.json.decode(self._answers.readline(), type=Birth).pid

    def death(self) -> Death:
        """Wait for the death of the last child."""
        return msgspec.json.decode(self._answers.readline(), type=Death)


# ---- the other side ----


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    while True:
        try:
            handle = take_over(control)
        except ends.ChannelClosed:
            return
        order = msgspec.json.decode(_line(control), type=Order)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _live(handle, order, writing)
        handle.close()
        os.close(writing)
        control.sendall(msgspec.json.encode(Birth(pid)) + b"\n")
        _, status = os.waitpid(pid, 0)
        with open(reading, encoding="utf-8") as notes:
            told = dict(note.split(" ", 1) for note in notes.read().splitlines())
        died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        death = Death(died_of, int(told.get("sent", 0)), int(told.get("lines", 0)), told.get("error", ""))
        control.sendall(msgspec.json.encode(death) + b"\n")


def _line(control: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += control.recv(1)
    return line


def _live(handle: Handle, order: Order, notes: int) -> None:
    try:
        child = Child(order, notes)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if order.loop == "uvloop" else None) as runner:
            runner.run(child.play(handle))
        os.write(notes, b"lines %d\n" % child.lines)
    except BaseException as error:
        os.write(notes, f"error {error!r}\n".encode())
    finally:
        os._exit(0)


class Child:
    """One child, its part, and the lines it has come to."""

    def __init__(self, order: Order, notes: int) -> None:
        self.order, self.notes = order, notes
        self.lines = 0

    async def play(self, handle: Handle) -> None:
        end: Any = open_end(handle, encode=bytes, decode=bytes, message_bytes_max=self.order.message_bytes_max)
        if self.order.part in {"writes", "echoes"}:
            self._trace()
        try:
            await getattr(self, self.order.part)(end)
        finally:
            sys.settrace(None)

    async def writes(self, end: Any) -> None:
        """Send what `messages` says, noting how much has surely left."""
        sent = 0
        for turn in messages():
            for message in turn:
                end.send(message)
            await end.flushed()
            sent += len(turn)
            os.write(self.notes, b"sent %d\n" % sent)
        end.close()

    async def echoes(self, end: Any) -> None:
        """Send back whatever comes."""
        try:
            while True:
                for message in await end.receive():
                    end.send(message)
        except ends.ChannelClosed:
            end.close()

    async def streams(self, end: Any) -> None:
        """Send until it is killed."""
        for number, message in enumerate(drawn(self.order.seed, 100_000)):
            end.send(message)
            if number % 7 == 0:
                await end.flushed()
        await end.flushed()
        await asyncio.Event().wait()

    async def forks(self, end: Any) -> None:
        """Leave a process behind that lives on, tell its id, and be killed."""
        pid = os.fork()
        if pid == 0:
            signal.alarm(300)  # should the test not come to kill it
            signal.pause()
            os._exit(0)
        end.send(b"%d" % pid)
        await end.flushed()
        os.kill(os.getpid(), signal.SIGKILL)

    async def receives(self, end: Any) -> None:
        """Take everything, then end."""
        received = await receive_all(end)
        os.write(self.notes, b"sent %d\n" % len(received))

    def _trace(self) -> None:
        def count(frame: FrameType, event: str, _: object) -> Any:
            if event == "line":
                self.lines += 1
                if self.lines == self.order.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return count

        def enter(frame: FrameType, event: str, argument: object) -> Any:
            return count if frame.f_code.co_filename in TRACED else None

        sys.settrace(enter)


if __name__ == "__main__":
    main(int(sys.argv[1]))
