import base64
import itertools
import pickle
import string
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.errors import InvalidArgument
from dwarf.keys import FlowKey, StepKey, flow_id
from dwarf.query import CheckedQuery, FlowSummary, Page, Position, Query, decode_cursor, encode_cursor
from dwarf.status import Status

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
KEY = FlowKey(1, flow_id(231_042, 7), "0123456789abcdef")
OTHER = FlowKey(2, flow_id(231_042, 8), "fedcba9876543210")

OPEN = FlowSummary(
    flow_key=str(KEY),
    thread_key=str(OTHER),
    workflow_url="shop.checkout",
    workflow_name="Checkout",
    task_name="Charge",
    created_at=NOON,
    updated_at=NOON,
    priority=3,
    fairness_key="acme",
    error="",
    reason="",
)
CLOSED = msgspec.structs.replace(
    OPEN,
    status=Status.FAILED,
    error="Card declined: 50% off_er",
    reason="",
    ended_at=NOON,
    updated_at=NOON - timedelta(hours=1),
    task_name="",
)


def lets_through(query: Query, flow: FlowSummary = OPEN, *, now: datetime | None = None) -> bool:
    return query.check(closed=flow.status.closed).matches(flow, now=now)


def refused(match: str, **parts: Any) -> None:
    for closed in (False, True):
        with pytest.raises(InvalidArgument, match=match) as caught:
            Query(**parts).check(closed=closed)
        assert caught.value.status == 400
        assert len(str(caught.value)) < 300
        assert KEY.token not in str(caught.value)


@pytest.mark.row("I-31", "I24")
def test_a_query_without_filters_means_all_roots() -> None:
    checked = Query().check(closed=False)
    assert checked.limit == 100
    assert checked.positions is None
    assert lets_through(Query())
    assert lets_through(Query(), CLOSED)
    child = msgspec.structs.replace(OPEN, subgraph=True)
    assert not lets_through(Query(), child)
    assert lets_through(Query(include_subgraphs=True), child)
    assert lets_through(Query(include_subgraphs=True))


def test_open_and_closed_are_apart() -> None:
    for status in Status:
        flow = msgspec.structs.replace(OPEN, status=status)
        assert Query().check(closed=True).matches(flow) is status.closed
        assert Query().check(closed=False).matches(flow) is not status.closed


@pytest.mark.row("I-32", "I27")
def test_status_filter() -> None:
    for status in Status:
        flow = msgspec.structs.replace(OPEN, status=status)
        for wanted in Status:
            assert lets_through(Query(status=wanted.value), flow) is lets_through(Query(status=wanted), flow) is (status is wanted)
    for unknown in ("done", "Running", "pending", " running", "running\n", "parked", "*", None, 5, ["running"]):
        refused("^status is .*; the statuses are running, interrupted, completed, failed, cancelled, terminated", status=unknown)


@pytest.mark.row("I-33", "I28")
@pytest.mark.parametrize(
    ("part", "value", "others"),
    [
        ("workflow_url", "shop.checkout", ["shop", "Shop.checkout", "shop.checkout ", "shop.check%"]),
        ("workflow_name", "Checkout", ["checkout", "Check"]),
        ("task_name", "Charge", ["charge", "Charge2"]),
        ("fairness_key", "acme", ["Acme", "acm", "acme.x"]),
        ("priority", 3, [1, 2, 4, 100]),
        ("thread_key", str(OTHER), [str(KEY), str(FlowKey(2, OTHER.flow_id, KEY.token))]),
        ("shard", 1, [2, 99]),
    ],
)
def test_each_filter_compares_exactly(part: str, value: object, others: list[object]) -> None:
    assert lets_through(Query(**{part: value}))  # type: ignore[arg-type]
    for other in others:
        assert not lets_through(Query(**{part: other}))  # type: ignore[arg-type]
    for disabled in (0, None) if part == "shard" else (type(value)(),):
        assert lets_through(Query(**{part: disabled}))  # type: ignore[arg-type]


