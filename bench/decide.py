"""What deciding costs: from a finished step to its record, and what a fan-in pays per branch. `python -m bench.decide`

Processor time, the best of five rounds, in microseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from dwarf import cohorts
from dwarf.batch import Entry, lay_out
from dwarf.changes import Changes
from dwarf.decide import decide
from dwarf.effect import Effect
from dwarf.graph import END, Graph
from dwarf.inputs import Input
from dwarf.record import ClaimedStep, Todo

ROUNDS = 5


def fields(**values: Any) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in values.items()}


def measure(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(repeats):
            work()
        best = min(best, (time.process_time() - start) / repeats)
    return best * 1e6


def main() -> None:
    chain = Graph("chain").add_transition_chain("A", "B", END)
    small = ClaimedStep(0, 1, "A", Input(fields(**{f"f{n}": n for n in range(10)})))
    one_write = Effect(Changes(fields(f0=1)))
    switch = Graph("switch").add_transition_switch("A", "B", "f1 > 5").add_transition_switch("A", "C", "f2 >= 2 && f3 != 7")
    switch.add_transition("B", END).add_transition("C", END)
    reduced = Graph("reduced").add_transition_chain("A", "B", END).set_reducer("log", "append").set_reducer("n", "add")
    reducing = ClaimedStep(0, 1, "A", Input(fields(log=["x" * 20] * 50, n=3)))
    two_writes = Effect(Changes(fields(log=["y"], n=1)))
    wide = Graph("wide").add_transition_for_each("S", "W", "xs").add_transition("W", "J").set_fan_in("J").add_transition("J", END)
    wide.set_reducer("log", "append").set_reducer("n", "add")
    source = ClaimedStep(0, 1, "S", Input(fields(xs=list(range(1000)))))
    joining = ClaimedStep(0, 2, "J", Input(fields(xs=list(range(1000)))), todo=Todo.FOLD, source="S")
    brought = [Changes(fields(log=[n], n=1)) for n in range(1000)]
    entries = [Entry(n, n, decide(chain, small, one_write), hot=True) for n in range(200)]
    rows: list[tuple[str, Callable[[], object], int, int]] = [
        ("decide: a plain transition, one write", lambda: decide(chain, small, one_write), 20_000, 1),
        ("decide: a switch of two conditions", lambda: decide(switch, small, one_write), 20_000, 1),
        ("decide: two reduced fields", lambda: decide(reduced, reducing, two_writes), 20_000, 1),
        ("fan out to 1,000, per branch", lambda: decide(wide, source, Effect()), 20, 1000),
        ("fold 1,000 contributions, per branch", lambda: cohorts.fold_join(wide, joining, brought), 5, 1000),
        ("lay out 200 linear records, per record", lambda: lay_out(entries), 200, 200),
    ]
    print(f"{'what':<44}{'microseconds':>14}")
    for what, work, repeats, units in rows:
        print(f"{what:<44}{measure(work, repeats) / units:>14.2f}")


if __name__ == "__main__":
    main()
