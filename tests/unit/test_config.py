"""What a replica is told: file, variables, flags, and how each is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dwarf import InvalidArgument, Shard
from dwarf.config import Config, load
from dwarf.settings import NAMES, Settings, check

DSN = "postgresql://u:hunter2@db/one"
FILE = f"""
app = "shop:app"
executors = 3
time_budget = "2m"
flow_expiration = "30d"
[[shards]]
index = 1
dsn = "{DSN}"
[[shards]]
index = 7
dsn = "postgresql://u:hunter2@db/two"
weight = 2.5
cordoned = true
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(environ: dict[str, str] | None = None, path: Path | None = None, **flags: Any) -> Config:
    return load(path, environ=environ or {}, flags=flags)


def test_a_file(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    config = told()
    assert config.app == "shop:app"
    assert config.settings == Settings(executors=3, time_budget=120.0, flow_expiration=30 * 86_400.0)
    assert [(shard.index, shard.weight, shard.cordoned) for shard in config.shards] == [(1, 1, False), (7, 2.5, True)]
    (place / "dwarf.toml").rename(place / "other.toml")
    assert told(path=place / "other.toml") == config


def test_variables_go_over_the_file_and_flags_over_variables(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    environ = {
        "DWARF_EXECUTORS": "5",
        "DWARF_GRACE": "90s",
        "DWARF_WORKERS": "",
        "DWARF_FAULT": "x",
        "HOME": "/",
        "DWARF_RETENTION_DAYS": "none",
    }
    config = told(environ, grace="1m30s", app="mine:app")
    assert config.app == "mine:app"
    assert (config.settings.executors, config.settings.grace, config.settings.retention_days) == (5, 90.0, None)
    assert told({"DWARF_DSN": DSN, "DWARF_APP": "a:b"}).shards == [Shard(1, DSN)]
    assert told({"DWARF_SHARDS": f'[{{"index": 4, "dsn": "{DSN}"}}]'}).shards == [Shard(4, DSN)]
    assert told(dsn="host=x").shards == [Shard(1, "host=x")]


def test_every_setting_has_a_variable(place: Path) -> None:
    values = {name: "deadline" if name == "takeover" else "7" for name in NAMES} | {"max_priority": "9"}
    settings = told({f"DWARF_{name.upper()}": text for name, text in values.items()}, app="a:b", dsn=DSN).settings
    assert settings == check({name: "deadline" if name == "takeover" else 9 if name == "max_priority" else 7 for name in NAMES})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("executors = 0", "executors is 0"),
        ("executors = true", "executors is True"),
        ("executers = 1", "did you mean executors"),
        ('grace = "soon"', "grace"),
        ("grace = -1", "grace is -1"),
        ('takeover = "force"', "takeover is 'force'"),
        ("max_priority = 101", "101"),
        ("time_budget = 0", "time_budget"),
        ('app = "shop"', "MODULE:ATTRIBUTE"),
        ("app = 7", "app is 7"),
        ("shards = 7", "must be a list"),
        ("[[shards]]\nindex = 1", "an index and a dsn"),
        (f'[[shards]]\nindex = 0\ndsn = "{DSN}"', "shard's index is 0"),
        (f'[[shards]]\nindex = 1\ndsn = "{DSN}"\nwieght = 1', "did you mean weight"),
        ("nonsense", "no TOML"),
    ],
)
def test_what_a_file_must_not_say(place: Path, text: str, says: str) -> None:
    (place / "dwarf.toml").write_text(text)
    environ = {} if "shards" in text else {"DWARF_DSN": DSN}
    flags: dict[str, Any] = {} if "app" in text else {"app": "a:b"}
    with pytest.raises(InvalidArgument) as refused:
        told(environ, **flags)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)
    if "app" not in text:
        assert "dwarf.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("DWARF_EXECUTORS", "many", "executors is 'many'"),
        ("DWARF_EXECUTOR", "1", "did you mean DWARF_EXECUTORS"),
        ("DWARF_GRACE", "1 minute", "grace"),
        ("DWARF_SHARDS", f"{DSN}", "no JSON"),
        ("DWARF_SHARDS", "{}", "must be a list"),
        ("DWARF_ENGINE_ID", "-1", "engine_id"),
    ],
)
def test_what_a_variable_must_not_say(place: Path, variable: str, text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        told({variable: text}, app="a:b", dsn=DSN)
    assert says in str(refused.value)
    assert variable in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_what_must_be_told(place: Path) -> None:
    with pytest.raises(InvalidArgument, match="no App"):
        told(dsn=DSN)
    with pytest.raises(InvalidArgument, match="no shard"):
        told(app="a:b")
    with pytest.raises(InvalidArgument, match=r"other\.toml cannot be read"):
        told(path=place / "other.toml", app="a:b", dsn=DSN)
    with pytest.raises(InvalidArgument, match="configured twice"):
        told({"DWARF_SHARDS": '[{"index": 1, "dsn": "a=1"}, {"index": 1, "dsn": "b=1"}]'}, app="a:b")


def test_it_travels_and_shows_no_secrets(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    config = told()
    assert Config.from_json(config.to_json()) == config
    assert "hunter2" not in repr(config)
