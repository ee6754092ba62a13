"""Forking every failed flow that a query finds: what failed runs again, what did not is kept.

A flow is forked at the steps that failed, wherever they are: in the trunk, in branches, or, if it was a child that failed, in
there. One that has been forked already, by whomever, is left alone: so a recovery that was cut short is called again, and two at
a time fork nothing twice. A fork that fails is a failed flow like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from dwarf.errors import DwarfError, ShardUnavailable
from dwarf.keys import FlowKey
from dwarf.query import FlowSummary, Page, Query
from dwarf.recovery import RecoveredFlow, Recovery

ListClosed = Callable[[Query], Awaitable[Page]]
ForkFailed = Callable[[FlowKey], Awaitable[tuple[list[str], str]]]  # to the keys of the steps that run again, and the fork's


async def recover(
    list_closed: ListClosed,
    fork: ForkFailed,
    query: Query,
    *,
    per_second: float,
    on_flow: Callable[[RecoveredFlow], None] | None,
) -> Recovery:
    """Fork the failed roots that a query finds, the last that failed first, at most so many a second."""
    clock = asyncio.get_running_loop().time
    flows: list[RecoveredFlow] = []
    errors: dict[int, str] = {}
    next_at = clock()
    async for summary in _failed(list_closed, query, errors):
        await asyncio.sleep(max(next_at - clock(), 0))
        flow = await _recover_one(fork, summary)
        if flow.fork_key:
            next_at = max(next_at, clock() - 1 / per_second) + 1 / per_second
        flows.append(flow)
        if on_flow is not None:
            on_flow(flow)
    return Recovery(flows=flows, errors=errors)


async def _failed(list_closed: ListClosed, query: Query, errors: dict[int, str]) -> AsyncIterator[FlowSummary]:
    while True:
        page = await list_closed(query)
        errors.clear()
        errors.update(page.errors)
        for summary in page.items:
            yield summary
        if not page.cursor or (page.errors and not page.items):
            return
        query = msgspec.structs.replace(query, cursor=page.cursor)


async def _recover_one(fork: ForkFailed, summary: FlowSummary) -> RecoveredFlow:
    try:
        steps, made = await fork(FlowKey.parse(summary.flow_key))
    except ShardUnavailable as error:
        return RecoveredFlow(flow_key=summary.flow_key, error=f"{error}; call again to see to it")
    except DwarfError as error:
        return RecoveredFlow(flow_key=summary.flow_key, error=str(error))
    return RecoveredFlow(flow_key=summary.flow_key, step_keys=steps, fork_key=made)
