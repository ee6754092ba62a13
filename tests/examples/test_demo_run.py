"""The whole demo as a user starts it, on a small tree: a database, two engines, one of them killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def command(library: Path) -> list[str]:
    return [sys.executable, "-m", "examples.demo", "--root", str(library), "--out", str(library.parent / "out")]


def test_all_checks_hold(library: Path, root: Path) -> None:
    done = subprocess.run(command(library), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is killed (SIGKILL)" in done.stdout
    assert done.stdout.count("an engine runs in process") == 2
    assert "nothing was lost: 5 files, 5 results" in done.stdout
    assert "BROKEN" not in done.stdout
    assert (library.parent / "out" / "chart.svg").is_file()
    assert not server_folder(done.stdout).exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_everything_that_was_started(library: Path, root: Path, ending: signal.Signals) -> None:
    # A disposition that is ignored is inherited: without this, SIGINT would not reach a demo below a background job.
    unignore = [
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
    ]
    with subprocess.Popen([*unignore, *command(library)], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        told = ""
        for line in demo.stdout:
            told += line
            if worker := re.search(r"an engine runs in process (\d+)", line):
                demo.send_signal(ending)
                told += demo.stdout.read()
                break
        else:
            pytest.fail(told)
    assert demo.returncode == 130, told
    assert "interrupted; everything is stopped" in told
    assert not server_folder(told).exists()
    assert not is_worker(int(worker[1]))


def server_folder(told: str) -> Path:
    found = re.search(r"PostgreSQL \d+ runs in (\S+)", told)
    assert found is not None, told
    return Path(found[1])


def is_worker(pid: int) -> bool:
    """Tell whether a process of this number is a demo's engine; numbers are given again."""
    try:
        return b"examples.demo.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
