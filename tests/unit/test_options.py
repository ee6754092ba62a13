import dataclasses
import pickle
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.errors import DwarfError, InvalidArgument, StateValueError
from dwarf.keys import FlowKey, flow_id
from dwarf.limits import BAGGAGE_BYTES_MAX
from dwarf.options import FlowOptions, check_engine_id, check_priority_max, check_time_budget, scoped_fairness_key
from dwarf.state import State

KEY = FlowKey(1, flow_id(231_042, 7), "0123456789abcdef")


def refused(match: str, **options: Any) -> DwarfError:
    with pytest.raises((InvalidArgument, StateValueError), match=match) as caught:
        FlowOptions(**options).resolve()
    assert caught.value.status == 400
    assert len(str(caught.value)) < 300
    return caught.value


@pytest.mark.row("I-01", "A2")
def test_defaults() -> None:
    found = FlowOptions().resolve()
    assert (found.priority, found.fairness_key, found.fairness_weight, found.time_budget_ms) == (3, "", 1.0, 120_000)
    assert (found.baggage, found.thread_key, found.delete_on_completion, found.idempotency_key, found.start_at) == (
        None,
        None,
        False,
        "",
        None,
    )
    assert type(found.fairness_weight) is float


@pytest.mark.row("I-02", "A7")
@pytest.mark.parametrize(("priority", "stored"), [(1, 1), (5, 5), (0, 3), (2, 2)])
def test_priority_within_range(priority: int, stored: int) -> None:
    assert FlowOptions(priority=priority).resolve(priority_max=5).priority == stored


@pytest.mark.row("I-02", "A7")
@pytest.mark.parametrize("priority", [6, -1, 101, 10**30, True, 2.0, "3", None, float("nan"), [1]])
def test_priority_out_of_range(priority: object) -> None:
    error = refused("^priority is .*from 1 to 5, or 0 for the middle", priority=priority)
    if isinstance(priority, int) and priority in {6, -1, 101}:
        assert str(priority) in str(error)


@pytest.mark.row("I-02", "A7")
@pytest.mark.parametrize(("most", "middle"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (9, 5), (10, 5), (100, 50)])
def test_zero_is_the_middle_of_the_range(most: int, middle: int) -> None:
    assert FlowOptions().resolve(priority_max=most).priority == middle
    assert FlowOptions(priority=most).resolve(priority_max=most).priority == most
    with pytest.raises(InvalidArgument, match=f"from 1 to {most}"):
        FlowOptions(priority=most + 1).resolve(priority_max=most)


def test_priority_takes_names_for_numbers() -> None:
    class Band(IntEnum):
        URGENT = 1

    found = FlowOptions(priority=Band.URGENT).resolve().priority
    assert found == 1
    assert type(found) is int


@pytest.mark.row("I-04")
def test_range_of_priority_ranges() -> None:
    assert [check_priority_max(value) for value in (1, 5, 100)] == [1, 5, 100]
    for value in (0, 101, -1, True, 5.0, "5", None):
        with pytest.raises(InvalidArgument, match=r"^max_priority is .*from 1 to 100"):
            check_priority_max(value)


@pytest.mark.row("H20")
def test_engine_ids_are_positive() -> None:
    assert check_engine_id(1) == 1
    assert check_engine_id(2**63 - 1) == 2**63 - 1
    for value in (0, -1, 2**63, True, 1.0, "1", None):
        with pytest.raises(InvalidArgument, match=r"^engine_id is ") as caught:
            check_engine_id(value)
        assert caught.value.status == 400


@pytest.mark.row("I-05", "A8")
@pytest.mark.parametrize(
    ("weight", "stored"),
    [(0, 1.0), (0.0, 1.0), (-0.0, 1.0), (0.25, 0.25), (0.01, 0.01), (1, 1.0), (1_048_576, 1_048_576.0), (1_048_576.0, 1_048_576.0)],
)
def test_weights(weight: float, stored: float) -> None:
    found = FlowOptions(fairness_weight=weight).resolve().fairness_weight
    assert found == stored
    assert type(found) is float