@pytest.mark.row("I-33", "I28")
def test_filters_combine_with_and() -> None:
    matching: dict[str, Any] = {
        "workflow_url": "shop.checkout",
        "workflow_name": "Checkout",
        "task_name": "Charge",
        "fairness_key": "acme",
        "priority": 3,
        "thread_key": str(OTHER),
        "status": "running",
        "shard": 1,
        "search": "CHECK",
        "older_than": NOON + timedelta(1),
        "newer_than": NOON,
    }
    differing: dict[str, Any] = {
        "workflow_url": "x",
        "workflow_name": "x",
        "task_name": "x",
        "fairness_key": "x",
        "priority": 1,
        "thread_key": str(KEY),
        "status": "interrupted",
        "shard": 2,
        "search": "nowhere",
        "older_than": NOON,
        "newer_than": NOON + timedelta(1),
    }
    assert lets_through(Query(**matching))
    for name, value in differing.items():
        assert not lets_through(Query(**{**matching, name: value}))
    for one, two in itertools.combinations(matching, 2):
        assert lets_through(Query(**{one: matching[one], two: matching[two]}))


@pytest.mark.row("I30")
def test_a_task_filter_needs_a_current_step() -> None:
    assert not lets_through(Query(task_name="Charge"), msgspec.structs.replace(OPEN, task_name=""))


@pytest.mark.row("I-34", "I28")
def test_times_compose_into_a_band() -> None:
    hour = timedelta(hours=1)
    assert lets_through(Query(newer_than=NOON, older_than=NOON + hour))
    assert not lets_through(Query(newer_than=NOON - hour, older_than=NOON))
    assert not lets_through(Query(newer_than=NOON + hour, older_than=NOON - hour))
    for step in (-hour, timedelta(0), hour):
        flow = msgspec.structs.replace(OPEN, updated_at=NOON + step)
        assert lets_through(Query(older_than=NOON), flow) is (step < timedelta(0))
        assert lets_through(Query(newer_than=NOON), flow) is not (step < timedelta(0))
    local = NOON.astimezone(timezone(timedelta(hours=5)))
    assert Query(older_than=local).check(closed=False) == Query(older_than=NOON).check(closed=False)


@pytest.mark.row("I-34")
def test_closed_flows_are_bounded_by_their_end() -> None:
    assert lets_through(Query(newer_than=NOON), CLOSED)
    assert not lets_through(Query(older_than=NOON), CLOSED)


@pytest.mark.row("I-34")
def test_ages_count_from_now() -> None:
    hour = timedelta(hours=1)
    for age in (hour, 3600, 3600.0):
        assert lets_through(Query(older_than=age), now=NOON + 2 * hour)
        assert not lets_through(Query(newer_than=age), now=NOON + 2 * hour)
        assert lets_through(Query(newer_than=age), now=NOON + hour)
        assert not lets_through(Query(older_than=age), now=NOON + hour)
    for nothing in (None, 0, 0.0, timedelta(0)):
        assert Query(older_than=nothing, newer_than=nothing).check(closed=False) == Query().check(closed=False)


@pytest.mark.parametrize(
    "part", ["status", "older_than", "limit", "priority", "shard", "cursor", "include_subgraphs", "search", "task_name"]
)
@pytest.mark.parametrize("text", [str(KEY), f"flow {KEY.step(1)}!" + "x" * 600])
def test_a_key_in_the_wrong_place_is_refused_without_its_token(part: str, text: str) -> None:
    if part not in {"search", "task_name"} or len(text) > 512:
        with pytest.raises(InvalidArgument) as caught:
            Query(**{part: text}).check(closed=True)  # type: ignore[arg-type]
        assert KEY.token not in str(caught.value)
        assert KEY.step(1).token not in str(caught.value)


@pytest.mark.parametrize("part", ["older_than", "newer_than"])
@pytest.mark.parametrize(
    "value",
    [
        "yesterday",
        "2030-01-01T00:00:00Z",
        True,
        float("nan"),
        float("inf"),
        1e300,
        -1,
        timedelta(-1),
        [1],
        NOON.date(),
        NOON.replace(tzinfo=None),
    ],
)
def test_refused_bounds(part: str, value: object) -> None:
    refused(f"^{part} is ", **{part: value})


