import pickle
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.keys import FlowKey, flow_id, step_id
from dwarf.status import StepStatus
from dwarf.steps import Step, order_history, wire_name

FLOW = FlowKey(1, flow_id(231_042, 7), "0123456789abcdef")

FIELDS = """step_key step_id step_depth task_name task_url attempt status parked error predecessor_key successor_key
previous_key next_key subgraph sub_workflow_url sub_workflow_name sub_flow_key sub_history state changes interrupt_payload
engine_id created_at started_at updated_at"""


def step(number: int, depth: int = 1, children: list[Step] | None = None) -> Step:
    return Step(step_key=str(FLOW.step(number)), step_id=number, step_depth=depth, sub_history=children or [])


@pytest.mark.row("I-22", "I-23")
def test_fields_and_their_order() -> None:
    assert Step.__struct_fields__ == tuple(FIELDS.split())


@pytest.mark.row("I-22")
def test_a_step_of_a_history_has_no_state() -> None:
    found = step(1)
    assert found.state is found.changes is found.interrupt_payload is None
    assert found.started_at is None
    assert (found.step_depth, found.predecessor_key, found.attempt) == (1, "", 0)


def test_wire_form_spells_url_and_id_in_capitals() -> None:
    found = msgspec.structs.replace(step(5), status=StepStatus.COMPLETED, created_at=datetime(2030, 1, 1, tzinfo=UTC), engine_id=7)
    wire = msgspec.json.decode(msgspec.json.encode(found))
    assert list(wire) == [
        "stepKey",
        "stepID",
        "stepDepth",
        "taskName",
        "taskURL",
        "attempt",
        "status",
        "parked",
        "error",
        "predecessorKey",
        "successorKey",
        "previousKey",
        "nextKey",
        "subgraph",
        "subWorkflowURL",
        "subWorkflowName",
        "subFlowKey",
        "subHistory",
        "state",
        "changes",
        "interruptPayload",
        "engineID",
        "createdAt",
        "startedAt",
        "updatedAt",
    ]
    assert (wire["status"], wire["createdAt"], wire["startedAt"]) == ("completed", "2030-01-01T00:00:00Z", None)
    assert wire_name("url") == "url"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Step) == found


@pytest.mark.row("I-22")
def test_history_is_ordered_by_depth_then_id() -> None:
    steps = [step(4, 3), step(step_id(2, 1), 2), step(step_id(1, 1), 2), step(1, 1), step(2, 3)]
    assert [(found.step_depth, found.step_id) for found in order_history(steps)] == [
        (1, 1),
        (2, 1 << 20 | 1),
        (2, 2 << 20 | 1),
        (3, 2),
        (3, 4),
    ]
    assert order_history([]) == []
    assert order_history(iter(steps)) == order_history(steps)


def test_histories_of_children_are_ordered_too() -> None:
    inner = step(1, 3, [step(9, 5), step(8, 4)])
    (outer,) = order_history([step(1, 1, [step(2, 4), inner])])
    assert [found.step_depth for found in outer.sub_history] == [3, 4]
    assert [found.step_depth for found in outer.sub_history[0].sub_history] == [4, 5]


def test_a_thousand_nested_children_are_no_trouble() -> None:
    found = step(1)
    for _ in range(5_000):
        found = step(1, 1, [step(2), found])
    (outer,) = order_history([found])
    assert [child.step_id for child in outer.sub_history] == [1, 2]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), max_size=20))
def test_ordering_loses_nothing(places: list[tuple[int, int]]) -> None:
    steps = [step(number, depth) for depth, number in places]
    assert [(found.step_depth, found.step_id) for found in order_history(steps)] == sorted(places)


def test_repr_shows_no_token() -> None:
    found = step(5)
    assert repr(found) == "Step(1-231042-7-5 '' pending attempt=0)"
    assert FLOW.step(5).token not in f"{[found]} {found}"
    assert repr(Step(step_key="damaged", step_id=1)).startswith("Step(? ")


def test_steps_are_values() -> None:
    found = step(5, children=[step(6)])
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(AttributeError):
        found.error = "x"  # type: ignore[misc]
