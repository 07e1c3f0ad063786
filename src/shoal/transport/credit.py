"""Receiver-granted credit: how many packets all senders together may have under way to this rank.

Each sender that owes a message gets an equal share of one budget, so a port in front of the
receiver holds at most the budget however many senders there are: incast cannot overrun it. Nobody
is granted more than it owes, so that no sender keeps credit from one operation and spends it in the
next, when all the others want to send as well. Where shares would be less than `TURN` packets,
senders take turns of so many instead: an answer to every packet would double the packets. Everyone
has a packet's credit to begin with, and asks for its first turn by using it; who has nothing more
to send gives its turn up.

The budget is set once a round, which is over when as many packets have come, or are missing, as
were under way when it began: so that what was granted since the last change is seen to act. It is
changed in proportion, so that as much queues as is aimed at: `delay_target`, and less where packets
get lost, for what repairs them waits in the same queue. Loss within the bounds in force does not
count, and a little loss shrinks nothing: sending less would not mend a bad link. If more than
`tolerated_loss` gets lost, a port is full: then the budget shrinks by what was lost, and grows more
slowly until that is forgotten. At first it doubles, while that brings more packets (slow start).
Delay is measured from when packets leave their senders' hosts to the kernel's arrival stamps, so
neither clock offsets, nor what waits at senders for its turn, nor a receiver that is slow to read
look like congestion.

Little loss may come of a full port too: one that holds less than the batches which several senders
send it at one time, and is empty again soon after. Where packets get lost behind such as had a long
queue before them, ports are taken for shallow, and the budget is one that fits any port. All ranks
that hear of it do the same: with unequal budgets, who grants less is served last by everyone. Where
bounds let packets get lost, switches may drop them early to keep others' queues short: that is no
sign of a shallow port.

Who is on this host sends through no port. Where others are not, it gets credit of its own, and what
it sends says nothing of the budget's.

The papers leave rate control minimal (research digest, section 1.8: "only to avoid collapse");
granting credit from the receiver follows the idea of NDP and Homa, setting it in proportion to the
queue that of FAST TCP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled
from shoal.transport.own_queue import longest_wait
from shoal.transport.replay import WINDOW, has_seen
from shoal.transport.tables import NEAR
from shoal.transport.wire import unwrap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.transport.tables import Row, State

SMALLEST_BUDGET: Final = 48.0
"""Packets, below which the budget does not shrink however long they queue; they fit a port's buffer
of 128 kB."""

EPOCH_US: Final = 10_000_000
"""How long a smallest delay is believed in: clocks drift, routes change."""

_NO_DELAY: Final = 1 << 60
"""Of an epoch in which there was none."""

FIRST_INTERVAL_US: Final = 200
_FEWEST_NEWS: Final = 8
"""Packets of new credit below which a sender is told only with something else."""

FIRST_ARRIVALS: Final = 1_000.0
"""Packets per millisecond that are expected before anything is known."""

LEAST_REORDERING: Final = 3.0
"""Packets that may overtake one before it counts as lost, where all have long come in order."""

MOST_REORDERING: Final = 128.0
"""The same on paths that differ, and where packets are sprayed until that is seen."""

ORDER: Final = 0.0002
"""Share of the overtaking expected that is forgotten with every packet that comes in order."""

SHORTEST_AIM_US: Final = 200.0
"""Queueing delay that is aimed at where packets get lost, at least."""

OF_TURNS: Final = 0.75
"""The same as a share of how long packets wait in this host, if several send to it. Whose own link
is full takes part in sums, where senders turn from one receiver to the next: with a shorter queue
than they take to come back, ports stand idle by turns."""

SHORT_AIM: Final = 1 / 8
"""The same as a share of a round without queues: on a long way a queue of that adds little."""

FORGETTING: Final = 0.98
"""How much of packets' loss, a full port or a high rate is remembered after a round without."""

FORGOTTEN: Final = 0.1
"""What is left of such a memory when it no longer counts."""

LENGTHENING: Final = 1 / 1024
"""Share of the difference by which the shortest round grows towards a longer one: routes change."""

OVER, DOUBLING, WAITING = 0, 1, 2
"""What slow start is doing."""

