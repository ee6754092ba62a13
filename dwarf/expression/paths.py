"""Finds the value of a dotted name in the state. What a name means in objects and lists is told in the package's docstring.

A reader asks the state for one field, once, and never changes what it gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dwarf.expression.parser import INTEGER_DIGITS_MAX
from dwarf.expression.values import NUMBERS

Get = Callable[[str], Any]
Read = Callable[[Get], Any]

_INTEGER = re.compile(r"0|[1-9][0-9]*+", re.ASCII)
_FLOAT = re.compile(r"[0-9]++\.[0-9]++", re.ASCII)


def reader(name: str) -> Read:
    """Return the function that reads `name` given the state's `get`."""
    field, _, rest = name.partition(".")
    if not rest:
        return lambda get: get(field)
    keys = tuple(rest.split("."))

    def read(get: Get) -> Any:
        value = field_value = get(field)
        for key in keys:
            if type(value) is not dict:
                break
            value = value.get(key)
        else:
            if value is not None:
                return value
        return _find(field_value, keys, rest)

    return read


def _find(value: Any, keys: tuple[str, ...], rest: str) -> Any:
    """Walk again by `keys`, with the cases that are not plain; `rest` is the keys joined by dots."""
    passed: list[tuple[dict[str, Any], int]] = []  # objects, each with the offset in `rest` of the key sought in it
    offset = 0
    for key in keys:
        if type(value) is not dict:
            value = True if type(value) is list and _holds(value, rest[offset:]) else None
            break
        passed.append((value, offset))
        value = value.get(key)
        offset += len(key) + 1
    while value is None and passed:
        inner, offset = passed.pop()
        value = inner.get(rest[offset:])
    return value


def _holds(elements: list[Any], text: str) -> bool:
    """True when the text of some element is `text`."""
    if text in elements:  # only text equals text
        return True
    if text in ("true", "false"):
        wanted = text == "true"
        return any(element is wanted for element in elements)
    if _INTEGER.fullmatch(text) and len(text) <= INTEGER_DIGITS_MAX:
        integer = int(text)
        return any(type(element) in NUMBERS and element == integer for element in elements)
    if _FLOAT.fullmatch(text) and repr(number := float(text)) == text:
        return any(type(element) is float and element == number for element in elements)
    return False
