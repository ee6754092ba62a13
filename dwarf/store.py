"""The statements of a shard, one method each, over one connection. Nothing else in the package executes SQL on this path.

Parameters go out as binary arrays built a column at a time, JSON as the bytes it already is; rows come back as structs
(`dwarf.rows`). A method is one statement and one transaction. What it raises is what `dwarf.database` makes of the server's
answer; whether to try again, on which connection, and what became of a commit that nobody heard of, is for `dwarf.lanes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dwarf import arrays
from dwarf.arrays import (
    BOOL,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    JSON,
    TEXT,
    TIMESTAMPTZ,
    boolean,
    float8,
    int2,
    int4,
    int4_array,
    int8,
    int8_array,
    read_bool,
    read_float8,
    read_int2,
    read_int4,
    read_int4_array,
    read_int8,
    read_int8_array,
    read_text,
)  # fmt: skip
from dwarf.batch import Batch
from dwarf.database import Connection, column
from dwarf.queries import QUERIES
from dwarf.rows import (
    CHANGES,
    CLAIMED,
    DOCUMENTS,
    LINEAR_COLUMNS,
    MEMBERS,
    PARKS,
    RECORD_COLUMNS,
    SIGNALS,
    SOURCES,
    SWEPT,
    Cells,
    ChangesRow,
    ClaimedRow,
    DocumentRow,
    MemberRow,
    ParkRow,
    SignalRow,
    SourceRow,
    SweptRow,
    read_bytes,
    read_rows,
)  # fmt: skip

Parameter = tuple[bytes | None, int]  # the binary value and the oid of its type


class Lane(msgspec.Struct):
    """A lane as it was opened: record with `epoch`, and with numbers above `batch`."""

    epoch: int
    batch: int
    missed: list[int]


class Recorded(msgspec.Struct):
    """What came of a record call. `state`: ok, stale (the epoch has moved on), or repeated (recorded before).

    `missed` are ordinals of the batch that did not apply, `woke` the rows made claimable, `children` the ids of the flows
    started, in the order of the batch (None where their record did not apply).
    """

    state: str
    missed: list[int]
    woke: list[tuple[int, int]]
    children: list[int | None]


class DueKey(msgspec.Struct, frozen=True):
    """A fairness key with due work in a half and a band; `weight` is the lowest among its due rows."""

    half: int
    priority: int
    fairness_key: str
    weight: float


class Look(msgspec.Struct, frozen=True):
    """What a dispatcher sees between its claims: how many sleepers it woke, whether signals wait, who dispatches (sessions)."""

    woken: int
    has_signals: bool
    dispatchers: list[int]


_DUE = (read_int2, read_int2, read_text, read_float8)


class NewFlows(msgspec.Struct):
    """Flows to create, column by column; a column that is None takes its default for every flow."""

    tokens: Sequence[str]
    workflows: Sequence[str]
    graph_ids: Sequence[int]
    tasks: Sequence[str]
    inputs: Sequence[bytes]
    priorities: Sequence[int]
    budgets_ms: Sequence[int]
    fairness_keys: Sequence[str] | None = None
    weights: Sequence[float] | None = None
    baggage: Sequence[bytes | None] | None = None
    tenants: Sequence[str | None] | None = None
    thread_ids: Sequence[int | None] | None = None
    delete_on_completion: Sequence[bool] | None = None
    start_at: Sequence[int | None] | None = None


class Keyed(msgspec.Struct):
    """What came of an idempotency key. `state`: created, existing (made before of the same input), conflict (of another input),
    busy (another transaction is creating under the key) or missing; in the last two there is no flow."""

    state: str
    flow_id: int | None
    token: str | None


class Store:
    """One shard through one connection. Not to be shared by tasks that run at the same time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _call(self, name: str, *parameters: Parameter) -> Sequence[Cells]:
        """Run a named statement and return the columns of its answer."""
        values, types = zip(*parameters, strict=True) if parameters else ((), ())
        result = await self._connection.execute(QUERIES[name].encoded, values, types=types)
        return [column(result, number) for number in range(result.nfields)]

    # Flows

    async def create_flows(self, new: NewFlows, *, session: int | None = None, now: int | None = None) -> tuple[list[int], int]:
        """Create flows and return their ids, in order, and the time. With a session their entry steps are born claimed by it."""
        columns = await self._call(
            "create_flows",
            _int4(session),
            (arrays.text_array(new.tokens), arrays.TEXT_ARRAY),
            (arrays.text_array(new.workflows), arrays.TEXT_ARRAY),
            (int4_array(new.graph_ids), arrays.INT4_ARRAY),
            (arrays.text_array(new.tasks), arrays.TEXT_ARRAY),
            (arrays.json_array(new.inputs), arrays.JSON_ARRAY),
            (arrays.int2_array(new.priorities), arrays.INT2_ARRAY),
            (int4_array(new.budgets_ms), arrays.INT4_ARRAY),
            (_or_null(arrays.text_array, new.fairness_keys), arrays.TEXT_ARRAY),
            (_or_null(arrays.float8_array, new.weights), arrays.FLOAT8_ARRAY),
            (_or_null(arrays.json_array, new.baggage), arrays.JSON_ARRAY),
            (_or_null(arrays.text_array, new.tenants), arrays.TEXT_ARRAY),
            (_or_null(int8_array, new.thread_ids), arrays.INT8_ARRAY),
            (_or_null(arrays.bool_array, new.delete_on_completion), arrays.BOOL_ARRAY),
            (_or_null(arrays.micros_array, new.start_at), arrays.TIMESTAMPTZ_ARRAY),
            _time(now),
        )
        return _array(read_int8_array, columns[0]), _one(read_int8, columns[1])

    async def create_keyed(self, key: str, new: NewFlows, *, now: int | None = None) -> Keyed:
        """Create the one flow of `new` under an idempotency key of its workflow, or find the one created under it before.

        In a transaction of its own, and never born claimed: others with the same key wait for it.
        """
        columns = await self._call(
            "create_keyed",
            _text(key),
            _text(new.tokens[0]),
            _text(new.workflows[0]),
            _int4(new.graph_ids[0]),
            _text(new.tasks[0]),
            (new.inputs[0], JSON),
            (int2(new.priorities[0]), INT2),
            _int4(new.budgets_ms[0]),
            (b"" if new.fairness_keys is None else new.fairness_keys[0].encode(), TEXT),
            (float8(1.0 if new.weights is None else new.weights[0]), FLOAT8),
            (None if new.baggage is None else new.baggage[0], JSON),
            _text_or_null(new.tenants),
            _int8_or_null(new.thread_ids),
            (boolean(bool(new.delete_on_completion and new.delete_on_completion[0])), BOOL),
            _time(None if new.start_at is None else new.start_at[0]),
            _time(now),
        )
        return _keyed(columns)

    async def find_keyed(self, workflow: str, key: str, input_: bytes) -> Keyed:
        """Find the flow created under an idempotency key; the state is `existing`, `conflict` or `missing`."""
        return _keyed(await self._call("find_keyed", _text(workflow), _text(key), (input_, JSON)))

    async def put_graphs(self, graphs: Sequence[tuple[bytes, str, str, bytes]], *, now: int | None = None) -> list[int]:
        """Store graphs given as (hash, name, entry task, definition) and return their numbers, in order."""
        hashes, names, entries, definitions = zip(*graphs, strict=True)
        columns = await self._call(
            "put_graphs",
            (arrays.bytea_array(hashes), arrays.BYTEA_ARRAY),
            (arrays.text_array(names), arrays.TEXT_ARRAY),
            (arrays.text_array(entries), arrays.TEXT_ARRAY),
            (arrays.json_array(definitions), arrays.JSON_ARRAY),
            _time(now),
        )
        return read_int4(columns[0])

    async def terminate_flow(self, root_id: int, reason: str, *, now: int | None = None, actor: str | None = None) -> bool:
        """End a tree at once; False when the root is not open. `actor` is who is noted to have done it; None: the database user."""
        columns = await self._call("terminate_flow", _int8(root_id), _text(reason), _time(now), _actor(actor))
        return bool(_one(read_bool, columns[0]))

    async def cancel_flow(self, root_id: int, reason: str, *, now: int | None = None, actor: str | None = None) -> bool:
        """Deliver a cancellation to every step in progress; False when the root is not open."""
        columns = await self._call("cancel_flow", _int8(root_id), _text(reason), _time(now), _actor(actor))
        return bool(_one(read_bool, columns[0]))

    async def resume_flow(self, root_id: int, answer: bytes, *, now: int | None = None, actor: str | None = None) -> bool:
        """Answer the earliest open interrupt of a tree; False when there is none."""
        columns = await self._call("resume_flow", _int8(root_id), (answer, JSON), _time(now), _actor(actor))
        return bool(_one(read_bool, columns[0]))

    # What is due

    async def due_bands(self, half: int) -> list[int]:
        """Return the bands of a half that have due work, best first."""
        columns = await self._call("due_bands", (int2(half), INT2))
        return read_int2(columns[0])

    async def due_keys(self, *, half: int, priority: int, after: str | None = None, limit: int = 200) -> dict[str, float]:
        """Return fairness keys with due work in a band, in order from behind `after`, with the lowest weight due in each."""
        parameters = ((int2(half), INT2), (int2(priority), INT2), (None if after is None else after.encode(), TEXT), _int4(limit))
        columns = await self._call("due_keys", *parameters)
        return dict(zip(read_text(columns[0]), read_float8(columns[1]), strict=True))

    async def due(self, limit: int) -> list[DueKey]:
        """Return the fairness keys with due work by half and band, best band first, at most `limit` of each."""
        columns = await self._call("due", _int4(limit))
        return [DueKey(*row) for row in zip(*(read(cells) for read, cells in zip(_DUE, columns, strict=True)), strict=True)]

    async def look(self, session: int, wake_limit: int, *, now: int | None = None) -> Look:
        """Wake sleepers whose time has come, and look what there is beside due work."""
        woken, has_signals, dispatchers = await self._call("look", _int4(session), _int4(wake_limit), _time(now))
        return Look(_one(read_int4, woken), _one(read_bool, has_signals), _array(read_int4_array, dispatchers))

    # Claims and records

    async def claim(
        self,
        session: int,
        quotas: Mapping[str, int],
        *,
        half: int | None,
        priority: int,
        since: Mapping[str, int] | None = None,
        now: int | None = None,
    ) -> list[ClaimedRow]:
        """Claim due rows of one half, or of both (None), and one band, at most `quotas[key]` of each fairness key, oldest first.

        `since`: of a key in it, only rows that became due then or later (`dwarf.cursors`).
        """
        columns = await self._call(
            "claim",
            _int4(session),
            (None if half is None else int2(half), INT2),
            (int2(priority), INT2),
            (arrays.text_array(list(quotas)), arrays.TEXT_ARRAY),
            (int4_array(list(quotas.values())), arrays.INT4_ARRAY),
            (arrays.micros_array([since.get(key) for key in quotas]) if since else None, arrays.TIMESTAMPTZ_ARRAY),
            _time(now),
        )
        return read_rows(ClaimedRow, CLAIMED, columns)

    async def claim_these(self, session: int, rows: Sequence[tuple[int, int]], *, now: int | None = None) -> list[ClaimedRow]:
        """Claim the rows (flow, branch) where they are claimable and nobody holds them."""
        columns = await self._call("claim_these", _int4(session), *_places(rows), _time(now))
        return read_rows(ClaimedRow, CLAIMED, columns)

    async def record(self, lane: tuple[int, int, int, int], batch: Batch, *, now: int | None = None) -> Recorded:
        """Record a batch in one commit; `lane` is (session, lane, epoch, batch number)."""
        session, number, epoch, batch_number = lane
        head = (_int4(session), (int2(number), INT2), _int4(epoch), _int8(batch_number))
        built = {name: (RECORD_COLUMNS[name][0](column), RECORD_COLUMNS[name][1]) for name, column in batch.columns.items()}
        if built.keys() <= _LINEAR_ONLY:
            names = (*LINEAR_COLUMNS, "p_closing")
            columns = await self._call("record_linear", *head, *(built.get(name, _missing(name)) for name in names), _time(now))
            return Recorded(_one(read_text, columns[0]), _array(read_int4_array, columns[1]), [], [])
        columns = await self._call("record", *head, *(built.get(name, _missing(name)) for name in RECORD_COLUMNS), _time(now))
        woke = zip(_array(read_int8_array, columns[2]), _array(read_int8_array, columns[3]), strict=True)
        return Recorded(
            _one(read_text, columns[0]), _array(read_int4_array, columns[1]), list(woke), _array(read_int8_array, columns[4])
        )  # fmt: skip

    async def wake(self, limit: int, *, now: int | None = None) -> int:
        """Make at most `limit` sleepers claimable whose time has come; return how many."""
        columns = await self._call("wake", _int4(limit), _time(now))
        return int(_one(read_int4, columns[0]))

    async def next_wake(self) -> int | None:
        """Return when the next sleeper is due, in microseconds since 2000, or None."""
        columns = await self._call("next_wake")
        at: int | None = _one(read_int8, columns[0])
        return at

    async def sweep(self, judge: int, *, life_ms: int, by_session: bool, limit: int, now: int | None = None) -> list[SweptRow]:
        """Return to pending at most `limit` rows whose owner is gone or whose deadline has passed."""
        columns = await self._call("sweep", _int4(judge), _int4(life_ms), (boolean(by_session), BOOL), _int4(limit), _time(now))
        return read_rows(SweptRow, SWEPT, columns)

    async def release(self, session: int, rows: Sequence[tuple[int, int, int, bool]], *, now: int | None = None) -> int:
        """Hand back rows (flow, branch, lease, blamed) that this session holds but nobody of it runs; return how many."""
        columns = await self._call(
            "release",
            _int4(session),
            *_places([row[:2] for row in rows]),
            (int4_array([row[2] for row in rows]), arrays.INT4_ARRAY),
            (arrays.bool_array([row[3] for row in rows]), arrays.BOOL_ARRAY),
            _time(now),
        )
        return int(_one(read_int4, columns[0]))

    async def owned(self, session: int) -> set[tuple[int, int, int]]:
        """Return the running rows of a session: (flow, branch, lease)."""
        columns = await self._call("owned", _int4(session))
        return set(zip(read_int8(columns[0]), read_int8(columns[1]), read_int4(columns[2]), strict=True))

    # Graphs and settings

    async def load_graphs(self, graph_ids: Sequence[int]) -> list[tuple[int, bytes, str, str, bytes]]:
        """Return graphs by their numbers: (number, hash, name, entry task, definition)."""
        columns = await self._call("graphs", (int4_array(graph_ids), arrays.INT4_ARRAY))
        readers = (read_int4, read_bytes, read_text, read_text, read_bytes)
        return list(zip(*(read(cells) for read, cells in zip(readers, columns, strict=True)), strict=True))

    async def register_workflows(self, graph_ids: Mapping[str, int], *, now: int | None = None) -> None:
        """Name the graphs that flows of these URLs follow from now on."""
        urls = (arrays.text_array(list(graph_ids)), arrays.TEXT_ARRAY)
        await self._call("register_workflows", urls, (int4_array(list(graph_ids.values())), arrays.INT4_ARRAY), _time(now))

    async def put_settings(self, settings: Mapping[str, int]) -> None:
        """Write the numbers that everybody on the shard agrees on: shard_index, max_priority, time_budget_ms."""
        names = (arrays.text_array(list(settings)), arrays.TEXT_ARRAY)
        await self._call("put_settings", names, (int8_array(list(settings.values())), arrays.INT8_ARRAY))

    # What inputs stand on

    async def load_documents(self, places: Sequence[tuple[int, int, int, int]]) -> list[DocumentRow]:
        """Load documents by (flow, branch, seq, day)."""
        columns = await self._call("load_documents", *_columns(places, "8844"))
        return read_rows(DocumentRow, DOCUMENTS, columns)

    async def load_changes(self, spans: Sequence[tuple[int, int, int, int, int]]) -> list[ChangesRow]:
        """Load what steps changed by (flow, branch, after, before, day), both ends left out, in order of their steps."""
        columns = await self._call("load_changes", *_columns(spans, "88444"))
        return read_rows(ChangesRow, CHANGES, columns)

    async def load_sources(self, places: Sequence[tuple[int, int, int, int]]) -> list[SourceRow]:
        """Load the fan-out sources of joining rows by (flow, branch, seq, day) of those rows."""
        columns = await self._call("load_sources", *_columns(places, "8844"))
        return read_rows(SourceRow, SOURCES, columns)

    async def load_members(self, flow_id: int, first: int, count: int, day: int) -> list[MemberRow]:
        """Load the members of a cohort in order: branches `first` … of a flow."""
        columns = await self._call("load_members", _int8(flow_id), _int8(first), _int4(count), _int4(day))
        return read_rows(MemberRow, MEMBERS, columns)

    async def load_parks(self, rows: Sequence[tuple[int, int]]) -> list[ParkRow]:
        """Load the parks of (flow, branch), with a closed child's outcome."""
        columns = await self._call("load_parks", *_places(rows))
        return read_rows(ParkRow, PARKS, columns)

    # Lanes, sessions, signals

    async def open_lane(self, session: int, lane: int) -> Lane:
        """Open a lane, or open it anew: batches of an older epoch can no longer commit. Waits for one that is committing."""
        epoch, batch, missed = await self._call("open_lane", _int4(session), (int2(lane), INT2))
        return Lane(_one(read_int4, epoch), _one(read_int8, batch), _array(read_int4_array, missed))

    async def end_lane_holder(self, session: int, lane: int) -> int:
        """End the server process that is recording in a lane and does not come back; return how many were ended."""
        columns = await self._call("end_lane_holder", _int4(session), (int2(lane), INT2))
        return int(_one(read_int4, columns[0]))

    async def branch_block(self) -> int:
        """Reserve 2**20 consecutive branch numbers and return the first."""
        columns = await self._call("branch_block")
        return int(_one(read_int8, columns[0]))

    async def start_session(self, engine_id: int, *, life_ms: int, now: int | None = None) -> int:
        columns = await self._call("start_session", _int8(engine_id), _int4(life_ms), _time(now))
        return int(_one(read_int4, columns[0]))

    async def renew_session(self, session: int, *, life_ms: int, is_dispatcher: bool, now: int | None = None) -> bool:
        """Renew a session; False when its row is gone and it must start anew."""
        columns = await self._call("renew_session", _int4(session), _int4(life_ms), (boolean(is_dispatcher), BOOL), _time(now))
        return bool(_one(read_bool, columns[0]))

    async def end_session(self, session: int, *, now: int | None = None) -> None:
        await self._call("end_session", _int4(session), _time(now))

    async def take_signals(self, session: int, limit: int) -> list[SignalRow]:
        """Take the signals of a session: running rows of it that were taken away."""
        columns = await self._call("take_signals", _int4(session), _int4(limit))
        return read_rows(SignalRow, SIGNALS, columns)

    # Background work

    async def ensure_partitions(self, days_ahead: int, *, now: int | None = None) -> int:
        """Make the partitions that are missing, of today and the days ahead, and return how many tables were made."""
        columns = await self._call("ensure_partitions", _int4(days_ahead), _time(now))
        return int(_one(read_int4, columns[0]))

    async def reap(self, limit: int, *, now: int | None = None) -> int:
        """Remove at most `limit` trees that are deleted and due; return how many there were."""
        columns = await self._call("reap", _int4(limit), _time(now))
        return int(_one(read_int4, columns[0]))

    async def expired(self, age_ms: int, limit: int, *, after: int = 0, now: int | None = None) -> list[int]:
        """Return open roots that are older than `age_ms`, oldest first, at most `limit`, from behind flow `after`."""
        columns = await self._call("expired", _int8(age_ms), _int4(limit), _int8(after), _time(now))
        return read_int8(columns[0])

    async def expire(self, root_id: int, age_ms: int, *, now: int | None = None) -> bool:
        """Terminate a root that is open and older than `age_ms`; False where it is not."""
        columns = await self._call("expire", _int8(root_id), _int8(age_ms), _time(now))
        return bool(_one(read_bool, columns[0]))

    async def forget_sessions(self, patience_ms: int, *, now: int | None = None) -> int:
        """Forget sessions that ended `patience_ms` ago or earlier and hold nothing; return how many."""
        columns = await self._call("forget_sessions", _int4(patience_ms), _time(now))
        return int(_one(read_int4, columns[0]))

    async def forget_audit(self, age_ms: int, limit: int, *, now: int | None = None) -> int:
        """Forget at most `limit` noted acts that are older than `age_ms`; return how many."""
        columns = await self._call("forget_audit", _int8(age_ms), _int4(limit), _time(now))
        return int(_one(read_int4, columns[0]))

    async def today(self, *, now: int | None = None) -> int:
        """Return the number of the day by the database's clock, which is that of its partitions."""
        columns = await self._call("today", _time(now))
        return int(_one(read_int4, columns[0]))

    async def refresh_gauges(self, session: int, age_ms: int, *, now: int | None = None) -> bool:
        """Measure the backlog for all replicas; False when somebody has within `age_ms`."""
        columns = await self._call("refresh_gauges", _int4(session), _int4(age_ms), _time(now))
        return bool(_one(read_bool, columns[0]))

    async def gauges(self) -> dict[str, float]:
        """Return the figures that all replicas report, by name (see `refresh_gauges_v1`)."""
        names, values = await self._call("gauges")
        return dict(zip(read_text(names), read_float8(values), strict=True))


