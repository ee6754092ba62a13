"""Every statement of the store by itself, on edge values, and what the rows look like afterwards, column by column."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import psycopg
import pytest

from dwarf.arrays import micros
from dwarf.batch import STATUS_CODES, ChildStart, Entry, lay_out
from dwarf.record import Child, Kind, NewBranch, Via
from dwarf.rows import LINEAR_COLUMNS, ChangesRow, DocumentRow, MemberRow, ParkRow, SignalRow, SourceRow, SweptRow
from dwarf.status import StepStatus
from dwarf.store import Lane, NewFlows
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.desk import BUDGET_MS, LIFE_MS, NOON, SLACK, Desk, differences, entry, flatten, minute, present

COMPLETED, FAILED, CANCELLED = StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED
INTERRUPTED, PARKED, PENDING = StepStatus.INTERRUPTED, StepStatus.PARKED, StepStatus.PENDING
NUL = rb'{"nul":"\u0000","big":123456789012345678901234567890,"tiny":1e-400,"zero":-0.0,"space" : "\ud83d\ude00"}'
LARGE = b'{"large":"' + b"x" * (1 << 20) + b'"}'
ODD = pytest.mark.parametrize("document", [NUL, LARGE, b"{}"], ids=["nul", "large", "empty"])
DEADLINE = datetime.timedelta(milliseconds=BUDGET_MS) + SLACK


@pytest.fixture(scope="module")
def module_desk(pg: Server) -> Iterator[Desk]:
    with fresh_database(pg, "statements") as dsn, Desk(dsn) as desk:
        yield desk


@pytest.fixture
def desk(module_desk: Desk) -> Desk:
    """A desk in an empty database. Its connection has run the statements before, as those of a dispatcher have."""
    module_desk.begin_anew()
    return module_desk


def cohort(desk: Desk, size: int, *, claimed: bool = True, **parts: Any) -> tuple[int, int]:
    """Make a flow whose trunk waits for a cohort; return its id and the number of the first branch."""
    [flow_id] = desk.create()
    first = desk.do(desk.store.branch_block())
    branches = [NewBranch(number, "W") for number in range(size)]
    hot = frozenset(range(size)) if claimed else frozenset()
    desk.applied(fan_out(flow_id, branches, first_branch=first, hot_branches=hot, **parts))
    return flow_id, first


def fan_out(flow_id: int, branches: list[NewBranch], *, size: int = 0, expanded: int = 0, **parts: Any) -> Entry:
    parts = {"task": "J", "snapshot": b'{"s":1}', **parts}
    return entry(flow_id, Kind.FAN_OUT, branches=branches, size=size or len(branches), expanded=expanded or len(branches), **parts)


def arrival(flow_id: int, branch: int, **parts: Any) -> Entry:
    return entry(flow_id, Kind.ARRIVE, branch=branch, join_branch=0, **parts)


def close(flow_id: int, **parts: Any) -> Entry:
    return entry(flow_id, Kind.CLOSE, **{"final_state": b'{"end":1}', **parts})


def call(desk: Desk, flow_id: int, **parts: Any) -> Entry:
    """The park of a step that starts a child."""
    made = entry(flow_id, Kind.PARK, **{"status": PARKED, "kept": b"{}", **parts, "child": ChildStart("c" * 16, desk.graph_id, "C")})
    made.record.child = Child("kid", b'{"k":1}')
    return made


def interrupt(flow_id: int, **parts: Any) -> Entry:
    return entry(flow_id, Kind.PARK, **{"status": INTERRUPTED, "kept": b'{"w":1}', "payload": b'{"q":1}', **parts})


def retry(flow_id: int, **parts: Any) -> Entry:
    return entry(flow_id, Kind.RETRY, **{"status": PENDING, **parts})


# ---- create ----


def test_a_flow_as_it_is_created(desk: Desk) -> None:
    [flow_id] = desk.create(claimed=False, inputs=NUL)
    now, day = NOON, (NOON - datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)).days
    assert flow_id >> 36 == day * 24 + 12, "the hour by the database's clock is the upper half"
    assert present(desk.flow(flow_id)) == {
        "flow_id": flow_id, "root_id": flow_id, "status": 1, "cancels": 0, "nesting": 0, "priority": 3, "delete_on_completion": False,
        "graph_id": desk.graph_id, "budget_ms": BUDGET_MS, "day": day, "weight": 1.0, "created_at": now, "thread_id": flow_id,
        "token": "0" * 16, "workflow": "w", "fairness_key": "", "input": NUL.decode(),
    }  # fmt: skip
    row = present(desk.row(flow_id))
    assert row.pop("half") in (0, 1)
    assert row == {
        "flow_id": flow_id, "branch": 0, "base_branch": 0, "base_seq": 0, "weight": 1.0, "budget_ms": BUDGET_MS, "day": day, "attempt": 0,
        "priority": 3, "status": 1, "todo": 0, "deaths": 0, "parked": False, "seq": 1, "lease": 0, "depth": 1, "delta_seq": 0,
        "created_at": now, "claimable": now, "task": "A", "fairness_key": "",
    }  # fmt: skip


def test_flows_as_their_options_say(desk: Desk) -> None:
    [first] = desk.create()
    options: dict[str, Any] = {
        "fairness_keys": "k",
        "weights": 2.5,
        "baggage": b'{"b":1}',
        "tenants": "t",
        "thread_ids": first,
        "delete_on_completion": True,
    }
    [flow_id] = desk.create(claimed=False, start_at=micros(minute(30)), **options)
    flow = desk.flow(flow_id)
    assert [flow[name] for name in ("fairness_key", "weight", "baggage", "tenant", "thread_id", "delete_on_completion")] == [
        "k", 2.5, '{"b":1}', "t", first, True,
    ]  # fmt: skip
    row = desk.row(flow_id)
    assert (row["fairness_key"], row["weight"], row["claimable"], row["wake_at"]) == ("k", 2.5, None, minute(30))
    [due] = desk.create(claimed=False, start_at=micros(minute(0)))
    assert (desk.row(due)["claimable"], desk.row(due)["wake_at"]) == (NOON, None), "a start that is not in the future is now"


@pytest.mark.row("G32", "G31")
def test_a_born_claimed_flow_is_running_at_once(desk: Desk) -> None:
    [flow_id] = desk.create(claimed=True, at=7)
    row = desk.row(flow_id)
    assert (row["status"], row["owner"], row["lease"], row["claimable"]) == (2, desk.session, 1, None)
    assert (row["started_at"], row["due_at"]) == (minute(7), minute(7) + DEADLINE)


def test_flows_come_in_the_order_they_were_given_and_never_twice(desk: Desk) -> None:
    new = NewFlows(
        ["0" * 16] * 500, [str(n) for n in range(500)], [desk.graph_id] * 500, ["A"] * 500, [b"{}"] * 500, [3] * 500, [1] * 500
    )  # fmt: skip
    ids, at = desk.do(desk.store.create_flows(new, now=micros(NOON)))
    assert at == micros(NOON)
    assert len(set(ids)) == 500
    assert {row["flow_id"]: row["workflow"] for row in desk.all("select flow_id, workflow from dwarf.live")} == {
        flow_id: str(n) for n, flow_id in enumerate(ids)
    }


def test_no_flows_are_no_flows(desk: Desk) -> None:
    nothing = NewFlows([], [], [], [], [], [], [])
    assert desk.do(desk.store.create_flows(nothing, session=desk.session))[0] == []
    assert desk.count("live") == desk.count("active") == 0


@pytest.mark.row("A20")
@pytest.mark.parametrize("column", [{"workflows": "nul\0"}, {"inputs": b"{"}, {"tasks": None}], ids=["text", "json", "null"])
def test_a_create_that_fails_leaves_neither_flow_nor_step(desk: Desk, column: dict[str, Any]) -> None:
    with pytest.raises(psycopg.Error):
        desk.create(**column)
    assert desk.count("live") == desk.count("active") == 0


def test_graphs_are_stored_once_and_numbered_in_order(desk: Desk) -> None:
    graphs = [(name.encode() * 32, name, "A", b'{"g":"%s"}' % name.encode()) for name in "zabz"]
    numbers = desk.do(desk.store.put_graphs(graphs))
    assert numbers[0] == numbers[3]
    assert len(set(numbers)) == 3
    assert desk.do(desk.store.put_graphs(graphs[::-1])) == numbers[::-1]
    assert [row["name"] for row in desk.all("select name from dwarf.graphs where graph_id = %s", numbers[1])] == ["a"]


# ---- the fence ----

FENCE: dict[str, dict[str, Any]] = {
    "advance": {"kind": Kind.ADVANCE, "task": "B"},
    "advance by error": {"kind": Kind.ADVANCE, "task": "B", "via": Via.ERROR},
    "complete": {"kind": Kind.CLOSE, "final_state": b"{}"},
    "complete after a fork": {"kind": Kind.CLOSE, "final_state": b"{}", "via": Via.GOTO},
    "fail": {"kind": Kind.CLOSE, "final_state": b"{}", "status": FAILED},
    "end cancelled": {"kind": Kind.CLOSE, "final_state": b"{}", "status": CANCELLED},
    "arrive": {"kind": Kind.ARRIVE, "join_branch": 0, "branch": 1},
    "arrive failed": {"kind": Kind.ARRIVE, "join_branch": 0, "branch": 1, "status": FAILED},
    "fan out": {"kind": Kind.FAN_OUT, "task": "J", "size": 1, "expanded": 1, "snapshot": b"{}", "first_branch": 7 << 20},
    "interrupt": {"kind": Kind.PARK, "status": INTERRUPTED, "kept": b"{}", "payload": b"{}"},
    "call": {"kind": Kind.PARK, "status": PARKED, "kept": b"{}"},
    "retry": {"kind": Kind.RETRY, "status": PENDING},
    "give back": {"kind": Kind.NONE, "status": PENDING},
}
SUCCESSES = {"advance", "advance by error", "complete", "complete after a fork", "arrive", "fan out", "interrupt", "call"}


def rows_in_states(desk: Desk, branch: int, states: list[tuple[int, int, int]]) -> list[int]:
    """Make a flow for each state; all rows have lease 3 and seq 3. A branch other than the trunk joins there."""
    ids = desk.create(len(states))
    if branch:
        desk.view.execute("update dwarf.active set status = 3, size = 2, expanded = 2, arrived = 0, failed = 0")
        desk.view.execute("""
            insert into dwarf.active
            select b.* from dwarf.active a cross join lateral jsonb_populate_record(
              a, '{"branch": 1, "join_branch": 0, "ordinal": 0, "size": null, "expanded": null, "arrived": null, "failed": null}'
            ) b
        """)
    for flow_id, (status, _, _) in zip(ids, states, strict=True):
        update = "update dwarf.active set status = %s, lease = 3, seq = 3 where flow_id = %s and branch = %s"
        desk.view.execute(update, (status, flow_id, branch))
    return ids


@pytest.mark.row("G16", "M14")
@pytest.mark.parametrize("what", FENCE)
def test_a_record_applies_to_its_own_claim_alone_and_a_success_to_a_released_row_too(desk: Desk, what: str) -> None:
    parts = FENCE[what]
    states = list(product([1, 2, 3, 4, 5], [-1, 0, 1], [-1, 0, 1]))  # the row's status; lease and seq of the record off by
    ids = rows_in_states(desk, parts.get("branch", 0), states)
    make = {
        "call": lambda flow_id, **rest: call(desk, flow_id, **rest),
        "fan out": lambda flow_id, **rest: fan_out(flow_id, [NewBranch(0, "W")], **rest),
    }
    entries = []
    for flow_id, (_, lease, seq) in zip(ids, states, strict=True):
        rest: dict[str, Any] = {name: value for name, value in parts.items() if what not in make or name == "first_branch"}
        entries.append(make.get(what, entry)(flow_id, **rest, lease=3 + lease, seq=3 + seq))
    applies = {
        flow_id
        for flow_id, (status, lease, seq) in zip(ids, states, strict=True)
        if (lease, seq) == (0, 0) and (status == 2 or (status == 1 and what in SUCCESSES))
    }
    query = "select * from dwarf.active where branch = %s"
    before = {row["flow_id"]: row for row in desk.all(query, parts.get("branch", 0))}
    missed = {each.flow_id for each in lay_out(entries).missed(desk.record(*entries).missed)}
    assert set(ids) - missed == applies
    after = {row["flow_id"]: row for row in desk.all(query, parts.get("branch", 0))}
    assert {flow_id for flow_id in ids if after.get(flow_id) != before[flow_id]} == applies
    assert desk.count("history") == (0 if parts["kind"] in (Kind.PARK, Kind.RETRY, Kind.NONE) else len(applies))
    assert desk.count("live") == len(ids) + {Kind.CLOSE: -1}.get(parts["kind"], what == "call") * len(applies)


# ---- records, kind by kind ----


@pytest.mark.parametrize("hot", [False, True])
def test_an_advance(desk: Desk, hot: bool) -> None:
    [flow_id] = desk.create()
    before = desk.row(flow_id)
    desk.applied(entry(flow_id, Kind.ADVANCE, task="B", changes=b'{"a":1}', delta=b'{"d":1}', hot=hot))
    kept = {"lease": 2, "started_at": minute(1), "due_at": minute(1) + DEADLINE}
    waits = {"status": 1, "owner": None, "claimable": minute(1), "started_at": None, "due_at": None, "delta": '{"d":1}', "delta_seq": 1}
    assert differences(before, desk.row(flow_id)) == {
        "seq": 2,
        "depth": 2,
        "task": "B",
        "created_at": minute(1),
        **(kept if hot else waits),
    }
    [step] = desk.steps(flow_id)
    assert present(step) == {
        "flow_id": flow_id, "branch": 0, "seq": 1, "day": before["day"], "depth": 1, "attempt": 0, "status": 6, "via": 0,
        "owner": desk.session, "created_at": NOON, "started_at": NOON, "ended_at": minute(1), "task": "A", "changes": '{"a":1}',
    }  # fmt: skip


@pytest.mark.parametrize("hot", [False, True])
def test_an_advance_off_the_linear_path(desk: Desk, hot: bool) -> None:
    flow_id, first = cohort(desk, 1, delta=b'{"x":1}')
    before = desk.row(flow_id, first)
    record: dict[str, Any] = {
        "task": "V",
        "via": Via.ERROR,
        "goto": "V",
        "error": "oops",
        "changes": b'{"a":1}',
        "delta": b'{"d":1}',
        "delta_always": True,
    }
    desk.applied(entry(flow_id, Kind.ADVANCE, branch=first, join_branch=0, hot=hot, **record), at=2)
    common = {"seq": 2, "depth": 3, "lease": 2, "task": "V", "created_at": minute(2), "delta": '{"d":1}', "delta_seq": 1}
    kept = {"started_at": minute(2), "due_at": minute(2) + DEADLINE}
    waits = {"status": 1, "owner": None, "claimable": minute(2), "started_at": None, "due_at": None}
    assert differences(before, desk.row(flow_id, first)) == {**common, **(kept if hot else waits)}
    [step] = desk.steps(flow_id, first)
    assert present(step, "flow_id", "day", "owner", "created_at", "started_at", "ended_at") == {
        "branch": first, "seq": 1, "depth": 2, "attempt": 0, "status": 6, "via": Via.ERROR, "parent_branch": 0, "parent_seq": 1,
        "ordinal": 0, "task": "W", "goto": "V", "error": "oops", "changes": '{"a":1}',
    }  # fmt: skip


@pytest.mark.row("F15")
def test_an_advance_that_sleeps_and_one_with_a_snapshot(desk: Desk) -> None:
    asleep, snapped = desk.create(2)
    desk.applied(
        entry(asleep, Kind.ADVANCE, task="B", delay=60.0),
        entry(snapped, Kind.ADVANCE, task="B", snapshot=b'{"s":1}', delta=None, contribution=b'{"c":1}'),
    )
    row = desk.row(asleep)
    assert (row["status"], row["claimable"], row["wake_at"], row["owner"]) == (1, None, minute(2), None)
    row = desk.row(snapped)
    assert (row["base_branch"], row["base_seq"], row["delta"], row["delta_seq"]) == (0, 1, None, 1)
    [step] = desk.steps(snapped)
    assert (step["state"], step["contribution"]) == ('{"s":1}', '{"c":1}')


@pytest.mark.row("F16")
@pytest.mark.parametrize("delay", [0.0, 90.0])
def test_a_fan_out(desk: Desk, delay: float) -> None:
    [flow_id] = desk.create(fairness_keys="k", weights=2.0)
    before = desk.row(flow_id)
    branches = [NewBranch(0, "W", b'{"x":0}'), NewBranch(1, "V", None)]
    desk.applied(fan_out(flow_id, branches, first_branch=5 << 20, delay=delay, changes=b'{"a":1}', delta=b'{"d":1}'))
    after = desk.row(flow_id)
    assert differences(before, after) == {
        "seq": 2, "depth": 2, "lease": 2, "status": 3, "owner": None, "started_at": None, "due_at": None, "created_at": minute(1),
        "task": "J", "size": 2, "expanded": 2, "arrived": 0, "failed": 0, "base_seq": 1, "delta": '{"d":1}', "delta_seq": 1,
    }  # fmt: skip
    due = {"claimable": minute(1)} if not delay else {"wake_at": minute(2.5)}
    for number, (task, delta) in enumerate([("W", {"delta": '{"x":0}'}), ("V", {})]):
        assert present(desk.row(flow_id, (5 << 20) + number)) == {
            "flow_id": flow_id, "branch": (5 << 20) + number, "base_branch": 0, "base_seq": 1, "weight": 2.0, "join_branch": 0,
            "budget_ms": BUDGET_MS, "day": before["day"], "attempt": 0, "ordinal": number, "priority": 3, "half": before["half"],
            "status": 1, "todo": 0, "deaths": 0, "parked": False, "seq": 1, "lease": 0, "depth": 2, "delta_seq": 0,
            "created_at": minute(1), "task": task, "fairness_key": "k", **due, **delta,
        }  # fmt: skip
    [step] = desk.steps(flow_id)
    assert (step["fan_first"], step["fan_size"], step["state"], step["task"], step["status"]) == (5 << 20, 2, '{"s":1}', "A", 6)


@pytest.mark.row("G31", "G32")
def test_a_branch_that_starts_at_once(desk: Desk) -> None:
    [flow_id] = desk.create()
    branches = [NewBranch(0, "W"), NewBranch(1, "W")]
    desk.applied(fan_out(flow_id, branches, first_branch=5 << 20, hot_branches=frozenset([1])))
    cold, hot = desk.row(flow_id, 5 << 20), desk.row(flow_id, (5 << 20) + 1)
    assert (cold["status"], cold["owner"], cold["lease"], cold["started_at"]) == (1, None, 0, None)
    assert (hot["status"], hot["owner"], hot["lease"], hot["claimable"]) == (2, desk.session, 1, None)
    assert (hot["started_at"], hot["due_at"]) == (minute(1), minute(1) + DEADLINE)


@pytest.mark.row("M4", "G31")
def test_a_fan_out_in_slices(desk: Desk) -> None:
    [flow_id] = desk.create()
    desk.applied(fan_out(flow_id, [NewBranch(0, "W"), NewBranch(1, "W")], size=5, expanded=2, first_branch=5 << 20))
    row = desk.row(flow_id)
    assert (row["status"], row["todo"], row["claimable"], row["size"], row["expanded"], row["arrived"]) == (1, 4, minute(1), 5, 2, 0)
    for last, branches in ((False, [2, 3]), (True, [4])):
        [claimed] = desk.claim_these((flow_id, 0), at=2)
        assert (claimed.seq, claimed.todo, claimed.size, claimed.expanded) == (2, 4, 5, branches[0])
        before = desk.row(flow_id)
        part: dict[str, Any] = {
            "seq": 2,
            "lease": claimed.lease,
            "size": 5,
            "expanded": branches[-1] + 1,
            "joining": True,
            "first_branch": 5 << 20,
        }
        desk.applied(fan_out(flow_id, [NewBranch(number, "W") for number in branches], **{**part, "snapshot": None, "task": "J"}), at=3)
        changed = differences(before, desk.row(flow_id))
        for ends in ("owner", "due_at", "expanded"):
            changed.pop(ends)
        assert changed == {"lease": claimed.lease + 1, **({"status": 3, "todo": 0} if last else {"status": 1, "claimable": minute(3)})}
    assert desk.row(flow_id)["expanded"] == 5
    assert [row["ordinal"] for row in desk.all("select ordinal from dwarf.active where branch > 0 order by branch")] == [0, 1, 2, 3, 4]
    assert len(desk.steps(flow_id)) == 1, "later slices are no steps"


def test_the_last_slice_waits_for_the_branches_that_are_new(desk: Desk) -> None:
    """All that existed have arrived; the row is complete only with those of the last slice."""
    [flow_id] = desk.create()
    desk.applied(fan_out(flow_id, [NewBranch(0, "W")], size=2, expanded=1, first_branch=5 << 20, hot_branches=frozenset([0])))
    desk.applied(arrival(flow_id, 5 << 20), at=2)
    assert desk.row(flow_id)["todo"] == 4, "it still asks for its next slice"
    [claimed] = desk.claim_these((flow_id, 0), at=3)
    part: dict[str, Any] = {
        "seq": 2,
        "lease": claimed.lease,
        "size": 2,
        "expanded": 2,
        "joining": True,
        "first_branch": 5 << 20,
        "snapshot": None,
    }
    desk.applied(fan_out(flow_id, [NewBranch(1, "W")], hot_branches=frozenset([1]), **part), at=4)
    assert desk.row(flow_id)["status"] == 3
    assert desk.applied(arrival(flow_id, (5 << 20) + 1), at=5).woke == [(flow_id, 0)]


@pytest.mark.row("H-19")
def test_branches_of_later_slices_are_as_deep_as_those_of_the_first(desk: Desk) -> None:
    [flow_id] = desk.create()
    desk.applied(fan_out(flow_id, [NewBranch(0, "W")], size=2, expanded=1, first_branch=5 << 20, hot_branches=frozenset([0])))
    desk.applied(arrival(flow_id, 5 << 20), at=2)
    [claimed] = desk.claim_these((flow_id, 0), at=3)
    part: dict[str, Any] = {"seq": 2, "lease": claimed.lease, "size": 2, "expanded": 2, "joining": True, "first_branch": 5 << 20}
    desk.applied(fan_out(flow_id, [NewBranch(1, "W")], hot_branches=frozenset([1]), **part, snapshot=None), at=4)
    assert desk.row(flow_id, (5 << 20) + 1)["depth"] == 2
    desk.applied(arrival(flow_id, (5 << 20) + 1), at=5)
    assert desk.row(flow_id)["depth"] == 3


# ---- arrivals ----


@pytest.mark.row("M4")
@pytest.mark.parametrize(("failed", "todo"), [([], 1), ([1], 2), ([0, 1, 2], 2)])
def test_several_arrivals_in_one_batch_count_each(desk: Desk, failed: list[int], todo: int) -> None:
    flow_id, first = cohort(desk, 3)
    entries = [
        arrival(flow_id, first + n, status=FAILED if n in failed else COMPLETED, error="bad" if n in failed else "") for n in range(3)
    ]
    before = desk.row(flow_id)
    assert desk.applied(*entries, at=2).woke == [(flow_id, 0)]
    changes = {"arrived": 3, "status": 1, "todo": todo, "claimable": minute(2), "depth": 3, "last_ordinal": max(failed, default=2)}
    assert differences(before, desk.row(flow_id)) == changes | ({"failed": len(failed)} if failed else {})
    assert desk.count("active", f"flow_id = {flow_id}") == 1
    [claimed] = desk.claim_these((flow_id, 0), at=3)
    assert (claimed.todo, claimed.last_ordinal, claimed.size, claimed.expanded) == (todo, max(failed, default=2), 3, 3)


def test_a_cancelled_member_counts_as_failed(desk: Desk) -> None:
    flow_id, first = cohort(desk, 2)
    desk.applied(arrival(flow_id, first, status=CANCELLED, error="cancelled", contribution=b'{"c":1}'), at=2)
    row = desk.row(flow_id)
    assert (row["arrived"], row["failed"], row["status"], row["claimable"]) == (1, 1, 3, None)
    [step] = desk.steps(flow_id, first)
    assert (step["status"], step["error"], step["contribution"], step["changes"]) == (8, "cancelled", '{"c":1}', "{}")
    desk.applied(arrival(flow_id, first + 1), at=3)
    assert (desk.row(flow_id)["todo"], desk.row(flow_id)["last_ordinal"]) == (2, 1), "the last arriver's place, whether it failed or not"


@pytest.mark.row("H-19")
@pytest.mark.parametrize("together", [True, False])
def test_a_fan_in_is_one_deeper_than_its_deepest_branch(desk: Desk, together: bool) -> None:
    flow_id, first = cohort(desk, 3)
    for seq in (1, 2):  # the second branch is two steps longer
        desk.applied(entry(flow_id, Kind.ADVANCE, branch=first + 1, seq=seq, lease=seq, task="V", join_branch=0, hot=True))
    entries = [arrival(flow_id, first), arrival(flow_id, first + 1, seq=3, lease=3), arrival(flow_id, first + 2)]
    assert [desk.row(flow_id, first + n)["depth"] for n in range(3)] == [2, 4, 2]
    for batch in [entries] if together else [[each] for each in (entries[1], entries[0], entries[2])]:
        desk.applied(*batch, at=2)
    assert desk.row(flow_id)["depth"] == 5


@pytest.mark.row("F16")
@pytest.mark.parametrize(
    ("batches", "wakes"),
    [([[60.0], [0.0]], None), ([[0.0], [60.0]], 4), ([[30.0], [60.0]], 4), ([[60.0], [30.0]], 3.5), ([[30.0, 60.0]], 3)],
    ids=["the first", "the last", "both, the last longer", "both, the last shorter", "one batch"],
)  # fmt: skip
def test_only_the_sleep_of_the_last_arriver_counts(desk: Desk, batches: list[list[float]], wakes: float | None) -> None:
    flow_id, first = cohort(desk, 2)
    place = 0
    for number, delays in enumerate(batches):
        woke = desk.applied(*[arrival(flow_id, first + place + n, delay=delay) for n, delay in enumerate(delays)], at=2 + number).woke
        place += len(delays)
    row = desk.row(flow_id)
    assert (row["status"], row["todo"], row["claimable"]) == (1, 1, None if wakes else minute(3))
    assert row["wake_at"] == (minute(wakes) if wakes else None)
    assert woke == ([] if wakes else [(flow_id, 0)])


def test_an_arrival_at_a_row_that_is_not_there_is_an_error_and_not_lost(desk: Desk) -> None:
    flow_id, first = cohort(desk, 2)
    desk.view.execute("delete from dwarf.active where flow_id = %s and branch = 0", (flow_id,))
    with pytest.raises(psycopg.Error) as caught:
        desk.record(arrival(flow_id, first))
    assert caught.value.sqlstate == "DW901"
    assert desk.count("active", f"flow_id = {flow_id}") == 2
    assert desk.steps(flow_id, first) == []


def test_the_same_row_twice_in_a_batch_changes_nothing(desk: Desk) -> None:
    flow_id, first = cohort(desk, 2)
    [other] = desk.create()
    before = desk.all("select * from dwarf.active order by flow_id, branch")
    with pytest.raises(psycopg.Error):
        desk.record(arrival(flow_id, first), arrival(flow_id, first))
    with pytest.raises(psycopg.Error):
        desk.record(close(other), close(other))
    assert desk.all("select * from dwarf.active order by flow_id, branch") == before
    assert desk.count("history", "branch > 0") == desk.count("flows") == 0


# ---- parks, retries, closes ----


@pytest.mark.row("G32")
def test_an_interrupt_and_its_answer(desk: Desk) -> None:
    [flow_id] = desk.create()
    before = desk.row(flow_id)
    desk.applied(interrupt(flow_id, payload=NUL))
    parked = {"status": 4, "parked": True, "lease": 2, "owner": None, "due_at": None}
    assert differences(before, desk.row(flow_id)) == parked, "its start stays that of the first dispatch"
    [park] = desk.all("select * from dwarf.parks")
    assert present(park) == {
        "flow_id": flow_id, "branch": 0, "seq": 1, "kind": 1, "root_id": flow_id, "parked_at": minute(1), "path": [flow_id],
        "kept": '{"w":1}', "payload": NUL.decode(),
    }  # fmt: skip
    assert desk.claim_these((flow_id, 0)) == []
    assert desk.do(desk.store.resume_flow(flow_id, NUL, now=micros(minute(2))))
    assert differences(before, desk.row(flow_id)) == {**parked, "status": 1, "claimable": minute(2)}
    assert desk.do(desk.store.load_parks([(flow_id, 0)])) == [ParkRow(flow_id, 0, 1, b'{"w":1}', NUL, None, None, None, None)]
    [claimed] = desk.claim_these((flow_id, 0), at=3)
    assert (claimed.parked, claimed.lease, claimed.attempt) == (True, 3, 0)
    assert desk.row(flow_id)["started_at"] == NOON
    desk.applied(entry(flow_id, Kind.ADVANCE, lease=3, task="B", unparks=True), at=4)
    assert desk.count("parks") == 0
    assert not desk.row(flow_id)["parked"]
    [step] = desk.steps(flow_id)
    assert (step["payload"], step["started_at"], step["attempt"]) == (NUL.decode(), NOON, 0)


@pytest.mark.row("B8", "B12")
def test_a_resume_answers_the_interrupt_that_parked_first_and_then_the_lower_branch(desk: Desk) -> None:
    flow_id, first = cohort(desk, 3)
    desk.applied(interrupt(flow_id, branch=first + 2, join_branch=0), at=2)
    desk.applied(interrupt(flow_id, branch=first + 1, join_branch=0), interrupt(flow_id, branch=first, join_branch=0), at=3)
    resumed: list[int] = []
    while desk.do(desk.store.resume_flow(flow_id, b"{}", now=micros(minute(4)))):
        [branch] = {row["branch"] for row in desk.all("select branch from dwarf.parks where answer is not null")} - set(resumed)
        resumed.append(branch)
    assert resumed == [first + 2, first, first + 1]
    assert not desk.do(desk.store.resume_flow(flow_id, b"{}"))


@pytest.mark.parametrize("other", ["closed", "running", "unknown"])
def test_there_is_nothing_to_resume(desk: Desk, other: str) -> None:
    [flow_id] = desk.create()
    if other == "closed":
        desk.applied(interrupt(flow_id))
        desk.do(desk.store.terminate_flow(flow_id, ""))
    assert desk.do(desk.store.resume_flow(1 if other == "unknown" else flow_id, b"{}")) is False


@pytest.mark.row("E4", "E19", "E13", "M5", "G32")
def test_a_child_and_its_end(desk: Desk) -> None:
    [flow_id] = desk.create(fairness_keys="k", weights=2.0, baggage=b'{"b":1}', tenants="t", priorities=1, delete_on_completion=True)
    before = desk.row(flow_id)
    [child] = desk.applied(call(desk, flow_id, kept=b'{"w":1}')).children
    assert child is not None
    assert differences(before, desk.row(flow_id)) == {"status": 5, "parked": True, "lease": 2, "owner": None, "due_at": None}
    flow = present(desk.flow(child))
    assert flow.pop("created_at") == minute(1)
    assert flow == {
        "flow_id": child, "root_id": flow_id, "status": 1, "cancels": 0, "nesting": 1, "priority": 1, "delete_on_completion": False,
        "graph_id": desk.graph_id, "budget_ms": BUDGET_MS, "day": before["day"], "weight": 2.0, "thread_id": child,
        "caller_flow": flow_id, "caller_branch": 0, "caller_seq": 1, "token": "c" * 16, "workflow": "kid", "fairness_key": "k",
        "tenant": "t", "path": [flow_id], "baggage": '{"b":1}', "input": '{"k":1}',
    }  # fmt: skip
    row = desk.row(child)
    assert (row["task"], row["depth"], row["half"], row["claimable"], row["fairness_key"]) == ("C", 2, before["half"], minute(1), "k")
    [park] = desk.all("select kind, child_id, child_day, path, kept from dwarf.parks")
    assert park == {"kind": 2, "child_id": child, "child_day": before["day"], "path": [flow_id], "kept": '{"w":1}'}

    desk.claim_these((child, 0), at=2)
    end = close(child, root=flow_id, caller=(flow_id, 0), final_state=NUL)
    assert desk.applied(end, at=3).woke == [(flow_id, 0)]
    assert differences(before, desk.row(flow_id)) == {
        "status": 1, "parked": True, "lease": 2, "owner": None, "due_at": None, "claimable": minute(3)
    }  # fmt: skip
    assert desk.do(desk.store.load_parks([(flow_id, 0)])) == [ParkRow(flow_id, 0, 2, b'{"w":1}', None, child, 6, None, NUL)]
    assert desk.count("doomed") == 0, "only a root is deleted on completion"
    [claimed] = desk.claim_these((flow_id, 0), at=4)
    assert (claimed.todo, claimed.lease, claimed.attempt) == (0, 3, 0)
    assert desk.row(flow_id)["started_at"] == NOON
    desk.applied(close(flow_id, lease=3, unparks=True), at=5)
    [step] = desk.steps(flow_id)
    assert step["child_id"] == child
    assert desk.all("select flow_id, due_at, hidden_at from dwarf.doomed") == [
        {"flow_id": flow_id, "due_at": minute(6), "hidden_at": minute(5)}
    ]  # fmt: skip


def test_children_of_children(desk: Desk) -> None:
    [root] = desk.create()
    [child] = desk.applied(call(desk, root)).children
    assert child is not None
    desk.claim_these((child, 0))
    [grandchild] = desk.applied(call(desk, child, root=root)).children
    assert grandchild is not None
    flow = desk.flow(grandchild)
    assert (flow["root_id"], flow["caller_flow"], flow["nesting"], flow["path"]) == (root, child, 2, [root, child])
    [claimed] = desk.claim_these((grandchild, 0))
    assert (claimed.root_id, claimed.caller_flow, claimed.caller_branch, claimed.depth) == (root, child, 0, 3)
    desk.applied(interrupt(grandchild, root=root))
    assert [row["path"] for row in desk.all("select path from dwarf.parks where kind = 1")] == [[root, child, grandchild]]


@pytest.mark.parametrize(("status", "todo", "error"), [(FAILED, 0, "bad"), (CANCELLED, 3, None)])
def test_a_child_that_does_not_complete(desk: Desk, status: StepStatus, todo: int, error: str | None) -> None:
    [flow_id] = desk.create()
    [child] = desk.applied(call(desk, flow_id)).children
    assert child is not None
    if status is CANCELLED:
        desk.do(desk.store.cancel_flow(flow_id, "stop", now=micros(minute(1))))
    [claimed] = desk.claim_these((child, 0))
    ended = close(child, root=flow_id, caller=(flow_id, 0), lease=claimed.lease, status=status, error="bad")
    assert desk.applied(ended).woke == [(flow_id, 0)]
    assert desk.row(flow_id)["todo"] == todo
    flow = desk.flow(child, "flows")
    assert (flow["status"], flow["error"], flow["reason"]) == (STATUS_CODES[status], error, "stop" if status is CANCELLED else None)
    [park] = desk.do(desk.store.load_parks([(flow_id, 0)]))
    assert (park.child_status, park.child_error) == (STATUS_CODES[status], error or "stop")


@pytest.mark.row("G32", "G31", "C5")
@pytest.mark.parametrize("kept", [b'{"w":1}', None])
@pytest.mark.parametrize("delay", [0.0, 3600.0])
def test_a_retry(desk: Desk, kept: bytes | None, delay: float) -> None:
    [flow_id] = desk.create()
    before = desk.row(flow_id)
    desk.applied(retry(flow_id, kept=kept, delay=delay))
    waits = {"wake_at": minute(61)} if delay else {"claimable": minute(1)}
    changed = {"status": 1, "lease": 2, "owner": None, "due_at": None, "attempt": 1, **waits}
    assert differences(before, desk.row(flow_id)) == (changed | {"parked": True} if kept else changed)
    assert desk.all("select kind, kept from dwarf.parks") == ([{"kind": 0, "kept": '{"w":1}'}] if kept else [])
    assert desk.steps(flow_id) == []
    assert desk.do(desk.store.wake(1, now=micros(minute(61)))) == (1 if delay else 0)
    [claimed] = desk.claim_these((flow_id, 0), at=61)
    assert (claimed.attempt, claimed.lease, claimed.parked) == (1, 3, kept is not None)
    assert desk.row(flow_id)["started_at"] == NOON
    desk.applied(retry(flow_id, lease=3, kept=b'{"w":2}', unparks=kept is not None), at=62)
    assert desk.all("select kept from dwarf.parks") == [{"kept": '{"w":2}'}], "one park a step, the latest"
    [claimed] = desk.claim_these((flow_id, 0), at=63)
    desk.applied(entry(flow_id, Kind.ADVANCE, lease=claimed.lease, task="B", unparks=True), at=64)
    row = desk.row(flow_id)
    assert (row["attempt"], row["deaths"], row["parked"], row["started_at"]) == (0, 0, False, None)
    assert [step["attempt"] for step in desk.steps(flow_id)] == [2]
    assert desk.count("parks") == 0


def test_a_step_that_is_given_back_is_as_it_was(desk: Desk) -> None:
    [flow_id] = desk.create(claimed=False)
    before = desk.row(flow_id)
    [claimed] = desk.claim_these((flow_id, 0), at=2)
    desk.applied(entry(flow_id, Kind.NONE, status=PENDING, lease=claimed.lease), at=3)
    assert differences(before, desk.row(flow_id)) == {"lease": 1}, "its place in the queue too"
    assert desk.steps(flow_id) == []


@pytest.mark.parametrize(
    ("status", "error", "reason"), [(COMPLETED, None, None), (FAILED, "bad", None), (CANCELLED, None, "stop")], ids=["completed", "failed", "cancelled"]
)  # fmt: skip
def test_a_close(desk: Desk, status: StepStatus, error: str | None, reason: str | None) -> None:
    [flow_id] = desk.create(delete_on_completion=True, tenants="t", baggage=b'{"b":1}')
    flow = desk.flow(flow_id)
    lease = 1
    if reason:
        desk.do(desk.store.cancel_flow(flow_id, reason, now=micros(NOON)))
        lease = desk.claim_these((flow_id, 0))[0].lease
    desk.applied(close(flow_id, status=status, error="bad" if status is not COMPLETED else "", final_state=NUL, lease=lease))
    assert desk.count("live") == desk.count("active") == 0
    ended = present(desk.flow(flow_id, "flows"))
    same = {name: value for name, value in present(flow).items() if name not in ("status", "cancels")}
    assert ended == same | {"status": STATUS_CODES[status], "task": "A", "ended_at": minute(1), "final_state": NUL.decode()} | (
        {"error": error} if error else {}
    ) | ({"reason": reason} if reason else {})
    assert desk.count("doomed") == (status is COMPLETED)
    [step] = desk.steps(flow_id)
    assert (step["status"], step["ended_at"]) == (STATUS_CODES[status], minute(1))


@ODD
def test_documents_come_back_byte_for_byte(desk: Desk, document: bytes) -> None:
    [linear] = desk.create(inputs=document, baggage=document)
    day = desk.row(linear)["day"]
    assert desk.do(desk.store.load_documents([(linear, 0, 0, day)])) == [DocumentRow(linear, 0, 0, document)]
    desk.applied(entry(linear, Kind.ADVANCE, task="B", changes=document, delta=document))
    [claimed] = desk.claim_these((linear, 0))
    assert (claimed.delta, claimed.input, claimed.baggage) == (document, document, document)
    assert desk.do(desk.store.load_changes([(linear, 0, 0, 2, day)])) == [ChangesRow(linear, 0, 1, document)]

    flow_id, first = cohort(desk, 1, snapshot=document, changes=document)
    assert desk.do(desk.store.load_documents([(flow_id, 0, 1, day)])) == [DocumentRow(flow_id, 0, 1, document)]
    desk.applied(retry(flow_id, branch=first, kept=document, join_branch=0))
    desk.claim_these((flow_id, first))
    parked = interrupt(flow_id, branch=first, lease=3, kept=document, payload=document, join_branch=0, unparks=True)
    desk.applied(parked)
    desk.do(desk.store.resume_flow(flow_id, document))
    [park] = desk.do(desk.store.load_parks([(flow_id, first)]))
    assert (park.kept, park.answer) == (document, document)
    [claimed] = desk.claim_these((flow_id, first))
    desk.applied(arrival(flow_id, first, lease=claimed.lease, changes=b"{}", contribution=document, unparks=True))
    assert desk.do(desk.store.load_members(flow_id, first, 1, day)) == [MemberRow(0, 1, 6, document, None)]
    [claimed] = desk.claim_these((flow_id, 0))
    assert claimed.input is None, "it stands on a document that is loaded apart"
    desk.applied(close(flow_id, seq=2, lease=claimed.lease, joining=True, final_state=document))
    assert desk.flow(flow_id, "flows")["final_state"] == document.decode()


@pytest.mark.parametrize("value", [b"{", b'{"a":\0}', b'"\xff"'], ids=["cut", "a bare NUL", "no UTF-8"])
def test_what_is_no_json_is_refused_with_the_whole_batch(desk: Desk, value: bytes) -> None:
    good, bad = desk.create(2)
    with pytest.raises(psycopg.DataError):
        desk.record(close(good), close(bad, changes=value))
    assert desk.count("live") == 2
    desk.batch -= 1
    desk.applied(close(good), close(bad))
    assert desk.count("flows") == 2, "the number of a batch that failed is free"


def test_an_empty_batch_takes_a_number_and_nothing_else(desk: Desk) -> None:
    assert desk.record() == desk.record()
    assert desk.all("select batch, missed from dwarf.lanes") == [{"batch": 2, "missed": None}]


def test_a_batch_of_everything_at_once(desk: Desk) -> None:
    """Linear and other records of many flows: the ordinals of what did not apply count them in the order of the batch."""
    flow_id, first = cohort(desk, 3)
    a, b, c, d, e, f = desk.create(6)
    entries = [
        entry(a, Kind.ADVANCE, task="B"), close(b), entry(c, Kind.ADVANCE, task="B", lease=9), fan_out(d, [NewBranch(0, "W")], first_branch=9 << 20),
        interrupt(e), call(desk, f), arrival(flow_id, first), arrival(flow_id, first + 1, lease=9), retry(flow_id, branch=first + 2, join_branch=0),
    ]  # fmt: skip
    batch = lay_out(entries)
    recorded = desk.record(*entries)
    assert {(each.flow_id, each.record.branch) for each in batch.missed(recorded.missed)} == {(c, 0), (flow_id, first + 1)}
    assert desk.do(desk.store.open_lane(desk.session, 0)) == Lane(2, desk.batch, recorded.missed)


# ---- verbs ----


@pytest.mark.row("C18", "C24", "C29")
def test_what_a_cancellation_makes_of_every_kind_of_row(desk: Desk) -> None:
    flow_id, first = cohort(desk, 5)
    running, asked, called, asleep, pending = range(first, first + 5)
    desk.applied(interrupt(flow_id, branch=asked, join_branch=0), at=2)
    [child] = desk.applied(call(desk, flow_id, branch=called, join_branch=0), at=2).children
    assert child is not None
    desk.applied(retry(flow_id, branch=asleep, delay=3600, join_branch=0, kept=b"{}"), at=2)
    desk.applied(entry(flow_id, Kind.NONE, status=PENDING, branch=pending, join_branch=0), at=2)
    before = {row["branch"]: row for row in desk.all("select * from dwarf.active where flow_id = %s", flow_id)}
    leaf = desk.row(child)
    assert desk.do(desk.store.cancel_flow(flow_id, "stop", now=micros(minute(5))))
    changed = {branch: differences(row, desk.row(flow_id, branch)) for branch, row in before.items()}
    deliver = {"todo": 3, "claimable": minute(5)}
    assert changed == {
        0: {}, called: {},
        running: {**deliver, "lease": 2, "status": 1, "owner": None, "due_at": None},
        asked: {**deliver, "lease": 3, "status": 1, "parked": False},
        asleep: {**deliver, "lease": 3, "wake_at": None, "parked": False},
        pending: {**deliver, "lease": 2},
    }  # fmt: skip
    assert differences(leaf, desk.row(child)) == {**deliver, "lease": 1}
    assert [row["branch"] for row in desk.all("select branch from dwarf.parks")] == [called]
    assert [(row["cancels"], row["reason"]) for row in desk.all("select cancels, reason from dwarf.live")] == [(1, "stop")] * 2
    assert desk.do(desk.store.take_signals(desk.session, 10)) == [SignalRow(flow_id, running, 1, 1, 1)]
    [claimed] = desk.claim_these((flow_id, running), at=6)
    assert (claimed.todo, claimed.lease, claimed.reason) == (3, 3, "stop")
    assert desk.do(desk.store.cancel_flow(flow_id, "again", now=micros(minute(7)))), "a second one reaches what is in progress now"
    assert desk.row(flow_id, running)["lease"] == 4
    assert {row["reason"] for row in desk.all("select reason from dwarf.live")} == {"again"}


@pytest.mark.row("C1", "C3")
def test_what_a_termination_leaves(desk: Desk) -> None:
    flow_id, first = cohort(desk, 2)
    [child] = desk.applied(call(desk, flow_id, branch=first, join_branch=0), at=2).children
    assert child is not None
    assert desk.do(desk.store.terminate_flow(flow_id, "enough", now=micros(minute(5))))
    assert desk.count("live") == desk.count("active") == desk.count("parks") == 0
    for ended in (flow_id, child):
        flow = desk.flow(ended, "flows")
        assert (flow["status"], flow["reason"], flow["ended_at"], flow["final_state"], flow["error"]) == (
            9,
            "enough",
            minute(5),
            None,
            None,
        )
    assert desk.flow(flow_id, "flows")["task"] == "J"
    [_, trunk], [caller], [other], [leaf] = (
        desk.steps(flow_id),
        desk.steps(flow_id, first),
        desk.steps(flow_id, first + 1),
        desk.steps(child),
    )
    assert [step["status"] for step in (trunk, caller, other, leaf)] == [9] * 4
    assert (trunk["task"], trunk["seq"], trunk["via"]) == ("J", 2, Via.RESOLVE)
    assert (caller["child_id"], caller["parent_branch"], caller["parent_seq"], caller["ordinal"]) == (child, 0, 1, 0)
    assert (other["owner"], other["started_at"], other["ordinal"]) == (desk.session, minute(1), 1)
    assert desk.do(desk.store.take_signals(desk.session, 10)) == [SignalRow(flow_id, first + 1, 1, 1, 2)]
    assert desk.do(desk.store.terminate_flow(flow_id, "again")) is False
    assert desk.do(desk.store.cancel_flow(flow_id, "again")) is False
    assert desk.flow(flow_id, "flows")["reason"] == "enough"


@pytest.mark.parametrize("verb", ["terminate_flow", "cancel_flow"])
def test_verbs_are_for_open_roots(desk: Desk, verb: str) -> None:
    [flow_id] = desk.create()
    [child] = desk.applied(call(desk, flow_id)).children
    assert child is not None
    for other in (child, 1):
        assert desk.do(getattr(desk.store, verb)(other, "")) is False
    assert desk.count("live") == 2
    assert desk.row(child)["todo"] == 0


# ---- claims ----


@pytest.mark.row("G31", "G32", "F11")
def test_a_claim_takes_the_oldest_of_a_key_up_to_its_quota(desk: Desk) -> None:
    late, early = desk.create(2, claimed=False, at=5), desk.create(3, claimed=False, at=1)
    desk.create(1, claimed=False, at=0, fairness_keys="other")
    desk.create(1, claimed=False, at=0, priorities=2)
    [asleep] = desk.create(1, claimed=False, at=0, start_at=micros(minute(90)))
    half = {flow_id: desk.row(flow_id)["half"] for flow_id in [*late, *early, asleep]}
    for each in (0, 1):
        due = [flow_id for flow_id in [*early, *late] if half[flow_id] == each]
        claimed = desk.do(desk.store.claim(desk.session, {"": 2}, half=each, priority=3, now=micros(minute(7))))
        assert {row.flow_id for row in claimed} == set(due[:2])
        rest = desk.do(desk.store.claim(desk.session, {"": 100, "none": 5}, half=each, priority=3, now=micros(minute(8))))
        assert {row.flow_id for row in rest} == set(due[2:])
    row = desk.row(early[0])
    assert (row["status"], row["owner"], row["lease"], row["claimable"], row["attempt"]) == (2, desk.session, 1, None, 0)
    assert row["started_at"] in (minute(7), minute(8))
    assert row["due_at"] == row["started_at"] + DEADLINE
    assert desk.claim() == []


@pytest.mark.parametrize("quotas", [{}, {"": 0}, {"none": 9}])
def test_a_claim_of_nothing(desk: Desk, quotas: dict[str, int]) -> None:
    desk.create(4, claimed=False)
    assert [desk.do(desk.store.claim(desk.session, quotas, half=half, priority=3)) for half in (0, 1)] == [[], []]
    assert desk.claim_these() == []


@pytest.mark.row("G32")
def test_a_claim_behind_a_cursor_leaves_what_waits_for_longer(desk: Desk) -> None:
    made = {(key, at): desk.create(1, claimed=False, at=at, fairness_keys=key)[0] for key in "kl" for at in range(3)}
    claim = desk.store.claim
    taken = {
        row.flow_id
        for half in (0, 1)
        for row in desk.do(claim(desk.session, {"k": 9, "l": 9}, half=half, priority=3, since={"k": micros(minute(1))}))
    }
    assert taken == {flow_id for (key, at), flow_id in made.items() if key == "l" or at >= 1}, "what became due at the cursor is behind it"
    assert [row.flow_id for row in desk.claim(key="k")] == [made["k", 0]]


def test_what_a_claim_returns(desk: Desk) -> None:
    [flow_id] = desk.create(claimed=False, inputs=b'{"i":1}', baggage=b'{"b":1}', fairness_keys="k")
    flow, row = desk.flow(flow_id), desk.row(flow_id)
    [claimed] = desk.claim_these((flow_id, 0), at=3)
    mine = {name: getattr(claimed, name) for name in claimed.__struct_fields__}
    assert mine == {
        "flow_id": flow_id, "branch": 0, "seq": 1, "lease": 1, "task": "A", "todo": 0, "attempt": 0, "depth": 1, "created_at": micros(NOON),
        "due_at": micros(minute(3) + DEADLINE), "parked": False, "base_branch": 0, "base_seq": 0, "delta": None, "delta_seq": 0,
        "join_branch": None, "ordinal": None, "size": None, "expanded": None, "last_ordinal": None, "fairness_key": "k", "priority": 3,
        "day": row["day"], "root_id": flow_id, "caller_flow": None, "caller_branch": None, "token": flow["token"],
        "graph_id": desk.graph_id, "workflow": "w", "budget_ms": BUDGET_MS, "flow_created_at": micros(NOON), "nesting": 0,
        "reason": None, "baggage": b'{"b":1}', "input": b'{"i":1}',
    }  # fmt: skip


def test_named_rows_are_claimed_where_they_can_be(desk: Desk) -> None:
    flow_id, first = cohort(desk, 2, claimed=False)
    assert flatten(desk.claim_these((flow_id, first), (flow_id, 0), (flow_id, 7), (7, 0))) == [(flow_id, first)]
    assert flatten(desk.claim_these((flow_id, first), (flow_id, first + 1))) == [(flow_id, first + 1)]


@pytest.mark.row("G31")
def test_the_lease_rises_with_every_claim_and_start_and_no_claim_is_ever_like_another(desk: Desk) -> None:
    [flow_id] = desk.create(claimed=False)
    seen = set()

    def run() -> int:
        row = desk.row(flow_id)
        if row["owner"] is None:
            [claimed] = desk.claim_these((flow_id, 0))
            assert claimed.lease == row["lease"] + 1
            row = desk.row(flow_id)
        assert (row["seq"], row["lease"]) not in seen
        seen.add((row["seq"], row["lease"]))
        return int(row["lease"])

    def sweep(_lease: int) -> None:
        desk.do(desk.store.sweep(desk.session, life_ms=LIFE_MS, by_session=False, limit=9, now=micros(minute(600))))

    def ask_and_answer(lease: int) -> None:
        desk.applied(interrupt(flow_id, lease=lease, seq=3))
        assert desk.do(desk.store.resume_flow(flow_id, b"{}"))

    acts: list[Callable[[int], Any]] = [
        lambda lease: desk.applied(retry(flow_id, lease=lease)),
        lambda lease: desk.applied(entry(flow_id, Kind.NONE, status=PENDING, lease=lease)),
        sweep,
        lambda lease: desk.do(desk.store.release(desk.session, [(flow_id, 0, lease, True)])),
        lambda _: desk.do(desk.store.cancel_flow(flow_id, "")),
        lambda lease: desk.applied(entry(flow_id, Kind.ADVANCE, lease=lease, task="B", hot=True)),
        lambda lease: desk.applied(entry(flow_id, Kind.ADVANCE, lease=lease, task="C", seq=2, hot=True, via=Via.ERROR)),
        ask_and_answer,
        lambda lease: desk.applied(entry(flow_id, Kind.ADVANCE, lease=lease, task="D", seq=3, unparks=True)),
    ]
    lease = run()
    for act in acts:
        act(lease)
        lease = run()
    assert len(seen) == 1 + len(acts)


# ---- sleep, sweep, release ----


def test_sleepers_wake_in_order_and_queue_by_their_time(desk: Desk) -> None:
    assert desk.do(desk.store.next_wake()) is None
    assert desk.do(desk.store.wake(10)) == 0
    ids = [desk.create(claimed=False, start_at=micros(minute(number)))[0] for number in (30, 10, 20)]
    assert desk.do(desk.store.next_wake()) == micros(minute(10))
    assert desk.do(desk.store.wake(10, now=micros(minute(9.99)))) == 0
    assert desk.do(desk.store.wake(1, now=micros(minute(60)))) == 1
    assert desk.do(desk.store.next_wake()) == micros(minute(20))
    assert (desk.row(ids[1])["claimable"], desk.row(ids[1])["wake_at"]) == (minute(10), None)
    assert desk.do(desk.store.wake(10, now=micros(minute(20)))) == 1
    assert desk.do(desk.store.wake(0, now=micros(minute(60)))) == 0
    assert desk.row(ids[0])["wake_at"] == minute(30)


@pytest.mark.row("G31", "G32", "G2")
def test_a_sweep_by_deadline(desk: Desk) -> None:
    [flow_id] = desk.create()
    [due] = desk.create(at=-3)
    before = desk.row(due)
    sweep: dict[str, Any] = {"life_ms": LIFE_MS, "by_session": False, "limit": 10}
    assert desk.do(desk.store.sweep(99, **sweep, now=micros(minute(0)))) == [SweptRow(due, 0, desk.session, "deadline")], "anybody may"
    assert differences(before, desk.row(due)) == {
        "status": 1, "owner": None, "claimable": minute(-3), "started_at": None, "due_at": None
    }  # fmt: skip
    assert desk.do(desk.store.take_signals(desk.session, 1)) == [SignalRow(due, 0, 1, 1, 3)]
    assert desk.do(desk.store.sweep(99, **sweep, now=micros(minute(0)))) == []
    assert desk.row(flow_id)["status"] == 2
    [claimed] = desk.claim_these((due, 0), at=9)
    assert (claimed.lease, claimed.attempt, claimed.seq) == (2, 0, 1)
    assert desk.row(due)["started_at"] == minute(9), "a run after a crash starts anew"


def test_a_sweep_by_session_needs_a_judge_that_has_watched_for_a_whole_life(desk: Desk) -> None:
    """A session of 30 s: it judges once it has renewed without a gap of more than 15 s for 30 s."""
    store, judge = desk.store, desk.session
    other = desk.do(store.start_session(2, life_ms=LIFE_MS, now=micros(NOON)))
    new = NewFlows(["0" * 16] * 3, ["w"] * 3, [desk.graph_id] * 3, ["A"] * 3, [b"{}"] * 3, [3] * 3, [86_400_000] * 3)
    desk.do(store.create_flows(new, session=other, now=micros(NOON)))

    def sweep(second: int, *, limit: int = 10, by_session: bool = True) -> list[str]:
        rows = desk.do(store.sweep(judge, life_ms=LIFE_MS, by_session=by_session, limit=limit, now=micros(minute(second / 60))))
        assert {row.owner for row in rows} <= {other}
        return [row.why for row in rows]

    def renew(second: int) -> None:
        assert desk.do(store.renew_session(judge, life_ms=LIFE_MS, is_dispatcher=True, now=micros(minute(second / 60))))

    assert sweep(31) == [], "the judge itself has expired"
    renew(31)
    assert sweep(45) == [], "there was a gap"
    renew(45)
    renew(59)
    assert sweep(60) == [], "the gap is less than a life ago"
    renew(61)
    assert sweep(61, by_session=False) == []
    assert sweep(61, limit=1) == ["session"]
    assert sweep(61) == ["session"] * 2


@pytest.mark.row("G26")
def test_an_engine_that_starts_again_takes_over_from_its_own_expired_session_at_once(desk: Desk) -> None:
    store = desk.store

    def start(engine: int, second: int) -> int:
        return desk.do(store.start_session(engine, life_ms=LIFE_MS, now=micros(minute(second / 60))))

    def sweep(judge: int, second: int) -> list[int]:
        rows = desk.do(store.sweep(judge, life_ms=LIFE_MS, by_session=True, limit=9, now=micros(minute(second / 60))))
        return [row.owner for row in rows]

    crashed = start(7, 0)
    new = NewFlows(["0" * 16], ["w"], [desk.graph_id], ["A"], [b"{}"], [3], [86_400_000])
    desk.do(store.create_flows(new, session=crashed, now=micros(NOON)))
    again, another = start(7, 29), start(8, 29)
    assert sweep(again, 29) == [], "it has not expired"
    assert sweep(another, 31) == [], "nobody else has watched for long enough"
    assert sweep(again, 31) == [crashed]


def test_a_session_that_ended_in_good_order_is_swept_at_once_and_a_missing_one_after_a_life(desk: Desk) -> None:
    store, judge = desk.store, desk.session
    desk.view.execute("update dwarf.peers set steady_since = steady_since - interval '1 hour', expires_at = expires_at + interval '1 hour'")
    ended = desk.do(store.start_session(2, life_ms=LIFE_MS, now=micros(NOON)))
    owners = {ended: 1, 777: 2}
    for owner, count in owners.items():
        new = NewFlows(
            ["0" * 16] * count, ["w"] * count, [desk.graph_id] * count, ["A"] * count, [b"{}"] * count, [3] * count, [86_400_000] * count
        )
        desk.do(store.create_flows(new, session=owner, now=micros(NOON)))
    desk.do(store.end_session(ended, now=micros(minute(1))))

    def sweep(at: float) -> list[int]:
        return [row.owner for row in desk.do(store.sweep(judge, life_ms=LIFE_MS, by_session=True, limit=9, now=micros(minute(at))))]

    assert sweep(1) == [ended]
    assert [row["missing_since"] for row in desk.all("select missing_since from dwarf.peers where session = 777")] == [minute(1)]
    assert sweep(1.49) == []
    assert sweep(1.5) == [777, 777]
    desk.view.execute("delete from dwarf.peers where session = %s", (ended,))
    assert desk.do(store.renew_session(ended, life_ms=LIFE_MS, is_dispatcher=False)) is False


@pytest.mark.row("G31", "G32")
def test_a_release_is_of_running_rows_of_its_session_and_lease(desk: Desk) -> None:
    blamed, innocent, other_lease, pending = desk.create(4)
    desk.applied(entry(pending, Kind.NONE, status=PENDING))
    before = desk.row(blamed)
    places = [(blamed, 0, 1, True), (innocent, 0, 1, False), (other_lease, 0, 2, True), (pending, 0, 1, True), (7, 0, 1, True)]
    assert desk.do(desk.store.release(desk.session + 1, places)) == 0
    assert desk.do(desk.store.release(desk.session, places)) == 2
    released = {"status": 1, "owner": None, "claimable": NOON, "started_at": None, "due_at": None}
    assert differences(before, desk.row(blamed)) == {**released, "deaths": 1}
    assert [desk.row(flow_id)["deaths"] for flow_id in (innocent, other_lease, pending)] == [0, 0, 0]
    assert desk.do(desk.store.release(desk.session, [])) == 0
    desk.claim_these((blamed, 0))
    assert desk.do(desk.store.release(desk.session, [(blamed, 0, 2, True)])) == 1
    assert desk.row(blamed)["deaths"] == 2
    desk.claim_these((blamed, 0))
    desk.applied(retry(blamed, lease=3))
    assert desk.row(blamed)["deaths"] == 2, "a retry forgives nothing"
    desk.claim_these((blamed, 0))
    desk.applied(entry(blamed, Kind.ADVANCE, lease=5, task="B"))
    assert desk.row(blamed)["deaths"] == 0


# ---- what inputs stand on ----


def test_loads_of_nothing_and_of_what_is_not_there(desk: Desk) -> None:
    [flow_id] = desk.create()
    store, day = desk.store, desk.row(flow_id)["day"]
    assert desk.do(store.load_documents([])) == desk.do(store.load_documents([(flow_id, 0, 1, day), (7, 0, 0, day)])) == []
    assert desk.do(store.load_changes([])) == desk.do(store.load_changes([(flow_id, 0, 0, 9, day), (7, 0, 0, 9, 0)])) == []
    assert desk.do(store.load_sources([])) == desk.do(store.load_sources([(flow_id, 0, 1, day)])) == []
    assert desk.do(store.load_members(flow_id, 1 << 20, 9, day)) == desk.do(store.load_members(flow_id, 0, 0, day)) == []
    assert desk.do(store.load_parks([])) == desk.do(store.load_parks([(flow_id, 0)])) == []


def test_changes_between_two_steps_in_order(desk: Desk) -> None:
    [flow_id] = desk.create()
    for seq in range(1, 6):
        desk.applied(entry(flow_id, Kind.ADVANCE, seq=seq, lease=seq, task="B", changes=b'{"n":%d}' % seq, hot=True))
    day = desk.row(flow_id)["day"]
    rows = desk.do(desk.store.load_changes([(flow_id, 0, 1, 4, day), (flow_id, 0, 4, 9, day), (flow_id, 0, 2, 3, day)]))
    assert [(row.seq, row.changes) for row in rows] == [(2, b'{"n":2}'), (3, b'{"n":3}'), (5, b'{"n":5}')]


def test_the_source_and_the_members_of_a_cohort(desk: Desk) -> None:
    flow_id, first = cohort(desk, 3)
    day = desk.row(flow_id)["day"]
    assert desk.do(desk.store.load_sources([(flow_id, 0, 2, day)])) == [SourceRow(flow_id, 0, "A", first, 3)]
    desk.applied(entry(flow_id, Kind.ADVANCE, branch=first, task="V", join_branch=0, hot=True, changes=b'{"step":1}'))
    desk.applied(
        arrival(flow_id, first, seq=2, lease=2, changes=b'{"step":2}', contribution=b'{"both":1}'),
        arrival(flow_id, first + 2, status=FAILED, error="bad"),
    )
    assert desk.do(desk.store.load_members(flow_id, first, 3, day)) == [
        MemberRow(0, 2, 6, b'{"both":1}', None),
        MemberRow(2, 1, 7, b"{}", "bad"),
    ]


# ---- lanes, sessions, signals ----


def test_lanes(desk: Desk) -> None:
    open_lane = desk.store.open_lane
    assert desk.do(open_lane(desk.session, 3)) == Lane(1, 0, [])
    assert desk.do(open_lane(desk.session, 3)) == Lane(2, 0, [])
    assert desk.do(open_lane(desk.session + 1, 3)) == Lane(1, 0, [])
    assert desk.do(desk.store.record((desk.session, 9, 1, 1), lay_out([]))).state == "stale", "a lane that was never opened"
    assert desk.do(desk.store.end_lane_holder(desk.session, 3)) == 0


def test_blocks_of_branch_numbers_do_not_overlap(desk: Desk) -> None:
    blocks = [desk.do(desk.store.branch_block()) for _ in range(3)]
    assert blocks == [blocks[0] + (n << 20) for n in range(3)]
    assert blocks[0] >= 1 << 20, "the trunk is 0"


def test_signals_are_taken_once_and_the_oldest_first(desk: Desk) -> None:
    ids = desk.create(5)
    for flow_id in ids:
        desk.do(desk.store.terminate_flow(flow_id, ""))
    assert desk.do(desk.store.take_signals(desk.session + 1, 10)) == []
    taken = [{row.flow_id for row in desk.do(desk.store.take_signals(desk.session, 2))} for _ in range(4)]
    assert taken == [{*ids[:2]}, {*ids[2:4]}, {*ids[4:]}, set()]


# ---- the two record calls ----


def both_ways(flow_id: int, way: str, **parts: Any) -> Entry:
    """An advance on the linear path or off it."""
    return entry(flow_id, Kind.ADVANCE, task="B", via=Via.NORMAL if way == "linear" else Via.GOTO, **parts)


@pytest.mark.row("G16")
@pytest.mark.parametrize("way", ["linear", "general", "both"])
def test_a_batch_that_comes_again_is_answered_as_before_and_changes_nothing(desk: Desk, way: str) -> None:
    one, two, three, four = desk.create(4)
    ways = ("linear", "general") if way == "both" else (way, way)
    batch = lay_out(
        [both_ways(one, ways[0]), both_ways(two, ways[0], lease=5), both_ways(three, ways[1]), both_ways(four, ways[1], lease=5)]
    )  # fmt: skip
    assert batch.columns.keys() <= {*LINEAR_COLUMNS, "p_closing"} or way != "linear"
    place = (desk.session, 0, desk.epoch)
    first = desk.do(desk.store.record((*place, 5), batch, now=micros(minute(1))))
    assert (first.state, [each.flow_id for each in batch.missed(first.missed)]) == ("ok", [two, four])
    before = [desk.row(flow_id) for flow_id in (one, two, three, four)]
    for number, state, missed in ((5, "repeated", first.missed), (4, "repeated", [])):
        again = desk.do(desk.store.record((*place, number), batch, now=micros(minute(2))))
        assert (again.state, again.missed) == (state, missed)
    desk.do(desk.store.open_lane(desk.session, 0))
    assert desk.do(desk.store.record((*place, 6), batch)).state == "stale"
    assert desk.do(desk.store.record((desk.session, 8, 1, 1), batch)).state == "stale", "a lane that was never opened"
    assert [desk.row(flow_id) for flow_id in (one, two, three, four)] == before
    assert desk.count("history") == 2
    last = desk.do(desk.store.record((desk.session, 0, desk.epoch + 1, 6), lay_out([both_ways(one, way, seq=9)])))
    assert (last.state, last.missed) == ("ok", [1])


@pytest.mark.parametrize("beside", [False, True])
def test_a_linear_flow_that_closes_alone_or_beside_other_records(desk: Desk, beside: bool) -> None:
    kept, short, other = desk.create(1) + desk.create(1, delete_on_completion=True) + desk.create(1)
    entries = [close(kept), close(short), *([both_ways(other, "general")] if beside else [])]
    desk.applied(*entries)
    for flow_id in (kept, short):
        assert (desk.flow(flow_id, "flows")["status"], desk.flow(flow_id, "flows")["final_state"]) == (6, '{"end":1}')
    assert desk.all("select flow_id, due_at, hidden_at from dwarf.doomed") == [
        {"flow_id": short, "due_at": minute(2), "hidden_at": minute(1)}
    ]
    assert desk.count("live") == desk.count("active") == 1


@pytest.mark.parametrize("way", ["linear", "general"])
@pytest.mark.parametrize("hot", [False, True])
def test_a_batch_of_records_that_leave_columns_empty(desk: Desk, way: str, hot: bool) -> None:
    """What nothing of a batch says is not sent: the rows are as if it had been said to be nothing."""
    flows = desk.create(2)
    entries = [both_ways(flow_id, way, hot=hot) for flow_id in flows]
    assert {"s_delta", "s_error", "s_final", "f_state", "h_rec", "s_from"}.isdisjoint(lay_out(entries).columns)
    desk.applied(*entries)
    for flow_id in flows:
        row = desk.row(flow_id)
        assert (row["seq"], row["delta"], row["delta_seq"], row["base_seq"], row["parked"]) == (2, None, 0, 0, False)


def test_a_retry_that_keeps_nothing_is_not_parked(desk: Desk) -> None:
    [flow_id] = desk.create()
    desk.applied(retry(flow_id))
    assert (desk.row(flow_id)["parked"], desk.row(flow_id)["attempt"], desk.count("parks")) == (False, 1, 0)
