"""What workers of a job are forked from has nothing that one job could spoil for the next."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HIVEMIND = """
import multiprocessing

LOCK = multiprocessing.Lock()
"""
"""What it does when it is imported, whether it is installed here or not."""

PROGRAM = """
import gc
from multiprocessing.synchronize import SemLock

import shoal_bench.cluster.preload
import shoal.jobs.loaded_transport
from shoal.carriers.mean import load_means

load_means()  # as shoal.jobs.forked_from does, which hides all objects from the collector after it
print(sum(isinstance(each, SemLock) for each in gc.get_objects()))
"""


def test_workers_share_no_lock(tmp_path: Path) -> None:
    """One that is killed while it holds a lock would stop all that come after it."""
    (tmp_path / "hivemind.py").write_text(HIVEMIND)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.split() == ["0"]
