"""Random graphs with random tasks, played through SQL: the same steps and the same end as in the reference runner."""

from __future__ import annotations

import datetime

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dwarf.batch import STATUS_OF
from dwarf.testing.reference import ReferenceRun
from tests.sql.player import Player
from tests.strategies import changes, states, valid_graphs
from tests.unit.test_reference_properties import behave, finish

NOON = datetime.datetime.now(datetime.UTC).replace(hour=12, minute=0, second=0, microsecond=0)


@pytest.mark.row("F23", "F24", "M7", "M8")
def test_played_through_sql_a_flow_ends_as_in_the_reference(database: str) -> None:
    @given(data=st.data(), quota=st.sampled_from([1, 3, 50]), chain=st.sampled_from([1, 3, 64]), seed=st.integers(0, 99))
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def check(data: st.DataObject, quota: int, chain: int, seed: int) -> None:
        graph = data.draw(valid_graphs())
        state = data.draw(states())
        menus = {task.name: data.draw(st.lists(changes(graph), max_size=3)) for task in graph.tasks}
        tasks = {task.url: behave(graph, task.name, menus[task.name], troubles=True) for task in graph.tasks}
        expected = ReferenceRun(graph, tasks, state, seed=seed)
        finish(expected)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("truncate dwarf.live, dwarf.active, dwarf.parks, dwarf.signals")
            connection.execute("select dwarf.ensure_partitions(1, %s)", (NOON,))
        player = Player(database, {"it": graph}, tasks, seed=seed, now=NOON)
        player.chain_steps_max = chain
        flow_id = player.create("it", state)
        player.run(quota)
        while (ended := player.ended(flow_id)) is None:
            assert player.one("select dwarf.resume_v1(%s, %s::json, %s) as done", flow_id, '{"n":1}', player.now).done
            player.run(quota)
        assert (ended.status, ended.state) == (expected.outcome.status.value, expected.outcome.state)
        query = "select task, depth, attempt, status from dwarf.history where flow_id = %s and via <> 4"
        steps = [(row.task, row.depth, row.attempt, STATUS_OF[row.status]) for row in player.all(query, flow_id)]
        assert sorted(steps) == sorted((step.task, step.depth, step.attempt, step.status) for step in expected.steps)
        assert player.runs == len(expected.runs)
        left = player.one(
            "select (select count(*) from dwarf.live) + (select count(*) from dwarf.active) + (select count(*) from dwarf.parks) as n"
        )
        assert left.n == 0
        player.close()

    check()
