"""Laying records out as the columns of the record call."""

from __future__ import annotations

from typing import Any

import pytest

from dwarf.batch import ChildStart, Entry, is_linear, lay_out, milliseconds
from dwarf.record import Child, Kind, NewBranch, Record, Via
from dwarf.status import StepStatus


def entry(kind: Kind, flow: int = 1, branch: int = 0, **parts: Any) -> Entry:
    about = {name: parts.pop(name) for name in list(parts) if name in Entry.__struct_fields__}
    return Entry(flow, about.pop("root_id", flow), Record(kind=kind, branch=branch, seq=parts.pop("seq", 1), lease=2, **parts), **about)


def test_the_linear_path_comes_first_and_both_paths_are_sorted() -> None:
    entries = [
        entry(Kind.RETRY, 3, status=StepStatus.PENDING, kept=b'{"a":1}', delay=0.0001),
        entry(Kind.CLOSE, 9, final_state=b'{"z":1}', changes=b'{"n":2}'),
        entry(Kind.ADVANCE, 5, task="B", delta=b'{"net":{}}', hot=True),
        entry(Kind.ADVANCE, 2, task="C", delta=b'{"net":{}}'),
        entry(Kind.ADVANCE, 1, task="D", goto="D", via=Via.GOTO),
    ]
    batch = lay_out(entries)
    assert [e.flow_id for e in batch.entries] == [2, 5, 9, 1, 3]
    columns = batch.columns
    assert (columns["f_flow"], columns["f_kind"], columns["f_task"]) == ([2, 5, 9], [1, 9, 6], ["C", "B", ""])
    assert columns["f_state"] == [b'{"net":{}}', None, b'{"z":1}'], "a successor that starts at once needs no stored delta"
    assert (columns["s_flow"], columns["s_kind"], columns["s_status"], columns["s_via"]) == ([1, 3], [1, 5], [6, 1], [1, 0])
    assert (columns["s_changes"], columns["s_kept"], columns["s_delay_ms"]) == ([b"{}", None], [None, b'{"a":1}'], [None, 1])
    assert columns["p_closing"] == [9]
    assert not {"c_rec", "k_rec", "j_flow", "p_creators"} & columns.keys()
    assert [e.flow_id for e in batch.missed([1, 4])] == [2, 1]


def test_what_is_not_linear() -> None:
    assert is_linear(entry(Kind.ADVANCE))
    assert is_linear(entry(Kind.CLOSE))
    for odd in (
        entry(Kind.ADVANCE, branch=7), entry(Kind.ADVANCE, root_id=4), entry(Kind.ADVANCE, delay=1.0), entry(Kind.ADVANCE, snapshot=b"{}"),
        entry(Kind.ADVANCE, joining=True), entry(Kind.ADVANCE, unparks=True), entry(Kind.ADVANCE, via=Via.ERROR), entry(Kind.RETRY),
        entry(Kind.CLOSE, status=StepStatus.FAILED), entry(Kind.CLOSE, status=StepStatus.CANCELLED), entry(Kind.FAN_OUT), entry(Kind.NONE),
    ):  # fmt: skip
        assert not is_linear(odd), odd


def test_a_delta_is_stored_where_nobody_keeps_it_in_memory() -> None:
    for hot, always, stored in ((False, False, b"d"), (True, False, None), (True, True, b"d")):
        columns = lay_out([entry(Kind.ADVANCE, branch=3, join_branch=0, hot=hot, delta=b"d", delta_always=always)]).columns
        assert columns.get("s_delta") == (None if stored is None else [stored]), "a column of nothing is left out"


def test_branches_children_and_locks() -> None:
    fan_out = entry(
        Kind.FAN_OUT, 4, seq=3, task="J", size=5, expanded=2, first_branch=100, snapshot=b"{}", hot_branches=frozenset([1]),
        branches=[NewBranch(0, "W", b"{}"), NewBranch(1, "V")],
    )  # fmt: skip
    parked = entry(Kind.PARK, 8, root_id=6, status=StepStatus.PARKED, child=ChildStart("t" * 16, 77, "First"), kept=b"{}")
    parked.record.child = Child("child", b'{"i":1}')
    arrives = [entry(Kind.ARRIVE, 4, branch, join_branch=9) for branch in (12, 11)]
    closing = entry(Kind.CLOSE, 7, root_id=2, caller=(2, 5))
    fan_in = entry(Kind.CLOSE, 3, joining=True)
    batch = lay_out([*arrives, closing, parked, fan_in, fan_out])
    columns = batch.columns
    places = [(e.flow_id, e.record.branch) for e in batch.entries]
    assert places == [(3, 0), (4, 0), (4, 11), (4, 12), (7, 0), (8, 0)]
    assert (columns["c_rec"], columns["c_ordinal"], columns["c_task"]) == ([2, 2], [0, 1], ["W", "V"])
    assert (columns["c_delta"], columns["c_hot"]) == ([b"{}", None], [False, True])
    assert (columns["s_first"][1], columns["s_size"][1], columns["s_count"][1]) == (100, 5, 2)
    assert (columns["k_rec"], columns["k_workflow"], columns["k_input"]) == ([6], ["child"], [b'{"i":1}'])
    assert (columns["k_token"], columns["k_graph_id"], columns["k_task"]) == (["t" * 16], [77], ["First"])
    assert (columns["p_creators"], columns["p_closing"]) == ([4, 6], [3, 7])
    assert list(zip(columns["j_flow"], columns["j_branch"], strict=True)) == [(2, 5), (3, 0), (4, 9)]


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 0), (0.0001, 1), (1.5, 1500), (2.0005, 2001), (-3.0, 0)])
def test_delays_are_never_cut_short(seconds: float, expected: int) -> None:
    assert milliseconds(seconds) == expected


def test_nothing_to_record() -> None:
    assert lay_out([]).columns == {}
