"""What a replica is told: file, variables, flags, and how each is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dwarf import InvalidArgument, Shard
from dwarf.config import KNOWN, Auth, Config, Http, load
from dwarf.settings import DURATIONS, NAMES, Settings, check

DSN = "postgresql://u:hunter2@db/one"
FILE = f"""
app = "shop:app"
executors = 3
time_budget = "2m"
flow_expiration = "30d"
wait_ceiling = "none"
unknown_task = "fail"

[http]
host = "::"
port = 9090

[auth]
mode = "hs256"
secret = "hunter2 and more"
issuer = "https://login"

[[shards]]
index = 7
dsn = "postgresql://u:hunter2@db/two"
weight = 2.5
cordoned = true
max_connections = 40

[[shards]]
index = 1
dsn = "{DSN}"
"""
TEXTS: dict[str, Any] = {"takeover": "deadline", "unknown_task": "fail", "scheduler": "chain"}  # of settings that are no numbers


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(environ: dict[str, str] | None = None, path: Path | str | None = None, **flags: Any) -> Config:
    return load(path, environ=environ or {}, flags=flags)


def refusal(environ: dict[str, str] | None = None, path: Path | str | None = None, **flags: Any) -> str:
    """Return why it is refused; nothing secret is in it, nor in what led to it."""
    with pytest.raises(InvalidArgument) as refused:
        told(environ, path, **flags)
    assert "hunter2" not in str(refused.value) + repr(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return str(refused.value)


# ---- the file ----


def test_a_file(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    config = told()
    assert config.app == "shop:app"
    assert config.settings == Settings(
        executors=3, time_budget=120.0, flow_expiration=30 * 86_400.0, wait_ceiling=None, unknown_task="fail"
    )
    assert [(shard.index, shard.weight, shard.cordoned) for shard in config.shards] == [(1, 1, False), (7, 2.5, True)]
    assert config.shards[1].max_connections == 40
    assert config.http == Http(host="::", port=9090)
    assert config.auth == Auth(mode="hs256", secret="hunter2 and more", issuer="https://login")


def test_the_file_may_be_elsewhere(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    config = told()
    (place / "dwarf.toml").rename(place / "other.toml")
    assert told(path=place / "other.toml") == told(path="other.toml") == config
    (place / "dwarf.toml").write_text("executors = 9")
    assert told(path="other.toml") == config, "the file of the folder is not read beside it"


def test_no_file_is_needed_but_one_that_is_named_must_be_there(place: Path) -> None:
    assert told(app="a:b", dsn=DSN) == Config(app="a:b", shards=[Shard(1, DSN)])
    assert refusal(path="other.toml", app="a:b", dsn=DSN) == "other.toml cannot be read: No such file or directory"
    assert "cannot be read" in refusal(path=place, app="a:b", dsn=DSN)
    (place / "dwarf.toml").symlink_to("nowhere")
    assert refusal(app="a:b", dsn=DSN).startswith("dwarf.toml cannot be read")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("executors = 0", "executors is 0; it must be a whole number from 1 to 1024"),
        ("executors = true", "executors is True"),
        ('executors = "2"', "executors is '2'"),
        ("executors = 2.0", "executors is 2.0"),
        ("executors = {}", "executors is of type dict"),
        (f"workers = {10**30}", "workers is a number of more than 18 digits"),
        ("executers = 1", "'executers' is no setting; did you mean executors?"),
        ("port = 80", "'port' is no setting; did you mean http.port?"),
        ("[http]\nexecutors = 2", "'http.executors' is no setting; did you mean executors?"),
        ("[http]\nprot = 80", "did you mean http.port?"),
        ("[auth]\nsecert = 'hunter2'", "did you mean auth.secret?"),
        ("[dwarf]\nworkers = 3", "'dwarf' is no setting"),
        ("'postgresql://u:hunter2@db' = 1", "a text that is no name is no setting"),
        ('grace = "soon"', "grace is 'soon'"),
        ("grace = 00:01:30", "grace is of type time"),
        ("grace = -1", "grace is -1; it must be at least 0 seconds"),
        ("grace = nan", "grace is nan"),
        ('takeover = "force"', "takeover is 'force'"),
        ("max_priority = 101", "max_priority is 101"),
        ("time_budget = 0", "time_budget is 0"),
        ('time_budget = "0"', "time_budget is 0"),
        ('session_seconds = "25d"', "session_seconds is 2160000.0; it must be at most 2147483 seconds"),
        ("engine_id = 0", "engine_id is 0"),
        ("poison_limit = 0", "poison_limit is 0"),
        ('unknown_task = "drop"', "unknown_task is 'drop'"),
        ('scheduler = ""', "scheduler is ''"),
        ('app = "shop"', "app is 'shop'; it must be MODULE:ATTRIBUTE"),
        ('app = ":app"', "MODULE:ATTRIBUTE"),
        ('app = "shop:"', "MODULE:ATTRIBUTE"),
        ('app = "shop.py:app"', None),
        ('app = "examples/shop:app"', "MODULE:ATTRIBUTE"),
        ('app = ".shop:app"', "MODULE:ATTRIBUTE"),
        (f'app = "{DSN}"', "app is not shown here; it must be MODULE:ATTRIBUTE"),
        ('scheduler = " host=db password=hunter2"', "scheduler is not shown here"),
        (f'grace = "{DSN}"', "grace is not shown here; a text such as 15m"),
        ("app = 7", "app is 7"),
        ("http = 7", "http must be a table, [http], with host, port"),
        ("[[auth]]", "auth must be a table, [auth], with mode, secret"),
        ("[http]\nport = 65536", "http.port is 65536; it must be a whole number from 1 to 65535, or 0 for any that is free"),
        ('[http]\nport = "80"', "http.port is '80'"),
        ('[http]\nhost = ""', "http.host is ''"),
        ('[http]\nhost = "a b"', "http.host is 'a b'"),
        ('[http]\nhost = "http://a"', "http.host is not shown here"),
        ('[auth]\nmode = "HS256"', "auth.mode is 'HS256'; it must be 'none', 'hs256' or 'jwks'"),
        ('[auth]\nmode = "hs256"', "auth.mode is 'hs256', which needs auth.secret"),
        ('[auth]\nmode = "jwks"\nsecret = "hunter2"', "auth.mode is 'jwks', which needs auth.jwks_url"),
        ('[auth]\nsecret = "hunter2"', "auth.secret is set but auth.mode is not"),
        ('[auth]\nmode = "hs256"\nsecret = ""', "auth.secret must be text"),
        ('[auth]\nmode = "hs256"\nsecret = ["hunter2"]', "auth.secret must be text"),
        ('[auth]\nmode = "jwks"\njwks_url = "hunter2.example/keys?a=b"', "auth.jwks_url is not shown here; it must be a URL"),
        ('[auth]\nmode = "jwks"\njwks_url = "ftp://u:hunter2@h"', "auth.jwks_url is not shown here"),
        ("[auth]\nmode = 'none'\nissuer = 7", "auth.issuer is 7; it must be text"),
        ("shards = 7", "shards must be a list"),
        ("shards = []", "no shard is configured"),
        ("shards = [7]", "shard number 1 of the list must have an index and a dsn"),
        (f"[shards]\nindex = 1\ndsn = '{DSN}'", "shards must be a list"),
        ("[[shards]]\nindex = 1", "shard number 1 of the list must have an index and a dsn"),
        (f'[[shards]]\nindex = 0\ndsn = "{DSN}"', "shard's index is 0"),
        (f'[[shards]]\nindex = "{DSN}"\ndsn = 1', "index is text"),
        (f'[[shards]]\nindex = 1\ndsn = "{DSN}"\nwieght = 1', "'wieght' is no setting of a shard; did you mean weight?"),
        (f'[[shards]]\nindex = 1\ndsn = "{DSN}"\nweight = "{DSN}"', "shard 1: its weight is not shown here"),
        (f'[[shards]]\nindex = 1\ndsn = "{DSN}"\ncordoned = 1', "shard 1: cordoned is 1"),
        (f'[[shards]]\nindex = 1\ndsn = "{DSN}"\n[[shards]]\nindex = 1\ndsn = "x=1"', "shard 1 is configured twice"),
        (f'[[shards]]\nindex = 1\ndsn = "{DSN}"\n[[shards]]\nindex = 2\ndsn = "{DSN}"', "have the same dsn"),
        ("nonsense", "is no TOML: Expected '=' after a key"),
        (f'["{DSN}"]\n["{DSN}"]', "is no TOML: Cannot declare (a text that is no name,) twice"),
        ("[http]\n[http]", "is no TOML: Cannot declare ('http',) twice"),
        ("executors = 2\nexecutors = 3", "is no TOML"),
        (f"dsn = {DSN}", "is no TOML"),
        (f"executors = {'9' * 5_000}", "is no TOML"),
        (f"executors = {'[' * 9_000}", "is no TOML"),
    ],
)  # fmt: skip
def test_what_a_file_must_not_say(place: Path, text: str, says: str | None) -> None:
    (place / "dwarf.toml").write_text(text)
    given: dict[str, Any] = ({} if "shards" in text else {"dsn": DSN}) | ({} if "app =" in text else {"app": "a:b"})
    if says is None:
        assert told(**given).app
        return
    message = refusal(**given)
    assert says in message
    assert message.startswith("dwarf.toml")


def test_a_file_is_utf_8_whatever_the_locale(place: Path) -> None:
    (place / "dwarf.toml").write_bytes('scheduler = "grün"'.encode())
    assert told(app="a:b", dsn=DSN).settings.scheduler == "grün"
    (place / "dwarf.toml").write_bytes('scheduler = "grün"'.encode("latin-1"))
    assert refusal(app="a:b", dsn=DSN).startswith("dwarf.toml is no TOML")


# ---- precedence ----


def test_variables_go_over_the_file_and_flags_over_variables(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    environ = {
        "DWARF_EXECUTORS": "5", "DWARF_GRACE": "90s", "DWARF_WORKERS": "", "DWARF_RETENTION_DAYS": "none", "DWARF_THREADS": "4",
        "DWARF_HTTP_PORT": "1", "DWARF_AUTH_ISSUER": "me", "DWARF_APP": "yours:app", "HOME": "/",
    }  # fmt: skip
    config = told(environ, grace="1m30s", app="mine:app", threads="8", http_host="localhost", workers=None)
    assert config.app == "mine:app"
    assert config.settings == Settings(
        executors=5, time_budget=120.0, flow_expiration=30 * 86_400.0, wait_ceiling=None, unknown_task="fail",
        grace=90.0, retention_days=None, threads=8,
    )  # fmt: skip
    assert config.http == Http(host="localhost", port=1)
    assert config.auth == Auth(mode="hs256", secret="hunter2 and more", issuer="me")


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in {"shards", "auth.mode"}])
def test_each_source_goes_over_the_one_before_it(place: Path, name: str) -> None:
    file, variable, flag = _three(name)
    shards = f'\n[[shards]]\nindex = 1\ndsn = "{DSN}"\n'
    table, _, member = name.rpartition(".")
    mode = 'mode = "none"\n' if table == "auth" else ""
    line = f"{member} = {file!r}\n" if not table else f"[{table}]\n{mode}{member} = {file!r}\n"
    (place / "dwarf.toml").write_text(line + shards)
    key = name.replace(".", "_")
    others = {} if name == "app" else {"app": "a:b"}

    def value(environ: dict[str, str], **flags: Any) -> object:
        config = told(environ, **others, **flags)
        part = config if name == "app" else config.settings if not table else getattr(config, table)
        return getattr(part, member)

    unlike = {f"DWARF_{key.upper()}": str(variable)}
    assert str(value({})) == str(float(file) if name in DURATIONS else file)
    assert str(value(unlike)) == str(float(variable) if name in DURATIONS else variable)
    assert str(value(unlike, **{key: str(flag)})) == str(float(flag) if name in DURATIONS else flag)
    assert value(dict.fromkeys(unlike, "")) == value({}), "an empty variable is none"
    assert value({}, **{key: None}) == value({}), "a flag that is not given is none"


def _three(name: str) -> tuple[Any, Any, Any]:
    texts = {
        "takeover": ("deadline", "session", "deadline"), "unknown_task": ("fail", "wait", "fail"), "http.host": ("a", "b", "c"),
        "auth.jwks_url": ("https://a/", "https://b/", "https://c/"), "app": ("a:x", "b:x", "c:x"), "http.port": (11, 12, 13),
    }  # fmt: skip
    if name in texts:
        return texts[name]
    return ("one", "two", "three") if name not in NAMES or name == "scheduler" else (11, 12, 13)


def test_a_wrong_value_is_refused_where_it_stands_although_another_goes_over_it(place: Path) -> None:
    (place / "dwarf.toml").write_text("executors = 0")
    assert refusal({"DWARF_EXECUTORS": "2"}, app="a:b", dsn=DSN, executors="3").startswith("dwarf.toml: executors is 0")
    (place / "dwarf.toml").write_text("")
    assert refusal({"DWARF_EXECUTORS": "0"}, app="a:b", dsn=DSN, executors="3").startswith("DWARF_EXECUTORS: executors is 0")


def test_shards_are_replaced_as_a_whole(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    assert told({"DWARF_DSN": DSN}).shards == [Shard(1, DSN)]
    assert told({"DWARF_SHARDS": f'[{{"index": 4, "dsn": "{DSN}", "weight": 3}}]'}).shards == [Shard(4, DSN, weight=3)]
    assert told({"DWARF_SHARDS": f'[{{"index": 4, "dsn": "{DSN}"}}]'}, dsn="host=x").shards == [Shard(1, "host=x")]
    assert "DWARF_DSN and DWARF_SHARDS are both set" in refusal({"DWARF_DSN": DSN, "DWARF_SHARDS": "[]"})
    assert "--dsn and --shards are both given" in refusal(dsn=DSN, shards="[{}]".replace("{}", f'{{"index": 1, "dsn": "{DSN}"}}'))


def test_what_one_source_names_another_may_complete(place: Path) -> None:
    (place / "dwarf.toml").write_text('[auth]\nmode = "hs256"')
    assert told({"DWARF_AUTH_SECRET": "hunter2"}, app="a:b", dsn=DSN).auth == Auth(mode="hs256", secret="hunter2")
    (place / "dwarf.toml").write_text(FILE)
    assert told({"DWARF_AUTH_MODE": "none"}).auth.mode == "none"
    assert refusal({"DWARF_AUTH_MODE": "jwks"}).startswith("DWARF_AUTH_MODE: ")
    assert refusal({"DWARF_AUTH_SECRET": "hunter2"}, "/dev/null", app="a:b", dsn=DSN).startswith("DWARF_AUTH_SECRET: auth.secret is set")


# ---- variables and flags ----


def test_every_setting_has_a_variable_and_a_flag(place: Path) -> None:
    texts: dict[str, Any] = {name: TEXTS.get(name, "7") for name in NAMES}
    numbers: dict[str, Any] = {name: TEXTS.get(name, 7) for name in NAMES}
    wanted = check(numbers)
    assert told({f"DWARF_{name.upper()}": text for name, text in texts.items()}, app="a:b", dsn=DSN).settings == wanted
    assert told(**texts, app="a:b", dsn=DSN).settings == wanted
    assert told(**numbers, app="a:b", dsn=DSN).settings == wanted, "flags may be numbers"


WRONG = [
    ("EXECUTORS", "many", "executors is 'many'; it must be a whole number"),
    ("EXECUTORS", " ", "executors is ' '"),
    ("EXECUTORS", DSN, "executors is not shown here; it must be a whole number"),
    ("EXECUTORS", "password=hunter2", "executors is not shown here"),
    ("GRACE", "1 minute", "grace is '1 minute'"),
    ("TAKEOVER", DSN, "takeover is not shown here; it must be 'session' or 'deadline'"),
    ("ENGINE_ID", "-1", "engine_id is -1"),
    ("WORKERS", "none", "workers is 'none'"),
    ("APP", DSN, "app is not shown here"),
    ("APP", "a\udcff:b", "app is no UTF-8"),
    ("HTTP_PORT", "http", "http.port is 'http'"),
    ("HTTP_PORT", "-1", "http.port is -1"),
    ("HTTP_HOST", "[::1]", "http.host is '[::1]'"),
    ("AUTH_MODE", "on", "auth.mode is 'on'"),
    ("AUTH_SECRET", " ", "auth.secret must be text"),
    ("AUTH_SECRET", "hunter2" * 2_000, "auth.secret must be text of at most 8192"),
    ("AUTH_JWKS_URL", "hunter2=", "auth.jwks_url is not shown here"),
    ("SHARDS", DSN, "the shards are no JSON"),
    ("SHARDS", "{}", "shards must be a list"),
    ("SHARDS", "[]", "no shard is configured"),
    ("SHARDS", "[" * 100_000, "no JSON"),
    ("SHARDS", '[{"index": 1}]', "shard number 1 of the list must have an index and a dsn"),
    ("SHARDS", f'[{{"index": 1, "dsn": "{DSN}", "{DSN}": 1}}]', "shard number 1 of the list: a text that is no name"),
    ("SHARDS", f'[{{"index": 1, "dsn": "{DSN}", "weight": "{DSN}"}}]', "shard 1: its weight is not shown here"),
    ("SHARDS", f'[{{"index": 1, "dsn": ["{DSN}"]}}]', "shard 1: its dsn must be text"),
    ("SHARDS", '[{"index": 1, "dsn": "hunter2\\u0000"}]', "shard 1: its dsn must be"),
    ("SHARDS", f'[{{"index": 1, "dsn": "{DSN}"}}, {{"index": 1, "dsn": "b=1"}}]', "configured twice"),
    ("DSN", " ", "shard 1: its dsn must be"),
    ("DSN", "hunter2\udcff", "dsn is no UTF-8"),
]


@pytest.mark.parametrize(("name", "text", "says"), WRONG)
def test_what_a_variable_must_not_say(place: Path, name: str, text: str, says: str) -> None:
    message = refusal({f"DWARF_{name}": text}, **({} if name == "APP" else {"app": "a:b"}), dsn=DSN)
    assert message.startswith(f"DWARF_{name}: ")
    assert says in message


@pytest.mark.parametrize(("name", "text", "says"), WRONG)
def test_what_a_flag_must_not_say(place: Path, name: str, text: str, says: str) -> None:
    flag = name.lower()
    environ = {} if flag in {"dsn", "shards"} else {"DWARF_DSN": DSN}
    message = refusal(environ, **{"app": "a:b", flag: text})
    assert message.startswith("APP: " if flag == "app" else f"--{flag.replace('_', '-')}: ")
    assert says in message


def test_unknown_variables_and_flags(place: Path) -> None:
    assert refusal({"DWARF_EXECUTOR": "1"}, app="a:b", dsn=DSN) == (
        "the environment: 'DWARF_EXECUTOR' is no variable of a setting; did you mean DWARF_EXECUTORS?"
    )
    assert "did you mean DWARF_HTTP_PORT?" in refusal({"DWARF_HTTPPORT": "1"}, app="a:b", dsn=DSN)
    assert "did you mean DWARF_FAULT" not in refusal({"DWARF_FAULTS": "1"}, app="a:b", dsn=DSN)
    assert "'DWARF_executors'" in refusal({"DWARF_executors": "1"}, app="a:b", dsn=DSN)
    assert "did you mean http_port?" in refusal(app="a:b", dsn=DSN, httpport="1")
    assert "--dsn" in refusal(app="a:b", dsn=7)


def test_variables_of_others_are_left_alone(place: Path) -> None:
    environ = {
        "DWARF_FAULT": "claim.sent", "DWARF_PG": "18", "DWARF_PG_BIN_15": "/nowhere", "DWARF_TEST_HEAVY": "1", "DWARF_SCALE": "1",
        "DWARF_EXECUTER": "", "DWARVES": "7", "dwarf_executors": "x",
    }  # fmt: skip
    assert told(environ, app="a:b", dsn=DSN) == told(app="a:b", dsn=DSN)


def test_what_kubernetes_says_of_services_is_left_alone(place: Path) -> None:
    for service in ("DWARF", "DWARF_API", "DWARF_HTTP"):
        links = {
            f"{service}_SERVICE_HOST": "10.0.0.1", f"{service}_SERVICE_PORT": "80", f"{service}_SERVICE_PORT_WEB": "80",
            f"{service}_PORT": "tcp://10.0.0.1:80", f"{service}_PORT_80_TCP": "tcp://10.0.0.1:80", f"{service}_PORT_80_TCP_PROTO": "tcp",
            f"{service}_PORT_80_TCP_PORT": "80", f"{service}_PORT_80_TCP_ADDR": "10.0.0.1",
        }  # fmt: skip
        assert told(links, app="a:b", dsn=DSN) == told(app="a:b", dsn=DSN)
    assert "did you mean DWARF_HTTP_PORT?" in refusal({"DWARF_PORT": "8080"}, app="a:b", dsn=DSN)


def test_what_must_be_told(place: Path) -> None:
    assert refusal(dsn=DSN).startswith("no App is named")
    assert refusal(app="a:b").startswith("no shard is configured")
    assert load(environ={"DWARF_DSN": DSN}, flags={}, needs_app=False).app == ""


# ---- on the way to other processes ----


def test_it_travels(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    for config in (told(), told(dsn=DSN), told({f"DWARF_{name.upper()}": TEXTS.get(name, "7") for name in NAMES})):
        assert Config.from_json(config.to_json()) == config
        assert b"hunter2" in config.to_json()


@pytest.mark.parametrize("data", [b"", b"{}", b"7", b"\xff", b'{"app": "a:b", "shards": "hunter2"}', b'{"app": "hunter2'])
def test_what_is_no_configuration(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Config.from_json(data)
    assert "hunter2" not in str(refused.value)


def test_rules_hold_on_the_way(place: Path) -> None:
    data = told(app="a:b", dsn=DSN).to_json()
    for was, wrong in ((b'"executors":2', b'"executors":0'), (b'"index":1', b'"index":0'), (b'"executors"', b'"executers"')):
        assert was in data
        with pytest.raises(InvalidArgument):
            Config.from_json(data.replace(was, wrong))


def test_it_shows_no_secrets(place: Path) -> None:
    (place / "dwarf.toml").write_text(FILE)
    config = told()
    assert repr(config) == "Config('shop:app', 2 shards)"
    for each in (config, config.auth, config.http, config.settings, config.shards, [config]):
        assert "hunter2" not in f"{each} {each!r}"
    assert "hunter2" not in f"{config.__rich_repr__()} {config.auth.__rich_repr__()}"


# ---- the page ----


def test_the_example_of_the_page_is_read(place: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
    [example] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (place / "dwarf.toml").write_text(example)
    config = told({"DWARF_AUTH_SECRET": "hunter2"})
    assert len(config.shards) == len(tomllib.loads(example)["shards"]) == 2
    for name in KNOWN:
        assert f"`{name}`" in text
