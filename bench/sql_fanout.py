"""Fan-outs for `bench.sqldrive`: one wide cohort, and cohorts within a cohort. Branch numbers begin at the same place in every flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bench.sql_session import Canned, Session, woken
from bench.sql_shapes import CHANGES, STATE, TASK, Meter, Shape
from dwarf.arrays import INT8, int8, read_int4
from dwarf.batch import Entry
from dwarf.database import column
from dwarf.record import Kind, NewBranch, Record

SLICE = 1_000  # branches that one record may create
FIRST, INNER_FIRST = 1 << 20, 2 << 20
DELTA = b'{"item":17}'
GAIN = b'{"log":[17],"sum":1}'


class FanOut(Shape):
    """A forEach: expanded in slices, its branches claimed and recorded by batches, folded and closed."""

    name = "fanout 1000"
    unit = "branch"
    sessions = 1
    width: ClassVar[int] = 1_000

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        slices = range(0, self.width, SLICE)
        self.slices = [Canned([fan_out(place * SLICE, self.width, 2 * place + 1)]) for place in range(len(slices))]
        arrivals = [Entry(1, 1, arrival(FIRST + ordinal), join_branch=0) for ordinal in range(self.width)]
        self.arrivals = cut(arrivals, batch)
        last = Record(kind=Kind.CLOSE, branch=0, seq=2, lease=2 * len(slices) + 1, changes=CHANGES, final_state=CHANGES)
        self.last = Canned([Entry(1, 1, last, joining=True)])

    async def round(self) -> int:
        with self.meter("create"):
            flows = await self.session.create(1, STATE, owner=self.session)
        half = await self._half(flows[0])
        with self.meter("expand"):
            for place, canned in enumerate(self.slices):
                if place:
                    assert await self.session.claim_these(flows, [0]) == 1
                await self.session.record(canned, flows)
        with self.meter("claim"):
            await self._claim_all(half, self.width)
        with self.meter("arrive"):
            results = [await self.session.record(canned, flows) for canned in self.arrivals]
        assert woken(results[-1]) == (flows, [0])
        await self._close(flows)
        return self.width

    async def _close(self, flows: list[int]) -> None:
        with self.meter("fold"):
            assert await self.session.claim_these(flows, [0]) == 1
            assert len(await self.session.store.load_members(flows[0], FIRST, self.width, day_of(flows[0]))) == self.width
            await self.session.record(self.last, flows)

    async def _half(self, flow: int) -> int:
        result = await self.session.connection.execute(b"select hashint8($1) & 1", [int8(flow)], types=[INT8])
        [half] = read_int4(column(result, 0))
        assert isinstance(half, int)
        return half

    async def _claim_all(self, half: int, count: int) -> None:
        while count:
            claimed = (await self.session.claim({"": self.batch}, half)).ntuples
            assert claimed == min(count, self.batch), (claimed, count)
            count -= claimed


class WideFanOut(FanOut):
    name = "fanout 50000"
    width = 50_000
    batch_min = 50


class NestedFanOut(FanOut):
    """A thousand branches that each fan out to fifty: a unit is a branch of the inner cohorts."""

    name = "fanout 1000 x 50"
    batch_min = 50
    inner: ClassVar[int] = 50

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        inner, leaves = self.inner, self.width * self.inner
        openings = []
        for place in range(self.width):
            record = Record(
                kind=Kind.FAN_OUT, branch=FIRST + place, seq=1, lease=1, changes=CHANGES, task="Join", size=inner, expanded=inner,
                branches=[NewBranch(ordinal, TASK, DELTA) for ordinal in range(inner)],
            )  # fmt: skip
            openings.append(Entry(1, 1, record, join_branch=0, first_branch=INNER_FIRST + place * inner))
        self.openings = cut(openings, max(1, min(batch, SLICE // inner)))
        self.leaves = cut([Entry(1, 1, arrival(INNER_FIRST + leaf), join_branch=FIRST + leaf // inner) for leaf in range(leaves)], batch)
        ends = [Entry(1, 1, arrival(FIRST + place, seq=2, lease=3), join_branch=0, joining=True) for place in range(self.width)]
        self.ends = cut(ends, batch)

    async def round(self) -> int:
        with self.meter("create"):
            flows = await self.session.create(1, STATE, owner=self.session)
        half = await self._half(flows[0])
        with self.meter("expand"):
            await self.session.record(self.slices[0], flows)
        with self.meter("claim"):
            await self._claim_all(half, self.width)
        with self.meter("expand"):
            for canned in self.openings:
                await self.session.record(canned, flows)
        with self.meter("claim"):
            await self._claim_all(half, self.width * self.inner)
        branches: list[int] = []
        with self.meter("arrive"):
            for canned in self.leaves:
                branches += woken(await self.session.record(canned, flows))[1]
        assert sorted(branches) == list(range(FIRST, FIRST + self.width))
        await self._fold(flows, branches)
        await self._close(flows)
        return self.width * self.inner

    async def _fold(self, flows: list[int], branches: Sequence[int]) -> None:
        [flow] = flows
        with self.meter("fold"):
            for start in range(0, self.width, self.batch):
                mine = sorted(branches[start : start + self.batch])
                assert await self.session.claim_these(flows * len(mine), mine) == len(mine)
                for branch in mine:
                    first = INNER_FIRST + (branch - FIRST) * self.inner
                    assert len(await self.session.store.load_members(flow, first, self.inner, day_of(flow))) == self.inner
            for canned in self.ends:
                await self.session.record(canned, flows)


def fan_out(done: int, width: int, lease: int) -> Entry:
    """Return the record of the next slice of the trunk's fan-out, after `done` branches."""
    branches = [NewBranch(ordinal, TASK, DELTA) for ordinal in range(done, min(width, done + SLICE))]
    record = Record(
        kind=Kind.FAN_OUT, branch=0, seq=2 if done else 1, lease=lease, changes=CHANGES, task="Join", size=width,
        expanded=done + len(branches), branches=branches,
    )  # fmt: skip
    return Entry(1, 1, record, first_branch=FIRST, joining=done > 0)


def arrival(branch: int, *, seq: int = 1, lease: int = 1) -> Record:
    return Record(kind=Kind.ARRIVE, branch=branch, seq=seq, lease=lease, changes=GAIN)


def cut(entries: list[Entry], size: int) -> list[Canned]:
    return [Canned(entries[start : start + size]) for start in range(0, len(entries), size)]


def day_of(flow: int) -> int:
    return (flow >> 36) // 24
