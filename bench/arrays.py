"""Nanoseconds per element for each array that the hot statements take and give, and microseconds per step for one record's ten.

Nothing talks to a server. Prints the best of several rounds, for a batch of 200 unless told otherwise: `-m bench.arrays 50`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

from dwarf import arrays

ROUNDS = 9
ROUND_SECONDS = 0.05
BATCH = 200
DOCUMENT = b'{"receipt":"r-18272","amount":41.5,"lines":[1,2,3]}'
TASKS = ("inventory.reserve", "billing.charge", "mail.send")

Builder = Callable[[Sequence[Any]], bytes]


def columns(batch: int) -> list[tuple[str, Builder, Sequence[Any]]]:
    """What one record call sends for linear steps: the identities, the kinds, the tasks and the changes."""
    rows = range(batch)
    return [
        ("flow int8", arrays.int8_array, [(234_000 << 36) + row for row in rows]),
        ("branch int8", arrays.int8_array, [0] * batch),
        ("seq int4", arrays.int4_array, [row % 17 for row in rows]),
        ("lease int4", arrays.int4_array, [row % 5 for row in rows]),
        ("kind int2", arrays.int2_array, [0] * batch),
        ("status int2", arrays.int2_array, [6] * batch),
        ("hot bool", arrays.bool_array, [row % 3 > 0 for row in rows]),
        ("task text", arrays.text_array, [TASKS[row % 3] for row in rows]),
        ("error text, all null", arrays.text_array, [None] * batch),
        ("changes json", arrays.json_array, [DOCUMENT] * batch),
    ]


def others(batch: int) -> list[tuple[str, Builder, Sequence[Any]]]:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    rows = range(batch)
    return [
        ("int8, half null", arrays.int8_array, [row if row % 2 else None for row in rows]),
        ("json, half null", arrays.json_array, [DOCUMENT if row % 2 else None for row in rows]),
        ("json of 8 KB", arrays.json_array, [DOCUMENT * 160] * batch),
        ("float8", arrays.float8_array, [row / 7 for row in rows]),
        ("timestamptz", arrays.timestamptz_array, [now + timedelta(seconds=row) for row in rows]),
        ("timestamptz, micros", arrays.micros_array, list(rows)),
    ]


def readers(batch: int) -> list[tuple[str, Callable[[Any], object], Any]]:
    ids = [arrays.int8((234_000 << 36) + row) for row in range(batch)]
    return [
        ("read int8", arrays.read_int8, ids),
        ("read int8, half null", arrays.read_int8, [cell if row % 2 else None for row, cell in enumerate(ids)]),
        ("read text", arrays.read_text, [TASKS[row % 3].encode() for row in range(batch)]),
        ("read timestamptz", arrays.read_timestamptz, ids),
        ("read int8[]", arrays.read_int8_array, arrays.int8_array(list(range(batch)))),
        ("read json[]", arrays.read_array, arrays.json_array([DOCUMENT] * batch)),
    ]


def nanoseconds(call: Callable[[Any], object], argument: Any, batch: int) -> float:
    """Return the time of one element, in the best round."""
    calls = 1
    while _seconds(call, argument, calls) < ROUND_SECONDS:
        calls *= 2
    return min(_seconds(call, argument, calls) for _ in range(ROUNDS)) / calls / batch * 1e9


def _seconds(call: Callable[[Any], object], argument: Any, calls: int) -> float:
    started = perf_counter()
    for _ in range(calls):
        call(argument)
    return perf_counter() - started


def main(batch: int) -> None:
    step = 0.0
    print(f"{f'batch of {batch}':<28}{'ns/element':>12}")
    for name, build, values in columns(batch):
        figure = nanoseconds(build, values, batch)
        step += figure
        print(f"{name:<28}{figure:>12.0f}")
    print(f"{'one step, all of these':<28}{step / 1000:>12.2f} us")
    for name, call, argument in [*others(batch), *readers(batch)]:
        print(f"{name:<28}{nanoseconds(call, argument, batch):>12.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else BATCH)
