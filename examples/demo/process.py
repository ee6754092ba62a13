"""The engine's process, seen from the demo: started, stopped, or killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_SECONDS_MAX, STOP_SECONDS_MAX = 60, 30
LOG_CHARS_SHOWN = 4_000


class WorkerFailed(Exception):
    """The engine's process ended by itself; the message is the end of its log."""


class Worker:
    """One `examples.demo.worker`. It ends with this process, however that ends: its standard input is closed then."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, dsn: str, journal: Path, log: Path) -> Worker:
        """Start one and wait until it runs flows."""
        command = [sys.executable, "-W", "ignore", "-m", "examples.demo.worker", dsn, str(journal)]
        with log.open("ab") as output:
            # A session of its own: an interrupt typed at the terminal reaches the demo, which then ends the worker.
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=output, start_new_session=True
            )
        worker = cls(process, log)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(START_SECONDS_MAX):
                if await process.stdout.readline() != b"ready\n":
                    await process.wait()
                    worker.check()
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise `WorkerFailed` when the process has ended."""
        if self._process.returncode is not None:
            log = self._log.read_text(errors="replace")[-LOG_CHARS_SHOWN:]
            raise WorkerFailed(f"the engine's process ended with exit code {self._process.returncode}:\n{log}")

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """Let it finish what it is at. Raises `TimeoutError` when it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await self._process.wait()
