from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.durations import NANOSECONDS_MAX, milliseconds, nanoseconds_of, parse_text, read_seconds, seconds_of
from dwarf.errors import InvalidArgument


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(minutes=1, microseconds=1), 60.000001), (-2, -2.0), (timedelta(-1), -86400.0)],
)
def test_seconds_from_numbers_and_timedeltas(value: object, seconds: float) -> None:
    found = seconds_of(value, "the pause")
    assert found == seconds
    assert type(found) is float


@pytest.mark.parametrize(
    "value", [True, False, None, "3", b"3", 1j, Fraction(1, 2), [1], float("nan"), float("inf"), -float("inf"), 1e300, 10**400, -(10**30)]
)
@pytest.mark.parametrize("reader", [seconds_of, milliseconds, nanoseconds_of])
def test_refused_values_are_named(reader: object, value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^the pause is ") as caught:
        reader(value, "the pause")  # type: ignore[operator]
    assert caught.value.status == 400
    assert len(str(caught.value)) < 250


def test_the_largest_timedelta_is_out_of_range() -> None:
    with pytest.raises(InvalidArgument, match="at most 9223372036 seconds"):
        nanoseconds_of(timedelta.max, "the pause")
    assert nanoseconds_of(9_223_372_036, "the pause") <= NANOSECONDS_MAX
    assert nanoseconds_of(-9_223_372_036, "the pause") >= -NANOSECONDS_MAX
    with pytest.raises(InvalidArgument):
        nanoseconds_of(9_223_372_037, "the pause")


@pytest.mark.row("E-15")
def test_nanoseconds_are_exact() -> None:
    assert nanoseconds_of(1.5, "x") == 1_500_000_000
    assert nanoseconds_of(0.1, "x") == 100_000_000
    assert nanoseconds_of(4.35, "x") == 4_350_000_000
    assert nanoseconds_of(-0.3, "x") == -300_000_000
    assert nanoseconds_of(8_123_456_789, "x") == nanoseconds_of(8_123_456_789.0, "x") == 8_123_456_789_000_000_000
    assert nanoseconds_of(timedelta(days=90_000, microseconds=7), "x") == 90_000 * 86_400 * 10**9 + 7_000
    assert nanoseconds_of(1e-9, "x") == 1
    assert nanoseconds_of(1e-12, "x") == 0


def test_milliseconds_are_rounded_to_the_nearest() -> None:
    assert milliseconds(0.3, "x") == 300
    assert milliseconds(1.001, "x") == 1001
    assert milliseconds(timedelta(microseconds=1499), "x") == 1
    assert milliseconds(0.0015, "x") == 2
    assert milliseconds(2_147_483.647, "x") == 2**31 - 1


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_whole_microseconds_survive_as_timedelta(microseconds: int) -> None:
    assert nanoseconds_of(timedelta(microseconds=microseconds), "x") == microseconds * 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("2d", 172_800),
        ("90", 90),
        ("1.5", 1.5),
        ("0", 0),
        ("0s", 0),
        ("1.5h", 5400),
        ("1d1h1m1s1ms", 90_061.001),
        ("2h0m", 7200),
        ("1m30s", 90),
        ("1s500ms", 1.5),
        ("007s", 7),
        ("0.0005ms", 5e-7),
        ("100000d", 8_640_000_000),
    ],
)
def test_texts(text: str, seconds: float) -> None:
    assert parse_text(text, "the pause") == pytest.approx(seconds, rel=1e-12)
    assert read_seconds(text, "the pause") == parse_text(text, "the pause")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "m",
        "15 m",
        " 15m",
        "15m ",
        "15m\n",
        "-5s",
        "+5s",
        "15M",
        "1e3",
        "1e3s",
        "m15",
        "30m1h",
        "1m1m",
        "1ms1s",
        "1ms2m",
        "1..5s",
        ".5s",
        "5.s",
        "15min",
        "1w",
        "1us",
        "inf",
        "nan",
        "١٥m",
        "1_000s",
        "0x10",
        "1h30",
        "999999999999d",
        "9" * 21,
        "1" * 5000,
        "9223372037s",
        "1,5s",
        "PT15M",
        "\x00",
    ],
)
def test_refused_texts(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^the pause is '") as caught:
        parse_text(text, "the pause")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", [None, 3, True, b"3s", timedelta(1)])
def test_texts_must_be_text(value: object) -> None:
    with pytest.raises(InvalidArgument, match="the pause"):
        parse_text(value, "the pause")


def test_read_takes_every_form() -> None:
    assert read_seconds(2, "x") == read_seconds("2", "x") == read_seconds("2s", "x") == read_seconds(timedelta(seconds=2), "x") == 2.0
    refusals: tuple[object, ...] = (True, None, float("nan"), [], "soon")
    for refused in refusals:
        with pytest.raises(InvalidArgument):
            read_seconds(refused, "x")


def test_a_hostile_repr_is_not_shown() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("never called")

    with pytest.raises(InvalidArgument, match="of type Loud"):
        seconds_of(Loud(), "the pause")
