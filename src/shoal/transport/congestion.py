"""What arrivals tell of the network: how long packets queue, what gets lost, how much ports hold.

Delay is measured from when packets leave their senders' hosts to the kernel's arrival stamps, so
neither clock offsets, nor what waits at senders for its turn, nor a receiver that is slow to read
look like congestion.

Little loss may come of a full port: one that holds less than the batches which several senders send
it at one time, and is empty again soon after. Where packets get lost behind such as had a long
queue before them, ports are taken for shallow, and the budget is one that fits any port. All ranks
that hear of it do the same: with unequal budgets, who grants less is served last by everyone.

What comes from this host went through no port, and says nothing of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled, inlined
from shoal.transport.losses import note_judged, note_lost, note_not_lost
from shoal.transport.replay import has_seen
from shoal.transport.tables import NEAR
from shoal.transport.wire import unwrap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.transport.tables import Row

EPOCH_US: Final = 10_000_000
"""How long a smallest delay is believed in: clocks drift, routes change."""

_NO_DELAY: Final = 1 << 60
"""The smallest delay of an epoch in which no delay was measured."""

LEAST_REORDERING: Final = 3.0
"""Packets that may overtake one before it counts as lost, where all have long come in order."""

MOST_REORDERING: Final = 128.0
"""Packets that may overtake one before it counts as lost, on paths that differ much."""

REORDERING_FORGOTTEN: Final = 0.0002
"""Share of the overtaking expected that is forgotten with every packet that comes in order."""

FIRST_BELIEF_US: Final = 500_000
"""How long ports are taken for shallow that seem so for the first time. By chance, other losses
follow long queues, too, and sums then take up to half as long again: that is over soon. What comes
back not long after its end is believed twice as long each time, up to `EPOCH_US`."""

HEARD_US: Final = 50_000
HEARD_ROUNDS: Final = 4.0
"""The time, in microseconds, and the number of round trips, whichever takes longer, for which a
rank believes another one that finds ports shallow. It says so itself with every answer for as long.
A rank that has been in a sum with such a one would otherwise grant less to others in the next sums,
and be served last there: 16 of 256 hosts in one rack, at 1 % loss, for ten seconds, and sums across
racks took 490 ms and not 310."""

HIGH_SHARE: Final = 0.1
"""The share of packets whose queueing delay counts as high."""

HIGH_GAPS: Final = 0.3
"""Share of gaps behind a packet with a high delay from which ports are shallow. What a port drops
that bursts fill follows 0.2 to 0.5."""

MORE_HIGH_GAPS: Final = 0.2
"""The difference by which the share of gaps must exceed the share of packets: what gets lost by
chance follows as many packets with a high delay as there are."""

GAPS_REMEMBERED: Final = 24.0
"""The number of gaps over which the share of gaps is a running mean."""


@inlined
def move_end(core: Row, peer: Row, seen: NDArray[np.uint64], end: int) -> None:
    """Note that packet numbers below `end` of a peer have arrived or are missing.

    Those that are missing are lost once as many later ones are known as have been seen to overtake
    one. The replay window is expected to have made room for the new numbers.
    """
    known = end - int(peer.reordering)
    for number in range(peer.judged, known):
        if not has_seen(seen, number) and peer.known < NEAR:
            core.interval_lost += 1
            note_lost(peer, number)
    note_judged(peer, max(0, known - peer.judged))
    peer.judged = max(peer.judged, known)
    peer.reordering = max(
        LEAST_REORDERING, peer.reordering * (1.0 - REORDERING_FORGOTTEN * (end - peer.end))
    )
    peer.end = end


@compiled
def note_overtaken(core: Row, peer: Row, number: int) -> None:
    """Note that a packet arrived after later ones, so that it is not lost after all."""
    if number < peer.judged and peer.known < NEAR:
        core.interval_lost -= 1
        note_not_lost(peer)
    peer.reordering = max(peer.reordering, min(float(peer.end - number), MOST_REORDERING))


@inlined
def note_delay(
    core: Row, peer: Row, clock: int, arrived: int, packets: int, is_exact: bool
) -> None:
    """Take the one-way delay of `packets` into account: `clock` and `arrived` in microseconds.

    Unless it `is_exact`, the clock is when the sender guessed that they would leave. What was taken
    for the shortest way because of a wrong guess would make all others look long, so guesses count
    only where there was nothing else for an epoch.
    """
    if peer.known >= NEAR:
        return
    if core.interval_packets == 0:
        core.interval_first = arrived
    core.interval_last = arrived
    delay = unwrap(peer.base_delay, (arrived - clock) & 0xFFFFFFFF)
    if arrived >= peer.epoch_end:
        if peer.epoch_end == 0:
            peer.base_delay = delay
        elif peer.epoch_delay < _NO_DELAY:
            peer.base_delay = peer.epoch_delay
        else:
            peer.base_delay = peer.epoch_estimate
        peer.epoch_delay = peer.epoch_estimate = _NO_DELAY
        peer.epoch_end = arrived + EPOCH_US
    peer.epoch_estimate = min(peer.epoch_estimate, delay)
    if is_exact:
        peer.epoch_delay = min(peer.epoch_delay, delay)
        peer.base_delay = min(peer.base_delay, delay)
    queued = max(0, delay - peer.base_delay)
    core.interval_delay = min(core.interval_delay, queued)
    core.interval_packets += packets
    core.round_delays += float(queued) * packets
    step = max(1.0, core.high_delay / 128.0)
    core.between += packets
    if queued > core.high_delay:
        core.between_high += packets
        core.high_delay += step * (1.0 / HIGH_SHARE - 1.0)
    else:
        core.high_delay -= step


@inlined
def note_gap(core: Row, peer: Row) -> None:
    """Note that a packet is missing behind the latest of a peer's, and what that had to wait."""
    if peer.known >= NEAR:
        return
    delay = unwrap(peer.base_delay, (peer.last_arrival - peer.last_clock) & 0xFFFFFFFF)
    is_high = 1.0 if delay - peer.base_delay > core.high_delay else 0.0
    core.high_gaps += (is_high - core.high_gaps) / GAPS_REMEMBERED
    if core.between > 0:
        core.high_between += (
            core.between_high / core.between - core.high_between
        ) / GAPS_REMEMBERED
        core.between = core.between_high = 0


