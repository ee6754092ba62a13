"""What the tests of the behaviour rows share: a loop with a deadline, waiting for facts, graphs in a line, looks at the database.

A test is an async function under `on_loop`. Nothing here waits for time to pass: `until` looks again until something is so,
and its deadline only turns a hang into a failure. `calm` waits until an engine has nothing to do, `play` also moves the clock over
every sleep on the way.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, ParamSpec

import psycopg
from psycopg.rows import namedtuple_row

from dwarf import END, App, Conflict, Flow, Graph, Outcome, Status, Step
from dwarf.keys import FlowKey, branch_seq
from dwarf.testing import EngineUnderTest
from tests.strategies import sketch

P = ParamSpec("P")
Make = Callable[..., EngineUnderTest]

TEST_SECONDS_MAX = 60.0
UNTIL_SECONDS_MAX = 40.0
LOOK_SECONDS = 0.004


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a loop of its own; one that hangs fails."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TEST_SECONDS_MAX):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def until(is_so: Callable[[], Any], what: str = "what the test waits for", *, seconds: float = UNTIL_SECONDS_MAX) -> Any:
    """Look again and again until something is so, and return it. `is_so` may be async."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        found = is_so()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert clock() < deadline, f"still not so: {what}"
        await asyncio.sleep(LOOK_SECONDS)


# ---- graphs and apps ----


def line(*names: str, name: str = "Line") -> Graph:
    """A chain of tasks up to END."""
    return Graph(name).add_transition_chain(*names, END)


def nothing(flow: Flow) -> None:
    """A task that does nothing."""


def make_app(graphs: Mapping[str, Graph | str], tasks: Mapping[str, Callable[..., Any]] | None = None, **declared: Any) -> App:
    """Return an App of graphs (a text is a sketch, see `tests.strategies`) and of tasks; a node without a task does nothing."""
    app = App()
    made = {url: sketch(graph, url) if isinstance(graph, str) else graph for url, graph in graphs.items()}
    for url, graph in made.items():
        app.add_graph(url, graph)
    for url, task in (tasks or {}).items():
        app.task(url, **declared.get(url, {}))(task)
    for url in sorted({node.url for graph in made.values() for node in graph.tasks} - set(tasks or {})):
        app.task(url)(nothing)
    return app


class Gate:
    """A task that is held until the test lets it go, and how many are held. For async and, with `block`, for sync tasks."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self.entered = 0
        self.left = 0

    async def __call__(self, flow: Flow) -> None:
        self.entered += 1
        await self._open.wait()
        self.left += 1

    def open(self) -> None:
        self._open.set()

    async def reached(self, count: int = 1) -> None:
        await until(lambda: self.entered >= count, f"{count} tasks are at the gate, {self.entered} are")


# ---- looks at the database ----


async def sql(engine: EngineUnderTest, query: str, *args: Any) -> list[Any]:
    """Ask the first shard's database, as an operator would."""

    def ask() -> list[Any]:
        with psycopg.connect(engine.dsn, autocommit=True, row_factory=namedtuple_row) as connection:
            cursor = connection.execute(query.encode(), args or None)
            return cursor.fetchall() if cursor.description else []

    return await asyncio.to_thread(ask)


async def one(engine: EngineUnderTest, query: str, *args: Any) -> Any:
    """Return the only value of the only row."""
    [[value]] = await sql(engine, query, *args)
    return value


class Watcher:
    """Asks one database whether it has anything left to do, on one connection."""

    def __init__(self, dsn: str) -> None:
        self._link = psycopg.connect(dsn, autocommit=True)

    def busy(self) -> tuple[int, timedelta | None]:
        """Return how many rows are due or running, and how long until the first sleeper wakes."""
        row = self._link.execute(
            "select count(*) filter (where claimable is not null or status = 2), min(wake_at) - dwarf.now() from dwarf.active"
        ).fetchone()
        assert row is not None
        return row

    def close(self) -> None:
        self._link.close()


