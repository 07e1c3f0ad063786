"""What workers of a job are forked from has nothing that one job could spoil for the next."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from multiprocessing.synchronize import SemLock

import shoal.bench.cluster.preload

print(sum(isinstance(each, SemLock) for each in gc.get_objects()))
"""


def test_workers_share_no_lock() -> None:
    """One that is killed while it holds a lock would stop all that come after it."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["0"]
