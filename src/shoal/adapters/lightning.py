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
from torch import Tensor, distributed, nn

import shoal
from shoal.errors import UsageError
from shoal.session import DEFAULT_DEADLINE_S, current_session

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class ShoalStrategy(DDPStrategy):
    """One process for each device, synchronized by `shoal.DistributedOptimizer`.

    `sync` and `options` are the optimizer's: a strategy's name or object, `transport`, `loss_bound`
    and so on. Of several optimizers, as of a GAN's, each averages the submodules that it trains; a
    strategy object is copied for each. After `fit` every rank has the mean of all replicas; what is
    validated in between is a rank's own.
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
        if len(self.optimizers) == 1:
            self.optimizers = [self._wrapped(self.optimizers[0], module)]
            return
        _begin_alike(module)
        self.optimizers = [
            self._wrapped(each, _trained_part(module, each)) for each in self.optimizers
        ]

    def _wrapped(self, optimizer: Any, model: nn.Module) -> shoal.DistributedOptimizer:
        """Let `optimizer` meet those of other ranks."""
        made = shoal.DistributedOptimizer(optimizer, model, sync=self._sync, **self._options)
        made.meets_scaler = getattr(self.precision_plugin, "scaler", None) is not None
        return made

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the state of `optimizer` with what each rank's strategy keeps; collective.

        Lightning saves it on rank 0 alone, and a parameter server keeps a shard on each rank.
        """
        state: dict[str, Any] = super().optimizer_state(optimizer)
        kept: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(kept, state.get("shoal"))
        return {**state, "shoal": kept}

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Continue from `checkpoint`: each rank takes its own strategy's state from it."""
        rank = distributed.get_rank()
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            kept = state["shoal"]
            own = kept[rank] if rank < len(kept) else kept[0]  # which says for how many it is
            optimizer.load_state_dict({**state, "shoal": own})

    def on_train_end(self) -> None:
        """Make the mean of all replicas every rank's model."""
        for each in self.optimizers:  # all: another rank's may wait for any one of these
            each.finish()
        for each in self.optimizers:
            each.average_model()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Let gradients add up, in the body, before they meet."""
        with ExitStack() as stack:
            for each in self.optimizers:
                stack.enter_context(each.no_sync())
            yield


def _begin_alike(module: nn.Module) -> None:
    """Give all ranks rank 0's parameters and buffers, also parameters that no optimizer trains."""
    for each in module.state_dict().values():
        if isinstance(each, Tensor):
            values = each.contiguous()
            distributed.broadcast(values, 0)
            each.copy_(values)


def _trained_part(module: nn.Module, optimizer: Any) -> nn.Module:
    """Return what of `module` one of several optimizers trains, or else all of it."""
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    parts = list(_trained_alone(module, trained))
    if trained - {id(each) for part in parts for each in part.parameters()}:
        return module
    return parts[0] if len(parts) == 1 else nn.ModuleList(parts)


def _trained_alone(module: nn.Module, trained: set[int]) -> Iterator[nn.Module]:
    """Yield the largest parts of `module` whose trainable parameters are all in `trained`."""
    own = {id(each) for each in module.parameters() if each.requires_grad}
    if own and own <= trained:
        yield module
    else:
        for child in module.children():
            yield from _trained_alone(child, trained)


def _join_job(deadline_s: float) -> None:
    """Join the job, once for all of a script's trainers: leaving it would end torch's group."""
    try:
        current_session()
    except UsageError:
        shoal.init(deadline_s=deadline_s)
