"""A checkout: stock is reserved line by line, the card is charged, the parcel is handed over.

When one of these fails, what went before is undone, latest first: the charge is refunded, the stock is released.

dwarf graph render examples.checkout:app:checkout -o checkout.svg
dwarf graph simulate examples.checkout:app:checkout --state '{"lines": [{"sku": "A1", "price": 20, "count": 2}]}'
dwarf graph simulate examples.checkout:app:checkout --state '{"lines": [{"sku": "A1", "price": 20}], "card": "expired"}'
dwarf graph simulate examples.checkout:app:checkout --state '{"lines": [{"sku": "A1", "price": 20}], "address": "the Moon"}'
"""

from __future__ import annotations

import msgspec

from dwarf import END, App, Flow, Graph, Reducer, Retry, TaskError

app = App()

SOLD_OUT = {"Z9"}


class Line(msgspec.Struct):
    """One line of an order: what, for how much each, how many."""

    sku: str
    price: int
    count: int = 1


@app.graph("checkout")
def checkout() -> Graph:
    graph = Graph("Checkout")
    graph.set_url("Validate", "orders.validate")
    graph.set_url("Reserve", "inventory.reserve")
    graph.set_url("Charge", "billing.charge")
    graph.set_url("Refund", "billing.refund")
    graph.set_url("Release", "inventory.release")
    graph.set_url("Review", "orders.review")
    graph.set_url("Confirm", "orders.confirm")
    graph.add_transition_for_each("Validate", "Reserve", "lines", "line")
    graph.add_transition("Reserve", "Price")
    graph.add_transition_on_error("Reserve", "Lack")  # inside its branch: the other lines are reserved all the same …
    graph.add_transition("Lack", "Price")
    graph.set_fan_in("Price")
    graph.add_transition_switch("Price", "Release", "lacking")  # … and released here
    graph.add_transition_switch("Price", "Review", "total >= 1000")
    graph.add_transition_switch("Price", "Charge", "true")
    graph.add_transition_switch("Review", "Charge", "approved")
    graph.add_transition_switch("Review", "Release", "true")
    graph.add_transition("Charge", "Confirm")
    graph.add_transition_on_error("Charge", "Release")
    graph.add_transition("Confirm", END)
    graph.add_transition_on_error("Confirm", "Refund")
    graph.add_transition_chain("Refund", "Release", END)
    graph.set_reducer("total", Reducer.ADD)
    graph.set_reducer("reservations", Reducer.APPEND)
    graph.set_reducer("lacking", Reducer.APPEND)
    return graph


@app.task("orders.validate")
def validate(lines: list[Line]) -> dict[str, object]:
    for line in lines:
        if line.count < 1:
            raise TaskError(f"line {line.sku!r} asks for {line.count} pieces", status=422, sku=line.sku)
    return {"pieces": sum(line.count for line in lines)}


@app.task("inventory.reserve", retry=Retry(on=ConnectionError, initial_delay=0.2, give_up_after=60))
async def reserve(line: Line) -> dict[str, object]:
    if line.sku in SOLD_OUT:
        raise TaskError(f"{line.sku} is sold out", status=409, sku=line.sku)
    return {"reservations": f"{line.sku}x{line.count}", "total": line.price * line.count}


@app.task("Lack")
def lack(flow: Flow, line: Line) -> None:
    flow["lacking"] = line.sku
    flow.delete("onErr")


@app.task("Price")
def price(total: int = 0) -> dict[str, object]:
    return {"shipping": 0 if total >= 50 else 5}


@app.task("orders.review")
def review(flow: Flow) -> None:
    answer = flow.interrupt({"question": f"charge {flow.get_int('total')}?"})
    flow["approved"] = bool(answer.get("approved"))


@app.task("billing.charge")
def charge(flow: Flow, total: int = 0, shipping: int = 0, card: str = "") -> None:
    if card == "expired":
        raise TaskError("the card has expired", status=402, card=card)
    flow["receipt"] = {"charged": total + shipping, "reference": flow.step_key}


@app.task("billing.refund")
def refund(flow: Flow) -> None:
    flow["refund"] = {"refunded": flow["receipt"]["charged"], "reference": flow.step_key}


@app.task("orders.confirm")
def confirm(address: str = "") -> dict[str, object]:
    if address == "the Moon":
        raise TaskError(f"no carrier goes to {address}", status=422, address=address)
    return {"confirmed": True}


@app.task("inventory.release")
def release(reservations: list[str] | None) -> dict[str, object]:
    return {"released": reservations or [], "confirmed": False}
