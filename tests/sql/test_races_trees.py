"""Cancel and terminate against whatever else may happen to a tree, in every state that it can be in: see `tests.sql.scenes_trees`.

As in `tests.sql.test_races` one of two calls is stopped at each of its locks in turn, in both orders, and what comes of it
must be what comes of one after the other. Beyond that every order is played to its end, and the end must bear out what the
verbs have answered. `OUTCOMES` has, scene by scene:

    first, second -> answers | how the flows stand | finished steps | live rows => how the root ends, the handlers that ran, its reason

DWARF_TEST_HEAVY=1 lets every call of a scene meet every other one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest

from dwarf.arrays import micros
from dwarf.testing.databases import fresh_database
from dwarf.testing.postgres import Server
from tests.sql.player import Player
from tests.sql.scenes_trees import HANDLERS, SCENES, TASKS, graphs
from tests.sql.stops import NOON, STATUSES, Outcome, Race, Stage
from tests.sql.trees_table import OUTCOMES

HEAVY = os.environ.get("DWARF_TEST_HEAVY") == "1"
ROUNDS_MAX = 20
LATE = micros(NOON) + 86_400_000_000
REASONS = {"terminate": "enough", "terminate too": "at last", "expire": "expired: open for more than 00:00:01", "delete": "gone"}
ASKED = {"cancel": "stop", "cancel too": "stop again"}
ROWS = {
    "running_hot": ["C1", "M35"],
    "ending_hot": ["C10", "C32"],
    "backing_off": ["C5", "C18"],
    "sleeping_with_a_handler": ["C7", "C18"],
    "delivering": ["C29", "C31"],
    "delivering_to_nobody": ["C21", "C29"],
    "handling": ["C19", "C29", "C31"],
    "answered": ["C16"],
    "last_arrival_by_a_handler": ["C27"],
    "child_starting": ["E16"],
    "child_due": ["E16", "C1"],
    "child_ending": ["C12"],
    "child_delivering": ["C12"],
    "child_interrupted": ["C16"],
    "grandchild_ending": ["C12"],
    "grandchild_interrupted": ["C16"],
    "children_of_every_kind": ["C12", "C16", "M35"],
}


class Told(Race):
    """A race of which every order is played to its end, too. `ends` says how."""

    def __init__(self, stage: Stage, scene: str, first: str, second: str) -> None:
        self.ends: dict[Sequence[str], str] = {}
        super().__init__(stage, SCENES[scene], first, second)

    def _one_after_the_other(self, order: Sequence[str]) -> Outcome:
        outcome = super()._one_after_the_other(order)
        self.ends[tuple(order)] = self._play_on(order, outcome)
        return outcome

    def _play_on(self, order: Sequence[str], outcome: Outcome) -> str:
        """Play the flow to its end, see that the end bears out the answers, and return it as a text."""
        stage = self.stage
        end(stage)
        self._judge(f"{', '.join(order)}, played to the end")
        [(status, reason)] = stage.all("select status, reason from dwarf.flows where flow_id = %s", stage.roots[0])
        ended = [REASONS[name] for name, answer in outcome.answers.items() if name in REASONS and answer in (True, "t", "terminated")]
        asked = [ASKED[name] for name, answer in outcome.answers.items() if name in ASKED and answer is True]
        fits = {
            "terminated": ended == [reason],
            "cancelled": not ended and reason == (asked[-1] if asked else "first"),
            "completed": not ended and reason is None,
            "failed": not ended and reason is None,
        }
        if not fits[STATUSES[status]]:
            self.problems.append(f"{', '.join(order)}: answered {outcome.answers}, and ended {STATUSES[status]} for {reason!r}")
        query = "select task, status from dwarf.history where task = any (%s) and status = 6 order by flow_id, branch, seq"
        handlers = [task for task, _ in stage.all(query, list(HANDLERS))]
        return ", ".join([STATUSES[status], *handlers]) + (f": {reason}" if reason else "")


def end(stage: Stage) -> None:
    """Let the flows of a scene end: what is held goes back, who sleeps wakes, who asks is answered."""
    for player in stage.players.values():
        stage.open_lane(player)
    for _ in range(ROUNDS_MAX):
        stage.play()
        if not stage.all("select from dwarf.live"):
            return
        player = stage.players["A"]
        player.do(player.store.sweep(player.session, life_ms=30_000, by_session=False, limit=100, now=LATE))
        player.do(player.store.wake(100, now=LATE))
        answer_all(player)
    raise AssertionError(f"it does not end: {stage.dump()['active']}")


def answer_all(player: Player) -> None:
    for (root,) in player.all("select distinct root_id from dwarf.parks where kind = 1 and answer is null"):
        player.do(player.store.resume_flow(root, b"{}", now=player.micros))


def outcomes() -> dict[str, dict[tuple[str, str], tuple[str, str]]]:
    """The table: by scene, then by the order of two calls, what they left and how it ended."""
    found: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
    for line in OUTCOMES.strip().splitlines():
        order, arrow, outcome = line.strip().partition(" -> ")
        if arrow:
            first, second = order.split(", ")
            left, _, ending = outcome.partition(" => ")
            list(found.values())[-1][first, second] = left, ending
        else:
            found[line] = {}
    return found


EXPECTED = outcomes()


@pytest.fixture(scope="module")
def stage(pg: Server) -> Iterator[Stage]:
    """One for all scenes: each is built anew."""
    with pytest.MonkeyPatch.context() as patch, fresh_database(pg, "trees_races") as dsn, Stage(dsn, graphs(), TASKS) as stage:
        patch.setattr("dwarf.decide.SLICE_BRANCHES_MAX", 2)
        yield stage


def scenes(names: Any) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.row(*ROWS[name])) if name in ROWS else name for name in names]


@pytest.mark.parametrize("scene", scenes(SCENES))
def test_a_verb_and_a_tree_in_any_state(stage: Stage, scene: str) -> None:
    expected, problems = EXPECTED[scene], []
    for first, second in [order for order in expected if order < order[::-1] or order[::-1] not in expected]:
        race = Told(stage, scene, first, second)
        found = {order: (str(outcome).rstrip(" |"), race.ends[order]) for order, outcome in race.serial.items()}
        assert found == {order: expected[order] for order in found}
        problems += race.run().problems
    assert problems == []


@pytest.mark.skipif(not HEAVY, reason="every call against every other takes minutes: DWARF_TEST_HEAVY=1 runs it")
@pytest.mark.parametrize("scene", SCENES if HEAVY else ["running_hot"])
def test_every_call_of_a_scene_against_every_other(stage: Stage, scene: str) -> None:
    problems = []
    for first, second in combinations(stage.set_up(SCENES[scene]).acts, 2):
        problems += Told(stage, scene, first, second).run().problems
    assert problems == []
