"""Graphs as JSON, both ways.

Reading is lenient about structure (validation judges that) and strict about form: malformed JSON and wrong types raise.
Unknown members are ignored; a fan-in mark on a name that is no task has no place in the form and is lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dwarf.errors import GraphError
from dwarf.graph import ALIAS_DEFAULT, Graph, Transition
from dwarf.limits import GRAPH_BYTES_MAX
from dwarf.reducers import Reducer


class _Task(msgspec.Struct, omit_defaults=True):
    name: str
    url: str | None = None
    fan_in: bool = msgspec.field(default=False, name="fanIn")


class _Edge(msgspec.Struct, omit_defaults=True, rename="camel"):
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    when: str = ""
    with_goto: bool = False
    for_each: str = ""
    alias: str = msgspec.field(default="", name="as")
    on_error: bool = False
    switch: bool = False


class _Form(msgspec.Struct, rename="camel"):
    name: str | msgspec.UnsetType = msgspec.UNSET
    entry_point: str = ""
    tasks: list[_Task] = []
    transitions: list[_Edge] = []
    reducers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Form)


def to_json(graph: Graph) -> bytes:
    """Return the graph's JSON; the same graph gives the same bytes."""
    form = _Form(
        name=graph.name or msgspec.UNSET,
        entry_point=graph.entry_point,
        tasks=[_Task(task.name, task.url, task.fan_in) for task in graph.tasks],
        transitions=[
            _Edge(edge.source, edge.target, edge.when, edge.goto, edge.for_each, edge.alias, edge.on_error, edge.switch)
            for edge in graph.transitions
        ],
        reducers={field: str(reducer) for field, reducer in graph.reducers.items()} or msgspec.UNSET,
    )
    return msgspec.json.encode(form)


def from_json(data: bytes | str) -> Graph:
    """Read a graph. Raises `GraphError` when the text is no JSON, has a wrong type, or is over the size limit."""
    if not isinstance(data, bytes | bytearray | memoryview | str):
        raise GraphError(f"a graph's JSON is text or bytes, not {type(data).__name__}", rule="graph-json")
    if len(data) > GRAPH_BYTES_MAX:
        raise GraphError(f"a graph's JSON has {len(data)} bytes; at most {GRAPH_BYTES_MAX} are allowed", rule="graph-size")
    try:
        form = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise GraphError(f"this is not the JSON of a graph: {error}", rule="graph-json") from None
    return Graph.assemble(
        name="" if form.name is msgspec.UNSET else form.name,
        entry_point=form.entry_point,
        urls={task.name: task.name if task.url is None else task.url for task in form.tasks},
        transitions=[_transition(edge) for edge in form.transitions],
        fan_ins=[task.name for task in form.tasks if task.fan_in],
        reducers=_reducers(form.reducers),
    )


def _transition(edge: _Edge) -> Transition:
    alias = edge.alias or (ALIAS_DEFAULT if edge.for_each else "")
    return Transition(
        edge.source, edge.target, edge.when, edge.switch, edge.for_each, alias, goto=edge.with_goto, on_error=edge.on_error
    )


def _reducers(given: Any) -> dict[str, Any]:
    """Read known names as reducers and leave unknown ones as they are, for validation to name."""
    known = {str(reducer): reducer for reducer in Reducer}
    return {} if given is msgspec.UNSET else {field: known.get(name, name) for field, name in given.items()}
