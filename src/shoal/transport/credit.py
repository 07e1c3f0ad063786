"""Receiver-granted credit: which of many senders may send how many packets to this rank.

Each sender that owes a message gets an equal share of one budget (`transport.budget`), so a port in
front of the receiver holds at most the budget however many senders there are: incast cannot overrun
it. Nobody is granted more than it owes, so that no sender keeps credit from one operation and
spends it in the next, when all the others want to send as well. Where shares would be less than
`TURN` packets, senders take turns of so many instead: an answer to every packet would double the
packets. Everyone has a packet's credit to begin with, and asks for its first turn by using it; who
has nothing more to send gives its turn up.

Who is on this host sends through no port. Where others are not, it gets credit of its own.

The papers leave rate control minimal (docs/papers.md, 1.8);
granting credit from the receiver follows the idea of NDP and Homa.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled, inlined
from shoal.transport.replay import WINDOW
from shoal.transport.tables import NEAR

if TYPE_CHECKING:
    from shoal.transport.tables import Row, State

_FEWEST_NEWS: Final = 8
"""Packets of new credit below which a sender is told only with something else."""

TURN: Final = 4
"""Packets of a turn.

Two made a quarter more packets among 64 hosts, eight half as many repairs again among 144; steps
were hardly faster with either.
"""

NO_TURN, WAITS, HAS_ONE, KEEPS_ONE = 0, 1, 2, 3
"""What a sender's turn is: none, to come, under way, and under way for more than a round."""

LARGEST_CREDIT: Final = WINDOW // 2
"""Packets that one sender may have under way with any budget: replays must be told apart."""


@compiled
def note_expected(core: Row, peer: Row, segments: int) -> None:
    """Note that a peer owes `segments` more, at least one."""
    if peer.expecting == 0 and peer.known < NEAR:
        core.receiving_peers += 1
    peer.expecting += segments


@compiled
def note_settled(core: Row, peer: Row, segments: int) -> None:
    """Note that a peer owes `segments` less: they are here, or no longer wanted."""
    peer.expecting -= segments
    if peer.expecting == 0 and segments > 0:
        peer.spare = 0
        if peer.known < NEAR:
            core.receiving_peers -= 1
            _end_turn(core, peer)


@compiled
def owe_parity(peer: Row, row: Row, parities: int) -> None:
    """Grant credit for so many packets of a message that is expected besides its segments."""
    peer.expecting += parities - row.parity_owed
    row.parity_owed = parities


@compiled
def spare_parity(peer: Row, row: Row) -> None:
    """Note that a message is done: what its sender sends besides may come, and is not waited for.

    It takes numbers from what others of the sender's messages were granted.
    """
    peer.spare += row.parity_owed
    row.parity_owed = 0


@compiled
def first_grant(state: State, rank: int) -> None:
    """Grant `rank`, which has just come to owe something, what the others leave of the budget.

    One packet at least; its share follows as soon as that arrives. So operations posted one after
    another do not each hand out the share that was theirs before the next was posted.
    """
    core, peer = state.core[0], state.peers[rank]
    share = _share_of(core, peer)
    if peer.known < NEAR:
        share = max(1, min(int(core.budget - under_way(state, rank)), share))
    peer.grant = max(peer.grant, peer.end + min(share, peer.expecting, LARGEST_CREDIT))


@compiled
def under_way(state: State, besides: int) -> float:
    """Return how many packets were granted to others than `besides` (-1: to all) and are to come.

    Those that have neither arrived nor are missing.
    """
    peers, packets = state.peers, 0
    for rank in range(peers.size):
        if rank != besides and peers[rank].expecting > 0 and peers[rank].known < NEAR:
            packets += peers[rank].grant - peers[rank].end
    return float(packets)


@compiled
def _share_of(core: Row, peer: Row) -> int:
    """Return how many packets a peer that owes something may have under way."""
    if peer.known >= NEAR:
        return int(core.near_share)
    return int(core.budget / max(1, core.receiving_peers))


@inlined
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
    peer.grant = max(peer.grant, peer.end + min(share, peer.expecting + peer.spare))
    news = _worth_telling(core, peer, share) if peer.expecting > share else 1
    return bool(peer.grant - peer.grant_sent >= news and not peer.feedback_due)


@inlined
def takes_turns(core: Row, peer: Row) -> bool:
    """Return whether a sender is granted credit in turns, because many others send too."""
    return bool(core.budget < TURN * core.receiving_peers and peer.known < NEAR)


@inlined
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


@inlined
def leave_turn(core: Row, peer: Row) -> bool:
    """Let others have a sender's turn: it has nothing to send now. Return whether to tell it."""
    _end_turn(core, peer)
    return keep_credit(peer)


@compiled
def keep_credit(peer: Row) -> bool:
    """Grant a packet to a peer that owes something and has no credit. Return whether that is new.

    So a sender that had nothing to send can show that it has again; and one that has waited for its
    turn for so long that it asks goes on, whoever has turns and makes nothing of them.
    """
    if peer.expecting == 0 or peer.end < peer.grant:
        return False
    peer.grant = peer.end + 1
    return True


@inlined
def next_turn(state: State) -> int:
    """Grant a turn to the peer that has waited longest; return its rank, -1 for no turn."""
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
def end_long_turns(state: State) -> None:
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
    if peer.known >= NEAR:
        return max(1, share // 2)
    soon = max(_FEWEST_NEWS, int(min(core.arrivals / 2, float(share))))
    return max(1, min(share // 2, soon))
