"""RE2 patterns: compiling them, searching text, and saying why one is refused. RE2 searches in time linear in the text.

RE2 is imported when the first pattern is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

Search = Callable[[str], bool]

FIELD_PATTERNS_KEPT = 64  # compiled patterns that came from fields; one may take up to RE2's 8 MB


class PatternError(Exception):
    """RE2 refuses a pattern; the message is its reason."""


@lru_cache(maxsize=1)
def _options() -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False  # it would write to stderr; the reason is in the exception
    options.never_capture = True  # only whether it matches counts, and groups cost time
    return options


def compile_pattern(pattern: str) -> Search:
    """Return the function that tells whether `pattern` occurs in a text. Raises `PatternError`."""
    import re2

    try:
        # Bytes spare RE2's wrapper the counting of characters, two thirds of a short search. No state holds half a
        # surrogate pair; if one did, it would be searched as bytes instead of raising.
        search = re2.compile(pattern.encode("utf-8", "surrogatepass"), _options()).search
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
    return lambda text: search(text.encode("utf-8", "surrogatepass")) is not None


field_pattern = lru_cache(maxsize=FIELD_PATTERNS_KEPT)(compile_pattern)