@pytest.mark.row("I-05", "I-06", "A8")
@pytest.mark.parametrize(
    "weight", [1_048_577, 1_048_576.0001, -0.5, -1, float("nan"), float("inf"), -float("inf"), 10**400, True, "1", None, 1j]
)
def test_refused_weights(weight: object) -> None:
    refused("^fairness_weight is .*above 0 and at most 1048576, or 0 for 1", fairness_weight=weight)


@pytest.mark.row("I-07", "A9")
@pytest.mark.parametrize("key", ["a" * 256, "tenant-42", "Tenant-42", "a.b_c-9", ".", "-", "0"])
def test_fairness_keys_are_kept_as_they_are(key: str) -> None:
    assert FlowOptions(fairness_key=key).resolve().fairness_key == key


@pytest.mark.row("I-07", "A9")
@pytest.mark.parametrize(
    "key", ["a" * 257, "a b", "a/b", "ä", "a\n", "a\0", "٣", "a:b", "a+b", " ", "\ud800", "a" * 10_000, None, 7, b"a", True]
)
def test_refused_fairness_keys(key: object) -> None:
    refused("^fairness_key is .*at most 256 of the letters A-Z a-z, digits and - _ .", fairness_key=key)


@given(st.text(max_size=20))
def test_a_fairness_key_is_either_kept_or_refused(key: str) -> None:
    legal = all(char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_." for char in key)
    if legal:
        assert FlowOptions(fairness_key=key).resolve().fairness_key == key
    else:
        refused("fairness_key", fairness_key=key)


@pytest.mark.row("I-08", "A5")
@pytest.mark.parametrize(
    ("budget", "stored"),
    [
        (0, 90_000),
        (0.0, 90_000),
        (timedelta(0), 90_000),
        (0.001, 1),
        (timedelta(milliseconds=1), 1),
        (0.3, 300),
        (2, 2000),
        (timedelta(minutes=2), 120_000),
        (0.0014, 1),
        (0.0016, 2),
        (2_147_483.647, 2**31 - 1),
        (2_147_483, 2_147_483_000),
    ],
)
def test_time_budgets(budget: Any, stored: int) -> None:
    assert FlowOptions(time_budget=budget).resolve(time_budget_ms=90_000).time_budget_ms == stored


@pytest.mark.row("I-08", "A5", "A6")
@pytest.mark.parametrize(
    "budget",
    [
        0.0005,
        timedelta(microseconds=999),
        1e-12,
        -1,
        -0.001,
        timedelta(seconds=-1),
        2_147_483.648,
        2_147_484,
        timedelta(days=25),
        1e300,
        10**400,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
        "2m",
        "120",
    ],
)
def test_refused_time_budgets(budget: object) -> None:
    refused("^time_budget is ", time_budget=budget)


@pytest.mark.row("I-08")
def test_a_service_may_bound_the_time_budget() -> None:
    assert FlowOptions(time_budget=900).resolve(time_budget_ceiling_ms=900_000).time_budget_ms == 900_000
    assert FlowOptions().resolve(time_budget_ms=120_000, time_budget_ceiling_ms=60_000).time_budget_ms == 60_000
    with pytest.raises(InvalidArgument, match=r"time_budget is 900\.001; it must be from 0\.001 to 900\.0 seconds"):
        FlowOptions(time_budget=900.001).resolve(time_budget_ceiling_ms=900_000)
    assert check_time_budget(30) == 30_000


class Claims(msgspec.Struct):
    actor: str
    n: int = 5


@dataclasses.dataclass
class Person:
    actor: str


def test_baggage_is_an_object_as_json() -> None:
    for baggage in ({"actor": "ada", "n": 5}, Claims("ada"), State({"actor": "ada", "n": 5})):
        encoded = FlowOptions(baggage=baggage).resolve().baggage
        assert encoded is not None
        assert msgspec.json.decode(encoded) == {"actor": "ada", "n": 5}
    assert FlowOptions(baggage=Person("ada")).resolve().baggage == b'{"actor":"ada"}'
    assert FlowOptions(baggage={}).resolve().baggage == b"{}"
    assert FlowOptions(baggage={"t": "a\0b", "n": 2**70}).resolve().baggage == b'{"t":"a\\u0000b","n":1180591620717411303424}'


@pytest.mark.row("I-12", "A17")
@pytest.mark.parametrize("baggage", [[1], "text", "{}", 5, 0, False, True, b"{}", (1,), 1.5, [], ""])
def test_baggage_that_is_no_object(baggage: object) -> None:
    refused("^baggage must be an object", baggage=baggage)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"raw", "\ud800", {1: 2}])
