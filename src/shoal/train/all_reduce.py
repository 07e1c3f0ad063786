"""All-reduce (BSP): the mean gradient of all workers at every step, overlapped with backward.

The baseline every paper measures against, tuned as its own users would tune it: buckets, started
while backward still runs (docs/papers.md, 4.3). Averages gradients; every replica stays identical.
With `overlap="next-forward"` the exchange goes on behind the next forward pass.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, final

import torch
from torch.optim import SparseAdam

from shoal.arguments import whole_number
from shoal.carriers.host_copy import HOST
from shoal.collectives.buckets import BUCKET_BYTES
from shoal.collectives.gradient_overlap import check_gradient_overlap
from shoal.errors import UsageError
from shoal.train.gradient_buckets import GradientBuckets
from shoal.train.layerwise_updates import LayerwiseUpdates
from shoal.train.strategy import AbstractStrategy, Averaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.collectives.gradient_overlap import GradientOverlap
    from shoal.train.replica import Replica


@final
class AllReduce(AbstractStrategy):
    """Average gradients over all workers at every step.

    `bucket_bytes` is the size from which a bucket of gradients is sent. `overlap` says when they
    are waited for: at the end of backward, or ("next-forward") layer by layer when the next forward
    pass gets there, with the same result; see `train.layerwise_updates`.
    """

    name = "all-reduce"
    averaged = Averaged.GRADIENTS
    is_lock_step = True

    def __init__(
        self, *, bucket_bytes: int = BUCKET_BYTES, overlap: GradientOverlap = "backward"
    ) -> None:
        check_gradient_overlap(overlap)
        self._bucket_bytes = whole_number(bucket_bytes, "A bucket's bytes", low=1)
        self._overlap = overlap
        self._layerwise: LayerwiseUpdates | None = None

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the bucket size and the overlap."""
        return {"bucket_bytes": self._bucket_bytes, "overlap": self._overlap}

    def _attach(self, replica: Replica) -> None:
        """Put hooks on the parameters. Raises `UsageError` for what takes no dense gradients."""
        kind = type(replica.optimizer)
        if issubclass(kind, SparseAdam):
            message = (
                f"Averaged gradients are dense, and {kind.__name__} takes sparse ones only: use"
                " SGD, Adagrad or Adam, or a strategy that averages parameters."
            )
            raise UsageError(message)
        self._replica = replica
        self._buckets = GradientBuckets(
            replica.model,
            replica.communicator,
            replica.stopwatch,
            self._bucket_bytes,
            replica.noting,
        )
        self._use = self._buckets.use
        if self._overlap == "next-forward":
            replica.flat.check_apart("overlap='next-forward'")
            self._layerwise = LayerwiseUpdates(
                self._buckets, replica.optimizer, replica.model, replica.stepping
            )
            replica.flat.before_access = self._layerwise.settle
        self._everyone = replica.communicator.world_size
        self._num_steps = 0

    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """Apply `update`, now or layer by layer: the gradients are averaged since backward.

        Without a backward pass here (a batch that was left out) this worker takes part with nothing
        to give, and its update is the others'.
        """
        if not self._buckets.end_step():
            self.settle()
            self._buckets.shadow(trains=True)
        if self._layerwise is not None:
            self._layerwise.step(update)
        else:
            update()
        self._num_steps += 1
        self._replica.count(f"group_size.{self._everyone}")

    def settle(self) -> None:
        """Wait for all gradients and make the updates that are owed."""
        if self._layerwise is not None:
            self._layerwise.settle()

    def clearing(self, *, set_to_none: bool) -> AbstractContextManager[None]:
        """Return the context in which the user's gradients are cleared: none under way is lost."""
        self._buckets.forget_failed_pass()
        if self._layerwise is None:
            return nullcontext()
        return self._layerwise.clearing(set_to_none=set_to_none)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Let backward only add to the local gradients (all but the last micro-batch)."""
        self._buckets.enabled = False
        try:
            yield
        finally:
            self._buckets.enabled = True

    def _end(self) -> None:
        """Join the others' reductions with nothing to give until no worker trains.

        Then take over the model of the worker that trained longest: it saw every update.
        """
        if self._layerwise is not None:
            self._layerwise.remove()
        if self._everyone > 1:
            while self._buckets.shadow(trains=False):
                pass
            self._adopt_longest_trained()
        self._buckets.remove()

    def _adopt_longest_trained(self) -> None:
        communicator = self._replica.communicator
        steps = torch.zeros(self._everyone, dtype=torch.int64, device=HOST)
        steps[communicator.rank] = self._num_steps
        communicator.all_reduce(steps).wait()
        if int(steps.min()) < int(steps.max()):
            for flat in self._replica.flat.buffers:
                communicator.broadcast(flat, int(steps.argmax()))
