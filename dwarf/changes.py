"""What a step, or a whole branch, does to the state: its contribution, and the algebra of contributions.

A `Changes` maps fields to the JSON that was written; `null` is a delete, and a field in `overwrites` replaces whatever
was accumulated instead of going through the field's reducer. `fold` applies one to a state; `compose` makes one out of
two, so that folding the composition equals folding one after the other. Sums of fractions depend on their order to the
last digit, and may overflow in one and not in another: what is added is therefore kept apart, as the list of addends of a
field in `sums`.

Stored form: the object of written fields; `[object, [names]]` when fields were overwritten, `[object, [names], [names]]`
with the names of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from dwarf import reducers as _reducers
from dwarf.values import EMPTY_OBJECT, Fields, decode_elements, decode_fields, is_null, opens_with

_encode = msgspec.json.encode
_marked = msgspec.json.Decoder(list[Raw])
_names = msgspec.json.Decoder(list[str])
ADDENDS_MAX = 64  # of one field; beyond, whole numbers are added up, which is exact unless a fraction went before


class Changes(msgspec.Struct, frozen=True, eq=False):
    """Written fields by name (null = delete), which of them overwrite, and which hold lists of addends.

    Treat as immutable once handed on.
    """

    fields: Fields = {}
    overwrites: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changes) and (
            self.fields == other.fields and self.overwrites == other.overwrites and self.sums == other.sums
        )

    __hash__ = None  # type: ignore[assignment]

    def encode(self) -> bytes:
        """Return the stored form."""
        if not self.fields:
            return EMPTY_OBJECT
        if self.sums:
            return _encode([self.fields, sorted(self.overwrites), sorted(self.sums)])
        return _encode([self.fields, sorted(self.overwrites)] if self.overwrites else self.fields)

    @classmethod
    def decode(cls, data: bytes | Raw | None) -> Changes:
        """Read the stored form; None, and no bytes at all, are no change."""
        if not data:
            return NOTHING
        if opens_with(data, b"["):
            written, *marks = _marked.decode(data)
            return cls(decode_fields(written), *(frozenset(_names.decode(names)) for names in marks))
        fields = decode_fields(data)
        return cls(fields) if fields else NOTHING

    def without(self, names: Iterable[str]) -> Changes:
        """Return these changes but for those to `names`."""
        dropped = self.fields.keys() & names
        if not dropped:
            return self
        kept = {field: raw for field, raw in self.fields.items() if field not in dropped}
        return Changes(kept, self.overwrites - dropped, self.sums - dropped)

    def addends(self, field: str) -> list[Raw]:
        """Return what this adds to a field, in order."""
        return decode_elements(self.fields[field]) if field in self.sums else [self.fields[field]]


NOTHING = Changes()


def fold(base: Fields, changes: Changes, reducers: Mapping[str, str]) -> Fields:
    """Return a new state: `base` after `changes`; deleted fields are gone. Raises `ReducerError`."""
    state = dict(base)
    for field, raw in changes.fields.items():
        if is_null(raw):
            state.pop(field, None)
        elif field in changes.sums:
            state[field] = _add_all(field, state.get(field), changes.addends(field))
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
    fields, overwrites, sums = dict(first.fields), set(first.overwrites), set(first.sums)
    for field, raw in second.fields.items():
        before = fields.get(field)
        reducer = reducers.get(field, "replace")
        if reducer == "replace" or before is None or is_null(raw) or field in second.overwrites:
            fields[field] = raw
            _mark(overwrites, field, reducer != "replace" and field in second.overwrites)
            _mark(sums, field, field in second.sums)
        elif field in overwrites or is_null(before):  # a whole value, or none: folded into as a state is
            start = None if is_null(before) else before
            if field in second.sums:
                fields[field] = _add_all(field, start, second.addends(field))
            else:
                fields[field] = _reducers.fold(field, reducer, start, raw)
            overwrites.add(field)
        elif reducer == "add":
            fields[field] = _sum(field, first.addends(field) + second.addends(field))
            sums.add(field)
        else:  # a contribution takes the form of a whole value first: an element becomes a list, which more can follow
            fields[field] = _reducers.fold(field, reducer, _reducers.fold(field, reducer, None, before), raw)
    return Changes(fields, frozenset(overwrites), frozenset(sums))


def compose_all(parts: Iterable[Changes], reducers: Mapping[str, str]) -> Changes:
    """Return the one contribution that does what all parts do in order. By halves, so that long lists are copied rarely."""
    level = [part for part in parts if part.fields]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [compose(first, second, reducers) for first, second in pairs] + (level[-1:] if len(level) % 2 else [])
    return level[0] if level else NOTHING


def _mark(names: set[str], field: str, on: bool) -> None:
    if on:
        names.add(field)
    else:
        names.discard(field)


def _add_all(field: str, current: Raw | None, addends: list[Raw]) -> Raw:
    for addend in addends:
        current = _reducers.fold(field, "add", current, addend)
    assert current is not None
    return current


def _sum(field: str, addends: list[Raw]) -> Raw:
    """Join addends to a list, once they are known to be numbers; of a long list whole neighbours are added up."""
    for addend in (addends[0], addends[-1]):
        _reducers.fold(field, "add", None, addend)
    if len(addends) > ADDENDS_MAX:
        shorter = addends[:1]
        for addend in addends[1:]:
            if _reducers.is_fraction(shorter[-1]) or _reducers.is_fraction(addend):
                shorter.append(addend)
            else:
                shorter[-1] = _reducers.fold(field, "add", shorter[-1], addend)
        addends = shorter
    return Raw(_encode(addends))
