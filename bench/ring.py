"""The ring between two processes, beside a socketpair and multiprocessing.Pipe: messages and bytes a second, processor time a message.

    python -m bench.ring                                   everything, three runs: some three minutes
    python -m bench.ring --carriers ring --sizes 200 --batches 100 --seconds 10
    python -m bench.ring --steps                           what a dispatcher pays for a linear step, and nothing else

One process sends as fast as the other takes. A batch is what one turn of the sender's loop sends. `ring` and `stream` are the
channels of `dwarf.procs`; `socketpair` and `Pipe` are blocking and know no loop: one system call, or more, a message.

In the second table one side answers every message of reports with one that commits them, as a dispatcher does; `coded` tells
whether messages are encoded and decoded, or travel as bytes that nobody looks at: then what is left is the channel.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable, Coroutine
from multiprocessing import Pipe
from typing import Any

import msgspec

from dwarf.channel import ChannelClosed
from dwarf.procs.ends import End
from dwarf.procs.pairs import Handle, Kind, Pair, create_pair, open_end
from dwarf.record import Kind as RecordKind
from dwarf.record import Record
from dwarf.status import StepStatus
from dwarf.wire import Committed, Report, Reports, decode_for_dispatcher, decode_for_executor, encode

CARRIERS = ("ring", "stream", "socketpair", "Pipe")
SIZES = (200, 4096, 1_000_000)
BATCHES = (1, 10, 100)
MESSAGES_MIN = 200
LENGTH = struct.Struct("<I")


class Side(msgspec.Struct):
    """What one process did: messages, seconds by the clock from the first to the last, processor time."""

    messages: int
    seconds: float
    cpu_seconds: float


class Meter:
    """Measures one side from its first message to its last."""

    def __init__(self) -> None:
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    def read(self, messages: int) -> Side:
        return Side(messages, time.perf_counter() - self._clock, time.process_time() - self._cpu)


# ---- the two sides of each carrier ----


async def send_over(end: End[bytes, bytes], *, message: bytes, batch: int, seconds: float) -> Side:
    await end.receive()  # the other side is there
    meter, sent = Meter(), 0
    until = time.perf_counter() + seconds
    while sent < MESSAGES_MIN or time.perf_counter() < until:
        for _ in range(batch):
            end.send(message)
        sent += batch
        await (end.flushed() if end.parked_bytes else asyncio.sleep(0))
    end.send(b"")
    await end.flushed()
    side = meter.read(sent)
    await end.receive()
    return side


async def receive_over(end: End[bytes, bytes]) -> Side:
    end.send(b"go")
    meter, received = Meter(), 0
    while True:
        messages = await end.receive()
        received += len(messages)
        if not messages[-1]:
            side = meter.read(received - 1)
            end.send(b"done")
            await end.flushed()
            return side


def send_blocking(write: Callable[[bytes], Any], *, message: bytes, seconds: float, batch: int) -> Side:
    meter, sent = Meter(), 0
    until = time.perf_counter() + seconds
    while sent < MESSAGES_MIN or time.perf_counter() < until:
        for _ in range(batch):
            write(message)
        sent += batch
    write(b"")
    return meter.read(sent)


def receive_blocking(read: Callable[[], bytes]) -> Side:
    meter, received = Meter(), 0
    while read():
        received += 1
    return meter.read(received)


def socket_writer(link: socket.socket) -> Callable[[bytes], None]:
    return lambda message: link.sendall(LENGTH.pack(len(message)) + message)


def socket_reader(link: socket.socket) -> Callable[[], bytes]:
    file = link.makefile("rb", buffering=256 << 10)

    def read() -> bytes:
        (length,) = LENGTH.unpack(file.read(4))
        return bytes(file.read(length))

    return read


# ---- two processes ----


def in_two_processes(sender: Callable[[], Side], receiver: Callable[[], Side]) -> tuple[Side, Side]:
    """Run the receiver in a child and the sender here; return what each did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, msgspec.json.encode(receiver()))
        finally:
            os._exit(0)
    os.close(writing)
    sent = sender()
    with open(reading, "rb") as answer:
        received = msgspec.json.decode(answer.read(), type=Side)
    os.waitpid(child, 0)
    return sent, received


def run(carrier: str, size: int, batch: int, arguments: argparse.Namespace) -> tuple[Side, Side]:
    message, seconds = bytes(size), arguments.seconds
    if carrier in {"ring", "stream"}:
        pair = create_pair(Kind[carrier.upper()])
        return in_two_processes(
            lambda: on_loop(arguments, pair, pair.near, lambda end: send_over(end, message=message, batch=batch, seconds=seconds)),
            lambda: on_loop(arguments, pair, pair.far, receive_over),
        )
    if carrier == "socketpair":
        near, far = socket.socketpair()
        with near, far:
            return in_two_processes(
                lambda: send_blocking(socket_writer(near), message=message, seconds=seconds, batch=batch),
                lambda: receive_blocking(socket_reader(far)),
            )
    return run_pipe(message, batch, seconds)


def run_pipe(message: bytes, batch: int, seconds: float) -> tuple[Side, Side]:
    far, near = Pipe(duplex=False)
    with near, far:
        return in_two_processes(
            lambda: send_blocking(near.send_bytes, message=message, seconds=seconds, batch=batch),
            lambda: receive_blocking(far.recv_bytes),
        )


