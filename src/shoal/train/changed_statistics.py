"""A model's statistics, batch norm's and the like, as contributions to a mean over all workers.

Only statistics that some worker has changed since all workers had them alike are replaced by their
mean: so a buffer that never changes, whatever a model keeps in it, stays as it is to the bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.train.known_tensors import KnownBuffers

if TYPE_CHECKING:
    from torch import Tensor, nn


class ChangedStatistics:
    """The averaged buffers of `model`, and for each how many workers have changed it.

    Buffers of the type of `like`, and all counts, lie in the memory given to `place`, of
    `num_elements`; `apart` holds buffers of other types, in one tensor for each type.
    """

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        self._known = KnownBuffers(model)
        self.tensors: Final = self._known.tensors
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index, tensor in enumerate(self.tensors):
            kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
        self._placed = kinds.pop((like.dtype, like.device), [])
        self._views: dict[int, Tensor] = {}
        self.apart: Final[list[Tensor]] = []
        for (dtype, device), members in kinds.items():
            length = sum(self.tensors[index].numel() for index in members)
            self.apart.append(torch.zeros(length, dtype=dtype, device=device))
            self._cut(self.apart[-1], members)
        self._before = [tensor.detach().clone() for tensor in self.tensors]

    @property
    def num_elements(self) -> int:
        """The number of elements that the memory given to `place` has."""
        return len(self.tensors) + sum(self.tensors[index].numel() for index in self._placed)

    def place(self, memory: Tensor) -> None:
        """Let counts and statistics of the usual type lie in `memory`."""
        self._counts = memory[: len(self.tensors)]
        self._cut(memory[len(self.tensors) :], self._placed)

    def _cut(self, memory: Tensor, members: list[int]) -> None:
        parts = memory.split([self.tensors[index].numel() for index in members])
        for index, part in zip(members, parts, strict=True):
            self._views[index] = part.view(self.tensors[index].shape)

    def contribute(self, workers: float) -> None:
        """Write this worker's part of the means over `workers`, and which buffers it changed."""
        self._known.bring_back()
        for index, tensor in enumerate(self.tensors):
            torch.div(tensor, workers, out=self._views[index])
            self._counts[index] = (tensor != self._before[index]).any()

    def contribute_nothing(self) -> None:
        """Write zeros: a part that adds nothing to the means or the counts."""
        self._counts.zero_()
        for view in self._views.values():
            view.zero_()

    def note_alike(self) -> None:
        """Take note that all workers have the buffers alike now."""
        for tensor, before in zip(self.tensors, self._before, strict=True):
            before.copy_(tensor)

    def take(self, factor: float) -> None:
        """Replace the buffers that some worker has changed by `factor` times their sum."""
        for index, (tensor, before) in enumerate(zip(self.tensors, self._before, strict=True)):
            is_changed = (self._counts[index] > 0).to(tensor.device)
            tensor.copy_(torch.where(is_changed, self._views[index] * factor, tensor))
            before.copy_(tensor)
