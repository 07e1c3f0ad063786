"""Step time of `all-reduce` against PyTorch DDP on gloo: same model, same data, same processes.

The two train copies of one model in alternating steps, so that whatever else the machine does meets
both. Buckets, overlap and optimizer are each library's own defaults.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from shoal.bench.rows import Row, at_most, comparison
from shoal.train.optimizer import DistributedOptimizer

if TYPE_CHECKING:
    from shoal.jobs.pool import WorkerPool
    from shoal.jobs.worker import WorkerContext

_WARMUP = 5
_BATCH = 16
TARGET_RATIO = 1.05

WIDTHS = {"1 M parameters": 500, "15 M parameters": 1936}
"""Width of a five-layer perceptron that has about so many parameters."""


def ddp_rows(pool: WorkerPool, repeats: int) -> list[Row]:
    """Measure both sizes on `pool`; the slowest worker's time counts in every step."""
    rows = []
    for case, width in WIDTHS.items():
        by_rank = pool.call(measure, width, repeats)
        pairs = [
            (max(ours for ours, _ in step), max(theirs for _, theirs in step))
            for step in zip(*by_rank, strict=True)
        ]
        rows.append(
            comparison(
                "all-reduce step",
                f"{pool.settings.workers} workers, {case}",
                "step time, ours / DDP",
                "ms",
                pairs,
                peer="PyTorch DDP on gloo",
                target=at_most(TARGET_RATIO),
            )
        )
    return rows


def measure(context: WorkerContext, width: int, repeats: int) -> list[tuple[float, float]]:
    """Return (ours, DDP's) milliseconds of `repeats` alternating steps. A task for the pool."""
    torch.manual_seed(0)
    theirs = _perceptron(width)
    ours = copy.deepcopy(theirs)
    wrapped = DistributedDataParallel(theirs)
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)
    our_optimizer = DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.01, momentum=0.9), ours, sync="all-reduce"
    )
    torch.manual_seed(context.session.rank)
    inputs, targets = torch.randn(_BATCH, width), torch.randint(0, 10, (_BATCH,))
    pairs = []
    for number in range(_WARMUP + repeats):
        their_ms = _timed_step(context, wrapped, their_optimizer, inputs, targets)
        our_ms = _timed_step(context, ours, our_optimizer, inputs, targets)
        if number >= _WARMUP:
            pairs.append((our_ms, their_ms))
    our_optimizer.finish()
    return pairs


def _perceptron(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def _timed_step(
    context: WorkerContext,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> float:
    context.session.communicator.barrier()
    start = time.perf_counter()
    optimizer.zero_grad()
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    return (time.perf_counter() - start) * 1000
