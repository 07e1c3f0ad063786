"""Receiver-granted credit: how many packets all senders together may have under way to this rank.

Each sender that owes a message gets an equal share of one budget, so a port in front of the
receiver holds at most the budget however many senders there are: incast cannot overrun it. The
budget grows while queueing delay stays under a target and shrinks in proportion when it does not.
Loss shrinks it when it is more than the bounds in force forgive and packets queue meanwhile, at
least half as long as they lately did without loss; the delay at which that happened is what the
port holds, and half of it is aimed at until it is forgotten. Loss with a shorter queue, or none, is
a bad link's, which less credit would not mend; only beyond `tolerated_loss` is it heeded all the
same. Nobody is granted more than it owes, so that no sender
keeps credit from one operation and spends it in the next, when all the others want to send as well.
Delay is measured from the senders' clocks to the kernel's arrival stamps, so neither clock offsets
nor a receiver that is slow to read look like congestion.

The papers leave rate control minimal (research digest, section 1.8: "only to avoid collapse");
granting credit from the receiver follows the idea of NDP and Homa.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled
from shoal.transport.replay import WINDOW, has_seen
from shoal.transport.wire import unwrap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.transport.tables import Row, State

SMALLEST_BUDGET: Final = 48.0
"""Packets, below which the budget does not shrink however long they queue.

Where everyone sends to everyone, what is under way waits partly in the senders' own queues, and
with too little of it ports stand idle by turns. 48 still fit a port's buffer of 128 kB.
"""

EPOCH_US: Final = 10_000_000
"""How long a smallest delay is believed in: clocks drift, routes change."""

FIRST_INTERVAL_US: Final = 200
_FEWEST_NEWS: Final = 4
"""Packets of new credit below which a sender is told only with something else."""

FIRST_ARRIVALS: Final = 1_000.0
"""Packets per millisecond that are expected before anything is known."""

LEAST_REORDERING: Final = 3.0
"""Packets that may overtake one before it counts as lost, where all have long come in order."""

MOST_REORDERING: Final = 128.0
"""The same on paths that differ, and where packets are sprayed until that is seen."""

ORDER: Final = 0.0002
"""Share of the overtaking expected that is forgotten with every packet that comes in order."""

QUEUEING_US: Final = 100
"""Delay that no packet of an interval was below, from which loss is taken for a port's that is
full. Loss without it is the link's own, and sending less would not mend it."""

FORGETTING: Final = 1024.0
"""Intervals in which it is forgotten at which delay a port was full."""

STRAY_LOSS: Final = 0.01
"""Share of packets that may be lost beyond what is forgiven without blaming a port."""

EXCESS_LOSS: Final = 2.0
"""Packets lost beyond that, in intervals that follow each other, from which a port is full."""

DECREASE: Final = 0.5
"""Largest share of the budget that one interval of high delay takes away."""


LARGEST_CREDIT: Final = WINDOW // 2
"""Packets that one sender may have under way, whatever the budget: replays must be told apart."""


@compiled
def note_expected(core: Row, peer: Row, segments: int) -> None:
    """Note that a peer owes so many segments more, at least one."""
    if peer.expecting == 0:
        core.receiving_peers += 1
    peer.expecting += segments


@compiled
def note_settled(core: Row, peer: Row, segments: int) -> None:
    """Note that a peer owes so many segments less: they are here, or no longer wanted."""
    peer.expecting -= segments
    if peer.expecting == 0 and segments > 0:
        core.receiving_peers -= 1


@compiled
def first_grant(state: State, rank: int) -> None:
    """Grant `rank`, which has just come to owe something, what the others leave of the budget.

    One packet at least; its share follows as soon as that arrives. So operations posted one after
    another do not each hand out the share that was theirs before the next was posted.
    """
    core, peers = state.core[0], state.peers
    room = core.budget
    for other in range(peers.size):
        if other != rank and peers[other].expecting > 0:
            room -= peers[other].grant - peers[other].end
    share = max(1, min(int(room), int(core.budget / max(1, core.receiving_peers))))
    peer = peers[rank]
    peer.grant = max(peer.grant, peer.end + min(share, peer.expecting, LARGEST_CREDIT))


@compiled
def extend_grant(core: Row, peer: Row) -> bool:
    """Extend a peer's credit to its share of the budget, or to all that it owes if that is less.

    Returns whether to tell it: when enough of it is new, or it is all that it will need, and
    nothing is waiting that takes it along. Like all that is called for every packet, takes rows: a
    state takes longer to hand over.
    """
    if peer.expecting == 0:
        return False
    share = max(1, int(core.budget / max(1, core.receiving_peers)))
    share = min(share, LARGEST_CREDIT)
    peer.grant = max(peer.grant, peer.end + min(share, peer.expecting))
    news = _worth_telling(core, share) if peer.expecting > share else 1
    return bool(peer.grant - peer.grant_sent >= news and not peer.feedback_due)


