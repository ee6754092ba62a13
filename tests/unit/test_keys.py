import copy
import pickle
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.errors import InvalidArgument
from dwarf.keys import (
    BRANCH_MAX,
    HOUR_MAX,
    LOW_MAX,
    FlowKey,
    StepKey,
    branch_seq,
    flow_id,
    hide_tokens,
    key_name,
    parse_name,
    step_id,
    step_token,
)
from dwarf.limits import SEQ_MAX

TOKEN = "0123456789abcdef"
FLOW = FlowKey(3, flow_id(231_042, 77), TOKEN)

flow_keys = st.builds(
    FlowKey,
    st.integers(1, 2**31 - 1),
    st.builds(flow_id, st.integers(0, HOUR_MAX), st.integers(0, LOW_MAX)),
    st.text("0123456789abcdef", min_size=16, max_size=16),
)
step_ids = st.builds(step_id, st.integers(0, BRANCH_MAX), st.integers(1, SEQ_MAX))


@pytest.mark.row("I-38")
def test_a_flow_key_shows_its_parts() -> None:
    assert str(FLOW) == f"3-231042-77-{TOKEN}"
    assert (FLOW.shard, FLOW.hour, FLOW.low, FLOW.token) == (3, 231_042, 77, TOKEN)
    assert FLOW.flow_id == 231_042 << 36 | 77
    assert FlowKey.parse(str(FLOW)) == FLOW


@pytest.mark.row("I-39")
def test_a_step_key_shares_the_parts_of_its_flow_key() -> None:
    key = FLOW.step(step_id(2, 5))
    shard, hour, low, step, token = str(key).split("-")
    assert [shard, hour, low] == str(FLOW).split("-")[:3]
    assert int(step) == 2 << 20 | 5 == key.step_id
    assert (key.branch, key.seq) == (2, 5)
    assert token == sha256(f"{TOKEN}:{2 << 20 | 5}".encode()).hexdigest()[:16] == step_token(TOKEN, key.step_id)
    assert StepKey.parse(str(key)) == key
    assert (key.hour, key.low, key.flow_id, key.flow_name) == (FLOW.hour, FLOW.low, FLOW.flow_id, FLOW.name)


@pytest.mark.row("I-38", "I-39")
@given(flow_keys, step_ids)
def test_every_key_has_one_spelling(key: FlowKey, step: int) -> None:
    assert FlowKey.parse(str(key)) == key
    assert StepKey.parse(str(key.step(step))) == key.step(step)
    assert step_id(*branch_seq(step)) == step
    assert key_name(str(key)) == key.name == str(key).rpartition("-")[0]
    assert parse_name(key.name) == (key.shard, key.flow_id)


@given(st.text("0123456789abcdef-+ .\n٣", max_size=60))
def test_what_parses_is_spelled_back_the_same(text: str) -> None:
    for kind in (FlowKey, StepKey):
        try:
            key = kind.parse(text)
        except InvalidArgument:
            continue
        assert str(key) == text


MALFORMED_FLOW_KEYS = [
    "",
    "-",
    "---",
    "x",
    f"1-2-{TOKEN}",
    f"1-2-3-4-{TOKEN}",
    f"1-2-3-4-5-{TOKEN}",
    f"0-2-3-{TOKEN}",
    f"-1-2-3-{TOKEN}",
    f"01-2-3-{TOKEN}",
    f"1-02-3-{TOKEN}",
    f"1-2-03-{TOKEN}",
    f"1-00-3-{TOKEN}",
    f"+1-2-3-{TOKEN}",
    f"1-+2-3-{TOKEN}",
    f" 1-2-3-{TOKEN}",
    f"1-2-3-{TOKEN} ",
    f"1-2-3-{TOKEN}\n",
    f"1- 2-3-{TOKEN}",
    f"1-2-3 -{TOKEN}",
    f"1_0-2-3-{TOKEN}",
    f"one-2-3-{TOKEN}",
    f"1-2-three-{TOKEN}",
    f"1.0-2-3-{TOKEN}",
    f"1-2-0x3-{TOKEN}",
    f"١-2-3-{TOKEN}",
    f"1-2-３-{TOKEN}",
    f"1-2-²-{TOKEN}",
    f"1--3-{TOKEN}",
    f"-2-3-{TOKEN}",
    "1-2-3-",
    "1-2-3-0123456789abcde",
    "1-2-3-0123456789abcdef0",
    "1-2-3-0123456789ABCDEF",
    "1-2-3-0123456789abcdeg",
    "1-2-3-0123456789abcd\u00e9f",
    "1-2-3-0123456789abcde\n",
    f"2147483648-2-3-{TOKEN}",
    f"1-{2**27}-3-{TOKEN}",
    f"1-2-{2**36}-{TOKEN}",
    f"1-2-{'9' * 19}-{TOKEN}",
    f"1-{'9' * 5000}-3-{TOKEN}",
    f"{'1' * 20}-2-3-{TOKEN}",
    f"\x001-2-3-{TOKEN}",
    f"1\u20132\u20133\u2013{TOKEN}",
    "\ud800",
    "1-2-3-\ud800" + TOKEN[1:],
]


