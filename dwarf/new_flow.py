"""`NewFlow`: a flow ready to be stored; and the way there from what a caller wrote, as far as no database is asked.

what a caller wrote --draft--> Draft --(graph, thread, token)--> NewFlow
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from dwarf.arrays import micros
from dwarf.checks import check_text, shown
from dwarf.errors import GraphError, InvalidArgument, NotFound
from dwarf.graph import Graph
from dwarf.limits import BATCH_CREATE_MAX, NAME_CHARS_MAX
from dwarf.options import FlowOptions, ResolvedOptions
from dwarf.values import encode_object


class Draft(msgspec.Struct, frozen=True):
    """A flow whose every argument has been checked: `input` is its initial state as JSON."""

    workflow: str
    input: bytes
    options: ResolvedOptions


class FrozenGraph(msgspec.Struct, frozen=True):
    """A valid graph as it is stored: `definition` is its JSON, `hash` that of the definition."""

    hash: bytes
    name: str
    entry_task: str
    definition: bytes


class NewFlow(msgspec.Struct):
    """A flow, ready to be stored. `start_at` is in microseconds since 2000, `graph_id` and `thread_id` are those of its shard."""

    token: str
    workflow: str
    graph_id: int
    entry_task: str
    input: bytes
    priority: int
    budget_ms: int
    fairness_key: str = ""
    weight: float = 1.0
    baggage: bytes | None = None
    tenant: str | None = None
    thread_id: int | None = None
    delete_on_completion: bool = False
    start_at: int | None = None


def check_workflow_url(value: object) -> str:
    url = check_text(value, "workflow_url", chars_max=NAME_CHARS_MAX)
    if not url:
        raise InvalidArgument("workflow_url is empty; it must name a workflow")
    return url


def draft(workflow_url: object, state: object, options: object, *, priority_max: int, time_budget_ms: int) -> Draft:
    """Check what a caller wrote. Raises `InvalidArgument` and `StateValueError`."""
    url = check_workflow_url(workflow_url)
    if options is None:
        resolved = _defaults(priority_max, time_budget_ms)
    elif isinstance(options, FlowOptions):
        resolved = options.resolve(priority_max=priority_max, time_budget_ms=time_budget_ms)
    else:
        raise InvalidArgument(f"options are {shown(options)}; FlowOptions are wanted")
    return Draft(url, encode_object(state, "state"), resolved)


@lru_cache(maxsize=64)
def _defaults(priority_max: int, time_budget_ms: int) -> ResolvedOptions:
    return FlowOptions().resolve(priority_max=priority_max, time_budget_ms=time_budget_ms)


def check_batch(flows: Iterable[Any]) -> list[tuple[Any, Any, Any]]:
    """Accept (workflow_url, state, options) tuples, of which the last parts may be left out."""
    if isinstance(flows, str | bytes) or not isinstance(flows, Iterable):
        raise InvalidArgument(f"flows is {shown(flows)}; a list of (workflow_url, state, options) is wanted")
    batch = []
    for place, item in enumerate(flows):
        if not isinstance(item, tuple | list) or not 1 <= len(item) <= 3:
            raise InvalidArgument(f"flow {place} of the batch is {shown(item)}; (workflow_url, state, options) is wanted")
        if place == BATCH_CREATE_MAX:
            raise InvalidArgument(f"the batch has more than {BATCH_CREATE_MAX} flows, which is the most that one call creates")
        batch.append((item[0], item[1] if len(item) > 1 else None, item[2] if len(item) > 2 else None))
    return batch


def complete(draft: Draft, token: str, graph: tuple[int, str], thread_id: int | None) -> NewFlow:
    """Return the flow to store; `graph` is the number of the graph on its shard, and the entry task."""
    options = draft.options
    return NewFlow(
        token,
        draft.workflow,
        *graph,
        draft.input,
        options.priority,
        options.time_budget_ms,
        options.fairness_key,
        options.fairness_weight,
        options.baggage,
        None,
        thread_id,
        options.delete_on_completion,
        None if options.start_at is None else micros(options.start_at),
    )


def freeze(url: str, graph: object) -> FrozenGraph:
    """Return a loaded graph as it is stored, worked out once for as long as nobody changes it.

    Raises `NotFound` where there is none, `GraphError` naming the workflow where it is no valid one.
    """
    if graph is None:
        raise NotFound(f"workflow {shown(url)}: there is no graph of this URL")
    if not isinstance(graph, Graph):
        raise InvalidArgument(f"workflow {shown(url)}: a Graph was to be loaded, not {type(graph).__name__}")
    try:
        return graph.derived("frozen", _freeze)
    except GraphError as error:
        raise GraphError(f"workflow {shown(url)}: {error}", graph=error.graph, rule=error.rule, place=error.place) from error


def _freeze(graph: Graph) -> FrozenGraph:
    graph.validate()
    definition = graph.to_json()
    return FrozenGraph(sha256(definition).digest(), graph.name, graph.entry_point, definition)
