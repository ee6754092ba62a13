"""The supervisor: the parent of a replica's processes. It starts them, joins them, and starts again what ends.

One dispatcher per shard and `executors` executors, each pair of them joined by a pair of rings. It has no event loop, no
threads, no database connection and none of the user's code: nothing that could hang it. What it waits for is signals, the
control sockets and the ends (pidfds) of its children, and the time.

    SIGTERM SIGINT   stop claiming, let tasks run for the grace, hand back the rest, exit 0; a second one hands back at once
    SIGHUP           replace the executors one after the other, with the code as it is now
    SIGTTIN SIGTTOU  one executor more, one less

A child that ends is started again, with growing pauses. Where several in a row have never booted, that place is given up: the
others go on as they are, after a reload too, but where there are none the whole ends with 78.
"""

from __future__ import annotations

import heapq
import logging
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable
from itertools import count

import msgspec

from dwarf.config import Config

from .child import Child, Role
from .control import Attach, Configure, ControlClosed, Drain, Ready, Retire, Unfit, receive_from_child
from .logs import set_up, title
from .pairs import create_pair
from .restarts import Restarts

EX_CONFIG = 78
ENGINE_IDS = 1 << 62  # drawn from, when none is given
STOP_SECONDS_MAX = 15.0  # beyond the grace, until what is left is killed
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD)

log = logging.getLogger("dwarf.supervisor")


