"""What a step, or a whole branch, does to the state: its contribution, and the algebra of contributions.

A `Changes` maps fields to the JSON that was written; `null` is a delete, and a field in `overwrites` replaces whatever
was accumulated instead of going through the field's reducer. `fold` applies one to a state; `compose` makes one out of
two, so that folding the composition equals folding one after the other (`exact` of `dwarf.inputs` keeps the last digit
of fractional sums).

Stored form: the object of written fields, or, when fields were overwritten, `[object, [names]]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from dwarf import reducers as _reducers
from dwarf.values import EMPTY_OBJECT, Fields, decode_fields, is_null, opens_with

_encode = msgspec.json.encode
_overwriting = msgspec.json.Decoder(tuple[Fields, list[str]])


class Changes(msgspec.Struct, frozen=True, eq=False):
    """Written fields by name (null = delete), and which of them overwrite. Treat as immutable once handed on."""

    fields: Fields = {}
    overwrites: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changes) and self.fields == other.fields and self.overwrites == other.overwrites

    __hash__ = None  # type: ignore[assignment]

    def encode(self) -> bytes:
        """Return the stored form."""
        if not self.fields:
            return EMPTY_OBJECT
        return _encode([self.fields, sorted(self.overwrites)] if self.overwrites else self.fields)

    @classmethod
    def decode(cls, data: bytes | Raw | None) -> Changes:
        """Read the stored form; None, and no bytes at all, are no change."""
        if not data:
            return NOTHING
        if opens_with(data, b"["):
            fields, names = _overwriting.decode(data)
            return cls(fields, frozenset(names))
        fields = decode_fields(data)
        return cls(fields) if fields else NOTHING

    def without(self, names: Iterable[str]) -> Changes:
        """Return these changes but for those to `names`."""
        dropped = self.fields.keys() & names
        if not dropped:
            return self
        return Changes({field: raw for field, raw in self.fields.items() if field not in dropped}, self.overwrites - dropped)


NOTHING = Changes()


def fold(base: Fields, changes: Changes, reducers: Mapping[str, str]) -> Fields:
    """Return a new state: `base` after `changes`; deleted fields are gone. Raises `ReducerError`."""
    state = dict(base)
    for field, raw in changes.fields.items():
        if is_null(raw):
            state.pop(field, None)
        elif field in reducers and field not in changes.overwrites:
            state[field] = _reducers.fold(field, reducers[field], state.get(field), raw)
        else:
            state[field] = raw
    return state


def compose(first: Changes, second: Changes, reducers: Mapping[str, str]) -> Changes:
    """Return the one contribution that does what `first` and then `second` do. Raises `ReducerError`."""
    if not first.fields:
        return second
    if not second.fields:
        return first
    fields, overwrites = dict(first.fields), set(first.overwrites)
    for field, raw in second.fields.items():
        before = fields.get(field)
        reducer = reducers.get(field, "replace")
        if reducer == "replace" or is_null(raw):
            fields[field] = raw
            overwrites.discard(field)
        elif field in second.overwrites:
            fields[field] = raw
            overwrites.add(field)
        elif before is None:
            fields[field] = raw
        elif field in overwrites:  # a whole value, folded into as a state is
            fields[field] = _reducers.fold(field, reducer, before, raw)
        elif is_null(before):  # cleared, then seeded: what was there before the delete must not come back
            fields[field] = _reducers.fold(field, reducer, None, raw)
            overwrites.add(field)
        else:  # a contribution takes the form of a whole value first: an element becomes a list, which more can follow
            fields[field] = _reducers.fold(field, reducer, _reducers.fold(field, reducer, None, before), raw)
    return Changes(fields, frozenset(overwrites))
