"""Draws the secrets in flow keys."""

from __future__ import annotations

import secrets

from dwarf.keys import TOKEN_CHARS


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_hex(TOKEN_CHARS // 2)