class Supervisor:
    """The tree of one replica. `run` returns the exit code."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._told = config.to_json()
        self._children: list[Child] = []
        self._restarts: dict[tuple[Role, int], Restarts] = {}
        self._numbers = count(1)  # of executors: none is used twice
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._turns = count()
        self._poll = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._replacing: list[Child] = []  # executors that a reload has yet to replace
        self._stops = 0
        self._code = 0

    # ---- its life ----

    def run(self) -> int:
        signals = self._listen()
        for shard in self._config.shards:
            self._start(Role.DISPATCHER, shard.index)
        for _ in range(self._config.settings.executors):
            self._start(Role.EXECUTOR, next(self._numbers))
        log.info("started", extra={"executors": self._config.settings.executors, "shards": len(self._config.shards)})
        while self._children or (self._timers and not self._stops):
            pause = None if not self._timers else max(self._timers[0][0] - time.monotonic(), 0) * 1000
            for descriptor, _ in self._poll.poll(pause):
                if descriptor == signals:
                    for number in os.read(signals, 64):
                        self._signalled(signal.Signals(number))
                elif descriptor in self._watched:  # nothing that came before in this round has ended it
                    self._watched[descriptor]()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()
        log.info("stopped", extra={"code": self._code})
        return self._code

    def _listen(self) -> int:
        """Have signals written to a pipe, and return the end to read."""
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        self._poll.register(readable, select.POLLIN)
        return readable

    def _signalled(self, number: signal.Signals) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                self._stop()
            case signal.SIGHUP:
                self._reload()
            case signal.SIGTTIN if not self._stops:
                self._start(Role.EXECUTOR, next(self._numbers))
            case signal.SIGTTOU if not self._stops and len(staying := self._staying) > 1:
                self._retire(staying[-1])
            case signal.SIGCHLD:
                self._reap_strangers()

    def _reap_strangers(self) -> None:
        """As the first process of a container: reap what has lost its parent. Children of ours are left to their pidfds."""
        ours = {child.pid for child in self._children}
        while os.getpid() == 1:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in ours:
                return
            os.waitpid(found.si_pid, 0)

    # ---- children ----

    @property
    def _staying(self) -> list[Child]:
        return [child for child in self._children if child.role is Role.EXECUTOR and not child.is_leaving]

    def _start(self, role: Role, index: int) -> Child:
        child = Child(role, index)
        self._children.append(child)
        child.tell(Configure(index, msgspec.Raw(self._told)))
        self._watch(child.control.fileno(), lambda: self._hear(child))
        self._watch(child.pidfd, lambda: self._ended(child))
        return child

    def _watch(self, descriptor: int, action: Callable[[], None]) -> None:
        self._watched[descriptor] = action
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def _hear(self, child: Child) -> None:
        try:
            message = receive_from_child(child.control)
        except ControlClosed:
            self._unwatch(child.control.fileno())
            return
        match message:
            case Ready():
                child.is_ready = True
                log.info("%s is ready", child)
                for other in self._children:
                    if other.is_ready and other.role is not child.role and not other.is_leaving:
                        dispatcher, executor = (child, other) if child.role is Role.DISPATCHER else (other, child)
                        self._join(dispatcher, executor)
                if self._replacing and child.role is Role.EXECUTOR:
                    self._retire(self._replacing.pop(0))
            case Unfit(why=why):
                child.why = why

    def _join(self, dispatcher: Child, executor: Child) -> None:
        with create_pair() as pair:
            for child, peer, handle in ((dispatcher, executor, pair.near), (executor, dispatcher, pair.far)):
                label, descriptors = handle.pack(peer=peer.pidfd)
                child.tell(Attach(peer.index, label), descriptors)

    def _ended(self, child: Child) -> None:
        """See to what remains of a child that has ended, and start it again."""
        while child.control.fileno() in self._watched and select.select([child.control], [], [], 0)[0]:
            self._hear(child)  # its last words
        self._unwatch(child.control.fileno())
        self._unwatch(child.pidfd)
        code = child.reap()
        self._children.remove(child)
        child.close()
        if child.is_leaving or self._stops:
            log.info("%s has ended: %s", child, _how(code))
            self._replace_next()
            if self._stops:
                self._stop_executors()
            return
        place = (child.role, child.index)
        restarts = self._restarts.setdefault(place, Restarts())
        pause = restarts.ended(lived=child.lived, is_ready=child.is_ready)
        if pause is None:
            log.critical("%s cannot boot: %s", child, child.why or _how(code))
            self._replacing.clear()
            if not any(other.role is child.role and other.is_ready for other in self._children):
                self._code = EX_CONFIG
                self._stop()
            return
        if child.is_ready:
            log.error("%s has ended: %s; it is started again in %g s", child, _how(code), pause)
        else:
            log.error("%s could not boot: %s; again in %g s", child, child.why or _how(code), pause)
        self._after(pause, lambda: None if self._stops else self._restart(child.role, child.index))

    def _restart(self, role: Role, index: int) -> None:
        self._start(role, index)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._turns), action))

    # ---- executors that leave ----

    def _reload(self) -> None:
        """Start an executor for each that there is; every one that becomes ready lets an old one leave."""
        if self._stops or self._replacing:
            return
        self._replacing = self._staying
        log.info("replacing %d executors", len(self._replacing))
        self._replace_next()

    def _replace_next(self) -> None:
        self._replacing = [child for child in self._replacing if child in self._children]
        if self._replacing and not self._stops and not any(not child.is_ready for child in self._staying):
            self._start(Role.EXECUTOR, next(self._numbers))

    def _retire(self, executor: Child) -> None:
        """Let an executor finish what it has, and end."""
        executor.is_leaving = True
        for child in self._children:
            if child.role is Role.DISPATCHER and child.is_ready:
                child.tell(Retire(executor.index, self._config.settings.grace))
        executor.tell(Drain(self._config.settings.grace))
        self._after(self._config.settings.grace + STOP_SECONDS_MAX, executor.kill)

    # ---- the end ----

    def _stop(self) -> None:
        """Stop in good order; at once when it was asked for before."""
        self._stops += 1
        grace = self._config.settings.grace if self._stops == 1 else 0.0
        log.info("stopping", extra={"grace": grace})
        for child in self._children:
            if child.role is Role.DISPATCHER:
                child.tell(Drain(grace))
        self._stop_executors()
        self._after(grace + STOP_SECONDS_MAX, self._kill_all)

    def _stop_executors(self) -> None:
        """Let the executors go once no dispatcher needs them."""
        if not any(child.role is Role.DISPATCHER for child in self._children):
            for child in self._children:
                child.is_leaving = True
                child.tell(Drain(0.0))

    def _kill_all(self) -> None:
        for child in self._children:
            log.error("%s does not end; it is killed", child)
            child.kill()


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def main(argv: list[str]) -> int:
    """Run a replica: `argv` names the descriptor from which to read what it is told (see `dwarf serve`)."""
    with open(int(argv[0]), "rb") as told:
        config = Config.from_json(told.read())
    set_up("supervisor")
    title("supervisor")
    if config.settings.engine_id is None:
        settings = msgspec.structs.replace(config.settings, engine_id=secrets.randbelow(ENGINE_IDS) + 1)
        config = msgspec.structs.replace(config, settings=settings)
    return Supervisor(config).run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
