"""A model's averages in pieces: which tensors travel together, so that no layer waits for all.

How a model is cut depends on its sizes alone. Over Shoal's transport a mean is added up shard by
shard: another cut has other shards, and from three members on other bits. Pure sizes in, indices
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

LEAST_PIECE_BYTES: Final = 256 << 10
LEAST_PART_BYTES: Final = 1 << 20
"""The least that each server keeps of a piece: it is a message each way, which costs its time."""

MOST_PIECES: Final = 8
"""A model has about as many: an eighth of it is the most that a layer waits for in vain."""


def cut_into_pieces(sizes: Sequence[int], servers: int = 0) -> Iterator[range]:
    """Yield consecutive indices of tensors of `sizes` bytes that make a piece, in order.

    A tensor is never cut, and the last piece may be small. `servers` share each piece, if any do.
    """
    least = max(LEAST_PIECE_BYTES, LEAST_PART_BYTES * servers, sum(sizes) // MOST_PIECES)
    start = filled = 0
    for index, size in enumerate(sizes):
        filled += size
        if filled >= least:
            yield range(start, index + 1)
            start, filled = index + 1, 0
    if start < len(sizes):
        yield range(start, len(sizes))
