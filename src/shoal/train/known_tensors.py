"""Tensors that workers agreed on when a model was wrapped, and that must stay as they were agreed.

If a parameter is replaced, as by `load_state_dict(assign=True)` or with its layer, the old one is
still the optimizer's and still averaged; the new one is neither. A forward pass may put another
tensor in a buffer's place (`self.mean = 0.9 * self.mean + ...`): the known one would be averaged
on, and the new one never. And a parameter that was frozen has no place where its gradient would be
averaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import buffers_held_by, modules_held_by, parameters_held_by
from shoal.errors import UsageError
from shoal.train.shared_memory import without_views_of
from shoal.workloads import is_wide_float

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor, nn


class KnownParameters:
    """The parameters of `model` now; those only added or removed later are ignored."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known = {id(each): each for each in model.parameters()}
        self._slots = list(_slots_of(model))

    def check(self) -> None:
        """Raise `UsageError` if a parameter was replaced."""
        if all(names.get(name) is held for names, name, held in self._slots):
            return
        now = {id(each) for each in self._model.parameters()}
        if not (now <= self._known.keys() or now >= self._known.keys()):
            raise UsageError(
                "Parameters of the model were replaced after DistributedOptimizer was made, as by"
                " load_state_dict(assign=True), a new layer or weight norm: nobody trains or"
                " averages the new ones. Make a new optimizer, and wrap it anew."
            )
        self._slots = list(_slots_of(self._model))  # moved within the model, by a parametrization


def _slots_of(model: nn.Module) -> Iterator[tuple[Mapping[str, object], str, object]]:
    """Yield where `model` holds parameters and modules: the dictionary, the name and the object."""
    for module in model.modules():
        for names in (parameters_held_by(module), modules_held_by(module)):
            yield from ((names, name, held) for name, held in names.items())


class FrozenParameters:
    """The given parameters that require no gradient now."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._frozen = [each for each in parameters if not each.requires_grad]

    def check(self) -> None:
        """Raise `UsageError` if one of them is trained now: nobody would average its gradient."""
        if any(each.requires_grad and each.grad is not None for each in self._frozen):
            raise UsageError(
                "A parameter that was frozen when DistributedOptimizer was made has a gradient"
                " now: make a new DistributedOptimizer after unfreezing layers, or freeze them"
                " after making it."
            )


class KnownBuffers:
    """The buffers of `model` that are averaged: dense floating-point ones with finite values.

    One that holds infinities is a mask, not a statistic, and has no mean. One that is a view of a
    parameter follows it.
    """

    def __init__(self, model: nn.Module) -> None:
        statistics = [each for each in model.buffers() if _is_statistic(each)]
        self.tensors: Final = without_views_of(model.parameters(), statistics)
        known = {id(each) for each in self.tensors}
        self._slots = [
            (names, name, held)
            for names in map(buffers_held_by, model.modules())
            for name, held in names.items()
            if held is not None and id(held) in known
        ]

    def bring_back(self) -> None:
        """Put the known buffers back where others of their kind are now, with the others' values.

        A tensor of another shape or type is no statistic but a temporary value, and stays.
        """
        for names, name, held in self._slots:
            now = names.get(name)
            if now is held or now is None:
                continue
            if (now.shape, now.dtype, now.device) == (held.shape, held.dtype, held.device):
                with torch.no_grad():
                    held.copy_(now)
                names[name] = held


def _is_statistic(tensor: Tensor) -> bool:
    if not is_wide_float(tensor) or tensor.layout != torch.strided:
        return False
    return bool(tensor.isfinite().all())
