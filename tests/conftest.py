"""What every test shares: how Hypothesis runs, where the tree starts, and the servers (`tests.servers`) of those that need one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers"]

# A loaded machine is slow, not wrong: no test of ours fails for the time it took.
settings.register_profile("dwarf", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dwarf")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).parent.parent
