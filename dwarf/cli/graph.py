"""`dwarf graph`: check a graph, draw it, run it in memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dwarf.cli.loading import load_target
from dwarf.errors import InvalidArgument
from dwarf.status import Status

if TYPE_CHECKING:
    from dwarf.testing.reference import ReferenceRun


_FORMS = {".svg": "svg", ".json": "json", ".mmd": "mermaid", ".mermaid": "mermaid", ".md": "mermaid"}


@click.group()
def graph() -> None:
    """Check, draw and simulate graphs. TARGET is MODULE:ATTRIBUTE[:URL], an App's graph or a Graph."""


@graph.command()
@click.argument("target")
def check(target: str) -> int:
    """Validate a graph: the rule it breaks, or nothing to complain about."""
    _, found, url = load_target(target)
    found.validate()
    click.echo(f"{url}: valid, {len(found.tasks)} tasks, {len(found.transitions)} transitions")
    return 0


@graph.command()
@click.argument("target")
@click.option(
    "--format", "form", type=click.Choice(["mermaid", "svg", "json"]), help="What to write; by the ending of --output, else mermaid."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; else standard output.")
def render(target: str, form: str | None, output: Path | None) -> int:
    """Draw a graph as Mermaid or SVG, or print its JSON form. Invalid graphs are drawn too."""
    _, found, _ = load_target(target)
    form = form or (_FORMS.get(output.suffix, "") if output else "mermaid")
    if not form:
        raise InvalidArgument(f"{output}: the ending says nothing about the format; end with {' '.join(_FORMS)} or pass --format")
    text = found.to_svg() if form == "svg" else found.to_json().decode() if form == "json" else found.to_mermaid()
    if output is None:
        click.echo(text)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidArgument(f"cannot write {output}: {error.strerror}") from None
        click.echo(f"wrote {output}", err=True)
    return 0


@graph.command()
@click.argument("target")
@click.option("--state", default="{}", help="Initial state: JSON, or @FILE.")
@click.option("--seed", default=0, show_default=True, help="Chooses the order of ready steps.")
@click.option("--answer", "answers", multiple=True, help="Resume data for the next interrupt: JSON. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print steps and outcome as JSON.")
def simulate(target: str, state: str, seed: int, answers: tuple[str, ...], as_json: bool) -> int:
    """Run a graph of an App in memory with its real tasks, one step at a time. Sleeps and retries cost no time.

    Exit code 0 when the flow completes, 1 when it ends otherwise or waits for an answer that was not given.
    """
    from dwarf.testing.reference import ReferenceRun

    app, found, _ = load_target(target)
    if app is None:
        raise InvalidArgument(f"{target!r} is a bare Graph, which has no functions to run; name the App that has it")
    run = ReferenceRun(found, app, _json(state, "--state"), seed=seed)
    outcome = run.advance()
    for answer in answers:
        if outcome.status is Status.INTERRUPTED:
            run.resume(_json(answer, "--answer"))
            outcome = run.advance()
    if as_json:
        click.echo(json.dumps({"steps": [_step(step) for step in run.steps], "outcome": _outcome(outcome)}, indent=2))
    else:
        _print(run)
    return 0 if outcome.status is Status.COMPLETED else 1


def _json(text: str, option: str) -> Any:
    source = text
    if text.startswith("@"):
        try:
            source = Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidArgument(f"{option}: cannot read {text[1:]}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidArgument(f"{option}: {text[1:]} is not UTF-8") from None
    try:
        return json.loads(source)
    except ValueError as error:
        raise InvalidArgument(f"{option} is not JSON: {error}") from None


def _print(run: ReferenceRun) -> None:
    outcome = run.outcome
    shown = [("", step) for step in reversed(run.steps)]
    while shown:
        prefix, step = shown.pop()
        route = "" if step.via == "normal" else f" ({step.via})"
        again = f" after {step.attempt} retries" if step.attempt else ""
        click.echo(f"{prefix + step.path:<14} {step.task:<20} {step.status}{again}{route}  {json.dumps(step.changes, ensure_ascii=False)}")
        if step.child is not None:
            shown += [(f"{prefix}{step.path} > ", inner) for inner in reversed(step.child.steps)]
    click.echo(f"\n{outcome.status} after {run.now:g} s of simulated time")
    if outcome.status is Status.INTERRUPTED:
        click.echo(f"waits for an answer to {json.dumps(dict(outcome.interrupt_payload), ensure_ascii=False)}")
    for text in filter(None, (outcome.error, outcome.reason)):
        print(text, file=sys.stderr)
    click.echo(json.dumps(dict(outcome.state), indent=2, ensure_ascii=False))


def _step(step: Any) -> dict[str, Any]:
    return {
        "path": step.path, "task": step.task, "status": str(step.status), "via": step.via, "attempt": step.attempt, "depth": step.depth,
        "input": dict(step.input), "changes": step.changes, "error": step.error,
    }  # fmt: skip


def _outcome(outcome: Any) -> dict[str, Any]:
    return {
        "status": str(outcome.status), "state": dict(outcome.state), "error": outcome.error, "reason": outcome.reason,
        "interruptPayload": dict(outcome.interrupt_payload),
    }  # fmt: skip
