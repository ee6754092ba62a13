"""The next turn of a conversation: what a continued flow starts with."""

from __future__ import annotations

from typing import Any

from dwarf.changes import Changes, fold
from dwarf.graph import Graph
from dwarf.routing import plan_of
from dwarf.state import State
from dwarf.values import encode_object, parse_object


def continue_state(graph: Graph, final: State, extra: Any = None) -> State:
    """Return the initial state of a continued flow: the final state with `extra`, an object, through the reducers.

    Raises `InvalidArgument` when `extra` is no object, `StateValueError` when JSON cannot hold it, `ReducerError` when a
    field does not fit its reducer: all 400.
    """
    given = parse_object(encode_object(extra, "the additional state"), "the additional state")
    return State.of(fold(final.enacted().raw_fields(), Changes(given), plan_of(graph).reducers))
