"""What a task name, a URL and a field name may be, and how a name is shown in an error.

Each check returns the value it accepted or raises `GraphError`.
"""

from __future__ import annotations

import re

from dwarf.errors import GraphError
from dwarf.limits import FIELD_CHARS_MAX, NAME_CHARS_MAX

_WORD = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_LITERAL = re.compile(r"true|false|[0-9]+(e[0-9]+)?", re.ASCII | re.IGNORECASE)  # what a condition reads as a value, not as a name
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SHOWN_CHARS_MAX = 80


def shown(name: object) -> str:
    """Return a name in quotes, cut after 80 characters."""
    text = str(name)
    return repr(text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…")


def check_text(what: str, value: object, *, chars_max: int = NAME_CHARS_MAX, graph: str = "") -> str:
    """Accept any storable text of at most `chars_max` characters; the empty text is for the caller to judge.

    `what` says what the value is for, and `graph` names the graph that it is for.
    """
    if not isinstance(value, str):
        raise _refusal(graph, "name-type", what, f"{what} must be text, not {type(value).__name__}")
    if len(value) > chars_max:
        fault = f"{what} {shown(value)} has {len(value)} characters; at most {chars_max} are allowed"
        raise _refusal(graph, "name-length", value[:_SHOWN_CHARS_MAX], fault)
    if _UNSTORABLE.search(value):
        fault = f"{what} {shown(value)} holds a NUL or half a surrogate pair, which cannot be stored"
        raise _refusal(graph, "name-text", value[:_SHOWN_CHARS_MAX], fault)
    return value


def check_name(what: str, value: object, *, graph: str = "") -> str:
    """Accept a text that is not empty."""
    text = check_text(what, value, graph=graph)
    if not text:
        raise _refusal(graph, "task-name", what, f"{what} must not be empty")
    return text


def check_field(what: str, value: object, *, graph: str = "") -> str:
    """Accept a field name that a condition can spell: ASCII letters, digits and underscores, and no number, true or false."""
    text = check_text(what, value, chars_max=FIELD_CHARS_MAX, graph=graph)
    if not _WORD.fullmatch(text) or _LITERAL.fullmatch(text):
        why = "it would be read as a value" if _LITERAL.fullmatch(text) else "use letters A-Z a-z, digits and underscore"
        fault = f"{what} {shown(text)} is not a name that a condition can spell: {why}"
        raise _refusal(graph, "field-name", text[:_SHOWN_CHARS_MAX], fault)
    return text


def _refusal(graph: str, rule: str, place: str, fault: str) -> GraphError:
    return GraphError(f"graph {shown(graph)}: {fault}" if graph else fault, graph=graph, rule=rule, place=place)
