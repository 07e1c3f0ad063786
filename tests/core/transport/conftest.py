"""Compile the transport once, before any test's time is taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test's time limit be generous, and not count its fixtures: one of them compiles."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.fixture(scope="session", autouse=True)
def compiled_transport() -> None:
    """Run every compiled entry point once."""
    from transfers import Transfer
    from virtual_link import joined

    link, _ = joined(2)
    transfer = Transfer(link, 0, 1, np.ones(100, np.float32))
    transfer.post()
    link.run()
