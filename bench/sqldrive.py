"""What the SQL costs without an engine: steps, branches and flows a second by shape and batch, and claims at a million rows.

`python -m bench.sqldrive` starts a PostgreSQL of its own with fsync, full_page_writes and synchronous_commit on; see
`bench/README.md` for what each figure means and how it can mislead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from bench.sql_claim import KEYS, Claimed, measure
from bench.sql_fanout import FanOut, NestedFanOut, WideFanOut
from bench.sql_rig import Cost, Rig
from bench.sql_session import Session
from bench.sql_shapes import Chains, ChildFlows, Interrupts, Linear, LinearClaimed, LinearLaidOut, LinearTwoLanes, Shape

FAMILIES: dict[str, tuple[type[Shape], ...]] = {
    "linear": (Linear, LinearLaidOut, LinearTwoLanes, LinearClaimed),
    "chain": (Chains,),
    "fanout": (FanOut, WideFanOut, NestedFanOut),
    "child": (ChildFlows,),
    "interrupt": (Interrupts,),
}
WARM_SECONDS = 0.5
ROWS_A_KEY_MIN = 50  # with fewer a claim may not find its quota of every key


class Cell(msgspec.Struct):
    """One shape at one batch size in one run."""

    shape: str
    unit: str
    batch: int
    units: int
    hot: float
    others_ns: int
    phases: dict[str, Cost]

    def total(self, *, without: str = "") -> Cost:
        sum_ = Cost()
        for phase, cost in self.phases.items():
            if phase != without:
                sum_.add(cost)
        return sum_


class Run(msgspec.Struct):
    """All that one run measured; `load` is the load average at its begin and end."""

    pgbench_tps: float
    load: tuple[float, float]
    cells: list[Cell]
    claims: list[Claimed]


async def measure_cell(rig: Rig, kind: type[Shape], batch: int, seconds: float) -> Cell:
    """Run one shape for so many metered seconds, after a warm-up."""
    rig.empty()
    sessions = [await Session.open(rig.client_dsn) for _ in range(kind.sessions)]
    try:
        shape = kind(batch, sessions, rig.metering)
        rig.reset()
        while sum(cost.seconds for cost in rig.costs.values()) < WARM_SECONDS:
            await shape.round()
        rig.reset()
        await flush_statistics(sessions)
        updates, hot, others, units = *rig.updates(), rig.others_ns(), 0
        while sum(cost.seconds for cost in rig.costs.values()) < seconds:
            units += await shape.round()
        others = rig.others_ns() - others
        await flush_statistics(sessions)
        updates, hot = rig.updates()[0] - updates, rig.updates()[1] - hot
    finally:
        for session in sessions:
            session.close()
    return Cell(kind.name, kind.unit, batch, units, hot / max(updates, 1), others, rig.costs)


async def flush_statistics(sessions: list[Session]) -> None:
    """Make backends tell what they counted, which they else do once in a while."""
    for session in sessions:
        await session.connection.execute(b"select pg_stat_force_next_flush()")
        await session.connection.execute(b"select 1")


def run_once(rig: Rig, chosen: argparse.Namespace) -> Run:
    load = os.getloadavg()[0]
    tps = rig.pgbench()
    cells, claims = [], []
    for family in chosen.shapes:
        for kind in FAMILIES.get(family, ()):
            for batch in chosen.batches:
                if batch < kind.batch_min:
                    continue
                with rig.snapshot() if chosen.snapshot else contextlib.nullcontext():
                    cells.append(asyncio.run(measure_cell(rig, kind, batch, chosen.seconds)))
                print(_line((cells[-1],), [tps]), file=sys.stderr)
    if "claim" in chosen.shapes:
        claims = [asyncio.run(measure(rig, chosen.pending, keys)) for keys in KEYS if keys * ROWS_A_KEY_MIN <= chosen.pending]
    return Run(tps, (load, os.getloadavg()[0]), cells, claims)


# ---- what is printed ----

HEAD = (
    f"{'shape':<18}{'batch':>6}{'units/s':>10}{'+create':>10}{'x pgbench':>10}{'PG us':>8}{'+create':>8}{'others':>8}"
    f"{'WAL B':>8}{'+create':>8}{'HOT':>7}{'client us':>10}"
)


def lines(runs: list[Run]) -> Iterator[str]:
    """Yield the tables: medians of the runs, what runs are medians of, and the phases of what has several."""
    tps = median(run.pgbench_tps for run in runs)
    yield f"pgbench -N -c 32 -j 2: {tps:,.0f}/s ({', '.join(f'{run.pgbench_tps:,.0f}' for run in runs)}); load average " + ", ".join(
        f"{run.load[0]:.1f}-{run.load[1]:.1f}" for run in runs
    )
    yield HEAD
    for cells in zip(*(run.cells for run in runs), strict=True):
        yield _line(cells, [run.pgbench_tps for run in runs])
    yield ""
    for cells in zip(*(run.cells for run in runs), strict=True):
        if len(cells[0].phases) > 1:
            yield f"{cells[0].shape:<18}{cells[0].batch:>6}  PG us and WAL B a {cells[0].unit}: " + ", ".join(
                f"{phase} {_us(cells, phase):.1f} / {_wal(cells, phase):.0f}" for phase in cells[0].phases
            )
    for claims in zip(*(run.claims for run in runs), strict=True):
        yield (
            f"claim of 200 of {claims[0].pending:,}, {claims[0].keys:>6,} keys: p50 {median(each.p50_ms for each in claims):.2f} ms,"
            f" p99 {median(each.p99_ms for each in claims):.2f}, {median(each.backend_us for each in claims):.1f} PG us a row,"
            f" {median(each.buffers for each in claims):.0f} buffers; due keys {median(each.observe_p50_ms for each in claims):.2f} ms"
        )


def _line(cells: tuple[Cell, ...], tps: list[float]) -> str:
    def middle(figure: str, *, without: str = "") -> float:
        return median(float(getattr(cell.total(without=without), figure)) / cell.units for cell in cells)

    rates = [cell.units / cell.total(without="create").seconds for cell in cells]
    ratio = median(rate / each for rate, each in zip(rates, tps, strict=True))
    return (
        f"{cells[0].shape:<18}{cells[0].batch:>6}{median(rates):>10,.0f}{1 / middle('seconds'):>10,.0f}{ratio:>10.2f}"
        f"{middle('backend_ns', without='create') / 1e3:>8.1f}{middle('backend_ns') / 1e3:>8.1f}"
        f"{median(cell.others_ns / cell.units for cell in cells) / 1e3:>8.1f}"
        f"{middle('wal_bytes', without='create'):>8.0f}{middle('wal_bytes'):>8.0f}{median(cell.hot for cell in cells):>7.3f}"
        f"{middle('client_ns', without='create') / 1e3:>10.1f}"
    )


def _us(cells: tuple[Cell, ...], phase: str) -> float:
    return median(cell.phases[phase].backend_ns / cell.units for cell in cells) / 1e3


def _wal(cells: tuple[Cell, ...], phase: str) -> float:
    return median(cell.phases[phase].wal_bytes / cell.units for cell in cells)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sqldrive", description=__doc__)
    parser.add_argument("--pg", default="18", help="major version of PostgreSQL")
    parser.add_argument("--shapes", default=[*FAMILIES, "claim"], type=lambda text: text.split(","))
    parser.add_argument("--batches", default=[1, 10, 50, 200], type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--runs", default=3, type=int)
    parser.add_argument("--seconds", default=2.0, type=float, help="metered time of each cell")
    parser.add_argument("--pending", default=1_000_000, type=int, help="rows that wait while claims are measured")
    parser.add_argument("--partitions", default=1, type=int, help="daily partitions, today's included")
    parser.add_argument("--snapshot", action="store_true", help="hold a snapshot while each cell runs")
    parser.add_argument("--pgbouncer", action="store_true", help="go through PgBouncer in transaction mode")
    parser.add_argument("--sql", type=Path, help="another copy of sql/ to migrate with")
    parser.add_argument("--json", type=Path, help="where to write what was measured, run by run")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    assert set(chosen.shapes) <= {*FAMILIES, "claim"}, chosen.shapes
    rig = Rig(chosen.pg, partitions=chosen.partitions, sql=chosen.sql, pgbouncer=chosen.pgbouncer)
    try:
        runs = [run_once(rig, chosen) for _ in range(chosen.runs)]
    finally:
        rig.close()
    print("\n".join(lines(runs)))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))


if __name__ == "__main__":
    main()
