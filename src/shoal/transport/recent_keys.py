"""Which operations were seen lately: a memory of keys with a bounded time for each question.

A table of sets with a few places each, as processors' caches are: a key has one set, where the
oldest key makes room for the newest. Successive iterations of a stream lie in successive sets, so
that as many of them are remembered as the table has rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WAYS: Final = 8


@compiled
def first_place(peer: int, stream: int, part: int, iteration: int, sets: int, ways: int) -> int:
    """Return where the set of a key starts, in a table of `sets` sets of `ways` places."""
    mixed = int(stream) * 0x9E3779B1 + int(peer) * 0x5851F42D + int(part) * 0x27D4EB2F
    return ((mixed ^ (mixed >> 20)) + int(iteration)) % sets * ways


@compiled
def place_of(keys: NDArray[np.void], peer: int, stream: int, iteration: int) -> int:
    """Return where this key is remembered, or -1 if it is not, or has been pushed out since."""
    first = first_place(peer, stream, 0, iteration, keys.size // WAYS, WAYS)
    for place in range(first, first + WAYS):
        row = keys[place]
        if row.iteration == iteration and row.stream == stream and row.peer == peer:
            return place
    return -1


@compiled
def recalls(keys: NDArray[np.void], peer: int, stream: int, iteration: int) -> bool:
    """Return whether this key has been remembered, and not pushed out since."""
    return place_of(keys, peer, stream, iteration) >= 0


@compiled
def remember(
    keys: NDArray[np.void], peer: int, stream: int, iteration: int, agreement: int
) -> None:
    """Remember a key, and what was said with it, at the cost of the oldest of its set."""
    if recalls(keys, peer, stream, iteration):
        return
    first = first_place(peer, stream, 0, iteration, keys.size // WAYS, WAYS)
    for place in range(first + WAYS - 1, first, -1):
        older, newer = keys[place], keys[place - 1]
        older.peer, older.stream, older.iteration = newer.peer, newer.stream, newer.iteration
        older.agreement = newer.agreement
    row = keys[first]
    row.peer, row.stream, row.iteration = peer, stream, iteration
    row.agreement = agreement
