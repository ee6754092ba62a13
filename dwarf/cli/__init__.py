"""The `dwarf` command. `main` parses, runs, and turns every `DwarfError` into one line on stderr and exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from dwarf import __version__
from dwarf.cli.graph import graph
from dwarf.cli.serve import serve
from dwarf.errors import DwarfError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dwarf")
def cli() -> None:
    """Durable workflows on PostgreSQL."""


cli.add_command(graph)
cli.add_command(serve)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 refused or failed, 2 wrong usage."""
    try:
        result = cli.main(args=None if argv is None else list(argv), prog_name="dwarf", standalone_mode=False)
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except DwarfError as error:
        print(f"dwarf: {error}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
