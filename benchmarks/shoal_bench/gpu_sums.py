"""Section `gpu`: sums of tensors on a GPU, Shoal's transport against gloo, over loopback.

As in section `loopback`, but for where the tensors lie: both copy them to the host and back. All
ranks share one GPU, which so makes all their copies. NCCL is no contender, for it wants a GPU for
each rank and a network of its own. Skipped where there is no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal_bench import loopback

if TYPE_CHECKING:
    from shoal.jobs import WorkerContext
    from shoal_bench.rows import Row
    from shoal_bench.stand import Stand

NAME = "gpu"


def measure(stand: Stand) -> list[Row]:
    """Return time and processor time, as section `loopback` does."""
    if not torch.cuda.is_available():
        stand.skip("there is no CUDA GPU here.")
        return []
    repeats = stand.choose(full=15, quick=5)
    rows: list[Row] = []
    for _, (ranks, megabytes) in stand.each(loopback.CASES):
        pool = stand.pool(ranks)
        gpu = pool.call(name_of_gpu)[0]
        num_bytes = megabytes * 1_000_000
        ways = loopback.usual_ways(ranks, num_bytes)
        by_rank = pool.call(loopback.compare, num_bytes, repeats, ways, "cuda")
        case = f"{ranks} ranks on one {gpu}, {megabytes} MB"
        rows += loopback.rows_of(case, megabytes, by_rank, ways)
    return rows


def name_of_gpu(_context: WorkerContext) -> str:
    """Return what the GPU is called. A task for the pool."""
    return torch.cuda.get_device_name()
