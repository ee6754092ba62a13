"""Cursors: they begin at the bottom unless that is dear, and come back to it in proportion to what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from dwarf.cursors import DEAR_ROW_SECONDS, DEAR_SECONDS, PATIENCE, Cursors
from dwarf.rows import ClaimedRow

DEAR = 2 * DEAR_SECONDS


def row(created_at: int, key: str = "") -> ClaimedRow:
    given: dict[str, Any] = dict.fromkeys(ClaimedRow.__struct_fields__)
    return ClaimedRow(**{**given, "created_at": created_at, "fairness_key": key})


def test_cheap_claims_begin_at_the_bottom() -> None:
    cursors = Cursors()
    for now in range(10):
        assert cursors.since(0, 3, now=now) == {}
        cursors.note(0, 3, [row(now)], began=now, ended=now + DEAR_SECONDS)


def test_a_claim_of_many_rows_may_take_longer() -> None:
    cursors = Cursors()
    cursors.note(0, 3, [row(1)] * 1000, began=0, ended=DEAR_SECONDS + 999 * DEAR_ROW_SECONDS)
    assert cursors.since(0, 3, now=1) == {}


def test_after_a_dear_claim_the_next_go_on_behind_it() -> None:
    cursors = Cursors()
    cursors.note(0, 3, [row(7), row(5), row(9, "k")], began=0, ended=DEAR)
    assert cursors.since(0, 3, now=DEAR) == {"": 7, "k": 9}
    cursors.note(0, 3, [row(8), row(6, "k"), row(1, "new")], began=DEAR, ended=2 * DEAR)
    assert cursors.since(0, 3, now=2 * DEAR) == {"": 8, "k": 9, "new": 1}, "a cursor never goes back"


@pytest.mark.parametrize("place", [(1, 3), (0, 2)])
def test_halves_and_bands_have_cursors_of_their_own(place: tuple[int, int]) -> None:
    cursors = Cursors()
    cursors.note(0, 3, [row(7)], began=0, ended=DEAR)
    assert cursors.since(*place, now=DEAR) == {}


def test_it_comes_back_to_the_bottom_the_later_the_dearer_that_is() -> None:
    for cost in (DEAR, 10 * DEAR):
        cursors = Cursors()
        cursors.note(0, 3, [row(7)], began=0, ended=cost)
        assert cursors.since(0, 3, now=cost * (1 + PATIENCE) - 0.001) == {"": 7}
        assert cursors.since(0, 3, now=cost * (1 + PATIENCE) + 0.001) == {}
        cursors.note(0, 3, [row(2)], began=0, ended=0)
        assert cursors.since(0, 3, now=cost * (1 + PATIENCE) + 0.001) == {}, "and stays there when it has become cheap"


def test_claims_that_go_on_do_not_put_off_the_bottom() -> None:
    cursors = Cursors()
    cursors.note(0, 3, [row(7)], began=0, ended=DEAR)
    for _ in range(10):
        cursors.note(0, 3, [row(8)], began=DEAR, ended=5 * DEAR)
    assert cursors.since(0, 3, now=DEAR * (1 + PATIENCE) + 0.001) == {}


def test_what_is_handed_back_is_found_at_once() -> None:
    cursors = Cursors()
    cursors.note(0, 3, [row(7)], began=0, ended=DEAR)
    cursors.restart()
    assert cursors.since(0, 3, now=DEAR) == {}


def test_a_dear_claim_that_found_nothing() -> None:
    cursors = Cursors()
    cursors.note(0, 3, [], began=0, ended=DEAR)
    assert cursors.since(0, 3, now=DEAR) == {}
    cursors.note(0, 3, [row(3)], began=DEAR, ended=DEAR)
    assert cursors.since(0, 3, now=DEAR) == {"": 3}