@compiled
def _worth_telling(core: Row, share: int) -> int:
    """Return how much credit must be new for a packet of its own to the sender.

    Half of the share, or what arrives in half a millisecond if that is less: on a slow link answers
    wait behind our own data, and a sender that has to wait for them leaves the link idle.
    """
    soon = max(_FEWEST_NEWS, int(min(core.arrivals / 2, float(share))))
    return max(1, min(share // 2, soon))


@compiled
def move_end(core: Row, peer: Row, seen: NDArray[np.uint64], end: int) -> None:
    """Note that packet numbers below `end` of a peer have arrived or are missing.

    Those that are missing are lost once as many later ones are known as have been seen to overtake
    one. The replay window is expected to have made room for the new numbers.
    """
    known = end - int(peer.reordering)
    for number in range(peer.judged, known):
        if not has_seen(seen, number):
            core.interval_lost += 1
    peer.judged = max(peer.judged, known)
    peer.reordering = max(LEAST_REORDERING, peer.reordering * (1.0 - ORDER * (end - peer.end)))
    peer.end = end


@compiled
def note_overtaken(core: Row, peer: Row, number: int) -> None:
    """Note that a packet arrived after later ones, so that it is not lost after all."""
    if number < peer.judged:
        core.interval_lost -= 1
    peer.reordering = max(peer.reordering, min(float(peer.end - number), MOST_REORDERING))


@compiled
def note_delay(core: Row, peer: Row, clock: int, arrived: int, packets: int) -> None:
    """Take the one-way delay of `packets` into account: `clock` and `arrived` in microseconds."""
    if core.interval_packets == 0:
        core.interval_first = arrived
    core.interval_last = arrived
    delay = unwrap(peer.base_delay, (arrived - clock) & 0xFFFFFFFF)
    if arrived >= peer.epoch_end:
        peer.base_delay = delay if peer.epoch_end == 0 else peer.epoch_delay
        peer.epoch_delay = delay
        peer.epoch_end = arrived + EPOCH_US
    peer.epoch_delay = min(peer.epoch_delay, delay)
    peer.base_delay = min(peer.base_delay, delay)
    core.interval_delay = min(core.interval_delay, delay - peer.base_delay)
    core.interval_packets += packets


@compiled
def _notice_overrun(core: Row) -> bool:
    """Take an interval's loss into account, a cumulative sum; return whether a port is full."""
    total = core.interval_packets + core.interval_lost
    if core.interval_lost > max(8.0, core.tolerated_loss * total):
        return True
    news = core.interval_lost - core.interval_forgiven - STRAY_LOSS * total
    delay = max(float(core.interval_delay), core.last_delay)
    queues = delay > max(float(QUEUEING_US), core.held_delay / 2)
    core.excess_loss = max(0.0, core.excess_loss + news) if queues else 0.0
    if core.excess_loss <= EXCESS_LOSS:
        return False
    core.excess_loss = 0.0
    return True


@compiled
def _under_way(state: State) -> float:
    """Return how many packets were granted that have neither arrived nor are missing."""
    peers, packets = state.peers, 0
    for rank in range(peers.size):
        if peers[rank].expecting > 0:
            packets += peers[rank].grant - peers[rank].end
    return float(packets)


@compiled
def adapt_budget(state: State, now: int) -> None:
    """Once an interval: grow or shrink the budget by the smallest queueing delay it has seen."""
    core = state.core[0]
    if now < core.interval_end or core.interval_packets == 0:
        return
    delay, target = core.interval_delay, min(core.delay_target, core.full_delay / 2)
    core.unheeding = max(0.0, core.unheeding - core.interval_packets - core.interval_lost)
    core.full_delay += (2 * core.delay_target - core.full_delay) / FORGETTING
    core.held_delay -= core.held_delay / FORGETTING
    if core.interval_lost <= 0:
        core.held_delay = max(core.held_delay, min(float(delay), 2 * core.delay_target))
    if _notice_overrun(core):
        core.full_delay = max(2.0 * QUEUEING_US, min(core.full_delay, float(delay)))
        core.slow_start = 0
        core.budget *= 1.0 - DECREASE / 2
    elif delay > target:
        core.slow_start = 0
        if core.unheeding == 0:  # else the delay is still that of what was granted before
            core.unheeding = _under_way(state)
            core.budget *= max(1.0 - DECREASE, 1.0 - DECREASE * (1.0 - target / delay))
    elif core.slow_start and delay < target / 2:
        core.budget += core.interval_packets
    else:
        core.slow_start = 0
        core.budget += max(1.0, core.interval_packets / core.budget)
    core.budget = min(max(core.budget, SMALLEST_BUDGET), core.largest_budget)
    took = max(FIRST_INTERVAL_US, core.interval_last - core.interval_first)
    core.arrivals += (core.interval_packets * 1_000 / took - core.arrivals) / 4
    core.interval_packets = core.interval_lost = 0
    core.interval_forgiven = 0.0
    core.last_delay = float(delay)
    core.interval_delay = 1 << 40
    core.interval_end = now + max(FIRST_INTERVAL_US, min(delay, 10_000))
