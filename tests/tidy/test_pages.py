"""The code that pages show runs: the Python blocks of a page, in their order, as one program.

A block that only shows a shape is fenced as `python no-run`; it must still be Python.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
BLOCK = re.compile(r"^```(python[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    text = page.read_text()
    namespace = {"__name__": page.stem}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2))
        code = compile("\n" * line + match[2], page, "exec")
        if match[1] == "python":
            exec(code, namespace)
        else:
            assert match[1] == "python no-run"
