"""What to claim next: bands strictly, keys by their shares, in a key the oldest; of several dispatchers each begins with its half.

Works from what it observes in the database and keeps nothing between two claims but the keys' passes. A band gets the slots
that better ones leave over; in a band, what a key does not use of its quota the others get.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dwarf.cursors import Cursors
from dwarf.fairness import Shares
from dwarf.rows import ClaimedRow
from dwarf.store import DueKey, Store

KEYS_OBSERVED_MAX = 1_000  # of a half and band, in one look
CLAIM_ROWS_MAX = 500  # of one statement
BOTH_HALVES = (None,)


class Claimer:
    """Claims for one session, beside other dispatchers or alone."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._halves: tuple[int | None, ...] = BOTH_HALVES  # in the order in which they are claimed
        self._shares: dict[int, Shares] = {}
        self._cursors = Cursors()
        self._clock = time.monotonic
        self.waiting_band: int | None = None  # the best band that was left with due work at the last look

    async def claim(self, store: Store, keep: Callable[[], int], rows: list[ClaimedRow]) -> None:
        """Claim due rows and add them to `rows` one statement after the other, so that an error loses none.

        `keep` is called when something is due: it keeps slots for it and returns how many rows there may be then, with those
        that are there already. Without slots it only looks what waits.
        """
        bands = _by_band(await store.due(KEYS_OBSERVED_MAX))
        slots = keep() if bands else 0
        waiting = None
        for priority in sorted(bands):
            if await self._claim_band(store, priority, bands[priority], slots - len(rows), rows):
                waiting = priority
                break
        self.waiting_band = waiting

    def may_start_at_once(self, priority: int) -> bool:
        """Tell whether a successor of this band may go on without a claim: nothing of its band or a better one waits."""
        return self.waiting_band is None or priority < self.waiting_band

    def restart(self) -> None:
        """Hear that rows have been handed back, which may wait for longer than what is claimed at the moment."""
        self._cursors.restart()

    def see(self, dispatchers: Sequence[int]) -> None:
        """Learn which sessions dispatch. Alone, a key's steps are claimed by age; of two, each begins with a half of its own."""
        others = [session for session in dispatchers if session != self._session]
        place = sum(session < self._session for session in others) & 1
        self._halves = (place, 1 - place) if others else BOTH_HALVES

    async def _claim_band(self, store: Store, priority: int, due: list[DueKey], slots: int, rows: list[ClaimedRow]) -> bool:
        """Claim from one band; tell whether it has more due work than there were slots."""
        shares = self._shares.setdefault(priority, Shares())
        weights = {key.fairness_key: key.weight for key in due}
        for key in due:
            weights[key.fairness_key] = min(weights[key.fairness_key], key.weight)
        halves = {half: {key.fairness_key for key in due if half is None or key.half == half} for half in self._halves}
        while weights and slots > 0:
            quotas = shares.quotas(weights, min(slots, CLAIM_ROWS_MAX))
            taken = dict.fromkeys(quotas, 0)
            for half, keys in halves.items():
                wanted = {key: quota - taken[key] for key, quota in quotas.items() if key in keys and quota > taken[key]}
                if wanted:
                    _add(await self._take(store, half, priority, wanted), rows, taken)
            for name, count in taken.items():
                shares.charge(name, count, weights[name])
            slots -= sum(taken.values())
            weights = {name: weight for name, weight in weights.items() if taken.get(name, 0) == quotas.get(name, 0)}
        return bool(weights)

    async def _take(self, store: Store, half: int | None, priority: int, quotas: dict[str, int]) -> list[ClaimedRow]:
        """Claim by quotas in one statement, behind what was claimed already where that is dear."""
        began = self._clock()
        since = self._cursors.since(half, priority, now=began)
        claimed = await store.claim(self._session, quotas, half=half, priority=priority, since=since)
        self._cursors.note(half, priority, claimed, began=began, ended=self._clock())
        return claimed


def _by_band(due: list[DueKey]) -> dict[int, list[DueKey]]:
    bands: dict[int, list[DueKey]] = {}
    for key in due:
        bands.setdefault(key.priority, []).append(key)
    return bands


def _add(claimed: list[ClaimedRow], rows: list[ClaimedRow], taken: dict[str, int]) -> None:
    rows += claimed
    for row in claimed:
        taken[row.fairness_key] += 1
