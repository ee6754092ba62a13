"""One connection of the driver with its lane: canned batches out, rows back. Decides nothing.

A canned batch is laid out once by `dwarf.batch` with places (1, 2, …) for flow ids, and built to bytes but for the columns
that hold those; sending it for other flows costs the building of these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from psycopg.pq.abc import PGresult

from dwarf.arrays import (
    INT2,
    INT4,
    INT4_ARRAY,
    INT8,
    INT8_ARRAY,
    TEXT_ARRAY,
    TIMESTAMPTZ,
    TIMESTAMPTZ_ARRAY,
    int2,
    int4,
    int4_array,
    int8,
    int8_array,
    read_int4,
    read_int4_array,
    read_int8,
    read_int8_array,
    text_array,
)
from dwarf.batch import Entry, lay_out
from dwarf.database import Connection, column
from dwarf.queries import QUERIES
from dwarf.rows import LINEAR_COLUMNS, RECORD_COLUMNS
from dwarf.store import NewFlows, Store

FLOW_COLUMNS = {"f_flow", "s_flow", "j_flow", "p_creators", "p_closing"}
LINEAR_NAMES = (*LINEAR_COLUMNS, "p_closing")
LIFE_MS = 600_000
PRIORITY = 3
BUDGET_MS = 120_000
MISSED, WOKE_FLOW, WOKE_BRANCH, CHILDREN = 1, 2, 3, 4  # columns of a record call's answer

Row = tuple[int, int, int, int]  # flow, branch, seq, lease


class Canned:
    """A batch to be sent many times."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        columns = lay_out(entries).columns
        self.size = len(entries)
        self.is_linear = columns.keys() <= set(LINEAR_NAMES)
        names = LINEAR_NAMES if self.is_linear else tuple(RECORD_COLUMNS)
        self.types = (INT4, INT2, INT4, INT8, *(RECORD_COLUMNS[name][1] for name in names), TIMESTAMPTZ)
        self._values = [RECORD_COLUMNS[name][0](columns[name]) if name in columns else None for name in names]
        self._places = [(slot, columns[name]) for slot, name in enumerate(names) if name in FLOW_COLUMNS and name in columns]

    def values(self, flows: Sequence[int]) -> list[bytes | None]:
        """Return the columns for these flows: the one at place 1 comes first."""
        values = list(self._values)
        for slot, places in self._places:
            values[slot] = int8_array([flows[place - 1] for place in places])
        return values


class Session:
    """A store, its lane, and the calls that a canned batch needs."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.store = Store(connection)
        self.session = 0
        self.graph_id = 0
        self.lane = (0, 0)
        self.batch = 0

    @classmethod
    async def open(cls, dsn: str) -> Session:
        self = cls(await Connection.open(dsn))
        self.session = await self.store.start_session(1, life_ms=LIFE_MS)
        definition = b"{}"
        (self.graph_id,) = await self.store.put_graphs([(sha256(definition).digest(), "bench", "First", definition)])
        opened = await self.store.open_lane(self.session, 0)
        self.lane = (0, opened.epoch)
        self.batch = opened.batch
        return self

    def close(self) -> None:
        self.connection.close()

    async def create(self, count: int, state: bytes, *, owner: Session | None = None) -> list[int]:
        """Create flows, born claimed by the owner's session if there is one."""
        new = NewFlows(
            ["0" * 16] * count, ["bench"] * count, [self.graph_id] * count, ["First"] * count, [state] * count,
            [PRIORITY] * count, [BUDGET_MS] * count,
        )  # fmt: skip
        flows, _ = await self.store.create_flows(new, session=owner.session if owner else None)
        return flows

    async def record(self, canned: Canned, flows: Sequence[int]) -> PGresult:
        """Record a canned batch for these flows; every record of it must apply."""
        self.batch += 1
        lane, epoch = self.lane
        values = (int4(self.session), int2(lane), int4(epoch), int8(self.batch), *canned.values(flows), None)
        name = "record_linear" if canned.is_linear else "record"
        result = await self.connection.execute(QUERIES[name].encoded, values, types=canned.types)
        check(result)
        return result

    async def record_entries(self, entries: Sequence[Entry]) -> None:
        """Lay entries out and record them, as a dispatcher does."""
        self.batch += 1
        recorded = await self.store.record((self.session, *self.lane, self.batch), lay_out(entries))
        assert recorded.state == "ok", recorded
        assert not recorded.missed, recorded

    async def claim(self, quotas: dict[str, int], half: int) -> PGresult:
        """Claim, and leave the rows as they came."""
        values = (int4(self.session), int2(half), int2(PRIORITY), text_array(list(quotas)), int4_array(list(quotas.values())), None, None)
        types = (INT4, INT2, INT2, TEXT_ARRAY, INT4_ARRAY, TIMESTAMPTZ_ARRAY, TIMESTAMPTZ)
        return await self.connection.execute(QUERIES["claim"].encoded, values, types=types)

    async def claim_both(self, count: int) -> int:
        """Claim up to `count` rows of each half and return how many there were in all."""
        return sum([(await self.claim({"": count}, half)).ntuples for half in (0, 1)])

    async def claim_these(self, flows: Sequence[int], branches: Sequence[int]) -> int:
        """Claim by key and return how many rows were claimed."""
        values = (int4(self.session), int8_array(flows), int8_array(branches), None)
        types = (INT4, INT8_ARRAY, INT8_ARRAY, TIMESTAMPTZ)
        return (await self.connection.execute(QUERIES["claim_these"].encoded, values, types=types)).ntuples


def check(result: PGresult) -> None:
    """Assert that a record call applied the whole batch."""
    assert result.get_value(0, 0) == b"ok", result.get_value(0, 0)
    missed = result.get_value(0, MISSED)
    assert missed is not None
    assert not read_int4_array(missed), "records missed"


def woken(result: PGresult) -> tuple[list[int], list[int]]:
    """Return the rows (flows, branches) that a general record call made claimable."""
    flows, branches = column(result, WOKE_FLOW)[0], column(result, WOKE_BRANCH)[0]
    assert flows is not None, "nothing was woken"
    assert branches is not None
    return read_int8_array(flows), read_int8_array(branches)


def children(result: PGresult) -> list[int]:
    """Return the flow ids of the children that a general record call started."""
    ids = column(result, CHILDREN)[0]
    assert ids is not None, "no child was started"
    return read_int8_array(ids)


def claimed(result: PGresult) -> list[Row]:
    """Return the identities in a claim's answer."""
    flow, branch, seq, lease = (column(result, number) for number in range(4))
    return list(zip(read_int8(flow), read_int8(branch), read_int4(seq), read_int4(lease), strict=True))
