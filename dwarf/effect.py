"""What one run of a task did: the hand-over from whoever ran it to `dwarf.decide`.

An `Effect` holds the writes and at most the signals the task asked for; `Failure` is an error as it is stored and as an
onError handler reads it. Nothing here knows the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from dwarf.changes import NOTHING, Changes
from dwarf.errors import StateValueError
from dwarf.outcome import clean_error
from dwarf.values import encode

ON_ERROR_FIELD = "onErr"
_RESERVED = ("error", "statusCode", "trace")


class Failure(msgspec.Struct, frozen=True):
    """An error: its text, the status it carries, and properties that travel beside it to the handler.

    `by_engine` marks what the engine itself found wrong; such a failure never takes an onError edge.
    """

    text: str
    status: int = 500
    properties: dict[str, Raw] = {}
    by_engine: bool = False
    trace: str = ""

    def on_error_value(self) -> Raw:
        """Return the object a handler reads: `error`, `statusCode`, `trace` when known, properties beside them."""
        value: dict[str, Any] = {name: raw for name, raw in self.properties.items() if name not in _RESERVED}
        value = {"error": self.text, "statusCode": self.status, **({"trace": self.trace} if self.trace else {}), **value}
        return Raw(msgspec.json.encode(value))


class RetryAfter(msgspec.Struct, frozen=True):
    """The task asked for another attempt after `delay` seconds; a sleep asked for beside it is added."""

    delay: float


class Interrupt(msgspec.Struct, frozen=True):
    """The task waits for someone; `payload` is the JSON object they are shown."""

    payload: bytes


class Subgraph(msgspec.Struct, frozen=True):
    """The task waits for a child flow of the graph at `url`, started with the JSON object `input`."""

    url: str
    input: bytes


class Effect(msgspec.Struct):
    """What a run did. `changes` are its writes, those kept from earlier runs of the same step included.

    `sleep` is in seconds. `failure` set means the task raised: everything else is then dropped.
    """

    changes: Changes = NOTHING
    goto: str = ""
    retry: RetryAfter | None = None
    park: Interrupt | Subgraph | None = None
    sleep: float = 0.0
    failure: Failure | None = None


def failure_of(error: BaseException) -> Failure:
    """Describe an exception: its text (or its type's name), `.status` and `.properties` when it carries them.

    Never raises: a status that is no HTTP status counts as 500, a property that JSON cannot hold becomes its text.
    """
    status = _attribute(error, "status")
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 999:
        status = 500
    text = _text_of(error, str) or type(error).__name__
    if type(error) is KeyError:
        text = f"KeyError: {text}"  # its text is nothing but the key
    return Failure(clean_error(text), int(status), _properties(_attribute(error, "properties")))


def engine_failure(text: str, status: int = 500) -> Failure:
    """Describe what the engine found wrong with a step; such a failure never takes an onError edge."""
    return Failure(clean_error(text), status, by_engine=True)


def _properties(given: object) -> dict[str, Raw]:
    if not isinstance(given, dict):
        return {}
    properties = {}
    for name, value in given.items():
        key = clean_error(_text_of(name, str))
        try:
            properties[key] = encode(value, key)
        except StateValueError:
            properties[key] = Raw(msgspec.json.encode(clean_error(_text_of(value, repr))))
    return properties


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:
        return None


def _text_of(thing: object, make: Callable[[object], str]) -> str:
    """Return `str` or `repr` of anything, whatever its class makes of them."""
    try:
        return make(thing)
    except Exception as broken:
        return f"{type(thing).__name__} whose text cannot be made: {type(broken).__name__}"
