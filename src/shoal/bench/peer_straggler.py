"""Section `peer-straggler`: what other libraries keep of their speed beside one slow worker.

Each repeat takes Ripples and the library by turns, with equal workers and with one five times
slower, on the same small model; a step's computing is made longer by sleeping before backward, so
that nothing can be sent early.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from shoal.bench.peers.all_libraries import installed
from shoal.bench.peers.library import AbstractLibrary, RateJob
from shoal.bench.peers.ours import Shoal
from shoal.bench.perceptron import WIDTH_1M
from shoal.bench.rows import Row, comparison
from shoal.bench.runs import COMPUTE_MS, SLOW_FACTOR, SLOW_RANK, WORKERS
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.bench.stand import Stand

NAME = "peer-straggler"


def measure(stand: Stand) -> list[Row]:
    """Return two rows per library: share of speed kept, and speed beside the slow worker."""
    libraries = list(installed(stand))
    rows = []
    for number, library in enumerate(libraries):
        stand.note(library.title, number, len(libraries))
        try:
            rows += _rows(stand, library)
        except ShoalError as error:
            stand.skip(f"{library.name}: {error}")
            stand.close_pool()
    return rows


def _rows(stand: Stand, library: AbstractLibrary) -> list[Row]:
    kept, speed = [], []
    for _ in range(stand.choose(full=5, quick=1)):
        ours, theirs = (_equal_and_slow(stand, each) for each in (Shoal("ripples"), library))
        kept.append((ours[1] / ours[0], theirs[1] / theirs[0]))
        speed.append((ours[1], theirs[1]))
    case = f"ripples, {WORKERS} workers, {COMPUTE_MS:g} ms compute, one {SLOW_FACTOR:g}x slow"
    return [
        comparison(
            NAME,
            case,
            "iteration rate of the others, kept beside the slow one; ours / peer's",
            "fraction",
            kept,
            peer=library.name,
        ),
        comparison(
            NAME,
            case,
            "iteration rate of the others beside the slow one; ours / peer's",
            "1/s",
            speed,
            peer=library.name,
        ),
    ]


def _equal_and_slow(stand: Stand, library: AbstractLibrary) -> tuple[float, float]:
    """Return the mean rate of all workers but one: among equals, and with that one slow."""
    compute_s = [COMPUTE_MS / 1000] * WORKERS
    seconds = stand.choose(full=30.0, quick=8.0)
    rates = []
    for factor in (1.0, SLOW_FACTOR):
        compute_s[SLOW_RANK] = COMPUTE_MS / 1000 * factor
        job = RateJob(WORKERS, WIDTH_1M, seconds, tuple(compute_s))
        by_rank = library.rates(stand, job)
        rates.append(statistics.mean(r for rank, r in enumerate(by_rank) if rank != SLOW_RANK))
    return rates[0], rates[1]
