"""How an exception becomes a stored failure, and what a handler reads of it."""

from __future__ import annotations

import http
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from dwarf.effect import ON_ERROR_FIELD, Effect, Failure, engine_failure, failure_of
from dwarf.errors import Conflict, InvalidArgument, NotFound, StateValueError, SubgraphError, TaskError
from dwarf.limits import ERROR_BYTES_MAX


def read(failure: Failure) -> Any:
    return json.loads(bytes(failure.on_error_value()))


class Teapot(Exception):
    def __init__(self, text: str, **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


@pytest.mark.row("C-26", "C-31")
@pytest.mark.parametrize(
    ("error", "text", "status"),
    [
        (ValueError("no stock"), "no stock", 500),
        (TaskError("no stock"), "no stock", 500),
        (TaskError("no stock", status=409), "no stock", 409),
        (NotFound("gone"), "gone", 404),
        (Conflict("taken"), "taken", 409),
        (InvalidArgument("bad"), "bad", 400),
        (StateValueError("x is nan", path="x"), "x is nan", 400),
        (Teapot("short", status=418), "short", 418),
        (Teapot("short", status=http.HTTPStatus.TOO_MANY_REQUESTS), "short", 429),
        (Teapot("short", status="404"), "short", 500),
        (Teapot("short", status=True), "short", 500),
        (Teapot("short", status=0), "short", 500),
        (Teapot("short", status=99), "short", 500),
        (Teapot("short", status=1000), "short", 500),
        (Teapot("short", status=-404), "short", 500),
        (Teapot("short", status=404.0), "short", 500),
        (KeyError("x"), "KeyError: 'x'", 500),
        (ValueError(), "ValueError", 500),
        (TimeoutError(), "TimeoutError", 500),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "two (2 sub-exceptions)", 500),
    ],
)
def test_text_and_status(error: Exception, text: str, status: int) -> None:
    failure = failure_of(error)
    assert (failure.text, failure.status, failure.by_engine) == (text, status, False)
    assert read(failure) == {"error": text, "statusCode": status}


@pytest.mark.row("G-31")
def test_of_a_child_s_error_only_the_text_crosses() -> None:
    failure = failure_of(SubgraphError(failure_of(NotFound("no such order")).text))
    assert read(failure) == {"error": "no such order", "statusCode": 500}


@pytest.mark.row("C-26")
def test_properties_stand_beside_the_text_and_never_hide_it() -> None:
    error = TaskError("no", status=402, sku="A1", left=0, tags=["a"], error="mine", statusCode=1, trace="t")
    assert read(failure_of(error)) == {"error": "no", "statusCode": 402, "sku": "A1", "left": 0, "tags": ["a"]}
    failure = Failure("no", properties={"a": Raw(b"1")}, trace="00-abc")
    assert read(failure) == {"error": "no", "statusCode": 500, "trace": "00-abc", "a": 1}
    assert read(failure_of(Teapot("x", properties={"a": 1}))) == {"error": "x", "statusCode": 500, "a": 1}
    for other in (None, "text", 5, [("a", 1)], lambda: {"a": 1}):
        assert read(failure_of(Teapot("x", properties=other))) == {"error": "x", "statusCode": 500}
    assert ON_ERROR_FIELD == "onErr"


def test_no_stack_is_stored() -> None:
    try:
        raise ValueError("with a stack")
    except ValueError as error:
        failure = failure_of(error)
    assert "Traceback" not in failure.text
    assert "test_effect" not in failure.text + str(read(failure))


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def status(self) -> int:
        raise RuntimeError("no status")

    @property
    def properties(self) -> dict[str, Any]:
        raise RuntimeError("no properties")


@pytest.mark.row("L14")
def test_describing_an_error_never_fails() -> None:
    failure = failure_of(Hostile())
    assert failure.text.startswith("Hostile")
    assert failure.status == 500
    itself: list[Any] = []
    itself.append(itself)
    given_ = {
        "nan": math.nan,
        "bytes": b"\x00",
        "object": Unprintable(),
        "self": itself,
        5: "five",
        "\ud800": "x",
        Unprintable(): 1,
        "ok": 2**70,
    }
    found = read(failure_of(Teapot("x", properties=given_)))
    assert found["nan"] == "nan"
    assert found["bytes"] == "b'\\x00'"
    assert "Unprintable" in found["object"]
    assert found["5"] == "five"
    assert found["\ufffd"] == "x"
    assert found["ok"] == 2**70


@pytest.mark.row("L14")
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("a\x1b[31mb\x7f", "a\ufffd[31mb\ufffd"),
        ("line\n\ttwo", "line\n\ttwo"),
        ("x\ud800y", "x\ufffdy"),
        ("é日👧", "é日👧"),
    ],
)
def test_control_characters_in_an_error_are_replaced(text: str, stored: str) -> None:
    assert failure_of(ValueError(text)).text == stored
    assert engine_failure(text).text == stored


def test_a_long_error_is_cut_and_marked() -> None:
    failure = failure_of(ValueError("é" * ERROR_BYTES_MAX))
    assert len(failure.text.encode()) <= ERROR_BYTES_MAX
    assert "cut" in failure.text[-60:]


@pytest.mark.row("L14")
@given(st.text())
def test_any_error_text_can_be_stored(text: str) -> None:
    for failure in (failure_of(ValueError(text)), failure_of(TaskError(text, note=text))):
        assert failure.text
        assert read(failure)["error"] == failure.text


def test_what_the_engine_finds_is_marked() -> None:
    failure = engine_failure("two signals", 400)
    assert failure == Failure("two signals", 400, by_engine=True)
    assert Effect() == Effect(goto="", retry=None, park=None, sleep=0.0, failure=None)
