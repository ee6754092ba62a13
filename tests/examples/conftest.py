"""What the tests of the examples share: a small tree of Python files to audit."""

from __future__ import annotations

from pathlib import Path

import pytest

FILES = {
    "abc.py": "import os\n\ndef one():\n    return 1\n",
    "this.py": "import codecs\n",
    "zoo/__init__.py": "from os.path import join\nfrom . import apes\n\ndef a(): pass\n\ndef b():\n    def c(): pass\n    return c\n",
    "zoo/apes.py": "class Ape:\n    async def climb(self):\n        import sys, json.decoder\n",
    "zoo/site-packages/alien.py": "import alien\n",
    "zoo/__pycache__/old.py": "import old\n",
    "zoo/notes.txt": "no Python\n",
    "bad/broken.py": "def (:\n",
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Five files in three packages, one of which does not parse, and what is none of the library's."""
    root = tmp_path / "library"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root
