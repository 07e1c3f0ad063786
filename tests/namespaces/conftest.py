"""Skips everything here where network namespaces or a fabric cannot be had, saying why."""

from __future__ import annotations

import functools

import pytest

from shoal.bench.emulated_network import COMMANDS
from shoal.lab.network.fabric import why_not
from shoal.lab.network.namespaces import obstacle


@functools.cache
def reason_to_skip() -> str | None:
    return obstacle(COMMANDS) or why_not()


@pytest.fixture(autouse=True)
def _possible() -> None:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
