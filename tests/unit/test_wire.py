"""What dispatcher and executor tell each other arrives as it was sent."""

from __future__ import annotations

import pytest
from msgspec import Raw

from dwarf.inputs import Document
from dwarf.record import Child, Kind, NewBranch, Record, Todo, Via
from dwarf.status import StepStatus
from dwarf.wire import (
    Assign,
    Assignment,
    Cohort,
    Committed,
    Drain,
    Freed,
    GraphForm,
    Hello,
    Park,
    ProtocolViolation,
    Report,
    Reports,
    Unstarted,
    Withdraw,
    decode_for_dispatcher,
    decode_for_executor,
    encode,
)  # fmt: skip

FORM = GraphForm(7, b"\0" * 32, "it", "A", b"{}")


def assignment(**other: object) -> Assignment:
    values: dict[str, object] = {
        "ticket": 1, "flow_id": 2**62, "branch": 5, "seq": 3, "lease": 4, "task": "A", "todo": 0, "attempt": 1, "graph_id": 7,
        "chain": [(0, 0)], "documents": [0], "delta": None, "later": [], "in_cohort": False, "expanded": 0, "last_ordinal": None,
        "cohort": None, "park": None, "reason": "", "token": "0" * 16, "workflow": "it", "priority": 3, "fairness_key": "",
        "budget_ms": 1000, "flow_created_at": 10, "step_created_at": 20, "claimed_at": 30, "baggage": b"{}", **other,
    }  # fmt: skip
    return Assignment(**values)  # type: ignore[arg-type]


RECORDS = [
    Record(kind=Kind.ADVANCE, branch=0, seq=1, lease=1, task="B", base=(0, 0), delta=b"{}", delay=1.5),
    Record(kind=Kind.FAN_OUT, branch=0, seq=1, size=2, branches=[NewBranch(0, "B", b"x"), NewBranch(1, "C")], snapshot=b"{}"),
    Record(kind=Kind.PARK, branch=9, seq=1, status=StepStatus.PARKED, child=Child("c", b"{}"), kept=b"{}"),
    Record(kind=Kind.CLOSE, branch=0, seq=2, status=StepStatus.FAILED, via=Via.ERROR, error="no\0", final_state=b'{"a":"\\u0000"}'),
]


@pytest.mark.parametrize("message", [
    Assign([assignment(), assignment(cohort=Cohort("S", 1 << 40, [(0, 1, 6, b"{}", None), (1, 2, 7, None, "no")]))], [b"{}"], [FORM]),
    Assign([assignment(park=Park(b"{}", None, 6, None, b"{}"), later=[b"{}"], todo=int(Todo.FOLD))], [b"{}", b""]),
    Committed([1, 2], [3]), Withdraw([1]), Drain(),
])  # fmt: skip
def test_messages_for_an_executor(message: object) -> None:
    assert decode_for_executor(encode(message)) == message


@pytest.mark.parametrize("message", [
    Hello(1000), Freed([1]), Unstarted([2, 3]), Reports([Report(1, record, FORM if record.child else None) for record in RECORDS]),
])  # fmt: skip
def test_messages_for_the_dispatcher(message: object) -> None:
    decoded = decode_for_dispatcher(encode(message))
    assert decoded == message
    if isinstance(decoded, Reports):
        assert all(type(report.record.kind) is Kind and type(report.record.status) is StepStatus for report in decoded.items)


@pytest.mark.parametrize("data", [b"", b"\xc1", encode(Hello(1)), encode([99, 1]), encode({"a": 1})])
def test_what_an_executor_is_not_to_be_sent_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_for_executor(data)


def test_the_input_is_built_of_what_travelled() -> None:
    sent = [assignment(), assignment(delta=Document(alias={"item": Raw(b"2")}).encode()), assignment(later=[b'{"n":5}'])]
    message = Assign(sent, [b'{"n":1}'])
    bases = [message.base(each, {}) for each in sent]
    states = [each.step(base, {}).input.state for each, base in zip(sent, bases, strict=True)]
    assert states == [{"n": 1}, {"n": 1, "item": 2}, {"n": 5}]


def test_the_size_of_a_step_is_what_travels_for_it_alone() -> None:
    sent = assignment(later=[b"12"], park=Park(b"123", None, None, None, None), cohort=Cohort("S", 1, [(0, 1, 6, b"1234", None)]))
    assert sent.size == len(b"{}") + 2 + 3 + 4


def test_members_know_their_step_and_what_they_brought() -> None:
    cohort = Cohort("S", 1 << 20, [(0, 3, 6, b'{"n":1}', None), (1, 1, 7, None, "no")])
    good, bad = assignment(cohort=cohort).members()
    assert (good.ordinal, good.status, good.step_id, good.error) == (0, StepStatus.COMPLETED, (1 << 40) | 3, "")
    assert (bad.status, bad.error, bad.step_id) == (StepStatus.FAILED, "no", ((1 << 20) + 1) << 20 | 1)
    assert assignment().members() == []
