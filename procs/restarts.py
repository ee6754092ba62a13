"""When a child that has ended is started again. Pure."""

from __future__ import annotations

import msgspec

BACKOFF_SECONDS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)  # before the first restart in a row, the second, …; the last for all others
STEADY_SECONDS = 30.0  # a child that has lived so long starts a row anew
BOOTS_MAX = 3  # of the first child in a place, that never become ready: then the place is given up


class Restarts(msgspec.Struct):
    """The restarts of one place in the tree."""

    in_a_row: int = 0
    boots_failed: int = 0
    was_ready: bool = False

    def ended(self, *, lived: float, is_ready: bool) -> float | None:
        """Return how long to wait before the next start, or None when there is no use in one: it has never booted."""
        if is_ready:
            self.boots_failed, self.was_ready = 0, True
        else:
            self.boots_failed += 1
            if self.boots_failed >= BOOTS_MAX and not self.was_ready:
                return None
        if lived >= STEADY_SECONDS:
            self.in_a_row = 0
        pause = BACKOFF_SECONDS[min(self.in_a_row, len(BACKOFF_SECONDS) - 1)]
        self.in_a_row += 1
        return pause
