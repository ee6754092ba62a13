"""The carrier: what a task is handed, reads and writes, and asks the engine for.

A `Flow` is one run of one step. It reads the step's input through the task's own writes, collects those writes and the
control signals, and is turned into an `Effect` when the task ends. It does no I/O and never sees the graph; whether a
goto is allowed, and what a write means for a reduced field, is decided later.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, KeysView, Mapping
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
from msgspec import Raw

from dwarf.changes import NOTHING, Changes
from dwarf.durations import Duration, seconds_of
from dwarf.effect import Effect, Failure, Interrupt, RetryAfter, Subgraph, engine_failure
from dwarf.errors import DwarfError, InvalidArgument, SignalError, StateTypeError, SubgraphError
from dwarf.names import check_text
from dwarf.retry import Backoff
from dwarf.state import State, TypedReads, decode_as, parse_as
from dwarf.values import (
    EMPTY_OBJECT,
    NULL,
    Fields,
    are_equal,
    check_field_name,
    decode_fields,
    encode,
    encode_fields,
    encode_object,
    raw_json,
)

T = TypeVar("T")

_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


class Parked(BaseException):
    """Leaves a task that waits for a resume or a child flow; it runs again from its top. Let it pass."""


class StepIdentity(Protocol):
    """Who a step is, and its times by the database's clock. The same for every run of the step but `attempt` and `deadline`."""

    @property
    def flow_key(self) -> str: ...
    @property
    def step_key(self) -> str: ...
    @property
    def workflow_url(self) -> str: ...
    @property
    def task_name(self) -> str: ...
    @property
    def task_url(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def created_at(self) -> datetime.datetime: ...
    @property
    def updated_at(self) -> datetime.datetime: ...
    @property
    def step_created_at(self) -> datetime.datetime: ...
    @property
    def deadline(self) -> datetime.datetime | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def fairness_key(self) -> str: ...


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A `StepIdentity` of values."""

    flow_key: str = ""
    step_key: str = ""
    workflow_url: str = ""
    task_name: str = ""
    task_url: str = ""
    attempt: int = 0
    created_at: datetime.datetime = _EPOCH
    updated_at: datetime.datetime = _EPOCH
    step_created_at: datetime.datetime = _EPOCH
    deadline: datetime.datetime | None = None
    priority: int = 0
    fairness_key: str = ""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier runs of the same step left: their writes, and the answer to what they waited for.

    `resume` is the JSON object a resume brought, `result` a child's final state, `child_error` a failed child's text.
    """

    changes: Changes = NOTHING
    resume: bytes | None = None
    result: bytes | None = None
    child_error: str | None = None


class Flag:
    """The least event: the executor passes one that can be awaited or blocked on."""

    __slots__ = ("_callback", "_set")

    def __init__(self) -> None:
        self._set = False
        self._callback: Callable[[], object] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._callback is not None:
            self._callback()

    def on_set(self, callback: Callable[[], object] | None) -> None:
        """Have something called when the flag is set, or at once if it is; None takes that back."""
        self._callback = callback
        if callback is not None and self._set:
            callback()


_NOBODY = Identity()
_NO_PAST = Past()
_NO_BAGGAGE = State.of({})


class Flow(TypedReads):
    """One run of one step: its state, its identity, its control signals.

    `cancelled` is an event that is set when the flow is cancelled or the run's time is up, `resources` what the App's
    lifespan gave.
    """

    __slots__ = (
        "_answered", "_baggage", "_calls", "_client", "_clock", "_fields", "_goto", "_identity", "_make_client", "_overwrites", "_park",
        "_past", "_retry", "_sleep", "_violation", "_writes", "cancelled", "resources",
    )  # fmt: skip

    def __init__(
        self,
        state: State | Mapping[str, Any] | None = None,
        *,
        identity: StepIdentity | None = None,
        past: Past | None = None,
        baggage: State | None = None,
        clock: Callable[[], datetime.datetime] | None = None,
    ) -> None:
        """Take a step's input. `clock` gives the database's present time, for retry horizons."""
        self._fields: Fields = (state if isinstance(state, State) else State(state)).raw_fields()
        self._identity: StepIdentity = identity or _NOBODY
        self._past = past = past or _NO_PAST
        self._baggage = _NO_BAGGAGE if baggage is None else baggage
        self._clock = clock
        self._writes: Fields = dict(past.changes.fields)
        self._overwrites = set(past.changes.overwrites)
        self._goto = ""
        self._retry: RetryAfter | None = None
        self._park: Interrupt | Subgraph | None = None
        self._sleep = 0.0
        self._violation: Failure | None = None
        self._calls = 0
        self._answered: Any = None
        self._client: Any = None
        self._make_client: Callable[[Flow], Any] | None = None
        self.cancelled: Any = Flag()
        self.resources: Any = None

    # State: reads

    def raw(self, key: str) -> Raw | None:
        """Return a field's JSON as it reads now: null when it was deleted, None when it was never there."""
        raw = self._writes.get(key)
        return self._fields.get(key) if raw is None else raw

    def __getitem__(self, key: str) -> Any:
        raw = self.raw(key)
        if raw is None or raw == NULL:
            raise KeyError(key)
        return decode_as(key, raw, Any)

    def __contains__(self, key: object) -> bool:
        raw = self.raw(key)  # type: ignore[arg-type] # whatever is no text is no field
        return raw is not None and raw != NULL

    def keys(self) -> KeysView[str]:
        """Return the names of the fields that are present, so that `dict(flow)` works."""
        return self.snapshot().keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.snapshot())

    def snapshot(self) -> State:
        """Return the state as it reads now; later writes do not show in it."""
        return State.of({**self._fields, **self._writes}).enacted()

    def parse(self, type: type[T]) -> T:
        """Return the whole state decoded as `type`. Raises `StateTypeError`."""
        return parse_as({**self._fields, **self._writes}, type)

    # State: writes

    def set(self, key: str, value: Any) -> None:
        """Write a field: this step's contribution to it. None deletes. Raises `StateValueError` naming the path."""
        check_field_name(key, "the state")
        self._writes[key] = NULL if value is None else encode(value, key)
        self._overwrites.discard(key)

    __setitem__ = set

    def set_json(self, key: str, data: bytes | str) -> None:
        """Write a field whose JSON you already have; it is stored as it is once it has been checked."""
        check_field_name(key, "the state")
        self._write(key, raw_json(data, key))

    def update(self, values: Any) -> None:
        """Write the fields of a mapping, a Struct or a dataclass; None deletes, `msgspec.UNSET` is skipped.

        When one of them cannot be stored, none is written.
        """
        self.write_all(encode_fields(values, "update"))

    def overwrite(self, key: str, value: Any) -> None:
        """Replace what was accumulated in a reduced field instead of contributing to it."""
        self.set(key, value)
        if self._writes[key] != NULL:
            self._overwrites.add(key)

    def delete(self, *keys: str) -> None:
        """Delete fields, present or not; a reduced field is cleared. Recorded as nulls in the step's changes."""
        for key in keys:
            check_field_name(key, "the state")
        for key in keys:
            self._write(key, NULL)

    def __delitem__(self, key: str) -> None:
        self.delete(key)

    def clear(self) -> None:
        """Delete every field that is present, this run's own writes included."""
        self.delete(*self.snapshot())

    def set_changes(self, view: Any, snapshot: State) -> None:
        """Write those fields of `view` (a Struct, dataclass or mapping) that differ from `snapshot`; leave all others.

        A typed view is held against `snapshot` read as the same type: what only its defaults add is no change.
        """
        now = encode_fields(view, "set_changes")
        before = _as_viewed(snapshot, view)
        for key, raw in now.items():
            if not are_equal(raw, before.get(key, NULL)):
                self._write(key, raw)

    def write_all(self, fields: Fields) -> None:
        """Write fields that are encoded and checked."""
        for key, raw in fields.items():
            self._write(key, raw)

    def _write(self, key: str, raw: Raw) -> None:
        self._writes[key] = raw
        self._overwrites.discard(key)

    # Control

    def goto(self, task_name: str) -> None:
        """Ask for a goto transition to the node `task_name` or `END`; the last call counts, "" takes it back."""
        self._goto = check_text("a goto target", task_name)

    def sleep(self, duration: Duration) -> None:
        """Keep the next step, or the next attempt, from starting before `duration` has passed. The last call counts.

        A fan-out delays its branches; at a fan-in only the sleep of the branch that arrives last counts. A step that waits
        (interrupt, subgraph) is not delayed.
        """
        self._sleep = max(seconds_of(duration, "a sleep"), 0.0)

    def retry(self, initial_delay: Duration, multiplier: float = 2.0, max_delay: Duration = 0, give_up_after: Duration = 0) -> bool:
        """Ask for another attempt of this step and return True, or False when it would start past `give_up_after`.

        Waits `initial_delay * multiplier ** attempt`, at most `max_delay` (0: no limit). Writes made so far are kept.
        The last call counts: a refusal takes an earlier request back.
        """
        return self.retry_by(Backoff.of(initial_delay, multiplier, max_delay, give_up_after))

    def retry_by(self, backoff: Backoff) -> bool:
        """Ask for another attempt as `retry` does."""
        age = (self._clock() - self.step_created_at).total_seconds() if self._clock else 0.0
        granted = backoff.grants(self.attempt, age=age)
        self._retry = RetryAfter(backoff.delay(self.attempt)) if granted else None
        return granted

    def interrupt(self, payload: Any = None, *, type: Any = Any) -> Any:
        """Wait for someone: leave the task now, and return what `resume` brought when it runs again.

        `payload` (an object; None is empty) is shown on the flow's outcome. The answer, a dict unless `type` says
        otherwise, is the same at every later call of the run.
        """
        if self._past.resume is not None:
            return self._answer(self._past.resume, type, "the resume data")
        if self._past.result is not None or self._past.child_error is not None:
            self._violate("interrupt was called in a step whose subgraph call is already resolved")
        self._arm(Interrupt(encode_object(payload, "an interrupt payload")))

    def subgraph(self, url: str, input: Any = None, *, type: Any = Any) -> Any:
        """Run the graph at `url` as a child flow: leave the task now, and return the child's final state afterwards.

        The child sees exactly `input` (an object; None is empty). Raises `SubgraphError` when it did not complete.
        A step makes one subgraph call; a second one fails it.
        """
        self._calls += 1
        past = self._past
        if past.resume is not None:
            self._violate("subgraph was called in a step whose interrupt is already resolved")
        if past.result is not None or past.child_error is not None:
            if self._calls > 1:
                self._violate("subgraph was called a second time in a step whose call is already resolved")
            if past.child_error is not None:
                raise SubgraphError(past.child_error)
            return self._answer(past.result, type, "the child's final state")
        if not check_text("a subgraph URL", url):
            raise InvalidArgument("a subgraph call needs the URL of a graph")
        self._arm(Subgraph(url, encode_object(input, "a subgraph's input")))

    def _answer(self, data: bytes | None, kind: Any, what: str) -> Any:
        given = data if data and data != b"null" else EMPTY_OBJECT
        self._answered = msgspec.json.decode(given) if kind is Any else parse_as(decode_fields(given), kind, what)
        return self._answered

    def is_answer(self, value: object) -> bool:
        """Tell whether `value` is the very object that the last `interrupt` or `subgraph` of this run returned."""
        return value is not None and value is self._answered

    def _arm(self, park: Interrupt | Subgraph) -> NoReturn:
        if self._park is not None:
            raise SignalError("this run already waits: a task may interrupt or call a subgraph once in a run")
        self._park = park
        raise Parked

    def _violate(self, what: str) -> NoReturn:
        self._violation = engine_failure(f"task {self.task_name!r}: {what}")
        raise SignalError(self._violation.text)

    def effect(self, failure: Failure | None = None) -> Effect:
        """Return what this run did; `failure` when the task raised. What a task leaves running can change it no more."""
        failure = self._violation or failure
        if failure is not None:
            return Effect(failure=failure)
        changes = Changes(self._writes.copy(), frozenset(self._overwrites)) if self._writes else NOTHING
        return Effect(changes, self._goto, self._retry, self._park, self._sleep)

    # Identity and time

    @property
    def flow_key(self) -> str:
        return self._identity.flow_key

    @property
    def step_key(self) -> str:
        """The key of this step, the same at every run of it: the idempotency key for calls to the outside."""
        return self._identity.step_key

    @property
    def workflow_url(self) -> str:
        return self._identity.workflow_url

    @property
    def task_name(self) -> str:
        return self._identity.task_name

    @property
    def task_url(self) -> str:
        return self._identity.task_url

    @property
    def attempt(self) -> int:
        """How many retries went before this run, from 0; a run after a crash, a resume or a child does not count."""
        return self._identity.attempt

    @property
    def created_at(self) -> datetime.datetime:
        return self._identity.created_at

    @property
    def updated_at(self) -> datetime.datetime:
        return self._identity.updated_at

    @property
    def step_created_at(self) -> datetime.datetime:
        return self._identity.step_created_at

    @property
    def deadline(self) -> datetime.datetime | None:
        return self._identity.deadline

    @property
    def baggage(self) -> State:
        """The read-only object given at create, the same in every task, child and continued turn."""
        return self._baggage

    @property
    def priority(self) -> int:
        return self._identity.priority

    @property
    def fairness_key(self) -> str:
        return self._identity.fairness_key

    @property
    def client(self) -> Any:
        """The client's verbs, bound to the engine that runs this step."""
        if self._client is None:
            if self._make_client is None:
                raise DwarfError("flow.client: no engine runs this task")
            self._client = self._make_client(self)
        return self._client

    def bind_client(self, make: Callable[[Flow], Any]) -> None:
        """Give the run its client, made for it when it is first asked for; done by the executor."""
        self._make_client = make

    def __repr__(self) -> str:
        return f"<Flow {self.task_name!r} attempt {self.attempt}>"


def _as_viewed(snapshot: State, view: Any) -> Fields:
    """Return the fields of a snapshot the way they look through a view of this type."""
    before = snapshot.raw_fields()
    if isinstance(view, Mapping):
        return before
    try:
        return {**before, **encode_fields(snapshot.parse(type(view)), "the snapshot")}
    except (StateTypeError, InvalidArgument):
        return before
