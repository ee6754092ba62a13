"""An agent: a model thinks, its tools run in parallel, a human approves what costs money, and round it goes until it answers.

The model is a script, so that the example needs no network: it reads the conversation as a model would and says what comes
next. Put yours into `script`.

dwarf graph simulate examples.agent:app:agent --state '{"goal": "120 bolts"}' --answer '{"approved": true}'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dwarf import END, App, Flow, Graph, Reducer, Retry, TaskError

app = App()

TURNS_MAX = 10
NEEDS_APPROVAL = {"order"}
PRICES = {"North": 31, "South": 27}


class Call(msgspec.Struct):
    """A tool that the model wants to be run."""

    tool: str
    arguments: dict[str, Any] = {}


class Message(msgspec.Struct, omit_defaults=True):
    """A line of the conversation. `role` is human, model or tool; `of` names the tool."""

    role: str
    text: str
    of: str = ""
    value: Any = None


class Reply(msgspec.Struct):
    """What the model says: a thought with calls, or an answer without."""

    text: str
    calls: list[Call] = []


@app.graph("agent")
def agent() -> Graph:
    graph = Graph("Agent")
    graph.set_url("Think", "agent.think")
    graph.set_url("Approve", "agent.approve")
    graph.set_url("Use", "agent.use")
    graph.set_url("Excuse", "agent.excuse")
    graph.set_url("Observe", "agent.observe")
    graph.add_transition_switch("Think", "Approve", "calls")
    graph.add_transition_switch("Think", END, "true")
    graph.add_transition_for_each("Approve", "Use", "calls", "call")  # the tools of one turn, side by side
    graph.add_transition("Use", "Observe")
    graph.add_transition_on_error("Use", "Excuse")  # a tool that failed is something the model should hear about
    graph.add_transition("Excuse", "Observe")
    graph.set_fan_in("Observe")
    graph.add_transition("Observe", "Think")
    graph.set_reducer("messages", Reducer.APPEND)
    return graph


@app.task("agent.think")
async def think(goal: str, messages: list[Message] | None = None) -> dict[str, object]:
    reply = await script(goal, messages or [])
    said = {"messages": Message("model", reply.text), "calls": reply.calls}
    return said if reply.calls else {**said, "answer": reply.text}


@app.task("agent.approve")
def approve(flow: Flow, calls: list[Call]) -> None:
    costly = [call for call in calls if call.tool in NEEDS_APPROVAL]
    if costly and not flow.interrupt({"question": "may the agent do this?", "calls": costly}).get("approved"):
        flow["messages"] = [Message("human", "no", of=call.tool) for call in costly]
        flow["calls"] = [call for call in calls if call not in costly]


@app.task("agent.use", retry=Retry(on=TimeoutError, initial_delay=0.2, give_up_after=30))
async def use(flow: Flow, call: Call) -> dict[str, object]:
    tool = TOOLS.get(call.tool)
    if tool is None:
        raise TaskError(f"there is no tool {call.tool!r}", status=404)
    value = tool(flow, **call.arguments)
    return {"messages": Message("tool", f"{call.tool} gave {value}", of=call.tool, value=value)}


@app.task("agent.excuse")
def excuse(flow: Flow, call: Call) -> None:
    flow["messages"] = Message("tool", f"{call.tool} failed: {flow['onErr']['error']}", of=call.tool)
    flow.delete("onErr")


@app.task("agent.observe")
def observe(turns: int = 0) -> dict[str, int]:
    if turns >= TURNS_MAX:
        raise TaskError(f"no answer after {TURNS_MAX} turns", status=508)
    return {"turns": turns + 1}


# The tools


def quote(flow: Flow, supplier: str, pieces: int) -> dict[str, object]:
    if supplier == "South" and flow.attempt == 0:
        raise TimeoutError("South is slow to answer, the first time")
    if supplier not in PRICES:
        raise TaskError(f"nobody knows {supplier}", status=404)
    return {"supplier": supplier, "price": PRICES[supplier] * pieces}


def order(flow: Flow, supplier: str, price: int) -> dict[str, object]:
    return {"ordered": supplier, "for": price, "reference": flow.step_key}  # the key by which the supplier tells a repetition


TOOLS: dict[str, Callable[..., dict[str, object]]] = {"quote": quote, "order": order}


# The model


async def script(goal: str, messages: list[Message]) -> Reply:
    """Stand in for a model: ask three suppliers for their price, order from the cheapest, report."""
    refused = any(message.role == "human" and message.text == "no" for message in messages)
    quotes = [message.value for message in messages if message.of == "quote" and message.value]
    orders = [message.value for message in messages if message.of == "order" and message.value]
    if refused:
        return Reply("I have ordered nothing.")
    if orders:
        return Reply(f"{goal} come from {orders[0]['ordered']} for {orders[0]['for']}.")
    if quotes:
        best = min(quotes, key=lambda offer: int(offer["price"]))
        return Reply(f"{best['supplier']} is the cheapest.", [Call("order", best)])
    pieces = int(goal.split(maxsplit=1)[0])
    return Reply("I ask for prices.", [Call("quote", {"supplier": name, "pieces": pieces}) for name in ("North", "South", "East")])
