"""A replica as the tests see it: the process tree that `dwarf serve` starts, and looks at it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
WAIT_SECONDS_MAX = 60.0


class Tree:
    """One `dwarf serve`. Whatever is left of it at the end is killed."""

    def __init__(self, dsn: str, logs: Path, app: str = "tests.replica.app:app", **settings: Any) -> None:
        self._log = logs / "log"
        told = {"DWARF_DSN": dsn, **{f"DWARF_{name.upper()}": str(value) for name, value in settings.items()}}
        self._sink = self._log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dwarf", "serve", app], cwd=ROOT, env={**os.environ, **told}, stderr=self._sink, stdout=self._sink
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        left = [*self.pids("dispatcher"), *self.pids("executor")]
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._sink.close()
        if error is not None:
            print(self._log.read_text()[-20_000:])

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What has been logged, line by line."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def logged(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if text in line["message"]]

    def pids(self, role: str) -> list[int]:
        """Return the processes of a role, by their titles, those below this supervisor."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    title = (place / "cmdline").read_bytes().decode(errors="replace")
                    parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
                except (OSError, ValueError, IndexError):
                    continue
                if parent == self.process.pid and title.startswith(f"dwarf: {role} "):
                    found.append(int(place.name))
        return sorted(found)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self) -> int:
        """Wait for its end and return its exit code."""
        await until(lambda: self.process.poll() is not None, "the supervisor has ended")
        return self.process.returncode


async def until(is_so: Callable[[], Any], what: str) -> Any:
    """Look again and again until something is so, and return it."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        found = is_so()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"still not so: {what}"
        await asyncio.sleep(0.01)