async def calm(engine: EngineUnderTest) -> timedelta | None:
    """Wait until the first shard has nothing due and nothing running; return how long its first sleeper sleeps on."""
    watcher = await asyncio.to_thread(Watcher, engine.dsn)
    try:
        while True:
            count, wait = watcher.busy()
            if not count and (wait is None or wait > timedelta(0)):
                return wait
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        watcher.close()


async def play(engine: EngineUnderTest) -> None:
    """Let everything run that will without a person, moving the clock over sleeps and backoffs."""
    while (wait := await calm(engine)) is not None:
        await engine.advance(wait + timedelta(milliseconds=1))


async def settle(engine: EngineUnderTest, key: str) -> Outcome:
    """Play until nothing goes on by itself, and return where the flow stands."""
    await play(engine)
    return await engine.snapshot(key)


async def invariants(engine: EngineUnderTest) -> list[Any]:
    """Return what the runbook's invariants find wrong."""
    from tests.sql.plays import broken

    return await asyncio.to_thread(broken, engine.dsn)


async def removed(engine: EngineUnderTest, *keys: str) -> None:
    """Let a grace of a minute pass, and wait until the background work has removed these flows (start it with sweep_seconds=1)."""
    await engine.advance(61)
    ids = [FlowKey.parse(key).flow_id for key in keys]
    await until(lambda: one(engine, "select count(*) = 0 from dwarf.flows where flow_id = any (%s)", ids), "the flows are removed")


# ---- histories ----


def walk(steps: list[Step]) -> list[Step]:
    """All steps of a history, those of children included."""
    return [inner for step in steps for inner in (step, *walk(step.sub_history))]


def paths(steps: list[Step], prefix: str = "") -> dict[str, Step]:
    """Name each step by a path that does not depend on scheduling, as the traces do (`tests/traces/README.md`)."""
    by_key = {step.step_key: step for step in steps}
    first = {branch: step for step in steps for branch, seq in [branch_seq(step.step_id)] if branch and seq == 1}
    siblings: dict[str, list[int]] = {}
    for branch, step in sorted(first.items()):
        siblings.setdefault(step.predecessor_key, []).append(branch)

    def place(branch: int) -> str:
        if not branch:
            return ""
        source = first[branch].predecessor_key
        return f"{name(by_key[source])}/{siblings[source].index(branch)}."

    def name(step: Step) -> str:
        branch, seq = branch_seq(step.step_id)
        return f"{place(branch)}{seq}"

    found: dict[str, Step] = {}
    for step in steps:
        path = prefix + name(step)
        assert path not in found, path
        found[path] = step
        found.update(paths(step.sub_history, f"{path}>"))
    return found


def shape(steps: list[Step]) -> list[tuple[str, str]]:
    """The (task, status) of each step, in the order of a history."""
    return [(step.task_name, str(step.status)) for step in steps]


# ---- refusals ----


async def refused(call: Awaitable[Any], status: int, *says: str) -> Exception:
    """Expect a call to be refused with a status, in a text that says what is asked for and shows no token."""
    answer: Any = (await asyncio.gather(call, return_exceptions=True))[0]
    assert isinstance(answer, Exception), f"not refused with {status}: {answer!r}"
    assert getattr(answer, "status", None) == status, answer
    for text in says:
        assert text in str(answer), (text, str(answer))
    return answer


async def done(call: Awaitable[Any]) -> bool:
    """Tell whether a call that races with others was done, or refused as coming too late (409)."""
    try:
        await call
    except Conflict:
        return False
    return True


def unknown(key: str) -> str:
    """The key of a flow that does not exist beside one that does."""
    known = FlowKey.parse(key)
    return str(FlowKey(known.shard, known.flow_id + 1_000_000, known.token))


def wrong_token(key: str) -> str:
    return key[:-1] + ("0" if key[-1] != "0" else "1")


def is_recent(time: datetime | None, now: datetime) -> bool:
    return time is not None and time.tzinfo is not None and abs(now - time) < timedelta(minutes=10)


COMPLETED, FAILED, CANCELLED, TERMINATED = Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.TERMINATED
RUNNING, INTERRUPTED = Status.RUNNING, Status.INTERRUPTED
