"""Memory that tensors of a model live in, and are taken back to when something has moved them out.

`module.to(...)`, `tensor.data = ...`, `vector_to_parameters` and exchanges of weights for those of
a moving average give tensors storage of their own, without a word to whoever counts on the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class TensorPlaces:
    """Tensors and the pieces of memory, one-dimensional and as long, that they are to lie in."""

    def __init__(self) -> None:
        self._places: list[tuple[Tensor, Tensor, int]] = []

    def move_in(self, owner: Tensor, place: Tensor) -> None:
        """Let `owner` live in `place`, with its values and, if it is dense, its strides."""
        with torch.no_grad():
            _move(owner, place)
        if owner.numel():
            self._places.append((owner, place, owner.data_ptr()))

    @property
    def are_kept(self) -> bool:
        """Whether all tensors live where they are to."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - looking needs no values
            return all(owner.data_ptr() == address for owner, _, address in self._places)

    def take_back(self) -> None:
        """Let those that live elsewhere live in their places again, with their values.

        Raises `UsageError` for those of another type or on another device.
        """
        with torch.no_grad():
            for owner, place, address in self._places:
                if owner.data_ptr() == address:
                    continue
                if (owner.dtype, owner.device) != (place.dtype, place.device):
                    raise UsageError(
                        "The model was moved or cast after DistributedOptimizer was made;"
                        " call model.to(...) first."
                    )
                _move(owner, place)


def _move(owner: Tensor, place: Tensor) -> None:
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
