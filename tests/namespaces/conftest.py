"""Skips everything here where network namespaces cannot be had, saying why."""

from __future__ import annotations

import pytest

from shoal.bench.emulated_network import COMMANDS
from shoal.lab.network.namespaces import obstacle


@pytest.fixture(autouse=True)
def _possible() -> None:
    reason = obstacle(COMMANDS)
    if reason is not None:
        pytest.skip(reason)
