"""Trees in which every task has a handler, and verbs that are called at a chosen moment of one: for the storms of `test_trees_storm`.

A flow's moments are counted: each begin and each end of a task of its tree is one. `Moments` calls what it was told to call
when a tree has come to a number of them, from wherever that is, and notes which runs were begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from dwarf import App, Conflict, Flow, Graph
from dwarf.testing import EngineUnderTest
from tests.engine.rows_support import make_app
from tests.strategies import sketch

WAITING = ("I", "P", "Q")  # their tasks run once more when what they waited for has come
GRAPHS = {
    "line": "A->B->C->END A-e->H->END B-e->H C-e->H",
    "retry": "A->R->C->END A-e->H->END R-e->H C-e->H",
    "sleep": "A->Z->C->END A-e->H->END Z-e->H C-e->H",
    "ask": "A->I->C->END A-e->H->END I-e->H C-e->H",
    "fan": "S-*xs->W->V->J S-e->HS->END W-e->HW->J V-e->HW J⊕ J->C->END J-e->HJ->END C-e->HJ",
    "wide": "S-*wide->W->J S-e->HS->END W-e->HW->J J⊕ J->C->END J-e->HJ->END C-e->HJ",
    "nest": "S-*xs->T-*xs->W->K->J S-e->HS->END T-e->HT->J W-e->HW->K K-e->HK->J K⊕ J⊕ J->C->END J-e->HJ->END C-e->HJ",
    "calls": "S-*urls->P->J S-e->HS->END P-e->HP->J J⊕ J->C->END J-e->HJ->END C-e->HJ",
    "deep": "Q->C->END Q-e->H->END C-e->H",
    "bare": "A->W->C->END",
    "bare_fan": "S-*urls->P->J J⊕ J->C->END",
}
CALLED = ("line", "ask", "fan", "bare", "retry")
STATE = {"xs": [1, 2, 3], "wide": list(range(11)), "urls": list(CALLED), "depth": 3}


class Moments:
    """The trees of one test by number: what is to be called when, what has run, what the calls were answered."""

    def __init__(self) -> None:
        self._left: dict[int, list[tuple[int, Callable[[], Coroutine[Any, Any, None]]]]] = defaultdict(list)
        self._passed: Counter[int] = Counter()
        self._trees = 0
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._calls: set[asyncio.Task[None]] = set()
        self.runs: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)

    def trees(self, count: int) -> range:
        """Return the numbers of that many more trees."""
        self._trees += count
        return range(self._trees - count, self._trees)

    def at(self, tree: int, moment: int, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._left[tree].append((moment, call))

    def pass_one(self, tree: int) -> None:
        with self._lock:
            self._passed[tree] += 1
            due = [call for moment, call in self._left[tree] if moment == self._passed[tree]]
            self._left[tree] = [each for each in self._left[tree] if each[0] > self._passed[tree]]
        for call in due:
            self._loop.call_soon_threadsafe(self._start, call)

    def _start(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(call())
        self._calls.add(task)

    def overdue(self) -> None:
        """Call what is left: those trees wait for something, or have ended before their moment came."""
        with self._lock:
            left = [call for calls in self._left.values() for _, call in calls]
            self._left.clear()
        for call in left:
            self._start(call)

    async def over(self) -> None:
        """Wait until all calls that were started have been answered."""
        while self._calls:
            done, self._calls = self._calls, set()
            await asyncio.gather(*done)

    def note(self, flow: Flow) -> None:
        with self._lock:
            self.runs[tree_of(flow)][flow.task_name, f"{flow.step_key} {flow.attempt}"] += 1


def tree_of(flow: Flow) -> int:
    return int(flow.baggage["tree"])


def app_of(moments: Moments) -> App:
    """Every task is async where its name stands early in the alphabet, else it runs in a thread."""

    def body(flow: Flow) -> None:
        match flow.task_name:
            case "I":
                flow["answer"] = flow.interrupt({"q": 1})
            case "P":
                flow["got"] = flow.subgraph(flow["item"], {"xs": [1, 2]})
            case "Q" if flow["depth"] > 1:
                flow["got"] = flow.subgraph("deep", {"depth": flow["depth"] - 1, "xs": [1, 2]})
            case "Q":
                flow["got"] = flow.subgraph("fan", {"xs": [1, 2]})
            case "R" if flow.attempt < 2:
                flow.retry(0 if flow.attempt else 30)
            case "Z":
                flow.sleep(30)

    def sync_task(flow: Flow) -> None:
        moments.note(flow)
        moments.pass_one(tree_of(flow))
        try:
            body(flow)
        finally:
            moments.pass_one(tree_of(flow))

    async def async_task(flow: Flow) -> None:
        moments.note(flow)
        moments.pass_one(tree_of(flow))
        await asyncio.sleep(0)
        try:
            body(flow)
        finally:
            moments.pass_one(tree_of(flow))

    made: dict[str, Graph | str] = {url: sketch(text, url) for url, text in GRAPHS.items()}
    names = {node.name for graph in made.values() if isinstance(graph, Graph) for node in graph.tasks}
    return make_app(made, {name: async_task if name < "M" else sync_task for name in names})


async def answered(call: Awaitable[None], answers: list[tuple[str, str, bool]], verb: str, reason: str) -> None:
    """Make a call, and note whether it was done or came too late."""
    try:
        await call
    except Conflict:
        answers.append((verb, reason, False))
    else:
        answers.append((verb, reason, True))


def verb_of(engine: EngineUnderTest, verb: str, key: str, reason: str) -> Awaitable[None]:
    made: Awaitable[None] = getattr(engine, verb)(key, reason)
    return made
