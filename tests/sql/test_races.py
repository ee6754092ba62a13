"""Two sessions that meet at the same rows, one of them stopped at each of its locks in turn, in both orders.

Every scene is a situation in which several calls are possible. Of any two of them, whatever the interleaving, the answers and
all that is stored are those of one call after the other; nobody deadlocks; who needs nothing that is held goes ahead; and
the invariants hold. What either order brings is written down in `OUTCOMES`, scene by scene:

    first, second -> answers | how the flows stand | finished steps | live rows

An answer of a record is ok, then + for a record that applied and - for one that did not, and a ! for each row it woke.
DWARF_TEST_HEAVY=1 lets every call of a scene meet every other one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import psycopg
import pytest

from dwarf.batch import lay_out
from dwarf.store import Lane, Recorded
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.scenes import SCENES, TASKS, graphs
from tests.sql.stops import STAGE_LANE, Act, Race, Scene, Stage

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
OUTCOMES = """
due
  claim, claim too -> ['A'] [] | 0 open |  | 1 A running
  claim too, claim -> ['A'] [] | 0 open |  | 1 A running
  claim, terminate -> ['A'] True | 0 terminated | 1 A terminated |
  terminate, claim -> True [] | 0 terminated | 1 A terminated |
  claim, cancel -> ['A'] True | 0 open |  | 1 A pending to be cancelled
  cancel, claim -> True ['A'] | 0 open |  | 1 A running to be cancelled
advancing
  advance, terminate -> ok+ True | 0 terminated | 1 A completed, 1 B terminated |
  terminate, advance -> True ok- | 0 terminated | 1 A terminated |
  advance, cancel -> ok+ True | 0 open | 1 A completed | 1 B pending to be cancelled
  cancel, advance -> True ok- | 0 open |  | 1 A pending to be cancelled
  advance, claim -> ok+ ['B'] | 0 open | 1 A completed | 1 B running
  claim, advance -> [] ok+ | 0 open | 1 A completed | 1 B pending
advancing_hot
  advance, terminate -> ok+ True | 0 terminated | 1 A completed, 1 B terminated |
  terminate, advance -> True ok- | 0 terminated | 1 A terminated |
root_closing
  close, terminate -> ok+ False | 0 completed | 1 A completed, 1 B completed |
  terminate, close -> True ok- | 0 terminated | 1 A completed, 1 B terminated |
  close, cancel -> ok+ False | 0 completed | 1 A completed, 1 B completed |
  cancel, close -> True ok- | 0 open | 1 A completed | 1 B pending to be cancelled
  close, delete -> ok+ deleted | 0 completed | 1 A completed, 1 B completed |
  delete, close -> running ok+ | 0 completed | 1 A completed, 1 B completed |
root_failing
  close, terminate -> ok+ False | 0 failed | 1 S failed |
  terminate, close -> True ok- | 0 terminated | 1 S terminated |
  close, cancel -> ok+ False | 0 failed | 1 S failed |
  cancel, close -> True ok- | 0 open |  | 1 S pending to be cancelled
retried
  retry, terminate -> ok+ True | 0 terminated | 1 R terminated |
  terminate, retry -> True ok- | 0 terminated | 1 R terminated |
  retry, cancel -> ok+ True | 0 open |  | 1 R pending to be cancelled
  cancel, retry -> True ok- | 0 open |  | 1 R pending to be cancelled
asleep
  wake, terminate -> 1 True | 0 terminated | 1 B terminated, 1 Z completed |
  terminate, wake -> True 0 | 0 terminated | 1 B terminated, 1 Z completed |
  wake, cancel -> 1 True | 0 open | 1 Z completed | 1 B pending to be cancelled
  cancel, wake -> True 0 | 0 open | 1 Z completed | 1 B pending to be cancelled
fan_out
  fan out, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 S completed, 2 W terminated |
  terminate, fan out -> True ok- | 0 terminated | 1 S terminated |
  fan out, cancel -> ok+ True | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled
  cancel, fan out -> True ok- | 0 open |  | 1 S pending to be cancelled
  fan out, claim -> ok+ ['W', 'W'] | 0 open | 1 S completed | 1 J joining, 2 W running
  claim, fan out -> [] ok+ | 0 open | 1 S completed | 1 J joining, 2 W pending
  terminate, cancel -> True False | 0 terminated | 1 S terminated |
  cancel, terminate -> True True | 0 terminated | 1 S terminated |
