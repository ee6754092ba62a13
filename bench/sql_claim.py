"""A claim of 200 among very many pending rows, by 1, 100 and 10,000 fairness keys, for `bench.sqldrive`.

The rows are loaded by one INSERT into each table; what is claimed is handed back between claims and not measured. Keys are
passed: which keys are due is not asked of the database here.
"""

from __future__ import annotations

import re
import time
from statistics import median, quantiles

import msgspec

from bench.sql_rig import Rig
from bench.sql_session import BUDGET_MS, PRIORITY, Session, claimed

CLAIMED = 200
CALLS, WARM_CALLS, EXPLAINED = 150, 20, 9
KEYS = (1, 100, 10_000)

_IDS = """
select g, (dwarf.hour_of(dwarf.now())::bigint << 36) | (1::bigint << 35) | g as id, 'key' || g %% %(keys)s as key
from generate_series(1, %(pending)s) g
"""
_LOAD_LIVE = f"""
insert into dwarf.live(flow_id, root_id, priority, graph_id, budget_ms, day, weight, created_at, thread_id, token, workflow
, fairness_key, input)
select r.id, r.id, {PRIORITY}, 1, {BUDGET_MS}, dwarf.day_of(dwarf.now()), 1, dwarf.now(), r.id, '0000000000000000', 'bench'
, r.key, '{{"counter":0}}'
from ({_IDS}) r
"""
_LOAD_ACTIVE = f"""
insert into dwarf.active(flow_id, branch, seq, depth, status, priority, half, budget_ms, day, weight, created_at, claimable, task
, fairness_key)
select r.id, 0, 1, 1, 1, {PRIORITY}, hashint8(r.id) & 1, {BUDGET_MS}, dwarf.day_of(dwarf.now()), 1
, dwarf.now() + r.g * interval '1 us', dwarf.now() + r.g * interval '1 us', 'First', r.key
from ({_IDS}) r
"""


class Claimed(msgspec.Struct):
    """Claims of 200: milliseconds by the clock, backend microseconds a row, buffers touched by one claim."""

    pending: int
    keys: int
    p50_ms: float
    p99_ms: float
    backend_us: float
    buffers: float


def load(rig: Rig, pending: int, keys: int) -> None:
    """Fill `live` and `active` with pending flows whose keys take turns."""
    rig.empty()
    for statement in (_LOAD_LIVE, _LOAD_ACTIVE):
        rig.control.execute(statement.encode(), {"pending": pending, "keys": keys})
    rig.control.execute("vacuum (analyze) dwarf.live, dwarf.active")
    rig.control.execute("checkpoint")


async def measure(rig: Rig, pending: int, keys: int) -> Claimed:
    """Claim 200 rows again and again, a few of each key in turn."""
    load(rig, pending, keys)
    session = await Session.open(rig.client_dsn)
    try:
        times = [await _claim(rig, session, keys, call) for call in range(WARM_CALLS + CALLS)][WARM_CALLS:]
        buffers = [_buffers(rig, session.session, keys, WARM_CALLS + CALLS + place) for place in range(EXPLAINED)]
    finally:
        session.close()
    cost = rig.costs["claim"]
    return Claimed(pending, keys, median(times), quantiles(times, n=100)[-1], cost.backend_ns / CALLS / CLAIMED / 1e3, median(buffers))


async def _claim(rig: Rig, session: Session, keys: int, call: int) -> float:
    if call == WARM_CALLS:
        rig.reset()
    asked = quotas(keys, call)
    with rig.metering("claim"):
        start = time.perf_counter()
        result = await session.claim(asked, call & 1)
        ms = (time.perf_counter() - start) * 1e3
    rows = claimed(result)
    assert len(rows) == CLAIMED, len(rows)
    assert await session.store.release(session.session, [(flow, branch, lease, False) for flow, branch, _, lease in rows]) == CLAIMED
    await session.store.take_signals(session.session, CLAIMED)
    return ms


def quotas(keys: int, call: int) -> dict[str, int]:
    """Return the quotas of a call: up to 200 keys, each call the next ones. Both halves of the rows see every key."""
    count = min(keys, CLAIMED)
    first = call // 2 * count
    return {f"key{(first + place) % keys}": CLAIMED // count for place in range(count)}


def _buffers(rig: Rig, session: int, keys: int, call: int) -> int:
    """Return how many buffers one claim touches, and leave everything as it was."""
    asked = quotas(keys, call)
    with rig.control.transaction(force_rollback=True):
        rows = rig.control.execute(
            b"explain (analyze, buffers, timing off, summary off) select c.* from dwarf.claim_v1(%s, %s::smallint, %s::smallint, %s, %s) c",
            (session, call & 1, PRIORITY, list(asked), list(asked.values())),
        ).fetchall()
    for (line,) in rows:
        if found := re.match(r"\s+Buffers: (.*)", line):
            return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", found[1])))
    raise AssertionError(rows)