def on_loop(
    arguments: argparse.Namespace,
    pair: Pair,
    handle: Handle,
    play: Callable[[End[Any, Any]], Coroutine[Any, Any, Side]],
    codec: tuple[Callable[[Any], bytes], Callable[[bytes], Any]] = (bytes, bytes),
) -> Side:
    """Open one end of a pair, close the other, and play on the chosen loop."""

    async def opened() -> Side:
        end = open_end(handle, encode=codec[0], decode=codec[1])
        pair.close()
        try:
            return await play(end)
        finally:
            end.close()

    if arguments.loop == "asyncio":
        return asyncio.run(opened())
    import uvloop

    return uvloop.run(opened())


# ---- what a dispatcher pays ----


def linear_report(ticket: int) -> Report:
    """A step of a linear flow that goes on: as an executor reports it."""
    record = Record(kind=RecordKind.ADVANCE, branch=0, seq=3, lease=7, status=StepStatus.COMPLETED, task="S4", changes=b'{"n":4}')
    return Report(ticket, record)


async def dispatch(end: End[Any, Any], *, batch: int, seconds: float, committed: Any) -> Side:
    """Take reports and answer each message with a commit, as a dispatcher does."""
    await end.receive()
    meter, steps = Meter(), 0
    until = time.perf_counter() + seconds
    end.send(committed)
    while time.perf_counter() < until:
        for _ in await end.receive():
            steps += batch
            end.send(committed)
    return meter.read(steps)


async def execute(end: End[Any, Any], *, batch: int, seconds: float, reports: Any) -> Side:
    """Answer each commit with the reports of as many steps."""
    end.send(reports)
    meter, steps = Meter(), 0
    try:
        while True:
            for _ in await end.receive():
                steps += batch
                end.send(reports)
    except ChannelClosed:
        return meter.read(steps)


def run_steps(carrier: str, batch: int, *, packed: bool, arguments: argparse.Namespace) -> tuple[Side, Side]:
    """Let one dispatcher and one executor exchange reports and commits; `packed`: as bytes that nobody encodes or decodes."""
    reports: Any = Reports([linear_report(ticket) for ticket in range(batch)])
    committed: Any = Committed(list(range(batch)), [])
    here: Any = (encode, decode_for_dispatcher)
    there: Any = (encode, decode_for_executor)
    if packed:
        reports, committed = encode(reports), encode(committed)
        here = there = (bytes, bytes)
    pair = create_pair(Kind[carrier.upper()])
    seconds = arguments.seconds
    return in_two_processes(
        lambda: on_loop(arguments, pair, pair.near, lambda end: dispatch(end, batch=batch, seconds=seconds, committed=committed), here),
        lambda: on_loop(arguments, pair, pair.far, lambda end: execute(end, batch=batch, seconds=seconds, reports=reports), there),
    )


# ---- tables ----


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ring", description=__doc__.partition("\n")[0])
    parser.add_argument("--carriers", default=",".join(CARRIERS))
    parser.add_argument("--sizes", type=numbers, default=list(SIZES))
    parser.add_argument("--batches", type=numbers, default=list(BATCHES))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--steps", action="store_true", help="reports and commits of linear steps alone")
    return parser.parse_args()


def median(sides: list[tuple[Side, Side]], of: Callable[[Side, Side], float]) -> float:
    return statistics.median(of(*each) for each in sides)


def print_steps(arguments: argparse.Namespace) -> None:
    print(f"{'carrier':<12}{'batch':>6}{'coded':>7}{'steps/s':>12}{'dispatcher us':>15}{'executor us':>13}")
    for batch, carrier, packed in itertools.product(arguments.batches, ("ring", "stream"), (True, False)):
        sides = [run_steps(carrier, batch, packed=packed, arguments=arguments) for _ in range(arguments.runs)]
        rate = median(sides, lambda dispatcher, _: dispatcher.messages / dispatcher.seconds)
        here = median(sides, lambda dispatcher, _: dispatcher.cpu_seconds / dispatcher.messages * 1e6)
        there = median(sides, lambda _, executor: executor.cpu_seconds / executor.messages * 1e6)
        print(f"{carrier:<12}{batch:>6}{'no' if packed else 'yes':>7}{rate:>12,.0f}{here:>15.2f}{there:>13.2f}", flush=True)


def print_carriers(arguments: argparse.Namespace) -> None:
    print(f"{'carrier':<12}{'bytes':>9}{'batch':>6}{'messages/s':>13}{'MB/s':>9}{'sender us':>11}{'receiver us':>13}")
    for size, batch, carrier in itertools.product(arguments.sizes, arguments.batches, arguments.carriers.split(",")):
        sides = [run(carrier, size, batch, arguments) for _ in range(arguments.runs)]
        rate = median(sides, lambda _, receiver: receiver.messages / receiver.seconds)
        here = median(sides, lambda sender, _: sender.cpu_seconds / sender.messages * 1e6)
        there = median(sides, lambda _, receiver: receiver.cpu_seconds / receiver.messages * 1e6)
        print(f"{carrier:<12}{size:>9,}{batch:>6}{rate:>13,.0f}{rate * size / 1e6:>9,.0f}{here:>11.2f}{there:>13.2f}", flush=True)


def main() -> None:
    arguments = parse()
    print(f"load average {os.getloadavg()[0]:.1f}; {arguments.loop}; medians of {arguments.runs} runs of {arguments.seconds:g} s")
    if not arguments.steps:
        print_carriers(arguments)
    print_steps(arguments)


if __name__ == "__main__":
    main()
