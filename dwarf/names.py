"""What a task name, a URL and a field name may be. Each check returns the value it accepted or raises `GraphError`."""

from __future__ import annotations

import re

from dwarf.errors import GraphError
from dwarf.limits import FIELD_CHARS_MAX, NAME_CHARS_MAX

_WORD = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


def check_text(what: str, value: object, *, chars_max: int = NAME_CHARS_MAX, graph: str = "") -> str:
    """Accept any storable text of at most `chars_max` characters; the empty text is for the caller to judge."""
    if not isinstance(value, str):
        raise GraphError(f"{what} must be text, not {type(value).__name__}", graph=graph, rule="name-type", place=what)
    if len(value) > chars_max:
        shown = value[:40] + "…"
        raise GraphError(
            f"{what} {shown!r} has {len(value)} characters; at most {chars_max} are allowed",
            graph=graph, rule="name-length", place=shown,
        )
    if any("\ud800" <= char <= "\udfff" or char == "\0" for char in value):
        raise GraphError(f"{what} {value!r} holds a NUL or half a surrogate pair", graph=graph, rule="name-text", place=repr(value))
    return value


def check_field(what: str, value: object, *, graph: str = "") -> str:
    """Accept a field name that a condition can spell: one or more ASCII letters, digits and underscores."""
    text = check_text(what, value, chars_max=FIELD_CHARS_MAX, graph=graph)
    if not _WORD.fullmatch(text):
        raise GraphError(
            f"{what} {text!r} is not a name that a condition can spell: use letters A-Z a-z, digits and underscore",
            graph=graph, rule="field-name", place=text,
        )
    return text
