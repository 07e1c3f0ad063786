"""No library: every worker trains for itself. What it reaches, others need not be thanked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal_bench.peers.ours import Shoal
from shoal_bench.peers.pooled import Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from torch import nn


@final
class Alone(PooledLibrary):
    """Workers that exchange nothing."""

    package = "torch"
    is_lock_step = False
    title = "no exchange"
    counterpart = Shoal("local-sgd")
    """What exchanges least."""

    def join(self, _seat: Seat) -> None:
        """Nothing."""

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of a program that knows of no others."""
        optimizer = seat.make_optimizer(model.parameters())
        return Loop(model, optimizer.zero_grad, optimizer.step)
