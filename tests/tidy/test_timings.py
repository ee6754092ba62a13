"""The table of timings says what the code does."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "timings.md"
ROWS = re.findall(r"^\|[^|]*\| `(dwarf[\w.]+)\.(\w+)` \| ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)


def test_the_table_is_read_whole() -> None:
    assert len(ROWS) == PAGE.read_text("utf-8").count("| `dwarf.") > 10


@pytest.mark.parametrize(("module", "name", "value"), ROWS, ids=lambda part: str(part))
def test_a_constant_has_the_value_that_the_page_names(module: str, name: str, value: str) -> None:
    assert getattr(import_module(module), name) == float(value)
