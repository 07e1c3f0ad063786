"""The budget: how many packets all senders together may have under way to this rank.

It is set once a round, which is over when as many packets have come, or are missing, as were under
way when it began: so that what was granted since the last change is seen to act. It is changed in
proportion, so that as much queues as is aimed at: `delay_target`, and less where packets get lost,
for what repairs them waits in the same queue. Loss within the bounds in force does not count, and a
little loss shrinks nothing: sending less would not mend a bad link. If more than `tolerated_loss`
gets lost, a port is full: then the budget shrinks by what was lost, and grows more slowly until
that is forgotten. At first it doubles, while that brings more packets (slow start).

Where bounds let packets get lost, switches may drop them early to keep others' queues short: that
is no sign of a shallow port (`transport.congestion`).

Setting it in proportion to the queue follows FAST TCP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled
from shoal.transport.congestion import fill_in_bursts, find_shallow
from shoal.transport.credit import end_long_turns, under_way
from shoal.transport.losses import forget_losses
from shoal.transport.own_queue import longest_wait

if TYPE_CHECKING:
    from shoal.transport.tables import Row, State

SMALLEST_BUDGET: Final = 48.0
"""Packets, below which the budget does not shrink however long they queue; they fit a port's buffer
of 128 kB."""

FIRST_INTERVAL_US: Final = 200
"""How often, at most, what has come is looked at."""

FIRST_ARRIVALS: Final = 1_000.0
"""Packets per millisecond that are expected before anything is known."""

SHORTEST_AIM_US: Final = 200.0
"""The least queueing delay that is aimed at where packets get lost, in microseconds."""

OF_TURNS: Final = 0.75
"""The least queueing delay that is aimed at, over how long packets wait in this host, if several
send to it. A rank whose own link is full takes part in sums, where senders turn from one receiver
to the next: with a shorter queue than they take to come back, ports stand idle by turns."""

SHORT_AIM: Final = 1 / 8
"""The least queueing delay that is aimed at, over a round without queues: on a long way a queue of
that length adds little."""

FORGETTING: Final = 0.98
"""How much of packets' loss, a full port or a high rate is remembered after a round without."""

FORGOTTEN: Final = 0.1
"""What is left of such a memory when it no longer counts."""

LENGTHENING: Final = 1 / 1024
"""Share of the difference by which the shortest round grows towards a longer one: routes change."""

OVER, DOUBLING, WAITING = 0, 1, 2
"""What slow start is doing."""

FASTER: Final = 1.4
"""The factor by which packets must come faster in a round than in the last one for slow start to go
on."""

ENOUGH: Final = 4.0
"""The largest budget, over what comes at most in the shortest round, a full queue at the sender
included. More packets would wait somewhere: if not in front of this rank then at senders, in the
way of what they owe to ranks that grant less."""

DECREASE: Final = 0.5
"""Largest share of the budget that one round takes away."""

SHALLOW_BUDGET: Final = 80.0
"""Packets that may be under way to a rank where ports are shallow, unless its way takes more.

Sums among 8 to 32 hosts at 1 Gbit/s through 64 kB take 1.05 times as long as they must, at 10
Gbit/s through 128 kB 1.1 times. Budgets by each rank's own way and rate made them slower: ranks
that grant less than others are served last by everyone.
"""

SMALLEST_IN_SUMS: Final = SHALLOW_BUDGET
"""The smallest budget of a rank that sends as well, to ranks that send to it.

What is under way then waits partly in the senders' own queues, and the answers to it in this one's:
with less, its port stands idle by turns and it is served last, by all others at one time, which
loses more and keeps its budget small. Sums of 2 MB among 8 hosts at 100 Mbit/s through 32 kB took
1.12 times as long as they must with 48, and 1.04 times with 80 (in virtual time).
"""

OF_WAY: Final = 1.25
"""The largest budget where ports are shallow, over what fills the way, if that is more than
`SHALLOW_BUDGET`: so the budget can still grow."""


@compiled
def adapt_budget(state: State, now: int) -> None:
    """Once an interval: take into account what has come, and set the budget if a round is over."""
    core = state.core[0]
    if now < core.interval_end or core.interval_packets == 0:
        return
    _note_interval(core)
    if core.round_left <= 0:
        granted = under_way(state, -1)
        # with less to send than was granted, a round shows nothing of what more would do
        if 2 * min(core.round_packets, granted) >= core.budget:
            _set_budget(core)
            if core.full == 1.0:
                forget_losses(state)
        _begin_round(core, granted)
        end_long_turns(state)
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
def _begin_round(core: Row, granted: float) -> None:
    core.round_packets = core.round_left = granted
    core.round_lost = core.round_delays = 0.0
    core.round_arrived = 0
    core.round_began, core.round_least = core.interval_last, 1 << 40


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
def _wait_for_turns(core: Row) -> float:
    """Return how long packets wait in this host for the turns of several receivers; 0 if for none.

    Who only receives, or from one rank only, has none.
    """
    return longest_wait(core) if core.receiving_peers > 1 else 0.0


@compiled
def _lost_to_a_full_port(core: Row) -> float:
    """Return which share of the round's packets a full port has lost, and remember that."""
    lost = max(0.0, core.round_lost) / max(1.0, core.round_arrived + core.round_lost)
    if lost > 0 and fill_in_bursts(core) and core.forgiving < FORGOTTEN:
        find_shallow(core)
    if lost > core.tolerated_loss:
        core.full = 1.0
        return float(lost)
    core.full *= FORGETTING
    return 0.0
