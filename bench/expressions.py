"""Evaluations per second of three typical conditions, on one core, with a plain dict as the state.

Prints for each the best of several rounds, and the time that parsing takes. A real state decodes each field on its first
read, which costs more than what is measured here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from dwarf.expression import Expression

ROUNDS = 7
ROUND_SECONDS = 0.2

CASES: list[tuple[str, dict[str, Any]]] = [
    ("severity >= 3", {"severity": 4}),
    ("status == 'ok' && amount < 1000", {"status": "ok", "amount": 250.5}),
    ("a.b.c =~ '^x'", {"a": {"b": {"c": "xylophone"}}}),
]


def per_second(call: Callable[[], object]) -> float:
    """Return how often `call` runs in a second, in the best round."""
    calls = 1
    while _seconds(call, calls) < ROUND_SECONDS:
        calls *= 2
    return calls / min(_seconds(call, calls) for _ in range(ROUNDS))


def _seconds(call: Callable[[], object], calls: int) -> float:
    started = perf_counter()
    for _ in range(calls):
        call()
    return perf_counter() - started


def main() -> None:
    print(f"{'condition':<36}{'evaluations/s':>16}{'parse, us':>12}")
    for text, state in CASES:
        expression = Expression(text)
        assert expression.evaluate(state)
        evaluations = per_second(partial(expression.evaluate, state))
        parses = per_second(partial(Expression, text))
        print(f"{text:<36}{evaluations:>16,.0f}{1e6 / parses:>12.1f}")


if __name__ == "__main__":
    main()
