"""Where claims go on while an old snapshot is held: behind what this dispatcher has claimed already. Pure; the clock is given.

Whatever was claimed since the oldest snapshot is dead but still in the index, in front of what waits, and a claim from the
bottom walks through all of it. So after a claim from the bottom that was dear, the next ones begin where it came to. Rows
that turn up below (released, woken, committed late) are found by the next claim from the bottom. That is the sooner the
cheaper the last one was: claims from the bottom take at most one part in `PATIENCE` of the time. While they are cheap, every
claim is one, and nothing waits for its turn longer than it would without cursors.
"""

from __future__ import annotations

from collections.abc import Iterable

from dwarf.rows import ClaimedRow

DEAR_SECONDS = 0.02  # a claim from the bottom that takes longer than this, and …
DEAR_ROW_SECONDS = 0.0002  # … this for each row, is dear
PATIENCE = 20  # times what the last claim from the bottom took passes until the next


class Cursors:
    """The cursors of one dispatcher in one shard, by half (None: both) and band. A key without one is claimed from its bottom."""

    def __init__(self) -> None:
        self._since: dict[tuple[int | None, int], dict[str, int]] = {}
        self._until: dict[tuple[int | None, int], float] = {}

    def since(self, half: int | None, priority: int, *, now: float) -> dict[str, int]:
        """Return where to go on in each key, for `Store.claim`: nothing when it is time to begin at the bottom."""
        place = (half, priority)
        if now >= self._until.get(place, now):
            self._since.pop(place, None)
            self._until.pop(place, None)
            return {}
        return self._since[place]

    def note(self, half: int | None, priority: int, rows: Iterable[ClaimedRow], *, began: float, ended: float) -> None:
        """Take in what a claim brought that went by `since`, with the times before and after it in seconds."""
        place, rows = (half, priority), list(rows)
        if place not in self._until:
            if ended - began <= DEAR_SECONDS + DEAR_ROW_SECONDS * len(rows):
                return
            self._until[place] = ended + PATIENCE * (ended - began)
        since = self._since.setdefault(place, {})
        for row in rows:  # a row became due when it was created or later: what was due before the last of them has been claimed
            since[row.fairness_key] = max(since.get(row.fairness_key, row.created_at), row.created_at)

    def restart(self) -> None:
        """Begin at the bottom next: rows have been handed back."""
        self._since.clear()
        self._until.clear()