def test_baggage_that_json_cannot_hold(value: object) -> None:
    error = refused("baggage", baggage={"deep": [value]})
    assert isinstance(error, StateValueError)


def test_baggage_has_a_limit() -> None:
    room = BAGGAGE_BYTES_MAX - len('{"a":""}')
    assert FlowOptions(baggage={"a": "x" * room}).resolve().baggage is not None
    refused("^baggage takes 1048577 bytes as JSON; at most 1048576 are allowed", baggage={"a": "x" * (room + 1)})


def test_resolved_options_do_not_follow_later_changes() -> None:
    baggage = {"a": [1]}
    found = FlowOptions(baggage=baggage).resolve()
    baggage["a"].append(2)
    assert found.baggage == b'{"a":[1]}'
    with pytest.raises(AttributeError):
        found.priority = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(found)) == found


def test_thread_keys() -> None:
    assert FlowOptions(thread_key=str(KEY)).resolve().thread_key == KEY
    for malformed in ("x", f" {KEY}", f"{KEY}-1", KEY.name, str(KEY.step(1)), None, 5):
        error = refused("^thread_key: ", thread_key=malformed)
        assert KEY.token not in str(error)


def test_flags_are_flags() -> None:
    assert FlowOptions(delete_on_completion=True).resolve().delete_on_completion is True
    for value in (1, 0, "true", None):
        refused("^delete_on_completion is .*true or false", delete_on_completion=value)


@pytest.mark.parametrize("key", ["a", "order 42/ä", "k" * 256, "\N{SNOWMAN}" * 256, " padded "])
def test_idempotency_keys_are_kept_as_they_are(key: str) -> None:
    assert FlowOptions(idempotency_key=key).resolve().idempotency_key == key


@pytest.mark.parametrize("key", ["k" * 257, " ", "\u3000", "a\0", "a\nb", "\x7f", "\x85", "\ud800", None, 5, b"a", True])
def test_refused_idempotency_keys(key: object) -> None:
    refused("^idempotency_key is ", idempotency_key=key)


class Nowhere(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None


def test_start_times() -> None:
    local = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    found = FlowOptions(start_at=local).resolve().start_at
    assert found == local
    assert found is not None
    assert found.tzinfo is UTC
    for naive in (datetime(2030, 1, 1), datetime(2030, 1, 1, tzinfo=Nowhere())):  # noqa: DTZ001
        refused("^start_at is 2030-01-01T00:00:00, without a time zone", start_at=naive)
    for value in ("2030-01-01T00:00:00Z", 5, timedelta(5), True, local.date()):
        refused("^start_at is .*must be a datetime", start_at=value)
    refused("^start_at is .*outside the years", start_at=datetime.min.replace(tzinfo=timezone(timedelta(hours=2))))
    refused("^start_at is .*outside the years", start_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-2))))


def test_wire_form() -> None:
    found = FlowOptions.from_wire(
        {
            "priority": 2,
            "fairnessKey": "k",
            "fairnessWeight": 0.5,
            "timeBudget": "1m30s",
            "baggage": {"a": 1},
            "threadKey": str(KEY),
            "deleteOnCompletion": True,
            "idempotencyKey": "i",
            "startAt": "2030-01-01T12:00:00+02:00",
        }
    )
    assert found == FlowOptions(
        priority=2,
        fairness_key="k",
        fairness_weight=0.5,
        time_budget=90,
        baggage={"a": 1},
        thread_key=str(KEY),
        delete_on_completion=True,
        idempotency_key="i",
        start_at=datetime(2030, 1, 1, 10, tzinfo=UTC),
    )
    assert found.resolve().time_budget_ms == 90_000
    assert FlowOptions.from_wire({"timeBudget": 1.5}).resolve().time_budget_ms == 1_500
    assert FlowOptions.from_wire({"timeBudget": "250ms"}).resolve().time_budget_ms == 250


