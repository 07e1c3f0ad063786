"""PyTorch's DistributedDataParallel: its defaults, or one of its communication hooks.

On gloo; or on Shoal's backend, in which nothing but the transport is another.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, final

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import DEADLINE_S, Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from torch import nn

LOW_RANK: Final = 4
"""The rank of PowerSGD's approximation; its paper trains with 1 to 4."""
_FIRST_STEPS: Final = 2
"""The steps that are not compressed; the fewest that PowerSGD allows with its error feedback."""
_ONE_BUCKET_MB: Final = 10_000
"""The megabytes that put all gradients into one bucket: with several buckets PowerSGD's chained
collectives do not keep one order on gloo."""


@final
class DDP(PooledLibrary):
    """All-reduce of gradients in buckets, overlapped with backward.

    `hook` is "" (none), "fp16", "PowerSGD", or "PowerSGD-fp16", of which the factors are float16;
    `rank` is PowerSGD's.
    `bucket_mb` is the size of a bucket in MiB, None for DDP's own choice.
    """

    package = "torch"
    counterpart = Shoal("all-reduce")
    """Shoal with the same algorithm."""

    def __init__(
        self,
        hook: str = "",
        backend: Literal["gloo", "shoal"] = "gloo",
        *,
        bucket_mb: float | None = None,
        rank: int = LOW_RANK,
    ) -> None:
        self._hook, self._backend, self._bucket_mb = hook, backend, bucket_mb
        self._rank = rank
        self.is_ours = backend == "shoal"

    @property
    def title(self) -> str:
        """DDP's name, with the hook."""
        name = f"PyTorch DDP, {self._hook} hook" if self._hook else "PyTorch DDP"
        if self._rank != LOW_RANK:
            name = f"{name} of rank {self._rank}"
        if self._bucket_mb is not None:
            name = f"{name}, buckets of {self._bucket_mb:g} MiB"
        return f"{name}, on Shoal's backend" if self.is_ours else name

    def join(self, _seat: Seat) -> None:
        """Join the job."""
        dist.init_process_group(self._backend, timeout=timedelta(seconds=DEADLINE_S))

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the usual training loop."""
        if self._hook.startswith("PowerSGD"):
            wrapped = DistributedDataParallel(model, bucket_cap_mb=_ONE_BUCKET_MB)
            state = PowerSGDState(
                None, matrix_approximation_rank=self._rank, start_powerSGD_iter=_FIRST_STEPS
            )
            is_half = self._hook == "PowerSGD-fp16"
            hook = fp16_compress_wrapper(powerSGD_hook) if is_half else powerSGD_hook
            wrapped.register_comm_hook(state, hook)
        else:
            wrapped = DistributedDataParallel(model, bucket_cap_mb=self._bucket_mb)
        if self._hook == "fp16":
            wrapped.register_comm_hook(None, fp16_compress_hook)
        optimizer = seat.make_optimizer(wrapped.parameters())
        return Loop(wrapped, optimizer.zero_grad, optimizer.step)
