"""What flows of each shape make a dispatcher do, as canned batches: no task runs and nothing is decided.

A shape is prepared for a batch size; then each `round` works on some flows and returns how many units (steps, branches,
flows) it did, metering what belongs to which phase. Every record must apply and every claim must find what it should, so
that a shape that goes wrong stops the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

from bench.sql_session import Canned, Row, Session, check, children, claimed, woken
from dwarf.batch import ChildStart, Entry
from dwarf.record import Child, Kind, Record
from dwarf.status import StepStatus

STEPS = 10  # of a linear flow
STATE = b'{"counter":0}'
CHANGES = b'{"counter":1}'
TASK = "Step"
QUEUED_CALLS = 40  # creates made at once, so that metering is not called between any two statements
Meter = Callable[[str], AbstractContextManager[None]]


class Shape:
    """The contract: `sessions` are opened for it, `prepare` builds its batches."""

    name: ClassVar[str]
    unit: ClassVar[str]
    sessions: ClassVar[int] = 2
    batch_min: ClassVar[int] = 1

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        self.batch = batch
        self.session = sessions[0]
        self.creator = sessions[-1]
        self.all = sessions
        self.meter = meter

    async def round(self) -> int:
        raise NotImplementedError


def step(flow: int, seq: int, *, lease: int, hot: bool = True, root: int = 0) -> Entry:
    """A linear flow's record of its step `seq`: on to the next one, or the end."""
    if seq < STEPS:
        delta = b'{"counter":%d}' % seq
        record = Record(kind=Kind.ADVANCE, branch=0, seq=seq, lease=lease, changes=CHANGES, task=TASK, delta=delta)
        return Entry(flow, root or flow, record, hot=hot)
    return Entry(flow, root or flow, Record(kind=Kind.CLOSE, branch=0, seq=seq, lease=lease, changes=CHANGES, final_state=CHANGES))