FASTER: Final = 1.4
"""As many times as many packets must come in a round as in the last, for slow start to go on."""

ENOUGH: Final = 4.0
"""As many times what at most comes in the shortest round suffices, a full queue at the sender
included. More would wait somewhere: if not in front of this rank then at senders, in the way of
what they owe to ranks that grant less."""

DECREASE: Final = 0.5
"""Largest share of the budget that one round takes away."""

SHALLOW_BUDGET: Final = 80.0
"""Packets that may be under way to a rank where ports are shallow, unless its way takes more.

Sums among 8 to 32 hosts at 1 Gbit/s through 64 kB take 1.05 times as long as they must, at 10
Gbit/s through 128 kB 1.1 times. Budgets by each rank's own way and rate made them slower: ranks
that grant less than others are served last by everyone.
"""

HEARD_US: Final = 50_000
HEARD_ROUNDS: Final = 4.0
"""For how long, and for how many rounds if that is longer, a rank believes another that finds ports
shallow, and says so with every answer as long as it does. Who has been in a sum with such a one
would otherwise grant less in the next sums, to others, and be served last there: 16 of 256 hosts in
one rack, at 1 % loss, for ten seconds, and sums across racks took 490 ms and not 310.
"""

SMALLEST_IN_SUMS: Final = SHALLOW_BUDGET
"""The smallest budget of a rank that sends as well, to ranks that send to it.

What is under way then waits partly in the senders' own queues, and the answers to it in this one's:
with less, its port stands idle by turns and it is served last, by all others at one time, which
loses more and keeps its budget small. Sums of 2 MB among 8 hosts at 100 Mbit/s through 32 kB took
1.12 times as long as they must with 48, and 1.04 times with 80 (in virtual time).
"""

OF_WAY: Final = 1.25
"""As many times what fills the way is granted there, if that is more: so it can still grow."""

HIGHEST: Final = 0.1
"""The share of packets whose queueing delay counts as high."""

HIGH_GAPS: Final = 0.3
"""Share of gaps behind a packet with a high delay from which ports are shallow. What a port drops
that bursts fill follows 0.2 to 0.5."""

MORE_HIGH_GAPS: Final = 0.2
"""By how much that has to exceed the share of packets: what gets lost by chance follows as many."""

GAPS: Final = 24.0
"""Of so many gaps that share is a running mean."""

TURN: Final = 4
"""Packets of a turn.

Two made a quarter more packets among 64 hosts, eight half as many repairs again among 144; steps
were hardly faster with either.
"""

NO_TURN, WAITS, HAS_ONE, KEEPS_ONE = 0, 1, 2, 3
"""What a sender's turn is: none, to come, under way, and under way for more than a round."""

LARGEST_CREDIT: Final = WINDOW // 2
"""Packets that one sender may have under way, whatever the budget: replays must be told apart."""


@compiled
def note_expected(core: Row, peer: Row, segments: int) -> None:
    """Note that a peer owes so many segments more, at least one."""
    if peer.expecting == 0 and peer.known != NEAR:
        core.receiving_peers += 1
    peer.expecting += segments


@compiled
def note_settled(core: Row, peer: Row, segments: int) -> None:
    """Note that a peer owes so many segments less: they are here, or no longer wanted."""
    peer.expecting -= segments
    if peer.expecting == 0 and segments > 0 and peer.known != NEAR:
        core.receiving_peers -= 1
        _end_turn(core, peer)


@compiled
def first_grant(state: State, rank: int) -> None:
    """Grant `rank`, which has just come to owe something, what the others leave of the budget.

    One packet at least; its share follows as soon as that arrives. So operations posted one after
    another do not each hand out the share that was theirs before the next was posted.
    """
    core, peers = state.core[0], state.peers
    room = core.budget
    for other in range(peers.size):
        if other != rank and peers[other].expecting > 0 and peers[other].known != NEAR:
            room -= peers[other].grant - peers[other].end
    peer = peers[rank]
    share = _share_of(core, peer)
    if peer.known != NEAR:
        share = max(1, min(int(room), share))
    peer.grant = max(peer.grant, peer.end + min(share, peer.expecting, LARGEST_CREDIT))


