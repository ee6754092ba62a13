"""How a step's input travels and is rebuilt: a snapshot it stands on, and what was done to it since.

An input is never stored whole at every step. It is a chain of *documents*, folded in order, and a small rest:

    chain   positions of the documents: (0, 0) is the flow's initial state, (branch, seq) the `state` of that history row
    net     the contribution made since the last document, composed to one
    exact   fields whose folded value does not follow from the contribution: sums of fractions, which composing may not give to
            the last digit, and what a fork has put in the place of the step's own input; null where there is no such field
    alias   in a branch: its element, its index and the width, which hide the state's fields of these names

A document is `{"state": {…}}` when it stands alone, else `{"on": [[branch, seq], …], "alias", "net", "exact"}` on top of
the documents it names. A branch writes its documents directly on what it was spawned from, so that its whole net
contribution, which is what it brings to the fan-in, is always at hand as `doc_net` and `net`.

`delta` is the rest in the same form, for the row that waits for a claim. A claim that finds no delta folds the changes
of the history rows after the last document instead; `extend` does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw

from dwarf.changes import NOTHING, Changes, compose, compose_all, fold
from dwarf.reducers import is_fraction
from dwarf.state import State
from dwarf.values import NULL, Fields, decode_fields, is_null

Position = tuple[int, int]
START: Position = (0, 0)

SNAPSHOT_CHANGES_BYTES_MIN = 16 << 10  # no new document before this much has changed …
SNAPSHOT_SHARE = 4  # … nor before a quarter of the last one has
SNAPSHOT_STEPS = 64  # but after this many steps in any case
CHAIN_LENGTH_MAX = 16
DELTA_BYTES_MAX = 4 << 10  # a larger delta is not stored in the waiting row

_encode = msgspec.json.encode


class Input(msgspec.Struct):
    """A step's folded input, and what it takes to store its successor's. Treat as immutable."""

    fields: Fields
    branch: int = 0
    chain: tuple[Position, ...] = (START,)
    alias: Fields = {}
    doc_net: Changes = NOTHING  # in a branch: its contribution up to its own last document
    net: Changes = NOTHING
    exact: Fields = {}
    base_bytes: int = 0
    changed_bytes: int = 0
    steps: int = 0

    @property
    def state(self) -> State:
        return State.of(self.fields)


_ABSENT = Raw()


class Document(msgspec.Struct, omit_defaults=True):
    """A snapshot, or the delta of a waiting row, in its stored form."""

    state: Raw = _ABSENT
    on: list[Position] = []
    alias: Fields = {}
    net: Raw = _ABSENT
    exact: Fields = {}

    def encode(self) -> bytes:
        return _encode(self)


_documents = msgspec.json.Decoder(Document)


def decode_document(data: bytes) -> Document:
    """Read a stored document; the initial state of a flow is one too, wrapped by `initial`."""
    return _documents.decode(data)


def initial(state: bytes) -> Document:
    return Document(state=Raw(state))


def chain_of(at: Position, document: Document) -> tuple[Position, ...]:
    """Return the positions to fold, in order, for a row that stands on the document at `at`."""
    return (*document.on, at)


class Base(msgspec.Struct, frozen=True):
    """The documents of a chain, folded: what many rows may stand on. `last` is the document at the chain's end."""

    fields: Fields
    size: int
    last: Document


def fold_documents(documents: Iterable[bytes | Document], reducers: Mapping[str, str]) -> Base:
    """Fold documents in the order of their chain."""
    fields: Fields = {}
    size = 0
    document = Document()
    for stored in documents:
        document = decode_document(stored) if isinstance(stored, bytes) else stored
        size += len(stored) if isinstance(stored, bytes) else len(document.state)
        fields = _apply(fields, document, Changes.decode(document.net), reducers)
    return Base(fields, size, document)


def build(
    documents: Sequence[bytes | Document],
    delta: bytes | None,
    later: Iterable[Changes],
    *,
    branch: int,
    chain: tuple[Position, ...],
    reducers: Mapping[str, str],
) -> Input:
    """Fold the documents of `chain`, in order, then `delta`, then the `later` changes, into the input of a step."""
    return build_on(fold_documents(documents, reducers), delta, later, branch=branch, chain=chain, reducers=reducers)


def build_on(
    base: Base, delta: bytes | None, later: Iterable[Changes], *, branch: int, chain: tuple[Position, ...], reducers: Mapping[str, str]
) -> Input:
    """Do the same on documents that are folded already."""
    document = base.last
    built = Input(base.fields, branch, chain, base_bytes=base.size)
    if _stands_on_own(built):
        built.alias, built.doc_net, built.exact = document.alias, Changes.decode(document.net), document.exact
    if delta is not None:
        rest = decode_document(delta)
        built.alias, built.net = rest.alias or built.alias, Changes.decode(rest.net)
        built.exact = {field: raw for field, raw in built.exact.items() if field not in built.net.fields} | rest.exact
        built.fields = _apply(base.fields, rest, built.net, reducers)
        built.changed_bytes = len(delta)
    for changes in later:
        built = extend(built, changes, reducers)
    return built


def _stands_on_own(made: Input) -> bool:
    """Tell whether the last document is one the branch wrote itself: its alias is in there, its contribution too."""
    return made.branch != 0 and made.chain[-1][0] == made.branch


