"""Decent-DP: decentralized averaging of parameters, overlapped with the next step's computing.

Its wrapper updates and averages each bucket during backward; there is no optimizer to step. Used
with two of its topologies: the default, and the one with the smallest groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    import torch
    from torch import nn


@final
class DecentDP(PooledLibrary):
    """`topology` is "complete" (its default: everybody) or "one-peer-exp" (pairs)."""

    package = "decent-dp"

    def __init__(self, topology: str) -> None:
        self._topology = topology

    @property
    def title(self) -> str:
        """The name with the topology."""
        return f"Decent-DP ({self._topology})"

    @property
    def counterpart(self) -> PooledLibrary:
        """Averaging as many parameters with as many partners."""
        return Shoal("local-sgd", interval=1) if self._topology == "complete" else Shoal("ds-sync")

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of its quick start."""
        from decent_dp.ddp import DecentralizedDataParallel

        def make_optimizer(parameters: list[tuple[str, torch.Tensor]]) -> torch.optim.Optimizer:
            return seat.make_optimizer([parameter for _, parameter in parameters])

        wrapped: Any = DecentralizedDataParallel(
            model, optim_fn=make_optimizer, topology=self._topology
        )
        wrapped.train()
        return Loop(wrapped, wrapped.zero_grad, lambda: None)
