from __future__ import annotations
from itertools import combinations
import pytest
from tests.sql.scenes import SCENES, TASKS, graphs
from tests.sql.stops import Race, Stage

@pytest.fixture
def stage(database: str):
    with Stage(database, graphs(), TASKS) as stage:
        yield stage

PAIRS={}
for line in open("/tmp/w/pairs.txt"):
    name, rest = line.strip().split(": ")
    PAIRS[name]=[tuple(p.split(", ")) for p in rest.split("; ")]

@pytest.mark.parametrize("scene", PAIRS)
def test_try(stage, scene, monkeypatch):
    monkeypatch.setattr("dwarf.decide.SLICE_BRANCHES_MAX", 2)
    build = SCENES[scene]
    out=open(f"/tmp/w/table.{scene}","w")
    for pair in PAIRS[scene]:
        race = Race(stage, build, *pair)
        for order, o in race.serial.items():
            print(f"  {order[0]}, {order[1]} -> {o}".rstrip(), file=out)
        race.run()
        print("runs", race.runs, pair)
        for p in race.problems: print("  !! ", scene, p)
