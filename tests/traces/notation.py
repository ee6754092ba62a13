"""Reads the notation of the trace files: graphs, task scripts, stories and expected steps. `README.md` describes it.

Text in, plain records out; nothing here runs a flow. Whatever cannot be read raises `NotationError` naming the line.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dwarf.graph import Graph

ANY = "?"
FAN_IN = "⊕"
VIA = {"failed": "error", "cancelled": "cancel", "terminated": ANY}  # how a step is left, unless its line says otherwise
KEYS = {
    "id", "title", "rows", "note", "varies", "graph", "graphs", "tasks", "state", "baggage", "story", "steps", "children",
    "outcome", "final", "error", "reason", "runs", "now", "unknown",
}  # fmt: skip

_decoder = json.JSONDecoder()
_edge = re.compile(r"(?P<nodes>[^>]+(?:->[^>]+?)+?)(?:\s+(?P<kind>when|switch|each|goto|onError)\b\s*(?P<rest>.*))?$")
_selector = re.compile(r"""\[((?:[^]["]|"[^"]*"|\[[^]]*\])*)\]\s*""")
_step = re.compile(
    r"""(?P<path>\S+)\s+(?P<task>\w+)(?:\s+(?P<status>[a-z]+)(?=\s|$))?(?P<facts>(?:[^"]|"[^"]*")*?)(?:\s+:\s(?P<states>.*))?"""
)
_modifier = re.compile(r"\s*([a-z_]+)=")


class NotationError(Exception):
    """A line of a trace file that says nothing this notation knows."""


@dataclass(frozen=True)
class Action:
    """One line of a script: `verb` with its arguments, done when every one of `when` holds."""

    verb: str
    name: str = ""
    values: tuple[Any, ...] = ()
    when: tuple[str, ...] = ()
    guard: str = ""  # "try" goes on after an error, "ignore" after a park, "also" after a granted retry


@dataclass(frozen=True)
class Act:
    """One line of a story: something done to the run from outside, and what its outcome must show right afterwards."""

    verb: str
    argument: Any = None
    outcome: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One expected step, or one expected child flow: `facts` and `input`, `changes` hold only what is to be checked."""

    path: str
    name: str
    facts: dict[str, Any]
    input: Any = ANY
    changes: Any = ANY


@dataclass(frozen=True, repr=False)
class Trace:
    """One trace: a graph, what its tasks do, what is done to the flow from outside, and what must come of it."""

    id: str
    title: str
    file: str
    rows: tuple[str, ...]
    graph: Graph
    graphs: dict[str, Graph]
    scripts: dict[str, list[Action]]
    unknown: list[str]  # task URLs that nobody serves
    state: dict[str, Any] | None
    baggage: dict[str, Any] | None
    story: list[Act]
    steps: list[Line]
    whole: bool  # every step that ever existed is listed
    children: list[Line]
    outcome: dict[str, Any]
    runs: int | None
    now: float | None
    varies: str  # what depends on the order of ready steps, and is therefore not in the expectation


def read_file(path: Path) -> list[Trace]:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [read_trace(entry, path.name) for entry in document["trace"]]


def read_trace(entry: dict[str, Any], file: str) -> Trace:
    try:
        if unknown := entry.keys() - KEYS:
            raise NotationError(f"no such key: {', '.join(sorted(unknown))}")
        steps = list(lines_of(entry.get("steps", "...")))
        return Trace(
            id=entry["id"],
            title=entry["title"],
            file=file,
            rows=tuple(entry["rows"]),
            graph=read_graph(entry["id"], entry["graph"]),
            graphs={url: read_graph(url, text) for url, text in entry.get("graphs", {}).items()},
            scripts={url: [read_action(line) for line in lines_of(text)] for url, text in entry.get("tasks", {}).items()},
            unknown=entry.get("unknown", []),
            state=json.loads(entry["state"]) if "state" in entry else None,
            baggage=json.loads(entry["baggage"]) if "baggage" in entry else None,
            story=[read_act(line) for line in lines_of(entry.get("story", "advance"))],
            steps=[read_step(line) for line in steps if line != "..."],
            whole="..." not in steps,
            children=[read_child(line) for line in lines_of(entry.get("children", ""))],
            outcome=read_outcome(entry),
            runs=entry.get("runs"),
            now=entry.get("now"),
            varies=entry.get("varies", ""),
        )
    except (NotationError, KeyError, ValueError) as error:
        raise NotationError(f"{file}: trace {entry.get('id', '?')}: {type(error).__name__}: {error}") from error


def read_outcome(entry: dict[str, Any]) -> dict[str, Any]:
    facts = {"status": entry["outcome"], "error": entry.get("error"), "reason": entry.get("reason")}
    facts["state"] = json.loads(entry["final"]) if entry.get("final", ANY) != ANY else None
    return {key: value for key, value in facts.items() if value is not None}


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines that say something; an indented line continues the one above it."""
    joined = re.sub(r"\n[ \t]+(?=\S)", " ", text.strip("\n"))
    return (line.strip() for line in joined.split("\n") if line.strip() and not line.lstrip().startswith("#"))


# ---- graphs ----


def read_graph(name: str, text: str) -> Graph:
    graph = Graph(name)
    for line in lines_of(text):
        word, _, rest = line.partition(" ")
        if word == "reduce":
            for pair in rest.split(","):
                graph.set_reducer(*pair.split())
        elif word == "url":
            node, url = (part.strip() for part in rest.split("="))
            graph.set_url(node, url)
        else:
            read_edge(graph, line)
    graph.validate()
    return graph


def read_edge(graph: Graph, line: str) -> None:
    match = _edge.fullmatch(line)
    if not match:
        raise NotationError(f"no edge: {line!r}")
    groups = [[node.strip() for node in group.split(",")] for group in match["nodes"].split("->")]
    for node in (node for group in groups for node in group if node.endswith(FAN_IN)):
        graph.set_fan_in(node.rstrip(FAN_IN))
    for sources, targets in pairwise(groups):
        for source in sources:
            for target in targets:
                add_edge(graph, source.rstrip(FAN_IN), target.rstrip(FAN_IN), kind=match["kind"] or "", rest=match["rest"] or "")


def add_edge(graph: Graph, source: str, target: str, *, kind: str, rest: str) -> None:
    if kind == "when":
        graph.add_transition_when(source, target, rest)
    elif kind == "switch":
        graph.add_transition_switch(source, target, rest)
    elif kind == "each":
        items, _, alias = rest.partition(" as ")
        graph.add_transition_for_each(source, target, items.strip(), alias.strip())
    elif kind == "goto":
        graph.add_transition_goto(source, target)
    elif kind == "onError":
        graph.add_transition_on_error(source, target)
    else:
        graph.add_transition(source, target)


# ---- scripts ----


def read_action(line: str) -> Action:
    when: list[str] = []
    while match := _selector.match(line):
        when.append(match[1].strip())
        line = line[match.end() :]
    guard, _, rest = line.partition(" ")
    if guard not in ("try", "ignore", "also"):
        guard, rest = "", line
    verb, _, rest = rest.partition(" ")
    rest = rest.strip()
    if verb in ("set", "overwrite"):
        name, _, value = rest.partition("=")
        return Action(verb, name.strip(), (json.loads(value),), tuple(when), guard)
    if verb == "delete":
        return Action(verb, "", tuple(rest.split()), tuple(when), guard)
    if verb in ("goto", "subgraph", "read"):
        name, _, rest = rest.partition(" ")
        return Action(verb, "" if name == '""' else name, tuple(values_of(rest)), tuple(when), guard)
    if verb == "raise":
        name = "" if rest.startswith('"') else rest.partition(" ")[0]
        return Action(verb, name, tuple(values_of(rest[len(name) :])), tuple(when), guard)
    if verb in ("clear", "stop", "sleep", "retry", "interrupt"):
        return Action(verb, "", tuple(values_of(rest)), tuple(when), guard)
    raise NotationError(f"no action: {line!r}")


def values_of(text: str) -> Iterator[Any]:
    """Yield JSON values that stand side by side."""
    while text := text.strip():
        value, end = _decoder.raw_decode(text)
        yield value
        text = text[end:]


# ---- stories and expectations ----


def read_act(line: str) -> Act:
    doing, _, shown = line.partition("=>")
    verb, _, argument = doing.strip().partition(" ")
    if verb not in ("advance", "resume", "cancel", "terminate"):
        raise NotationError(f"no act: {line!r}")
    values = list(values_of(argument))
    status, _, rest = shown.strip().partition(" ")
    outcome = {"status": status, **read_facts(rest)} if status else {}
    return Act(verb, values[0] if values else None, outcome)


def read_step(line: str) -> Line:
    parts = _step.fullmatch(line)
    if not parts:
        raise NotationError(f"no step: {line!r}")
    status = parts["status"] or "completed"
    facts: dict[str, Any] = {"status": status, "attempt": 0, "via": VIA.get(status, "normal"), **read_facts(parts["facts"])}
    given, wrote, *_ = [*split_states(parts["states"] or ""), ANY, ANY]
    return Line(parts["path"], parts["task"], {key: value for key, value in facts.items() if value != ANY}, given, wrote)


def read_child(line: str) -> Line:
    path, status, rest, *_ = [*line.split(None, 2), ""]
    return Line(path, status, {"status": status, **read_facts(rest)})


def split_states(text: str) -> list[Any]:
    values: list[Any] = []
    while text := text.strip().removeprefix("=>").strip():
        if text.startswith(ANY):
            values.append(ANY)
            text = text[1:]
        else:
            value, end = _decoder.raw_decode(text)
            values.append(value)
            text = text[end:]
    return values


def read_facts(text: str) -> dict[str, Any]:
    """Read `key=value` pairs; a value is JSON, or else a bare word."""
    facts: dict[str, Any] = {}
    while text.strip():
        match = _modifier.match(text)
        if not match:
            raise NotationError(f"no key=value: {text!r}")
        text = text[match.end() :]
        try:
            facts[match[1]], end = _decoder.raw_decode(text)
        except ValueError:
            word = text.split(None, 1)[0]
            facts[match[1]], end = word, len(word)
        text = text[end:]
    return facts
