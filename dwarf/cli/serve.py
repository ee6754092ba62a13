"""`dwarf serve`: become the supervisor of a replica."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from dwarf.config import Config, load

PROCESS = "dwarf.procs.supervisor"


@click.command("serve")
@click.argument("app", required=False)
@click.option("--config", "path", type=click.Path(path_type=Path), help="Read this file, not ./dwarf.toml.")
@click.option("--dsn", help="The database of the one shard.")
@click.option("--executors", help="How many processes run tasks.")
@click.option("--workers", help="How many tasks run at one time in each of them.")
@click.option("--grace", help="How long tasks may go on once it is told to stop, such as 30s.")
def serve(app: str | None, path: Path | None, **flags: Any) -> None:
    """Run a replica: a supervisor, a dispatcher for each shard, and executors that import APP (module:attribute).

    What it is told comes from the file, then from DWARF_ variables, then from the options here.
    """
    given = {name: value for name, value in {"app": app, **flags}.items() if value is not None}
    become_supervisor(load(path, environ=os.environ, flags=given))


def become_supervisor(config: Config) -> None:
    """Replace this process by a supervisor, which has nothing of it. What it is told goes through a pipe: it may hold secrets."""
    readable, writable = os.pipe()
    os.set_inheritable(readable, True)
    with open(writable, "wb") as told:
        told.write(config.to_json())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", PROCESS, str(readable)])
