"""`DistributedOptimizer` takes only a model and an optimizer that nothing else synchronizes.

DistributedDataParallel and FSDP average gradients themselves. Beside a strategy they would divide
gradients twice, or make every worker wait for the slowest, unnoticed. Owns these refusals.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from shoal.carriers import active_ddp_model
from shoal.errors import UsageError
from shoal.train.model_hooks import ModelHook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_IN_DDP: Final = (
    "The model is wrapped in DistributedDataParallel, which averages gradients itself: give"
    " DistributedOptimizer `model.module` and call that, without DistributedDataParallel; or keep"
    ' DistributedDataParallel, over init_process_group("shoal") if wanted, without'
    " DistributedOptimizer."
)


def check_can_be_wrapped(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise `UsageError` unless a strategy can synchronize `model`, which `optimizer` trains."""
    if not callable(getattr(optimizer, "step", None)) or not isinstance(model, torch.nn.Module):
        message = (
            "DistributedOptimizer takes an optimizer, then the model (a torch.nn.Module), not"
            f" {type(optimizer).__name__} and {type(model).__name__}."
        )
        raise UsageError(message)
    _check_nothing_else_synchronizes(model)
    if _is_of(optimizer, "ZeroRedundancyOptimizer"):
        raise UsageError(
            "ZeroRedundancyOptimizer sends every worker's share of an update to the others itself:"
            " wrap the optimizer within it (its `optim`'s class, made with all parameters)."
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("The model's parameters are on the meta device, which holds no numbers.")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = (
            f"{type(optimizer).__name__} computes the loss several times in a step, at models that"
            " the other workers do not have; take an optimizer that steps without a closure."
        )
        raise UsageError(message)
    known = {id(parameter) for parameter in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) not in known for parameter in group["params"]):
            raise UsageError(
                "The optimizer holds parameters that are not the model's;"
                " pass the model whose parameters it optimizes."
            )


class SoleSynchronizer:
    """Watches until the first step whether something else has come to synchronize `model`.

    Libraries wrap models after their optimizers were made: Accelerate's `prepare`, and Trainers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hook = model.register_forward_pre_hook(ModelHook(lambda *_: self._check_forward()))
        self._is_settled = False

    def check(self) -> None:
        """Raise `UsageError`, at the first call, if something else synchronizes the model."""
        if not self._is_settled:
            _check_nothing_else_synchronizes(self._model)
            self._is_settled = True
            self._hook.remove()

    def _check_forward(self) -> None:
        outer = active_ddp_model()
        if outer is None:
            return
        own = {id(parameter) for parameter in self._model.parameters()}
        if any(id(parameter) in own for parameter in outer.parameters()):
            raise UsageError(_IN_DDP)


def _check_nothing_else_synchronizes(model: nn.Module) -> None:
    """Raise `UsageError` if `model`, or a module in it, averages gradients or holds shards."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            raise UsageError(_IN_DDP)
        if _is_of(module, "FullyShardedDataParallel") or _is_of(module, "FSDPModule"):
            raise UsageError(_SHARDED)
    if any(_is_of(parameter, "DTensor") for parameter in model.parameters()):
        raise UsageError(_SHARDED)


_SHARDED: Final = (
    "The model is sharded by FSDP (or holds DTensors), which moves shards and averages gradients"
    ' itself: DistributedOptimizer takes whole models. FSDP runs over init_process_group("shoal").'
)


def _is_of(thing: object, name: str) -> bool:
    """Return whether a class of torch of this `name` is among those of `thing`.

    By name: importing the classes takes a while, and a user of them has imported them.
    """
    return any(kind.__name__ == name for kind in _classes(thing))


def _classes(thing: object) -> Iterator[type]:
    return (kind for kind in type(thing).__mro__ if kind.__module__.startswith("torch."))
