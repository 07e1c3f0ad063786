"""PyTorch's post-local SGD: DDP's hook with the periodic model averager, from the first step on.

Used as its documentation shows, with every worker a machine of its own: there is no subgroup in
which gradients would be averaged, and no warm-up, which would be plain DDP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from torch.nn.parallel import DistributedDataParallel

from shoal_bench.peers.library import CYCLE
from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from torch import nn


@final
class PostLocalSGD(PooledLibrary):
    """Local steps, some of which average the parameters of all workers.

    `period` is how many steps lie between two averagings; 4 in its documentation.
    """

    package = "torch"

    def __init__(self, period: int = CYCLE) -> None:
        self._period = period

    @property
    def title(self) -> str:
        """The library's name."""
        return f"PyTorch post-local SGD (period {self._period})"

    @property
    def counterpart(self) -> PooledLibrary:
        """Shoal with the same algorithm, averaging as often."""
        return Shoal("local-sgd", interval=self._period)

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of the documentation's example."""
        # here, because they load FSDP and SymPy: every benchmark would begin two seconds later
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
            PostLocalSGDState,
            post_localSGD_hook,
        )
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        wrapped = DistributedDataParallel(model)
        state = PostLocalSGDState(
            process_group=None,
            subgroup=None,
            start_localSGD_iter=0,
            post_local_gradient_allreduce=False,
        )
        wrapped.register_comm_hook(state, post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(
            optim=seat.make_optimizer(wrapped.parameters()),
            averager=PeriodicModelAverager(period=self._period, warmup_steps=0),
        )
        return Loop(wrapped, optimizer.zero_grad, optimizer.step)
