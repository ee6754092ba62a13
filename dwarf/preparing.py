"""What a shard needs before its flows run: the schema, the numbers that everybody agrees on, partitions, and the App's graphs.

Any number of processes may prepare a shard at one time, and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import psycopg

from dwarf import migrate, partitions
from dwarf.database import Disposition, classify
from dwarf.errors import ShardUnavailable
from dwarf.hosts.app import App
from dwarf.hosts.host import Host
from dwarf.new_flow import FrozenGraph, freeze
from dwarf.pool import Pool
from dwarf.shards import Shard

PATIENCE_SECONDS = 10.0

log = logging.getLogger("dwarf.engine")


async def migrate_shard(shard: Shard) -> None:
    """Bring the schema of a shard up to date. Raises `ShardUnavailable` and `MigrationError` naming the shard."""
    Pool(shard.dsn, size=1, name=f"shard {shard.index}")  # refuses a dsn that cannot be read, without showing it
    try:
        await asyncio.to_thread(migrate.migrate, shard.dsn)
    except (OSError, psycopg.Error) as error:
        if classify(error) is not Disposition.RECONNECT:
            raise
        raise ShardUnavailable(f"shard {shard.index}: {error}") from error


async def prepare_shard(shard: Shard, *, max_priority: int, time_budget_ms: int) -> None:
    """Write what everybody on a shard agrees on, and make its partitions. Raises `ShardUnavailable`."""
    pool = Pool(shard.dsn, size=1, name=f"shard {shard.index}")
    mine = {"max_priority": max_priority, "time_budget_ms": time_budget_ms, "shard_index": shard.index}
    try:
        await pool.run(lambda store: store.put_settings(mine), patience=PATIENCE_SECONDS)
        await asyncio.to_thread(partitions.ensure, shard.dsn)
    finally:
        pool.close()


async def register_graphs(shard: Shard, graphs: Mapping[str, FrozenGraph]) -> None:
    """Write the graphs by which others create flows, under their URLs. Raises `ShardUnavailable`."""
    if not graphs:
        return
    pool = Pool(shard.dsn, size=1, name=f"shard {shard.index}")
    forms = [(each.hash, each.name, each.entry_task, each.definition) for each in graphs.values()]
    try:
        numbers = await pool.run(lambda store: store.put_graphs(forms), patience=PATIENCE_SECONDS)
        await pool.run(lambda store: store.register_workflows(dict(zip(graphs, numbers, strict=True))))
    finally:
        pool.close()


async def frozen_graphs(host: Host) -> dict[str, FrozenGraph]:
    """Return an App's graphs by URL. One that cannot be had is left out: a create will say why."""
    frozen = {}
    for url in host.graphs if isinstance(host, App) else ():
        try:
            frozen[url] = freeze(url, await host.load_graph(url))
        except Exception as error:
            log.warning("workflow %r is not registered: %s", url, error)
    return frozen
