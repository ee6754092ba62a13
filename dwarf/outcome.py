"""`Outcome`: what a flow has come to, and the texts in it.

An outcome says only what its status is about: an error belongs to a failed flow, a payload to an interrupted one.
`clean_error` and `clean_reason` make any text fit to be stored and shown: storing an outcome never fails for its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dwarf.errors import InvalidArgument
from dwarf.limits import ERROR_BYTES_MAX, REASON_BYTES_MAX
from dwarf.state import State
from dwarf.status import Status

REPLACEMENT = "\ufffd"

_EMPTY = State()
_SHOWS_ERROR = frozenset({Status.FAILED})
_SHOWS_REASON = frozenset({Status.CANCELLED, Status.TERMINATED})
_SHOWS_PAYLOAD = frozenset({Status.INTERRUPTED})

_unfit_in_error = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_unfit_in_reason = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_line_ends = re.compile("[\t\n\x0b\x0c\r]")


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """Where a flow stands. `state` is the final state, or at an interrupt what the parked step saw and wrote.

    `reason` is the text of a cancellation, a termination or an expiration.
    """

    status: Status
    state: Mapping[str, Any] = _EMPTY
    error: str = ""
    interrupt_payload: Mapping[str, Any] = _EMPTY
    reason: str = ""

    @classmethod
    def of(
        cls,
        status: Status | str,
        *,
        state: Mapping[str, Any] | None = None,
        error: str = "",
        interrupt_payload: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> Outcome:
        """Build an outcome that shows what belongs to its status and drops the rest."""
        status = Status(status)
        return cls(
            status=status,
            state=_state(state) if status.stopped else _EMPTY,
            error=error if status in _SHOWS_ERROR else "",
            interrupt_payload=_state(interrupt_payload) if status in _SHOWS_PAYLOAD else _EMPTY,
            reason=reason if status in _SHOWS_REASON else "",
        )

    @property
    def stopped(self) -> bool:
        """True when the flow needs someone (interrupted) or nothing more will happen (closed)."""
        return stopped(self.status)

    def to_wire(self) -> dict[str, Any]:
        """Return the members of the JSON form, empty ones included, so that every reader finds every member."""
        members = {name: getattr(self, field) for field, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)}
        return {**members, "stopped": self.stopped}


def stopped(outcome: Outcome | Status | str | None) -> bool:
    """Tell whether a flow has stopped, by its outcome or its status; no outcome and an unknown status have not."""
    if isinstance(outcome, Outcome | Status):
        return outcome.stopped
    try:
        return Status(outcome).stopped
    except ValueError:
        return False


def clean_error(text: str) -> str:
    """Make an error text fit to be stored: U+FFFD for control characters (tab and newline stay) and lone surrogates.

    Cut to 64 KB of UTF-8, its end marked. Cleaning again changes nothing.
    """
    return _cut(_unfit_in_error.sub(REPLACEMENT, text[:ERROR_BYTES_MAX]), ERROR_BYTES_MAX, len(text))


def clean_reason(text: str) -> str:
    """Make a reason fit to be stored: one line, trimmed, U+FFFD for control characters and lone surrogates.

    Line breaks and tabs become blanks. Cut to 4 KB of UTF-8, its end marked. Cleaning again changes nothing.
    `InvalidArgument` for what is no text.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"reason is of type {type(text).__name__}; it must be text")
    line = text.strip()
    cleaned = _unfit_in_reason.sub(REPLACEMENT, _line_ends.sub(" ", line[:REASON_BYTES_MAX]))
    return _cut(cleaned, REASON_BYTES_MAX, len(line)).strip()


def _cut(text: str, bytes_max: int, chars: int) -> str:
    """Cut `text`, itself the beginning of `chars` characters, to `bytes_max` bytes of UTF-8, the mark included."""
    encoded = text.encode()
    if len(encoded) <= bytes_max and len(text) == chars:
        return text
    mark = f"… [cut; {chars} characters in all]"
    return encoded[: bytes_max - len(mark.encode())].decode(errors="ignore") + mark


def _state(value: Mapping[str, Any] | None) -> State:
    if isinstance(value, State):
        return value
    return State(value) if value else _EMPTY
