"""Who is served next among the fairness keys of a band: stride scheduling. Pure; counts starts, knows no clock.

Each key has a *pass*, which every start raises by the reciprocal of its weight; the key with the lowest pass is next. So
over any window keys share in proportion to their weights, whatever the length of their backlogs. A key that was away comes
back at the band's own pass: it neither has saved up turns nor owes any.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace

WEIGHT_DEFAULT = 1.0


class Shares:
    """The keys of one band."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._pass = 0.0  # of the band: no key that comes back starts below it

    def quotas(self, weights: Mapping[str, float], slots: int) -> dict[str, int]:
        """Divide `slots` among the keys due now. Nothing is charged: what a key took of its quota is, by `charge`."""
        self._observe(weights)
        if len(weights) == 1:
            return dict.fromkeys(weights, slots)
        heap = [(self._passes[key], key) for key in weights]
        heapify(heap)
        quotas: dict[str, int] = {}
        for _ in range(slots):
            place, key = heap[0]
            quotas[key] = quotas.get(key, 0) + 1
            heapreplace(heap, (place + 1 / sane(weights[key]), key))
        return quotas

    def charge(self, key: str, starts: int, weight: float) -> None:
        """Count starts of a key."""
        self._passes[key] = max(self._passes.get(key, 0.0), self._pass) + starts / sane(weight)

    def _observe(self, weights: Mapping[str, float]) -> None:
        """Let the band go on to where its least served key stands; forget keys that have nothing due."""
        known = [self._passes[key] for key in weights if key in self._passes]
        self._pass = max(self._pass, min(known, default=self._pass))
        self._passes = {key: max(self._passes.get(key, self._pass), self._pass) for key in weights}


def sane(weight: float) -> float:
    """Return a weight to divide by: a stored one that is not above 0 counts as 1."""
    return weight if weight > 0 else WEIGHT_DEFAULT
