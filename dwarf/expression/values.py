"""What conditions think of values: which are true, equal, ordered. Values are decoded JSON; absent is None.

Types are compared exactly, because Python's bool is an int and conditions keep the two apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

NUMBERS = frozenset((int, float))
SCALARS = frozenset((int, float, str, bool, type(None)))

ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def is_true(value: Any) -> bool:
    """Judge a value used alone: absent, null, false, zero and empty text, lists and objects are false."""
    return bool(value)


def are_equal(left: Any, right: Any) -> bool:
    """Compare by value within one type, numbers being one type; lists and objects equal nothing."""
    kind = type(left)
    if kind is type(right):
        return kind in SCALARS and bool(left == right)
    return kind in NUMBERS and type(right) in NUMBERS and bool(left == right)


def are_ordered(left: Any, right: Any) -> bool:
    """True when `<` and its kin may be asked of the two: both numbers or both text."""
    kind = type(left)
    if kind is str:
        return type(right) is str
    return kind in NUMBERS and type(right) in NUMBERS


def in_order(left: Any, operator: str, right: Any) -> bool:
    """Ask `<` and its kin: "less" needs two numbers or two texts, "or equal" holds for whatever is equal."""
    if are_ordered(left, right):
        return ORDERINGS[operator](left, right)
    return operator in ("<=", ">=") and are_equal(left, right)
