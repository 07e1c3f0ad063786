"""What the sender knows of its packets: acknowledged, lost, sent again, under way (RFC 6675).

A packet is taken for lost when `reordering` packets after it are acknowledged; 3 is the RFC's
DupThresh. A packet that turns out to have been overtaken raises the flow's `reordering`, as Linux
does it, so that a network that sprays packets costs each flow a few needless retransmissions and
not one at every turn. As in the RFC a packet that was sent again and got lost again is found out
by the timer only, and so is the loss of a flow's last packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import uint64

from shoal.compiled import inlined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.transports.transport_tables import Row


@inlined
def is_set(ring: NDArray, index: int) -> bool:
    """Return whether the bit of packet `index` is set; a ring has a power of two of words."""
    word = ring[(index >> 6) & (len(ring) - 1)]
    return (word >> uint64(index & 63)) & uint64(1) != uint64(0)


@inlined
def set_bit(ring: NDArray, index: int) -> None:
    """Set the bit of packet `index`."""
    ring[(index >> 6) & (len(ring) - 1)] |= uint64(1) << uint64(index & 63)


@inlined
def clear_bit(ring: NDArray, index: int) -> None:
    """Clear the bit of packet `index`."""
    ring[(index >> 6) & (len(ring) - 1)] &= ~(uint64(1) << uint64(index & 63))


@inlined
def under_way(flow: Row) -> int:
    """Return how many packets are thought to be in the network (the RFC's pipe)."""
    return int(flow.nxt - flow.lost_to - flow.above + flow.again_out)


@inlined
def note_ack(flow: Row, ring: NDArray, most_reordering: int, ack: int, last: int, run: int) -> int:
    """Note that all before `ack` has arrived, and `last` with `run` packets before it.

    Returns how many of them were not known to have arrived. A packet that was not sent again and
    that others have overtaken raises the flow's `reordering`, up to `most_reordering`.
    """
    if flow.again <= last < flow.highest and last >= flow.una and not is_set(ring, last):
        flow.reordering = max(flow.reordering, min(most_reordering, flow.highest - last))
    if 0 <= flow.chosen < min(ack, flow.again):  # it is not out again, and will not be
        flow.again_out += 1
        flow.chosen = -1
    count = 0
    for index in range(flow.una, ack):
        if is_set(ring, index):
            clear_bit(ring, index)
            if index >= flow.lost_to:
                flow.above -= 1
        else:
            count += 1
            if index < flow.again:
                flow.again_out -= 1
    flow.una = max(flow.una, ack)
    flow.lost_to, flow.again = max(flow.lost_to, flow.una), max(flow.again, flow.una)
    for index in range(max(flow.una, last - run), last + 1):
        if not is_set(ring, index):
            set_bit(ring, index)
            count += 1
            if index >= flow.lost_to:
                flow.above += 1
            elif index < flow.again:
                flow.again_out -= 1
    flow.highest = max(flow.highest, flow.una, last + 1)
    return count


@inlined
def find_lost(flow: Row, ring: NDArray, enough: int) -> int:
    """Take for lost what `enough` others have overtaken; return how many packets these are."""
    count = 0
    while flow.above >= enough:
        if is_set(ring, flow.lost_to):
            if flow.above == enough:
                break
            flow.above -= 1
        else:
            count += 1
        flow.lost_to += 1
    return count


@inlined
def take_for_lost(flow: Row, ring: NDArray, to: int) -> None:
    """Take for lost what is not acknowledged before packet `to`."""
    while flow.lost_to < to:
        if is_set(ring, flow.lost_to):
            flow.above -= 1
        flow.lost_to += 1


@inlined
def take_all_for_lost(flow: Row) -> None:
    """Let everything that is not acknowledged be sent again."""
    flow.lost_to, flow.again = flow.nxt, flow.una
    flow.above = flow.again_out = 0


@inlined
def take_none_for_lost(flow: Row, ring: NDArray) -> None:
    """Take nothing for lost after all, and nothing for sent again."""
    flow.lost_to = flow.again = flow.una
    flow.above = flow.again_out = 0
    flow.chosen = -1
    for index in range(flow.una, flow.highest):
        if is_set(ring, index):
            flow.above += 1


@inlined
def next_lost(flow: Row, ring: NDArray) -> int:
    """Return the packet to send again next; -1: nothing is to be sent again.

    One that was chosen, or the first that is lost and has not been sent again.
    """
    if flow.chosen >= 0:
        return int(flow.chosen)
    while flow.again < flow.lost_to and is_set(ring, flow.again):
        flow.again += 1
    return int(flow.again) if flow.again < flow.lost_to else -1


@inlined
def note_sent_again(flow: Row, sequence: int, now: int) -> None:
    """Note that a packet was sent again: as `next_lost` said."""
    if sequence < flow.lost_to:  # else it is a probe
        flow.again = max(flow.again, sequence + 1)
        flow.again_out += 1
        if sequence == flow.una:
            flow.watched, flow.watched_at = sequence, now
    if sequence == flow.chosen:
        flow.chosen = -1
