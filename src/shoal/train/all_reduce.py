"""All-reduce (BSP): the mean gradient of all workers at every step, overlapped with backward.

The baseline every paper measures against, tuned as its own users would tune it: buckets, started
while backward still runs (papers digest 4.3). Averages gradients; every replica stays identical.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch

from shoal.collectives.buckets import BUCKET_BYTES
from shoal.train.gradient_buckets import GradientBuckets
from shoal.train.strategy import AbstractStrategy, Averaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from shoal.train.replica import Replica


@final
class AllReduce(AbstractStrategy):
    """Average gradients over all workers at every step.

    `bucket_bytes` is the size from which a bucket of gradients is sent.
    """

    name = "all-reduce"
    averaged = Averaged.GRADIENTS
    is_lock_step = True

    def __init__(self, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._bucket_bytes = bucket_bytes

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the bucket size."""
        return {"bucket_bytes": self._bucket_bytes}

    def bind(self, replica: Replica) -> None:
        """Put hooks on the parameters."""
        self._replica = replica
        parameters: list[Tensor] = list(replica.model.parameters())
        statistics = [b for b in replica.model.buffers() if b.is_floating_point()]
        self._buckets = GradientBuckets(
            parameters,
            statistics,
            replica.communicator,
            replica.stopwatch,
            self._bucket_bytes,
        )
        self._everyone = replica.communicator.world_size
        self._num_steps = 0

    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """Apply `update`: the gradients are averaged since the end of backward."""
        update()
        self._num_steps += 1
        self._replica.count(f"group_size.{self._everyone}")

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let backward only add to the local gradients (all but the last micro-batch)."""
        self._buckets.enabled = False
        try:
            yield
        finally:
            self._buckets.enabled = True

    def finish(self) -> None:
        """Join the others' reductions with nothing to give until no worker contributes.

        Then take over the model of the worker that trained longest: it saw every update.
        """
        if self._everyone > 1:
            while self._buckets.shadow():
                pass
            self._adopt_longest_trained()
        self._buckets.remove()

    def _adopt_longest_trained(self) -> None:
        communicator = self._replica.communicator
        steps = torch.zeros(self._everyone, dtype=torch.int64)
        steps[communicator.rank] = self._num_steps
        communicator.all_reduce(steps).wait()
        if int(steps.min()) < int(steps.max()):
            for flat in self._replica.flat.buffers:
                communicator.broadcast(flat, int(steps.argmax()))
