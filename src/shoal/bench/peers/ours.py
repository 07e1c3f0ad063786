"""Shoal itself, driven the way the other libraries are."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.bench.peers.pooled import Loop, PooledLibrary
from shoal.bench.perceptron import local_optimizer
from shoal.train.optimizer import DistributedOptimizer
from shoal.train.strategies import make_strategy

if TYPE_CHECKING:
    from torch import nn

    from shoal.jobs.worker import WorkerContext


@final
class Shoal(PooledLibrary):
    """A strategy, with its own defaults unless `options` say otherwise."""

    package = "shoal"
    is_lock_step = False

    def __init__(self, strategy: str, **options: object) -> None:
        self._strategy, self._options = strategy, options

    @property
    def title(self) -> str:
        """The strategy with its options."""
        options = ", ".join(f"{name} {value}" for name, value in self._options.items())
        return f"{self._strategy} ({options})" if options else self._strategy

    @property
    def counterpart(self) -> PooledLibrary:
        """Itself."""
        return self

    def loop(self, _context: WorkerContext, model: nn.Module, _meeting_point: str) -> Loop:
        """Return the loop of a `DistributedOptimizer`."""
        optimizer = DistributedOptimizer(
            local_optimizer(model.parameters()),
            model,
            sync=make_strategy(self._strategy, self._options),
        )
        return Loop(model, optimizer.zero_grad, optimizer.step, optimizer.finish)
