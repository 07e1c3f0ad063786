"""PyTorch's DistributedDataParallel on gloo, with its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from torch.nn.parallel import DistributedDataParallel

from shoal.bench.peers.ours import Shoal
from shoal.bench.peers.pooled import Loop, PooledLibrary
from shoal.bench.perceptron import local_optimizer

if TYPE_CHECKING:
    from torch import nn

    from shoal.jobs.worker import WorkerContext


@final
class DDP(PooledLibrary):
    """All-reduce of gradients in buckets, overlapped with backward."""

    package = "torch"

    @property
    def title(self) -> str:
        """Its name."""
        return "PyTorch DDP"

    @property
    def counterpart(self) -> PooledLibrary:
        """The same algorithm."""
        return Shoal("all-reduce")

    def loop(self, _context: WorkerContext, model: nn.Module, _meeting_point: str) -> Loop:
        """Return the usual training loop."""
        wrapped = DistributedDataParallel(model)
        optimizer = local_optimizer(wrapped.parameters())
        return Loop(wrapped, optimizer.zero_grad, optimizer.step)
