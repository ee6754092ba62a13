"""The dispatcher of one shard: claims what is due, hands it to executors by credit, records what they report, acknowledges.

    claim loop     look (sleepers, signals) -> due bands and keys -> claim by shares -> load -> Assign
    seat loops     one per executor: Hello, Reports, Freed, Unstarted
    lane loops     batches of records -> one commit each -> Committed, hints of what became claimable
    creates        in batches, born claimed where there is room
    session loops  renewal, sweep

Owns its session, its lanes, its connections and the ledger. Never decodes user state and never runs a task. When the
session is lost, everything that runs is withdrawn and `run` ends; who started it starts another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
import psycopg

from dwarf import faults
from dwarf.batch import Entry
from dwarf.channel import Channel, ChannelClosed
from dwarf.database import Connection, Disposition, classify
from dwarf.dispatch.assembly import NOTHING, Loaded, Parcel, load, needs_loading
from dwarf.dispatch.claims import CLAIM_ROWS_MAX, Claimer
from dwarf.dispatch.creating import Creates
from dwarf.dispatch.ledger import Held, Ledger, Seat
from dwarf.dispatch.recording import Recorder, Supply, claimable_after, failed, goes_on, unreadable
from dwarf.dispatch.session import Session, Terms
from dwarf.errors import ShardUnavailable
from dwarf.keys import flow_name
from dwarf.lanes import LaneWriter, Written
from dwarf.new_flow import NewFlow
from dwarf.pool import Pool, Unreached
from dwarf.record import Kind, Todo
from dwarf.rows import ClaimedRow, SweptRow
from dwarf.status import StepStatus
from dwarf.store import Store
from dwarf.wire import (
    Assign,
    Committed,
    Drain,
    Freed,
    GraphForm,
    Hello,
    Report,
    Reports,
    ToDispatcher,
    ToExecutor,
    Unstarted,
    Withdraw,
)  # fmt: skip

LANES = 2
POLL_SECONDS_MIN = 0.005
POLL_SECONDS_MAX = 0.1
SLOTS_SHARED_MIN = 16  # free slots, from which on a claim leaves a quarter of them to what is created meanwhile
CYCLE_SECONDS_MIN = 0.002  # from one claim to the next, however often the doorbell rings
LOOK_SECONDS = 0.05  # between two looks at sleepers and signals
WAKE_ROWS_MAX = 1_000
SIGNALS_MAX = 1_000
HINTS_MAX = 10_000
TROUBLE_PAUSE_SECONDS = 0.5  # before a shard that could not be asked is asked again
FLUSH_SECONDS_MAX = 5.0  # how long the last outcomes may take to be recorded once the grace has passed
SETTLE_LOOK_SECONDS = 0.05  # how often it is looked whether all is settled, where nobody tells
END_SECONDS_MAX = 2.0  # how long the end of the session may take
FREED_SECONDS_MAX = 2.0  # how long withdrawn tasks may take to end before their steps are handed back all the same

log = logging.getLogger("dwarf.dispatch")


class Stopped(msgspec.Struct):
    """What is known of a flow that has stopped: how it ended, or None for one that is to be looked at."""

    flow_id: int
    status: StepStatus | None = None
    final_state: bytes = b""
    error: str = ""


class Counters(msgspec.Struct):
    """What a dispatcher has done since it started."""

    claimed: int = 0
    born: int = 0
    started_at_once: int = 0
    recorded: int = 0
    batches: int = 0
    missed: int = 0
    poisoned: int = 0
    write_failed: int = 0
    swept: int = 0
    withdrawn: int = 0
    released: int = 0


class Dispatcher:
    """One session of one replica on one shard. `on_stopped` is told of flows that ended or wait for somebody."""

    def __init__(self, conninfo: str, terms: Terms, on_stopped: Callable[[list[Stopped]], None], *, shard: int = 1) -> None:
        self._conninfo, self._shard = conninfo, shard
        name = f"shard {shard}"
        self._on_stopped = on_stopped
        self._claims = Pool(conninfo, size=1, application="dwarf dispatcher", name=name)
        self._control = Pool(conninfo, size=2, application="dwarf dispatcher", name=name)
        self._reader = Pool(conninfo, size=1, application="dwarf dispatcher", name=name)
        self._renewals = Pool(conninfo, size=1, application="dwarf dispatcher", name=name)  # waits behind nothing that waits for a lock
        self._session = Session(self._control, self._renewals, terms)
        self._ledger = Ledger()
        self._hints: list[tuple[int, int]] = []
        self._doorbell = asyncio.Event()
        self._graphs: dict[int, GraphForm] = {}
        self._arriving: list[ClaimedRow] = []  # claimed, and not handed out yet
        self._strays: set[tuple[int, int, int]] = set()
        self._ghosts: set[tuple[int, int, int]] = set()
        self._draining = self._is_claiming = False
        self._grace: asyncio.Timeout | None = None  # of a drain under way
        self._idle = asyncio.Event()
        self._loads: set[asyncio.Task[None]] = set()
        self.counters = Counters()
        self._claimer: Claimer
        self._recorder: Recorder
        self._creates: Creates

    @property
    def session(self) -> int:
        return self._session.number

    @property
    def running(self) -> int:
        """How many steps are handed out or being recorded."""
        return len(self._ledger)

    @property
    def control(self) -> Pool:
        """The connections for what is not dispatching itself."""
        return self._control

    @property
    def write_retries(self) -> int:
        return self._recorder.retried

    # ---- its life ----

    async def start(self, *, patience: float = 10.0) -> None:
        """Register the session and open the lanes. Raises `ShardUnavailable`."""
        await self._session.start(patience=patience)
        number = self._session.number
        self._claimer = Claimer(number)
        writers = [LaneWriter(number, lane, self._connect, failed) for lane in range(LANES)]
        self._recorder = Recorder(writers, Supply(self._control), self._settle)
        self._creates = Creates(self._control, number, room=self._room, on_born=self._start_born, on_due=self.ring)

    async def run(self) -> None:
        """Dispatch until cancelled. Raises `SessionLost`, `LaneLost` or the defect that ended it, in a group."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claim_for_ever())
            group.create_task(self._recorder.run())
            group.create_task(self._session.renew())
            group.create_task(self._session.sweep(self._count_swept))
            group.create_task(self._reconcile_for_ever())

    async def drain(self, grace: float) -> None:
        """Claim no more, wait at most `grace` seconds for what runs, and hand the rest back."""
        self._draining = True
        for seat in self._ledger.seats:
            seat.channel.send(Drain())
        is_settled = True
        try:
            async with asyncio.timeout(grace) as self._grace:
                await self._settled()
        except TimeoutError:
            is_settled = False
        try:
            async with asyncio.timeout(FLUSH_SECONDS_MAX):
                if not is_settled:
                    await self._hand_back(self._ledger.running)
                await self._recorder.drained()
        except TimeoutError:
            log.error(
                "%s: unreachable at the end of the grace: outcomes of %d steps are lost, the steps will run again",
                self._control.name,
                len(self._ledger),
            )

    def hurry(self) -> None:
        """Wait no longer for what runs while this is being drained."""
        if self._grace is not None and self._grace.when() is not None and not self._grace.expired():
            self._grace.reschedule(asyncio.get_running_loop().time())

    async def close(self, *, in_order: bool = True) -> None:
        """End the session in good order, or leave it to its end as a crash does."""
        for task in self._loads:
            task.cancel()
        if in_order:
            try:
                async with asyncio.timeout(END_SECONDS_MAX):
                    await self._session.end()
            except Exception as problem:
                log.warning("%s: session %d could not be ended: %s", self._control.name, self.session, problem)
        if self.session:
            self._recorder.close()
        for pool in (self._claims, self._control, self._reader, self._renewals):
            pool.close()

    def ring(self) -> None:
        """Tell that there may be work."""
        self._doorbell.set()

    async def create(self, flows: list[NewFlow], *, patience: float) -> list[int]:
        """Create flows and return their ids. Raises `Unreached` and `ShardUnavailable`."""
        if self._draining:
            raise Unreached("the engine is shutting down")
        return await self._creates.insert(flows, patience=patience)

    # ---- executors ----

    async def serve(self, channel: Channel[ToExecutor, ToDispatcher]) -> None:
        """Work with the executor at the other end until the channel closes; then what it held goes back."""
        seat = Seat(channel)
        self._ledger.seats.append(seat)
        if self._draining:
            channel.send(Drain())
        try:
            while True:
                for message in await channel.receive():
                    self._take(seat, message)
        except ChannelClosed:
            await self._release([held for held in self._ledger.running if held.seat is seat])
        finally:
            self._ledger.seats.remove(seat)

    async def retire(self, channel: Channel[ToExecutor, ToDispatcher], grace: float) -> None:
        """Give an executor nothing more, wait at most `grace` seconds for what it runs, hand back the rest, and part from it."""
        for seat in [seat for seat in self._ledger.seats if seat.channel is channel]:
            seat.is_retired = True
            channel.send(Drain())
            try:
                async with asyncio.timeout(grace):
                    while self._ledger.held_by(seat):
                        await self._something_ends()
            except TimeoutError:
                await self._hand_back([held for held in self._ledger.running if held.seat is seat])
        channel.close()

    def _take(self, seat: Seat, message: ToDispatcher) -> None:
        match message:
            case Reports(items=items):
                for report in items:
                    self._report(report)
            case Freed(tickets=tickets):
                for ticket in tickets:
                    self._ledger.freed(seat, ticket)
            case Unstarted(tickets=tickets):
                held = [self._ledger.by_ticket(ticket) for ticket in tickets]
                self._spawn(self._release([each for each in held if each is not None]))
            case Hello(slots=slots):
                seat.slots = slots
        self._notice()

    def _report(self, report: Report) -> None:
        held = self._ledger.by_ticket(report.ticket)
        if held is None or held.recording:
            return  # withdrawn meanwhile: the row is no longer ours
        faults.reach("report.taken", report)
        record = report.record
        at_once = record.kind is Kind.ADVANCE and not record.delay and not self._draining and self._session.may_take
        is_hot = at_once and self._claimer.may_start_at_once(held.row.priority)
        if report.graph is not None:
            held.child = report.graph
        self._ledger.report(held, record, is_hot=is_hot, keeps_slot=goes_on(record))
        self._recorder.put(held)

    # ---- claiming ----

    async def _claim_for_ever(self) -> None:
        pause = POLL_SECONDS_MIN
        looked_at = began = 0.0
        trouble = ""
        clock = asyncio.get_running_loop().time
        while not self._draining:
            await asyncio.sleep(max(began + CYCLE_SECONDS_MIN - clock(), 0))
            began = clock()
            self._doorbell.clear()
            rows = self._arriving = []
            self._is_claiming = True
            try:
                if clock() - looked_at >= LOOK_SECONDS:
                    looked_at = clock()
                    await self._look()
                faults.reach("claim.sent")
                await self._claims.run(lambda store, rows=rows: self._claim(store, rows), is_repeatable=False, patience=0)  # type: ignore[misc]
                pause = POLL_SECONDS_MIN if rows else min(pause * 1.5, POLL_SECONDS_MAX)
                trouble = ""
            except Exception as error:  # whatever it was: what is handed out goes on, and the next look may fare better
                if str(error) != trouble:
                    log.warning("%s: claiming: %s", self._control.name, error, exc_info=not isinstance(error, ShardUnavailable))
                trouble = str(error)
                self._claimer.waiting_band = None
                pause = TROUBLE_PAUSE_SECONDS
            finally:
                self._ledger.claiming = 0
                self._hand_out(rows)
                self._arriving = []
                self._is_claiming = False
            await self._wait(pause)

    async def _claim(self, store: Store, rows: list[ClaimedRow]) -> None:
        hints, self._hints = list(dict.fromkeys(self._hints)), []  # the statement takes no row twice
        if hints and self._claimer.waiting_band is None and (free := self._keep_slots(rows) - len(rows)):
            rows += await store.claim_these(self.session, hints[: min(free, CLAIM_ROWS_MAX)])
            self._hints[:0] = hints[CLAIM_ROWS_MAX:] if free > CLAIM_ROWS_MAX else []
            self._ledger.claiming = len(rows)
        await self._claimer.claim(store, lambda: self._keep_slots(rows), rows)

    def _keep_slots(self, rows: list[ClaimedRow]) -> int:
        """Keep slots for a claim that has these rows already, all but some for what is created meanwhile; return how many in all."""
        self._ledger.claiming = len(rows)
        free = self._ledger.free if self._session.may_take else 0
        self._ledger.claiming += free if free < SLOTS_SHARED_MIN else free - free // 4
        return self._ledger.claiming

    async def _look(self) -> None:
        """Wake sleepers, and take the signals that say which rows were taken away."""
        seen = await self._control.run(lambda store: store.look(self.session, WAKE_ROWS_MAX), patience=0)
        self._claimer.see(seen.dispatchers)
        if seen.has_signals:
            signals = await self._control.run(lambda store: store.take_signals(self.session, SIGNALS_MAX), is_repeatable=False, patience=0)
            for signal in signals:
                held = self._ledger.at(signal.flow_id, signal.branch)
                if held is None:
                    continue
                if held.recording:
                    held.signal = (signal.seq, signal.lease)
                elif (held.row.seq, held.row.lease) == (signal.seq, signal.lease):
                    self._withdraw([held])

    async def _wait(self, seconds: float) -> None:
        """Wait for the doorbell, or for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self._doorbell.wait()
        except TimeoutError:
            pass

    def _hand_out(self, rows: list[ClaimedRow]) -> None:
        """Send claimed rows to executors, those that need loading as soon as that is done."""
        if not rows:
            return
        faults.reach("claim.taken", rows)
        self.counters.claimed += len(rows)
        # A verb took these away and made them claimable again; the signal that says so may only be on its way.
        self._withdraw([older for row in rows if (older := self._ledger.at(row.flow_id, row.branch)) is not None])
        simple: list[Held] = []
        others: list[Held] = []
        homeless: list[tuple[int, int, int, bool]] = []
        for row in rows:
            held = self._ledger.hold(row)
            if held is None:
                homeless.append((row.flow_id, row.branch, row.lease, False))
                continue
            (others if needs_loading(row) or row.graph_id not in self._graphs else simple).append(held)
        if simple:
            self._send(simple)
        if others:
            self._spawn(self._load_and_send(others))
        if homeless:
            self._spawn(self._release_rows(homeless))

    async def _load_and_send(self, helds: list[Held]) -> None:
        try:
            rows = [held.row for held in helds]
            missing = sorted({row.graph_id for row in rows} - self._graphs.keys())
            if missing:
                forms = await self._reader.run(lambda store: store.load_graphs(missing), patience=3600)
                self._graphs.update({form[0]: GraphForm(*form) for form in forms})
            loaded = await self._reader.run(lambda store: load(store, rows), patience=3600)
            self._send(helds, loaded)
        except Exception as error:
            if isinstance(error, ShardUnavailable | psycopg.Error) and classify(error) is not Disposition.BISECT:
                log.warning("%s: loading what %d steps stand on: %s", self._control.name, len(helds), error)
                await asyncio.sleep(TROUBLE_PAUSE_SECONDS)
                await self._release([held for held in helds if self._ledger.by_ticket(held.ticket) is held])
            elif len(helds) > 1:  # what cannot be read is found by halves: the others run
                middle = len(helds) // 2
                await self._load_and_send(helds[:middle])
                await self._load_and_send(helds[middle:])
            elif self._ledger.by_ticket(helds[0].ticket) is helds[0]:
                log.exception("%s: what a step stands on cannot be read", self._control.name)
                self._ledger.report(helds[0], unreadable(helds[0].row, error))
                self._recorder.put(helds[0])

    def _send(self, helds: Iterable[Held], loaded: Loaded = NOTHING) -> None:
        parcels: dict[Seat, Parcel] = {}
        for held in helds:
            if self._ledger.by_ticket(held.ticket) is not held:
                continue  # withdrawn while it was loaded
            parcel = parcels.setdefault(held.seat, Parcel())
            size = parcel.add(held, loaded)
            if size is None:
                self._ledger.drop(held)
                continue
            if held.row.todo == Todo.EXPAND:
                held.first_branch = loaded.cohorts[held.row.flow_id, held.row.branch].first
            self._ledger.weigh(held, size)
        for seat, parcel in parcels.items():
            new = {step.graph_id for step in parcel.steps} - seat.graphs
            forms = [self._graphs[graph_id] for graph_id in new]
            seat.graphs |= new
            seat.channel.send(Assign(parcel.steps, parcel.documents, forms))
            faults.reach("assign.sent", parcel.steps)

    # ---- born claimed ----

    def _room(self, flows: Sequence[NewFlow]) -> bool:
        """Tell whether these flows may be born claimed, and keep slots for them if so."""
        if self._draining or not self._session.may_take or len(flows) > self._ledger.free:
            return False
        if not all(self._claimer.may_start_at_once(flow.priority) for flow in flows):
            return False
        self._ledger.creating += len(flows)
        return True

    def _start_born(self, rows: list[ClaimedRow], kept: int) -> None:
        self._ledger.creating -= kept
        self.counters.born += len(rows)
        self.counters.claimed -= len(rows)
        self._hand_out(rows)

    # ---- recorded ----

    def _settle(self, pairs: list[tuple[Held, Entry]], written: Written) -> None:
        """Tell executors, waiters and the claim loop what became of a batch."""
        missed = {entry.place for entry in written.missed}
        replaced = {entry.place: text for entry, text in written.poisoned}
        lost = {entry.place for entry, _ in written.unstorable}
        started: dict[Seat, list[int]] = {}
        over: dict[Seat, list[int]] = {}
        stopped: list[Stopped] = []
        orphans: list[Held] = []
        self.counters.batches += 1
        self.counters.recorded += len(pairs) - len(missed)
        for held, entry in pairs:
            place = entry.place
            if place not in missed and place not in replaced and place not in lost:
                if entry.hot and not self._ledger.is_taken(held):
                    self._ledger.advance(held)
                    started.setdefault(held.seat, []).append(held.ticket)
                    if held.seat not in self._ledger.seats:  # its executor has died since it reported
                        orphans.append(held)
                    continue
                self._hints += claimable_after(held, entry)
                stopped += _stopped(entry)
            elif place in replaced:
                name = flow_name(self._shard, entry.flow_id)
                log.error("a step of flow %s could not be recorded and has failed: %s", name, replaced[place])
                stopped.append(Stopped(entry.flow_id))
            self._ledger.drop(held)
            over.setdefault(held.seat, []).append(held.ticket)
        self._count(written, started)
        self._hints += written.woke + [(child, 0) for _, child in written.children]
        del self._hints[:-HINTS_MAX]
        for seat in {*started, *over}:
            seat.channel.send(Committed(started.get(seat, []), over.get(seat, [])))
        if orphans:
            self._spawn(self._release(orphans))
        if stopped:
            self._on_stopped(stopped)
        self._notice()

    def _count(self, written: Written, started: dict[Seat, list[int]]) -> None:
        counters = self.counters
        counters.missed += len(written.missed)
        counters.poisoned += len(written.poisoned)
        counters.write_failed += len(written.unstorable)
        counters.started_at_once += sum(map(len, started.values()))

    # ---- taking back ----

    def _withdraw(self, helds: Iterable[Held]) -> None:
        """Stop what was taken away. What is being recorded will find out by its fence."""
        by_seat: dict[Seat, list[int]] = {}
        for held in helds:
            if not held.recording:
                self._ledger.withdraw(held)
                by_seat.setdefault(held.seat, []).append(held.ticket)
                self.counters.withdrawn += 1
        for seat, tickets in by_seat.items():
            seat.channel.send(Withdraw(tickets))

    async def _release(self, helds: list[Held]) -> None:
        """Hand rows back that nobody of this session runs."""
        if not helds:
            return
        rows = [(held.row.flow_id, held.row.branch, held.row.lease, False) for held in helds]
        for held in helds:
            if self._ledger.by_ticket(held.ticket) is held:
                self._ledger.drop(held)
        await self._release_rows(rows)

    async def _release_rows(self, rows: list[tuple[int, int, int, bool]]) -> None:
        self._claimer.restart()
        self.counters.released += await self._control.run(lambda store: store.release(self.session, rows))
        self._notice()

    async def _hand_back(self, running: list[Held]) -> None:
        """Withdraw what still runs after the grace, and hand it back once its tasks have ended, or have had time to."""
        rows = [(held.row.flow_id, held.row.branch, held.row.lease, False) for held in running]
        self._withdraw(running)
        try:
            async with asyncio.timeout(FREED_SECONDS_MAX):
                while any(seat.leaving for seat in self._ledger.seats):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("%d tasks did not end when they were cancelled", sum(len(seat.leaving) for seat in self._ledger.seats))
        if rows:
            await self._release_rows(rows)

    async def _settled(self) -> None:
        """Wait until nothing is handed out, being recorded, on its way here or on its way back. Stop meanwhile what is taken away."""
        clock = asyncio.get_running_loop().time
        look_at = clock() + LOOK_SECONDS
        while len(self._ledger) or self._is_claiming or self._loads or not self._creates.is_idle:
            await self._something_ends()
            if not self._is_claiming and clock() >= look_at:
                look_at = clock() + LOOK_SECONDS
                try:
                    await self._look()
                except Exception as error:
                    log.warning("%s: looking for signals: %s", self._control.name, error)
                    look_at = clock() + TROUBLE_PAUSE_SECONDS

    async def _something_ends(self) -> None:
        """Wait until something ended, or for a moment where nobody tells."""
        self._idle.clear()
        try:
            async with asyncio.timeout(SETTLE_LOOK_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            pass

    def _notice(self) -> None:
        """Something ended or became claimable."""
        self._idle.set()
        if self._hints or (self._claimer.waiting_band is not None and self._ledger.free):
            self._doorbell.set()

    async def _reconcile_for_ever(self) -> None:
        """Hand back rows that the session holds in the database and nobody here knows: left by claims whose answer was lost.
        And stop what runs here and is not the session's any more: taken away by a signal that was lost.

        Only a row that was so at two looks in a row is one: an answer may be on its way at either.
        """
        while True:
            await asyncio.sleep(self._session.interval)
            try:
                owned = await self._control.run(lambda store: store.owned(self.session), patience=1)
                running = {(held.row.flow_id, held.row.branch, held.row.lease): held for held in self._ledger.running}
                ghosts = running.keys() - owned
                self._withdraw([running[row] for row in ghosts & self._ghosts])
                self._ghosts = ghosts
                known = {(row.flow_id, row.branch, row.lease) for row in (*(held.row for held in self._ledger.all), *self._arriving)}
                # One whose record is under way may have its next lease already.
                recording = {(held.row.flow_id, held.row.branch) for held in self._ledger.all if held.recording}
                strays = {row for row in owned if row not in known and row[:2] not in recording}
                left = sorted(strays & self._strays)
                if left:
                    log.warning("%s: %d claimed steps were lost on their way; they go back", self._control.name, len(left))
                    rows = [(*row, False) for row in left]
                    await self._release_rows(rows)
                    self.ring()
                self._strays = strays
            except Exception as error:
                log.warning("%s: looking for lost steps: %s", self._control.name, error)

    def _count_swept(self, swept: list[SweptRow]) -> None:
        self.counters.swept += len(swept)
        self._claimer.restart()
        for row in swept:
            name = flow_name(self._shard, row.flow_id)
            log.warning("flow %s, branch %d: its step is pending again, its %s has ended", name, row.branch, row.why)
        self.ring()

    # ---- its surroundings ----

    async def _connect(self) -> Connection:
        return await Connection.open(self._conninfo, application="dwarf dispatcher")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loads.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        """Whatever such a task could not do is done once the rows it was for are found to be strays."""
        self._loads.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: session %d: %s", self._control.name, self.session, error)


def _stopped(entry: Entry) -> list[Stopped]:
    """Return which waiters have something to look at after a record."""
    record = entry.record
    if record.kind is Kind.CLOSE:
        if record.status in (StepStatus.COMPLETED, StepStatus.FAILED):
            return [Stopped(entry.flow_id, record.status, record.final_state, record.error)]
        return [Stopped(entry.flow_id)]
    if record.kind is Kind.PARK and record.child is None:
        return [Stopped(entry.flow_id), Stopped(entry.root_id)]
    return []
