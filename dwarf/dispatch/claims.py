"""What to claim next: bands strictly, keys by their shares, halves of the trees in the order of preference.

Works from what it observes in the database and keeps nothing between two claims but the keys' passes. A band gets the slots
that better ones leave over; in a band, what a key does not use of its quota the others get.
"""

from __future__ import annotations

from dwarf.fairness import Shares
from dwarf.rows import ClaimedRow
from dwarf.store import DueKey, Store

KEYS_OBSERVED_MAX = 1_000  # of a half and band, in one look
CLAIM_ROWS_MAX = 500  # of one statement


class Claimer:
    """Claims for one session. `half`: the half of the trees that is claimed first."""

    def __init__(self, session: int, half: int) -> None:
        self._session = session
        self._halves = (half, 1 - half)
        self._shares: dict[int, Shares] = {}
        self.waiting_band: int | None = None  # the best band that was left with due work at the last look

    async def claim(self, store: Store, slots: int, rows: list[ClaimedRow]) -> None:
        """Claim at most `slots` rows and add them to `rows` one statement after the other, so that an error loses none.

        Without slots it only looks what waits.
        """
        bands = _by_band(await store.due(KEYS_OBSERVED_MAX))
        waiting = None
        for priority in sorted(bands):
            if await self._claim_band(store, priority, bands[priority], slots - len(rows), rows):
                waiting = priority
                break
        self.waiting_band = waiting

    def may_start_at_once(self, priority: int) -> bool:
        """Tell whether a successor of this band may go on without a claim: nothing of its band or a better one waits."""
        return self.waiting_band is None or priority < self.waiting_band

    async def _claim_band(self, store: Store, priority: int, due: list[DueKey], slots: int, rows: list[ClaimedRow]) -> bool:
        """Claim from one band; tell whether it has more due work than there were slots."""
        shares = self._shares.setdefault(priority, Shares())
        weights = {key.fairness_key: key.weight for key in due}
        for key in due:
            weights[key.fairness_key] = min(weights[key.fairness_key], key.weight)
        halves = {half: {key.fairness_key for key in due if key.half == half} for half in self._halves}
        while weights and slots > 0:
            quotas = shares.quotas(weights, min(slots, CLAIM_ROWS_MAX))
            taken = dict.fromkeys(quotas, 0)
            for half, keys in halves.items():
                wanted = {key: quota - taken[key] for key, quota in quotas.items() if key in keys and quota > taken[key]}
                if wanted:
                    claimed = await store.claim(self._session, wanted, half=half, priority=priority)
                    for row in claimed:
                        taken[row.fairness_key] += 1
                    rows += claimed
            for name, count in taken.items():
                shares.charge(name, count, weights[name])
            slots -= sum(taken.values())
            weights = {name: weight for name, weight in weights.items() if taken.get(name, 0) == quotas.get(name, 0)}
        return bool(weights)


def _by_band(due: list[DueKey]) -> dict[int, list[DueKey]]:
    bands: dict[int, list[DueKey]] = {}
    for key in due:
        bands.setdefault(key.priority, []).append(key)
    return bands
