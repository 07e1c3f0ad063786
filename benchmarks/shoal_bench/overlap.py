"""Section `overlap`: gradients waited for in the next forward pass, against at backward's end.

Two copies of one model train in the same processes, in alternating blocks of steps, one with
`overlap="next-forward"` and one with "backward"; the slowest worker's time counts. "Bare" steps
compute as fast as these cores do, where an exchange over loopback competes with the computation
that it should hide behind. "Padded" ones sleep in every layer's forward pass, so that a worker
stands for a machine whose processor is busy elsewhere than in the exchange. Over Shoal's transport
there is also a case in which every worker sends at no more than 1 Gbit/s, as a slower network would
have it: loopback is so fast that little is left to hide at the end of backward.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.strategies import AllReduce
from shoal.train import DistributedOptimizer
from shoal_bench.pairs import Pairs, slowest, take_both
from shoal_bench.perceptron import WIDTH_1M, batch_of, local_optimizer, perceptron, training_step
from shoal_bench.rows import Row, comparison

if TYPE_CHECKING:
    from torch import nn

    from shoal.jobs import WorkerContext
    from shoal.strategies import GradientOverlap
    from shoal_bench.stand import Stand

NAME = "overlap"

_WORKERS = 2
_WARM_UP = 2
_STEPS = 5
"""Steps of a block: what one exchange leaves for the next step is inside of it."""

_BUCKET_BYTES = 1_000_000
"""A layer of the model: every layer has a bucket of its own, and can be overtaken."""


@dataclass(frozen=True, slots=True)
class OverlapCase:
    """What a step goes over and how long its forward pass takes."""

    transport: str
    forward_s: float = 0.0
    """What every layer sleeps."""

    is_paced: bool = False
    """Whether workers send at `fixed` rate: 1 Gbit/s."""

    def __str__(self) -> str:
        computing = (
            f"padded by {self.forward_s * 1000:g} ms per layer" if self.forward_s else "bare"
        )
        pace = ", at 1 Gbit/s" if self.is_paced else ""
        return f"{_WORKERS} workers over {self.transport}{pace}, {computing}"


CASES = (
    OverlapCase("gloo"),
    OverlapCase("gloo", 0.004),
    OverlapCase("shoal"),
    OverlapCase("shoal", 0.004),
    OverlapCase("shoal", 0.004, is_paced=True),
)


def measure(stand: Stand) -> list[Row]:
    """Measure every case."""
    repeats = stand.choose(full=20, quick=4)
    rows = []
    for name, case in stand.each({str(case): case for case in CASES}):
        if case.is_paced:
            stand.close_pool()  # a worker opens its transport once
        by_rank = stand.pool(_WORKERS).call(alternate, case, repeats)
        rows.append(
            comparison(
                name,
                "step time, next-forward / backward",
                "ms",
                slowest(by_rank),
                peer="overlap with backward only",
            )
        )
    stand.close_pool()
    return rows


def alternate(context: WorkerContext, case: OverlapCase, repeats: int) -> Pairs:
    """Return (next-forward's, backward's) milliseconds per step of blocks. A task for the pool."""
    if case.is_paced:
        os.environ["SHOAL_RATE_CONTROL"] = "fixed"
    words: tuple[GradientOverlap, GradientOverlap] = ("next-forward", "backward")
    sides = [_side(case, overlap) for overlap in words]
    batch = batch_of(context.session.rank, WIDTH_1M)

    def step_ms(which: int) -> float:
        model, optimizer = sides[which]
        context.session.communicator.barrier()
        start = time.perf_counter()
        for _ in range(_STEPS):
            training_step(model, batch, optimizer.zero_grad, optimizer.step)
        optimizer.settle()
        return (time.perf_counter() - start) * 1000 / _STEPS

    pairs = [take_both(number, step_ms) for number in range(_WARM_UP + repeats)]
    for _, optimizer in sides:
        optimizer.finish()
    return pairs[_WARM_UP:]


def _side(case: OverlapCase, overlap: GradientOverlap) -> tuple[nn.Module, DistributedOptimizer]:
    model = perceptron(WIDTH_1M)
    strategy = AllReduce(bucket_bytes=_BUCKET_BYTES, overlap=overlap)
    optimizer = DistributedOptimizer(
        local_optimizer(model.parameters()), model, strategy, transport=case.transport
    )
    if case.forward_s:
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                layer.register_forward_hook(lambda *_: time.sleep(case.forward_s))
    return model, optimizer
