"""How inputs travel: what is stored of them at each step, and that reading it back gives the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dwarf.changes import Changes
from dwarf.inputs import (
    CHAIN_LENGTH_MAX,
    DELTA_BYTES_MAX,
    SNAPSHOT_CHANGES_BYTES_MIN,
    SNAPSHOT_STEPS,
    START,
    Document,
    Input,
    Position,
    branch_input,
    build,
    chain_of,
    contribution,
    decode_document,
    delta,
    extend,
    initial,
    join,
    needs_snapshot,
    snapshot,
)  # fmt: skip
from dwarf.values import Fields

REDUCERS = {"log": "append", "sum": "add", "tags": "union", "both": "and"}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def made(**values: Any) -> Changes:
    return Changes({field: raw(value) for field, value in values.items()})


def plain(fields: Fields) -> dict[str, Any]:
    return {field: json.loads(bytes(value)) for field, value in fields.items()}


class Branch:
    """A branch that is stored step by step the way a database would, and read back."""

    def __init__(self, start: Input, stored: dict[Position, bytes], *, state: bytes) -> None:
        self.hot, self.branch, self.stored, self.state = start, start.branch, stored, state
        self.base, self.seq = start.chain[-1], 1
        self.delta = delta(start)
        self.later: list[Changes] = []

    def step(self, changes: Changes, *, keep_delta: bool, document: bool) -> None:
        self.hot = extend(self.hot, changes, REDUCERS)
        self.later.append(changes)
        if document:
            self.base = (self.branch, self.seq)
            self.stored[self.base], self.hot = snapshot(self.hot, self.base, REDUCERS)
            self.delta, self.later = delta(self.hot), []
        elif keep_delta:
            self.delta, self.later = delta(self.hot), []
        self.seq += 1

    def cold(self) -> Input:
        top = decode_document(self.stored[self.base]) if self.base in self.stored else initial(self.state)
        chain = chain_of(self.base, top)
        documents: list[bytes | Document] = [self.stored.get(at) or initial(self.state) for at in chain]
        return build(documents, self.delta, self.later, branch=self.branch, chain=chain, reducers=REDUCERS)


numbers = st.integers(-3, 3) | st.sampled_from([0.1, 0.2, 1.5, -0.3])
contributions = st.fixed_dictionaries(
    {},
    optional={
        "log": st.lists(st.integers(0, 3), max_size=2) | st.integers(0, 3),
        "sum": numbers,
        "tags": st.lists(st.sampled_from("abc"), max_size=2),
        "both": st.booleans(),
        "x": st.integers(0, 5) | st.none(),
        "item": st.integers(0, 5) | st.none(),
    },
).map(lambda values: made(**values))
steps = st.lists(st.tuples(contributions, st.booleans(), st.sampled_from([False, False, True])), max_size=8)


@given(steps=steps, inner=st.lists(steps, max_size=3), after=steps, start=st.sampled_from([{}, {"sum": 0.7, "log": [9], "item": "outer"}]))
@settings(max_examples=150, deadline=None)
@pytest.mark.row("H-02", "H-18", "C-14")
def test_what_is_read_back_is_what_was_kept(steps: Any, inner: Any, after: Any, start: dict[str, Any]) -> None:
    state = json.dumps(start).encode()
    stored: dict[Position, bytes] = {}
    trunk = Branch(Input({field: raw(value) for field, value in start.items()}), stored, state=state)
    for changes, keep_delta, document in steps:
        trunk.step(changes, keep_delta=keep_delta, document=document)
        assert trunk.cold().fields == trunk.hot.fields
    trunk.step(made(), keep_delta=True, document=True)  # a fan-out source always leaves a document
    parts = []
    for number, work in enumerate(inner, 1):
        alias = {"item": raw(number), "itemIndex": raw(number - 1), "itemCount": raw(len(inner))}
        branch = Branch(branch_input(trunk.hot, number, alias), stored, state=state)
        assert branch.cold().fields == {**trunk.hot.fields, **alias}
        for changes, keep_delta, document in work:
            branch.step(changes, keep_delta=keep_delta, document=document)
            cold = branch.cold()
            assert cold.fields == branch.hot.fields
            assert contribution(cold, REDUCERS) == contribution(branch.hot, REDUCERS)
        parts.append(contribution(branch.hot, REDUCERS))
    trunk.hot = join(trunk.hot, parts, ["item", "itemIndex", "itemCount"], REDUCERS)
    assert not {"item", "itemIndex", "itemCount"} & trunk.hot.fields.keys()
    trunk.step(made(), keep_delta=True, document=False)  # what was folded is always stored along
    for changes, keep_delta, document in after:
        trunk.step(changes, keep_delta=keep_delta, document=document)
        assert trunk.cold().fields == trunk.hot.fields


def test_a_list_that_only_grows_is_stored_about_once() -> None:
    """500 appends of 2 KB: changes and documents together stay well under three times the bytes appended."""
    element = "x" * 2_000
    given_ = Input({"log": raw([])})
    written = appended = 0
    for seq in range(1, 501):
        changes = made(log=[element])
        given_ = extend(given_, changes, REDUCERS)
        written += len(changes.encode())
        appended += len(element)
        if needs_snapshot(given_):
            document, given_ = snapshot(given_, (0, seq), REDUCERS)
            written += len(document)
        rest = delta(given_)
        written += len(rest) if rest is not None and len(rest) <= DELTA_BYTES_MAX else 0
        assert len(given_.chain) <= CHAIN_LENGTH_MAX + 1
    assert len(plain(given_.fields)["log"]) == 500
    assert written < 3 * appended


def test_a_large_field_that_nobody_touches_is_not_stored_again() -> None:
    given_ = Input({"blob": raw("b" * 100_000), "n": raw(0)}, base_bytes=100_020)
    written = 0
    for seq in range(1, 201):
        given_ = extend(given_, made(n=seq), REDUCERS)
        if needs_snapshot(given_):
            document, given_ = snapshot(given_, (0, seq), REDUCERS)
            written += len(document)
        written += len(delta(given_) or b"")
    assert plain(given_.fields)["n"] == 200
    assert written < 20_000


@pytest.mark.parametrize(("base", "changed", "steps", "due"), [
    (0, SNAPSHOT_CHANGES_BYTES_MIN, 1, False),
    (0, SNAPSHOT_CHANGES_BYTES_MIN + 1, 1, True),
    (400_000, 99_000, 1, False),
    (400_000, 100_001, 1, True),
    (400_000, 10, SNAPSHOT_STEPS, True),
])  # fmt: skip
def test_when_a_document_is_due(base: int, changed: int, steps: int, due: bool) -> None:
    assert needs_snapshot(Input({}, base_bytes=base, changed_bytes=changed, steps=steps)) is due


def test_documents_in_their_stored_form() -> None:
    start = Input({"log": raw([1]), "sum": raw(0.5), "pad": raw("p" * 500)})
    one = extend(start, made(log=[2], sum=0.25), REDUCERS)
    assert delta(start) is None
    assert json.loads(delta(one) or b"") == {"net": {"log": [2], "sum": 0.25}, "exact": {"sum": 0.75}}
    document, one = snapshot(one, (0, 1), REDUCERS)
    assert json.loads(document) == {"on": [[0, 0]], "net": {"log": [2], "sum": 0.25}, "exact": {"sum": 0.75}}
    assert one.chain == (START, (0, 1))
    two = extend(one, made(pad="q" * 500), REDUCERS)
    document, two = snapshot(two, (0, 2), REDUCERS)
    assert json.loads(document)["state"]["pad"] == "q" * 500, "half of it has changed: the document stands alone"
    assert two.chain == ((0, 2),)


def test_a_branch_document_holds_the_whole_contribution() -> None:
    _, spawned = snapshot(Input({"log": raw([0])}), (0, 1), REDUCERS)
    branch = branch_input(spawned, 5, {"item": raw("a")})
    for seq in (1, 2):
        branch = extend(branch, made(log=[seq]), REDUCERS)
        document, branch = snapshot(branch, (5, seq), REDUCERS)
    assert json.loads(document) == {"on": [list(at) for at in spawned.chain], "alias": {"item": "a"}, "net": {"log": [1, 2]}}
    assert plain(contribution(branch, REDUCERS).fields) == {"log": [1, 2]}
