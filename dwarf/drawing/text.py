"""How wide a text will be and how it is cut to fit, guessed from the kind of its characters: there is no font to ask.

The guess leans to the wide side, so that a box fits its text in the usual sans-serif fonts. Widths are in pixels.
"""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"
_JOINER = "\u200d"
# In ems of a proportional sans-serif font; a fixed-width font is 0.62 throughout.
_NARROW = dict.fromkeys("iljtfrI.,:;'|!()[]/\\ -", 0.31)
_BROAD = dict.fromkeys("mwMW@%…—", 0.92)
_FIXED_EM = 0.62
_WIDE_EM = 1.15
_PARTS = (0.55, 0.65, 0.75, 0.85)
_SPACES = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")
# Whatever XML 1.0 cannot hold even as a reference, and the C1 controls, which show as nothing.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Return `text` on one line without outer blanks; characters that XML forbids become U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", _SPACES.sub(" ", text).strip())


def width(text: str, size: float, *, fixed: bool = False) -> float:
    """Return the width of `text` in a font of `size` pixels; `fixed` for a font with equal widths."""
    return size * sum(_em(char, fixed) for char in text)


def wrap(text: str, size: float, *, width_max: float, lines_max: int, fixed: bool = False) -> list[str]:
    """Return `text` broken into at most `lines_max` lines of at most `width_max`, at blanks where it can.

    What does not fit is cut and ends with an ellipsis. An empty text is one empty line.
    """
    text = text[: int(width_max * lines_max)]  # hardly a character is narrower than a pixel: the rest cannot show
    lines: list[str] = []
    at = 0
    while at < len(text) and len(lines) < lines_max:
        end = _fit(text, at, width_max / size, fixed)
        if end < len(text) and len(lines) + 1 == lines_max:
            end = _fit(text, at, width_max / size - _em(ELLIPSIS, fixed), fixed)
            return [*lines, text[at:end].rstrip() + ELLIPSIS]
        if end < len(text):
            blank = text.rfind(" ", at, end + 1)
            end = blank if blank > at else end
        lines.append(text[at:end].strip())
        at = end + (text[end : end + 1] == " ")
    return lines or [""]


def balanced(text: str, size: float, *, width_max: float, lines_max: int) -> list[str]:
    """Return `text` wrapped into as few lines as `wrap` needs, of about the same width."""
    lines = wrap(text, size, width_max=width_max, lines_max=lines_max)
    if len(lines) == 1 or lines[-1].endswith(ELLIPSIS):
        return lines
    for part in _PARTS:
        tried = wrap(text, size, width_max=width_max * part, lines_max=len(lines))
        if not tried[-1].endswith(ELLIPSIS):
            return tried
    return lines


def _fit(text: str, start: int, ems: float, fixed: bool) -> int:
    """Return where a line of `ems` that begins at `start` ends: after at least one character, never before a joined one."""
    end = start
    while end < len(text):
        ems -= _em(text[end], fixed)
        if ems < 0 and end > start:
            break
        end += 1
    whole = end
    while start < whole < len(text) and _joins(text, whole):
        whole -= 1
    if whole > start:
        return whole
    while end < len(text) and _joins(text, end):
        end += 1
    return end


def _joins(text: str, at: int) -> bool:
    """True when the character at `at` belongs to the one before it: an accent, or a part of a joined emoji."""
    return _em(text[at], fixed=False) == 0 or text[at - 1] == _JOINER


def _em(char: str, fixed: bool) -> float:
    if char < "\x7f":
        if fixed:
            return _FIXED_EM
        return _NARROW.get(char) or _BROAD.get(char) or (0.7 if "A" <= char <= "Z" else 0.57)
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(char) in "WF":
        return _WIDE_EM
    return _BROAD.get(char, 0.7)
