"""What a dispatcher has handed out: which executor holds which row, and how much room is left. Pure bookkeeping.

assigned --Report, the row goes on--> recording, the slot is kept: what comes next may be due before all else
         --Report, otherwise--------> recording, the slot is free
         --Withdraw-----------------> leaving: forgotten as a row, the slot is busy until Freed
recording --recorded, started--> assigned (the next step, under the same ticket)
          --recorded, over-----> gone
"""

from __future__ import annotations

from typing import Any

import msgspec

from dwarf.channel import Channel
from dwarf.rows import ClaimedRow
from dwarf.wire import ToDispatcher, ToExecutor

SEAT_BYTES_MAX = 256 << 20  # what an executor is handed at one time, unless it is a single step
RECORDS_MAX = 10_000  # that wait to be recorded, until there is no room for more steps


class Seat:
    """An executor as its dispatcher sees it."""

    __slots__ = ("busy", "bytes", "channel", "graphs", "is_retired", "leaving", "slots")

    def __init__(self, channel: Channel[ToExecutor, ToDispatcher]) -> None:
        self.channel = channel
        self.slots = 0
        self.is_retired = False  # it is given nothing more
        self.busy = 0
        self.bytes = 0
        self.graphs: set[int] = set()  # that it has been sent
        self.leaving: set[int] = set()  # tickets that were withdrawn and whose tasks may still run

    @property
    def free(self) -> int:
        return 0 if self.is_retired or self.bytes > SEAT_BYTES_MAX else max(self.slots - self.busy, 0)


class Held(msgspec.Struct, gc=False):
    """A row that an executor holds. `row` is kept as it is in the database: a successor's takes its place."""

    ticket: int
    row: ClaimedRow
    seat: Any  # Seat
    size: int = 0  # in bytes
    recording: bool = False
    keeps_slot: bool = True
    is_hot: bool = False  # the successor starts at once when the record under way is stored
    record: Any = None  # the Record under way
    child: Any = None  # the ChildStart that goes with it
    first_branch: int | None = None
    signal: tuple[int, int] | None = None  # seq and lease of one that came while it was recorded: its successor may be meant


class Ledger:
    """Everything that is handed out, by ticket and by row."""

    def __init__(self) -> None:
        self.seats: list[Seat] = []
        self._held: dict[int, Held] = {}
        self._places: dict[tuple[int, int], Held] = {}
        self._ticket = 0
        self._recording = 0  # records under way
        self.claiming = self.creating = 0  # slots that are kept for rows which a claim, or a create, may be about to bring

    @property
    def free(self) -> int:
        if self._recording > RECORDS_MAX:
            return 0
        return max(sum(seat.free for seat in self.seats) - self.claiming - self.creating, 0)

    @property
    def running(self) -> list[Held]:
        """What executors work on, records under way left out."""
        return [held for held in self._held.values() if not held.recording]

    def held_by(self, seat: Seat) -> list[Held]:
        """What one executor holds, records under way included."""
        return [held for held in self._held.values() if held.seat is seat]

    @property
    def all(self) -> list[Held]:
        return list(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, row: ClaimedRow) -> Held | None:
        """Give a claimed row to the executor with the most room; None when there is no executor.

        A row that was held under an older lease is replaced.
        """
        seats = [seat for seat in self.seats if not seat.is_retired]
        if not seats:
            return None
        seat = max(seats, key=lambda seat: seat.slots - seat.busy)
        self._ticket += 1
        held = Held(self._ticket, row, seat)
        seat.busy += 1
        self._held[held.ticket] = held
        self._places[row.flow_id, row.branch] = held
        return held

    def weigh(self, held: Held, size: int) -> None:
        held.seat.bytes += size - held.size
        held.size = size

    def by_ticket(self, ticket: int) -> Held | None:
        return self._held.get(ticket)

    def at(self, flow_id: int, branch: int) -> Held | None:
        return self._places.get((flow_id, branch))

    def report(self, held: Held, record: Any, *, is_hot: bool = False, keeps_slot: bool = False) -> None:
        """Take in what came of a row. A slot that is kept is free for others once the record is stored."""
        held.recording, held.record, held.is_hot, held.keeps_slot = True, record, is_hot, is_hot or keeps_slot
        self._recording += 1
        if not held.keeps_slot:
            held.seat.busy -= 1

    def advance(self, held: Held) -> None:
        """Make the row what its record made of it: the successor has started."""
        row, record = held.row, held.record
        row.seq += 1
        row.lease += 1
        row.task, row.todo, row.attempt, row.parked = record.task, 0, 0, False
        row.size = row.expanded = row.last_ordinal = None
        held.recording, held.record, held.child, held.first_branch = False, None, None, None
        self._recording -= 1

    def is_taken(self, held: Held) -> bool:
        """Tell whether the successor of a row has been taken away before its record was known to be stored."""
        row = held.row
        return held.signal == (row.seq + 1, row.lease + 1) or self._places.get((row.flow_id, row.branch)) is not held

    def drop(self, held: Held) -> None:
        """Forget a row that is over, and free its slot."""
        self._forget(held)
        if held.recording:
            self._recording -= 1
        if held.keeps_slot:
            held.seat.busy -= 1

    def withdraw(self, held: Held) -> None:
        """Forget a row that was taken away; its executor is busy with it until it says otherwise."""
        self._forget(held)
        held.seat.leaving.add(held.ticket)

    def freed(self, seat: Seat, ticket: int) -> None:
        if ticket in seat.leaving:
            seat.leaving.discard(ticket)
            seat.busy -= 1

    def _forget(self, held: Held) -> None:
        self._held.pop(held.ticket, None)
        place = (held.row.flow_id, held.row.branch)
        if self._places.get(place) is held:
            del self._places[place]
        held.seat.bytes -= held.size