fan_out_empty
  advance, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 S completed |
  terminate, advance -> True ok- | 0 terminated | 1 S terminated |
expanding
  expand, arrive -> ok+ ok+ | 0 open | 1 S completed, 1 W completed | 1 J pending to expand, 3 W pending
  arrive, expand -> ok+ ok+ | 0 open | 1 S completed, 1 W completed | 1 J pending to expand, 3 W pending
  expand, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 S completed, 4 W terminated |
  terminate, expand -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 2 W terminated |
  expand, cancel -> ok+ True | 0 open | 1 S completed | 1 J joining, 4 W pending to be cancelled
  cancel, expand -> True ok- | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled
  arrive, cancel -> ok+ True | 0 open | 1 S completed, 1 W completed | 1 J joining, 1 W pending to be cancelled
  cancel, arrive -> True ok- | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled
expanding_last
  expand, cancel -> ok+ True | 0 open | 1 S completed, 2 W completed | 1 J joining, 1 W pending to be cancelled
  cancel, expand -> True ok- | 0 open | 1 S completed, 2 W completed | 1 J pending to resolve
last_two
  arrive, arrive too -> ok+ ok+! | 0 open | 1 S completed, 2 T completed, 2 W completed | 1 J joining, 1 K joining, 1 K pending to fold, 2 W pending
  arrive too, arrive -> ok+ ok+! | 0 open | 1 S completed, 2 T completed, 2 W completed | 1 J joining, 1 K joining, 1 K pending to fold, 2 W pending
  arrive, terminate -> ok+ True | 0 terminated | 1 J terminated, 2 K terminated, 1 S completed, 2 T completed, 1 W completed, 3 W terminated |
  terminate, arrive -> True ok- | 0 terminated | 1 J terminated, 2 K terminated, 1 S completed, 2 T completed, 4 W terminated |
  arrive, cancel -> ok+ True | 0 open | 1 S completed, 2 T completed, 1 W completed | 1 J joining, 2 K joining, 3 W pending to be cancelled
  cancel, arrive -> True ok- | 0 open | 1 S completed, 2 T completed | 1 J joining, 2 K joining, 4 W pending to be cancelled
last_two_outer
  arrive, arrive too -> ok+ ok+! | 0 open | 2 K completed, 1 S completed, 2 T completed, 4 W completed | 1 J pending to fold
  arrive too, arrive -> ok+ ok+! | 0 open | 2 K completed, 1 S completed, 2 T completed, 4 W completed | 1 J pending to fold
  arrive, terminate -> ok+ True | 0 terminated | 1 J terminated, 1 K completed, 1 K terminated, 1 S completed, 2 T completed, 4 W completed |
  terminate, arrive -> True ok- | 0 terminated | 1 J terminated, 2 K terminated, 1 S completed, 2 T completed, 4 W completed |
  arrive, cancel -> ok+ True | 0 open | 1 K completed, 1 S completed, 2 T completed, 4 W completed | 1 J joining, 1 K pending to be cancelled
  cancel, arrive -> True ok- | 0 open | 1 S completed, 2 T completed, 4 W completed | 1 J joining, 2 K pending to be cancelled
one_fails
  fail, arrive -> ok+ ok+! | 0 open | 1 S completed, 1 W completed, 1 W failed | 1 J pending to resolve
  arrive, fail -> ok+ ok+! | 0 open | 1 S completed, 1 W completed, 1 W failed | 1 J pending to resolve
  fail, cancel -> ok+ True | 0 open | 1 S completed, 1 W failed | 1 J joining, 1 W pending to be cancelled
  cancel, fail -> True ok- | 0 open | 1 S completed | 1 J joining, 2 W pending to be cancelled
