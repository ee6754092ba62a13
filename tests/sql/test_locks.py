"""Which locks every call takes, and in which order: that of the schema. And what is left of a call that is killed at any of them.

DWARF_TEST_HEAVY=1 kills the calls of every scene, not only of the chosen ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest

from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.scenes import SCENES, TASKS, graphs
from tests.sql.stops import KEYS, LIVE, Stage, Stop

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
KILLED = (
    "advancing",
    "root_closing",
    "fan_out",
    "expanding",
    "last_two_outer",
    "child_parking",
    "child_closing",
    "interrupting",
    "interrupted",
)
# Rows only: the keys that inserts take follow in no order that matters.
PATHS = {
    ("advancing", "advance"): "lane A, row 0.0",
    ("advancing", "terminate"): "live 0, row 0.0",
    ("advancing", "cancel"): "live 0, row 0.0",
    ("advancing", "claim"): "",
    ("root_closing", "close"): "lane A, live 0, row 0.0",
    ("retried", "retry"): "lane A, row 0.0",
    ("fan_out", "fan out"): "lane A, live 0 shared, row 0.0",
    ("expanding", "expand"): "lane A, live 0 shared, row 0.0",
    ("expanding", "arrive"): "lane B, row 0.0, row 0.1",
    ("last_two", "arrive"): "lane A, row 0.1, row 0.3",
    ("last_two_outer", "arrive too"): "lane B, row 0.0, row 0.2",
    ("resolving", "resolve"): "lane A, live 0, row 0.0",
    ("crosswise", "arrive too"): "lane B, row 0.0, row 1.0, row 0.2, row 1.4",
    ("child_parking", "park"): "lane A, live 0 shared, row 0.0",
    ("child_closing", "close"): "lane A, live 0/0.1, row 0.0, row 0/0.1.0",
    ("child_closing", "cancel"): "live 0, live 0/0.1, row 0.0, row 0/0.1.0",
    ("child_closing", "terminate"): "live 0, live 0/0.1, row 0.0, row 0/0.1.0, park 0.0",
    ("interrupting", "park"): "lane A, row 0.0",
    ("interrupted", "resume"): "row 0.0, park 0.0",
    ("interrupted", "delete"): "live 0, row 0.0, park 0.0",
    ("overdue", "release"): "row 0.0",
    ("overdue", "sweep"): "",
    ("asleep", "wake"): "",
}


@pytest.fixture(scope="module")
def stage(pg: Server) -> Iterator[Stage]:
    """One for all scenes: each is built anew."""
    with pytest.MonkeyPatch.context() as patch, fresh_database(pg, "locks") as dsn, Stage(dsn, graphs(), TASKS) as stage:
        patch.setattr("dwarf.decide.SLICE_BRANCHES_MAX", 2)
        yield stage


def order_of(stage: Stage, stop: Stop) -> tuple[int, bool, tuple[int, int]]:
    """Where the lock order has a lock: of the live rows, roots (whose trees grow) come before flows that are closed."""
    is_root = stop.point.rank == LIVE and stop.point.place[0] in stage.roots
    return stop.point.rank, stop.point.rank == LIVE and not is_root, stop.point.place


def text_of(path: list[Stop]) -> str:
    return ", ".join(stop.point.name + (" shared" if stop.is_shared else "") for stop in path if stop.point.rank != KEYS)


@pytest.mark.parametrize("scene", SCENES)
def test_locks_are_taken_in_the_order_of_the_schema(stage: Stage, scene: str) -> None:
    wrong = {}
    for name in stage.set_up(SCENES[scene]).acts:
        path = stage.footprint(SCENES[scene], name)
        order = [order_of(stage, stop) for stop in path if stop.point.rank != KEYS]
        if order != sorted(order):
            wrong[name] = text_of(path)
        if (scene, name) in PATHS and text_of(path) != PATHS[scene, name]:
            wrong[name] = f"{text_of(path)}; it should be: {PATHS[scene, name]}"
    assert wrong == {}


@pytest.mark.row("C15", "B23", "M18")
@pytest.mark.parametrize("scene", SCENES if HEAVY else KILLED)
def test_a_call_that_is_killed_at_any_lock_has_done_nothing_and_can_be_repeated(stage: Stage, scene: str) -> None:
    build, kills = SCENES[scene], 0
    for name in stage.set_up(build).acts:
        path = stage.footprint(build, name)
        act = stage.set_up(build).acts[name]
        whole = (act.call(), stage.dump())
        for stop in path:
            stage.set_up(build)
            before, kills = stage.dump(), kills + 1
            with stage.stopped(act, stop.point):
                nobody_who_skips_waits(stage)
                stage.all("select pg_terminate_backend(%s)", act.session.pid)
            assert stage.dump() == before, (name, stop.point.name)
            assert stage.faults() == []
            act.session.open()
        if path:
            assert (act.call(), stage.dump()) == whole, name
    assert kills > 0


def nobody_who_skips_waits(stage: Stage) -> None:
    """Claim, sweep and wake whatever there is, and take it back: nobody of these waits for a row that is held."""
    session = stage.players["B"].session
    with stage.observer.transaction() as transaction:
        stage.observer.execute("set local lock_timeout = '100ms'")
        for half in (0, 1):
            stage.all("select from dwarf.claim_v1(%s, %s::smallint, 3::smallint, '{\"\"}', '{50}')", session, half)
        stage.all("select from dwarf.sweep_v1(%s, 30000, true, 100, now() + interval '2 days')", session)
        stage.all("select dwarf.wake_v1(100, now() + interval '2 days')")
        raise psycopg.Rollback(transaction)
