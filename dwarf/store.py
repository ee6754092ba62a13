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
    INT2,
    INT4,
    INT8,
    JSON,
    TEXT,
    TIMESTAMPTZ,
    boolean,
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

    async def terminate_flow(self, root_id: int, reason: str, *, now: int | None = None) -> bool:
        """End a tree at once; False when the root is not open."""
        columns = await self._call("terminate_flow", _int8(root_id), _text(reason), _time(now))
        return bool(_one(read_bool, columns[0]))

    async def cancel_flow(self, root_id: int, reason: str, *, now: int | None = None) -> bool:
        """Deliver a cancellation to every step in progress; False when the root is not open."""
        columns = await self._call("cancel_flow", _int8(root_id), _text(reason), _time(now))
        return bool(_one(read_bool, columns[0]))

    async def resume_flow(self, root_id: int, answer: bytes, *, now: int | None = None) -> bool:
        """Answer the earliest open interrupt of a tree; False when there is none."""
        columns = await self._call("resume_flow", _int8(root_id), (answer, JSON), _time(now))
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

    # Claims and records

    async def claim(self, session: int, quotas: Mapping[str, int], *, half: int, priority: int, now: int | None = None) -> list[ClaimedRow]:
        """Claim due rows of one half and one band, at most `quotas[key]` of each fairness key, oldest first in a key."""
        columns = await self._call(
            "claim",
            _int4(session),
            (int2(half), INT2),
            (int2(priority), INT2),
            (arrays.text_array(list(quotas)), arrays.TEXT_ARRAY),
            (int4_array(list(quotas.values())), arrays.INT4_ARRAY),
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


_LINEAR_ONLY = {*LINEAR_COLUMNS, "p_closing"}


def _int4(value: int | None) -> Parameter:
    return (None if value is None else int4(value), INT4)


def _int8(value: int) -> Parameter:
    return (int8(value), INT8)


def _text(value: str) -> Parameter:
    return (value.encode(), TEXT)


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
