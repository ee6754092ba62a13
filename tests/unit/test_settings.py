"""The settings: defaults, the rule of each, how texts are read, and the page that lists them."""

from __future__ import annotations

import re
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from dwarf.engine import Engine
from dwarf.errors import InvalidArgument
from dwarf.settings import DURATIONS, NAMES, SESSION_SECONDS_MAX, Settings, check, check_known, check_setting, read_text, read_value

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", PAGE.read_text("utf-8"), re.MULTILINE))
OPTIONAL = {"retention_days", "flow_expiration", "engine_id", "wait_ceiling"}


def test_every_setting_has_a_rule_which_its_default_keeps() -> None:
    assert set(NAMES) == set(Settings.__struct_fields__)
    defaults = {name: getattr(Settings(), name) for name in NAMES}
    assert check(defaults) == check({}) == Settings()


def test_an_engine_has_the_defaults_of_the_service_but_for_what_is_said_to_differ() -> None:
    parameters = signature(Engine).parameters
    shared = [name for name in NAMES if name in parameters]
    assert {name for name in shared if parameters[name].default != getattr(Settings(), name)} == {"wait_ceiling"}
    assert set(NAMES) - set(shared) == {"executors", "poison_limit", "scheduler", "unknown_task"}
    assert parameters["wait_ceiling"].default is None


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("executors", 1, 1_024), ("workers", 0, 1_000_000), ("threads", 1, 1_000_000), ("max_priority", 1, 100),
        ("retention_days", 1, 36_500), ("engine_id", 1, 2**63 - 1), ("poison_limit", 1, 1_000),
    ],
)  # fmt: skip
def test_whole_numbers(name: str, least: int, most: int) -> None:
    assert (check_setting(name, least), check_setting(name, most)) == (least, most)
    for value in (least - 1, most + 1, -(10**30), float(most), True, str(most), [most], b"1"):
        with pytest.raises(InvalidArgument, match=f"^{name} is .*; it must be a whole number from {least} to {most}$"):
            check_setting(name, value)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("time_budget", 0.001, (2**31 - 1) / 1000), ("flow_expiration", 1, 9_223_372_036), ("wait_ceiling", 0, 9_223_372_036),
        ("grace", 0, 9_223_372_036), ("session_seconds", 1, SESSION_SECONDS_MAX), ("sweep_seconds", 1, 9_223_372_036),
    ],
)  # fmt: skip
def test_durations(name: str, least: float, most: float) -> None:
    assert name in DURATIONS
    for value in (least, most):
        assert check_setting(name, value) == value
    assert check_setting(name, timedelta(minutes=1)) == 60
    for wrong in (least - 0.0009, -1, most + 1, float("nan"), float("inf"), True, "60", [60], timedelta(seconds=-1), 10**400):
        with pytest.raises(InvalidArgument, match=f"^{name} is ") as refused:
            check_setting(name, wrong)
        assert refused.value.status == 400


def test_the_life_of_a_session_fits_where_the_database_keeps_it() -> None:
    assert SESSION_SECONDS_MAX * 1000 < 2**31 <= (SESSION_SECONDS_MAX + 1) * 1000


def test_time_budgets_are_whole_milliseconds_however_often_they_are_checked() -> None:
    once = check_setting("time_budget", 0.0016)
    assert once == check_setting("time_budget", once) == 0.002


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("takeover", "never", "takeover is 'never'; it must be 'session' or 'deadline'"),
        ("takeover", None, "takeover is None; it must be 'session' or 'deadline'"),
        ("takeover", ["session"], "takeover is of type list; it must be 'session' or 'deadline'"),
        ("unknown_task", "Wait", "unknown_task is 'Wait'; it must be 'wait' or 'fail'"),
        ("unknown_task", True, "unknown_task is True; it must be 'wait' or 'fail'"),
        ("scheduler", "", "scheduler is ''; it must be default, chain"),
        ("scheduler", " chain", "scheduler is ' chain'; it must be default, chain"),
        ("scheduler", 7, "scheduler is 7; it must be text"),
        ("scheduler", "a\0b", "NUL"),
        ("scheduler", "x" * 513, "at most 512 are allowed"),
    ],
)
def test_texts(name: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        check_setting(name, value)


def test_accepted_texts() -> None:
    given = {"takeover": "deadline", "unknown_task": "fail", "scheduler": "mine"}
    assert check(given) == Settings(takeover="deadline", unknown_task="fail", scheduler="mine")


def test_none() -> None:
    for name in NAMES:
        if name in OPTIONAL:
            assert check_setting(name, None) is None
            assert read_text(name, "none") is read_value(name, "none") is None
        else:
            with pytest.raises(InvalidArgument, match=f"^{name} is None; "):
                check_setting(name, None)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5", 1.5), ("15m", 900), ("1h30m", 5_400), ("2d", 172_800), ("1500ms", 1.5)])
def test_durations_may_be_texts_in_files_variables_and_flags(text: str, seconds: float) -> None:
    for name in DURATIONS:
        assert read_text(name, text) == read_value(name, text) == seconds
        assert read_value(name, seconds) == seconds


@pytest.mark.parametrize("text", ["", " ", "soon", "1 m", "-1", "+1", "1m1h", "1M", "nan", "inf", "1e3", "none ", "None", "m", "9" * 20])
def test_texts_that_are_no_durations(text: str) -> None:
    for name in DURATIONS:
        for read in (read_text, read_value):
            with pytest.raises(InvalidArgument, match=f"^{name} is "):
                read(name, text)


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "5\n", "1_000", "1e3", "5.0", "0x10", "five", "٥", "--5", "9" * 20, "9" * 5_000, "None", "true"]
)
def test_texts_that_are_no_whole_numbers(text: str) -> None:
    for name in ("executors", "retention_days", "engine_id"):
        with pytest.raises(InvalidArgument, match=f"^{name} is .*; it must be a whole number"):
            read_text(name, text)


def test_a_file_has_numbers_of_its_own() -> None:
    assert read_text("workers", "+7") == 7
    with pytest.raises(InvalidArgument, match="workers is '7'"):
        check_setting("workers", read_value("workers", "7"))


def test_unknown_names_are_refused_with_the_nearest() -> None:
    for wrong, near in (
        ("executers", "executors"),
        ("worker", "workers"),
        ("poisonlimit", "poison_limit"),
        ("session_second", "session_seconds"),
    ):
        with pytest.raises(InvalidArgument, match=f"^'{wrong}' is no setting; did you mean {near}\\?$"):
            check({wrong: 1})
    with pytest.raises(InvalidArgument, match="^'zzzz' is no setting; there are engine_id, executors, "):
        check({"zzzz": 1})


def test_a_name_that_is_none_is_not_shown() -> None:
    for wrong in ("postgresql://u:hunter2@db", "password=hunter2", "hunter2" * 20):
        with pytest.raises(InvalidArgument) as refused:
            check_known(wrong, NAMES, "setting")
        assert "hunter2" not in str(refused.value)


def test_what_is_checked_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        check({}).workers = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_default(name: str) -> None:
    default = getattr(Settings(), name)
    shown = ROWS[name].split("`")[1]
    assert check_setting(name, read_text(name, shown)) == default
