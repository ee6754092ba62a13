"""What a recovery is asked for and what it tells: the forking of every failed flow that a query finds (`dwarf.recovering`)."""

from __future__ import annotations

import math

import msgspec

from dwarf.errors import InvalidArgument
from dwarf.query import Query
from dwarf.status import Status
from dwarf.steps import wire_name

PAGE_ITEMS = 100  # asked for at a time, where the query does not say


class RecoveredFlow(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """What became of one failed flow. `step_keys` are the steps that run again, `fork_key` is empty where no fork was made.

    `error` says why a flow could not be forked; without one, and without steps, it had been forked before.
    """

    flow_key: str
    step_keys: list[str] = []
    fork_key: str = ""
    error: str = ""


class Recovery(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """What a recovery did, flow by flow; `errors` are of shards that could not be asked to the end, by index."""

    flows: list[RecoveredFlow] = []
    errors: dict[int, str] = {}

    @property
    def forked(self) -> int:
        """How many forks were made."""
        return sum(bool(flow.fork_key) for flow in self.flows)


def check_query(query: Query | None) -> Query:
    """Return the query for failed roots. Raises `InvalidArgument` where it asks for others."""
    asked = query or Query()
    if not isinstance(asked, Query):
        raise InvalidArgument(f"query is {asked!r}; a Query is wanted")
    if asked.status not in ("", Status.FAILED):
        raise InvalidArgument(f"status is {str(asked.status)!r}; only flows that failed are recovered")
    if asked.include_subgraphs:
        raise InvalidArgument("include_subgraphs is set; a recovery is of roots, their children are seen to with them")
    return msgspec.structs.replace(asked, status=Status.FAILED, limit=asked.limit or PAGE_ITEMS)


def check_pace(per_second: float | None) -> float:
    """Return how many forks to make a second. Raises `InvalidArgument` for a pace that is none."""
    if per_second is None:
        return math.inf
    if isinstance(per_second, bool) or not isinstance(per_second, int | float) or not per_second > 0:
        raise InvalidArgument(f"per_second is {per_second!r}; it must be a number above 0")
    return float(per_second)
