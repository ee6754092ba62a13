"""The statuses of flows and of steps, and what follows from them. Pure names: their wire form is their value."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """Where a flow stands. `stopped`: it needs someone (interrupted) or nothing more will happen (closed)."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"

    @property
    def closed(self) -> bool:
        return self not in (Status.RUNNING, Status.INTERRUPTED)

    @property
    def stopped(self) -> bool:
        return self is not Status.RUNNING

    def __str__(self) -> str:
        return self.value


class StepStatus(str, Enum):
    """Where a step stands. `parked`: it waits for a child flow."""

    PENDING = "pending"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"

    @property
    def closed(self) -> bool:
        return self in (StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.TERMINATED)

    def __str__(self) -> str:
        return self.value
