"""How every hot statement reaches its rows: prepared on empty tables, then on hundreds of thousands of rows.

Nothing here measures time. What is counted is exact and the same on every machine: tuples that index scans return, scans of
whole tables, and pages asked for, by one call, inside its own transaction. A plan is made once for a session, when nothing
is there yet, and must do for a shard that is full, with and without statistics.

DWARF_SCALE=1 loads 300,000 pending rows of 10,000 keys instead of 80,000 of 1,000, DWARF_TEST_ROWS=1000000 that many.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from dwarf.arrays import micros
from dwarf.batch import ChildStart, Entry
from dwarf.record import Child, Kind, NewBranch, Record
from dwarf.status import StepStatus
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.desk import LIFE_MS, NOON, Desk, entry, minute

SCALE = "DWARF_SCALE" in os.environ
ROWS = int(os.environ.get("DWARF_TEST_ROWS", "300000" if SCALE else "80000"))
KEYS = 10_000 if SCALE else 1_000
BATCH = 200 if SCALE else 100
WARM_UPS = 6  # after five executions a plan is generic, where it is not from the first on
SOME = max(ROWS // 10, 10_000)
# While autovacuum looks at a database, what is dead stays; and after it plans are made anew.
QUIET = """
alter table dwarf.active set (autovacuum_enabled = off);
alter table dwarf.live set (autovacuum_enabled = off);
alter table dwarf.parks set (autovacuum_enabled = off);
alter table dwarf.signals set (autovacuum_enabled = off);
"""
LOAD = """
insert into dwarf.live(flow_id, root_id, priority, graph_id, budget_ms, day, weight, created_at, thread_id, token, workflow, fairness_key, input)
select i, i, 1 + n % 5, 1, 120000, dwarf.day_of(NOW), 1, NOW, i, '0', 'w', case when n <= SOME then 'heavy' else 'k' || n % KEYS end, '{}'
from generate_series(1, ROWS) n cross join lateral (select (dwarf.hour_of(NOW)::bigint << 36) + 1000000000 + n) x(i);
insert into dwarf.active(flow_id, branch, seq, depth, status, priority, half, budget_ms, day, weight, created_at, claimable, task, fairness_key)
select l.flow_id, 0, 1, 1, 1, l.priority, hashint8(l.flow_id) & 1, 120000, l.day, 1, NOW, NOW - (l.flow_id & 1048575) * interval '1 ms', 'A', l.fairness_key
from dwarf.live l where l.flow_id & 68719476735 > 1000000000;
"""
LOAD_OTHERS = """
-- What else there is: sleepers, steps that wait for an answer, that run elsewhere; finished steps, signals of others, closed flows.
insert into dwarf.live(flow_id, root_id, priority, graph_id, budget_ms, day, weight, created_at, thread_id, token, workflow, fairness_key, input)
select i, i, 3, 1, 120000, dwarf.day_of(NOW), 1, NOW, i, '0', 'w', '', '{}'
from generate_series(1, 3 * SOME) n cross join lateral (select (dwarf.hour_of(NOW)::bigint << 36) + 2000000000 + n) x(i);
insert into dwarf.active(flow_id, branch, seq, depth, status, priority, half, budget_ms, day, weight, created_at, wake_at, owner, parked, started_at, due_at, lease, task
, fairness_key)
select l.flow_id, 0, 1, 1, 1 + n % 3 + n % 3 / 2, 3, hashint8(l.flow_id) & 1, 120000, l.day, 1, NOW, case when n % 3 = 0 then NOW + n * interval '1 s' end
, case when n % 3 = 1 then 999 end, n % 3 = 2, NOW, NOW + interval '1 day', 1, 'A', ''
from dwarf.live l cross join lateral (select l.flow_id - ((dwarf.hour_of(NOW)::bigint << 36) + 2000000000)) x(n)
where l.flow_id & 68719476735 > 2000000000;
insert into dwarf.parks(flow_id, branch, seq, kind, root_id, parked_at, path, kept, payload)
select a.flow_id, 0, 1, 1, a.flow_id, NOW, array[a.flow_id], '{}', '{}' from dwarf.active a where a.status = 4;
insert into dwarf.history(flow_id, branch, seq, day, depth, attempt, status, created_at, ended_at, task, changes)
select (dwarf.hour_of(NOW)::bigint << 36) + 3000000000 + n / 10, 0, 1 + n % 10, dwarf.day_of(NOW), 1, 0, 6, NOW, NOW, 'A', '{}'
from generate_series(0, 3 * SOME) n;
insert into dwarf.signals(session, flow_id, branch, seq, lease, kind) select 999, n, 0, 1, 1, 1 from generate_series(1, SOME) n;
"""
TABLES = ("live", "active", "parks", "flows", "history")


class Cost(NamedTuple):
    """What one call asked of tables and indexes, by name: how many rows it handled, whole tables, index entries, pages, paths."""

    rows: int
    scans: dict[str, int]
    tuples: dict[str, int]
    pages: dict[str, int]
    paths: set[str]

    def __str__(self) -> str:
        return f"{self.rows} rows; index entries {self.tuples}; pages {self.pages}; paths {sorted(self.paths)}"


COUNTED = ("scans", "tuples", "pages")
COUNTS = b"""
    select c.relname, c.relkind, pg_stat_get_xact_numscans(c.oid), pg_stat_get_xact_tuples_returned(c.oid), pg_stat_get_xact_blocks_fetched(c.oid)
    from pg_class c where c.relnamespace = 'dwarf'::regnamespace and c.relkind in ('r', 'i')
