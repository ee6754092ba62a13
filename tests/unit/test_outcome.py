import pickle
import unicodedata
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.errors import InvalidArgument
from dwarf.limits import ERROR_BYTES_MAX, REASON_BYTES_MAX
from dwarf.outcome import Outcome, clean_error, clean_reason, stopped
from dwarf.state import State
from dwarf.status import Status

FILLED = {
    Status.RUNNING: (),
    Status.INTERRUPTED: ("state", "interrupt_payload"),
    Status.COMPLETED: ("state",),
    Status.FAILED: ("state", "error"),
    Status.CANCELLED: ("state", "reason"),
    Status.TERMINATED: ("state", "reason"),
}


@pytest.mark.row("I-15", "I-16")
@pytest.mark.parametrize("status", list(Status))
def test_an_outcome_shows_what_its_status_is_about(status: Status) -> None:
    found = Outcome.of(status, state={"a": 1}, error="broke", interrupt_payload={"q": 2}, reason="enough")
    values = {"state": {"a": 1}, "error": "broke", "interrupt_payload": {"q": 2}, "reason": "enough"}
    empty = {"state": {}, "error": "", "interrupt_payload": {}, "reason": ""}
    assert found.status is status
    for field, value in values.items():
        assert getattr(found, field) == (value if field in FILLED[status] else empty[field])
    assert isinstance(found.state, State)
    assert isinstance(found.interrupt_payload, State)


@pytest.mark.row("I-15")
@pytest.mark.parametrize("status", list(Status))
def test_an_outcome_of_nothing_is_empty(status: Status) -> None:
    found = Outcome.of(status.value)
    assert found == Outcome(status)
    assert (dict(found.state), found.error, dict(found.interrupt_payload), found.reason) == ({}, "", {}, "")


@pytest.mark.row("I-17")
def test_what_has_stopped() -> None:
    for status in ("", "created", "pending", "running", None, "Completed", "parked"):
        assert stopped(status) is False
    for status in ("interrupted", "completed", "failed", "cancelled", "terminated"):
        assert stopped(status) is True
        assert stopped(Status(status)) is True
        assert stopped(Outcome.of(status)) is True
        assert Outcome.of(status).stopped is True
    assert stopped(Status.RUNNING) is Outcome.of("running").stopped is stopped(Outcome.of("running")) is False


def test_an_unknown_status_makes_no_outcome() -> None:
    with pytest.raises(ValueError, match="parked"):
        Outcome.of("parked")


def test_state_crosses_untouched() -> None:
    state = State.from_json(b'{"n":123456789012345678901234567890,"x":1.50}')
    assert Outcome.of("completed", state=state).state is state


def test_outcomes_are_values() -> None:
    found = Outcome.of("failed", state={"a": 1}, error="broke")
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(AttributeError):
        found.error = ""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        found.stopped = False  # type: ignore[misc]


def test_wire_form_has_every_member() -> None:
    wire = Outcome.of("interrupted", state={"a": 1}, interrupt_payload={"q": 2}).to_wire()
    assert list(wire) == ["status", "state", "error", "interruptPayload", "reason", "stopped"]
    encoded = msgspec.json.encode(wire, enc_hook=dict)
    assert encoded == b'{"status":"interrupted","state":{"a":1},"error":"","interruptPayload":{"q":2},"reason":"","stopped":true}'


@pytest.mark.row("I-20", "L14")
def test_error_texts_keep_tabs_and_newlines_only() -> None:
    assert clean_error("a\tb\nc") == "a\tb\nc"
    assert clean_error("a\0b\x1b[31m\r\x7f\x85\x9f\x08") == "a\ufffdb\ufffd[31m\ufffd\ufffd\ufffd\ufffd\ufffd"
    assert clean_error("ä 漢 \U0001f600 \u2028 \xa0 ok") == "ä 漢 \U0001f600 \u2028 \xa0 ok"
    assert clean_error("\ud83d\ude00 \ud800") == "\ufffd\ufffd \ufffd"
    assert clean_error("") == ""
    assert clean_error("  kept  ") == "  kept  "


@pytest.mark.row("I-19", "C17")
def test_reasons_are_one_trimmed_line() -> None:
    assert clean_reason("  too slow \n") == "too slow"
    assert clean_reason("") == clean_reason(" \t\r\n") == ""
    assert clean_reason("a\0b\x07\x85\x7fc") == "a\ufffdb\ufffd\ufffd\ufffdc"
    assert clean_reason("first\nsecond\tthird\r\nlast") == "first second third  last"
    assert clean_reason("\ud800 ä") == "\ufffd ä"
    assert clean_reason("\0") == "\ufffd"


@pytest.mark.row("C17")
@pytest.mark.parametrize("value", [None, 5, b"why", ["why"], True])
def test_a_reason_is_text(value: str) -> None:
    with pytest.raises(InvalidArgument, match="reason is of type"):
        clean_reason(value)


@pytest.mark.row("L14", "C17")
@pytest.mark.parametrize(("clean", "most"), [(clean_error, ERROR_BYTES_MAX), (clean_reason, REASON_BYTES_MAX)])
@pytest.mark.parametrize("char", ["x", "ä", "漢", "\U0001f600", "\0", "\ud800"])
def test_long_texts_are_cut_and_marked(clean: Callable[[str], str], most: int, char: str) -> None:
    width = len(clean(char).encode())
    fits = char * (most // width)
    assert "cut" not in clean(fits)
    for text in (char * (most // width + 1), char * (most + 1), char * (most * 4)):
        cut = clean(text)
        assert most - 4 <= len(cut.encode()) <= most
        assert cut.endswith(f"… [cut; {len(text)} characters in all]")
        assert cut.startswith(clean(char))
        assert clean(cut) == cut


@pytest.mark.row("L14", "C17")
@given(st.text(st.characters(), max_size=50) | st.text("\0\t\n\r \x1c\x85\u2028\ud800ä", max_size=20))
def test_cleaning_makes_any_text_storable_and_settles_at_once(text: str) -> None:
    error, reason = clean_error(text), clean_reason(text)
    for cleaned, kept in ((error, "\t\n"), (reason, "")):
        cleaned.encode()
        assert not [char for char in cleaned if unicodedata.category(char) in {"Cc", "Cs"} and char not in kept]
    assert clean_error(error) == error
    assert clean_reason(reason) == reason == reason.strip()
