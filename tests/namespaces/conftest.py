"""Skips everything here where network namespaces or a fabric cannot be had, saying why."""

from __future__ import annotations

import functools

import pytest

from shoal.lab.network.fabric import why_not
from shoal.lab.network.namespaces import obstacle
from shoal_bench.emulated_network import COMMANDS

reason_to_skip = functools.cache(why_not)


@pytest.fixture(autouse=True)
def _possible() -> None:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def _emulated_network() -> None:
    """Skips what needs the network of `shoal bench transport`, which takes a command more."""
    reason = obstacle(COMMANDS)
    if reason is not None:
        pytest.skip(reason)
