"""A model's averaged tensors cut into pieces, each of which is averaged, or pulled, by itself.

So one of them can be there while the others are on their way. How a model is cut depends on nothing
but the model and the number of servers: a mean is added up shard by shard, and other pieces are
other shards, and other bits from three members on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.comm import Layers
from shoal.train.forward_order import ForwardOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from shoal.train.flat_parameters import FlatParameters, Held

LEAST_BYTES: Final = 256 << 10
LEAST_PART_BYTES: Final = 1 << 20
"""The least that each server keeps of a piece: it is a message each way, which costs its time."""
MOST_PIECES: Final = 8
"""A model has about as many, so that an eighth of it is the most that a layer waits for in vain."""


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
        """The elements of the flat tensor that it is."""
        return range(self.held[0].elements.start, self.held[-1].elements.stop)

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors that lie in it."""
        return (tensor for each in self.held for tensor in each.tensors)


class ModelPieces:
    """The pieces of `model`, whose memory is that of `flat`: statistics first, then by place.

    `servers` of them share every piece; none if it stays whole.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, servers: int = 0) -> None:
        least = max(LEAST_BYTES, LEAST_PART_BYTES * servers, flat.num_bytes // MOST_PIECES)
        pieces = [
            Piece(
                number,
                memory[group[0].elements.start : group[-1].elements.stop],
                group,
                group[0].elements.start in statistics,
            )
            for number, (memory, held, statistics) in enumerate(
                zip(flat.buffers, flat.held, flat.statistics, strict=True)
            )
            for group in _groups(held, statistics, least // memory.element_size())
        ]
        self.pieces: Final = sorted(pieces, key=lambda piece: not piece.is_statistics)
        self._order = ForwardOrder(model)
        self.layers = [self._layers_of(piece) for piece in self.pieces]
        """The layers of the model in each piece; statistics are of all layers."""

    def settle_order(self) -> None:
        """Let the first forward pass, which is over, say in which order layers are used."""
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


def _groups(held: list[Held], statistics: range, least: int) -> Iterator[tuple[Held, ...]]:
    """Yield what goes together: of parameters at least `least` elements, and all statistics."""
    group: list[Held] = []
    for each in held:
        if each.elements.start in statistics:
            break
        group.append(each)
        if each.elements.stop - group[0].elements.start >= least:
            yield tuple(group)
            group = []
    if group:
        yield tuple(group)
    rest = [each for each in held if each.elements.start in statistics]
    if rest:
        yield tuple(rest)
