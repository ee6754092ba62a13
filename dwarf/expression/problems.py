"""The errors of conditions: one shape for all, with the place marked under the text. Decides nothing itself."""

from __future__ import annotations

from dwarf.errors import ExpressionError

WINDOW_CHARS = 72  # of the text shown around the place
BEFORE_CHARS = 48  # of these, at most so many before the place
SHOWN_CHARS = 80  # of a value or pattern that is shown within a sentence


def syntax_problem(reason: str, text: str, offset: int) -> ExpressionError:
    return ExpressionError(f"condition: {reason}\n{marked(text, offset)}", text=text, offset=offset)


def pattern_problem(pattern: str, reason: str, *, field: str = "", text: str, offset: int) -> ExpressionError:
    """Build the error for `pattern`, which RE2 refused for `reason`; `field` is the name it was read from, if it was."""
    origin = f"the pattern {shorten(pattern)!r}" + (f" in field {field!r}" if field else "")
    return ExpressionError(
        f"condition: {origin} is not a valid RE2 pattern: {visible(shorten(reason))}\n{marked(text, offset)}",
        text=text,
        offset=offset,
        rule="expression-pattern",
    )


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def visible(text: str) -> str:
    """Return `text` on one line, one column a character: blanks for newlines and tabs, `�` for what has no shape."""
    return "".join(char if char.isprintable() else " " if char in "\t\n\r" else "�" for char in text)


def marked(text: str, offset: int) -> str:
    """Return two lines: the text, or a window of it, and a caret under character `offset`."""
    start = max(0, offset - BEFORE_CHARS)
    end = min(len(text), start + WINDOW_CHARS)
    head = "…" if start > 0 else ""
    tail = "…" if end < len(text) else ""
    return f"    {head}{visible(text[start:end])}{tail}\n    {' ' * (len(head) + offset - start)}^"
