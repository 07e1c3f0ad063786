"""Buffers that workers average, and must stay the model's.

A forward pass may put another tensor in a buffer's place (`self.mean = 0.9 * self.mean + ...`): the
known one would be averaged on, and the new one never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers.torch_private import buffers_held_by
from shoal.train.shared_memory import without_views_of
from shoal.workloads.means import is_wide_float

if TYPE_CHECKING:
    from torch import Tensor, nn


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
        """Put the known buffers where others of their kind are now, with the others' values.

        One of another shape or type is no statistic but something kept for a while, and let be.
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
