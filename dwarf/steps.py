"""`Step`: what one step of a flow was and what came of it, as readers see it; and the order of a history.

A step of a history carries neither state nor changes; one read by its key carries both. Who fills the fields, and from
which rows, is for the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from dwarf.keys import key_name
from dwarf.status import StepStatus


def wire_name(field: str) -> str:
    """Spell a field as JSON has it: camelCase, with URL and ID in capitals where they do not come first."""
    first, *rest = field.split("_")
    return first + "".join(word.upper() if word in {"url", "id"} else word.capitalize() for word in rest)


class Step(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """One step. Keys that lead nowhere are empty texts; times are aware.

    `step_depth` counts from 1 along the path from the entry step, `attempt` from 0. `previous_key` and `next_key` skip
    the caller steps on the way into and out of children. A step that has called another flow is marked `subgraph` and
    carries the latest child's names, key and history. `started_at` is None while the step has never started. `state`,
    `changes` and `interrupt_payload` are None unless the step was read by its key.
    """

    step_key: str
    step_id: int
    step_depth: int = 1
    task_name: str = ""
    task_url: str = ""
    attempt: int = 0
    status: StepStatus = StepStatus.PENDING
    parked: bool = False
    error: str = ""
    predecessor_key: str = ""
    successor_key: str = ""
    previous_key: str = ""
    next_key: str = ""
    subgraph: bool = False
    sub_workflow_url: str = ""
    sub_workflow_name: str = ""
    sub_flow_key: str = ""
    sub_history: list[Step] = []
    state: Mapping[str, Any] | None = None
    changes: Mapping[str, Any] | None = None
    interrupt_payload: Mapping[str, Any] | None = None
    engine_id: int = 0
    created_at: datetime | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None

    def __repr__(self) -> str:
        return f"Step({key_name(self.step_key)} {self.task_name!r} {self.status} attempt={self.attempt})"


def order_history(steps: Iterable[Step]) -> list[Step]:
    """Order by depth, then by id. The histories of children inside are ordered in place: they may nest a thousand deep."""
    ordered = sorted(steps, key=_place)
    waiting = [ordered]
    while waiting:
        for step in waiting.pop():
            if step.sub_history:
                step.sub_history.sort(key=_place)
                waiting.append(step.sub_history)
    return ordered


def _place(step: Step) -> tuple[int, int]:
    return step.step_depth, step.step_id
