"""A port: eight queues served by strict priority, limits, and what happens to one too many.

A packet that arrives is dropped if its queue, its port or the buffer that the ports share is full
(`admit`), or if too much is waiting for its color, unless it understands marks: then it is marked
and stays. The link takes the packet at the head of the first queue that has one. (docs/papers.md,
1.6; dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 1998.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import uint64

from shoal.compiled import inlined, lowest_bit, prefetch
from shoal.switching.drop_profile import is_too_long, note_arrival
from shoal.switching.random_bits import random_share
from shoal.switching.tables import (
    CAPABLE,
    COLORS,
    MARKED_ECN,
    ONE,
    PICOSECONDS,
    PLAIN,
    QUEUES,
    Count,
)

if TYPE_CHECKING:
    from shoal.switching.tables import Row, State

ARRIVED, ARRIVED_BYTES = int(Count.ARRIVED), int(Count.ARRIVED_BYTES)
SENT, SENT_BYTES, MARKED = int(Count.SENT), int(Count.SENT_BYTES), int(Count.MARKED)
DROPPED_EARLY, DROPPED_FULL = int(Count.DROPPED_EARLY), int(Count.DROPPED_FULL)
DROPPED_SHARED = int(Count.DROPPED_SHARED)


@inlined
def color_of(ecn: int) -> int:
    """Return the color of a packet with these ECN bits."""
    return PLAIN if ecn == 0 else CAPABLE


@inlined
def transmission_time(size: int, rate: int) -> int:
    """Return how long `size` bytes take at `rate` bits per second, in picoseconds, rounded up."""
    return (size * 8 * PICOSECONDS + rate - 1) // rate


@inlined
def arrive(state: State, number: int, packet_row: int, now: int) -> bool:
    """Put a packet into its queue of port `number`; return False if it is dropped.

    The port's link must have been served up to now. Whoever calls frees the row of a packet that is
    dropped.
    """
    if not _admit(state, number, packet_row, now):
        return False
    _append(state, number, packet_row)
    return True


@inlined
def pass_through(state: State, number: int, packet_row: int, now: int) -> bool:
    """Do what `arrive` and then `serve` do, of an idle port in which nothing waits.

    Most packets meet such a port: they need not be put into a queue to be taken from it.
    """
    if not _admit(state, number, packet_row, now):
        return False
    packet = state.packets[packet_row]
    queue = state.queues[number * QUEUES + packet.queue]
    queue.peak_bytes = max(queue.peak_bytes, packet.size)
    queue.empty_since = now
    _occupy(state, number, packet_row, now)
    return True


@inlined
def _admit(state: State, number: int, packet_row: int, now: int) -> bool:
    """Count an arrival at port `number`; return whether the packet, maybe marked now, may stay."""
    port, packet = state.ports[number], state.packets[packet_row]
    queue_row = number * QUEUES + packet.queue
    queue = state.queues[queue_row]
    color = color_of(packet.ecn)
    counts = state.counts[number, packet.queue, color]
    counts[ARRIVED] += 1
    counts[ARRIVED_BYTES] += packet.size
    waiting = note_arrival(port, queue, now)
    refusal = limit_reached(state, port, queue, packet.size)
    if refusal != 0:
        counts[refusal] += 1
        return False
    network = state.network[0]
    profile = state.profiles[queue_row * COLORS + color]
    if waiting >= profile.least:
        random = random_share(network.seed, -1, network.draws)
        network.draws += 1
        if is_too_long(profile, waiting, random):
            if color == PLAIN:
                counts[DROPPED_EARLY] += 1
                return False
            packet.ecn = MARKED_ECN
            counts[MARKED] += 1
    return True


@inlined
def limit_reached(state: State, port: Row, queue: Row, size: int) -> int:
    """Return which count a packet of `size` bytes is dropped under for want of room; 0: none."""
    if queue.bytes + size > queue.limit_bytes or queue.packets >= queue.limit_packets:
        return DROPPED_FULL
    if port.bytes + size > port.limit_bytes or port.packets >= port.limit_packets:
        return DROPPED_FULL
    if port.buffer >= 0:
        buffer = state.buffers[port.buffer]
        free = buffer.size - buffer.used
        if size > free or queue.bytes + size > share_of(free, queue.share):
            return DROPPED_SHARED
    return 0


@inlined
def share_of(free: int, share: int) -> int:
    """Return `share` (fixed point) of `free` bytes, which are fewer than 2 ** 40."""
    return (free >> 16) * (share >> 8) // (ONE >> 24) + (free & 65535) * share // ONE


@inlined
def _append(state: State, number: int, packet_row: int) -> None:
    port, packet = state.ports[number], state.packets[packet_row]
    queue = state.queues[number * QUEUES + packet.queue]
    if queue.packets == 0:
        queue.head = packet_row
        port.busy |= 1 << packet.queue
    else:
        state.packets[queue.tail].next = packet_row
    queue.tail = packet_row
    queue.bytes += packet.size
    queue.packets += 1
    queue.peak_bytes = max(queue.peak_bytes, queue.bytes)
    port.bytes += packet.size
    port.packets += 1
    if port.buffer >= 0:
        state.buffers[port.buffer].used += packet.size


@inlined
def serve(state: State, number: int, start: int) -> int:
    """Let the link of port `number` take a packet at `start`; return its row, -1 if none waits.

    The link is free again at the port's `free_at`, which must not lie behind `start` before.
    """
    port = state.ports[number]
    if port.busy == 0:
        return -1
    index = lowest_bit(uint64(port.busy))
    queue = state.queues[number * QUEUES + index]
    row = int(queue.head)
    packet = state.packets[row]
    queue.head = packet.next
    queue.bytes -= packet.size
    queue.packets -= 1
    if queue.packets == 0:
        queue.empty_since = start
        port.busy &= ~(1 << index)
    else:
        prefetch(state.packets, queue.head)
    port.bytes -= packet.size
    port.packets -= 1
    if port.buffer >= 0:
        state.buffers[port.buffer].used -= packet.size
    _occupy(state, number, row, start)
    return row


@inlined
def _occupy(state: State, number: int, packet_row: int, start: int) -> None:
    """Let the link of port `number` be busy with a packet from `start` on, and count it as sent."""
    port, packet = state.ports[number], state.packets[packet_row]
    if port.byte_time > 0:  # most rates: a division takes ten times as long
        port.free_at = start + packet.size * port.byte_time
    else:
        port.free_at = start + transmission_time(packet.size, port.rate)
    counts = state.counts[number, packet.queue, color_of(packet.ecn)]
    counts[SENT] += 1
    counts[SENT_BYTES] += packet.size
