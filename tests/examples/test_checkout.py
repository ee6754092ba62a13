"""The checkout: what is charged, and how everything that was done is undone when something fails."""

from __future__ import annotations

from typing import Any

import pytest

from dwarf import Status
from dwarf.testing.reference import ReferenceRun
from examples.checkout import app, checkout

LINES = [{"sku": "A1", "price": 20, "count": 2}, {"sku": "B2", "price": 5}]


def begin(**state: Any) -> ReferenceRun:
    return ReferenceRun(checkout(), app, {"lines": LINES, **state}, seed=1)


def trunk(run: ReferenceRun) -> list[str]:
    return [step.task for step in run.steps if "/" not in step.path]


def test_an_order_is_charged_and_confirmed() -> None:
    run = begin()
    state = run.advance().state
    assert trunk(run) == ["Validate", "Price", "Charge", "Confirm"]
    assert (state["total"], state["shipping"], state["receipt"]["charged"], state["confirmed"]) == (45, 5, 50, True)
    assert "released" not in state


def test_an_expired_card_releases_what_was_reserved() -> None:
    run = begin(card="expired")
    state = run.advance().state
    assert trunk(run) == ["Validate", "Price", "Charge", "Release"]
    assert state["released"] == ["A1x2", "B2x1"]
    assert state["confirmed"] is False
    assert "receipt" not in state


def test_a_parcel_that_cannot_be_sent_is_refunded_and_released_in_that_order() -> None:
    run = begin(address="the Moon")
    state = run.advance().state
    assert trunk(run) == ["Validate", "Price", "Charge", "Confirm", "Refund", "Release"]
    assert state["refund"]["refunded"] == state["receipt"]["charged"] == 50
    assert state["refund"]["reference"] != state["receipt"]["reference"]
    assert state["released"] == ["A1x2", "B2x1"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_that_is_sold_out_releases_the_others(place: int) -> None:
    lines = [*LINES[:place], {"sku": "Z9", "price": 1}, *LINES[place:]]
    run = begin(lines=lines)
    state = run.advance().state
    assert trunk(run) == ["Validate", "Price", "Release"]
    assert state["lacking"] == ["Z9"]
    assert state["released"] == ["A1x2", "B2x1"]


@pytest.mark.parametrize(("approved", "last"), [(True, "Confirm"), (False, "Release")])
def test_a_large_order_is_reviewed(approved: bool, last: str) -> None:
    run = begin(lines=[{"sku": "B2", "price": 2000}])
    asked = run.advance()
    assert asked.status is Status.INTERRUPTED
    assert asked.interrupt_payload["question"] == "charge 2000?"
    run.resume({"approved": approved})
    assert run.advance().status is Status.COMPLETED
    assert trunk(run)[-1] == last


def test_an_order_that_makes_no_sense_fails() -> None:
    outcome = begin(lines=[{"sku": "A1", "price": 1, "count": 0}]).advance()
    assert outcome.status is Status.FAILED
    assert "asks for 0 pieces" in outcome.error
