"""The carrier: what a task is handed, reads and writes, and asks the engine for.

A `Flow` is one run of one step. It reads the step's input through the task's own writes, collects those writes and the
control signals, and is turned into an `Effect` when the task ends. It does no I/O and never sees the graph; whether a
goto is allowed, and what a write means for a reduced field, is decided later.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw

from dwarf.changes import Changes
from dwarf.durations import seconds_of
from dwarf.effect import Effect, Failure, Interrupt, RetryAfter, Subgraph, engine_failure
from dwarf.errors import DwarfError, InvalidArgument, SignalError, SubgraphError
from dwarf.names import check_text
from dwarf.retry import Backoff, Duration
from dwarf.state import State, TypedReads, canonical, parse_as
from dwarf.values import NULL, Fields, check_field_name, encode, encode_object, is_null, parse_object, raw_json

T = TypeVar("T")

_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)


class Parked(BaseException):
    """Leaves a task that waits for a resume or a child flow; it runs again from its top. Let it pass."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a step is, and its times by the database's clock. The same for every run of the step but `attempt`."""

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

    changes: Changes = Changes()
    resume: bytes | None = None
    result: bytes | None = None
    child_error: str | None = None


class Flag:
    """The least event: the executor passes one that can be awaited or blocked on."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True


class Flow(TypedReads):
    """One run of one step: its state, its identity, its control signals."""

    __slots__ = (
        "_baggage", "_calls", "_client", "_clock", "_fields", "_goto", "_identity", "_overwrites", "_park", "_past",
        "_retry", "_sleep", "_violation", "_writes", "cancelled", "resources",
    )  # fmt: skip

    def __init__(
        self,
        state: State | Mapping[str, Any] | None = None,
        *,
        identity: Identity | None = None,
        past: Past | None = None,
        baggage: State | None = None,
        clock: Callable[[], datetime.datetime] | None = None,
    ) -> None:
        """Take a step's input. `clock` gives the database's present time, for retry horizons."""
        self._fields: Fields = (state if isinstance(state, State) else State(state)).raw_fields()
        self._identity = identity or Identity()
        self._past = past or Past()
        self._baggage = baggage or State.of({})
        self._clock = clock
        self._writes: Fields = dict(self._past.changes.fields)
        self._overwrites = set(self._past.changes.overwrites)
        self._goto = ""
        self._retry: RetryAfter | None = None
        self._park: Interrupt | Subgraph | None = None
        self._sleep = 0.0
        self._violation: Failure | None = None
        self._calls = 0
        self._client: Any = None
        self.cancelled: Any = Flag()
        self.resources: Any = None

    # State: reads

    def _raw(self, key: str) -> Raw | None:
        raw = self._writes.get(key)
        return self._fields.get(key) if raw is None else raw

    def __getitem__(self, key: str) -> Any:
        raw = self._raw(key)
        if raw is None or is_null(raw):
            raise KeyError(key)
        return msgspec.json.decode(raw)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and not is_null(self._raw(key))

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
        self._write(key, NULL if value is None else encode(value, key))

    __setitem__ = set

    def set_json(self, key: str, data: bytes | str) -> None:
        """Write a field whose JSON you already have; it is stored as it is once it has been checked."""
        check_field_name(key, "the state")
        self._write(key, raw_json(data))

    def update(self, values: Mapping[str, Any]) -> None:
        """Write several fields; when one of them cannot be stored, none is written."""
        if not isinstance(values, Mapping):
            raise InvalidArgument(f"update takes a mapping of fields, not {type(values).__name__}")
        encoded = {check_field_name(key, "the state"): NULL if value is None else encode(value, key) for key, value in values.items()}
        for key, raw in encoded.items():
            self._write(key, raw)

    def overwrite(self, key: str, value: Any) -> None:
        """Replace what was accumulated in a reduced field instead of contributing to it."""
        self.set(key, value)
        if value is not None:
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
        """Write those fields of `view` (a Struct, dataclass or mapping) that differ from `snapshot`; leave all others."""
        now = parse_object(encode_object(view, "the view"), "the view")
        before = snapshot.raw_fields()
        for key, raw in now.items():
            old = before.get(key)
            if is_null(raw) if is_null(old) else old is not None and canonical({key: raw}) == canonical({key: old}):
                continue
            self._write(key, raw)

    def _write(self, key: str, raw: Raw) -> None:
        self._writes[key] = raw
        self._overwrites.discard(key)

    # Control

    def goto(self, task_name: str) -> None:
        """Ask for a goto transition to the node `task_name` or `END`; the last call counts, "" takes it back."""
        self._goto = check_text("a goto target", task_name)

    def sleep(self, duration: Duration) -> None:
        """Keep the next step, or the next attempt, from starting before `duration` has passed. The last call counts."""
        self._sleep = max(seconds_of(duration, "a sleep"), 0.0)

    def retry(
        self, initial_delay: Duration, multiplier: float = 2.0, max_delay: Duration = 0, give_up_after: Duration = 0
    ) -> bool:
        """Ask for another attempt of this step and return True, or False when it would start past `give_up_after`.

        Waits `initial_delay * multiplier ** attempt`, at most `max_delay` (0: no limit). Writes made so far are kept.
        """
        return self.retry_by(Backoff.of(initial_delay, multiplier, max_delay, give_up_after))

    def retry_by(self, backoff: Backoff) -> bool:
        age = (self._clock() - self.step_created_at).total_seconds() if self._clock else 0.0
        if not backoff.grants(self.attempt, age=age):
            return False
        self._retry = RetryAfter(backoff.delay(self.attempt))
        return True

    def interrupt(self, payload: Any = None, *, type: Any = Any) -> Any:
        """Wait for someone: leave the task now, and return what `resume` brought when it runs again.

        `payload` (an object; None is empty) is shown on the flow's outcome. The answer, a dict unless `type` says
        otherwise, is the same at every later call of the run.
        """
        if self._past.resume is not None:
            return self._answer(self._past.resume, type)
        if self._past.result is not None or self._past.child_error is not None:
            self._violate("interrupt was called in a step whose subgraph call is already resolved")
        armed = Interrupt(encode_object(payload, "an interrupt payload"))
        self._arm(armed)

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
            return self._answer(past.result, type)
        if not check_text("a subgraph URL", url):
            raise InvalidArgument("a subgraph call needs the URL of a graph")
        self._arm(Subgraph(url, encode_object(input, "a subgraph's input")))

    def _answer(self, data: bytes | None, kind: Any) -> Any:
        fields = parse_object(data, "the answer")
        return dict(State.of(fields)) if kind is Any else parse_as(fields, kind)

    def _arm(self, park: Interrupt | Subgraph) -> NoReturn:
        if self._park is not None:
            raise SignalError("this run already waits: a task may interrupt or call a subgraph once in a run")
        self._park = park
        raise Parked

    def _violate(self, what: str) -> NoReturn:
        self._violation = engine_failure(f"task {self.task_name!r}: {what}")
        raise SignalError(self._violation.text)

    def effect(self, failure: Failure | None = None) -> Effect:
        """Return what this run did; `failure` when the task raised."""
        failure = self._violation or failure
        if failure is not None:
            return Effect(failure=failure)
        changes = Changes(self._writes, frozenset(self._overwrites))
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
            raise DwarfError("flow.client: no engine runs this task")
        return self._client

    def bind_client(self, client: Any) -> None:
        """Give the run its client; done by the executor."""
        self._client = client

    def __repr__(self) -> str:
        return f"<Flow {self.task_name!r} attempt {self.attempt}>"
