"""Shares of fairness keys: in proportion to the weights, whatever the backlogs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.fairness import Shares


def served(weights: dict[str, float], *, slots: int, rounds: int) -> Counter[str]:
    """Serve keys that always have more work."""
    shares, starts = Shares(), Counter[str]()
    for _ in range(rounds):
        for key, quota in shares.quotas(weights, slots).items():
            shares.charge(key, quota, weights[key])
            starts[key] += quota
    return starts


@pytest.mark.row("F7")
@pytest.mark.parametrize("slots", [1, 7, 200])
def test_starts_are_in_proportion_to_the_weights(slots: int) -> None:
    starts = served({"a": 1, "b": 2, "c": 4}, slots=slots, rounds=7000 // slots)
    whole = sum(starts.values())
    assert [round(starts[key] / whole, 2) for key in "abc"] == [0.14, 0.29, 0.57]


def test_a_fraction_beside_a_huge_weight_is_served_in_the_end() -> None:
    shares = Shares()
    weights = {"small": 0.01, "large": 1024.0}
    shares.charge("small", 1, 0.01)  # it has just been served
    rounds = 0
    while not shares.quotas(weights, 10_000).get("small"):
        shares.charge("large", 10_000, 1024.0)
        rounds += 1
        assert rounds < 20


@pytest.mark.row("F8")
def test_a_key_that_comes_back_neither_has_saved_up_nor_owes() -> None:
    shares = Shares()
    for _ in range(100):
        shares.quotas({"busy": 1.0}, 10)
        shares.charge("busy", 10, 1.0)
    quotas = shares.quotas({"busy": 1.0, "back": 1.0}, 10)
    assert abs(quotas["busy"] - quotas["back"]) <= 1


@pytest.mark.row("F13")
@pytest.mark.parametrize("weight", [0.0, -3.0])
def test_a_stored_weight_that_is_not_above_zero_counts_as_one(weight: float) -> None:
    starts = served({"damaged": weight, "other": 1.0}, slots=10, rounds=10)
    assert starts["damaged"] == starts["other"]


@given(st.dictionaries(st.text(max_size=3), st.floats(0.01, 1 << 20), min_size=1, max_size=20), st.integers(0, 300))
def test_quotas_use_every_slot(weights: dict[str, float], slots: int) -> None:
    quotas = Shares().quotas(weights, slots)
    assert sum(quotas.values()) == slots
    assert quotas.keys() <= weights.keys()


def test_what_is_not_charged_was_not_taken() -> None:
    shares = Shares()
    assert shares.quotas({"a": 1.0, "b": 1.0}, 10) == shares.quotas({"a": 1.0, "b": 1.0}, 10)
