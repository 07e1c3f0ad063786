"""Lends the tests on GPUs the harness of those in several processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "processes"))

import worker_processes


@pytest.fixture
def run_workers() -> worker_processes.RunWorkers:
    """See tests/processes/conftest.py."""
    return worker_processes.run_workers
