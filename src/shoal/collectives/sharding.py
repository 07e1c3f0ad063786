"""Shard layout of a parameter server: which rank keeps which elements, and where they lie.

Flat tensors are split evenly by element, one shard per server, so that every server's machine
carries the same share of the traffic (docs/papers.md, 4.2: keys sharded over servers, one server
per worker machine). A parameter may be cut anywhere. Pure sizes in, ranges out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.errors import UsageError


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one span that lies in a shard."""

    span: int
    """Index of the span."""

    start: int
    """First element, counted from the beginning of the shard."""

    stop: int
    """One past the last element, counted likewise."""


def split_evenly(length: int, parts: int) -> tuple[range, ...]:
    """Return `parts` consecutive ranges that cover `length` elements; sizes differ by at most one.

    With fewer elements than parts the last ranges are empty. Raises `UsageError` if `parts` is not
    positive or `length` is negative.
    """
    if parts < 1 or length < 0:
        message = f"Cannot split {length} elements into {parts} parts."
        raise UsageError(message)
    whole, rest = divmod(length, parts)
    starts = [part * whole + min(part, rest) for part in range(parts + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(starts))


def pieces_within(spans: Sequence[range], shard: range) -> tuple[Piece, ...]:
    """Return the part of each of `spans` that lies in `shard`; leave out spans outside of it."""
    pieces = []
    for index, span in enumerate(spans):
        start, stop = max(span.start, shard.start), min(span.stop, shard.stop)
        if start < stop:
            pieces.append(Piece(index, start - shard.start, stop - shard.start))
    return tuple(pieces)
