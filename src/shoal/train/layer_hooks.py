"""Hooks on a model that tell when it gets to a layer: before its forward pass and its gradient.

An update or average on its way into a layer's tensors has to be there by then. Knows neither what
is on its way nor how to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from shoal.carriers import run_after_backward
from shoal.errors import UsageError
from shoal.train.model_hooks import ModelHook

if TYPE_CHECKING:
    from torch import Tensor, nn

Settle: TypeAlias = Callable[[Iterable[int] | None], None]
"""Waits for pieces of a model, by their numbers, or (None) for all."""


class LayerHooks:
    """Has every module wait for the pieces that hold its own parameters and buffers.

    `pieces_of` says by a tensor's id in which pieces it lies. A compiled module waits for all:
    torch's compiler must not meet a tensor that is awaited, and a module in it may read tensors of
    other modules. `settle_rest` is called before a parameter's gradient is accumulated: it settles
    all, and returns the pieces whose old values must not have been used by this backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[Tensor],
        pieces_of: Mapping[int, Iterable[int]],
        settle: Settle,
        settle_rest: Callable[[], set[int]],
    ) -> None:
        self._settle, self._settle_rest = settle, settle_rest
        self._stale: set[int] = set()
        self._hooks: list[Any] = [
            *self._hook_modules(model, pieces_of),
            *(each.register_hook(self._make_guard(pieces_of[id(each)])) for each in parameters),
        ]

    def _hook_modules(
        self, model: nn.Module, pieces_of: Mapping[int, Iterable[int]]
    ) -> Iterator[Any]:
        for module in model.modules():
            own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            numbers = {number for each in own for number in pieces_of.get(id(each), ())}
            if numbers or module is model:
                yield module.register_forward_pre_hook(self.wait_for(sorted(numbers)))

    def wait_for(self, numbers: Iterable[int]) -> ModelHook:
        """Return a hook that waits for the pieces `numbers`, within a compiled model for all."""
        return ModelHook(
            lambda *_: self._settle(numbers), within_compiled=lambda *_: self._settle(None)
        )

    def _make_guard(self, numbers: Iterable[int]) -> Callable[[Tensor], None]:
        return lambda _gradient: self._before_gradient(numbers)

    def _before_gradient(self, numbers: Iterable[int]) -> None:
        """Settle pieces that the forward pass did not use; those it used were there by then."""
        stale = self._settle_rest()
        if stale:
            self._stale = stale
            run_after_backward(stale.clear)
        if not self._stale.isdisjoint(numbers):
            raise UsageError(
                "A parameter was used before its new values of the step before were there: through"
                " a graph kept from then, or by code that torch cannot observe (TorchScript); leave"
                " overlap out."
            )

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
