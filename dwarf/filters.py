"""What a query's filters need to know of a shard before they can be asked for: whose thread is meant, and what an age is by its clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from dwarf.arrays import EPOCH
from dwarf.errors import NotFound
from dwarf.pages import filters_of
from dwarf.query import CheckedQuery
from dwarf.reads import Reads

_MICROSECOND = timedelta(microseconds=1)


async def ask_filters(reads: Reads, query: CheckedQuery) -> dict[str, Any]:
    """Return the filters of a query as the statements have them. Raises `NotFound` for an unknown thread."""
    thread_id = None
    if query.thread_key is not None:
        found = await reads.find_flows([query.thread_key.flow_id])
        if not found or not query.thread_key.matches(found[0].token):
            raise NotFound(f"there is no flow {query.thread_key.name} whose thread could be listed")
        thread_id = found[0].thread_id
    bounds = (query.older_than, query.newer_than)
    now = EPOCH + await reads.now() * _MICROSECOND if any(isinstance(bound, timedelta) for bound in bounds) else None
    return filters_of(query, thread_id=thread_id, now=now)
