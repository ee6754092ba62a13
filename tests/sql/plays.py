"""What the tests of retention, deletes, verbs and the runbook share: graphs that stop where a test wants them, and the invariants.

`stop_before` plays flows up to the first record of a kind and hands that record over unrecorded, so that a test can put it
anywhere among other sessions' statements.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from dwarf.batch import Entry
from dwarf.errors import TaskError
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.record import Kind
from tests.sql.player import Player

NOON = datetime.datetime(2026, 3, 10, 12, tzinfo=datetime.UTC)  # any day; every call of these tests is given its time
DAY = datetime.timedelta(days=1)
TODAY = (NOON.date() - datetime.date(2000, 1, 1)).days
STEPS_MAX = 1_000


def graphs() -> dict[str, Graph]:
    line = Graph("line").add_transition_chain("A", "B", "C", END)
    fan = Graph("fan").add_transition_for_each("S", "W", "xs", "x").add_transition_chain("W", "V", "J").set_fan_in("J")
    fan.add_transition("J", END).set_reducer("log", "append")
    call = Graph("call").add_transition_chain("P", "Z", END)
    ask = Graph("ask").add_transition_chain("Q", "Z", END)
    again = Graph("again").add_transition_chain("R", "Z", END)
    deep = Graph("deep").add_transition_for_each("S", "X", "xs", "x").add_transition("X", "J").set_fan_in("J").add_transition("J", END)
    guarded = Graph("guarded").add_transition_chain("Q", "Z", END).add_transition_on_error("Q", "H").add_transition("H", END)
    return {"line": line, "fan": fan, "call": call, "ask": ask, "again": again, "deep": deep, "guarded": guarded}


def _write(flow: Flow) -> None:
    flow["log"] = [flow.get("x", 0)]


def _call(flow: Flow) -> None:
    flow["got"] = flow.subgraph(flow.get_str("child") or "line", {"child": "ask"})


def _ask(flow: Flow) -> None:
    flow["asked"] = True
    flow["answer"] = flow.interrupt({"question": flow.get("x", 0)}).get("a")


def _again(flow: Flow) -> None:
    flow["tries"] = flow.attempt
    if flow.attempt < 2:
        flow.retry(5)


def _any(flow: Flow) -> None:
    """By the element: 0 goes on, 1 asks, 2 calls a child, 3 retries, 4 calls a child that asks, 5 fails, 6 sleeps."""
    x = flow.get_int("x")
    if x == 1:
        _ask(flow)
    elif x in (2, 4):
        flow["got"] = flow.subgraph("line" if x == 2 else "ask", {"x": x})
    elif x == 3 and flow.attempt == 0:
        flow.retry(5)
    elif x == 5:
        raise TaskError("no")
    elif x == 6:
        flow.sleep(3600)


def _nothing(flow: Flow) -> None:
    pass


TASKS: dict[str, Callable[[Flow], None]] = {
    **dict.fromkeys("ABCSJZH", _nothing), "W": _write, "V": _write, "P": _call, "Q": _ask, "R": _again, "X": _any,
}  # fmt: skip


def scene(dsn: str, now: datetime.datetime | None = NOON, *, days_ahead: int = 2) -> Player:
    """Return a player of these graphs on a database with partitions for the day."""
    player = Player(dsn, graphs(), TASKS, now=now)
    player.one("select dwarf.ensure_partitions(%s, %s)", days_ahead, now)
    return player


def play(player: Player) -> None:
    """Play on until nothing is due; sleepers sleep on."""
    for _ in range(STEPS_MAX):
        rows = player.claim(50)
        if not rows:
            return
        assert player.record(player.work(rows)) == []
    raise AssertionError("it does not end")


def stop_before(player: Player, wanted: Callable[[Entry], bool]) -> list[Entry]:
    """Play on until a record is wanted, and return those of its claim that are, the others being recorded."""
    for _ in range(STEPS_MAX):
        rows = player.claim(50)
        assert rows, "no such record comes"
        entries = player.work(rows)
        kept = [entry for entry in entries if wanted(entry)]
        assert player.record([entry for entry in entries if not wanted(entry)]) == []
        if kept:
            return kept
    raise AssertionError("it does not end")


def is_kind(kind: Kind, **like: Any) -> Callable[[Entry], bool]:
    return lambda entry: entry.record.kind is kind and all(getattr(entry, name) == value for name, value in like.items())


def invariants() -> str:
    return (files("dwarf.sql") / "runbook" / "invariants.sql").read_text("utf-8")


def broken(dsn: str) -> list[Any]:
    """Return what invariants.sql finds wrong."""
    with psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row) as connection:
        return connection.execute(invariants().encode()).fetchall()


@contextmanager
def uncommitted(player: Player) -> Iterator[None]:
    """Keep what the player does in the block from the others until the block is left."""
    player.do(player.link.execute(b"begin"))
    try:
        yield
    except BaseException:
        player.do(player.link.execute(b"rollback"))
        raise
    player.do(player.link.execute(b"commit"))


@contextmanager
def beside(dsn: str, work: Callable[[], Any], until: Callable[[Callable[[], object], str], None], pid: int) -> Iterator[list[Any]]:
    """Run `work`, which uses the backend `pid`, beside the block once it waits for a lock; the list holds its result after the block."""
    answer: list[Any] = []
    faults: list[BaseException] = []

    def guarded() -> None:
        try:
            answer.append(work())
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        until(lambda: faults or answer or is_waiting(dsn, pid), "the other session waits")
        assert not faults, faults
        assert not answer, "the other session did not wait"
        yield answer
    finally:
        thread.join()
    if faults:
        raise faults[0]


def is_waiting(dsn: str, pid: int) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
        return connection.execute(query, (pid,)).fetchall() == [(True,)]