@pytest.mark.row("A22", "I-38")
@pytest.mark.parametrize("text", MALFORMED_FLOW_KEYS)
def test_malformed_flow_keys(text: str) -> None:
    with pytest.raises(InvalidArgument, match="flow key") as caught:
        FlowKey.parse(text)
    assert caught.value.status == 400
    message = str(caught.value)
    assert TOKEN not in message
    assert TOKEN[:8] not in message.lower()
    assert len(message) < 250
    message.encode()


MALFORMED_STEP_KEYS = [
    f"1-2-3-{TOKEN}",
    f"1-2-3-0-{TOKEN}",
    f"1-2-3-{1 << 20}-{TOKEN}",
    f"1-2-3-{7 << 20}-{TOKEN}",
    f"1-2-3-{1 << 63}-{TOKEN}",
    f"1-2-3-{(1 << 63) + 1}-{TOKEN}",
    f"1-2-3-{'9' * 19}-{TOKEN}",
    f"1-2-3-01-{TOKEN}",
    f"1-2-3-+1-{TOKEN}",
    f"1-2-3--1-{TOKEN}",
    f"1-2-3-1 -{TOKEN}",
    f"1-2-3-x-{TOKEN}",
    f"1-2-3--{TOKEN}",
    f"0-2-3-1-{TOKEN}",
    f"1-2-3-1-{TOKEN}-",
    f"1-2-3-1-{TOKEN}\n",
    "1-2-3-1-",
    "1-2-3-1-0123456789ABCDEF",
    f"1-{2**27}-3-1-{TOKEN}",
    f"1-2-{2**36}-1-{TOKEN}",
    "",
    "x-x-x-x-x",
]


@pytest.mark.row("A22", "I-39")
@pytest.mark.parametrize("text", MALFORMED_STEP_KEYS)
def test_malformed_step_keys(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        StepKey.parse(text)
    assert caught.value.status == 400
    assert TOKEN not in str(caught.value)
    assert TOKEN[:8] not in str(caught.value).lower()


@pytest.mark.row("A22")
@pytest.mark.parametrize("value", [None, 5, 1.5, b"1-2-3-0123456789abcdef", ["1"], ("1", 2), True])
def test_only_text_is_a_key(value: object) -> None:
    for kind in (FlowKey, StepKey):
        with pytest.raises(InvalidArgument, match=f"not {type(value).__name__}"):
            kind.parse(value)
    with pytest.raises(InvalidArgument):
        FlowKey.parse(FLOW.step(1))
    with pytest.raises(InvalidArgument):
        StepKey.parse(FLOW)


def test_a_parsed_key_passes_again() -> None:
    assert FlowKey.parse(FLOW) is FLOW
    step = FLOW.step(1)
    assert StepKey.parse(step) is step


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"1-2-3-4-{TOKEN}", "has 5 parts"),
        ("lonely", "has 1 part;"),
        (f"01-2-3-{TOKEN}", "its shard must be"),
        (f"1-x-3-{TOKEN}", "its hour must be"),
        (f"1-2--{TOKEN}", "its flow number must be"),
        ("1-2-3-nope", "its token must be"),
        (f"1-{2**27}-3-{TOKEN}", "its hour must be at most 134217727"),
    ],
)
def test_errors_name_the_part_and_the_rule(text: str, rule: str) -> None:
    with pytest.raises(InvalidArgument, match=rule):
        FlowKey.parse(text)


DIGITS = "1234567890123456"


@pytest.mark.parametrize(
    "text",
    [
        DIGITS,
        f"1-{DIGITS}",
        f"1-2-{DIGITS}",
        f"{DIGITS}-1-2-3",
        f"1-{DIGITS}-2-{TOKEN}",
        f"{DIGITS}-1-2-{TOKEN}",
        f"1-2-3-{DIGITS}-4",
        f"1-2-3-{DIGITS}-",
        f"1-2-3-4-5-{DIGITS}",
        f"1-2-3-{DIGITS}\n",
        f"{DIGITS}1-1-1-1",
    ],
)
def test_a_token_of_digits_in_a_mangled_key_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        FlowKey.parse(text)
    assert DIGITS[:13] not in str(caught.value)


