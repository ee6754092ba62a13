"""One stream of log lines for a whole replica: JSON, one object a line, to standard error. And what processes are called.

A line has `time` (UTC), `level`, `logger`, `process` and `pid`, `message`, what was given as `extra`, and `trace` for an exception.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec
import setproctitle

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Lines(logging.Formatter):
    """Formats records of one process."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": os.getpid(),
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _PLAIN},
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up(process: str) -> None:
    """Write everything that is logged in this process, from INFO on, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def title(process: str) -> None:
    """Name this process for `ps` and `top`."""
    setproctitle.setproctitle(f"dwarf: {process}")
