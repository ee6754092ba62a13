"""Flow keys and step keys: the texts by which callers name flows and steps, and the ids inside them.

A key proves that its holder was given it: its last part, the token, is a secret. `str(key)` is the whole key; `repr(key)`
and `key.name` leave the token out and are what logs and errors may show. Nothing here asks a database whether the flow
exists.

    flow key   {shard}-{hour}-{low}-{token}             flow_id = hour << 36 | low
    step key   {shard}-{hour}-{low}-{step id}-{token}   step_id = branch << 20 | seq

`hour` counts whole hours since 2000-01-01 00:00 UTC. Both ids fit in 63 bits. A step's token follows from its flow's, so
it is stored nowhere. Each key has one spelling: decimal digits without leading zeros, the token in lowercase hex.
"""

from __future__ import annotations

import re
from hashlib import sha256
from hmac import compare_digest
from typing import NoReturn

import msgspec

from dwarf.errors import InvalidArgument
from dwarf.limits import SEQ_MAX

LOW_BITS = 36
LOW_MAX = (1 << LOW_BITS) - 1
HOUR_MAX = (1 << 63 - LOW_BITS) - 1
SEQ_BITS = 20
BRANCH_MAX = (1 << 63 - SEQ_BITS) - 1
SHARD_INDEX_MAX = (1 << 31) - 1
TOKEN_CHARS = 16

_NUMBER = "(0|[1-9][0-9]{0,18})"
_TOKEN = f"([0-9a-f]{{{TOKEN_CHARS}}})"
_number = re.compile(_NUMBER)
_token = re.compile(_TOKEN)
_flow_key = re.compile("-".join([_NUMBER] * 3 + [_TOKEN]))
_step_key = re.compile("-".join([_NUMBER] * 4 + [_TOKEN]))
_name = re.compile("-".join([_NUMBER] * 3))
_inside = re.compile(f"((?:[0-9]+-){{2,3}}[0-9]+)-[0-9a-fA-F]{{{TOKEN_CHARS}}}")
_harmless = re.compile("[0-9]{1,11}")  # too short to be a token


def flow_id(hour: int, low: int) -> int:
    """Join the hour of a flow's creation and its number within the sequence."""
    _check_range("the hour", hour, 0, HOUR_MAX)
    _check_range("the low part of a flow id", low, 0, LOW_MAX)
    return hour << LOW_BITS | low


def flow_name(shard: int, flow_id: int) -> str:
    """Return what logs and errors call a flow: its key without the token."""
    return f"{shard}-{flow_id >> LOW_BITS}-{flow_id & LOW_MAX}"


def step_id(branch: int, seq: int) -> int:
    """Join a branch (0 is the trunk) and the place of a step in it (from 1)."""
    _check_range("a branch", branch, 0, BRANCH_MAX)
    _check_range("a step's place in its branch", seq, 1, SEQ_MAX)
    return branch << SEQ_BITS | seq


def branch_seq(step_id: int) -> tuple[int, int]:
    """Take a step id apart again."""
    _check_range("a step id", step_id, 1, (1 << 63) - 1)
    _check_range("a step's place in its branch", step_id & SEQ_MAX, 1, SEQ_MAX)
    return step_id >> SEQ_BITS, step_id & SEQ_MAX


def step_token(flow_token: str, step_id: int) -> str:
    """Derive the token of a step from its flow's. SQL computes the same text."""
    return sha256(f"{flow_token}:{step_id}".encode()).hexdigest()[:TOKEN_CHARS]


def parse_name(text: str) -> tuple[int, int] | None:
    """Return shard and flow id of a token-free `shard-hour-low` name; None when `text` is no such name."""
    match = _name.fullmatch(text)
    if match is None:
        return None
    shard, hour, low = map(int, match.groups())
    if not (1 <= shard <= SHARD_INDEX_MAX and hour <= HOUR_MAX and low <= LOW_MAX):
        return None
    return shard, flow_id(hour, low)


def key_name(text: str) -> str:
    """Return the token-free name of a flow key or step key for logs; "?" for text that is neither."""
    for kind in (FlowKey, StepKey):
        try:
            return kind.parse(text).name
        except InvalidArgument:
            continue
    return "?"


def hide_tokens(text: str) -> str:
    """Return `text` with the token of every flow key and step key in it left out."""
    return _inside.sub(r"\1-…", text)


class _Key(msgspec.Struct, frozen=True):
    """What both kinds of key begin with."""

    shard: int
    flow_id: int

    @property
    def hour(self) -> int:
        """The hour of the flow's creation, counted from 2000-01-01 00:00 UTC."""
        return self.flow_id >> LOW_BITS

    @property
    def low(self) -> int:
        return self.flow_id & LOW_MAX

    @property
    def flow_name(self) -> str:
        """What logs and errors call the flow."""
        return flow_name(self.shard, self.flow_id)


