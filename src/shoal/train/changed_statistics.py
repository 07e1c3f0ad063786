"""What has changed in a model's statistics since all workers had them alike, to be averaged.

So what never changes, whatever a model keeps in a buffer, stays as it is to the bit: a mean of
equal numbers is rounded. The changes lie in memory of the statistics' own types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.train.flat_parameters import averaged_buffers

if TYPE_CHECKING:
    from torch import Tensor, nn


class ChangedStatistics:
    """Changes of the averaged buffers of `model`, as contributions to a sum over all workers.

    Those of the type of `like` go where `place` says, which has room for `num_elements`; `apart`
    holds those of other types, a tensor for each.
    """

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        self.tensors: Final = averaged_buffers(model)
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index, tensor in enumerate(self.tensors):
            kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
        self._placed = kinds.pop((like.dtype, like.device), [])
        self.num_elements: Final = sum(self.tensors[index].numel() for index in self._placed)
        self._views: dict[int, Tensor] = {}
        self.apart: Final[list[Tensor]] = []
        for (dtype, device), members in kinds.items():
            length = sum(self.tensors[index].numel() for index in members)
            self.apart.append(torch.zeros(length, dtype=dtype, device=device))
            self._cut(self.apart[-1], members)
        self.note()
        self._hook = model.register_load_state_dict_post_hook(lambda *_: self.note())

    def place(self, memory: Tensor) -> None:
        """Let changes of the usual type lie in `memory`."""
        self._cut(memory, self._placed)

    def _cut(self, memory: Tensor, members: list[int]) -> None:
        parts = memory.split([self.tensors[index].numel() for index in members])
        for index, part in zip(members, parts, strict=True):
            self._views[index] = part.view(self.tensors[index].shape)

    def note(self) -> None:
        """Take the statistics as they are for what all workers have."""
        self._before = [tensor.detach().clone() for tensor in self.tensors]

    def contribute(self, world_size: int) -> None:
        """Write this worker's part of the mean of `world_size` changes."""
        for index, tensor in enumerate(self.tensors):
            torch.sub(tensor, self._before[index], out=self._views[index]).div_(world_size)

    def contribute_nothing(self) -> None:
        """Write a part of no worker."""
        for view in self._views.values():
            view.zero_()

    def take(self, factor: float) -> None:
        """Change the statistics by `factor` times what has been summed."""
        for index, tensor in enumerate(self.tensors):
            tensor.copy_(self._before[index].add_(self._views[index], alpha=factor))

    def remove(self) -> None:
        """Take the hook off the model."""
        self._hook.remove()