"""
EXPLAIN = (
    "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on; "
    "set auto_explain.log_level = notice; set client_min_messages = notice; set auto_explain.log_analyze = off"
)
PATH = re.compile(r"(Seq Scan|Index Only Scan|Index Scan|Bitmap Index Scan)(?: Backward)?(?: using (\w+))? on (\w+)")


def measure(desk: Desk, notices: list[str], call: Call) -> Cost:
    """Make a call in a transaction, and count what it adds to what the session has asked for."""
    prepared = call(desk, BATCH)
    desk.do(desk.link.execute(b"begin"))
    before = counts(desk)
    notices.clear()
    rows = prepared()
    after = counts(desk)  # which also closes the call, whose own plan is told only then
    paths = {" ".join(filter(None, found)) for notice in notices for found in PATH.findall(notice) if "pg_class" not in notice}
    desk.do(desk.link.execute(b"commit"))
    added = {what: count - before.get(what, 0) for what, count in after.items() if count > before.get(what, 0)}
    scans, tuples, pages = ({name: count for (kind, name), count in added.items() if kind == wanted} for wanted in COUNTED)
    return Cost(rows, scans, tuples, pages, paths)


def counts(desk: Desk) -> dict[tuple[str, str], int]:
    """Scans of tables, tuples returned by scans of indexes, and pages asked for, since the session last told them to all."""
    result = desk.do(desk.link.execute(COUNTS, result_format=0))
    found: dict[tuple[str, str], int] = {}
    for number in range(result.ntuples):
        name, kind, scans, tuples, pages = [(result.get_value(number, column) or b"0").decode() for column in range(5)]
        found["pages", name] = int(pages)
        found["scans" if kind == "r" else "tuples", name] = int(scans if kind == "r" else tuples)
    return found


# ---- calls: each gets ready, for BATCH rows or one tree, and returns what makes the call and counts what it handled ----

Call = Callable[[Desk, int], Callable[[], int]]
CALLS: dict[str, Call] = {}


def measured(call: Call) -> Call:
    CALLS[call.__name__] = call
    return call


def due(desk: Desk, n: int) -> list[int]:
    """Flows with a pending step that no call has touched yet, or numbers of none where nothing is there.

    A row that was claimed before has left dead versions of itself, and how many of them are gone is not for a call to answer.
    """
    query = "select flow_id from dwarf.active where claimable is not null and lease = 0 and priority in (2, 4) and fairness_key like 'k%%' limit %s"
    return [row["flow_id"] for row in desk.all(query, n)] or list(range(1, n + 1))


def running(desk: Desk, n: int) -> list[Entry]:
    """The steps of flows, claimed; their records are for the caller to fill in."""
    flows = due(desk, n)
    rows = desk.claim_these(*[(flow_id, 0) for flow_id in flows])
    if rows:
        return [entry(row.flow_id, Kind.ADVANCE, task="B", seq=row.seq, lease=row.lease) for row in rows]
    return [entry(flow_id, Kind.ADVANCE, task="B") for flow_id in flows]


def become(step: Entry, kind: Kind, **parts: Any) -> Entry:
    """An entry of another kind for the same step."""
    return entry(step.flow_id, kind, seq=step.record.seq, lease=step.record.lease, **parts)


def recording(desk: Desk, entries: list[Entry]) -> Callable[[], int]:
    return lambda: len(entries) - len(desk.record(*entries).missed)


@measured
def create(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: len(desk.create(n, claimed=False, fairness_keys="created"))


@measured
def claim_of_many_keys(desk: Desk, n: int) -> Callable[[], int]:
    quotas = {f"k{5 * number + 2}": 1 for number in range(n)}
    return lambda: len(desk.do(desk.store.claim(desk.session, quotas, half=0, priority=3, now=micros(NOON))))


@measured
def claim_of_one_key(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: len(desk.do(desk.store.claim(desk.session, {"heavy": n}, half=0, priority=3, now=micros(NOON))))


@measured
def claim_of_named_rows(desk: Desk, n: int) -> Callable[[], int]:
    places = [(flow_id, 0) for flow_id in due(desk, n)]
    return lambda: len(desk.claim_these(*places))


@measured
def due_bands(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: len(desk.do(desk.store.due_bands(0)))


@measured
def due_keys(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: len(desk.do(desk.store.due_keys(half=0, priority=3, after="k5", limit=n)))


@measured
def record_advances(desk: Desk, n: int) -> Callable[[], int]:
    return recording(desk, running(desk, n))


@measured
def record_hot_advances(desk: Desk, n: int) -> Callable[[], int]:
    entries = running(desk, n)
    for each in entries:
        each.hot = True
    return recording(desk, entries)


@measured
def record_closes(desk: Desk, n: int) -> Callable[[], int]:
    return recording(desk, [become(each, Kind.CLOSE, final_state=b"{}") for each in running(desk, n)])


@measured
def record_failures(desk: Desk, n: int) -> Callable[[], int]:
    status = StepStatus.FAILED
    return recording(desk, [become(each, Kind.CLOSE, final_state=b"{}", status=status) for each in running(desk, n)])


@measured
def record_retries(desk: Desk, n: int) -> Callable[[], int]:
    return recording(desk, [become(each, Kind.RETRY, status=StepStatus.PENDING, kept=b"{}", delay=60) for each in running(desk, n)])


@measured
def record_interrupts(desk: Desk, n: int) -> Callable[[], int]:
    parts = {"status": StepStatus.INTERRUPTED, "kept": b"{}", "payload": b"{}"}
    return recording(desk, [become(each, Kind.PARK, **parts) for each in running(desk, n)])


def callers(desk: Desk, n: int) -> list[Entry]:
    entries = []
    for each in running(desk, n):
        made = become(each, Kind.PARK, status=StepStatus.PARKED, kept=b"{}", child=ChildStart("0" * 16, desk.graph_id, "C"))
        made.record.child = Child("kid", b"{}")
        entries.append(made)
    return entries


@measured
def record_calls(desk: Desk, n: int) -> Callable[[], int]:
    return recording(desk, callers(desk, n))


@measured
def record_ends_of_children(desk: Desk, n: int) -> Callable[[], int]:
    entries = callers(desk, n)
    children = desk.record(*entries).children
    desk.claim_these(*[(child, 0) for child in children if child])
    ends = [(child or 0, each.flow_id) for child, each in zip(children, entries, strict=True)]
    return recording(desk, [entry(child, Kind.CLOSE, final_state=b"{}", root=root, caller=(root, 0)) for child, root in ends])


def fan_outs(desk: Desk, n: int, width: int) -> list[Entry]:
    first = desk.do(desk.store.branch_block())
    branches = [NewBranch(number, "W") for number in range(width)]
    parts = {
        "task": "J",
        "snapshot": b"{}",
        "branches": branches,
        "size": width,
        "expanded": width,
        "hot_branches": frozenset(range(width)),
    }
    return [
        become(each, Kind.FAN_OUT, **parts, first_branch=first + number * width) for number, each in enumerate(running(desk, n))
    ]  # fmt: skip


@measured
def record_fan_outs(desk: Desk, n: int) -> Callable[[], int]:
    call = recording(desk, fan_outs(desk, n // 10, 10))
    return lambda: 10 * call()


@measured
def record_arrivals(desk: Desk, n: int) -> Callable[[], int]:
    sources = fan_outs(desk, n // 10, 10)
    desk.record(*sources)
    places = [(each.flow_id, (each.first_branch or 0) + number) for each in sources for number in range(10)]
    return recording(desk, [entry(flow_id, Kind.ARRIVE, branch=branch, join_branch=0) for flow_id, branch in places])


@measured
def record_of_all_kinds(desk: Desk, n: int) -> Callable[[], int]:
    called, opened = callers(desk, n // 4), fan_outs(desk, n // 40, 10)
    desk.record(*opened)
    arrive = [entry(each.flow_id, Kind.ARRIVE, branch=(each.first_branch or 0) + 3, join_branch=0) for each in opened]
    return recording(desk, [*called, *arrive, *running(desk, n // 2)])


@measured
def record_chains(desk: Desk, n: int) -> Callable[[], int]:
    """Chains of four steps."""
    entries = []
    for each in running(desk, n // 4):
        step = each.record
        prefix = [Record(kind=Kind.ADVANCE, branch=0, seq=step.seq + nth, task="T") for nth in range(3)]
        entries.append(entry(each.flow_id, Kind.ADVANCE, task="B", seq=step.seq + 3, lease=step.lease, prefix=prefix))
    call = recording(desk, entries)
    return lambda: 4 * call()


@measured
def claim_of_both_halves(desk: Desk, n: int) -> Callable[[], int]:
    call = desk.store.claim(desk.session, {"heavy": n}, half=None, priority=3, now=micros(NOON))
    return lambda: len(desk.do(call))


@measured
def claim_behind_a_cursor(desk: Desk, n: int) -> Callable[[], int]:
    since = {"heavy": micros(NOON) - 3_000_000_000}
    call = desk.store.claim(desk.session, {"heavy": n}, half=1, priority=3, since=since, now=micros(NOON))
    return lambda: len(desk.do(call))


@measured
def wake(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: desk.do(desk.store.wake(n, now=micros(minute(100_000))))


@measured
def next_wake(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: desk.do(desk.store.next_wake()) is not None


@measured
def release(desk: Desk, n: int) -> Callable[[], int]:
    places = [(each.flow_id, 0, each.record.lease, True) for each in running(desk, n)]
    return lambda: desk.do(desk.store.release(desk.session, places))


def finished(desk: Desk, n: int) -> list[tuple[int, int]]:
    """Flows with ten finished steps, and their day."""
    query = "select flow_id, day from dwarf.history where seq = 5 and flow_id & 68719476735 > 3000000000 limit %s"
    return [(row["flow_id"], row["day"]) for row in desk.all(query, n)] or [(number, 1) for number in range(n)]


@measured
def load_documents(desk: Desk, n: int) -> Callable[[], int]:
    steps = [(flow_id, 0, 5, day) for flow_id, day in finished(desk, n // 2)]
    starts = [(flow_id, 0, 0, 0) for flow_id in due(desk, n // 2)]
    return lambda: len(desk.do(desk.store.load_documents([*steps, *starts])))


@measured
def load_changes(desk: Desk, n: int) -> Callable[[], int]:
    spans = [(flow_id, 0, 2, 8, day) for flow_id, day in finished(desk, n)]
    return lambda: len(desk.do(desk.store.load_changes(spans)))


@measured
def load_sources(desk: Desk, n: int) -> Callable[[], int]:
    places = [(flow_id, 0, 5, day) for flow_id, day in finished(desk, n)]
    return lambda: len(desk.do(desk.store.load_sources(places)))


@measured
def load_members(desk: Desk, n: int) -> Callable[[], int]:
    [(flow_id, day)] = finished(desk, 1)
    return lambda: len(desk.do(desk.store.load_members(flow_id, 0, n, day)))


@measured
def load_parks(desk: Desk, n: int) -> Callable[[], int]:
    places = [(row["flow_id"], 0) for row in desk.all("select flow_id from dwarf.parks where kind = 1 limit %s", n)] or [(1, 0)]
    return lambda: len(desk.do(desk.store.load_parks(places)))


@measured
def take_signals(desk: Desk, n: int) -> Callable[[], int]:
    for flow_id in [each.flow_id for each in running(desk, 5)]:
        desk.do(desk.store.terminate_flow(flow_id, ""))
    return lambda: len(desk.do(desk.store.take_signals(desk.session, n)))


def tree(desk: Desk) -> int:
    """A flow with ten branches, each of which waits for a child."""
    [source] = fan_outs(desk, 1, 10)
    desk.record(source)
    calls = []
    for number in range(10):
        branch = (source.first_branch or 0) + number
        start = ChildStart("0" * 16, desk.graph_id, "C")
        calls.append(entry(source.flow_id, Kind.PARK, branch=branch, join_branch=0, status=StepStatus.PARKED, kept=b"{}", child=start))
        calls[-1].record.child = Child("kid", b"{}")
    desk.record(*calls)
    return source.flow_id


@measured
def cancel(desk: Desk, n: int) -> Callable[[], int]:
    root = tree(desk)
    return lambda: desk.do(desk.store.cancel_flow(root, ""))


@measured
def terminate(desk: Desk, n: int) -> Callable[[], int]:
    root = tree(desk)
    return lambda: desk.do(desk.store.terminate_flow(root, ""))


@measured
def resume(desk: Desk, n: int) -> Callable[[], int]:
    [root] = [row["flow_id"] for row in desk.all("select flow_id from dwarf.parks where kind = 1 and answer is null limit 1")] or [1]
    return lambda: desk.do(desk.store.resume_flow(root, b"{}"))


@measured
def statuses(desk: Desk, n: int) -> Callable[[], int]:
    flows = due(desk, n)
    query = f"select from dwarf.statuses_v1('{{{','.join(map(str, flows))}}}')".encode()
    return lambda: desk.do(desk.link.execute(query)).ntuples


@measured
def open_lane(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: desk.do(desk.store.open_lane(desk.session, 7)).epoch > 0


@measured
def renew_session(desk: Desk, n: int) -> Callable[[], int]:
    return lambda: desk.do(desk.store.renew_session(desk.session, life_ms=LIFE_MS, is_dispatcher=True))


@pytest.fixture(scope="module")
def full(pg: Server) -> Iterator[tuple[Desk, list[str]]]:
    notices: list[str] = []
    with fresh_database(pg, "plans") as dsn, Desk(dsn) as desk:
        desk.link._origin.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        for setting in EXPLAIN.split("; "):
            desk.do(desk.link.execute(setting.encode()))
        desk.view.cursor().execute(QUIET.encode())
        desk.view.cursor().execute(b"set enable_seqscan = off; set enable_sort = off; set jit = off")
        prepare(desk)
        yield desk, notices


def prepare(desk: Desk) -> None:
    """Make every call while little is there, so that its plans are cached, then fill the tables."""
    for call in CALLS.values():
        delete_all(desk)
        load(desk, LOAD + LOAD_OTHERS, rows=200)
        for _ in range(WARM_UPS):
            call(desk, 20)()
    delete_all(desk)
    load(desk, LOAD + LOAD_OTHERS)


def delete_all(desk: Desk) -> None:
    for table in TABLES:
        desk.view.execute(f"delete from dwarf.{table}".encode())
    # A scan passes over what one before it has found dead. Only what calls leave themselves is to count.
    for order in ("half, priority, fairness_key, claimable", "half, priority, fairness_key, weight"):
        desk.view.execute(f"select from dwarf.active where claimable is not null order by {order}".encode())
    desk.view.execute("select from dwarf.active where wake_at is not null order by wake_at")


def load(desk: Desk, statements: str, *, rows: int = ROWS) -> None:
    values = {"NOW": f"timestamptz '{NOON.isoformat()}'", "ROWS": rows, "KEYS": min(KEYS, rows), "SOME": rows * SOME // ROWS}
    for name, value in values.items():
        statements = statements.replace(name, str(value))
    desk.view.cursor().execute(statements.encode())


def plan_anew(desk: Desk) -> None:
    desk.do(desk.link.execute(b"discard plans"))


def analyze(desk: Desk) -> None:
    desk.do(desk.link.execute(b"analyze"))


def prepare_known_empty(desk: Desk) -> None:
    """Prepare on tables that vacuum has found empty."""
    desk.view.execute(f"truncate dwarf.{', dwarf.'.join(TABLES)}".encode())
    desk.view.execute("vacuum (analyze)")
    prepare_on_nothing(desk)


def prepare_while_nothing_waits(desk: Desk) -> None:
    """Prepare while all there is runs: the index of what waits has one page, which seems to be read in no time for every row."""
    desk.view.execute(f"truncate dwarf.{', dwarf.'.join(TABLES)}".encode())
    load(desk, LOAD_OTHERS)
    desk.view.execute("delete from dwarf.active where owner is null; delete from dwarf.parks")
    desk.view.execute("reindex table dwarf.active")
    desk.view.execute("vacuum (analyze)")
    prepare_on_nothing(desk)


def prepare_on_nothing(desk: Desk) -> None:
    for call in CALLS.values():
        if call is not create:
            call(desk, 20)()
    prepare(desk)


def prepare_among_the_dead(desk: Desk) -> None:
    """Prepare on tables that had one row when they were looked at, beside many dead: to read a whole index then seems to cost what
    a look-up does, and its key to select all there is.
    """
    for table, left in {"live": "parks", "active": "parks", "parks": "parks", "flows": "flows", "history": "history"}.items():
        desk.view.execute(f"delete from dwarf.{table} where flow_id <> (select min(flow_id) from dwarf.{left})".encode())
    desk.view.execute("analyze")
    prepare(desk)


PHASES = {
    "as prepared on empty tables": None,
    "planned anew": plan_anew,
    "with statistics": analyze,
    "as prepared on tables known to be empty": prepare_known_empty,
    "as prepared while nothing waits": prepare_while_nothing_waits,
    "as prepared among the dead": prepare_among_the_dead,
}


# How many index entries and pages a call may ask for: for each row that it handles, and beside those.
BOUNDS = {
    "create": (1, 18, 0),
    "claim_of_many_keys": (12, 28, 20),
    "claim_of_one_key": (12, 24, 20),
    "claim_of_named_rows": (12, 28, 20),
    "due_bands": (2, 12, 100),
    "due_keys": (3, 12, 20),
    "record_advances": (12, 32, 20),
    "record_hot_advances": (12, 20, 20),
    "record_closes": (14, 38, 20),
    "record_failures": (14, 38, 20),
    "record_retries": (15, 40, 20),
    "record_interrupts": (15, 40, 20),
    "record_calls": (20, 70, 20),
    "record_ends_of_children": (19, 68, 20),
    "record_fan_outs": (11, 18, 50),
    "record_arrivals": (10, 22, 20),
    "record_of_all_kinds": (15, 48, 20),
    "record_chains": (6, 16, 20),
    "claim_behind_a_cursor": (12, 24, 20),
    "claim_of_both_halves": (12, 28, 20),
    "wake": (11, 24, 20),
    "next_wake": (0, 0, 400),  # what the wake before has left
    "release": (10, 24, 20),
    "load_documents": (2, 6, 20),
    "load_changes": (2, 6, 20),
    "load_sources": (2, 6, 20),
    "load_members": (2, 6, 4 * BATCH),
    "load_parks": (2, 6, 20),
    "take_signals": (5, 12, 60),
    "cancel": (0, 0, 800),
    "terminate": (0, 0, 800),
    "resume": (0, 0, 100),
    "statuses": (2, 10, 20),
    "open_lane": (0, 0, 20),
    "renew_session": (0, 0, 20),
}
# What must be read from the index alone, or by this index and no other.
PATHS = {
    "claim_of_many_keys": "Index Scan active_claim_idx active",
    "claim_of_one_key": "Index Scan active_claim_idx active",
    "claim_behind_a_cursor": "Index Scan active_claim_idx active",
    "claim_of_both_halves": "active_claim_idx active",
    "due_bands": "Index Only Scan",
    "due_keys": "Index Only Scan",
    "next_wake": "Index Only Scan active_wake_at_idx active",
    "wake": "Index Scan active_wake_at_idx active",
    "take_signals": "Index Scan signals_session_signal_id_idx signals",
    "resume": "Index Scan parks_root_id_idx parks",
}
# Calls that handle less than half of BATCH rows.
FEW = dict.fromkeys(("due_bands", "next_wake", "cancel", "terminate", "resume", "open_lane", "renew_session", "load_members"), 1) | {
    "take_signals": 5
}  # fmt: skip
TINY = {"Seq Scan peers"}  # one row for each replica


def wrong(name: str, cost: Cost) -> list[str]:
    tuples, pages, beside = BOUNDS[name]
    scans = sorted(path for path in cost.paths if path.startswith("Seq Scan") and path not in TINY)
    found = [f"reads whole tables: {scans}, {cost.scans}"] if scans or cost.scans.keys() - {"peers"} else []
    if sum(cost.tuples.values()) > tuples * cost.rows + beside:
        found.append(f"reads more than {tuples} index entries a row")
    if sum(cost.pages.values()) > pages * cost.rows + beside:
        found.append(f"asks for more than {pages} pages a row")
    if not any(PATHS.get(name, "") in path for path in cost.paths or [""]):
        found.append(f"does not go by {PATHS[name]}")
    return [f"{name} {what}: {cost}" for what in found]


@pytest.fixture(scope="module")
def problems(full: tuple[Desk, list[str]]) -> dict[str, list[str]]:
    """What is wrong, by call, in all phases."""
    desk, notices = full
    found: dict[str, list[str]] = {name: [] for name in CALLS}
    for phase, change in PHASES.items():
        if change:
            change(desk)
        for name, call in CALLS.items():
            cost = measure(desk, notices, call)
            assert cost.rows >= FEW.get(name, BATCH // 2), (phase, name, cost)
            found[name] += [f"{phase}: {each}" for each in wrong(name, cost)]
    return found


@pytest.mark.parametrize("name", CALLS)
def test_a_call_reads_what_it_needs_and_no_more_whatever_the_tables_hold(problems: dict[str, list[str]], name: str) -> None:
    assert problems[name] == [], "\n".join(problems[name])
