"""Whether too much is waiting for a packet of its color: WRED, and ECN as switches do it.

Below `least` bytes nothing happens, from `most` on it always does, between the two with a
probability that rises in proportion; with `least` equal to `most` it is a step, as DCTCP and the
papers have it. What is waiting is measured when the packet arrives and without it, either as it is
or as a running average (RED). (docs/papers.md, 1.6.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from numpy import uint64

from shoal.compiled import compiled, inlined
from shoal.switching.tables import ONE, PICOSECONDS

if TYPE_CHECKING:
    from shoal.switching.tables import Row

AVERAGE_BITS: Final = 16
AVERAGE_ONE: Final = 1 << AVERAGE_BITS
"""A byte, in the fixed point of averages."""

TYPICAL_BYTES: Final = 1_500
"""The size, in bytes, of the packets that an idle link could have sent meanwhile: an average decays
by their number."""


@inlined
def is_too_long(profile: Row, waiting: int, random: int) -> bool:
    """Return whether a packet that finds `waiting` bytes is to be marked or dropped.

    `random` is from 0 to 2 ** 32 - 1.
    """
    if waiting < profile.least:
        return False
    if waiting >= profile.most:
        return True
    span = profile.most - profile.least  # a product, for a division is asked of every packet
    return bool((random + 1) * span <= profile.probability * (waiting - profile.least))


@inlined
def note_arrival(port: Row, queue: Row, now: int) -> int:
    """Return how many bytes an arriving packet finds waiting, as the profiles of the queue see it.

    An average moves with every arrival, and while the queue was empty as if packets had found it
    so.
    """
    if queue.weight == 0:
        return int(queue.bytes)
    if queue.packets == 0 and queue.average > 0:
        takes = TYPICAL_BYTES * port.byte_time
        if takes == 0:
            takes = TYPICAL_BYTES * 8 * PICOSECONDS // port.rate
        idle = now - queue.empty_since
        if idle >= takes:
            queue.average = decayed(queue.average, queue.weight, idle // takes)
    queue.average += (queue.bytes * AVERAGE_ONE - queue.average) >> queue.weight
    return int(queue.average >> AVERAGE_BITS)


@compiled
def decayed(average: int, weight: int, steps: int) -> int:
    """Return `average` times (1 - 2 ** -weight) to the power of `steps`, rounded down."""
    factor = uint64(ONE) - (uint64(ONE) >> uint64(weight))
    left = uint64(ONE)
    while steps > 0 and left > uint64(0):
        if steps & 1:
            left = left * factor >> uint64(32) if left < uint64(ONE) else factor
        factor = factor * factor >> uint64(32)
        steps >>= 1
    value = uint64(average)
    low = (value & uint64(ONE - 1)) * left >> uint64(32)
    return int((value >> uint64(32)) * left + low)
