"""What a replica of the service is told: `dwarf.toml`, over it `DWARF_` variables, over these the flags of the command.

    executors = 2                    DWARF_EXECUTORS=2             --executors 2      any setting of `dwarf.settings`
    app = "examples.audit:app"       DWARF_APP=…                   what the executors import
    [http]
    port = 8080                      DWARF_HTTP_PORT=8080          --http-port 8080
    [[shards]]                       DWARF_DSN=…                   one shard, with index 1
    index = 1                        DWARF_SHARDS='[{"index": 1, "dsn": "…"}, …]'
    dsn = "postgresql://…"

Owns where a value comes from; the rules are those of `dwarf.settings` and `dwarf.shards`. Every value is held to its rule where
it stands, even where another source overrides it. Every error names the source and the key; none shows a connection string or
a secret, not even one that stands in the wrong place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dwarf.checks import check_text, check_whole, shown
from dwarf.errors import InvalidArgument
from dwarf.limits import NAME_CHARS_MAX
from dwarf.settings import NAMES, Settings, check, check_known, check_setting, one_of, read_text, read_value, read_whole
from dwarf.shards import Shard, check_shards

FILE = "dwarf.toml"
PREFIX = "DWARF_"
HTTP_HOST_DEFAULT = "127.0.0.1"
HTTP_PORT_DEFAULT = 8080
HOST_CHARS_MAX = 255
PORT_MAX = 65_535
SECRET_CHARS_MAX = 8_192
MODES = ("none", "hs256", "jwks")
OTHERS = frozenset({"DWARF_FAULT", "DWARF_PG", "DWARF_SCALE"})  # variables that are no settings
OTHERS_BEGIN = ("DWARF_PG_BIN_", "DWARF_TEST_")

# What Kubernetes puts into the environment of every pod beside a service whose name begins with "dwarf".
_link = re.compile(r"DWARF_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)")
_link_to = re.compile(r"(?:tcp|udp|sctp)://")
_connection = re.compile("://|=")  # in no value that may be shown, and in all connection strings
_quoted = re.compile(r"""(["'])((?:\\.|(?!\1).)*)\1""")  # single characters and keys, in what the reader of TOML says


class Http(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the HTTP door listens. Port 0: any that is free."""

    host: str = HTTP_HOST_DEFAULT
    port: int = HTTP_PORT_DEFAULT


class Auth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How callers show who they are: "none", or bearer tokens signed by `secret` ("hs256") or by a key at `jwks_url` ("jwks")."""

    mode: str = "none"
    secret: str = ""
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""

    def __repr__(self) -> str:
        return f"Auth({self.mode!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("mode", self.mode)]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a replica is told. `to_json` holds connection strings and secrets: it is for its own processes alone."""

    app: str
    shards: list[Shard]
    settings: Settings = Settings()
    http: Http = Http()
    auth: Auth = Auth()

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> Config:
        """Read what `to_json` wrote. Raises `InvalidArgument`."""
        try:
            config = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"this is no configuration of a replica: {error}") from None
        check(msgspec.structs.asdict(config.settings))
        return config

    def __repr__(self) -> str:
        return f"Config({self.app!r}, {len(self.shards)} shards)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("app", self.app), ("shards", len(self.shards))]


def load(path: Path | str | None = None, *, environ: Mapping[str, str], flags: Mapping[str, Any], needs_app: bool = True) -> Config:
    """Read what a replica is told. Without `path`, ./dwarf.toml is read where it is there.

    `flags` are texts, numbers or None (not given) under the names of settings, "app", "dsn", "shards", "http_port" and so on.
    Raises `InvalidArgument` naming the source, the value and the rule.
    """
    told: dict[str, _Told] = {}
    for source in (_file(path), _variables(environ), _flags(flags)):
        told.update(source)
    if needs_app and "app" not in told:
        raise InvalidArgument("no App is named: give MODULE:ATTRIBUTE, or app in dwarf.toml, or DWARF_APP")
    if "shards" not in told:
        raise InvalidArgument("no shard is configured: give --dsn, [[shards]] in dwarf.toml, DWARF_DSN or DWARF_SHARDS")
    return Config(
        app=told["app"].value if "app" in told else "",
        shards=told["shards"].value,
        settings=Settings(**{name: told[name].value for name in NAMES if name in told}),
        http=Http(**_members(told, "http.")),
        auth=_auth(told),
    )


class _Told(NamedTuple):
    where: str
    value: Any  # as `Config` has it


_Values = dict[str, _Told]


# ---- sources ----


def _file(path: Path | str | None) -> _Values:
    chosen = Path(FILE if path is None else path)
    try:
        document = tomllib.loads(chosen.read_bytes().decode())
    except OSError as error:
        if path is None and isinstance(error, FileNotFoundError) and not chosen.is_symlink():
            return {}
        raise InvalidArgument(f"{chosen} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, or a number without end
        raise InvalidArgument(f"{chosen} is no TOML: {_quoted.sub(_quote, str(error))}") from None
    where = f"{chosen}: "
    values: _Values = {}
    for name, value in _flat(document, where):
        check_known(name, KNOWN, "setting", where=where)
        values[name] = _told(where, name, value, read=_from_file)
    return values


def _quote(found: re.Match[str]) -> str:
    return "a text that is no name" if len(found[2]) > 1 and _connection.search(found[2]) else found[0]


def _flat(document: dict[str, Any], where: str) -> Iterator[tuple[str, object]]:
    """Yield keys and values, the members of a table as "table.member"."""
    for name, value in document.items():
        if name not in TABLES:
            yield name, value
        elif not isinstance(value, dict):
            raise InvalidArgument(f"{where}{name} must be a table, [{name}], with {', '.join(TABLES[name])}")
        else:
            yield from ((f"{name}.{member}", each) for member, each in value.items())


def _variables(environ: Mapping[str, str]) -> _Values:
    values: _Values = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or not text or _is_other(variable, text):
            continue
        check_known(variable, tuple(_VARIABLES), "variable of a setting", where="the environment: ")
        name = "shards" if variable == "DWARF_DSN" else _VARIABLES[variable]
        if name in values:
            raise InvalidArgument("DWARF_DSN and DWARF_SHARDS are both set; DWARF_DSN alone is one shard, DWARF_SHARDS alone a list")
        values[name] = _told(f"{variable}: ", _VARIABLES[variable], text, read=_from_text)
    return values


def _is_other(variable: str, text: str) -> bool:
    if variable in OTHERS or variable.startswith(OTHERS_BEGIN) or _link.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _link_to.match(text) is not None


def _flags(flags: Mapping[str, Any]) -> _Values:
    values: _Values = {}
    for flag, value in flags.items():
        if value is None:
            continue
        check_known(flag, tuple(_FLAGS), "flag of a setting", where="the command: ")
        where = "APP: " if flag == "app" else f"--{flag.replace('_', '-')}: "
        name = "shards" if flag == "dsn" else _FLAGS[flag]
        if name in values:
            raise InvalidArgument("--dsn and --shards are both given; --dsn alone is one shard, --shards alone a list")
        values[name] = _told(where, _FLAGS[flag], value, read=_from_text if isinstance(value, str) else _from_file)
    return values


def _told(where: str, name: str, value: object, *, read: Callable[[str, Any], Any]) -> _Told:
    """Read a value and hold it to its rule. Errors say where it stood, and do not show what may be secret."""
    try:
        return _Told(where, read(name, value))
    except InvalidArgument as error:
        raise InvalidArgument(where + _hiding(str(error), value, is_secret=name == "auth.secret")) from None


def _hiding(text: str, value: object, *, is_secret: bool = False) -> str:
    """Return an error's text without those texts of a value that may be connection strings."""
    for each in _texts(value):
        if is_secret or _connection.search(each):
            text = text.replace(shown(each), "not shown here")
    return text


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


# ---- values ----


def _from_text(name: str, text: str) -> Any:
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise InvalidArgument(f"{name} is no UTF-8")  # bytes that the system could not decode
    if name == "dsn":
        return [Shard(1, text)]
    if name == "shards":
        return _shards(_json(text))
    if name in NAMES:
        return check_setting(name, read_text(name, text))
    return _MEMBERS[name](read_whole(name, text) if name == "http.port" else text)


def _from_file(name: str, value: object) -> Any:
    if name == "shards":
        return _shards(value)
    if name == "dsn":
        return [Shard(1, value)]  # type: ignore[arg-type]  # which refuses it
    return check_setting(name, read_value(name, value)) if name in NAMES else _MEMBERS[name](value)


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidArgument("the shards are no JSON; a list of objects with index and dsn is wanted") from None


def _shards(read: object) -> list[Shard]:
    if not isinstance(read, list):
        raise InvalidArgument("shards must be a list, each with an index and a dsn")
    return check_shards([_shard(each, f"shard number {place} of the list") for place, each in enumerate(read, 1)])


def _shard(read: object, what: str) -> Shard:
    if not isinstance(read, dict):
        raise InvalidArgument(f"{what} must have an index and a dsn")
    for name in read:
        check_known(name, Shard.__struct_fields__, "setting of a shard", where=f"{what}: ")
    if not {"index", "dsn"} <= read.keys():
        raise InvalidArgument(f"{what} must have an index and a dsn")
    try:
        return Shard(**read)
    except InvalidArgument as error:
        raise InvalidArgument(_hiding(str(error), read)) from None


def _app(value: object) -> str:
    name = check_text(value, "app", chars_max=NAME_CHARS_MAX)
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InvalidArgument(f"app is {shown(name)}; it must be MODULE:ATTRIBUTE, such as examples.audit:app")
    return name


def _host(value: object) -> str:
    host = check_text(value, "http.host", chars_max=HOST_CHARS_MAX)
    if not host or re.search(r"[\s/\[\]]", host):
        raise InvalidArgument(f"http.host is {shown(host)}; it must be a name or an address, without blanks, brackets and slashes")
    return host


def _secret(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > SECRET_CHARS_MAX or "\0" in value:
        raise InvalidArgument(f"auth.secret must be text of at most {SECRET_CHARS_MAX} characters, without NUL")
    return value


def _url(value: object) -> str:
    url = check_text(value, "auth.jwks_url", chars_max=SECRET_CHARS_MAX)
    if not re.fullmatch(r"https?://[^\s/]\S*", url):
        raise InvalidArgument(f"auth.jwks_url is {shown(url)}; it must be a URL that begins with https:// or http://")
    return url


def _claim(what: str) -> Callable[[object], str]:
    return lambda value: check_text(value, what, chars_max=NAME_CHARS_MAX)


_MEMBERS: dict[str, Callable[[Any], Any]] = {
    "app": _app,
    "http.host": _host,
    "http.port": lambda value: check_whole(value, "http.port", least=0, most=PORT_MAX, besides="any that is free"),
    "auth.mode": lambda value: one_of(value, "auth.mode", *MODES),
    "auth.secret": _secret,
    "auth.jwks_url": _url,
    "auth.issuer": _claim("auth.issuer"),
    "auth.audience": _claim("auth.audience"),
}
TABLES: dict[str, tuple[str, ...]] = {"http": Http.__struct_fields__, "auth": Auth.__struct_fields__}
KNOWN = (*NAMES, *_MEMBERS, "shards")
_FLAGS = {name.replace(".", "_"): name for name in (*KNOWN, "dsn")}
_VARIABLES = {PREFIX + flag.upper(): name for flag, name in _FLAGS.items()}


# ---- the whole ----


def _members(told: _Values, table: str) -> dict[str, Any]:
    return {name.removeprefix(table): each.value for name, each in told.items() if name.startswith(table)}


def _auth(told: _Values) -> Auth:
    """Put `[auth]` together: what a mode needs must be there, and a secret must not wait for a mode that nobody named."""
    auth = Auth(**_members(told, "auth."))
    if "auth.mode" not in told:
        for name, each in told.items():
            if name.startswith("auth."):
                raise InvalidArgument(f"{each.where}{name} is set but auth.mode is not; name one: {', '.join(MODES)}")
    elif auth.mode == "hs256" and not auth.secret:
        raise InvalidArgument(f"{told['auth.mode'].where}auth.mode is 'hs256', which needs auth.secret")
    elif auth.mode == "jwks" and not auth.jwks_url:
        raise InvalidArgument(f"{told['auth.mode'].where}auth.mode is 'jwks', which needs auth.jwks_url")
    return auth