@compiled
def _share_of(core: Row, peer: Row) -> int:
    """Return how many packets a peer that owes something may have under way."""
    if peer.known == NEAR:
        return int(core.near_share)
    return int(core.budget / max(1, core.receiving_peers))


@compiled
def extend_grant(core: Row, peer: Row) -> bool:
    """Extend a peer's credit to its share of the budget, or to all that it owes if that is less.

    Returns whether to tell it: when enough of it is new, or it is all that it will need, and
    nothing is waiting that takes it along. Like all that is called for every packet, takes rows: a
    state takes longer to hand over.
    """
    _end_turn(core, peer)
    if peer.expecting == 0:
        return False
    share = min(max(1, _share_of(core, peer)), LARGEST_CREDIT)
    peer.grant = max(peer.grant, peer.end + min(share, peer.expecting))
    news = _worth_telling(core, peer, share) if peer.expecting > share else 1
    return bool(peer.grant - peer.grant_sent >= news and not peer.feedback_due)


@compiled
def takes_turns(core: Row, peer: Row) -> bool:
    """Return whether a sender is granted credit in turns with others, for they are so many."""
    return bool(core.budget < TURN * core.receiving_peers and peer.known != NEAR)


@compiled
def line_up(state: State, rank: int) -> None:
    """Let `rank` wait for its next turn once it has used up its credit."""
    core, peers = state.core[0], state.peers
    peer = peers[rank]
    if peer.end < peer.grant:
        return
    _end_turn(core, peer)
    if peer.expecting == 0 or peer.turn == WAITS:
        return
    peer.turn, peer.next_waiting = WAITS, -1
    if core.first_waiting < 0:
        core.first_waiting = rank
    else:
        peers[core.last_waiting].next_waiting = rank
    core.last_waiting = rank


@compiled
def leave_turn(core: Row, peer: Row) -> bool:
    """Let others have a sender's turn: it has nothing to send now. Return whether to tell it."""
    _end_turn(core, peer)
    return keep_credit(peer)


@compiled
def keep_credit(peer: Row) -> bool:
    """Grant a packet to who owes something and has no credit. Return whether that is new.

    So a sender that had nothing to send can show that it has again; and one that has waited for its
    turn for so long that it asks goes on, whoever has turns and makes nothing of them.
    """
    if peer.expecting == 0 or peer.end < peer.grant:
        return False
    peer.grant = peer.end + 1
    return True


@compiled
def next_turn(state: State) -> int:
    """Grant a turn to who has waited longest; return its rank, -1 if nobody may have one."""
    core, peers = state.core[0], state.peers
    packets = min(TURN, max(1, int(core.budget)))
    while core.first_waiting >= 0 and (core.turns + 1) * packets <= core.budget:
        rank = int(core.first_waiting)
        peer = peers[rank]
        core.first_waiting, peer.turn = peer.next_waiting, NO_TURN
        if peer.expecting > 0:
            peer.grant = max(peer.grant, peer.end + min(packets, peer.expecting))
            peer.turn = HAS_ONE
            core.turns += 1
            return rank
    return -1


@compiled
def _end_turn(core: Row, peer: Row) -> None:
    """Free the turn of a sender that has one."""
    if peer.turn >= HAS_ONE:
        peer.turn = NO_TURN
        core.turns -= 1


@compiled
def _end_long_turns(state: State) -> None:
    """Free the turns that have lasted for a whole round: what they were to bring is lost."""
    core, peers = state.core[0], state.peers
    if core.turns > 0:
        for rank in range(peers.size):
            if peers[rank].turn == KEEPS_ONE:
                _end_turn(core, peers[rank])
            elif peers[rank].turn == HAS_ONE:
                peers[rank].turn = KEEPS_ONE


