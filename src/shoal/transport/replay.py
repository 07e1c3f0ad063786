"""Which packet numbers have been seen: a sliding window that refuses replays and duplicates.

As in IPsec and WireGuard: a ring of bits behind the highest number; what is older than the window
is refused unseen. Packet numbers here are unwrapped 64-bit counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy import uint64

from shoal.compiled import inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW: Final = 1 << 14
"""Packets; larger than any credit window, so that nothing honest falls behind it."""

WORDS: Final = WINDOW // 64


@inlined
def advance(seen: NDArray[np.uint64], end: int, new_end: int) -> None:
    """Make room for the numbers from `end` up to `new_end`, all of them unseen."""
    if new_end - end >= WINDOW:
        seen[:] = 0
        return
    for number in range(end, new_end):
        seen[(number % WINDOW) >> 6] &= ~(uint64(1) << uint64(number & 63))


@inlined
def has_seen(seen: NDArray[np.uint64], number: int) -> bool:
    """Return whether `number`, which is not below the window, has been noted in `seen`."""
    return (seen[(number % WINDOW) >> 6] >> uint64(number & 63)) & uint64(1) != uint64(0)


@inlined
def accept_run(seen: NDArray[np.uint64], end: int, number: int, count: int) -> None:
    """Note `count` numbers from `number` on, all at least `end` and all new."""
    advance(seen, end, number)
    for each in range(number, number + count):
        seen[(each % WINDOW) >> 6] |= uint64(1) << uint64(each & 63)


@inlined
def accept_number(seen: NDArray[np.uint64], end: int, number: int) -> bool:
    """Note `number` in `seen` (WORDS words); return whether it is new.

    `end` is one more than the highest number noted so far. If `number` is not below it, the caller
    moves its `end` to `number` + 1.
    """
    if number < end - WINDOW:
        return False
    if number >= end:
        advance(seen, end, number + 1)
    place, bit = (number % WINDOW) >> 6, uint64(1) << uint64(number & 63)
    if seen[place] & bit != uint64(0):
        return False
    seen[place] |= bit
    return True
