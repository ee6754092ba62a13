"""What a step costs in Python beside the task itself: the carrier, the values, the folds. Run as `python -m bench.carrier`.

Prints microseconds of processor time, the best of several rounds. Figures of different machines do not compare; those of
one machine do when little else runs on it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from time import process_time

import msgspec
from msgspec import Raw

from dwarf.changes import Changes, compose, fold
from dwarf.flow import Flow, Identity
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.run import run_sync
from dwarf.state import State
from dwarf.values import encode

ROUNDS = 7
ROUND_SECONDS = 0.1

SMALL = State({"amount": 250.5, "customer": "ada", "lines": [1, 2, 3], "tries": 0})
IDENTITY = Identity(flow_key="1-0-1-abc", step_key="1-0-1-1-abc", task_name="Charge", step_created_at=datetime.datetime.now(datetime.UTC))
ORDER = {
    "customer": {"name": "Ada Lovelace", "mail": "ada@example.org", "tags": ["a", "b", "c"]},
    "lines": [{"sku": f"SKU-{place:04}", "count": place, "price": place * 1.25, "note": "wrapped as a gift"} for place in range(105)],
}
LOG = Raw(msgspec.json.encode([{"at": place, "text": "x" * 80} for place in range(10_000)]))
ENTRY = Raw(b'[{"at":1,"text":"hello"}]')


def no_op(flow: Flow) -> None:
    """Return at once."""


def charge(flow: Flow) -> None:
    """Read three fields and write two."""
    flow["total"] = flow.get_float("amount") * 2
    flow["note"] = flow.get_str("customer")
    flow.get_int("tries")


def quote(amount: float, customer: str, tries: int) -> dict[str, object]:
    """Do the same as a plain function."""
    return {"total": amount * 2, "note": customer}


def read_and_write() -> None:
    flow = Flow(SMALL, identity=IDENTITY)
    charge(flow)
    flow.effect()


def set_once() -> None:
    flow = Flow(SMALL, identity=IDENTITY)
    flow["total"] = 1
    flow.effect()


def run(task: TaskFunction) -> None:
    run_sync(task, Flow(SMALL, identity=IDENTITY))


def cases() -> list[tuple[str, Callable[[], object]]]:
    reducers = {"log": "append", "sum": "add"}
    one = Changes({"log": ENTRY, "sum": Raw(b"1"), "note": Raw(b'"x"')})
    base = {"log": Raw(b"[]"), "sum": Raw(b"5")}
    large = {"log": LOG}
    no_op_task, charge_task, quote_task = TaskFunction("n", no_op), TaskFunction("c", charge), TaskFunction("q", quote)
    order_bytes = len(msgspec.json.encode(ORDER))
    return [
        ("Flow, 1 write, effect", set_once),
        ("Flow, 3 reads, 2 writes, effect", read_and_write),
        ("run: task that does nothing", lambda: run(no_op_task)),
        ("run: 3 reads, 2 writes", lambda: run(charge_task)),
        ("run: the same as a plain function", lambda: run(quote_task)),
        ("fold 3 fields, 2 reduced", lambda: fold(base, one, reducers)),
        ("compose 3 fields, 2 reduced", lambda: compose(one, one, reducers)),
        (f"append to a list of {len(LOG) >> 10} KB", lambda: fold(large, Changes({"log": ENTRY}), reducers)),
        (f"copy {len(LOG) >> 10} KB", lambda: bytearray(memoryview(LOG))),
        (f"encode and check {order_bytes} bytes", lambda: encode(ORDER, "order")),
        (f"msgspec alone, {order_bytes} bytes", lambda: msgspec.json.encode(ORDER)),
        ("encode a short text", lambda: encode("hello", "note")),
        ("encode a number", lambda: encode(17, "count")),
    ]


def microseconds(call: Callable[[], object]) -> float:
    """Return what one call takes, in the best round."""
    calls = 1
    while _seconds(call, calls) < ROUND_SECONDS:
        calls *= 2
    return min(_seconds(call, calls) for _ in range(ROUNDS)) / calls * 1e6


def _seconds(call: Callable[[], object], calls: int) -> float:
    started = process_time()
    for _ in range(calls):
        call()
    return process_time() - started


def main() -> None:
    print(f"{'what':<40}{'microseconds':>14}")
    for name, call in cases():
        print(f"{name:<40}{microseconds(call):>14.2f}")


if __name__ == "__main__":
    main()