class FlowKey(_Key, frozen=True):
    """The key of one flow. Raises `InvalidArgument` for a part out of its range."""

    token: str

    def __post_init__(self) -> None:
        _check_parts("flow key", self.shard, self.flow_id, self.token)

    @classmethod
    def parse(cls, text: object) -> FlowKey:
        """Read the one spelling of a flow key. `InvalidArgument` for any other text; the error shows no token."""
        if isinstance(text, FlowKey):
            return text
        if not isinstance(text, str) or not (match := _flow_key.fullmatch(text)):
            _refuse("flow key", text, ("shard", "hour", "flow number", "token"))
        shard, hour, low, token = match.groups()
        _check_halves("flow key", text, int(hour), int(low))
        return cls(int(shard), int(hour) << LOW_BITS | int(low), token)

    @property
    def name(self) -> str:
        """The key without its token."""
        return self.flow_name

    def matches(self, flow_token: str) -> bool:
        """Compare with the token stored for the flow, in a time that says nothing about where they differ."""
        return compare_digest(self.token.encode(), flow_token.encode())

    def step(self, step_id: int) -> StepKey:
        return StepKey(self.shard, self.flow_id, step_id, step_token(self.token, step_id))

    def __str__(self) -> str:
        return f"{self.name}-{self.token}"

    def __repr__(self) -> str:
        return f"FlowKey({self.name})"


class StepKey(_Key, frozen=True):
    """The key of one step. Raises `InvalidArgument` for a part out of its range."""

    step_id: int
    token: str

    def __post_init__(self) -> None:
        _check_parts("step key", self.shard, self.flow_id, self.token)
        branch_seq(self.step_id)

    @classmethod
    def parse(cls, text: object) -> StepKey:
        """Read the one spelling of a step key. `InvalidArgument` for any other text; the error shows no token."""
        if isinstance(text, StepKey):
            return text
        if not isinstance(text, str) or not (match := _step_key.fullmatch(text)):
            _refuse("step key", text, ("shard", "hour", "flow number", "step id", "token"))
        shard, hour, low, step, token = match.groups()
        _check_halves("step key", text, int(hour), int(low))
        return cls(int(shard), int(hour) << LOW_BITS | int(low), int(step), token)

    @property
    def branch(self) -> int:
        return self.step_id >> SEQ_BITS

    @property
    def seq(self) -> int:
        return self.step_id & SEQ_MAX

    @property
    def name(self) -> str:
        """The key without its token."""
        return f"{self.flow_name}-{self.step_id}"

    def belongs_to(self, flow_token: str) -> bool:
        """Tell whether the token follows from the flow's, in a time that says nothing about where it differs."""
        return compare_digest(self.token.encode(), step_token(flow_token, self.step_id).encode())

    def __str__(self) -> str:
        return f"{self.name}-{self.token}"

    def __repr__(self) -> str:
        return f"StepKey({self.name})"


def _check_parts(what: str, shard: int, flow_id: int, token: object) -> None:
    _check_range(f"the shard of a {what}", shard, 1, SHARD_INDEX_MAX)
    _check_range(f"the flow id of a {what}", flow_id, 0, (1 << 63) - 1)
    if not isinstance(token, str) or not _token.fullmatch(token):
        raise InvalidArgument(f"the token of a {what} must be {TOKEN_CHARS} lowercase hex digits")


def _check_halves(what: str, text: str, hour: int, low: int) -> None:
    if hour > HOUR_MAX or low > LOW_MAX:
        part, value, most = ("hour", hour, HOUR_MAX) if hour > HOUR_MAX else ("flow number", low, LOW_MAX)
        raise InvalidArgument(f"{what} '{_redacted(text)}' is malformed: its {part} must be at most {most}, not {_shown(value)}")


def _check_range(what: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{what} must be a whole number from {least} to {most}, not {_shown(value)}")


def _shown(value: object) -> str:
    """Show a number unless it is long enough to be a token that slipped into the wrong place."""
    if not isinstance(value, int):
        return type(value).__name__
    return str(value) if -(10**12) < value < 10**12 else "a number of more than 12 digits"


def _refuse(what: str, text: object, parts: tuple[str, ...]) -> NoReturn:
    """Say which part is wrong, showing at most the leading numbers: a token may stand anywhere in a mangled key."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a {what} must be text of the form {{{'}-{'.join(parts)}}}, not {type(text).__name__}")
    found = text.split("-")
    if len(found) != len(parts):
        why = f"it has {len(found)} part{'s' * (len(found) != 1)}; the form is {{{'}-{'.join(parts)}}}"
    else:
        wrong = next(name for name, part in zip(parts, found, strict=True) if not (_token if name == "token" else _number).fullmatch(part))
        rule = f"{TOKEN_CHARS} lowercase hex digits" if wrong == "token" else "a decimal number without sign, blanks or leading zeros"
        why = f"its {wrong} must be {rule}"
    raise InvalidArgument(f"{what} '{_redacted(text)}' is malformed: {why}")


def _redacted(text: str) -> str:
    shown = []
    for part in text.split("-", 3)[:3]:
        if not _harmless.fullmatch(part):
            break
        shown.append(part)
    if len(shown) == len(text.split("-", 3)) and shown:
        shown.pop()  # the last part may be all there is of a token
    return "-".join([*shown, "…"])