class Pipeline:
    """Hot linear flows in one lane: of every batch a tenth is at each of the ten steps, so a tenth closes."""

    def __init__(self, batch: int, session: Session, creator: Session) -> None:
        self.session, self.creator = session, creator
        self.stages = STEPS if batch >= STEPS else 1
        self.width = batch // self.stages  # flows that are at the same step
        self.seqs = [[STEPS - place for place in range(STEPS)]] if self.stages > 1 else [[seq] for seq in range(1, STEPS + 1)]
        self.canned = [Canned(self.entries(list(range(1, self.width * self.stages + 1)), seqs)) for seqs in self.seqs]
        self.queue: deque[list[int]] = deque()
        self.flying: deque[list[int]] = deque()

    def entries(self, flows: list[int], seqs: list[int]) -> list[Entry]:
        return [step(flow, seqs[place // self.width], lease=seqs[place // self.width]) for place, flow in enumerate(flows)]

    async def fill(self, calls: int) -> None:
        """Create flows for so many batches, and at first enough to have some at every step."""
        missing = self.stages - 1 - len(self.flying)
        for _ in range(calls + max(0, missing)):
            self.queue.append(await self.creator.create(self.width, STATE, owner=self.session))
        for done in range(missing):  # those of the head start: the first has already done most of its steps
            flows = self.queue.popleft()
            for seq in range(1, STEPS - done):
                await self.session.record(Canned([step(place, seq, lease=seq) for place in range(1, self.width + 1)]), flows)
            self.flying.append(flows)

    async def drain(self, *, built: bool = True) -> int:
        """Record until the queue is empty; return how many steps that was."""
        steps = 0
        while self.queue:
            self.flying.append(self.queue.popleft())
            flows = [flow for flows in self.flying for flow in flows]
            for canned, seqs in zip(self.canned, self.seqs, strict=True):
                if built:
                    await self.session.record(canned, flows)
                else:
                    await self.session.record_entries(self.entries(flows, seqs))
                steps += canned.size
            self.flying.popleft()
        return steps


class Linear(Shape):
    name = "linear"
    unit = "step"
    built = True

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        self.pipelines = [Pipeline(batch, session, self.creator) for session in sessions[:-1]]

    async def round(self) -> int:
        with self.meter("create"):
            for pipeline in self.pipelines:
                await pipeline.fill(QUEUED_CALLS)
        with self.meter("record"):
            return sum(await asyncio.gather(*(pipeline.drain(built=self.built) for pipeline in self.pipelines)))


class LinearLaidOut(Linear):
    """The same, with what a dispatcher pays: entries laid out and every column built for each batch."""

    name = "linear+lay_out"
    built = False


class LinearTwoLanes(Linear):
    """The same in two lanes on two connections, driven by one loop."""

    name = "linear 2 lanes"
    sessions = 3


class Chains(Shape):
    """Flows of ten steps that run as one chain: created born claimed, and all ten steps recorded at once."""

    name = "chain"
    unit = "step"
    rounds = 20

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        prefix = [step(1, seq, lease=1).record for seq in range(1, STEPS)]
        last = step(1, STEPS, lease=1).record
        elapsed = [seq / 1000 for seq in range(1, STEPS)]
        self.canned = Canned([Entry(place, place, last, prefix=prefix, elapsed=elapsed) for place in range(1, batch + 1)])

    async def round(self) -> int:
        with self.meter("create"):
            queue = [sorted(await self.creator.create(self.batch, STATE, owner=self.session)) for _ in range(self.rounds)]
        with self.meter("record"):
            for flows in queue:
                await self.session.record(self.canned, flows)
        return STEPS * self.batch * self.rounds


class LinearClaimed(Shape):
    """No successor is hot: each is made claimable, and found by a claim of one half of what waits."""

    name = "linear-claimed"
    unit = "step"
    rounds = 20

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        self.open = 0
        self.half = 0

    async def round(self) -> int:
        steps = 0
        for _ in range(self.rounds):
            if self.open < 4 * self.batch:  # so that either half has a batch waiting
                with self.meter("create"):
                    for _ in range(4):
                        self.open += len(await self.creator.create(self.batch, STATE))
            with self.meter("claim"):
                rows = await self._claim()
            entries = [step(flow, seq, lease=lease, hot=False) for flow, _, seq, lease in sorted(rows)]
            flows = [entry.flow_id for entry in entries]
            canned = Canned([step(place, entry.record.seq, lease=entry.record.lease, hot=False) for place, entry in enumerate(entries, 1)])
            with self.meter("record"):
                await self.session.record(canned, flows)
            self.open -= sum(entry.record.kind is Kind.CLOSE for entry in entries)
            steps += len(entries)
        return steps

    async def _claim(self) -> list[Row]:
        for _ in (0, 1):
            self.half = 1 - self.half
            if rows := claimed(await self.session.claim({"": self.batch}, self.half)):
                return rows
        raise AssertionError("nothing waits")


class ChildFlows(Shape):
    """A parent of one step that waits for a child of one step: three claims, three records, two flows."""

    name = "child"
    unit = "flow"

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        places = range(1, batch + 1)
        start = ChildStart("0" * 16, self.session.graph_id, "First")
        park = [Record(kind=Kind.PARK, branch=0, seq=1, lease=1, status=StepStatus.PARKED, child=Child("bench", STATE)) for _ in places]
        self.park = Canned([Entry(place, place, record, child=start) for place, record in zip(places, park, strict=True)])
        end = Record(kind=Kind.CLOSE, branch=0, seq=1, lease=1, changes=CHANGES, final_state=CHANGES)
        self.end = Canned([Entry(batch + place, place, end, caller=(place, 0)) for place in places])
        last = Record(kind=Kind.CLOSE, branch=0, seq=1, lease=3, changes=CHANGES, final_state=CHANGES)
        self.last = Canned([Entry(place, place, last, unparks=True) for place in places])

    async def round(self) -> int:
        with self.meter("create"):
            parents = sorted(await self.session.create(self.batch, STATE))
        with self.meter("claim"):
            assert await self.session.claim_both(self.batch) == self.batch
        with self.meter("park"):
            born = children(await self.session.record(self.park, parents))
        with self.meter("claim"):
            assert await self.session.claim_both(self.batch) == self.batch
        with self.meter("close child"):
            flows, branches = woken(await self.session.record(self.end, parents + sorted(born)))
        with self.meter("claim"):
            assert await self.session.claim_these(flows, branches) == self.batch
        with self.meter("close parent"):
            await self.session.record(self.last, parents)
        return self.batch


class Interrupts(Shape):
    """A step that parks, is resumed by one call of its own, is claimed and closes its flow."""

    name = "interrupt"
    unit = "flow"

    def __init__(self, batch: int, sessions: list[Session], meter: Meter) -> None:
        super().__init__(batch, sessions, meter)
        places = range(1, batch + 1)
        park = Record(kind=Kind.PARK, branch=0, seq=1, lease=1, status=StepStatus.INTERRUPTED, payload=b'{"question":1}')
        self.park = Canned([Entry(place, place, park) for place in places])
        last = Record(kind=Kind.CLOSE, branch=0, seq=1, lease=3, changes=CHANGES, final_state=CHANGES)
        self.last = Canned([Entry(place, place, last, unparks=True) for place in places])

    async def round(self) -> int:
        with self.meter("create"):
            flows = sorted(await self.session.create(self.batch, STATE, owner=self.session))
        with self.meter("park"):
            check(await self.session.record(self.park, flows))
        with self.meter("resume"):
            for flow in flows:
                assert await self.session.store.resume_flow(flow, b'{"answer":1}')
        with self.meter("claim"):
            assert await self.session.claim_both(self.batch) == self.batch
        with self.meter("close"):
            await self.session.record(self.last, flows)
        return self.batch
