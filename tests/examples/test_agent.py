"""The agent: its tools run side by side, a tool may fail or be slow, and a human decides about what costs money."""

from __future__ import annotations

import pytest

from dwarf import Flow, Status
from dwarf.flow import Identity
from dwarf.testing.reference import ReferenceRun
from examples import agent
from examples.agent import Call, Message, Reply


def begin(*, seed: int = 0) -> ReferenceRun:
    return ReferenceRun(agent.agent(), agent.app, {"goal": "120 bolts"}, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_it_asks_orders_and_answers(seed: int) -> None:
    run = begin(seed=seed)
    asked = run.advance()
    assert asked.status is Status.INTERRUPTED
    assert asked.interrupt_payload["calls"] == [{"tool": "order", "arguments": {"supplier": "South", "price": 3240}}]
    run.resume({"approved": True})
    state = run.advance().state
    assert state["answer"] == "120 bolts come from South for 3240."
    assert state["turns"] == 2
    assert [message["of"] for message in state["messages"] if message["role"] == "tool"] == ["quote", "quote", "quote", "order"]


def test_the_tools_of_a_turn_are_branches_of_one_fan_out() -> None:
    run = begin()
    run.advance()
    used = [step for step in run.steps if step.task == "Use"]
    assert [step.path for step in used] == ["2/0.1", "2/1.1", "2/2.1"]
    assert [step.via for step in used] == ["normal", "normal", "error"], "the third supplier is unknown, and the model hears of it"
    assert [step.attempt for step in used] == [0, 1, 0], "the second one is slow, the first time"
    assert "quote failed: nobody knows East" in [message["text"] for message in run.outcome.state["messages"]]


def test_the_human_may_refuse() -> None:
    run = begin()
    run.advance()
    run.resume({})
    state = run.advance().state
    assert state["answer"] == "I have ordered nothing."
    assert not any(message.get("of") == "order" and message["role"] == "tool" for message in state["messages"])


def test_what_costs_nothing_needs_no_approval() -> None:
    flow = Flow({"calls": [Call("quote", {})]})
    agent.approve(flow, [Call("quote", {})])
    assert flow.effect().park is None


def test_an_unknown_tool_is_heard_of_too() -> None:
    async def model(goal: str, messages: list[Message]) -> Reply:
        return Reply("done") if messages else Reply("hm", [Call("telephone")])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "script", model)
        state = begin().advance().state
    assert [message["text"] for message in state["messages"]] == ["hm", "telephone failed: there is no tool 'telephone'", "done"]


def test_a_model_that_never_answers_is_stopped() -> None:
    async def model(goal: str, messages: list[Message]) -> Reply:
        return Reply("more", [Call("quote", {"supplier": "North", "pieces": 1})])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "script", model)
        outcome = begin().advance()
    assert outcome.status is Status.FAILED
    assert "no answer after 10 turns" in outcome.error


def test_an_order_carries_the_key_of_its_step() -> None:
    flow = Flow(identity=Identity(step_key="1-2-3"))
    assert agent.order(flow, "South", 5)["reference"] == "1-2-3"
