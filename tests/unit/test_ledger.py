"""What a dispatcher keeps of what it has handed out."""

from __future__ import annotations

from typing import Any

import pytest

from dwarf.dispatch.creating import born_row
from dwarf.dispatch.ledger import SEAT_BYTES_MAX, Held, Ledger, Seat
from dwarf.new_flow import NewFlow
from dwarf.record import Kind, Record
from dwarf.rows import ClaimedRow


class Nowhere:
    def send(self, message: object) -> None: ...
    async def receive(self) -> list[Any]:
        return []

    def close(self) -> None: ...


def row(flow_id: int = 1) -> ClaimedRow:
    return born_row(NewFlow("0" * 16, "it", 1, "A", b"{}", 3, 1000), flow_id, 5)


def ledger(*slots: int) -> Ledger:
    made = Ledger()
    for number in slots:
        seat = Seat(Nowhere())
        seat.slots = number
        made.seats.append(seat)
    return made


def hold(made: Ledger, flow_id: int = 1) -> Held:
    held = made.hold(row(flow_id))
    assert held is not None
    return held


def test_a_row_goes_where_there_is_most_room() -> None:
    made = ledger(1, 3)
    seats = [hold(made, flow_id).seat for flow_id in range(1, 5)]
    assert seats.count(made.seats[0]) == 1
    assert made.free == 0
    assert ledger().hold(row()) is None


def test_a_successor_that_starts_at_once_keeps_ticket_and_slot() -> None:
    made = ledger(2)
    held = hold(made)
    made.report(held, Record(kind=Kind.ADVANCE, branch=0, seq=1, task="B"), is_hot=True)
    assert (made.free, made.running) == (1, [])
    made.advance(held)
    assert (held.row.seq, held.row.lease, held.row.task) == (2, 2, "B")
    assert (made.free, made.running) == (1, [held])


def test_without_a_successor_the_slot_is_free_before_the_commit_and_only_once() -> None:
    made = ledger(2)
    held = hold(made)
    made.report(held, Record(kind=Kind.CLOSE, branch=0, seq=1))
    assert made.free == 2
    made.drop(held)
    assert (made.free, len(made), made.at(1, 0)) == (2, 0, None)


def test_a_slot_that_is_kept_is_free_after_the_commit() -> None:
    made = ledger(1)
    held = hold(made)
    made.report(held, Record(kind=Kind.ADVANCE, branch=0, seq=1, task="B"), keeps_slot=True)
    assert (made.free, held.is_hot) == (0, False)
    made.drop(held)
    assert made.free == 1


def test_a_withdrawn_row_is_forgotten_but_its_slot_is_busy_until_the_task_has_ended() -> None:
    made = ledger(1)
    held = hold(made)
    made.withdraw(held)
    assert (made.free, len(made)) == (0, 0)
    made.freed(made.seats[0], held.ticket)
    made.freed(made.seats[0], held.ticket)
    assert made.free == 1


def test_a_row_claimed_again_replaces_the_one_that_was_taken_away() -> None:
    made = ledger(3)
    old, new = hold(made), hold(made)
    assert made.at(1, 0) is new
    made.withdraw(old)
    assert made.at(1, 0) is new


@pytest.mark.parametrize("bytes_held", [SEAT_BYTES_MAX + 1, SEAT_BYTES_MAX])
def test_an_executor_that_holds_too_much_is_handed_nothing_more(bytes_held: int) -> None:
    made = ledger(5)
    held = hold(made)
    made.weigh(held, bytes_held)
    assert made.free == (0 if bytes_held > SEAT_BYTES_MAX else 4)
    made.drop(held)
    assert (made.seats[0].bytes, made.free) == (0, 5)
