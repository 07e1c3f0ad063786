"""Memory that tensors of a model live in, and are taken back to when something has moved them out.

`module.to(...)`, `tensor.data = ...`, `vector_to_parameters` and swaps of weights for those of a
moving average give tensors storage of their own, without telling users of the old storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shoal.carriers import unasked
from shoal.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.train.shared_memory import Stretch


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor and the one-dimensional memory that it should live in."""

    owner: Tensor
    memory: Tensor
    address: int
    """The address at which its first element should be."""
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None
    """Size, strides and offset in `memory` if other tensors share it; None: it fills it alone."""

    def move_in(self) -> None:
        """Let the owner live here, with its values and, if it is dense, its strides."""
        view = (
            self.memory.as_strided(*self.view) if self.view else _filling(self.memory, self.owner)
        )
        view.copy_(self.owner)
        self.owner.data = view


class TensorPlaces:
    """Tensors and the pieces of memory that they should lie in.

    Each piece is a storage of its own to torch, though they may lie side by side: so a file of one
    tensor holds that tensor and no more, and no two of them are taken for tied.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []

    def move_in(self, owner: Tensor, memory: Tensor) -> None:
        """Let `owner` live in `memory`, one-dimensional and as long."""
        if owner.numel():
            self._add(_Place(owner, _as_own_storage(memory), memory.data_ptr(), None))

    def move_together(self, stretch: Stretch, memory: Tensor) -> None:
        """Let the tensors of `stretch` share `memory` as they share their own; all of its type."""
        own = _as_own_storage(memory)
        for owner in stretch.tensors:
            offset = stretch.offset_of(owner)
            address = memory.data_ptr() + offset * memory.element_size()
            view = (tuple(owner.size()), tuple(owner.stride()), offset)
            self._add(_Place(owner, own, address, view))

    def _add(self, place: _Place) -> None:
        with torch.no_grad():
            place.move_in()
        self._places.append(place)

    @property
    def are_kept(self) -> bool:
        """Whether all tensors live in their places."""
        with unasked():  # looking needs no values
            return all(place.owner.data_ptr() == place.address for place in self._places)

    def take_back(self) -> None:
        """Move tensors that live elsewhere back to their places, with their values.

        Raises `UsageError` for tensors of another type or on another device.
        """
        with torch.no_grad():
            for place in self._places:
                owner, memory = place.owner, place.memory
                if owner.data_ptr() == place.address:
                    continue
                if (owner.dtype, owner.device) != (memory.dtype, memory.device):
                    raise UsageError(
                        "The model was moved or cast after DistributedOptimizer was made;"
                        " call model.to(...) first."
                    )
                place.move_in()


def _as_own_storage(memory: Tensor) -> Tensor:
    """Return `memory` as a tensor that has a storage of its own to torch; no copy is made."""
    own: Tensor = torch.from_dlpack(memory)  # type: ignore[attr-defined]  # torch's own omission
    return own


def _filling(memory: Tensor, owner: Tensor) -> Tensor:
    """Return `memory` in the shape of `owner`, and with its strides if that is dense."""
    if _is_dense(owner):
        return memory.as_strided(owner.size(), owner.stride())
    return memory.view(owner.size())


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
