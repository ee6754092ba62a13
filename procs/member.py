"""What the children of a supervisor have in common: the talk with it, on a loop of their own, and how they end.

Signals are the supervisor's matter: a Ctrl-C that reaches the whole group is ignored here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module

from dwarf.config import Config

from .control import Attach, Configure, ControlClosed, Drain, FromChild, Retire, Unfit, receive_in_child, send
from .logs import set_up, title

EX_CONFIG = 78

log = logging.getLogger("dwarf.process")

Order = Attach | Retire | Drain


class Unbootable(Exception):
    """This process cannot do what it is for, and will not be able to when it is started again; the text says why."""


class Supervisor:
    """The supervisor as a child sees it. Orders come with the descriptors that are theirs; None stands for its death."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def tell(self, message: FromChild) -> None:
        with suppress(ControlClosed):  # whoever listens for orders will know
            send(self._control, message)

    async def orders(self, take: Callable[[Order | None, list[int]], None]) -> None:
        """Take orders until the supervisor is gone."""
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        readable = asyncio.Event()
        loop.add_reader(self._control, readable.set)
        try:
            while True:
                await readable.wait()
                try:
                    order, descriptors = receive_in_child(self._control)
                except BlockingIOError:
                    readable.clear()
                    continue
                assert not isinstance(order, Configure)
                take(order, descriptors)
        except ControlClosed:
            take(None, [])
        finally:
            loop.remove_reader(self._control)


Work = Callable[[Supervisor, int, Config], Awaitable[int]]


def serve(role: str, argv: list[str], work: Work) -> int:
    """Be a child: hear who to be, do `work` on a loop, and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(argv[0])) as control:
        told, _ = receive_in_child(control)
        assert isinstance(told, Configure)
        name = f"{role} {told.index}"
        set_up(name)
        title(name)
        supervisor = Supervisor(control)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(_run(work, supervisor, told))
        except Unbootable as error:
            supervisor.tell(Unfit(str(error)))
            log.error("cannot boot: %s", error)
            return EX_CONFIG


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's, where there is one for the system."""
    try:
        return import_module("uvloop").new_event_loop  # type: ignore[no-any-return]
    except ImportError:
        return None


async def _run(work: Work, supervisor: Supervisor, told: Configure) -> int:
    return await work(supervisor, told.index, Config.from_json(bytes(told.config)))
