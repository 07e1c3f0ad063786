"""What workers of a job are forked from has nothing that one job could spoil for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forked_process import run_script

if TYPE_CHECKING:
    from pathlib import Path

HIVEMIND = """
import multiprocessing

LOCK = multiprocessing.Lock()
"""
"""What it does when it is imported, whether it is installed here or not."""

PROGRAM = """
import gc, sys
gc.unfreeze()  # all objects are looked at, of whatever the fork has loaded already, too
sys.path.insert(0, {folder!r})
from multiprocessing.synchronize import SemLock

import shoal_bench.cluster.preload
import shoal.jobs.loaded_transport
from shoal.carriers.mean import load_means

load_means()  # as shoal.jobs.forked_from does, which hides all objects from the collector after it
print(sum(type(each) is SemLock for each in gc.get_objects()))
"""


def test_workers_share_no_lock(tmp_path: Path) -> None:
    """One that is killed while it holds a lock would stop all that come after it."""
    (tmp_path / "hivemind.py").write_text(HIVEMIND)
    done = run_script(PROGRAM.format(folder=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]