resolving
  resolve, terminate -> ok+ False | 0 failed | 1 J failed, 1 S completed, 1 W completed, 1 W failed |
  terminate, resolve -> True ok- | 0 terminated | 1 J terminated, 1 S completed, 1 W completed, 1 W failed |
  resolve, cancel -> ok+ False | 0 failed | 1 J failed, 1 S completed, 1 W completed, 1 W failed |
  cancel, resolve -> True ok+ | 0 failed | 1 J failed, 1 S completed, 1 W completed, 1 W failed |
crosswise
  arrive, arrive too -> ok++ ok++!! | 0 open, 1 open | 2 S completed, 4 W completed | 2 J pending to fold
  arrive too, arrive -> ok++ ok++!! | 0 open, 1 open | 2 S completed, 4 W completed | 2 J pending to fold
child_parking
  park, terminate -> ok+ True | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated |
  terminate, park -> True ok- | 0 terminated | 1 P terminated |
  park, cancel -> ok+ True | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked
  cancel, park -> True ok- | 0 open |  | 1 P pending to be cancelled
  park, claim -> ok+ ['C'] | 0 open, 0/0.1 open |  | 1 C running, 1 P parked
  claim, park -> [] ok+ | 0 open, 0/0.1 open |  | 1 C pending, 1 P parked
child_parking_in_cohort
  park, park too -> ok+ ok+ | 0 open, 0/1.1 open, 0/2.1 open | 1 S completed | 2 C pending, 1 J joining, 2 P parked
  park too, park -> ok+ ok+ | 0 open, 0/1.1 open, 0/2.1 open | 1 S completed | 2 C pending, 1 J joining, 2 P parked
child_closing
  close, terminate -> ok+! True | 0 terminated, 0/0.1 completed | 1 C completed, 1 P terminated |
  terminate, close -> True ok- | 0 terminated, 0/0.1 terminated | 1 C terminated, 1 P terminated |
  close, cancel -> ok+! True | 0 open, 0/0.1 completed | 1 C completed | 1 P pending to be cancelled
  cancel, close -> True ok- | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked
  close, claim -> ok+! ['P'] | 0 open, 0/0.1 completed | 1 C completed | 1 P running
  claim, close -> [] ok+! | 0 open, 0/0.1 completed | 1 C completed | 1 P pending
children_closing
  close, close too -> ok+! ok+! | 0 open, 0/1.1 completed, 0/2.1 completed | 2 C completed, 1 S completed | 1 J joining, 2 P pending
  close too, close -> ok+! ok+! | 0 open, 0/1.1 completed, 0/2.1 completed | 2 C completed, 1 S completed | 1 J joining, 2 P pending
  close, terminate -> ok+! True | 0 terminated, 0/1.1 completed, 0/2.1 terminated | 1 C completed, 1 C terminated, 1 J terminated, 2 P terminated, 1 S completed |
  terminate, close -> True ok- | 0 terminated, 0/1.1 terminated, 0/2.1 terminated | 2 C terminated, 1 J terminated, 2 P terminated, 1 S completed |
children_closing_together
  close, cancel -> ok++!! True | 0 open, 0/1.1 completed, 0/2.1 completed | 2 C completed, 1 S completed | 1 J joining, 2 P pending to be cancelled
  cancel, close -> True ok-- | 0 open, 0/1.1 open, 0/2.1 open | 1 S completed | 2 C pending to be cancelled, 1 J joining, 2 P parked
child_cancelled
  close, cancel -> ok+! True | 0 open, 0/0.1 cancelled | 1 C cancelled | 1 P pending to be cancelled
  cancel, close -> True ok- | 0 open, 0/0.1 open |  | 1 C pending to be cancelled, 1 P parked
answered
  advance, terminate -> ok++ True | 0 terminated | 1 J terminated, 2 M completed, 1 S completed, 2 V terminated |
  terminate, advance -> True ok-- | 0 terminated | 1 J terminated, 2 M terminated, 1 S completed |
  advance, cancel -> ok++ True | 0 open | 2 M completed, 1 S completed | 1 J joining, 2 V pending to be cancelled
  cancel, advance -> True ok-- | 0 open | 1 S completed | 1 J joining, 2 M pending to be cancelled
