"""Section `peer-straggler`: what other libraries keep of their speed beside one slow worker.

Each repeat takes Ripples and the library by turns, with equal workers and with one five times
slower, on the same small model; a step's computing is made longer by sleeping before backward, so
that nothing can be sent early.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal_bench.peers.all_libraries import installed
from shoal_bench.peers.library import AbstractLibrary, RateJob
from shoal_bench.peers.ours import Shoal
from shoal_bench.perceptron import WIDTH_1M
from shoal_bench.rows import Row, comparison
from shoal_bench.runs import COMPUTE_MS, SLOW_FACTOR, SLOW_RANK, WORKERS

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "peer-straggler"


@dataclass(frozen=True, slots=True)
class Rates:
    """Mean iterations per second of all workers but the slow one, or the one that would be slow."""

    equal: float
    slow: float


def measure(stand: Stand) -> list[Row]:
    """Return two rows per library: share of speed kept, and speed beside the slow worker.

    A library that fails is skipped with its reason.
    """
    repeats = stand.choose(full=5, quick=1)
    libraries = list(installed(stand))
    pairs: dict[AbstractLibrary, list[tuple[Rates, Rates]]] = {each: [] for each in libraries}
    for repeat in range(repeats):
        begin = repeat * (1 + len(libraries))
        stand.note(f"ripples, {repeat + 1} of {repeats}", begin, repeats * (1 + len(libraries)))
        ours = _equal_and_slow(stand, Shoal("ripples"))
        for number, library in enumerate(libraries):
            text = f"{library.title}, {repeat + 1} of {repeats}"
            stand.note(text, begin + 1 + number, repeats * (1 + len(libraries)))
            if library not in pairs:
                continue
            try:
                pairs[library].append((ours, _equal_and_slow(stand, library)))
            except ShoalError as error:
                stand.skip(f"{library.name}: {error}")
                stand.close_pool()
                del pairs[library]
    return [row for library, measured in pairs.items() for row in _rows(library, measured)]


def _rows(library: AbstractLibrary, measured: list[tuple[Rates, Rates]]) -> list[Row]:
    case = f"ripples, {WORKERS} workers, {COMPUTE_MS:g} ms compute, one {SLOW_FACTOR:g}x slow"
    return [
        comparison(
            case,
            "share of their speed that the others keep, ours / peer's",
            "fraction",
            [(ours.slow / ours.equal, theirs.slow / theirs.equal) for ours, theirs in measured],
            peer=library.name_of_rates,
        ),
        comparison(
            case,
            "speed of the others, ours / peer's",
            "iterations/s",
            [(ours.slow, theirs.slow) for ours, theirs in measured],
            peer=library.name_of_rates,
        ),
    ]


def _equal_and_slow(stand: Stand, library: AbstractLibrary) -> Rates:
    """Measure among equals, and with one slow."""
    compute_s = [COMPUTE_MS / 1000] * WORKERS
    seconds = stand.choose(full=10.0, quick=2.5)
    rates = []
    for factor in (1.0, SLOW_FACTOR):
        compute_s[SLOW_RANK] = COMPUTE_MS / 1000 * factor
        job = RateJob(WORKERS, WIDTH_1M, seconds, tuple(compute_s))
        by_rank = library.rates(stand, job)
        rates.append(statistics.mean(r for rank, r in enumerate(by_rank) if rank != SLOW_RANK))
    return Rates(equal=rates[0], slow=rates[1])
