"""A model's parameters and averaged buffers as one contiguous tensor, without copying per step.

`FlatParameters` moves the storage of every parameter (and of every floating-point buffer, such as
batch norm's running statistics) into one flat tensor per data type and device; the model keeps
working on views of it. Averaging a model is then one operation on few tensors (papers digest 2.9:
parameters and batch-norm statistics are averaged, optimizer state stays local).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where one parameter or buffer lies inside its flat tensor."""

    owner: Tensor
    start: int
    stop: int


class FlatParameters:
    """One flat tensor per (data type, device) that holds all of a model's averaged state.

    Parameters are laid out in `model.parameters()` order and followed by the floating-point
    buffers. Dense tensors of any memory format keep their strides. Do not move or cast the model
    afterwards: that would give it storage of its own again (checked by `verify`).
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots: dict[tuple[torch.dtype, torch.device], list[_Slot]] = {}
        self._buffers: list[Tensor] = []
        self.before_access: Callable[[], None] = lambda: None
        """Called before anybody gets the flat tensors: who puts updates off makes them now."""
        self.num_parameters = sum(p.numel() for p in model.parameters())
        for owner in _averaged_tensors(model):
            slots = self._slots.setdefault((owner.dtype, owner.device), [])
            start = slots[-1].stop if slots else 0
            slots.append(_Slot(owner, start, start + owner.numel()))
        if not self._slots:
            raise UsageError("The model has no parameters to train.")
        with torch.no_grad():
            for (dtype, device), slots in self._slots.items():
                flat = torch.empty(slots[-1].stop, dtype=dtype, device=device)
                for slot in slots:
                    _move_into(slot.owner, flat[slot.start : slot.stop])
                self._buffers.append(flat)

    @property
    def buffers(self) -> list[Tensor]:
        """The flat tensors, one per data type and device, in a fixed order."""
        self.before_access()
        return self._buffers

    @property
    def num_bytes(self) -> int:
        """Bytes that averaging the model once moves per copy."""
        return sum(flat.numel() * flat.element_size() for flat in self.buffers)

    def snapshot(self) -> list[Tensor]:
        """Return a copy of every flat tensor."""
        return [flat.detach().clone() for flat in self.buffers]

    def restore(self, snapshot: list[Tensor]) -> None:
        """Overwrite the model with a `snapshot` of the same layout."""
        with torch.no_grad():
            for flat, saved in zip(self.buffers, snapshot, strict=True):
                flat.copy_(saved)

    def verify(self) -> None:
        """Raise `UsageError` if the model no longer lives in the flat tensors."""
        for flat, slots in zip(self.buffers, self._slots.values(), strict=True):
            for slot in slots:
                offset = slot.start * flat.element_size()
                if slot.owner.data_ptr() != flat.data_ptr() + offset:
                    raise UsageError(
                        "The model was moved or cast after DistributedOptimizer was made;"
                        " call model.to(...) first."
                    )


def _averaged_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield what is averaged: every parameter once, then every floating-point buffer once."""
    yield from model.parameters()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            yield buffer


def _move_into(owner: Tensor, place: Tensor) -> None:
    """Give `owner` the storage of `place` (one-dimensional, same size), keeping values."""
    if _is_dense(owner):
        view = place.as_strided(owner.size(), owner.stride(), place.storage_offset())
    else:
        view = place.view(owner.size())
    view.copy_(owner)
    owner.data = view


def _is_dense(tensor: Tensor) -> bool:
    """Return whether `tensor` fills its memory exactly once, in whatever order of dimensions."""
    expected = 1
    for size, stride in sorted(
        zip(tensor.size(), tensor.stride(), strict=True), key=lambda pair: pair[1]
    ):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