def test_search_looks_for_a_part_whatever_the_case() -> None:
    for text in ("card", "DECLINED", "shop.", "Checkout", "acme", "50% off_er", "  declined  "):
        assert lets_through(Query(search=text), CLOSED)
    for text in ("50%off", "c_rd", "nothing", "%", str(OTHER)[:10]):
        assert lets_through(Query(search=text), CLOSED) is (text == "%")
    assert lets_through(Query(search="enough"), msgspec.structs.replace(CLOSED, reason="Long Enough"))
    for blank in ("", " ", "\t\n"):
        assert Query(search=blank).check(closed=True) == Query().check(closed=True)


def test_search_for_a_key_is_no_search_for_text() -> None:
    for text in (str(KEY), f" {KEY}\n", str(KEY.step(5)), KEY.name):
        checked = Query(search=text).check(closed=False)
        assert checked.search == ""
        assert checked.matches(OPEN)
        assert not checked.matches(msgspec.structs.replace(OPEN, flow_key=str(OTHER), error=text))
    forged = FlowKey(KEY.shard, KEY.flow_id, OTHER.token)
    assert not lets_through(Query(search=str(forged)))
    assert not lets_through(Query(search=str(forged.step(5))))
    assert not lets_through(Query(search=str(KEY), status="interrupted"))
    key = Query(search=str(KEY.step(5))).check(closed=False).search_key
    assert isinstance(key, StepKey)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("workflow_url", ["x" * 513, "a\0b", "\ud800", None, 5, b"x"]),
        ("workflow_name", ["x" * 513, "a\0b", "\ud800", None, 5, b"x"]),
        ("task_name", ["x" * 513, "a\0b", "\ud800", None, 5, b"x"]),
        ("fairness_key", ["x" * 257, "a\0b", "\ud800", None, 5, b"x"]),
        ("search", ["x" * 257, "a\0b", "\ud800", None, 5, b"x"]),
        ("priority", [-1, 101, 2**40, 1.0, True, "3", None]),
        ("limit", [-1, 1001, 2**70, 1.0, True, "3", None]),
        ("shard", [-1, 2**31, 1.0, True, "1"]),
        ("include_subgraphs", [0, 1, "true", None]),
        ("thread_key", ["x", f"{KEY} ", f"{KEY}x", KEY.name, str(KEY.step(1)), None, 5]),
        ("cursor", ["x", None, 5, b"x"]),
    ],
)
@pytest.mark.row("I27")
def test_refused_parts(part: str, values: list[object]) -> None:
    for value in values:
        refused(f"^{part}", **{part: value})


@pytest.mark.row("I-31", "I24")
def test_limits() -> None:
    assert [Query(limit=limit).check(closed=False).limit for limit in (0, 1, 100, 1000)] == [100, 1, 100, 1000]
    assert len(Query(search="x" * 256).check(closed=False).search) == 256


@pytest.mark.row("I-37", "I27")
def test_a_shard_must_be_configured() -> None:
    assert Query(shard=2).check(closed=False, shards=[1, 2]).shard == 2
    assert Query(shard=7).check(closed=False).shard == 7
    assert Query(shard=None).check(closed=False, shards={1: "a"}).shard == 0
    with pytest.raises(InvalidArgument, match="shard 3 is not configured; the shards are 1, 2"):
        Query(shard=3).check(closed=False, shards=[2, 1])


