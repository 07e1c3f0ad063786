"""PyTorch's post-local SGD: DDP's hook with the periodic model averager, from the first step on.

Used as its documentation shows, with every worker a machine of its own: there is no subgroup in
which gradients would be averaged, and no warm-up, which would be plain DDP.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, final

from torch.nn.parallel import DistributedDataParallel

from shoal_bench.peers.library import CYCLE
from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.algorithms.model_averaging.averagers import ModelAverager


@final
class PostLocalSGD(PooledLibrary):
    """Local steps, some of which average the parameters of all workers.

    `period` is how many steps lie between two averagings; 4 in its documentation. With
    `is_hierarchical` only every fourth of them is among all workers, and the others among each half
    of them, which are in racks of their own where there are two.
    """

    package = "torch"

    def __init__(self, period: int = CYCLE, *, is_hierarchical: bool = False) -> None:
        self._period, self._is_hierarchical = period, is_hierarchical

    @property
    def title(self) -> str:
        """The library's name."""
        rarely = f", among all {CYCLE * self._period}" if self._is_hierarchical else ""
        return f"PyTorch post-local SGD (period {self._period}{rarely})"

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
        from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
            HierarchicalModelAverager,
        )
        from torch.distributed.optim import PostLocalSGDOptimizer

        wrapped = DistributedDataParallel(model)
        state = PostLocalSGDState(
            process_group=None,
            subgroup=None,
            start_localSGD_iter=0,
            post_local_gradient_allreduce=False,
        )
        wrapped.register_comm_hook(state, post_localSGD_hook)
        averager: ModelAverager = PeriodicModelAverager(period=self._period, warmup_steps=0)
        if self._is_hierarchical:
            sizes = {self._period: seat.world_size // 2, CYCLE * self._period: seat.world_size}
            averager = HierarchicalModelAverager(OrderedDict(sizes))
        optimizer = PostLocalSGDOptimizer(
            optim=seat.make_optimizer(wrapped.parameters()), averager=averager
        )
        return Loop(wrapped, optimizer.zero_grad, optimizer.step)
