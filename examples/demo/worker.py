"""The demo's engine process. It runs flows until its standard input closes, and may be killed at any moment.

python -m examples.demo.worker DSN JOURNAL
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dwarf import Engine, Shard
from examples import agent, audit, checkout
from examples.demo.journal import Journal, combine

WORKERS, THREADS = 16, 4  # steps at one time, and those of them that take a thread: nearly all of these keep a core busy
SESSION_SECONDS = 6  # after so long without a sign of life, others take over what this process was at


async def main(dsn: str, journal: Path) -> None:
    app = await combine([audit.app, checkout.app, agent.app], Journal(journal))
    async with Engine(app, shards=[Shard(1, dsn)], workers=WORKERS, threads=THREADS, session_seconds=SESSION_SECONDS):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)  # ends when whoever started this closes it, or dies


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
