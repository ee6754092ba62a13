"""How long to wait before another attempt, and when to give up. Arithmetic only; nobody sleeps here."""

from __future__ import annotations

import math

import msgspec

from dwarf.durations import Duration, seconds_of
from dwarf.errors import InvalidArgument

_YEARS_100 = 100 * 365 * 86_400.0  # a wait longer than this is a way to say "never"; it keeps one wait in range


class Backoff(msgspec.Struct, frozen=True):
    """Delay `initial * multiplier ** attempt` seconds, at most `max_delay` when that is above 0.

    No attempt is granted that would start later than `give_up_after` seconds after the step's creation; 0 and less never
    give up.
    """

    initial: float
    multiplier: float = 2.0
    max_delay: float = 0.0
    give_up_after: float = 0.0

    @classmethod
    def of(cls, initial_delay: Duration, multiplier: float, max_delay: Duration, give_up_after: Duration) -> Backoff:
        """Check the arguments of a retry. Raises `InvalidArgument` naming the one that is no finite number."""
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not math.isfinite(multiplier):
            raise InvalidArgument(f"a retry's multiplier must be a finite number, not {multiplier!r}")
        return cls(
            max(seconds_of(initial_delay, "a retry's initial delay"), 0.0),
            float(multiplier),
            seconds_of(max_delay, "a retry's max delay"),
            seconds_of(give_up_after, "a retry's give_up_after"),
        )

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt` (from 0). A multiplier of 0 or less is constant."""
        ceiling = self.max_delay if self.max_delay > 0 else _YEARS_100
        if self.initial <= 0:
            return 0.0
        if self.multiplier <= 0:
            return min(self.initial, ceiling)
        try:
            delay = self.initial * self.multiplier**attempt
        except OverflowError:
            delay = _YEARS_100
        return min(delay, ceiling, _YEARS_100)

    def grants(self, attempt: int, *, age: float) -> bool:
        """Tell whether the next attempt would start within the horizon; `age` is the step's, in seconds."""
        return self.give_up_after <= 0 or age + self.delay(attempt) <= self.give_up_after


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A task's retry policy: sugar that calls `flow.retry` when the task raises one of `on`.

    Durations are seconds or `timedelta`. When a retry is refused the task's own error stands.
    """

    on: tuple[type[BaseException], ...] | type[BaseException] = Exception
    initial_delay: Duration = 1.0
    multiplier: float = 2.0
    max_delay: Duration = 0
    give_up_after: Duration = 0

    def __post_init__(self) -> None:
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise InvalidArgument(f"Retry(on=…) takes an exception class or a tuple of them, not {kind!r}")
        self.backoff  # noqa: B018 - a wrong duration shows where the policy is written, not at the first failure

    @property
    def backoff(self) -> Backoff:
        """The policy's arithmetic. Raises `InvalidArgument` naming the argument that is no finite number."""
        return Backoff.of(self.initial_delay, self.multiplier, self.max_delay, self.give_up_after)

    def covers(self, error: BaseException) -> bool:
        """Tell whether the policy retries a task that raised this."""
        return isinstance(error, self.on)
