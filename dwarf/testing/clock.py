"""Moving the clock of a test database: every statement takes its time from `dwarf.now()`, which is replaced here.

Moving it forward lets sleepers wake and horizons pass. Sessions and the deadlines of running steps move along, so that
nobody is taken for dead meanwhile. For databases that tests own.
"""

from __future__ import annotations

from datetime import timedelta

import psycopg
from psycopg import sql

from dwarf.durations import Duration, seconds_of
from dwarf.errors import InvalidArgument

_NOW = """
create or replace function dwarf.now() returns timestamptz
language sql stable parallel safe
return pg_catalog.now() + interval {offset}
"""
_SESSIONS = """
update dwarf.peers set renewed_at = renewed_at + %(by)s, expires_at = expires_at + %(by)s, steady_since = steady_since + %(by)s
"""
_DEADLINES = "update dwarf.active set due_at = due_at + %(by)s where due_at is not null"
_BUSY = "select exists(select from dwarf.active a where a.status in (1, 2) and (a.wake_at is null or a.wake_at <= dwarf.now()))"


def is_busy(dsn: str) -> bool:
    """Tell whether any step is due or running."""
    with psycopg.connect(dsn, prepare_threshold=None) as connection:
        return connection.execute(_BUSY).fetchone() == (True,)


def advance(dsn: str, duration: Duration) -> timedelta:
    """Move the clock of a database forward and return how far it is ahead of the server's in all."""
    by = timedelta(seconds=seconds_of(duration, "the duration to advance by"))
    if by < timedelta(0):
        raise InvalidArgument(f"the duration to advance by is {duration!r}; a clock only goes forward")
    with psycopg.connect(dsn, prepare_threshold=None) as connection:
        connection.execute("lock table dwarf.peers in share row exclusive mode")  # one at a time
        row = connection.execute("select dwarf.now() - pg_catalog.now()").fetchone()
        assert row is not None
        offset: timedelta = row[0] + by
        text = sql.Literal(f"{offset.days} days {offset.seconds}.{offset.microseconds:06d} seconds")
        connection.execute(sql.SQL(_NOW).format(offset=text))
        connection.execute(_SESSIONS, {"by": by})
        connection.execute(_DEADLINES, {"by": by})
        connection.execute("select dwarf.ensure_partitions(2)")
    return offset
