"""Lightning with any of Shoal's strategies: a Trainer's strategy that wraps its optimizers.

    trainer = Trainer(strategy=ShoalStrategy(sync="ripples"), accelerator="cpu", devices=2)

Processes, samplers and metrics are those of Lightning's DDP; gradients or parameters meet as `sync`
says instead. For DDP itself over Shoal's transport take Lightning's own strategy:
`DDPStrategy(process_group_backend="shoal")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from lightning.pytorch.strategies import DDPStrategy

import shoal
from shoal.errors import UsageError
from shoal.runtime.session import DEFAULT_DEADLINE_S, current_session

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class ShoalStrategy(DDPStrategy):
    """One process for each device, synchronized by `shoal.DistributedOptimizer`.

    `sync` and `options` are the optimizer's: a strategy's name or object, `transport`, `loss_bound`
    and so on. After `fit` every rank has the mean of all replicas; what is validated in between is
    a rank's own.
    """

    optimizers: list[Any]

    def __init__(
        self,
        sync: Any = "all-reduce",
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        process_group_backend: str = "gloo",
        **options: Any,
    ) -> None:
        super().__init__(process_group_backend=process_group_backend)
        self._sync, self._deadline_s, self._options = sync, deadline_s, options

    def configure_ddp(self) -> None:
        """Leave the model as it is: DDP would average gradients as well."""

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Wrap the optimizers, and join the job."""
        super().setup_optimizers(trainer)
        if not self.optimizers:
            return
        _join_job(self._deadline_s)
        module: LightningModule = trainer.lightning_module
        self.optimizers = [
            shoal.DistributedOptimizer(each, module, sync=self._sync, **self._options)
            for each in self.optimizers
        ]

    def on_train_end(self) -> None:
        """Make the mean of all replicas every rank's model."""
        for each in self.optimizers:
            each.finish()
            each.average_model()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Let gradients add up, in the body, before they meet."""
        with ExitStack() as stack:
            for each in self.optimizers:
                stack.enter_context(each.no_sync())
            yield


def _join_job(deadline_s: float) -> None:
    """Join the job, once for all of a script's trainers: leaving it would end torch's group."""
    try:
        current_session()
    except UsageError:
        shoal.init(deadline_s=deadline_s)
