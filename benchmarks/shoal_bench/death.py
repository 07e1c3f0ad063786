"""Section `death`: from kill -9 of a worker to the next completed step of all others.

A job of whole processes that goes on without lost workers. One of them, rank 0 included, is killed
at a random moment of its training; the others write down when each of their steps was over, and in
which view. What counts is the first step of the last of them in a view without the dead one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.errors import DeadlineExceeded
from shoal_bench.rows import Row, at_most, figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.stand import Stand

NAME = "death"
WORKERS: Final = 8
SYNCS: Final = ("all-reduce", "ds-sync", "ripples-static", "ripples", "local-sgd")
MEDIAN_S: Final = 1.0
WORST_S: Final = 2.0

_START_S: Final = 120.0
_POLL_S: Final = 0.02
_BEFORE_S: Final = (0.2, 1.2)
_STEPS_AFTER: Final = 5


def measure(stand: Stand) -> list[Row]:
    """Return two rows for each strategy: the median and the worst of the deaths."""
    deaths = stand.choose(full=12, quick=2)
    rows = []
    for sync, word in stand.each({sync: sync for sync in SYNCS}):
        seconds = [time_of_death(word, seed) for seed in range(deaths)]
        case = f"{WORKERS} workers, {sync}"
        metric = "kill -9 to the next step of all others"
        rows.append(figure(case, metric, "s", seconds, at_most(MEDIAN_S)))
        worst = figure(case, f"{metric}, worst of {deaths}", "s", [max(seconds)], at_most(WORST_S))
        rows.append(worst)
    return rows


def time_of_death(sync: str, seed: int) -> float:
    """Return the seconds from a death to the next step of the last of the others."""
    chance = random.Random(f"{sync} {seed}")
    victim = chance.randrange(WORKERS)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        workers = [stack.enter_context(_start(sync, rank, folder)) for rank in range(WORKERS)]
        stack.callback(_kill_all, workers)
        _await([folder / f"{rank}.trains" for rank in range(WORKERS)], workers)
        time.sleep(chance.uniform(*_BEFORE_S))
        killed = time.monotonic()
        workers[victim].send_signal(signal.SIGKILL)
        others = [rank for rank in range(WORKERS) if rank != victim]
        _await([folder / f"{rank}.went-on" for rank in others], workers, may_end=victim)
        return max(float((folder / f"{rank}.went-on").read_text()) for rank in others) - killed


def _start(sync: str, rank: int, folder: Path) -> subprocess.Popen[bytes]:
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": str(WORKERS),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(WORKERS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29500 + os.getpid() % 1000),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "shoal_bench.death_worker", sync, str(folder)]
    return subprocess.Popen(command, env={**os.environ, **place}, stderr=subprocess.DEVNULL)


def _await(
    files: Sequence[Path], workers: Sequence[subprocess.Popen[bytes]], may_end: int = -1
) -> None:
    end = time.monotonic() + _START_S
    while not all(file.exists() for file in files):
        gone = [rank for rank, each in enumerate(workers) if each.poll() not in (None, 0)]
        if [rank for rank in gone if rank != may_end] or time.monotonic() > end:
            message = f"Of a job of {WORKERS} workers ranks {gone} ended, or did not get on."
            raise DeadlineExceeded(message)
        time.sleep(_POLL_S)


def _kill_all(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.kill()
