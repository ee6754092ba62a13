"""One page of a list out of the pages of several shards, and the place from which each goes on. Pure.

A shard's page is in order, newest first; the page of all keeps that order for each shard. What does not fit any more is
asked for again by the next page. Flows of different shards stand in the order of their times, as far as the pages reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from typing import Any

import msgspec

from dwarf.keys import FlowKey, StepKey
from dwarf.query import CheckedQuery, FlowSummary, Page, Position, encode_cursor
from dwarf.read_rows import ListedRow
from dwarf.status import Status

STATUSES: dict[int, Status] = {
    1: Status.RUNNING,
    4: Status.INTERRUPTED,
    6: Status.COMPLETED,
    7: Status.FAILED,
    8: Status.CANCELLED,
    9: Status.TERMINATED,
}
STATUS_CODES = {status: code for code, status in STATUSES.items()}

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class ShardPage(msgspec.Struct):
    """What a shard has answered; with `more`, its list goes on behind that place. `error` instead: it could not be asked."""

    flows: list[ListedRow] = []
    more: Position | None = None
    error: str = ""


def filters_of(query: CheckedQuery, *, thread_id: int | None, now: datetime | None) -> dict[str, Any]:
    """Return the filters as the statements have them; `now`, by the shard's clock, is needed where a bound is an age."""
    return {
        "status": STATUS_CODES[query.status] if query.status else None,
        "workflow": query.workflow_url or None,
        "name": query.workflow_name or None,
        "thread_id": thread_id,
        "task": query.task_name or None,
        "fairness_key": query.fairness_key or None,
        "priority": query.priority or None,
        "older_than": _instant(query.older_than, now),
        "newer_than": _instant(query.newer_than, now),
        "with_children": query.include_subgraphs,
        "search": query.search.lower() or None,
    }


def searched_flow(query: CheckedQuery) -> tuple[int, int] | None:
    """Return shard and id of the one flow that a query's search names."""
    key = query.search_key
    if isinstance(key, FlowKey | StepKey):
        return key.shard, key.flow_id
    return key


def read_page(rows: Sequence[ListedRow], *, closed: bool) -> ShardPage:
    """Split what a statement has returned into the flows and the place behind them."""
    if rows and rows[-1].is_place:
        return ShardPage(list(rows[:-1]), position(rows[-1], closed=closed))
    return ShardPage(list(rows))


def position(row: ListedRow, *, closed: bool) -> Position:
    ended_us = (row.ended_at - _UNIX_EPOCH) // _MICROSECOND if closed and row.ended_at is not None else None
    return Position(row.flow_id, ended_us)


def before(place: Position | None) -> tuple[datetime, int] | None:
    """Return a position among closed flows as the statement has it."""
    if place is None or place.ended_us is None:
        return None
    return _UNIX_EPOCH + place.ended_us * _MICROSECOND, place.flow_id


def merge(query: CheckedQuery, pages: Mapping[int, ShardPage], asked: Mapping[int, Position | None]) -> Page:
    """Return one page of at most `query.limit` flows; `asked` says where each shard's page began."""
    closed = query.scope == "closed"
    taken = dict.fromkeys(pages, 0)
    items: list[FlowSummary] = []
    heads = [(_age(page.flows[0], closed), shard) for shard, page in pages.items() if page.flows]
    heapify(heads)
    while heads and len(items) < query.limit:
        shard = heads[0][1]
        flows = pages[shard].flows
        items.append(summary(shard, flows[taken[shard]], closed=closed))
        taken[shard] += 1
        if taken[shard] < len(flows):
            heapreplace(heads, (_age(flows[taken[shard]], closed), shard))
        else:
            heappop(heads)
    places: dict[int, Position | None] = {}
    for shard, page in pages.items():
        if page.error:
            places[shard] = asked[shard]
        elif taken[shard] < len(page.flows):
            places[shard] = position(page.flows[taken[shard] - 1], closed=closed) if taken[shard] else asked[shard]
        elif page.more is not None:
            places[shard] = page.more
    # The end is an empty page: who goes on until then, or until there is no cursor, ends either way. A search by key has one page.
    if items and not places and query.search_key is None:
        places = {shard: position(pages[shard].flows[count - 1], closed=closed) for shard, count in taken.items() if count}
    errors = {shard: page.error for shard, page in pages.items() if page.error}
    return Page(items, encode_cursor(places, query), errors)


def summary(shard: int, row: ListedRow, *, closed: bool) -> FlowSummary:
    status = STATUSES[row.status]
    key = FlowKey(shard, row.flow_id, row.token)
    thread = FlowKey(shard, row.thread_id, row.thread_token) if row.thread_token is not None else key
    return FlowSummary(
        flow_key=str(key),
        thread_key=str(thread),
        workflow_url=row.workflow,
        workflow_name=row.name,
        status=status,
        task_name=row.task or "",
        error=row.error or "",
        reason=row.reason or "",
        created_at=row.created_at,
        started_at=row.started_at,
        updated_at=row.updated_at,
        ended_at=row.ended_at if closed else None,
        priority=row.priority,
        fairness_key=row.fairness_key,
        subgraph=row.is_child,
    )


def _age(row: ListedRow, closed: bool) -> timedelta:
    """Order the newest first."""
    return _LONG_AGO - ((row.ended_at if closed else row.created_at) or _LONG_AGO)


def _instant(bound: datetime | timedelta | None, now: datetime | None) -> datetime | None:
    if not isinstance(bound, timedelta):
        return bound
    assert now is not None, "an age needs the shard's clock"
    return now - bound
