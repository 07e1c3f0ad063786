"""A receiver: which packets it has, and what it says to each that arrives.

Every packet is answered at once (no delayed acknowledgements), also one that had arrived before.
There is always room for what the sender may send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import inlined
from shoal.sim.transports.scoreboard import clear_bit, is_set, set_bit
from shoal.switching import MARKED_ECN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.transports.transport_tables import Row

MARK: Final = 1
COPY: Final = 2
"""What an answer's `echo` is made of: its packet came with a congestion mark, had come before."""
_LONGEST_RUN: Final = 255


@inlined
def note_arrival(flow: Row, record: Row, ring: NDArray, packet: Row, segment: Row) -> None:
    """Note that a packet has arrived; its segment then says what the answer to it says."""
    index = int(segment.sequence)
    segment.echo = MARK if packet.ecn == MARKED_ECN else 0
    record.marked += segment.echo
    segment.run = 0
    if index < flow.expected or is_set(ring, index):
        record.duplicates += 1
        segment.echo |= COPY
    else:
        record.received += packet.size
        if index == flow.expected:
            flow.expected += 1
            while is_set(ring, flow.expected):
                clear_bit(ring, flow.expected)
                flow.expected += 1
        else:
            set_bit(ring, index)
    if index > flow.expected:
        run = 0
        while run < _LONGEST_RUN and is_set(ring, index - run - 1):
            run += 1
        segment.run = run
    segment.ack = flow.expected
