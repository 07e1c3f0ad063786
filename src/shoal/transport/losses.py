"""How much gets lost on the way from a peer, and so how much parity is worth sending to it.

The receiver counts what is missing for good, over the last few thousand packets, and how many come
to be missing together; it says so with all that it sends. The sender gives a message as many
parities as make it fail with the probability `FAILURES`, taking losses for bunches of that size
that happen by chance; none where nothing gets lost. It sends them only where asking would be
slower: while others of an operation's messages have still to leave for a round trip and longer,
what is missing of one is asked for, and is there before they are (ours).
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled, inlined
from shoal.transport.credit import takes_turns
from shoal.transport.own_queue import packets_per_us
from shoal.transport.parity import MOST_CODE, blocks_of, rows_of
from shoal.transport.round_trips import is_long

if TYPE_CHECKING:
    from shoal.transport.tables import Row, State

REMEMBERED: Final = 4_096
"""Packets over which a loss is remembered."""

FEWEST: Final = 512
"""Packets that a share of lost ones is a share of, at the least."""

NOTHING: Final = 1e-4
"""The share of lost packets below which none count as lost."""

_TOGETHER: Final = 4
"""Packets within which two losses belong to one bunch."""

FAILURES: Final = 1e-4
"""The probability with which a message may have too few parities: some dozens of an operation's
have them, and one that fails makes all of it wait."""

_TO_PASS_ON: Final = 0.5
"""Round trips that a message takes which is passed on."""

MOST_REPAIRED: Final = 0.06
"""The share of lost packets above which nothing is sent besides: a port is full, or a way dead."""

OF_A_ROUND: Final = 6
"""Parity is at most one in so many of the packets that leave until an answer comes, or one at all:
else asking is faster."""

_SHARE_UNIT: Final = 1 << 16
_BUNCH_UNIT: Final = 1 << 8


@inlined
def note_judged(peer: Row, packets: int) -> None:
    """Note that so many packet numbers more are known to have come or to be lost."""
    kept = max(0.0, 1.0 - packets / REMEMBERED)
    peer.known_lately = peer.known_lately * kept + packets
    peer.lost_lately *= kept
    peer.bunches *= kept


@compiled
def note_lost(peer: Row, number: int) -> None:
    """Note that a packet number of a peer's is missing for good."""
    peer.lost_lately += 1.0
    if number - peer.last_lost > _TOGETHER:
        peer.bunches += 1.0
    peer.last_lost = number


@inlined
def note_not_lost(peer: Row) -> None:
    """Note that one of those packets has come after all."""
    peer.lost_lately = max(0.0, peer.lost_lately - 1.0)
    peer.bunches = min(peer.bunches, peer.lost_lately)


@compiled
def forget_losses(state: State) -> None:
    """Forget what got lost: a full port calls for sending less, and not for parity."""
    for rank in range(state.peers.size):
        state.peers[rank].lost_lately = state.peers[rank].bunches = 0.0


@compiled
def losses(peer: Row) -> int:
    """Return what gets lost on the way from a peer, as a number that a packet has room for.

    Its low half is the share, in 65536ths; its high half the size of a bunch, in 256ths.
    """
    share = peer.lost_lately / max(float(FEWEST), peer.known_lately)
    if share < NOTHING:
        return 0
    bunch = peer.lost_lately / max(1.0, peer.bunches)
    high = min(int(max(1.0, bunch) * _BUNCH_UNIT), _SHARE_UNIT - 1)
    return high << 16 | min(int(share * _SHARE_UNIT), _SHARE_UNIT - 1)


@compiled
def parity_code(segments: int, lost: int, failures: float) -> int:
    """Return the code of how much parity a message needs to fail with at most that probability.

    `lost` is what `losses` says. None if not even the most would help half of the blocks.
    """
    if _share(lost) == 0.0 or failures >= 1.0:
        return 0
    blocks = blocks_of(segments)
    fails = 1.0
    for code in range(MOST_CODE + 1):
        packets = -(-segments // blocks) + rows_of(code)
        fails = _fails(packets, rows_of(code), _share(lost), _bunch(lost))
        if fails * blocks < failures:
            return code
    return MOST_CODE if fails < 0.5 else 0


@compiled
def _share(lost: int) -> float:
    """Return which share of packets gets lost."""
    return (lost & 0xFFFF) / _SHARE_UNIT


@compiled
def _bunch(lost: int) -> float:
    """Return how many get lost together, less what only happens to be near."""
    return max(1.0, (lost >> 16) / _BUNCH_UNIT * (1.0 - _TOGETHER * _share(lost)))


@compiled
def _fails(packets: int, rows: int, share: float, bunch: float) -> float:
    """Return with which probability more than `rows` of a block's packets get lost.

    Bunches come as in a Poisson process, and each goes on with the same probability after every
    packet (the distribution of Polya and Aeppli).
    """
    bunches, goes_on = packets * share / bunch, 1.0 - 1.0 / bunch
    before, likelihood = 0.0, exp(-bunches)
    likely = likelihood
    for number in range(1, rows + 1):
        following = (bunches * (1.0 - goes_on) + 2.0 * goes_on * (number - 1)) * likelihood
        following -= goes_on * goes_on * (number - 2) * before
        before, likelihood = likelihood, following / number
        likely += likelihood
    return 1.0 - likely


@compiled
def rounds_left(core: Row, peer: Row, operation: Row, besides: int, segments: int) -> float:
    """Return for how many round trips an operation will send after a message of `segments`.

    What it will send is all but `besides` segments, and their parity. What waits for others'
    messages counts, unless it goes to one rank only: that is a chain, in which each message may be
    what all wait for. What others wait for has to be passed on in that time, to all.
    """
    rate = core.arrivals / 1_000.0
    if core.own_rate_known:
        rate = packets_per_us(core)
    rows = rows_of(parity_code(segments, int(peer.losses), FAILURES))
    packets = (operation.queued - besides) * (1.0 + rows * blocks_of(segments) / segments)
    passes_on = operation.receivers > 1 and operation.to_come > 0
    if passes_on:
        packets += operation.to_come - operation.receivers * segments
    rounds = packets / max(1.0, rate * peer.smoothed_rtt)
    return float(rounds - (_TO_PASS_ON if passes_on else 0.0))


@compiled
def may_add(core: Row, peer: Row) -> bool:
    """Return whether packets are to be sent to a peer besides what it lacks.

    Not where many send to it in turns: what one sends more of, the others have to wait for. Nor
    where answers come soon.
    """
    share = _share(int(peer.losses))
    wanted = core.parity and is_long(peer) and not peer.gives_turns
    return bool(wanted and 0.0 < share <= MOST_REPAIRED)


@compiled
def may_receive_more(core: Row, peer: Row, row: Row) -> bool:
    """Return whether a message's sender may find that it should send more than its segments."""
    return bool(row.target == row.size and is_long(peer) and not takes_turns(core, peer))


@compiled
def most_parities(peer: Row) -> int:
    """Return how much parity may follow a message, by how many packets are under way to a peer."""
    return max(1, int(peer.next_number - peer.reported_highest) // OF_A_ROUND)


@compiled
def code_for(peer: Row, segments: int, rounds: float) -> int:
    """Return the code of how much parity a message needs that has so many round trips left.

    With one, what its parity does not bring is asked for, and sent twice.
    """
    lost = int(peer.losses)
    if rounds >= 2.0:
        return 0
    failures = FAILURES
    if rounds >= 1.0:
        failures /= _share(lost) * max(_share(lost), 1.0 - 1.0 / _bunch(lost))
    return parity_code(segments, lost, failures)
