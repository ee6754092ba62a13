"""`python -m examples.demo`: a database, an engine that is killed half way, and what came of it. Exit code 0 if all is well."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import sysconfig
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from dwarf import migrate
from dwarf.testing.postgres import EMBEDDED, Server, find_bindir
from examples.demo.checks import Evidence, checks
from examples.demo.play import play
from examples.demo.process import ROOT, WorkerFailed
from examples.demo.screen import Screen

ROWS_SHOWN = 12
WRITTEN = ("journal", "worker.log", "report.md", "chart.svg")  # those of an earlier run are removed
INTERRUPTED = 130


def main() -> int:
    """Run the demo and return its exit code: 0 all is well, 1 something is not, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(sysconfig.get_path("stdlib")), help="the folder to audit")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo", help="where the report goes")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in WRITTEN:
        (out / name).unlink(missing_ok=True)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # like Ctrl-C: stop what was started, then end
    try:
        with Screen() as screen, Server(find_bindir(EMBEDDED)) as server:
            screen.say(f"PostgreSQL {EMBEDDED} runs in {server.folder}")
            migrate.migrate(server.dsn())
            evidence, names = asyncio.run(play(dsn=server.dsn(), root=given.root.resolve(), out=out, screen=screen))
        repeat(screen.console, evidence, names)
        return report(screen.console, evidence, out)
    except KeyboardInterrupt:
        print("interrupted; everything is stopped", file=sys.stderr)
        return INTERRUPTED
    except (WorkerFailed, TimeoutError) as error:
        print(f"the demo failed: {str(error) or 'it took too long'}; the engine's log is {out / 'worker.log'}", file=sys.stderr)
        return 1


def report(console: Console, evidence: Evidence, out: Path) -> int:
    """Print the audit's table and every check, and return the exit code."""
    table = out / "report.md"
    if table.exists():
        console.print("\n[bold]The audit's report[/bold], its first lines")
        console.print(escape("".join(table.read_text().splitlines(keepends=True)[: ROWS_SHOWN + 2])))
    console.print("[bold]Checks[/bold]")
    done = list(checks(evidence))
    for rule, holds in done:
        console.print(f"  {'[green]ok[/green]    ' if holds else '[bold red]BROKEN[/bold red]'}  {escape(rule)}", soft_wrap=True)
    console.print(f"\nreport  {table}\nchart   {out / 'chart.svg'}\njournal {out / 'journal'}", soft_wrap=True)
    return 0 if all(holds for _, holds in done) else 1


def repeat(console: Console, evidence: Evidence, names: dict[str, str]) -> None:
    """Print which steps ran more than once, and why. `names` are those of such steps."""
    again = evidence.repeated()
    total = sum(map(len, evidence.runs.values()))
    console.print(f"\n[bold]Steps that ran more than once[/bold]: {len(again)} of {len(evidence.runs)}; {total} runs in all")
    for step, reasons in sorted(again.items(), key=lambda entry: (entry[1], names[entry[0]])):
        console.print(f"  {escape(names[step]):<40} {' and '.join(reason or 'for no reason' for reason in reasons)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
