"""`Shard`: one PostgreSQL database among those that hold the flows, as configured; `ShardInfo`: how it is doing.

A connection string may hold a password, so no error and no `repr` shows it. Nothing here connects to anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dwarf.checks import check_flag, check_whole, shown
from dwarf.errors import InvalidArgument
from dwarf.keys import SHARD_INDEX_MAX
from dwarf.steps import wire_name

DSN_CHARS_MAX = 8_192
WEIGHT_MAX = 1_000_000_000
CONNECTIONS_MAX = 262_143  # the most that PostgreSQL itself can be configured for


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard's place: `index` begins the keys of its flows and never changes. Raises `InvalidArgument`.

    New flows spread by `weight`; a `cordoned` shard takes none and goes on with those it has. `max_connections` bounds
    the connections of all replicas together, 0 leaves that to the measured round trip.
    """

    index: int
    dsn: str
    weight: float = 1
    cordoned: bool = False
    max_connections: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.index, str):  # as when the two are swapped: then it is the dsn, which no error may show
            raise InvalidArgument(f"a shard's index is text; it must be a whole number from 1 to {SHARD_INDEX_MAX}")
        check_whole(self.index, "a shard's index", least=1, most=SHARD_INDEX_MAX)
        what = f"shard {self.index}"
        _check_dsn(self.dsn, what)
        _check_weight(self.weight, what)
        check_flag(self.cordoned, f"{what}: cordoned")
        check_whole(self.max_connections, f"{what}: max_connections", least=0, most=CONNECTIONS_MAX, besides="no bound of its own")

    def __repr__(self) -> str:
        cordoned = ", cordoned" if self.cordoned else ""
        return f"Shard({self.index}, dsn=…, weight={self.weight}{cordoned}, max_connections={self.max_connections})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show no dsn where `rich` shows it either."""
        return [("index", self.index), ("weight", self.weight), ("cordoned", self.cordoned), ("max_connections", self.max_connections)]


def _check_dsn(dsn: object, what: str) -> None:
    if not isinstance(dsn, str):
        raise InvalidArgument(f"{what}: its dsn must be text, not {type(dsn).__name__}")
    if not dsn.strip() or len(dsn) > DSN_CHARS_MAX or "\0" in dsn:
        raise InvalidArgument(f"{what}: its dsn must be a connection string of at most {DSN_CHARS_MAX} characters, without NUL")


def _check_weight(weight: object, what: str) -> None:
    # NaN fails every comparison, so it is refused with the rest.
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= WEIGHT_MAX:
        raise InvalidArgument(f"{what}: its weight is {shown(weight)}; it must be a number above 0 and at most {WEIGHT_MAX}")


def check_shards(shards: Iterable[Shard]) -> list[Shard]:
    """Accept a configuration and return it in ascending order of index. `InvalidArgument` for none and for duplicates."""
    by_index: dict[int, Shard] = {}
    by_dsn: dict[str, int] = {}
    if isinstance(shards, Shard):
        raise InvalidArgument("shards is one Shard; it must be a list of them")
    for shard in map(_shard, shards):
        if shard.index in by_index:
            raise InvalidArgument(f"shard {shard.index} is configured twice; every index must be unique")
        other = by_dsn.setdefault(shard.dsn.strip(), shard.index)
        if other != shard.index:
            raise InvalidArgument(f"shards {other} and {shard.index} have the same dsn; every shard must be a database of its own")
        by_index[shard.index] = shard
    if not by_index:
        raise InvalidArgument("no shard is configured; at least one is needed")
    return [by_index[index] for index in sorted(by_index)]


def _shard(item: object) -> Shard:
    if not isinstance(item, Shard):
        raise InvalidArgument(f"shards must hold Shard objects, not {type(item).__name__}")
    return item


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True, rename=wire_name):
    """How a shard is doing. With an `error` it could not be asked, and what was not learnt is zero or None.

    `status` is "ok" or "down". `oldest_pending_seconds` counts from when the step was due. `dispatchers` is the number
    of replicas that dispatch the shard now, `version` that of its schema.
    """

    index: int
    status: str = "ok"
    latency_ms: float | None = None
    flows_open: int = 0
    steps_pending: int = 0
    steps_running: int = 0
    oldest_pending_seconds: float = 0
    dispatchers: int = 0
    cordoned: bool = False
    error: str = ""
    version: str = ""
