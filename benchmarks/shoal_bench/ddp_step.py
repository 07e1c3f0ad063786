"""Section `ddp-step`: a step of `all-reduce` against one of PyTorch DDP on gloo.

The two train copies of one model in the same processes in alternating steps, so that whatever else
the machine does meets both. Buckets, overlap and optimizer are each library's own defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_bench.peers.ddp import DDP
from shoal_bench.peers.library import StepJob
from shoal_bench.perceptron import WIDTH_1M, WIDTH_15M
from shoal_bench.rows import Row, at_most, comparison

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME = "ddp-step"
TARGET_RATIO = 1.05

_WORKERS = 4
_WIDTHS = {"1 M parameters": WIDTH_1M, "15 M parameters": WIDTH_15M}


def measure(stand: Stand) -> list[Row]:
    """Measure both sizes; the slowest worker's time counts in every step."""
    repeats = stand.choose(full=40, quick=6)
    rows = []
    for case, width in stand.each(_WIDTHS):
        job = StepJob(_WORKERS, width, repeats, cycle=1)
        rows.append(
            comparison(
                f"{_WORKERS} workers, {case}",
                "step time, all-reduce / DDP",
                "ms",
                DDP().step_pairs(stand, job),
                peer="PyTorch DDP on gloo",
                target=at_most(TARGET_RATIO),
            )
        )
    return rows