held_by_the_dead
  release, terminate -> 2 True | 0 terminated | 1 J terminated, 1 K terminated, 1 S completed, 1 T completed, 1 T terminated, 1 W completed |
  terminate, release -> True 0 | 0 terminated | 1 J terminated, 1 K terminated, 1 S completed, 1 T completed, 1 T terminated, 1 W completed |
  release, cancel -> 2 True | 0 open | 1 S completed, 1 T completed, 1 W completed | 1 J joining, 1 K pending to be cancelled, 1 T pending to be cancelled
  cancel, release -> True 0 | 0 open | 1 S completed, 1 T completed, 1 W completed | 1 J joining, 1 K pending to be cancelled, 1 T pending to be cancelled
interrupting
  park, resume -> ok+ True | 0 open |  | 1 I pending
  resume, park -> False ok+ | 0 open |  | 1 I interrupted
  park, terminate -> ok+ True | 0 terminated | 1 I terminated |
  terminate, park -> True ok- | 0 terminated | 1 I terminated |
  park, cancel -> ok+ True | 0 open |  | 1 I pending to be cancelled
  cancel, park -> True ok- | 0 open |  | 1 I pending to be cancelled
interrupted
  resume, resume too -> True False | 0 open |  | 1 I pending
  resume too, resume -> True False | 0 open |  | 1 I pending
  resume, terminate -> True True | 0 terminated | 1 I terminated |
  terminate, resume -> True False | 0 terminated | 1 I terminated |
  resume, cancel -> True True | 0 open |  | 1 I pending to be cancelled
  cancel, resume -> True False | 0 open |  | 1 I pending to be cancelled
  resume, delete -> True running | 0 open |  | 1 I pending
  delete, resume -> terminated False | 0 terminated | 1 I terminated |
  delete, terminate -> terminated False | 0 terminated | 1 I terminated |
  terminate, delete -> True deleted | 0 terminated | 1 I terminated |
interrupted_twice
  resume, resume too -> True True | 0 open | 1 S completed | 2 I pending, 1 J joining
  resume too, resume -> True True | 0 open | 1 S completed | 2 I pending, 1 J joining
  resume, cancel -> True True | 0 open | 1 S completed | 2 I pending to be cancelled, 1 J joining
  cancel, resume -> True False | 0 open | 1 S completed | 2 I pending to be cancelled, 1 J joining
  resume, delete -> True terminated | 0 terminated | 2 I terminated, 1 J terminated, 1 S completed |
  delete, resume -> terminated False | 0 terminated | 2 I terminated, 1 J terminated, 1 S completed |
overdue
  success, sweep -> ok+ [] | 0 open | 1 A completed | 1 B pending
  sweep, success -> ['deadline'] ok+ | 0 open | 1 A completed | 1 B pending
  sweep, sweep too -> ['deadline'] [] | 0 open |  | 1 A pending
  sweep too, sweep -> ['deadline'] [] | 0 open |  | 1 A pending
  success, release -> ok+ 0 | 0 open | 1 A completed | 1 B pending
  release, success -> 1 ok+ | 0 open | 1 A completed | 1 B pending
  sweep, terminate -> ['deadline'] True | 0 terminated | 1 A terminated |
  terminate, sweep -> True [] | 0 terminated | 1 A terminated |
  sweep, cancel -> ['deadline'] True | 0 open |  | 1 A pending to be cancelled
  cancel, sweep -> True [] | 0 open |  | 1 A pending to be cancelled
  sweep, claim -> ['deadline'] ['A'] | 0 open |  | 1 A running
  claim, sweep -> [] ['deadline'] | 0 open |  | 1 A pending
overdue_failure
  failure, sweep -> ok+ [] | 0 failed | 1 S failed |
  sweep, failure -> ['deadline'] ok- | 0 open |  | 1 S pending
swept
  success, claim -> ok+ ['B'] | 0 open | 1 A completed | 1 B running
  claim, success -> ['A'] ok- | 0 open |  | 1 A running
  success, sweep -> ok+ [] | 0 open | 1 A completed | 1 B pending
  sweep, success -> [] ok+ | 0 open | 1 A completed | 1 B pending
