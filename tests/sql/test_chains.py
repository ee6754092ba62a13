"""Chains: one record for several finished steps of a branch leaves what as many records would have left, or nothing."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from dwarf.batch import ChildStart, Entry, cut_chain, lay_out
from dwarf.record import Child, Kind, NewBranch, Record, Via
from dwarf.status import StepStatus
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.desk import Desk, entry, minute
from tests.sql.stops import INVARIANTS
from tests.sql.test_storm import Storm

COMPLETED, FAILED, PENDING = StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.PENDING
INTERRUPTED, PARKED = StepStatus.INTERRUPTED, StepStatus.PARKED
# What differs between a chain and as many records: numbers of claims and flows, and when something happened.
VARIES = {"lease", "flow_id", "root_id", "thread_id", "half", "child_id", "path", "created_at", "started_at", "ended_at", "parked_at"}
VARIES |= {"due_at", "wake_at", "claimable", "caller_flow"}
BRANCH_COLUMNS = ("branch", "base_branch", "parent_branch", "fan_first", "join_branch", "caller_branch")


@pytest.fixture(scope="module")
def module_desk(pg: Server) -> Iterator[Desk]:
    with fresh_database(pg, "chains") as dsn, Desk(dsn) as desk:
        yield desk


@pytest.fixture
def desk(module_desk: Desk) -> Desk:
    module_desk.begin_anew()
    return module_desk


# ---- where a chain begins: a claimed row, as (flow, branch, seq, lease, parts of its entry) ----

Start = tuple[int, int, int, int, dict[str, Any]]


def root(desk: Desk) -> Start:
    [flow_id] = desk.create()
    return flow_id, 0, 1, 1, {}


def branch(desk: Desk) -> Start:
    """A branch of a cohort of two, at its first step."""
    [flow_id] = desk.create()
    first = desk.do(desk.store.branch_block())
    opened = entry(
        flow_id, Kind.FAN_OUT, task="J", size=2, expanded=2, snapshot=b'{"s":1}', branches=[NewBranch(0, "W", b'{"x":0}'), NewBranch(1, "W")],
        first_branch=first, hot_branches=frozenset([0, 1]),
    )  # fmt: skip
    desk.applied(opened)
    return flow_id, first, 1, 1, {"join_branch": 0}


def fan_in(desk: Desk) -> Start:
    """A fan-in that is to be folded."""
    flow_id, first, *_ = branch(desk)
    desk.applied(*[entry(flow_id, Kind.ARRIVE, branch=first + n, join_branch=0) for n in (0, 1)])
    [row] = desk.claim_these((flow_id, 0), at=1)
    return flow_id, 0, 2, row.lease, {"joining": True}


def retried(desk: Desk) -> Start:
    """A step that has kept some writes and runs for the second time."""
    [flow_id] = desk.create()
    desk.applied(entry(flow_id, Kind.RETRY, status=PENDING, kept=b'{"w":1}'))
    [row] = desk.claim_these((flow_id, 0), at=1)
    return flow_id, 0, 1, row.lease, {"unparks": True}


def called(desk: Desk) -> Start:
    """A step whose child has ended."""
    [flow_id] = desk.create()
    made = entry(flow_id, Kind.PARK, status=PARKED, kept=b"{}", payload=b'{"p":1}', child=ChildStart("c" * 16, desk.graph_id, "C"))
    made.record.child = Child("kid", b"{}")
    [child] = desk.applied(made).children
    assert child is not None
    desk.claim_these((child, 0), at=1)
    desk.applied(entry(child, Kind.CLOSE, root=flow_id, caller=(flow_id, 0), final_state=b"{}"))
    [row] = desk.claim_these((flow_id, 0), at=1)
    return flow_id, 0, 1, row.lease, {"unparks": True}


STARTS: dict[str, Callable[[Desk], Start]] = {each.__name__: each for each in (root, branch, fan_in, retried, called)}

# ---- how its last step ends ----

ENDS: dict[str, dict[str, Any]] = {
    "advance": {"kind": Kind.ADVANCE, "task": "Z", "delta": b'{"d":3}'},
    "advance, hot": {"kind": Kind.ADVANCE, "task": "Z", "delta": b'{"d":3}', "hot": True},
    "advance with a document": {"kind": Kind.ADVANCE, "task": "Z", "snapshot": b'{"s":3}', "delta": b'{"d":3}', "delta_always": True},
    "advance without a delta": {"kind": Kind.ADVANCE, "task": "Z"},
    "sleep": {"kind": Kind.ADVANCE, "task": "Z", "delay": 60.0},
    "error edge": {"kind": Kind.ADVANCE, "task": "Z", "via": Via.ERROR, "goto": "Z", "error": "oops", "delta": b'{"d":3}'},
    "complete": {"kind": Kind.CLOSE, "final_state": b'{"end":1}'},
    "fail": {"kind": Kind.CLOSE, "status": FAILED, "error": "bad", "final_state": b"{}"},
    "arrive": {"kind": Kind.ARRIVE, "contribution": b'{"c":1}'},
    "arrive failed": {"kind": Kind.ARRIVE, "status": FAILED, "error": "bad"},
    "fan out": {"kind": Kind.FAN_OUT, "size": 2, "expanded": 2},
    "first slice": {"kind": Kind.FAN_OUT, "size": 5, "expanded": 2},
    "interrupt": {"kind": Kind.PARK, "status": INTERRUPTED, "kept": b'{"w":2}', "payload": b'{"q":1}'},
    "call": {"kind": Kind.PARK, "status": PARKED, "kept": b"{}"},
    "retry": {"kind": Kind.RETRY, "status": PENDING},
    "retry that keeps": {"kind": Kind.RETRY, "status": PENDING, "kept": b'{"w":3}', "delay": 60.0},
    "give back": {"kind": Kind.NONE, "status": PENDING},
}
PLAIN = [{"delta": b'{"d":%d}' % n, "changes": b'{"a":%d}' % n} for n in (1, 2)]
PREFIXES: dict[str, list[dict[str, Any]]] = {
    "plain": PLAIN,
    "with a document": [PLAIN[0], {**PLAIN[1], "snapshot": b'{"s":2}', "delta": None, "delta_always": True}],
    "with a document and a delta": [{**PLAIN[0], "snapshot": b'{"s":2}', "delta_always": True}, PLAIN[1]],
    "with a delta to keep": [{**PLAIN[0], "delta_always": True}, PLAIN[1]],
}


def last_of(desk: Desk, start: Start, seq: int, lease: int, end: dict[str, Any]) -> Entry:
    flow_id, branch_number, _, _, beside = start
    parts = {"changes": b'{"last":1}', **end}
    if parts["kind"] is Kind.FAN_OUT:
        parts |= {
            "task": "K",
            "snapshot": b'{"s":9}',
            "delta": b'{"d":9}',
            "delta_always": True,
            "first_branch": desk.do(desk.store.branch_block()),
        }
        parts["branches"] = [NewBranch(n, "V", b'{"y":%d}' % n) for n in range(parts["expanded"])]
    if parts.get("status") is PARKED:
        parts["child"] = ChildStart("c" * 16, desk.graph_id, "C")
    made = entry(flow_id, branch=branch_number, seq=seq, lease=lease, **{**beside, **parts})
    if made.child:
        made.record.child = Child("kid", b"{}")
    return made


def steps_of(start: Start, prefix: list[dict[str, Any]], *, leases: bool) -> list[Record]:
    """The steps before the last, each with a lease of its own or all with that of the row."""
    _, number, seq, lease, _ = start
    return [
        Record(kind=Kind.ADVANCE, branch=number, seq=seq + n, lease=lease + n * leases, task=f"T{n}", **parts)
        for n, parts in enumerate(prefix)
    ]


def as_chain(desk: Desk, start: Start, prefix: list[dict[str, Any]], end: dict[str, Any]) -> Entry:
    made = last_of(desk, start, start[2] + len(prefix), start[3], end)
    made.prefix = steps_of(start, prefix, leases=False)
    return made


def one_by_one(desk: Desk, start: Start, prefix: list[dict[str, Any]], end: dict[str, Any]) -> list[Entry]:
    """The same as single records, every successor kept running."""
    flow_id, _, seq, lease, beside = start
    first = [Entry(flow_id, flow_id, record, hot=True) for record in steps_of(start, prefix, leases=True)]
    for name, value in beside.items():
        setattr(first[0], name, value)
    rest = {name: value for name, value in beside.items() if name == "join_branch"}
    return [*first, last_of(desk, (*start[:4], rest), seq + len(prefix), lease + len(prefix), end)]


def left(desk: Desk, flow_id: int) -> dict[str, list[dict[str, Any]]]:
    """All that is stored of a tree, without what may differ; branches by their order, times by whether they are there."""
    flows = [
        flow_id,
        *(row["flow_id"] for row in desk.all("select flow_id from dwarf.live where root_id = %s and flow_id <> root_id", flow_id)),
    ]
    query = (
        "select distinct branch from dwarf.history where flow_id = %s union select branch from dwarf.active where flow_id = %s order by 1"
    )
    ranks = {row["branch"]: rank for rank, row in enumerate(desk.all(query, flow_id, flow_id))}
    found = {}
    for table in ("active", "history", "parks", "live", "flows"):
        rows = [row for each in flows for row in desk.all(f"select * from dwarf.{table} where flow_id = %s", each)]
        for row in rows:
            row |= {name: row[name] is not None for name in VARIES & row.keys()}
            row |= {name: ranks.get(row[name]) for name in BRANCH_COLUMNS if name in row}
            row.pop("due_at", None)
        found[table] = sorted(rows, key=lambda row: (row.get("branch") or 0, row.get("seq") or 0, row.get("token", "")))
    return found


def fits(start: str, kind: Kind) -> bool:
    """Branches arrive, trunks close."""
    return kind not in (Kind.ARRIVE, Kind.CLOSE) or (kind is Kind.ARRIVE) == (start == "branch")


@pytest.mark.parametrize(("start", "end"), [(start, end) for start in STARTS for end in ENDS if fits(start, ENDS[end]["kind"])])
def test_a_chain_leaves_what_its_steps_would_have_left_one_by_one(desk: Desk, start: str, end: str) -> None:
    for name, prefix in PREFIXES.items():
        first, second = STARTS[start](desk), STARTS[start](desk)
        desk.applied(as_chain(desk, first, prefix, ENDS[end]), at=2)
        for each in one_by_one(desk, second, prefix, ENDS[end]):
            desk.applied(each, at=2)
        assert left(desk, first[0]) == left(desk, second[0]), name
    assert [fault for fault in desk.all(INVARIANTS.replace("%", "%%")) if "stands on a state" not in str(fault)] == []


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_chain_cut_into_steps_leaves_what_it_would_have_left(desk: Desk, prefix: str, end: str) -> None:
    make = branch if ENDS[end]["kind"] is Kind.ARRIVE else retried
    whole, cut = make(desk), make(desk)
    desk.applied(as_chain(desk, whole, PREFIXES[prefix], ENDS[end]), at=2)
    waiting = [as_chain(desk, cut, PREFIXES[prefix], ENDS[end])]
    while waiting:
        each = waiting.pop(0)
        if each.prefix:
            waiting = [*cut_chain(each), *waiting]
        else:
            desk.applied(each, at=2)
    assert left(desk, whole[0]) == left(desk, cut[0])


# ---- the fence ----


@pytest.mark.row("G16")
@pytest.mark.parametrize("end", ENDS)
def test_a_chain_applies_to_its_own_claim_alone_and_then_as_a_whole(desk: Desk, end: str) -> None:
    kind = ENDS[end]["kind"]
    make = branch if kind is Kind.ARRIVE else root
    stale, later, released = make(desk), make(desk), make(desk)
    desk.view.execute(
        "update dwarf.active set status = 1, owner = null, claimable = created_at where flow_id = %s and size is null", (released[0],)
    )
    chains = [
        as_chain(desk, (*stale[:3], stale[3] - 1, stale[4]), PLAIN, ENDS[end]),
        as_chain(desk, (*later[:2], later[2] + 1, *later[3:]), PLAIN, ENDS[end]),
        as_chain(desk, released, PLAIN, ENDS[end]),
    ]
    before = [left(desk, each[0]) for each in (stale, later, released)]
    recorded = desk.record(*chains, at=2)
    succeeds = kind is not Kind.NONE and kind is not Kind.RETRY and ENDS[end].get("status") is not FAILED
    missed = {each.flow_id for each in lay_out(chains).missed(recorded.missed)}
    assert missed == {stale[0], later[0], *([] if succeeds else [released[0]])}
    after = [left(desk, each[0]) for each in (stale, later, released)]
    assert after[:2] == before[:2]
    assert (after[2] == before[2]) != succeeds


def test_a_chain_is_not_recorded_twice(desk: Desk) -> None:
    start = root(desk)
    chain = as_chain(desk, start, PLAIN, ENDS["advance"])
    desk.applied(chain)
    assert desk.record(chain).missed == [1]
    assert [step["seq"] for step in desk.steps(start[0])] == [1, 2, 3]


def test_chains_among_other_records(desk: Desk) -> None:
    """Chains of several lengths, single steps on either path, and one that misses, in one batch."""
    flows = desk.create(9)
    entries = []
    for n, flow_id in enumerate(flows):
        lease = 7 if n == 4 else 1
        made = entry(flow_id, Kind.ADVANCE, seq=1 + n % 3, lease=lease, task="Z", via=Via.GOTO if n % 2 else Via.NORMAL)
        made.prefix = [Record(kind=Kind.ADVANCE, branch=0, seq=1 + each, task=f"T{each}") for each in range(n % 3)]
        entries.append(made)
    batch = lay_out(entries)
    assert [each.flow_id for each in batch.missed(desk.record(*entries).missed)] == [flows[4]]
    for n, flow_id in enumerate(flows):
        tasks = [step["task"] for step in desk.steps(flow_id)]
        assert tasks == ([] if n == 4 else ["A", "T0", "T1"][: 1 + n % 3])
    assert desk.all(INVARIANTS.replace("%", "%%")) == []


def test_a_wide_batch_of_long_chains(desk: Desk) -> None:
    flows = desk.create(50)
    entries = []
    for flow_id in flows:
        made = entry(flow_id, Kind.CLOSE, seq=64, final_state=b'{"end":1}')
        made.prefix = [Record(kind=Kind.ADVANCE, branch=0, seq=seq, task=f"T{seq + 1}") for seq in range(1, 64)]
        entries.append(made)
    desk.applied(*entries)
    assert desk.count("history") == 50 * 64
    rows = desk.all("select seq, task, depth from dwarf.history where flow_id = %s order by seq", flows[7])
    assert [(row["task"], row["depth"]) for row in rows] == [("A", 1), *((f"T{seq}", seq) for seq in range(2, 65))]
    assert desk.flow(flows[0], "flows")["task"] == "T64"


# ---- times ----


def test_the_steps_of_a_chain_follow_each_other_in_time(desk: Desk) -> None:
    flow_id, *_ = root(desk)
    chain = as_chain(desk, (flow_id, 0, 1, 1, {}), PLAIN, ENDS["complete"])
    chain.elapsed = [0.01, 0.25]
    desk.applied(chain, at=1)
    began = minute(0)
    times = [began, began + datetime.timedelta(milliseconds=10), began + datetime.timedelta(milliseconds=250), minute(1)]
    rows = desk.steps(flow_id)
    assert [(row["created_at"], row["started_at"], row["ended_at"]) for row in rows] == [
        (start, start, end) for start, end in itertools.pairwise(times)
    ]


def test_a_clock_that_runs_ahead_puts_nothing_into_the_future(desk: Desk) -> None:
    flow_id, *_ = root(desk)
    chain = as_chain(desk, (flow_id, 0, 1, 1, {}), PLAIN, ENDS["complete"])
    chain.elapsed = [10.0, 3600.0]
    desk.applied(chain, at=1)
    assert {row["ended_at"] for row in desk.steps(flow_id)[1:]} == {minute(1)}


def test_steps_of_a_chain_without_times_end_when_it_is_recorded(desk: Desk) -> None:
    flow_id, *_ = root(desk)
    desk.applied(as_chain(desk, (flow_id, 0, 1, 1, {}), PLAIN, ENDS["complete"]), at=1)
    assert {row["ended_at"] for row in desk.steps(flow_id)} == {minute(1)}


# ---- what is no chain ----


@pytest.mark.parametrize("wrong", [{"seq": 5}, {"branch": 3}, {"kind": Kind.RETRY}, {"via": Via.GOTO}, {"delay": 1.0}, {"status": FAILED}])
def test_what_is_no_chain_is_not_laid_out(wrong: dict[str, Any]) -> None:
    made = entry(1, Kind.ADVANCE, seq=3, task="Z")
    made.prefix = [Record(**{"kind": Kind.ADVANCE, "branch": 0, "seq": seq, "task": "T", **(wrong if seq == 2 else {})}) for seq in (1, 2)]
    with pytest.raises(AssertionError):
        lay_out([made])


# ---- with everything else ----


@pytest.mark.parametrize("mix", ["calm", "verbs", "sweep"])
def test_a_storm_with_chains(database: str, mix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
    storm = Storm(database, mix, 11)
    for player in storm.players:
        player.chain_steps_max = 3
    storm.blow()
    storm.check()
