"""The named statements of `sql/queries/`, read and checked once; and the reading of SQL text that the migrations share.

Owns the form of those files. Executes nothing: that is `store`'s. One file per table; every statement begins with its
name, and what stands before the first name may only be a comment:

    -- name: find_lane
    -- Any comment.
    select lane.epoch, lane.batch from dwarf.lanes as lane where lane.session = $1 and lane.lane = $2;

Parameters are `$1`, `$2`, … without a gap, in any order and as often as needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

PARAMETERS_MAX = 65_535  # the protocol counts them in 16 bits
SQL_PACKAGE = "dwarf.sql"

_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\n]* )
    | (?P<block> /\* )
    | (?P<dollar> \$ (?:[^\W\d]\w*)? \$ )
    | \$ (?P<parameter> \d+ )
    | [eE]'(?: [^'\\] | \\. | '' )*'
    | '(?: [^'] | '' )*'
    | "(?: [^"] | "" )*"
    | (?P<open> [eE]?' | " )
    | (?P<word> [^\W\d][\w$]* )
    | (?P<semicolon> ; )
    | (?P<space> \s+ )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE = re.compile(r"/\*|\*/")
_NAME_LINE = re.compile(r"^--[ \t]*name:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class QueryError(Exception):
    """A file of statements breaks a rule. The message begins with the file's name."""


# ---- reading SQL ----


class Token(msgspec.Struct, frozen=True, gc=False):
    """A piece of SQL. `kind` is comment, parameter, word, semicolon, space, or text (whatever else, a whole literal being one)."""

    kind: str
    text: str


def tokens(sql: str) -> Iterator[Token]:
    """Cut SQL into tokens that join to the same text. Raises `ValueError` for a literal or comment that does not end."""
    position = 0
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        assert match is not None
        end = match.end()
        kind = match.lastgroup or "text"
        if kind == "open":
            raise ValueError(f"a {match.group()} is never closed: {_excerpt(sql, position)}")
        if kind == "block":
            end, kind = _block_end(sql, position), "comment"
        elif kind == "dollar":
            end, kind = _dollar_end(sql, position, match.group()), "text"
        yield Token(kind, sql[position:end])
        position = end


def _block_end(sql: str, start: int) -> int:
    depth = 0
    for edge in _BLOCK_EDGE.finditer(sql, start):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    raise ValueError(f"a comment is never closed: {_excerpt(sql, start)}")


def _dollar_end(sql: str, start: int, tag: str) -> int:
    end = sql.find(tag, start + len(tag))
    if end < 0:
        raise ValueError(f"{tag} is never closed: {_excerpt(sql, start)}")
    return end + len(tag)


def _excerpt(sql: str, start: int) -> str:
    return repr(sql[start : start + 40])


def statements(sql: str) -> list[str]:
    """Cut SQL at its semicolons, without comments and with single spaces outside literals. Raises `ValueError`."""
    done, now = [], ""
    for token in tokens(sql):
        if token.kind == "semicolon":
            done.append(now.strip())
            now = ""
        elif token.kind in {"comment", "space"}:
            now = now if now.endswith(" ") else now + " "
        else:
            now += token.text
    return [statement for statement in [*done, now.strip()] if statement]


# ---- named statements ----


class Query(msgspec.Struct, frozen=True, gc=False):
    """A named statement: `text` has neither comments nor a semicolon, `encoded` is its bytes, `parameters` their number."""

    name: str
    text: str
    encoded: bytes
    parameters: int
    file: str


class Queries(Mapping[str, Query]):
    """Statements by name, as attributes and as items. They are read when the first one is asked for."""

    def __init__(self, source: Traversable | None = None) -> None:
        self._source = source

    @cached_property
    def _by_name(self) -> dict[str, Query]:
        return load(self._source)

    def __getattr__(self, name: str) -> Query:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._by_name[name]
        except KeyError:
            raise AttributeError(f"no statement is named {name!r}") from None

    def __getitem__(self, name: str) -> Query:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def load(source: Traversable | None = None) -> dict[str, Query]:
    """Read the statements of a folder that looks like `sql/`, by default the installed one. Raises `QueryError`."""
    folder = (source or files(SQL_PACKAGE)) / "queries"
    found: dict[str, Query] = {}
    if not folder.is_dir():
        return found
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            raise QueryError(f"{file.name}: only .sql files may stand in queries/")
        for query in parse(file.name, file.read_text("utf-8")):
            if query.name in found:
                raise QueryError(f"{file.name}: the name {query.name} is taken by {found[query.name].file}")
            found[query.name] = query
    return found


def parse(file: str, text: str) -> list[Query]:
    """Read the statements of one file. Raises `QueryError`."""
    [before, *parts] = _NAME_LINE.split(text)
    _check_only_comments(file, before)
    if not parts:
        raise QueryError(f"{file}: no statement in it has a name; a line `-- name: …` begins each")
    queries = [_query(file, name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)]
    names = [query.name for query in queries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise QueryError(f"{file}: {', '.join(sorted(twice))} is named twice")
    return queries


def _query(file: str, name: str, body: str) -> Query:
    if not _NAME.fullmatch(name) or hasattr(Queries, name):
        raise QueryError(f"{file}: {name!r} cannot name a statement: lower case letters, digits and _, and no word that a mapping has")
    try:
        found = statements(body)
        numbers = {int(token.text[1:]) for token in tokens(body) if token.kind == "parameter"}
    except ValueError as error:
        raise QueryError(f"{file}: {name}: {error}") from None
    if len(found) != 1:
        raise QueryError(f"{file}: {name} holds {len(found)} statements; one is needed")
    _check_numbers(f"{file}: {name}", numbers)
    return Query(name, found[0], found[0].encode(), len(numbers), file)


def _check_only_comments(file: str, text: str) -> None:
    try:
        stray = statements(text)
    except ValueError as error:
        raise QueryError(f"{file}: {error}") from None
    if stray:
        raise QueryError(f"{file}: {stray[0][:40]!r} stands before the first name")


def _check_numbers(what: str, numbers: Iterable[int]) -> None:
    found = sorted(numbers)
    if found != list(range(1, len(found) + 1)):
        shown = ", ".join(f"${number}" for number in found)
        raise QueryError(f"{what} has the parameters {shown}; they must be numbered from $1 without a gap")
    if len(found) > PARAMETERS_MAX:
        raise QueryError(f"{what} has {len(found)} parameters; at most {PARAMETERS_MAX} are possible")


QUERIES = Queries()
