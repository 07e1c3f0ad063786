"""A model's averaged tensors cut into pieces, each of which is averaged by itself.

So one of them can be there while the others are on their way. All statistics are one piece; how
parameters are cut is `collectives.pieces`' to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.collectives import cut_into_pieces
from shoal.comm import Layers
from shoal.train.forward_order import ForwardOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from shoal.train.flat_parameters import FlatParameters, Held


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a model's flat memory, and what lies in it."""

    memory: Tensor
    held: tuple[Held, ...]
    is_statistics: bool

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors that lie in it."""
        return (tensor for each in self.held for tensor in each.tensors)


class ModelPieces:
    """The pieces of `model`, whose memory is that of `flat`: statistics first, then by place."""

    def __init__(self, model: nn.Module, flat: FlatParameters) -> None:
        pieces = [
            Piece(
                memory[group[0].elements.start : group[-1].elements.stop],
                tuple(group),
                group[0].elements.start in statistics,
            )
            for memory, held, statistics in zip(
                flat.buffers, flat.held, flat.statistics, strict=True
            )
            for group in _groups(held, statistics, memory.element_size())
        ]
        self.pieces: Final = sorted(pieces, key=lambda piece: not piece.is_statistics)
        self._order = ForwardOrder(model)

    def layers(self) -> list[Layers]:
        """Return where each layer of the model lies in each piece; statistics are of all layers.

        To be called after the first forward pass, which says in which order layers are used.
        """
        self._order.settle()
        return [self._layers_of(piece) for piece in self.pieces]

    def _layers_of(self, piece: Piece) -> Layers:
        if piece.is_statistics:
            return Layers((0,), (0,), self._order.count)
        first = piece.held[0].elements.start
        return self._order.layers_of(
            [each.tensors[0] for each in piece.held],
            [each.elements.start - first for each in piece.held],
        )


def _groups(held: list[Held], statistics: range, element_bytes: int) -> Iterator[list[Held]]:
    """Yield what goes together in a flat tensor."""
    trained = [each for each in held if each.elements.start not in statistics]
    for indices in cut_into_pieces([len(each.elements) * element_bytes for each in trained]):
        yield trained[indices.start : indices.stop]
    if len(trained) < len(held):
        yield held[len(trained) :]