def _apply(fields: Fields, document: Document, net: Changes, reducers: Mapping[str, str]) -> Fields:
    if len(document.state):
        fields = decode_fields(document.state)
    if document.alias:
        fields = {**fields, **document.alias}
    return put(fold(fields, net, reducers), document.exact)


def put(fields: Fields, exact: Fields) -> Fields:
    """Return fields with others in their place; null takes one away."""
    return {field: raw for field, raw in {**fields, **exact}.items() if not is_null(raw)} if exact else fields


def extend(before: Input, changes: Changes, reducers: Mapping[str, str]) -> Input:
    """Return the input of the step after one that was given `before` and made `changes`. Raises `ReducerError`."""
    fields = fold(before.fields, changes, reducers)
    changed_bytes = before.changed_bytes
    for field, raw in changes.fields.items():
        changed_bytes += len(field) + len(raw)
    return Input(
        fields,
        before.branch,
        before.chain,
        before.alias,
        before.doc_net,
        compose(before.net, changes, reducers),
        _exact(before, changes, fields, reducers) if reducers or before.exact else before.exact,
        before.base_bytes,
        changed_bytes,
        before.steps + 1,
    )


def _exact(before: Input, changes: Changes, fields: Fields, reducers: Mapping[str, str]) -> Fields:
    """Return the fields that are exact after `changes`: those that were, and sums that have a fraction in them now."""
    exact = dict(before.exact)
    for field, raw in changes.fields.items():
        if field in exact:
            exact[field] = fields.get(field, NULL)
        elif (
            reducers.get(field) == "add"
            and field not in changes.overwrites
            and not is_null(raw)
            and any(is_fraction(part) for part in (before.fields.get(field), raw, fields[field]))
        ):
            exact[field] = fields[field]
    return exact


def contribution(made: Input, reducers: Mapping[str, str]) -> Changes:
    """Return what a branch has brought about since it was spawned, composed to one. Raises `ReducerError`."""
    return compose(made.doc_net, made.net, reducers)


def join(spawned: Input, contributions: Iterable[Changes], drops: Iterable[str], reducers: Mapping[str, str]) -> Input:
    """Fold the branches' contributions, in branch order, into what they were spawned from; `drops` are their aliases."""
    dropped = frozenset(drops)
    brought = compose_all((part.without(dropped) for part in contributions), reducers)
    joined = extend(spawned, brought, reducers) if brought else spawned
    hidden = dropped & joined.fields.keys()  # what an alias hid inside the cohort is gone after it, here and further out
    if hidden:
        joined = extend(joined, Changes(dict.fromkeys(sorted(hidden), NULL)), reducers)
    return msgspec.structs.replace(joined, steps=spawned.steps)


def override(made: Input, overrides: Fields) -> Input:
    """Return the same input with fields in the place of its own; null takes one away. A branch contributes none of it."""
    if not overrides:
        return made
    return msgspec.structs.replace(made, fields=put(made.fields, overrides), exact=made.exact | overrides)


def branch_input(spawned: Input, branch: int, alias: Fields) -> Input:
    """Return the input of a branch's first step; `spawned` must stand on a document of its own (`snapshot`)."""
    fields = {**spawned.fields, **alias} if alias else spawned.fields
    return Input(fields, branch, spawned.chain, alias, base_bytes=spawned.base_bytes)


def needs_snapshot(made: Input) -> bool:
    """Tell whether enough has changed since the last document for the next step to stand on a new one."""
    return made.steps >= SNAPSHOT_STEPS or made.changed_bytes > max(SNAPSHOT_CHANGES_BYTES_MIN, made.base_bytes // SNAPSHOT_SHARE)


def snapshot(made: Input, at: Position, reducers: Mapping[str, str]) -> tuple[bytes, Input]:
    """Return the document to store at `at`, and the same input standing on it."""
    if made.branch:
        net = contribution(made, reducers)
        below = made.chain[:-1] if _stands_on_own(made) else made.chain
        document = Document(on=list(below), alias=made.alias, net=_stored(net), exact=made.exact).encode()
        base_bytes = made.base_bytes + len(document)
        return document, Input(made.fields, made.branch, (*below, at), made.alias, net, exact=made.exact, base_bytes=base_bytes)
    alone = sum(len(field) + len(raw) for field, raw in made.fields.items())
    document = Document(on=list(made.chain), net=_stored(made.net), exact=made.exact).encode()
    if len(made.chain) >= CHAIN_LENGTH_MAX or 2 * len(document) > alone:
        document = Document(state=Raw(_encode(made.fields))).encode()
        return document, Input(made.fields, 0, (at,), base_bytes=len(document))
    return document, Input(made.fields, 0, (*made.chain, at), base_bytes=made.base_bytes + len(document))


def delta(made: Input) -> bytes | None:
    """Return what the waiting row stores beside the position of its last document; None when nothing has changed."""
    alias = {} if _stands_on_own(made) else made.alias  # again on top of its document it would undo the branch's writes
    if not (alias or made.net or made.exact):
        return None
    return Document(alias=alias, net=_stored(made.net), exact=made.exact).encode()


def _stored(net: Changes) -> Raw:
    return Raw(net.encode()) if net else _ABSENT
