"""A model's averages in pieces: which tensors travel together, so that no layer waits for all.

How a model is cut depends on its sizes alone. Over Shoal's transport a mean is added up shard by
shard: another cut has other shards, and from three members on other bits. Pure sizes in, indices
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_PIECE_BYTES: Final = 256 << 10
LEAST_PART_BYTES: Final = 1 << 20
"""The least that each server keeps of a piece: it is a message each way, which costs its time."""

MOST_PIECES: Final = 8
"""A model has about as many: an eighth of it is the most that a layer waits for in vain."""


def cut_into_pieces(sizes: Sequence[int], servers: int = 0) -> list[range]:
    """Return consecutive indices of tensors of `sizes` bytes that make a piece, in order.

    A tensor is never cut. The first piece may be small: backward completes it last, and the next
    forward pass waits for it first, so nothing hides it. `servers` share each piece, if any do.
    """
    least = max(LEAST_PIECE_BYTES, LEAST_PART_BYTES * servers, sum(sizes) // MOST_PIECES)
    pieces, stop, filled = [], len(sizes), 0
    for index in reversed(range(len(sizes))):
        filled += sizes[index]
        if filled >= least or index == 0:
            pieces.append(range(index, stop))
            stop, filled = index, 0
    return pieces[::-1]