def test_absent_and_null_members_are_defaults() -> None:
    assert FlowOptions.from_wire(None) == FlowOptions.from_wire({}) == FlowOptions()
    assert FlowOptions.from_wire(dict.fromkeys(FlowOptions.__struct_encode_fields__)) == FlowOptions()


@pytest.mark.parametrize("wire", [[], "x", 5, True, [["priority", 1]]])
def test_wire_options_are_an_object(wire: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^options must be an object"):
        FlowOptions.from_wire(wire)


@pytest.mark.parametrize("member", ["fairness_key", "Priority", "tenant", "", "timeBudgetMs", "__class__"])
def test_unknown_members_are_refused(member: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^options has no member '{member}'; it has priority, fairnessKey"):
        FlowOptions.from_wire({member: 1})


@pytest.mark.parametrize(
    ("wire", "match"),
    [
        ({"timeBudget": "soon"}, r"^options\.timeBudget is 'soon'"),
        ({"startAt": "tomorrow"}, r"^options\.startAt is 'tomorrow'"),
        ({"startAt": "2030-01-01T00:00:00"}, r"^options\.startAt is 2030-01-01T00:00:00, without a time zone"),
        ({"startAt": 5}, r"^options\.startAt is 5"),
        ({"startAt": "2030-13-01T00:00:00Z"}, r"^options\.startAt"),
        ({"startAt": "0001-01-01T00:00:00+10:00"}, r"^options\.startAt"),
        ({"priority": "high"}, "^priority is 'high'"),
        ({"timeBudget": True}, "^time_budget is True"),
        ({"baggage": [1]}, "^baggage must be an object"),
    ],
)
def test_refused_wire_members(wire: object, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        FlowOptions.from_wire(wire).resolve()


def test_repr_shows_neither_claims_nor_tokens() -> None:
    text = repr(FlowOptions(priority=2, baggage={"secret": 1}, thread_key=str(KEY), time_budget=2))
    assert text == "FlowOptions(priority=2, time_budget=2, baggage=…, thread_key=…)"
    assert repr(FlowOptions()) == "FlowOptions()"


def test_a_tenant_names_the_default_key_and_bounds_named_ones() -> None:
    assert scoped_fairness_key("", tenant="acme", is_admin=False) == "acme"
    assert scoped_fairness_key("", tenant="acme", is_admin=True) == "acme"
    assert scoped_fairness_key("batch", tenant="acme", is_admin=False) == "acme.batch"
    assert scoped_fairness_key("batch", tenant="acme", is_admin=True) == "batch"
    assert scoped_fairness_key("batch", tenant="", is_admin=False) == "batch"
    assert scoped_fairness_key("", tenant="", is_admin=False) == ""
    for tenant, key in (("acme", "a b"), ("acme", "k" * 252), ("", "a b")):
        with pytest.raises(InvalidArgument, match=r"^fairness_key is "):
            scoped_fairness_key(key, tenant=tenant, is_admin=False)


def test_a_tenant_of_any_text_gets_a_key_of_its_own() -> None:
    tenants = ["org|42", "org_42", "org 42", "ä", "ö", "x" * 300, "x" * 301, "\ud800", "a" * 256]
    keys = [FlowOptions(fairness_key=scoped_fairness_key("", tenant=tenant, is_admin=False)).resolve().fairness_key for tenant in tenants]
    assert len(set(keys)) == len(tenants)
    assert keys[0].startswith("org_42-")
    assert scoped_fairness_key("k", tenant="org|42", is_admin=False) == keys[0] + ".k"
