"""Section `peer-step`: time per step of equal workers, Shoal against other libraries.

Each library is met by the strategy of ours that does the same thing, on the same small model, so
the difference is the libraries' own cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal_bench.peers.all_libraries import installed
from shoal_bench.peers.library import StepJob
from shoal_bench.perceptron import WIDTH_1M
from shoal_bench.rows import Row, comparison

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "peer-step"
_WORKERS = 4


def measure(stand: Stand) -> list[Row]:
    """Return a row per library; one that fails is skipped with its reason."""
    job = StepJob(_WORKERS, WIDTH_1M, repeats=stand.choose(full=9, quick=3))
    rows = []
    for _, library in stand.each({library.title: library for library in installed(stand)}):
        ours = library.counterpart.title
        try:
            pairs = library.step_pairs(stand, job)
        except ShoalError as error:
            stand.skip(f"{library.name}: {error}")
            stand.close_pool()
            continue
        rows.append(
            comparison(
                f"{ours}, {_WORKERS} workers, 1 M parameters",
                "step time, ours / peer's",
                "ms",
                pairs,
                peer=library.name,
            )
        )
    return rows
