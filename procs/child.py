"""A child of the supervisor, as the supervisor holds it: its process, and the way to talk to it.

It is forked and at once becomes a fresh interpreter: nothing of the supervisor is in it but the control socket, whose
descriptor stands in its arguments. `close` forgets it, and leaves the process alone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from enum import StrEnum

from .control import ControlClosed, ToChild, send


class Role(StrEnum):
    DISPATCHER = "dispatcher"
    EXECUTOR = "executor"


class Child:
    """One process. `index` is the shard of a dispatcher, the number of an executor."""

    def __init__(self, role: Role, index: int) -> None:
        self.role, self.index = role, index
        self.is_ready = self.is_leaving = False
        self.why = ""  # it cannot boot
        self.started_at = time.monotonic()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", f"dwarf.procs.{role}", str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
                self.pidfd = os.pidfd_open(self._process.pid)
            except BaseException:
                self.control.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived(self) -> float:
        return time.monotonic() - self.started_at

    def tell(self, message: ToChild, descriptors: list[int] | None = None) -> None:
        """Tell it something; one that is gone will be noticed by its end."""
        with suppress(ControlClosed):
            send(self.control, message, descriptors)

    def reap(self) -> int:
        """Wait for its end and return how it ended: an exit code, or minus the signal."""
        return self._process.wait()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.control.close()
        os.close(self.pidfd)

    def __repr__(self) -> str:
        return f"{self.role} {self.index} (pid {self.pid})"
