from __future__ import annotations
from itertools import combinations
import pytest
from tests.sql.scenes import SCENES, TASKS, graphs
from tests.sql.stops import Race, Stage

@pytest.fixture
def stage(database: str):
    with Stage(database, graphs(), TASKS) as stage:
        yield stage


@pytest.mark.parametrize("scene", SCENES)
def test_try(stage, scene, monkeypatch):
    monkeypatch.setattr("dwarf.decide.SLICE_BRANCHES_MAX", 2)
    build = SCENES[scene]
    names = list(stage.set_up(build).acts)
    print("SCENE", scene)
    for name in names:
        try:
            print("  ", name, [(s.point.name, s.is_shared) for s in stage.footprint(build, name)])
        except Exception as e:
            print("  XX", name, type(e), e)
    for pair in combinations(names, 2):
        race = Race(stage, build, *pair)
        for order, o in race.serial.items():
            print("  ", order, "=>", o)
        race.run()
        print("   runs", race.runs)
        for p in race.problems: print("  !! ", p)
