"""On which shard a new flow goes: by weight, or by rendezvous for those that must be found again. Draws nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate

from dwarf.shards import Shard


def by_weight(shards: Sequence[Shard], draw: float) -> Shard:
    """Return the shard that `draw`, from 0 to below 1, falls on; each is as likely as its share of the weights."""
    if len(shards) == 1:
        return shards[0]
    ends = list(accumulate(shard.weight for shard in shards))
    place = draw * ends[-1]
    return next((shard for shard, end in zip(shards, ends, strict=True) if place < end), shards[-1])


def rendezvous(shards: Sequence[Shard], *parts: str) -> list[Shard]:
    """Return the shards in the order in which a thing named by `parts` prefers them: the same for every replica.

    Neither weights nor the order of the configuration count. A shard that is added moves to the front of some of the things
    and leaves the order of the others among themselves.
    """
    name = "\0".join(parts).encode()
    return sorted(shards, key=lambda shard: sha256(b"%d\0" % shard.index + name).digest())
