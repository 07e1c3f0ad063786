"""A model's averaged tensors cut into pieces, each of which is averaged, or pulled, by itself.

So one piece can be there while the others are on their way. All statistics are one piece;
`collectives.pieces` decides how parameters are cut.
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
    """A stretch of one of a model's flat tensors, and what lies in it."""

    flat: int
    """The number of the flat tensor."""
    memory: Tensor
    held: tuple[Held, ...]
    is_statistics: bool

    @property
    def elements(self) -> range:
        """The elements of the flat tensor that the piece covers."""
        return range(self.held[0].elements.start, self.held[-1].elements.stop)

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors that lie in it."""
        return (tensor for each in self.held for tensor in each.tensors)


class ModelPieces:
    """The pieces of `model`, whose memory is that of `flat`: statistics first, then by place.

    So many `servers` share every piece; 0 if it stays whole.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, servers: int = 0) -> None:
        pieces = [
            Piece(
                number,
                memory[group[0].elements.start : group[-1].elements.stop],
                tuple(group),
                group[0].elements.start in statistics,
            )
            for number, (memory, held, statistics) in enumerate(
                zip(flat.buffers, flat.held, flat.statistics, strict=True)
            )
            for group in _groups(held, statistics, memory.element_size(), servers)
        ]
        self.pieces: Final = sorted(pieces, key=lambda piece: not piece.is_statistics)
        self._order = ForwardOrder(model)
        self.layers = [self._layers_of(piece) for piece in self.pieces]
        """The layers of the model in each piece; statistics are of all layers."""

    def settle_order(self) -> None:
        """Take the order in which layers are used from the first forward pass, which is over."""
        if self._order.settle():
            self.layers = [self._layers_of(piece) for piece in self.pieces]

    def _layers_of(self, piece: Piece) -> Layers:
        if piece.is_statistics:
            return Layers((0,), (0,), self._order.count)
        first = piece.held[0].elements.start
        return self._order.layers_of(
            [each.tensors[0] for each in piece.held],
            [each.elements.start - first for each in piece.held],
        )


def _groups(
    held: list[Held], statistics: range, element_bytes: int, servers: int
) -> Iterator[list[Held]]:
    """Yield the held tensors of each piece of a flat tensor."""
    trained = [each for each in held if each.elements.start not in statistics]
    sizes = [len(each.elements) * element_bytes for each in trained]
    for indices in cut_into_pieces(sizes, servers):
        yield trained[indices.start : indices.stop]
    if len(trained) < len(held):
        yield held[len(trained) :]
