"""Host memory between a model and its parameter servers: an outbox to push, an inbox to pull into.

Both are shaped like the model's flat tensors. Pulled weights lie beside the model until they are
taken in, so a pull that fails leaves the model as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from shoal.train.model_pieces import Piece
    from shoal.train.servers.shard import ModelLayout


class Outbox:
    """Gradients of the trained `parameters`, and statistics, as they are pushed."""

    def __init__(
        self,
        flats: Sequence[Tensor],
        pieces: Sequence[Piece],
        layout: ModelLayout,
        parameters: Sequence[Tensor],
    ) -> None:
        self.flats = [_cpu_twin(flat) for flat in flats]
        self._pieces, self._parameters = pieces, parameters
        self.members = [layout.trained_in(number) for number in range(len(pieces))]
        """The numbers of the trained parameters in each piece."""
        self._gradients = [
            self.flats[span.flat].as_strided(p.size(), p.stride(), span.elements.start)
            for p, span in zip(parameters, layout.trained, strict=True)
        ]

    def pack(self, numbers: Iterable[int]) -> list[int]:
        """Copy the contents of pieces to push; return their parameters that had a gradient."""
        used = []
        pieces = [(self._pieces[number], self.members[number]) for number in numbers]
        for piece, members in pieces:
            if piece.is_statistics:
                elements = piece.elements
                place = self.flats[piece.flat][elements.start : elements.stop]
                place.copy_(piece.memory, non_blocking=True)
            used += [index for index in members if self._pack_gradient(index)]
        if any(piece.memory.is_cuda for piece, _ in pieces):
            torch.cuda.current_stream().synchronize()
        return used

    def _pack_gradient(self, index: int) -> bool:
        gradient, place = self._parameters[index].grad, self._gradients[index]
        if gradient is None:
            place.zero_()
            return False
        place.copy_(gradient.to_dense() if gradient.is_sparse else gradient, non_blocking=True)
        return True


class Inbox:
    """Weights on their way into the model."""

    def __init__(self, flats: Sequence[Tensor], pieces: Sequence[Piece]) -> None:
        self.flats = [_cpu_twin(flat) for flat in flats]
        self._pieces = pieces

    def show(self) -> None:
        """Copy the model into the inbox: parts of a pull that get lost keep the model's values."""
        for number in range(len(self._pieces)):
            self._place_of(number).copy_(self._pieces[number].memory)

    def hand_over(self, numbers: Iterable[int]) -> None:
        """Copy pulled pieces into the model."""
        for number in numbers:
            # blocking: the next pull may come without a push before it
            self._pieces[number].memory.copy_(self._place_of(number))

    def _place_of(self, number: int) -> Tensor:
        piece = self._pieces[number]
        return self.flats[piece.flat][piece.elements.start : piece.elements.stop]


def _cpu_twin(flat: Tensor) -> Tensor:
    """Return zeros like `flat` on the CPU, in memory that a GPU copies to and from directly."""
    return torch.zeros(flat.numel(), dtype=flat.dtype, pin_memory=flat.is_cuda, device=HOST)
