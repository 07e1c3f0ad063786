"""Shoal itself, driven the way the other libraries are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

import shoal
from shoal.strategies import make_strategy
from shoal.train import DistributedOptimizer
from shoal_bench.peers.pooled import DEADLINE_S, Loop, PooledLibrary, Seat

if TYPE_CHECKING:
    from torch import nn


@final
class Shoal(PooledLibrary):
    """A strategy over a transport, with its own defaults unless `options` say otherwise."""

    package = "shoal"
    is_lock_step = False
    is_ours = True

    def __init__(
        self,
        strategy: str,
        *,
        transport: str = "gloo",
        loss_bound: float = 0.0,
        wire: str | None = None,
        **options: object,
    ) -> None:
        self._strategy, self._options = strategy, options
        self._transport, self._loss_bound, self._wire = transport, loss_bound, wire

    @property
    def title(self) -> str:
        """The strategy with its options, and what it goes over unless that is gloo."""
        words = [f"{name} {value}" for name, value in self._options.items()]
        if self._transport != "gloo":
            words.append(f"over {self._transport}")
        if self._loss_bound:
            words.append(f"p = {self._loss_bound:.0%}")
        if self._wire is not None:
            words.append(self._wire)
        return f"{self._strategy} ({', '.join(words)})" if words else self._strategy

    @property
    def counterpart(self) -> PooledLibrary:
        """Itself."""
        return self

    def join(self, _seat: Seat) -> None:
        """Join the job."""
        shoal.init(deadline_s=DEADLINE_S)

    def loop(self, seat: Seat, model: nn.Module) -> Loop:
        """Return the loop of a `DistributedOptimizer`."""
        optimizer = DistributedOptimizer(
            seat.make_optimizer(model.parameters()),
            model,
            sync=make_strategy(self._strategy, self._options),
            transport=self._transport,
            loss_bound=self._loss_bound,
            wire=self._wire,
        )
        return Loop(
            model,
            optimizer.zero_grad,
            optimizer.step,
            optimizer.finish,
            says=partial(_remarks, optimizer),
            stats=optimizer.transport_stats,
        )


def _remarks(optimizer: DistributedOptimizer) -> str:
    """Return what the optimizer says about slow ranks and ways."""
    return " ".join(remark.sentence for remark in optimizer.remarks())
