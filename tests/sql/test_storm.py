"""Two dispatchers on the same flows while somebody resumes, cancels, terminates or sweeps: nothing lost, nothing doubled,
and what every call answered is what is stored."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from dwarf.batch import STATUS_OF
from dwarf.errors import TaskError
from dwarf.flow import Flow
from dwarf.graph import END, Graph
from dwarf.state import State
from dwarf.testing.reference import ReferenceRun
from tests.sql.player import Player

FLOWS = 20
INVARIANTS = (files("dwarf.sql") / "runbook" / "invariants.sql").read_text()
SECONDS_MAX = 120


def graphs() -> dict[str, Graph]:
    child = Graph("child").add_transition_for_each("CS", "CW", "ks", "k").add_transition("CW", "CJ").set_fan_in("CJ")
    child.add_transition("CJ", END).set_reducer("out", "append")
    parent = Graph("parent").add_transition_for_each("S", "W", "xs", "x").add_transition_chain("W", "V", "J").set_fan_in("J")
    parent.add_transition_chain("J", "Z", END).add_transition_on_error("V", "J").set_reducer("log", "append").set_reducer("sum", "add")
    return {"parent": parent, "child": child}


def source(flow: Flow) -> None:
    flow["sum"] = 1


def first(flow: Flow) -> None:
    flow["log"] = [flow["x"]]
    if flow["x"] % 3 == 1 and flow.attempt == 0:
        flow.retry(0.001)


def second(flow: Flow) -> None:
    x = flow["x"]
    flow["sum"] = x
    if x % 4 == 2:
        flow["got"] = flow.subgraph("child", {"ks": [1, 2, x]})["out"]
    if x % 5 == 3:
        raise TaskError("refused", status=418)
    if x % 7 == 5:
        flow["answer"] = flow.interrupt({"question": x})["a"]


def inner(flow: Flow) -> None:
    flow["out"] = [flow["k"]]


def nothing(flow: Flow) -> None:
    pass


TASKS: dict[str, Callable[[Flow], None]] = {
    "S": source, "W": first, "V": second, "J": nothing, "Z": nothing, "CS": nothing, "CW": inner, "CJ": nothing,
}  # fmt: skip


class Storm:
    """Two players and a meddler, each on a connection and a thread of its own."""

    def __init__(self, dsn: str, mix: str, seed: int) -> None:
        self.dsn, self.mix, self.dice = dsn, mix, random.Random(seed)
        self.done, self.counts = threading.Event(), Counter[str]()
        self.faults: list[BaseException] = []
        self.answers: dict[int, list[str]] = {}
        self.players = [Player(dsn, graphs(), TASKS, seed=seed + number) for number in range(2)]
        self.flows = {self.players[0].create("parent", state): state for state in self._states()}

    def _states(self) -> list[dict[str, Any]]:
        return [{"xs": list(range(self.dice.randint(0, 9)))} for _ in range(FLOWS)]

    def blow(self) -> None:
        works = [lambda player=player: self._play(player) for player in self.players]
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in [*works, self._meddle]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.faults, self.faults

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            self.faults.append(fault)
        finally:
            self.done.set()

    def _play(self, player: Player) -> None:
        while not self.done.is_set():
            rows = player.claim(player.dice.choice([1, 3, 20]))
            player.dice.shuffle(rows)
            self.counts["missed"] += len(player.record(player.work(rows)))
            player.do(player.store.wake(100))

    def _meddle(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while left := [row[0] for row in connection.execute("select flow_id from dwarf.live where root_id = flow_id").fetchall()]:
                assert time.monotonic() < deadline, f"{left} do not end"
                assert not self.done.is_set()
                if self.dice.random() < 0.05:
                    assert connection.execute(INVARIANTS).fetchall() == []
                    self.counts["checked"] += 1
                elif self.mix == "verbs" and self.dice.random() < 0.3:
                    self._end(connection, self.dice.choice(left))
                elif self.mix == "sweep" and self.dice.random() < 0.6:
                    query = "select count(*) from dwarf.sweep_v1(%s, 30000, true, 7, now() + interval '200 s')"
                    self.counts["swept"] += connection.execute(query, (self.players[0].session,)).fetchall()[0][0]
                else:
                    self._resume(connection)

    def _end(self, connection: psycopg.Connection, flow_id: int) -> None:
        verb = self.dice.choice(["cancel", "terminate"])
        done = connection.execute(f"select dwarf.{verb}_v1(%s, 'enough')", (flow_id,)).fetchall()[0][0]
        self.counts[f"{verb} {done}"] += 1
        if done:
            self.answers.setdefault(flow_id, []).append(verb)

    def _resume(self, connection: psycopg.Connection) -> None:
        for (root,) in connection.execute("select distinct root_id from dwarf.parks where kind = 1 and answer is null").fetchall():
            done = connection.execute("""select dwarf.resume_v1(%s, '{"a":1}')""", (root,)).fetchall()[0][0]
            self.counts[f"resume {done}"] += 1

    def check(self) -> None:
        player = self.players[0]
        assert self.counts["checked"]
        assert player.connection.execute(INVARIANTS).fetchall() == []
        for table in ("live", "active", "parks"):
            assert player.one(f"select count(*) as n from dwarf.{table}").n == 0, table
        for flow_id, state in self.flows.items():
            rows = player.all("select status, reason, final_state::text as state from dwarf.flows where flow_id = %s", flow_id)
            assert len(rows) == 1
            self._check_end(flow_id, state, rows[0])
            query = """select branch from dwarf.history where flow_id = %s group by branch having min(seq) <> 1 or max(seq) <> count(*)"""
            assert player.all(query, flow_id) == [], "history has gaps"
        for each in self.players:
            each.close()

    def _check_end(self, flow_id: int, state: dict[str, Any], row: Any) -> None:
        status = STATUS_OF[row.status].value
        verbs = self.answers.get(flow_id, [])
        if not verbs:
            expected = reference(state)
            assert (status, State.from_json(row.state)) == (expected.status.value, expected.state), flow_id
        assert ("terminate" in verbs) == (status == "terminated"), (flow_id, verbs, status)
        assert verbs or status != "cancelled"
        assert (row.reason == "enough") == (status in ("cancelled", "terminated"))


def reference(state: dict[str, Any]) -> Any:
    run = ReferenceRun(graphs()["parent"], TASKS, state, graphs=graphs())
    outcome = run.advance()
    while not outcome.status.closed:
        run.resume({"a": 1})
        outcome = run.advance()
    return outcome


@pytest.mark.parametrize("mix", ["calm", "verbs", "sweep"])
@pytest.mark.row("M35", "C10", "C32", "B8")
def test_a_storm(database: str, mix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select dwarf.ensure_partitions(1)")
    for seed in range(3):
        storm = Storm(database, mix, seed)
        storm.blow()
        storm.check()