swept_failure
  failure, claim -> ok- ['S'] | 0 open |  | 1 S running
  claim, failure -> ['S'] ok- | 0 open |  | 1 S running
"""
ROWS = {
    "due": ["C33"],
    "advancing": ["M35"],
    "root_closing": ["C10", "C32"],
    "root_failing": ["C10", "C32"],
    "retried": ["C5"],
    "asleep": ["C7"],
    "fan_out": ["M4", "M8", "M35"],
    "fan_out_empty": ["C14"],
    "expanding": ["M4"],
    "last_two": ["F24", "M4"],
    "last_two_outer": ["F24", "M4"],
    "one_fails": ["M4"],
    "child_parking": ["E13", "M5"],
    "child_parking_in_cohort": ["E13", "M5"],
    "child_closing": ["C12", "M5"],
    "children_closing": ["C12", "M34"],
    "child_cancelled": ["C12"],
    "interrupting": ["B6", "C8"],
    "interrupted": ["B8", "C16", "C8", "M8"],
    "interrupted_twice": ["B8", "C16"],
    "overdue": ["G16", "G20"],
    "overdue_failure": ["G16"],
    "swept": ["G16", "G31"],
    "swept_failure": ["G16", "G31"],
}


def outcomes() -> dict[str, dict[tuple[str, str], str]]:
    """The table above: by scene, then by the order of two calls."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for line in OUTCOMES.strip().splitlines():
        order, arrow, outcome = line.strip().partition(" -> ")
        if arrow:
            first, second = order.split(", ")
            list(found.values())[-1][first, second] = outcome
        else:
            found[line] = {}
    return found


EXPECTED = outcomes()


@pytest.fixture(scope="module")
def stage(pg: Server) -> Iterator[Stage]:
    """One for all scenes: each is built anew."""
    with pytest.MonkeyPatch.context() as patch, fresh_database(pg, "races") as dsn, Stage(dsn, graphs(), TASKS) as stage:
        patch.setattr("dwarf.decide.SLICE_BRANCHES_MAX", 2)
        yield stage


@pytest.fixture
def own_stage(database: str) -> Iterator[Stage]:
    with Stage(database, graphs(), TASKS) as stage:
        yield stage


def scenes(names: Any) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.row(*ROWS[name])) if name in ROWS else name for name in names]


@pytest.mark.parametrize("scene", scenes(EXPECTED))
def test_whatever_the_interleaving_it_is_one_after_the_other(stage: Stage, scene: str) -> None:
    expected, problems = EXPECTED[scene], []
    for first, second in [order for order in expected if order < order[::-1] or order[::-1] not in expected]:
        race = Race(stage, SCENES[scene], first, second)
        for order, outcome in race.serial.items():
            assert str(outcome).rstrip(" |") == expected[order].rstrip(" |"), order
        problems += race.run().problems
        assert race.runs > 0
    assert problems == []


@pytest.mark.skipif(not HEAVY, reason="every call against every other takes minutes: DWARF_TEST_HEAVY=1 runs it")
@pytest.mark.parametrize("scene", SCENES if HEAVY else ["due"])
def test_every_call_of_a_scene_against_every_other(stage: Stage, scene: str) -> None:
    problems = []
    for first, second in combinations(stage.set_up(SCENES[scene]).acts, 2):
        problems += Race(stage, SCENES[scene], first, second).run().problems
    assert problems == []


# ---- backends that outlive their process ----


def reopening(stage: Stage) -> Act:
    """Open the lane of A's acts anew, as a dispatcher does that does not know what became of its batch."""
    session = stage.players["A"].session
    return stage.verb("opener", lambda store, _: store.open_lane(session, STAGE_LANE), minutes=0)


def one_row_of_two(stage: Stage) -> Scene:
    """A batch with an entry that applies, and one of another flow that does not: it was terminated meanwhile."""
    gone, root = stage.create("line"), stage.create("line")
    entries = stage.entries("A", stage.rows("A"))
    assert [entry.flow_id for entry in entries] == sorted([gone, root])
    player = stage.players["A"]
    assert player.do(player.store.terminate_flow(gone, "enough", now=player.micros))
    return Scene({"advance": stage.record("A", entries), "open": reopening(stage)})


