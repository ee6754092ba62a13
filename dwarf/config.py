"""What a replica of the service is told: `dwarf.toml`, over it `DWARF_` variables, over these the flags of the command.

    executors = 2                    DWARF_EXECUTORS=2             any setting of `dwarf.settings`
    app = "examples.audit:app"       DWARF_APP=…                   what the executors import
    [[shards]]                       DWARF_DSN=…                   one shard, with index 1
    index = 1                        DWARF_SHARDS='[{"index": 1, "dsn": "…"}, …]'
    dsn = "postgresql://…"

Every error says where the value came from. None shows a dsn.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dwarf.checks import check_text, shown
from dwarf.errors import InvalidArgument
from dwarf.limits import NAME_CHARS_MAX
from dwarf.settings import NAMES, Settings, check, read_text, read_value
from dwarf.shards import Shard, check_shards

FILE = "dwarf.toml"
PREFIX = "DWARF_"
OTHERS = ("DWARF_FAULT", "DWARF_PG_", "DWARF_TEST_")  # variables that are no settings
_KNOWN = ("app", "shards", *NAMES)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica is told. `to_json` holds the dsns: it is for its own processes alone."""

    app: str
    shards: list[Shard]
    settings: Settings = Settings()

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> Config:
        return msgspec.json.decode(data, type=cls)

    def __repr__(self) -> str:
        return f"Config({self.app!r}, {len(self.shards)} shards)"


def load(path: Path | None = None, *, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Read what a replica is told. Without `path`, ./dwarf.toml is read where it is there. `flags` are texts by name.

    Raises `InvalidArgument` naming the source, the value and the rule.
    """
    given: dict[str, Any] = {}
    for source, values in (_file(path), ("", _variables(environ)), ("", _flags(flags))):
        for name, (where, value) in values.items():
            given[name] = value
            if name in NAMES:
                _in(source or where, lambda name=name, value=value: check({name: value}))
    if not given.get("app"):
        raise InvalidArgument("no App is named: give MODULE:ATTRIBUTE, or app in dwarf.toml, or DWARF_APP")
    if not given.get("shards"):
        raise InvalidArgument("no shard is configured: give --dsn, [[shards]] in dwarf.toml, DWARF_DSN or DWARF_SHARDS")
    settings = {name: value for name, value in given.items() if name in NAMES}
    return Config(app=_app(given["app"]), shards=check_shards(given["shards"]), settings=check(settings))


Values = dict[str, tuple[str, Any]]  # where each came from, and what it is


def _in(where: str, read: Any) -> Any:
    """Read something, and say where it stood when it cannot be."""
    try:
        return read()
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from error


def _file(path: Path | None) -> tuple[str, Values]:
    chosen = path or Path(FILE)
    if path is None and not chosen.is_file():
        return "", {}
    try:
        read = tomllib.loads(chosen.read_text())
    except OSError as error:
        raise InvalidArgument(f"{chosen} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{chosen} is no TOML: {error}") from error
    values: Values = {}
    for name, value in read.items():
        _check_known(str(chosen), name, _KNOWN)
        values[name] = (str(chosen), _in(str(chosen), lambda name=name, value=value: _from_file(name, value)))
    return str(chosen), values


def _from_file(name: str, value: object) -> Any:
    return _shards(value) if name == "shards" else read_value(name, value) if name in NAMES else value


def _variables(environ: Mapping[str, str]) -> Values:
    values: Values = {}
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(PREFIX) or variable.startswith(OTHERS) or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        _check_known("the environment", variable, [PREFIX + known.upper() for known in (*_KNOWN, "dsn")])
        values["shards" if name == "dsn" else name] = (variable, _in(variable, lambda name=name, text=text: _from_text(name, text)))
    return values


def _flags(flags: Mapping[str, Any]) -> Values:
    return {
        "shards" if name == "dsn" else name: (f"--{name}", _in(f"--{name}", lambda name=name, text=text: _from_text(name, text)))
        for name, text in flags.items()
    }


def _from_text(name: str, text: str) -> Any:
    if name == "dsn":
        return [Shard(1, text)]
    if name == "app":
        return text
    if name != "shards":
        return read_text(name, text)
    try:
        read = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise InvalidArgument("the shards are no JSON; a list of objects with index and dsn is wanted") from None
    return _shards(read)


def _shards(read: object) -> list[Shard]:
    if not isinstance(read, list):
        raise InvalidArgument("shards must be a list, each with an index and a dsn")
    shards = []
    for place, each in enumerate(read, 1):
        if not isinstance(each, dict) or not {"index", "dsn"} <= each.keys():
            raise InvalidArgument(f"shard number {place} of the list must have an index and a dsn")
        for name in each:
            _check_known(f"shard number {place} of the list", str(name), Shard.__struct_fields__)
        shards.append(Shard(**each))
    return shards


def _app(value: object) -> str:
    name = check_text(value, "app", chars_max=NAME_CHARS_MAX)
    module, _, attribute = name.partition(":")
    if not module or not attribute.isidentifier():
        raise InvalidArgument(f"app is {shown(name)}; it must be MODULE:ATTRIBUTE, such as examples.audit:app")
    return name


def _check_known(where: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        raise InvalidArgument(
            f"{where}: {shown(name)} is no setting" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(names))}")
        )
