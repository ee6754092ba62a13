"""What tests of workflows are written with: `EngineUnderTest`, an engine with a database of its own and a clock to move.

`dwarf.testing.reference` runs a graph in memory. The pytest fixture `dwarf_engine` (`dwarf.testing.plugin`) is there wherever
this package is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dwarf.testing.engine import EngineUnderTest as EngineUnderTest

__all__ = ["EngineUnderTest"]


def __getattr__(name: str) -> Any:
    if name != "EngineUnderTest":
        raise AttributeError(f"module 'dwarf.testing' has no attribute {name!r}")
    from dwarf.testing.engine import EngineUnderTest

    return EngineUnderTest
