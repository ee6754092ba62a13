"""What the demo runs: the flows, the answers of their humans, and what must have come of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dwarf import Outcome

FAIL_ON, RETRY_ON = "this.py", "abc.py"  # files that every standard library has


class Part(msgspec.Struct):
    """A flow of the demo. `told` puts its final state into words; `holds` says whether it is the right one."""

    title: str
    workflow: str
    state: dict[str, Any]
    told: Callable[[Mapping[str, Any]], str]
    holds: Callable[[Mapping[str, Any]], bool]
    answer: dict[str, Any] | None = None  # what its human says when it asks
    key: str = ""
    outcome: Outcome | None = None


def line(sku: str, price: int, count: int = 1) -> dict[str, Any]:
    return {"sku": sku, "price": price, "count": count}


def parts(root: Path, out: Path, found: int) -> list[Part]:
    """Return the flows; the audit comes first. `found` is the number of files below `root`."""
    return [
        Part(
            title="audit of the standard library",
            workflow="audit",
            state={"root": str(root), "out": str(out), "fail_on": FAIL_ON, "retry_on": RETRY_ON},
            told=lambda end: f"{end['lines']:,} lines in {end['files']} files, {len(end['skipped'])} skipped",
            holds=lambda end: end["found"] == found == end["files"] + len(end["skipped"]),
            answer={"approved": True},
        ),
        Part(
            title="order",
            workflow="checkout",
            state={"lines": [line("A1", 20, 2), line("B2", 5)]},
            told=lambda end: f"charged {end['receipt']['charged']}, confirmed",
            holds=lambda end: end["confirmed"] is True and end["receipt"]["charged"] == 50,
        ),
        Part(
            title="order with an expired card",
            workflow="checkout",
            state={"lines": [line("A1", 20), line("B2", 5)], "card": "expired"},
            told=lambda end: f"nothing charged, {released(end)}",
            holds=lambda end: all_released(end) and "receipt" not in end,
        ),
        Part(
            title="order with a line that is sold out",
            workflow="checkout",
            state={"lines": [line("A1", 20), line("Z9", 5), line("B2", 5)]},
            told=lambda end: f"lacking {end['lacking']}, {released(end)}",
            holds=lambda end: all_released(end) and end["lacking"] == ["Z9"] and len(end["released"]) == 2,
        ),
        Part(
            title="order to the Moon",
            workflow="checkout",
            state={"lines": [line("A1", 20)], "address": "the Moon"},
            told=lambda end: f"charged {end['receipt']['charged']}, refunded {end['refund']['refunded']}, {released(end)}",
            holds=lambda end: all_released(end) and end["refund"]["refunded"] == end["receipt"]["charged"] == 25,
        ),
        Part(
            title="large order",
            workflow="checkout",
            state={"lines": [line("B2", 5, 400)]},
            told=lambda end: f"refused in review, {released(end)}",
            holds=lambda end: all_released(end) and "receipt" not in end,
            answer={"approved": False},
        ),
        Part(
            title="agent that buys bolts",
            workflow="agent",
            state={"goal": "120 bolts"},
            told=lambda end: str(end["answer"]),
            holds=lambda end: end["turns"] == 2 and end["answer"] == "120 bolts come from South for 3240.",
            answer={"approved": True},
        ),
    ]


def released(end: Mapping[str, Any]) -> str:
    return f"released {', '.join(end['released'])}"


def all_released(end: Mapping[str, Any]) -> bool:
    return bool(end["released"]) and end["released"] == end["reservations"] and end["confirmed"] is False
