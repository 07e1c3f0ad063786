"""A model's parameters and averaged buffers as one contiguous tensor, without copying per step.

`FlatParameters` moves the storage of every parameter (and of every buffer that is averaged, such as
batch norm's running statistics) into one flat tensor per data type and device; the model keeps
working on views of it. Averaging a model is then one operation on few tensors (docs/papers.md, 2.9:
parameters and batch-norm statistics are averaged, optimizer state stays local). Parameters of types
that have no mean, quantized weights say, are never trained and stay where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.errors import UsageError
from shoal.train.known_buffers import KnownBuffers
from shoal.train.known_parameters import KnownParameters
from shoal.train.tensor_places import TensorPlaces
from shoal.workloads.means import has_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


class FlatParameters:
    """One flat tensor per (data type, device) that holds all of a model's averaged state.

    Parameters are laid out in `model.parameters()` order and followed by the averaged buffers;
    those that have no mean are left out.
    Dense tensors of any memory format keep their strides. What is given storage of its own later
    (`tensor.data = ...`) is taken back by `take_back`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers: list[Tensor] = []
        self._known = KnownParameters(model)
        self._statistics = KnownBuffers(model)
        self._places = TensorPlaces()
        self.before_access: Callable[[], None] = lambda: None
        """Called before anybody gets the flat tensors: who puts updates off makes them now."""
        self.num_parameters = sum(p.numel() for p in model.parameters())
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for owner in (*averaged_parameters(model), *self._statistics.tensors):
            kinds.setdefault((owner.dtype, owner.device), []).append(owner)
        if not kinds:
            raise UsageError("The model has no parameters to train.")
        for (dtype, device), owners in kinds.items():
            lengths = [owner.numel() for owner in owners]
            flat = torch.empty(sum(lengths), dtype=dtype, device=device)
            for owner, place in zip(owners, flat.split(lengths), strict=True):
                self._places.move_in(owner, place)
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

    def take_back(self) -> None:
        """Let tensors that were given storage of their own live here again, with their values.

        Raises `UsageError` for a model that has been moved or cast, or has other parameters.
        """
        self._known.check()
        self._statistics.bring_back()
        if not self._places.are_kept:
            self.before_access()
            self._places.take_back()


def averaged_parameters(model: nn.Module) -> list[Tensor]:
    """Return the parameters that are averaged: all but those of types that have no mean."""
    return [p for p in model.parameters() if has_mean(p)]


def constant_parameters(model: nn.Module) -> list[Tensor]:
    """Return the other parameters: integers, truth values, floats of 8 bits."""
    averaged = {id(parameter) for parameter in averaged_parameters(model)}
    return [p for p in model.parameters() if id(p) not in averaged]