@pytest.mark.row("A22")
@pytest.mark.parametrize(
    "parts",
    [
        (0, 1, TOKEN),
        (-1, 1, TOKEN),
        (2**31, 1, TOKEN),
        (True, 1, TOKEN),
        (1.0, 1, TOKEN),
        ("1", 1, TOKEN),
        (1, -1, TOKEN),
        (1, 2**63, TOKEN),
        (1, 1, "x"),
        (1, 1, None),
        (1, 1, TOKEN.upper()),
        (1, 1, TOKEN.encode()),
    ],
)
def test_no_key_is_built_of_wrong_parts(parts: tuple[int, int, str]) -> None:
    with pytest.raises(InvalidArgument):
        FlowKey(*parts)
    with pytest.raises(InvalidArgument):
        StepKey(parts[0], parts[1], 1, parts[2])


@pytest.mark.parametrize("step", [0, -1, 1 << 20, 1 << 63, (1 << 63) + 1, True, "1"])
def test_no_step_has_such_an_id(step: int) -> None:
    with pytest.raises(InvalidArgument):
        FLOW.step(step)


def test_ranges_of_ids() -> None:
    assert flow_id(HOUR_MAX, LOW_MAX) == 2**63 - 1
    assert flow_id(0, 0) == 0
    assert step_id(BRANCH_MAX, SEQ_MAX) == 2**63 - 1
    assert branch_seq(1) == (0, 1)
    for hour, low in ((-1, 0), (HOUR_MAX + 1, 0), (0, -1), (0, LOW_MAX + 1), (True, 0), (0.0, 0)):
        with pytest.raises(InvalidArgument):
            flow_id(hour, low)  # type: ignore[arg-type]
    for branch, seq in ((-1, 1), (BRANCH_MAX + 1, 1), (0, 0), (0, SEQ_MAX + 1)):
        with pytest.raises(InvalidArgument):
            step_id(branch, seq)
    for joined in (0, -1, 1 << 20, 1 << 63):
        with pytest.raises(InvalidArgument):
            branch_seq(joined)


def test_tokens_prove_what_they_belong_to() -> None:
    step = FLOW.step(9)
    assert FLOW.matches(TOKEN)
    assert not FLOW.matches(TOKEN[::-1])
    assert not FLOW.matches("")
    assert not FLOW.matches("é")
    assert step == FLOW.step(9)
    assert step.belongs_to(TOKEN)
    assert not step.belongs_to(TOKEN[::-1])
    assert not StepKey(step.shard, step.flow_id, 10, step.token).belongs_to(TOKEN)
    assert step.token != TOKEN
    assert FLOW.step(10).token != step.token


def test_names_and_reprs_show_no_token() -> None:
    step = FLOW.step(9)
    assert FLOW.name == "3-231042-77"
    assert step.name == "3-231042-77-9"
    assert repr(FLOW) == "FlowKey(3-231042-77)"
    assert repr(step) == "StepKey(3-231042-77-9)"
    assert TOKEN not in f"{[FLOW]!r} {FLOW!r}"
    assert (key_name(str(FLOW)), key_name(str(step)), key_name(TOKEN)) == (FLOW.name, step.name, "?")


def test_tokens_are_hidden_in_any_text() -> None:
    step = FLOW.step(9)
    assert (
        hide_tokens(f"{FLOW}, then {step}; {FLOW.name} of 1-2 ({TOKEN})")
        == f"{FLOW.name}-…, then {step.name}-…; {FLOW.name} of 1-2 ({TOKEN})"
    )
    assert TOKEN[1:] not in hide_tokens(f"01-2-3-{TOKEN} x{FLOW}x 1-2-3-{TOKEN.upper()}").lower()


def test_keys_are_values() -> None:
    step = FLOW.step(9)
    again = FlowKey.parse(str(FLOW))
    assert {FLOW: 1, step: 2}[again] == 1
    for key in (FLOW, step):
        assert pickle.loads(pickle.dumps(key)) == copy.deepcopy(key) == key
        with pytest.raises(AttributeError):
            key.shard = 4  # type: ignore[misc]
    assert FlowKey(3, FLOW.flow_id, TOKEN[::-1]) != FLOW
    assert step != FLOW  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    "text",
    ["", "1-2", "1-2-3-4", "0-2-3", "01-2-3", f"1-{2**27}-3", f"1-2-{2**36}", "2147483648-1-1", "1-2-3\n", "a-b-c", " 1-2-3", "1-2-٣"],
)
def test_what_is_no_name(text: str) -> None:
    assert parse_name(text) is None
