"""Shoal's strategies in jobs that go on without lost workers, with their defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import shoal
from shoal.strategies import LocalSGD, make_strategy
from shoal_bench.elastic.contender import AbstractContender, Part
from shoal_bench.peers.pooled import DEADLINE_S

if TYPE_CHECKING:
    from torch import nn

    from shoal_bench.peers.pooled import Seat

ELASTIC: Final = (
    "all-reduce",
    "ds-sync",
    "ripples-static",
    "ripples",
    "local-sgd",
    "ad-psgd",
    "ps-bsp",
    "ps-asp",
)
"""The strategies whose jobs go on, one for each way in which they do so."""


@final
class Shoal(AbstractContender):
    """A strategy of ours over our transport; without `is_elastic` in a job of a fixed size."""

    package = "shoal"
    is_ours = True

    def __init__(self, sync: str, *, is_elastic: bool = True) -> None:
        self._sync, self._is_elastic = sync, is_elastic

    @property
    def title(self) -> str:
        """The strategy's word."""
        return self._sync

    def join(self, seat: Seat, model: nn.Module) -> Part:
        """Begin the job, or come to it."""
        session = shoal.init(min_workers=1 if self._is_elastic else None, deadline_s=DEADLINE_S)
        strategy = make_strategy(self._sync, {})
        optimizer = shoal.DistributedOptimizer(
            seat.make_optimizer(model.parameters()), model, sync=strategy, transport="shoal"
        )
        began_with = optimizer.num_steps
        interval = strategy.interval if isinstance(strategy, LocalSGD) else 1

        def kept() -> int:
            return max(0, optimizer.num_steps // interval * interval - began_with)

        return Part(
            model,
            optimizer.zero_grad,
            optimizer.step,
            done=lambda: optimizer.num_steps - began_with,
            kept=kept,
            members=lambda: len(session.view),
        )