@compiled
def fill_in_bursts(core: Row) -> bool:
    """Return whether what gets lost follows high delays more often than other packets do.

    Of what comes at one time a tenth has a high delay. That may be most of the packets: who comes
    with many others had to wait for them.
    """
    return bool(core.high_gaps > max(HIGH_GAPS, core.high_between + MORE_HIGH_GAPS))


@compiled
def find_shallow(core: Row) -> None:
    """Take ports for shallow, the longer the more often they have lately seemed so."""
    since = int(core.interval_last) - int(core.found_until)
    if since >= core.belief:
        core.belief = FIRST_BELIEF_US
    elif since >= 0:
        core.belief = min(2 * int(core.belief), EPOCH_US)
    core.found_until = core.shallow_until = core.interval_last + core.belief


@compiled
def hear_shallow(core: Row, peer: Row, now: int) -> None:
    """Take ports for shallow for as long as a peer goes on saying so."""
    heard = max(float(HEARD_US), HEARD_ROUNDS * peer.smoothed_rtt)
    core.shallow_until = max(core.shallow_until, now + int(heard))


@compiled
def says_shallow(core: Row) -> bool:
    """Return whether to tell others that ports are shallow."""
    return bool(core.interval_last < core.found_until)


@inlined
def note_way(core: Row, peer: Row) -> None:
    """Note how long a round trip of our own packets took: no way without queues is longer.

    Where everyone sends to everyone, credit waits at senders for its turn, and the rounds that it
    makes look like long ways.
    """
    if peer.known < NEAR:
        core.shortest_round = min(core.shortest_round, peer.network_rtt)


@compiled
def note_forgiven(core: Row, peer: Row, packets: float) -> None:
    """Note that `packets` that came from a peer might as well have got lost."""
    if peer.known < NEAR:
        core.interval_forgiven += packets
