"""Section `ddp-step`: a step of `all-reduce` against one of PyTorch DDP on gloo.

The two train copies of one model in the same processes in alternating steps, so that whatever else
the machine does meets both. Buckets, overlap and optimizer are each library's own defaults.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

from shoal.train.optimizer import DistributedOptimizer
from shoal_bench.perceptron import (
    WIDTH_1M,
    WIDTH_15M,
    batch_of,
    local_optimizer,
    perceptron,
    training_step,
)
from shoal_bench.rows import Row, at_most, comparison

if TYPE_CHECKING:
    import torch
    from torch import nn

    from shoal.jobs.worker import WorkerContext
    from shoal_bench.stand import Stand

NAME = "ddp-step"
TARGET_RATIO = 1.05

_WORKERS = 4
_WARM_UP = 5
_WIDTHS = {"1 M parameters": WIDTH_1M, "15 M parameters": WIDTH_15M}


def measure(stand: Stand) -> list[Row]:
    """Measure both sizes; the slowest worker's time counts in every step."""
    repeats = stand.choose(full=40, quick=6)
    rows = []
    for number, (case, width) in enumerate(_WIDTHS.items()):
        stand.note(case, number, len(_WIDTHS))
        by_rank = stand.pool(_WORKERS).call(alternate, width, repeats)
        rows.append(
            comparison(
                f"{_WORKERS} workers, {case}",
                "step time, all-reduce / DDP",
                "ms",
                slowest(by_rank),
                peer="PyTorch DDP on gloo",
                target=at_most(TARGET_RATIO),
            )
        )
    return rows


def slowest(by_rank: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return (ours, theirs) of the slowest worker in each repeat, from every worker's pairs."""
    return [
        (max(ours for ours, _ in repeat), max(theirs for _, theirs in repeat))
        for repeat in zip(*by_rank, strict=True)
    ]


def alternate(context: WorkerContext, width: int, repeats: int) -> list[tuple[float, float]]:
    """Return (ours, DDP's) milliseconds of `repeats` alternating steps. A task for the pool."""
    ours, theirs = perceptron(width), perceptron(width)
    wrapped = DistributedDataParallel(theirs)
    their_optimizer = local_optimizer(theirs.parameters())
    our_optimizer = DistributedOptimizer(
        local_optimizer(ours.parameters()), ours, sync="all-reduce"
    )
    batch = batch_of(context.session.rank, width)
    pairs = []
    for number in range(_WARM_UP + repeats):
        took = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            model, optimizer = ((ours, our_optimizer), (wrapped, their_optimizer))[which]
            took[which] = _timed_step(context, model, optimizer, batch)
        pairs.append((took[0], took[1]))
    our_optimizer.finish()
    return pairs[_WARM_UP:]


def _timed_step(
    context: WorkerContext,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> float:
    context.session.communicator.barrier()
    start = time.perf_counter()
    training_step(model, batch, optimizer.zero_grad, optimizer.step)
    return (time.perf_counter() - start) * 1000
