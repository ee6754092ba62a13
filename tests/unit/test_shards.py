import pickle
from typing import Any

import msgspec
import pytest

from dwarf.errors import InvalidArgument
from dwarf.shards import Shard, ShardInfo, check_shards

DSN = "postgresql://ada:hunter2@db/one"


@pytest.mark.row("J1")
def test_shards_of_any_positive_index() -> None:
    assert [shard.index for shard in check_shards([Shard(99, DSN), Shard(1, "host=two")])] == [1, 99]
    found = Shard(1, DSN)
    assert (found.weight, found.cordoned, found.max_connections) == (1, False, 0)


@pytest.mark.row("J1")
@pytest.mark.parametrize("index", [0, -1, 2**31, True, 1.0, "1", None])
def test_refused_indexes(index: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^a shard's index is ") as caught:
        Shard(index, DSN)
    assert caught.value.status == 400
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("weight", [0, -1, 0.0, float("nan"), float("inf"), 10**400, 1_000_000_001, True, "1", None])
def test_refused_weights(weight: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^shard 2: its weight is ") as caught:
        Shard(2, DSN, weight=weight)
    assert "hunter2" not in str(caught.value)


def test_fractional_weights() -> None:
    assert Shard(2, DSN, weight=0.25).weight == 0.25


@pytest.mark.parametrize("dsn", ["", "  ", "host=a\0b", "x" * 10_000, None, b"host=a", 5])
def test_refused_connection_strings(dsn: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^shard 2: its dsn must be ") as caught:
        Shard(2, dsn)
    assert "host=a" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"cordoned": 1}, {"cordoned": None}, {"max_connections": -1}, {"max_connections": 1.5}, {"max_connections": True}]
)
def test_refused_settings(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(InvalidArgument, match=f"^shard 2: {name} is "):
        Shard(2, DSN, **settings)


@pytest.mark.row("J1")
def test_duplicates_are_refused_without_showing_a_password() -> None:
    for shards, match in (
        ([Shard(1, DSN), Shard(1, "host=two")], "shard 1 is configured twice"),
        ([Shard(1, DSN), Shard(1, DSN)], "shard 1 is configured twice"),
        ([Shard(1, DSN), Shard(2, DSN)], "shards 1 and 2 have the same dsn"),
        ([Shard(2, DSN), Shard(3, "host=two"), Shard(1, DSN + " ")], "shards 2 and 1 have the same dsn"),
    ):
        with pytest.raises(InvalidArgument, match=match) as caught:
            check_shards(shards)
        assert "hunter2" not in str(caught.value)


def test_a_configuration_has_shards() -> None:
    with pytest.raises(InvalidArgument, match="at least one is needed"):
        check_shards([])
    for item in (DSN, {"index": 1, "dsn": DSN}, None):
        with pytest.raises(InvalidArgument, match=r"^shards must hold Shard objects") as caught:
            check_shards([item])  # type: ignore[list-item]
        assert "hunter2" not in str(caught.value)


def test_a_shard_shows_no_password() -> None:
    found = Shard(1, DSN, weight=2, cordoned=True)
    assert repr(found) == str(found) == "Shard(1, dsn=…, weight=2, cordoned, max_connections=0)"
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_shard_reads_from_a_table_of_settings() -> None:
    found = msgspec.convert({"index": 1, "dsn": DSN, "weight": 2, "cordoned": True, "max_connections": 40}, Shard)
    assert found == Shard(1, DSN, weight=2, cordoned=True, max_connections=40)
    with pytest.raises(msgspec.ValidationError, match="wieght"):
        msgspec.convert({"index": 1, "dsn": DSN, "wieght": 2}, Shard)
    with pytest.raises(InvalidArgument):
        msgspec.convert({"index": 0, "dsn": DSN}, Shard)


def test_shard_info_fields() -> None:
    assert (
        " ".join(ShardInfo.__struct_fields__)
        == "index status latency_ms flows_open steps_pending steps_running oldest_pending_seconds dispatchers cordoned error version"
    )
    down = ShardInfo(index=2, status="down", error="connection refused")
    assert (down.latency_ms, down.flows_open) == (None, 0)
    assert list(msgspec.json.decode(msgspec.json.encode(down)))[:4] == ["index", "status", "latencyMs", "flowsOpen"]


def test_no_way_of_showing_a_shard_shows_its_dsn() -> None:
    shard = Shard(1, "host=db password=hunter2")
    assert "hunter2" not in repr(shard) + str(shard) + str(shard.__rich_repr__())
