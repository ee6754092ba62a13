"""The arithmetic of retries: delays, ceilings, horizons, policies."""

from __future__ import annotations

import asyncio
import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.errors import InvalidArgument
from dwarf.flow import Flow, Identity, Parked
from dwarf.retry import Backoff, Retry

NOW = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


def flow_of(attempt: int = 0, *, hours_old: float = 0) -> Flow:
    created = NOW - datetime.timedelta(hours=hours_old)
    return Flow(identity=Identity(attempt=attempt, step_created_at=created), clock=lambda: NOW)


def asked(flow: Flow) -> float:
    retry = flow.effect().retry
    assert retry is not None
    return retry.delay


@pytest.mark.row("G-01", "G-03")
@pytest.mark.parametrize(
    ("arguments", "attempt", "delay"),
    [
        ((1.5, 2.0, 0), 0, 1.5),
        ((1.5, 2.0, 0), 1, 3.0),
        ((1.5, 2.0, 0), 4, 24.0),
        ((1.5, 2.0, 10), 2, 6.0),
        ((1.5, 2.0, 10), 3, 10.0),
        ((1.5, 2.0, 10), 10_000, 10.0),
        ((1.5, 2.0, 1), 0, 1.0),
        ((1.5, 2.0, 0), 20, 1.5 * 2**20),
        ((0, 2.0, 0), 7, 0.0),
        ((0, 2.0, 10), 7, 0.0),
        ((-1, 2.0, 0), 7, 0.0),
        ((1.5, 1.0, 0), 9, 1.5),
        ((1.5, 1, 0), 9, 1.5),
        ((1.5, 0.5, 0), 2, 0.375),
        ((1.5, 0, 0), 2, 1.5),
        ((1.5, -2.0, 0), 3, 1.5),
        ((1.5, 2.0, -5), 3, 12.0),
        ((datetime.timedelta(minutes=1), 2.0, datetime.timedelta(minutes=3)), 1, 120.0),
        ((datetime.timedelta(minutes=1), 2.0, datetime.timedelta(minutes=3)), 2, 180.0),
    ],
)
def test_the_delay(arguments: Any, attempt: int, delay: float) -> None:
    flow = flow_of(attempt)
    assert flow.retry(*arguments)
    assert asked(flow) == delay


@pytest.mark.row("G-01")
def test_the_first_retry_waits_the_initial_delay_and_doubles_by_default() -> None:
    for attempt, delay in enumerate((0.25, 0.5, 1.0, 2.0)):
        flow = flow_of(attempt)
        assert flow.retry(0.25) is True
        assert asked(flow) == delay


@given(st.floats(0, 1e9), st.floats(-10, 1e9), st.integers(0, 10**7), st.floats(-1, 1e9))
def test_any_delay_is_a_time_that_a_database_can_hold(initial: float, multiplier: float, attempt: int, cap: float) -> None:
    delay = Backoff.of(initial, multiplier, cap, 0).delay(attempt)
    assert 0 <= delay <= 100 * 366 * 86_400
    assert delay <= cap or cap <= 0
    assert NOW + datetime.timedelta(seconds=delay)


@pytest.mark.row("G-05", "G-06", "G-07")
@pytest.mark.parametrize(
    ("initial", "give_up_after", "hours_old", "granted"),
    [
        (1, 0, 72, True),
        (1, -5, 72, True),
        (1, datetime.timedelta(0), 72, True),
        (1, 3600, 2, False),
        (0, 3600, 2, False),
        (3600, 60, 0, False),
        (1, 3600, 0.5, True),
        (1799, 3600, 0.5, True),
        (1800, 3600, 0.5, True),
        (1801, 3600, 0.5, False),
        (0, 3600, 1, True),
        (1, datetime.timedelta(hours=3), 2, True),
    ],
)
def test_the_horizon(initial: float, give_up_after: Any, hours_old: float, granted: bool) -> None:
    """Refused is what would start past the horizon, counted from the step's creation."""
    flow = flow_of(hours_old=hours_old)
    assert flow.retry(initial, 2.0, 0, give_up_after) is granted
    assert (flow.effect().retry is not None) is granted


@pytest.mark.row("G-07")
def test_the_horizon_counts_the_delay_as_capped() -> None:
    assert flow_of(20).retry(1, 2.0, max_delay=10, give_up_after=60)
    assert not flow_of(20).retry(1, 2.0, give_up_after=60)


@pytest.mark.row("G-06")
def test_a_refusal_takes_an_earlier_request_back() -> None:
    flow = flow_of(hours_old=2)
    assert flow.retry(1)
    assert not flow.retry(1, give_up_after=3600)
    assert flow.effect().retry is None
    assert flow.retry(5)
    assert asked(flow) == 5


def test_without_a_clock_a_step_is_new() -> None:
    flow = Flow(identity=Identity(step_created_at=NOW))
    assert flow.retry(1, give_up_after=60)
    assert flow.retry(60, give_up_after=60)
    assert not flow.retry(61, give_up_after=60)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, "15m", None, True, [], 1e300])
def test_an_argument_that_is_no_duration_is_named(wrong: Any) -> None:
    for arguments, name in (((wrong,), "initial delay"), ((1, 2.0, wrong), "max delay"), ((1, 2.0, 0, wrong), "give_up_after")):
        flow = flow_of()
        with pytest.raises(InvalidArgument, match=name):
            flow.retry(*arguments)
        assert flow.effect().retry is None
    if wrong != 1e300:
        with pytest.raises(InvalidArgument, match="multiplier"):
            flow_of().retry(1, wrong)


def test_a_policy_is_checked_where_it_is_written() -> None:
    policy = Retry(
        on=(TimeoutError, OSError), initial_delay=0.1, multiplier=3, max_delay=datetime.timedelta(seconds=10), give_up_after=3600
    )
    assert policy.backoff == Backoff(0.1, 3.0, 10.0, 3600.0)
    assert policy.covers(TimeoutError())
    assert policy.covers(ConnectionError())
    assert not policy.covers(ValueError())
    assert Retry().covers(ValueError())
    assert Retry(on=ValueError).covers(UnicodeError())
    assert not Retry(on=()).covers(ValueError())
    assert not Retry().covers(KeyboardInterrupt())
    assert not Retry().covers(Parked())
    assert not Retry().covers(asyncio.CancelledError())
    for wrong in (
        Parked,
        KeyboardInterrupt,
        BaseException,
        asyncio.CancelledError,
        (ValueError, BaseException),
        ["ValueError"],
        "ValueError",
        ValueError(),
        None,
        int,
    ):
        with pytest.raises(InvalidArgument, match="on="):
            Retry(on=wrong)  # type: ignore[arg-type]
    for name in ("initial_delay", "multiplier", "max_delay", "give_up_after"):
        with pytest.raises(InvalidArgument, match=name.replace("_", ".")):
            Retry(**{name: math.nan})  # type: ignore[arg-type]
