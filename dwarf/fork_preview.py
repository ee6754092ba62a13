"""`ForkPreview`: what a fork would do, told without doing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dwarf.forking import Cut
from dwarf.keys import StepKey
from dwarf.steps import Step, wire_name


class ForkPreview(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """What a fork would do.

    `reruns` are the steps of the origin that are not copied, in the order of its history, those of children included: what the
    fork runs in their place starts with the chosen step and may take another way. `kept` counts the steps that are copied,
    children's included. `cancelled` are the keys of steps that had not settled when the origin ended and are copied as
    cancelled, `failed` those of branches that failed beside the chosen step: their cohort fails again whatever it does.
    """

    reruns: list[Step]
    kept: int
    cancelled: list[str] = []
    failed: list[str] = []


def preview(history: Iterable[Step], cuts: Mapping[int, Cut]) -> ForkPreview:
    """Sort the steps of a root's history by what becomes of them; `cuts` are the flows that are copied and go on, by flow id."""
    reruns: list[Step] = []
    kept = 0
    cancelled: list[str] = []
    failed: list[str] = []
    left = [(step, False) for step in reversed(list(history))]
    while left:
        step, is_below_kept = left.pop()
        key = StepKey.parse(step.step_key)
        cut = cuts.get(key.flow_id)
        is_kept = is_below_kept if cut is None else key.seq <= cut.kept.get(key.branch, 0)
        if is_kept:
            kept += 1
            if cut is not None and (key.branch, key.seq) in cut.cancelled:
                cancelled.append(step.step_key)
            if cut is not None and (key.branch, key.seq) in cut.failed:
                failed.append(step.step_key)
        else:
            reruns.append(msgspec.structs.replace(step, sub_history=[]))
        left += [(below, is_kept) for below in reversed(step.sub_history)]
    return ForkPreview(reruns=reruns, kept=kept, cancelled=cancelled, failed=failed)