@compiled
def _worth_telling(core: Row, peer: Row, share: int) -> int:
    """Return how much credit must be new for a packet of its own to the sender.

    Half of the share, or what arrives in half a millisecond if that is less: on a slow link answers
    wait behind our own data, and a sender that has to wait for them leaves the link idle.
    """
    if peer.known == NEAR:
        return max(1, share // 2)
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
        if not has_seen(seen, number) and peer.known != NEAR:
            core.interval_lost += 1
    peer.judged = max(peer.judged, known)
    peer.reordering = max(LEAST_REORDERING, peer.reordering * (1.0 - ORDER * (end - peer.end)))
    peer.end = end


@compiled
def note_overtaken(core: Row, peer: Row, number: int) -> None:
    """Note that a packet arrived after later ones, so that it is not lost after all."""
    if number < peer.judged and peer.known != NEAR:
        core.interval_lost -= 1
    peer.reordering = max(peer.reordering, min(float(peer.end - number), MOST_REORDERING))


@compiled
def note_delay(
    core: Row, peer: Row, clock: int, arrived: int, packets: int, is_exact: bool
) -> None:
    """Take the one-way delay of `packets` into account: `clock` and `arrived` in microseconds.

    Unless it `is_exact`, the clock is when the sender guessed that they would leave. What was taken
    for the shortest way because of a wrong guess would make all others look long, so guesses count
    only where there was nothing else for an epoch.
    """
    if peer.known == NEAR:
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
        core.high_delay += step * (1.0 / HIGHEST - 1.0)
    else:
        core.high_delay -= step


@compiled
def note_gap(core: Row, peer: Row) -> None:
    """Note that a packet is missing behind the latest of a peer's, and what that had to wait."""
    if peer.known == NEAR:
        return
    delay = unwrap(peer.base_delay, (peer.last_arrival - peer.last_clock) & 0xFFFFFFFF)
    is_high = 1.0 if delay - peer.base_delay > core.high_delay else 0.0
    core.high_gaps += (is_high - core.high_gaps) / GAPS
    if core.between > 0:
        core.high_between += (core.between_high / core.between - core.high_between) / GAPS
        core.between = core.between_high = 0


@compiled
def fill_in_bursts(core: Row) -> bool:
    """Return whether what gets lost follows high delays more often than other packets do.

    Of what comes at one time a tenth has a high delay. That may be most of the packets: who comes
    with many others had to wait for them.
    """
    return bool(core.high_gaps > max(HIGH_GAPS, core.high_between + MORE_HIGH_GAPS))


@compiled
def hear_shallow(core: Row, peer: Row, now: int) -> None:
    """Take ports for shallow for as long as a peer goes on saying so."""
    heard = max(float(HEARD_US), HEARD_ROUNDS * peer.smoothed_rtt)
    core.shallow_until = max(core.shallow_until, now + int(heard))


@compiled
def says_shallow(core: Row) -> bool:
    """Return whether to tell others that ports are shallow."""
    return bool(core.interval_last < core.found_until)


@compiled
def note_way(core: Row, peer: Row) -> None:
    """Note how long a round trip of our own packets took: no way without queues is longer.

    Where everyone sends to everyone, credit waits at senders for its turn, and the rounds that it
    makes look like long ways.
    """
    if peer.known != NEAR:
        core.shortest_round = min(core.shortest_round, peer.network_rtt)


@compiled
def note_forgiven(core: Row, peer: Row, packets: float) -> None:
    """Note that so many packets might as well have got lost of what came from a peer."""
    if peer.known != NEAR:
        core.interval_forgiven += packets


@compiled
def _under_way(state: State) -> float:
    """Return how many packets were granted that have neither arrived nor are missing."""
    peers, packets = state.peers, 0
    for rank in range(peers.size):
        if peers[rank].expecting > 0 and peers[rank].known != NEAR:
            packets += peers[rank].grant - peers[rank].end
    return float(packets)


@compiled
def adapt_budget(state: State, now: int) -> None:
    """Once an interval: take into account what has come, and set the budget if a round is over."""
    core = state.core[0]
    if now < core.interval_end or core.interval_packets == 0:
        return
    _note_interval(core)
    if core.round_left <= 0:
        under_way = _under_way(state)
        # with less to send than was granted, a round shows nothing of what more would do
        if 2 * min(core.round_packets, under_way) >= core.budget:
            _set_budget(core)
        _begin_round(core, under_way)
        _end_long_turns(state)
    took = max(FIRST_INTERVAL_US, core.interval_last - core.interval_first)
    core.arrivals += (core.interval_packets * 1_000 / took - core.arrivals) / 4
    core.interval_packets = core.interval_lost = 0
    core.interval_forgiven = 0.0
    core.interval_end = now + max(FIRST_INTERVAL_US, min(core.interval_delay, 10_000))
    core.interval_delay = 1 << 40


@compiled
def _note_interval(core: Row) -> None:
    """Add an interval to its round."""
    total = core.interval_packets + core.interval_lost
    core.round_left -= total
    core.round_arrived += core.interval_packets
    core.round_lost += core.interval_lost - core.interval_forgiven
    core.round_least = min(core.round_least, core.interval_delay)


@compiled
def _begin_round(core: Row, under_way: float) -> None:
    core.round_packets = core.round_left = under_way
    core.round_lost = core.round_delays = 0.0
    core.round_arrived = 0
    core.round_began, core.round_least = core.interval_last, 1 << 40


@compiled
def _wait_for_turns(core: Row) -> float:
    """Return how long packets wait in this host for the turns of several receivers; 0 if for none.

    Who only receives, or from one rank only, has none.
    """
    return longest_wait(core) if core.receiving_peers > 1 else 0.0


@compiled
def _aimed_delay(core: Row, way: float) -> float:
    """Return the queueing delay to aim at; learn from a round of `way` us without its queues."""
    lengthened = core.shortest_round + LENGTHENING * (way - core.shortest_round)
    core.shortest_round = way if core.shortest_round == 0 else min(way, lengthened)
    core.lossy = 1.0 if core.round_lost > 0 else FORGETTING * core.lossy
    core.forgiving *= FORGETTING
    turns = OF_TURNS * _wait_for_turns(core)
    shorter = max(SHORTEST_AIM_US, turns, SHORT_AIM * core.shortest_round)
    return float(core.delay_target - core.lossy * max(0.0, core.delay_target - shorter))


@compiled
def _lost_to_a_full_port(core: Row) -> float:
    """Return which share of the round's packets a full port has lost, and remember that."""
    lost = max(0.0, core.round_lost) / max(1.0, core.round_arrived + core.round_lost)
    if lost > 0 and fill_in_bursts(core) and core.forgiving < FORGOTTEN:
        core.found_until = core.shallow_until = core.interval_last + EPOCH_US
    if lost > core.tolerated_loss:
        core.full = 1.0
        return float(lost)
    core.full *= FORGETTING
    return 0.0


@compiled
def _set_budget(core: Row) -> None:
    """Grow or shrink the budget by what the round has shown.

    The smallest delay is that of the port in front of this rank, which every packet waits at. The
    mean counts bursts too: without it a round is as long as the way and the wait at senders. Of a
    burst it can be more than the round took. Half of that is left then, not nothing: who took the
    way for so short would grant too little, and be late in every sum. In slow start
    the budget doubles while that brings more packets in a round's time; it shows only a round
    later, so it waits for one before slow start is over.
    """
    took = max(1.0, float(core.interval_last - core.round_began))
    mean, least = core.round_delays / max(1, core.round_arrived), float(core.round_least)
    aim = _aimed_delay(core, max(took / 2, took - mean))
    lost = _lost_to_a_full_port(core)
    is_faster = core.round_arrived / took > FASTER * core.round_rate
    core.round_rate = core.round_arrived / took
    core.highest_rate = max(core.round_rate, FORGETTING * core.highest_rate)
    if least >= aim / 2 or lost > 0 or (core.slow_start == WAITING and not is_faster):
        core.slow_start = OVER
    change = (aim - least) / took
    if core.slow_start != OVER:
        core.slow_start = DOUBLING if is_faster else WAITING
        change = 1.0 if is_faster else 0.0
    elif lost > 0:
        change = min(change, -lost)
    elif change > 0:
        change *= 1.0 - core.full
    enough = ENOUGH * core.highest_rate * (core.shortest_round + aim + longest_wait(core))
    if core.interval_last < core.shallow_until:
        enough = min(enough, max(SHALLOW_BUDGET, OF_WAY * core.highest_rate * core.shortest_round))
    change = min(change, enough / core.budget - 1.0)
    core.budget *= 1.0 + min(max(change, -DECREASE), 1.0)
    smallest = SMALLEST_IN_SUMS if _wait_for_turns(core) > 0 else SMALLEST_BUDGET
    core.budget = min(max(core.budget, smallest), core.largest_budget)
