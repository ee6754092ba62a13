"""A claim of 200 among very many pending rows, by 1, 100 and 10,000 fairness keys, for `bench.sqldrive`.

The rows are loaded by one INSERT into each table; what is claimed is handed back between claims and not measured. The keys
are those that the database says are due, page by page.
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
    """Claims of 200: milliseconds by the clock, backend microseconds a row, buffers touched by one claim.

    `observe_p50_ms` is what one look at the next due keys took, 200 of them at most.
    """

    pending: int
    keys: int
    p50_ms: float
    p99_ms: float
    observe_p50_ms: float
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
    claims = Claims(rig, session)
    try:
        for call in range(WARM_CALLS):
            await claims.claim(call & 1)
        rig.reset()
        claims.times, claims.looks = [], []
        for call in range(CALLS):
            await claims.claim(call & 1)
        backend_ns = rig.costs["claim"].backend_ns
        buffers = [await claims.buffers(call & 1) for call in range(EXPLAINED)]
    finally:
        session.close()
    p99 = quantiles(claims.times, n=100)[-1]
    return Claimed(pending, keys, median(claims.times), p99, median(claims.looks), backend_ns / CALLS / CLAIMED / 1e3, median(buffers))


class Claims:
    """One session that claims in turn from both halves, and where it is in each half's keys."""

    def __init__(self, rig: Rig, session: Session) -> None:
        self.rig = rig
        self.session = session
        self.after: list[str | None] = [None, None]
        self.times: list[float] = []
        self.looks: list[float] = []

    async def claim(self, half: int) -> None:
        asked = await self.quotas(half)
        with self.rig.metering("claim"):
            start = time.perf_counter()
            result = await self.session.claim(asked, half)
            self.times.append((time.perf_counter() - start) * 1e3)
        rows = claimed(result)
        assert len(rows) == CLAIMED, len(rows)
        held = [(flow, branch, lease, False) for flow, branch, _, lease in rows]
        assert await self.session.store.release(self.session.session, held) == CLAIMED
        await self.session.store.take_signals(self.session.session, CLAIMED)

    async def quotas(self, half: int) -> dict[str, int]:
        """Return the next due keys of a half, at most 200, each with its part of the 200 rows."""
        while True:
            start = time.perf_counter()
            keys = await self.session.store.due_keys(half=half, priority=PRIORITY, after=self.after[half], limit=CLAIMED)
            if keys:
                break
            self.after[half] = None
        self.looks.append((time.perf_counter() - start) * 1e3)
        self.after[half] = max(keys)
        return dict.fromkeys(keys, CLAIMED // len(keys))

    async def buffers(self, half: int) -> int:
        """Return how many buffers one claim touches, and leave everything as it was."""
        asked = await self.quotas(half)
        with self.rig.control.transaction(force_rollback=True):
            rows = self.rig.control.execute(
                b"explain (analyze, buffers, timing off, summary off)"
                b" select c.* from dwarf.claim_v1(%s, %s::smallint, %s::smallint, %s, %s) c",
                (self.session.session, half, PRIORITY, list(asked), list(asked.values())),
            ).fetchall()
        for (line,) in rows:
            if found := re.match(r"\s+Buffers: (.*)", line):
                return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", found[1])))
        raise AssertionError(rows)