_LINEAR_ONLY = {*LINEAR_COLUMNS, "p_closing"}


def _int4(value: int | None) -> Parameter:
    return (None if value is None else int4(value), INT4)


def _int8(value: int) -> Parameter:
    return (int8(value), INT8)


def _text(value: str) -> Parameter:
    return (value.encode(), TEXT)


def _actor(name: str | None) -> Parameter:
    return (None if name is None else name.encode(), TEXT)


def _text_or_null(column: Sequence[str | None] | None) -> Parameter:
    value = None if column is None else column[0]
    return (None if value is None else value.encode(), TEXT)


def _int8_or_null(column: Sequence[int | None] | None) -> Parameter:
    value = None if column is None else column[0]
    return (None if value is None else int8(value), INT8)


def _keyed(columns: Sequence[Cells]) -> Keyed:
    state, flow_id, token = columns
    return Keyed(_one(read_text, state), _one(read_int8, flow_id), _one(read_text, token))


def _time(micros: int | None) -> Parameter:
    return (None if micros is None else int8(micros), TIMESTAMPTZ)


def _missing(name: str) -> Parameter:
    return (None, RECORD_COLUMNS[name][1])


def _or_null(build: Any, column: Sequence[Any] | None) -> bytes | None:
    return None if column is None else build(column)


def _places(rows: Sequence[tuple[int, int]]) -> tuple[Parameter, ...]:
    return _columns(rows, "88")


def _columns(rows: Sequence[tuple[int, ...]], sizes: str) -> tuple[Parameter, ...]:
    """Build one array per member of the rows; `sizes` has each member's bytes, 4 or 8."""
    columns = list(zip(*rows, strict=True)) or [()] * len(sizes)
    return tuple(
        (int8_array(column), arrays.INT8_ARRAY) if size == "8" else (int4_array(column), arrays.INT4_ARRAY)
        for column, size in zip(columns, sizes, strict=True)
    )


def _one(read: Any, cells: Cells) -> Any:
    return read(cells)[0]


def _array(read: Any, cells: Cells) -> list[Any]:
    """Read the one array of a one-row column; null is empty."""
    return [] if cells[0] is None else read(cells[0])