@pytest.mark.row("G16")
def test_a_lane_is_not_opened_before_the_batch_that_is_committing_in_it_has_ended(own_stage: Stage) -> None:
    scene = own_stage.set_up(one_row_of_two)
    acts, player = scene.acts, own_stage.players["A"]
    epoch, number = player.lanes[STAGE_LANE]
    holder = own_stage.hold(own_stage.point(scene, "row 1.0"))
    record = own_stage.start(acts["advance"])
    assert own_stage.blockers(acts["advance"], record) == [holder.info.backend_pid]
    opened = own_stage.start(acts["open"])
    assert own_stage.blockers(acts["open"], opened) == [acts["advance"].session.pid]
    holder.rollback()
    assert record.result() == "ok-+"
    assert opened.result() == Lane(epoch + 1, number + 1, [1])


@pytest.mark.row("G16")
def test_a_lane_that_cannot_be_opened_is_opened_once_its_backend_is_ended(own_stage: Stage) -> None:
    scene = own_stage.set_up(one_row_of_two)
    acts, player, before = scene.acts, own_stage.players["A"], own_stage.dump()
    epoch, number = player.lanes[STAGE_LANE]
    opener = acts["open"].session
    with own_stage.stopped(acts["advance"], own_stage.point(scene, "row 1.0")):
        opener.do(opener.link.execute(b"set lock_timeout = '50ms'"))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            acts["open"].call()
        own_stage.all("select pg_terminate_backend(%s)", acts["advance"].session.pid)
        opener.do(opener.link.execute(b"reset lock_timeout"))
        assert acts["open"].call() == Lane(epoch + 1, number, [])
    assert own_stage.dump() == before
    acts["advance"].session.open()
    assert acts["advance"].call() == "stale", "the old epoch records nothing more"
    assert own_stage.dump() == before
    player.lanes[STAGE_LANE] = [epoch + 1, number]
    assert acts["advance"].call() == "ok-+"
    assert own_stage.faults() == []


def test_a_batch_that_is_sent_twice_at_once_is_recorded_once(own_stage: Stage) -> None:
    scene = own_stage.set_up(one_row_of_two)
    act, player = scene.acts["advance"], own_stage.players["A"]
    epoch, number = player.lanes[STAGE_LANE]
    batch = lay_out(own_stage.players["A"].work([]))
    again = own_stage.verb(
        "again", lambda store, now: store.record((player.session, STAGE_LANE, epoch, number + 1), batch, now=now), minutes=9
    )
    holder = own_stage.hold(own_stage.point(scene, "row 1.0"))
    record = own_stage.start(act)
    assert own_stage.blockers(act, record) == [holder.info.backend_pid]
    repeat = own_stage.start(again)
    assert own_stage.blockers(again, repeat) == [act.session.pid]
    holder.rollback()
    assert record.result() == "ok-+"
    assert repeat.result() == Recorded("repeated", [1], [], [])


def test_a_batch_of_an_older_number_is_repeated_and_one_of_an_older_epoch_is_stale(own_stage: Stage) -> None:
    acts, player = own_stage.set_up(one_row_of_two).acts, own_stage.players["A"]
    assert acts["advance"].call() == "ok-+"
    after = own_stage.dump()
    epoch, number = player.lanes[STAGE_LANE]
    entries = own_stage.entries("A", own_stage.rows("B"))
    for old, state in ((number, "repeated-"), (number - 1, "repeated+"), (0, "repeated+")):
        assert own_stage.record("A", entries, number=old).call() == state, "what the last batch missed is known, of older ones nothing"
    acts["open"].call()
    for later in (number, number + 1, number + 1_000_000):
        assert own_stage.record("A", entries, number=later).call() == "stale"
    own_stage.players["A"].lanes[STAGE_LANE] = [epoch, number]
    assert [row for row in own_stage.dump()["history"] if row not in after["history"]] == []
    own_stage.players["A"].lanes[STAGE_LANE] = [epoch + 1, number]
    assert own_stage.record("A", entries).call() == "ok+"
