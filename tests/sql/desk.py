"""A session that calls statements one by one with records written by hand, and looks at the rows as they are afterwards."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from dwarf.arrays import micros
from dwarf.batch import Entry, lay_out
from dwarf.database import Connection
from dwarf.record import Kind, Record
from dwarf.rows import ClaimedRow
from dwarf.store import NewFlows, Recorded, Store

Result = TypeVar("Result")
NOON = datetime.datetime.now(datetime.UTC).replace(hour=12, minute=0, second=0, microsecond=0)
LIFE_MS = 30_000
BUDGET_MS = 120_000
PRIORITY = 3
TABLES = ("live", "active", "parks", "signals", "history", "flows", "doomed", "peers", "lanes", "graphs")
SLACK = datetime.timedelta(seconds=30)  # between a step's time budget and its deadline


def minute(number: float) -> datetime.datetime:
    return NOON + datetime.timedelta(minutes=number)


class Desk:
    """One session with one lane. Times are given in minutes after noon."""

    def __init__(self, dsn: str, *, engine: int = 1) -> None:
        self.dsn, self.engine = dsn, engine
        self.view: psycopg.Connection[dict[str, Any]] = psycopg.connect(dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None)
        self.view.adapters.register_loader("json", TextLoader)  # documents as they are stored
        self.view.execute("select dwarf.ensure_partitions(1, %s)", (NOON,))
        self.runner = asyncio.Runner()
        self.link = self.do(Connection.open(dsn))
        self.store = Store(self.link)
        self.join()

    def begin_anew(self) -> None:
        """Remove all rows, of other sessions too, and start a session."""
        self.view.execute("; ".join(f"delete from dwarf.{table}" for table in TABLES).encode())
        self.join()

    def join(self) -> None:
        """Start a session with a lane and a graph."""
        self.session = self.do(self.store.start_session(self.engine, life_ms=LIFE_MS, now=micros(NOON)))
        (self.graph_id,) = self.do(self.store.put_graphs([(b"h" * 32, "g", "A", b"{}")]))
        lane = self.do(self.store.open_lane(self.session, 0))
        self.epoch, self.batch = lane.epoch, lane.batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        async def leave() -> None:
            self.link.close()

        self.do(leave())
        self.runner.close()
        self.view.close()

    def do(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    # Calls

    def create(self, count: int = 1, *, claimed: bool = True, at: float = 0, **columns: Any) -> list[int]:
        """Create flows; a column given by name has one value for all."""
        every: dict[str, Any] = {
            "tokens": "0" * 16,
            "workflows": "w",
            "graph_ids": self.graph_id,
            "tasks": "A",
            "inputs": b"{}",
            "priorities": PRIORITY,
        }
        every |= {"budgets_ms": BUDGET_MS, **columns}
        lists: dict[str, Any] = {name: [value] * count for name, value in every.items()}
        new = NewFlows(**lists)
        ids, _ = self.do(self.store.create_flows(new, session=self.session if claimed else None, now=micros(minute(at))))
        return ids

    def record(self, *entries: Entry, at: float = 1) -> Recorded:
        self.batch += 1
        call = self.store.record((self.session, 0, self.epoch, self.batch), lay_out(entries), now=micros(minute(at)))
        recorded = self.do(call)
        assert recorded.state == "ok"
        return recorded

    def applied(self, *entries: Entry, at: float = 1) -> Recorded:
        """Record entries that all apply."""
        recorded = self.record(*entries, at=at)
        assert recorded.missed == []
        return recorded

    def claim(self, quota: int = 100, *, key: str = "", at: float = 0, priority: int = PRIORITY) -> list[ClaimedRow]:
        """Claim from both halves."""
        halves = [
            self.do(self.store.claim(self.session, {key: quota}, half=half, priority=priority, now=micros(minute(at)))) for half in (0, 1)
        ]
        return sorted(halves[0] + halves[1], key=lambda row: (row.flow_id, row.branch))

    def claim_these(self, *places: tuple[int, int], at: float = 0) -> list[ClaimedRow]:
        return self.do(self.store.claim_these(self.session, places, now=micros(minute(at))))

    # What is there

    def all(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return self.view.execute(query, values or None).fetchall()

    def row(self, flow_id: int, branch: int = 0) -> dict[str, Any]:
        [row] = self.all("select * from dwarf.active where flow_id = %s and branch = %s", flow_id, branch)
        return row

    def flow(self, flow_id: int, table: str = "live") -> dict[str, Any]:
        [row] = self.all(f"select * from dwarf.{table} where flow_id = %s", flow_id)
        return row

    def steps(self, flow_id: int, branch: int = 0) -> list[dict[str, Any]]:
        return self.all("select * from dwarf.history where flow_id = %s and branch = %s order by seq", flow_id, branch)

    def count(self, table: str, condition: str = "true") -> int:
        [row] = self.all(f"select count(*) as n from dwarf.{table} where {condition}")
        return int(row["n"])


def entry(flow_id: int, kind: Kind, *, branch: int = 0, seq: int = 1, lease: int = 1, root: int | None = None, **parts: Any) -> Entry:
    """An entry for a row; what an `Entry` knows beside its record is given by name like the record's own parts."""
    beside = {name: parts.pop(name) for name in BESIDE & parts.keys()}
    return Entry(flow_id, root or flow_id, Record(kind=kind, branch=branch, seq=seq, lease=lease, **parts), **beside)


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What an update changed, by column."""
    return {name: value for name, value in after.items() if value != before[name]}


def present(row: dict[str, Any], *without: str) -> dict[str, Any]:
    """The columns of a row that hold anything."""
    return {name: value for name, value in row.items() if value is not None and name not in without}


def flatten(places: Sequence[ClaimedRow]) -> list[tuple[int, int]]:
    return [(row.flow_id, row.branch) for row in places]


BESIDE = {"join_branch", "caller", "hot", "hot_branches", "first_branch", "joining", "unparks", "child", "prefix", "elapsed"}