@pytest.mark.row("I17")
def test_purges() -> None:
    checked = Query(status="failed").check_purge()
    assert checked.limit == 4096
    assert Query(limit=4096).check_purge().limit == 4096
    for status in Status:
        flow = msgspec.structs.replace(OPEN, status=status)
        assert Query().check_purge().matches(flow) is status.closed
        assert Query(status=status).check_purge().matches(flow) is status.stopped
    for query, match in (
        (Query(include_subgraphs=True), "include_subgraphs"),
        (Query(cursor="abc"), "cursor"),
        (Query(limit=4097), "from 1 to 4096"),
        (Query(status="x"), "status"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            query.check_purge()
    with pytest.raises(InvalidArgument, match="shard 3 is not configured"):
        Query(shard=3).check_purge(shards=[1])


places = st.none() | st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@pytest.mark.row("I-37", "I24")
@given(st.dictionaries(st.integers(1, 2**31 - 1), places, min_size=1, max_size=20))
def test_a_cursor_gives_back_its_positions(positions: dict[int, Position | None]) -> None:
    closed = Query().check(closed=True)
    cursor = encode_cursor(positions, closed)
    assert set(cursor) <= set(string.ascii_letters + string.digits + "-_")
    assert decode_cursor(cursor, closed) == positions
    assert Query(cursor=cursor).check(closed=True).positions == positions
    unended = {shard: place and Position(place.flow_id) for shard, place in positions.items()}
    assert Query(cursor=encode_cursor(unended, Query().check(closed=False))).check(closed=False).positions == unended


@pytest.mark.row("I-37")
def test_no_position_is_the_end() -> None:
    assert encode_cursor({}, Query().check(closed=True)) == ""


def cursor_of(query: CheckedQuery) -> str:
    return encode_cursor({1: Position(5), 2: None}, query)


@pytest.mark.row("I-37", "I27")
@pytest.mark.parametrize(
    "garbage",
    [
        "x",
        "garbage",
        "====",
        "!!!!",
        "AAAA",
        "A" * 12,
        "A" * 16,
        "ä",
        "\ud800",
        " ",
        "\0",
        "A" * 100_000,
        "../../etc",
        '{"a":1}',
        str(KEY),
        "a+b/",
        "null",
    ],
)
def test_garbage_is_no_cursor(garbage: str) -> None:
    refused("^cursor .* was not given by a list with these filters", cursor=garbage)


@pytest.mark.row("I-37", "I27")
def test_a_damaged_cursor_is_refused() -> None:
    query = Query().check(closed=False)
    cursor = cursor_of(query)
    damaged = {
        cursor + "A",
        cursor + "=",
        cursor[:-1],
        cursor[1:],
        cursor[:8],
        cursor.swapcase(),
        " " + cursor,
        cursor + "\n",
        cursor + cursor,
    }
    damaged |= {cursor[:at] + char + cursor[at + 1 :] for at in range(len(cursor)) for char in "AQgw-" if cursor[at] != char}
    for text in damaged:
        with pytest.raises(InvalidArgument):
            decode_cursor(text, query)
    assert decode_cursor(cursor, query) == {1: Position(5), 2: None}


@given(st.binary(max_size=40))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode_cursor(base64.urlsafe_b64encode(data).rstrip(b"=").decode(), Query().check(closed=True))


@pytest.mark.row("I-37", "I27")
def test_a_cursor_fits_no_other_query() -> None:
    cursor = cursor_of(Query().check(closed=False))
    differing: dict[str, Any] = {
        "workflow_url": "x",
        "workflow_name": "x",
        "task_name": "x",
        "fairness_key": "x",
        "priority": 1,
        "thread_key": str(KEY),
        "status": "interrupted",
        "shard": 2,
        "search": "x",
        "older_than": NOON,
        "newer_than": timedelta(1),
        "include_subgraphs": True,
    }
    for name, value in differing.items():
        with pytest.raises(InvalidArgument, match=r"^cursor "):
            Query(cursor=cursor, **{name: value}).check(closed=False)
    with pytest.raises(InvalidArgument, match=r"^cursor "):
        Query(cursor=cursor).check(closed=True)
    with pytest.raises(InvalidArgument, match=r"^cursor "):
        Query(cursor=cursor, search=str(KEY)).check(closed=False)
    assert Query(cursor=cursor, limit=7).check(closed=False).positions == {1: Position(5), 2: None}


def test_positions_must_suit_the_list() -> None:
    closed, opened = Query().check(closed=True), Query().check(closed=False)
    for query, positions in (
        (closed, {1: Position(5)}),
        (opened, {1: Position(5, 6)}),
        (opened, {0: Position(5)}),
        (opened, {-1: None}),
        (opened, {2**31: None}),
        (opened, {1: Position(-5)}),
        (closed, {1: Position(5, -6)}),
        (opened, {1: Position(2**63)}),
    ):
        with pytest.raises(InvalidArgument):
            decode_cursor(encode_cursor(positions, query), query)


def test_a_cursor_shows_no_token() -> None:
    cursor = cursor_of(Query(thread_key=str(KEY)).check(closed=False))
    assert KEY.token.encode() not in base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


def test_wire_form() -> None:
    found = Query.from_wire(
        {
            "status": "failed",
            "workflowURL": "u",
            "workflowName": "n",
            "threadKey": str(KEY),
            "taskName": "t",
            "fairnessKey": "f",
            "priority": 2,
            "olderThan": "2030-01-01T12:00:00Z",
            "newerThan": "2d",
            "includeSubgraphs": True,
            "shard": 1,
            "search": "s",
            "limit": 5,
            "cursor": None,
        }
    )
    assert found == Query(
        status="failed",
        workflow_url="u",
        workflow_name="n",
        thread_key=str(KEY),
        task_name="t",
        fairness_key="f",
        priority=2,
        older_than=NOON,
        newer_than=172_800.0,
        include_subgraphs=True,
        shard=1,
        search="s",
        limit=5,
    )
    assert found.check(closed=True).newer_than == timedelta(days=2)
    assert Query.from_wire(None) == Query.from_wire({}) == Query()
    for wire, match in (
        ([], r"^query must be an object"),
        ({"workflow_url": "x"}, r"^query has no member 'workflow_url'"),
        ({"olderThan": "soon"}, r"^query\.olderThan is 'soon'"),
        ({"newerThan": "2030-01-01T12:00:00"}, r"^query\.newerThan is .*without a time zone"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            Query.from_wire(wire)


def test_reprs_show_no_token() -> None:
    text = repr(Query(thread_key=str(KEY), search=str(KEY), cursor="abc", status="failed", limit=5))
    assert text == "Query(status='failed', thread_key='1-231042-7', search='1-231042-7', limit=5, cursor='…')"
    assert repr(Query(search=str(KEY.step(1)))) == "Query(search='1-231042-7-1')"
    assert repr(Query(older_than=timedelta(1), shard=None)) == "Query(older_than=datetime.timedelta(days=1))"
    assert repr(OPEN) == "FlowSummary(1-231042-7 'shop.checkout' running)"
    for shown in (text, repr(Page([OPEN])), repr(OPEN)):
        assert KEY.token not in shown
        assert OTHER.token not in shown


@pytest.mark.row("I-30", "I32")
def test_summary_fields() -> None:
    assert " ".join(FlowSummary.__struct_fields__) == (
        "flow_key thread_key workflow_url workflow_name status task_name error reason created_at started_at updated_at ended_at priority"
        " fairness_key trace_id subgraph"
    )
    wire = msgspec.json.decode(msgspec.json.encode(CLOSED))
    assert list(wire)[:5] == ["flowKey", "threadKey", "workflowURL", "workflowName", "status"]
    assert (wire["traceID"], wire["startedAt"], wire["endedAt"]) == ("", None, "2030-01-01T12:00:00Z")


def test_query_fields() -> None:
    assert " ".join(Query.__struct_fields__) == (
        "status workflow_url workflow_name thread_key task_name fairness_key priority older_than newer_than include_subgraphs shard search"
        " limit cursor"
    )


def test_pages() -> None:
    page = Page([OPEN, CLOSED], "next", {2: "shard 2 cannot be reached"})
    assert list(page) == [OPEN, CLOSED] == page.items
    assert len(page) == 2
    assert msgspec.json.decode(msgspec.json.encode(page))["errors"] == {"2": "shard 2 cannot be reached"}
    empty = Page()
    assert (empty.items, empty.cursor, empty.errors) == ([], "", {})
    assert pickle.loads(pickle.dumps(page)) == page
