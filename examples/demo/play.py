"""The demo from the first flow to the last: it kills the engine half way, starts another, and answers for the humans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import class_row
from rich.markup import escape

from dwarf import Client, Shard, Status, StepStatus
from examples import audit
from examples.demo import journal
from examples.demo.checks import Evidence
from examples.demo.process import Worker
from examples.demo.scenario import Part, parts
from examples.demo.screen import Count, Screen

POLL_SECONDS = 0.2
KILL_AT = 0.4  # the share of the files that are measured by then
DEMO_SECONDS_MAX = 300

STEPS = """
select f.workflow, s.task, s.status, count(*) as steps
from dwarf.v_steps as s
inner join dwarf.v_flows as f on s.flow_id = f.flow_id
group by f.workflow, s.task, s.status
"""
FLOWS = "select flow_key, status from dwarf.v_flows"

Database = AsyncConnection[tuple[str, str]]


class Stage(msgspec.Struct):
    """What the scenes share."""

    client: Client
    database: Database
    screen: Screen
    cast: list[Part]
    dsn: str
    out: Path
    found: int

    @property
    def audit(self) -> Part:
        return self.cast[0]

    async def start_worker(self) -> Worker:
        worker = await Worker.start(self.dsn, self.out / "journal", self.out / "worker.log")
        self.screen.say(f"an engine runs in process {worker.pid}", style="green")
        return worker


async def play(*, dsn: str, root: Path, out: Path, screen: Screen) -> tuple[Evidence, dict[str, str]]:
    """Run the whole demo and return what came of it, and a name for each step that ran more than once.

    Raises `TimeoutError` when it takes far too long.
    """
    found = len(audit.files_of(root))
    async with (
        asyncio.timeout(DEMO_SECONDS_MAX),
        Client(shards=[Shard(1, dsn)]) as client,
        await AsyncConnection.connect(dsn, autocommit=True) as database,
    ):
        stage = Stage(client, database, screen, parts(root, out, found), dsn, out, found)
        killed, committed = await until_the_kill(stage)
        await until_the_end(stage)
        history = await client.history(stage.audit.key)
        evidence = Evidence(stage.cast, found, history, committed, journal.read(out / "journal"), killed)
        return evidence, {step: await name_step(client, step) for step in evidence.repeated()}


async def name_step(client: Client, key: str) -> str:
    """Return a step's task, and what it was about where its state says so."""
    step = await client.step(key)
    state = step.state or {}
    if step.task_name == "Measure":
        return f"Measure {state['package']}/{state['name']}".replace(" ./", " ")
    return step.task_name


async def until_the_kill(stage: Stage) -> tuple[int, set[str]]:
    """Create the flows and kill the engine in the middle of the audit. Return its process, and the audit's finished steps."""
    worker = await stage.start_worker()
    try:
        for part in stage.cast:
            part.key = await stage.client.create(part.workflow, part.state)
        stage.screen.say(f"{len(stage.cast)} flows are created; the audit is of {stage.found} files")
        await watch(stage, worker, until=lambda: half_way(stage))
    finally:
        await worker.kill()
    steps = await stage.client.history(stage.audit.key)
    committed = {step.step_key for step in steps if step.status is StepStatus.COMPLETED}
    running = sum(step.status is StepStatus.RUNNING for step in steps)
    text = f"process {worker.pid} is killed (SIGKILL): {len(committed)} steps of the audit are committed, {running} were running"
    stage.screen.say(text, style="bold red")
    return worker.pid, committed


async def half_way(stage: Stage) -> bool:
    counts = await count_steps(stage.database)
    measured = sum(count.steps for count in counts if (count.task, count.status) == ("Measure", "completed"))
    return measured >= KILL_AT * stage.found


async def until_the_end(stage: Stage) -> None:
    """Start another engine, answer what is asked, and wait for every flow."""
    worker = await stage.start_worker()
    try:
        await watch(stage, worker, until=lambda: answer_and_look(stage))
        await worker.stop()
    finally:
        await worker.kill()


async def watch(stage: Stage, worker: Worker, *, until: Callable[[], Awaitable[bool]]) -> None:
    """Keep the display current until something is so. Raises `WorkerFailed` when the engine has ended."""
    tasks = [task.name for task in audit.audit().tasks]
    while True:
        is_so = await until()
        rows = await (await stage.database.execute(FLOWS)).fetchall()
        stage.screen.show(await count_steps(stage.database), dict(rows), stage.cast, tasks)
        if is_so:
            return
        worker.check()
        await asyncio.sleep(POLL_SECONDS)


async def count_steps(database: Database) -> list[Count]:
    async with database.cursor(row_factory=class_row(Count)) as cursor:
        await cursor.execute(STEPS)
        return await cursor.fetchall()


async def answer_and_look(stage: Stage) -> bool:
    """Answer every flow that waits for its human, note which have ended, and tell whether all have."""
    for part in stage.cast:
        if part.outcome is not None:
            continue
        outcome = await stage.client.snapshot(part.key)
        if outcome.status is Status.INTERRUPTED:
            question = outcome.interrupt_payload["question"]
            stage.screen.say(f"{part.title} asks: {escape(question)}  answer: {part.answer}", style="yellow")
            await stage.client.resume(part.key, part.answer)
        elif outcome.stopped:
            part.outcome = outcome
            stage.screen.say(f"{part.title}: {outcome.status} {escape(outcome.error)}".rstrip())
    return all(part.outcome for part in stage.cast)
