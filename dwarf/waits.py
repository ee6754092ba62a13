"""Waiting for flows of one shard to stop: many waiters, few questions.

Owns the futures of those who wait, and one task that asks where their flows stand as long as somebody waits: soon after the
wait began, then less and less often down to every 50 ms; at once for a flow that was named to `notify`; never more than 512
flows in one question. Who the waiters are and what an outcome looks like is for the client: a future tells how a flow ended,
or None, and then the waiter looks for itself.

A database that cannot be asked ends no wait. A flow that is gone ends it with `NotFound`, closing with `ShardUnavailable`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from itertools import count

import msgspec

from dwarf.errors import NotFound, ShardUnavailable
from dwarf.keys import flow_name
from dwarf.status import Status

LOOK_SECONDS_MIN = 0.002  # between two looks at a flow: first this, in the end the other
LOOK_SECONDS_MAX = 0.05
LOOK_GROWTH = 1.5
LOOK_SLACK_SECONDS = 0.001  # what is due so soon is looked at as well
SILENCE_SECONDS_MAX = 1.0  # between two looks while the shard does not answer
IDS_MAX = 512
LAST_LOOK_SECONDS_MAX = 1.0
LEAVE_SECONDS_MAX = 5.0  # how long closing waits for those who have been told


class Ended(msgspec.Struct, frozen=True):
    """How a flow ended. Without a `final_state` it has to be read or folded."""

    status: Status
    final_state: bytes | None = None
    error: str = ""
    reason: str = ""


Found = Mapping[int, Ended | bool | None]
# Where flows stand: False runs, None has stopped, `Ended` has ended. One that is not there is left out.
Look = Callable[[Sequence[int]], Awaitable[Found]]
Watch = asyncio.Future["Ended | None"]


class WaitHub:
    """Those who wait for flows of a shard. `look` asks where flows stand."""

    def __init__(self, shard: int, look: Look) -> None:
        self._shard = shard
        self._look = look
        self._watches: dict[int, set[Watch]] = {}
        self._fresh: list[int] = []  # not yet in the plan
        self._plan: list[tuple[float, int, float, list[int]]] = []  # when to look, a number, seconds since the last look, at whom
        self._looks: dict[int, float] = {}  # when each flow is looked at next; what else the plan says of it is out of date
        self._numbers = count()
        self._due = 0.0  # when the task looks next
        self._named: set[int] = set()
        self._is_called = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._inside = 0
        self._all_left = asyncio.Event()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return sum(map(len, self._watches.values()))

    @contextmanager
    def watching(self, flow_id: int) -> Iterator[Callable[[], Watch]]:
        """Watch a flow for as long as the block runs; each call of what it yields gives a future of the next stop."""
        mine: set[Watch] = set()

        def watch() -> Watch:
            if self._is_closed:
                raise self._closed(flow_id)
            future: Watch = asyncio.get_running_loop().create_future()
            mine.add(future)
            self._watches.setdefault(flow_id, set()).add(future)
            self._fresh.append(flow_id)
            self._start()
            return future

        self._inside += 1
        try:
            yield watch
        finally:
            self._inside -= 1
            if not self._inside:
                self._all_left.set()
            for future in mine:
                self._forget(flow_id, future)
                if future.done() and not future.cancelled():
                    future.exception()  # nobody else will ask
                future.cancel()

    def notify(self, flow_id: int, ended: Ended | None = None) -> None:
        """Tell that a flow has ended, or, without saying how, that something has come of it: it is looked at at once."""
        watches = self._watches.get(flow_id)
        if not watches:
            return
        if ended is None:
            self._named.add(flow_id)
            self._is_called.set()
        else:
            self._resolve(flow_id, ended)

    async def close(self) -> None:
        """Look a last time, tell those whose flow has stopped, and everybody else that it is over. Twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS_MAX):
                await self._look_at(list(self._watches))
        for flow_id in list(self._watches):
            self._fail(flow_id, self._closed(flow_id))
        if self._inside:
            self._all_left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS_MAX):
                    await self._all_left.wait()

    # The task

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done():
            self._plan.clear()
            self._looks.clear()
            self._task = loop.create_task(self._run(), name=f"waits of shard {self._shard}")
        elif self._due > loop.time() + LOOK_SECONDS_MIN:
            self._is_called.set()

    async def _run(self) -> None:
        """Look at each flow when its time has come, and in between at those that were named."""
        clock = asyncio.get_running_loop().time
        silence = 0.0
        while self._watches:
            fresh, self._fresh = self._fresh, []
            if fresh:
                at = clock() + max(LOOK_SECONDS_MIN, silence)
                self._schedule(at, LOOK_SECONDS_MIN, [each for each in dict.fromkeys(fresh) if self._looks.get(each, math.inf) > at])
            self._due = self._plan[0][0] if self._plan else clock() + LOOK_SECONDS_MAX
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due):
                    await self._is_called.wait()
            self._is_called.clear()
            named, self._named = self._named, set()
            groups = self._take_due(clock() + LOOK_SLACK_SECONDS)
            flow_ids = {flow_id: None for flow_id in (*named, *(each for _, group in groups for each in group)) if flow_id in self._watches}
            if not flow_ids:
                continue
            answered = await self._look_at(list(flow_ids))
            silence = 0.0 if answered else min(max(2 * silence, LOOK_SECONDS_MAX), SILENCE_SECONDS_MAX)
            self._plan_again(groups, clock(), silence)

    def _take_due(self, until: float) -> list[tuple[float, list[int]]]:
        """Take what is due until then out of the plan: seconds since the last look, and at whom."""
        groups = []
        while self._plan and self._plan[0][0] <= until:
            at, _, seconds, flow_ids = heappop(self._plan)
            planned = [flow_id for flow_id in flow_ids if self._looks.get(flow_id) == at]
            for flow_id in planned:
                del self._looks[flow_id]
            groups.append((seconds, planned))
        return groups

    def _plan_again(self, groups: Sequence[tuple[float, list[int]]], now: float, silence: float) -> None:
        later: dict[float, list[int]] = {}
        for seconds, flow_ids in groups:
            left = [flow_id for flow_id in flow_ids if flow_id in self._watches]
            later.setdefault(min(seconds * LOOK_GROWTH, LOOK_SECONDS_MAX), []).extend(left)
        for seconds, flow_ids in later.items():
            self._schedule(now + max(seconds, silence), seconds, flow_ids)

    def _schedule(self, at: float, seconds: float, flow_ids: list[int]) -> None:
        if flow_ids:
            heappush(self._plan, (at, next(self._numbers), seconds, flow_ids))
            self._looks.update(dict.fromkeys(flow_ids, at))

    async def _look_at(self, flow_ids: Sequence[int]) -> bool:
        """Ask where flows stand and tell their watches; False when the shard did not answer."""
        for first in range(0, len(flow_ids), IDS_MAX):
            chunk = flow_ids[first : first + IDS_MAX]
            try:
                found = await self._look(chunk)
            except ShardUnavailable:
                return False
            except Exception as error:  # a defect: those who wait have to know, or they would wait for ever
                for flow_id in chunk:
                    self._fail(flow_id, error)
                continue
            for flow_id in chunk:
                stand = found.get(flow_id, True)
                if stand is True:
                    self._fail(flow_id, NotFound(f"flow {flow_name(self._shard, flow_id)} does not exist any more"))
                elif stand is not False:
                    self._resolve(flow_id, stand)
        return True

    def _resolve(self, flow_id: int, ended: Ended | None) -> None:
        for watch in self._watches.pop(flow_id, ()):
            if not watch.done():
                watch.set_result(ended)

    def _fail(self, flow_id: int, error: Exception) -> None:
        for watch in self._watches.pop(flow_id, ()):
            if not watch.done():
                watch.set_exception(error)

    def _forget(self, flow_id: int, watch: Watch) -> None:
        watches = self._watches.get(flow_id)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                del self._watches[flow_id]

    def _closed(self, flow_id: int) -> ShardUnavailable:
        return ShardUnavailable(f"the client was closed while it waited for flow {flow_name(self._shard, flow_id)}, which runs on")
