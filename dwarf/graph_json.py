"""Graphs as JSON, both ways.

    {"name": …, "entryPoint": …,
     "tasks": [{"name": …, "url": …, "fanIn": true}, …],
     "transitions": [{"from": …, "to": …, "when": …, "withGoto": true, "forEach": …, "as": …, "onError": true, "switch": true}, …],
     "reducers": {field: reducer, …}, "scheduler": …}

Members that are empty or false are left out, but for entryPoint, tasks, transitions, a task's name and url, from and to.
Reading is lenient about structure (validation judges that) and strict about form: malformed JSON and wrong types raise. A
member that is missing or null counts as empty (a task's url as the task's name, and the alias of a forEach edge as `item`),
an unknown one is ignored, and of one that is given twice the last counts.

One thing does not survive: a fan-in mark on a name that is no task has no place in the form and is lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dwarf.errors import GraphError
from dwarf.graph import ALIAS_DEFAULT, Graph, Task, Transition
from dwarf.limits import GRAPH_BYTES_MAX
from dwarf.reducers import Reducer


class _Task(msgspec.Struct):
    name: str = ""
    url: str | None = None
    fan_in: bool | None = msgspec.field(default=None, name="fanIn")


class _Edge(msgspec.Struct, rename="camel"):
    source: str = msgspec.field(default="", name="from")
    target: str = msgspec.field(default="", name="to")
    when: str | None = None
    with_goto: bool | None = None
    for_each: str | None = None
    alias: str | None = msgspec.field(default=None, name="as")
    on_error: bool | None = None
    switch: bool | None = None


class _Form(msgspec.Struct, rename="camel"):
    name: str | None = None
    entry_point: str | None = None
    tasks: list[_Task] | None = None
    transitions: list[_Edge] | None = None
    reducers: dict[str, str] | None = None
    scheduler: str | None = None


_decoder = msgspec.json.Decoder(_Form)
_encode = msgspec.json.Encoder().encode


def to_json(graph: Graph) -> bytes:
    """Return the graph's JSON; the same graph gives the same bytes, in whatever order its reducers were set."""
    form: dict[str, Any] = {
        "name": graph.name,
        "entryPoint": graph.entry_point,
        "tasks": [_some({"name": task.name, "url": task.url, "fanIn": task.fan_in}, "name", "url") for task in graph.tasks],
        "transitions": [_some(_edge(edge), "from", "to") for edge in graph.transitions],
        "reducers": {field: str(reducer) for field, reducer in sorted(graph.reducers.items())},
        "scheduler": graph.scheduler,
    }
    return _encode(_some(form, "entryPoint", "tasks", "transitions"))


def _edge(edge: Transition) -> dict[str, Any]:
    return {
        "from": edge.source,
        "to": edge.target,
        "when": edge.when,
        "withGoto": edge.goto,
        "forEach": edge.for_each,
        "as": edge.alias,
        "onError": edge.on_error,
        "switch": edge.switch,
    }


def _some(members: dict[str, Any], *always: str) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value or name in always}


def from_json(data: bytes | str) -> Graph:
    """Read a graph. Raises `GraphError` when the text is no JSON, has a wrong type, or is over the size limit."""
    form = _read(data)
    urls: dict[str, str] = {}
    repeated: list[Task] = []
    for task in form.tasks or ():
        url = task.name if task.url is None else task.url
        if task.name in urls:
            repeated.append(Task(task.name, url, bool(task.fan_in)))
        else:
            urls[task.name] = url
    return Graph.assemble(
        name=form.name or "",
        entry_point=form.entry_point or "",
        urls=urls,
        repeated=repeated,
        transitions=[_transition(edge) for edge in form.transitions or ()],
        fan_ins=[task.name for task in form.tasks or () if task.fan_in],
        reducers={field: _REDUCERS.get(name, name) for field, name in (form.reducers or {}).items()},
        scheduler=form.scheduler or "",
    )


def _read(data: object) -> _Form:
    if not isinstance(data, bytes | bytearray | memoryview | str):
        raise GraphError(f"a graph's JSON is text or bytes, not {type(data).__name__}", rule="graph-json")
    try:
        encoded = data.encode() if isinstance(data, str) else bytes(data)
        if len(encoded) > GRAPH_BYTES_MAX:
            fault = f"a graph's JSON has {len(encoded)} bytes; at most {GRAPH_BYTES_MAX} are allowed"
            raise GraphError(fault, rule="graph-size")
        return _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise GraphError(f"this is not the JSON of a graph: {error}", rule="graph-json") from None


def _transition(edge: _Edge) -> Transition:
    return Transition(
        edge.source,
        edge.target,
        when=edge.when or "",
        switch=bool(edge.switch),
        for_each=edge.for_each or "",
        alias=edge.alias or (ALIAS_DEFAULT if edge.for_each else ""),
        goto=bool(edge.with_goto),
        on_error=bool(edge.on_error),
    )


# An unknown name stays as it is, for validation to refuse.
_REDUCERS: dict[str, Any] = {str(reducer): reducer for reducer in Reducer}
