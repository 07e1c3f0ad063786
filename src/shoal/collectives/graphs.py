"""The collectives that frameworks expect, as message graphs over one group.

Every function returns the graph of member `me` of `size`. Buffers are cut into pieces of at most
`piece_length` elements, so that what is received can be passed on while the rest is under way and
no message outgrows the transport. Messages that wait for nothing come from the source buffer, all
others from the target, into which everything is received; where a collective has one buffer, it is
both. All lengths are in elements, all roots positions in the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shoal.collectives.direct import plan_direct
from shoal.collectives.hierarchical import (
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
)
from shoal.collectives.message_graph import (
    NO_GATE,
    Gate,
    Incoming,
    MessageGraph,
    Outgoing,
    graph_of,
)
from shoal.collectives.plan import shards
from shoal.collectives.ring import carried_contributions, plan_ring

EMPTY = MessageGraph((), (), ())

ALGORITHMS: Final = ("direct", "ring", "hierarchical")
"""Ways to make a sum over all members."""

AUTO: Final = "auto"
"""The name that stands for whichever algorithm `choice.choose_sum` names."""


def lossy_hops(algorithm: str, size: int) -> int:
    """Return how often a contribution to a sum may get lost on its way, at most."""
    if algorithm == "ring":
        return max(1, size - 1)
    return 1  # if hierarchical, between hosts


def all_reduce(
    size: int,
    me: int,
    length: int,
    piece_length: int,
    *,
    algorithm: str = "direct",
    per_host: int = 1,
) -> MessageGraph:
    """Return the graph of a sum over all members, made in place.

    `per_host` members share a host, which only the hierarchical algorithm wants to know.
    """
    if size == 1 or length == 0:
        return EMPTY
    if algorithm == "hierarchical":
        return hierarchical_all_reduce(size, me, length, piece_length, per_host)
    rounds = -(-length // (size * piece_length)) + 1
    if algorithm == "ring":
        carried = carried_contributions(size, me, length, piece_length)
        return graph_of(plan_ring(size, me, length, piece_length, rounds), carried)
    return graph_of(plan_direct(size, me, length, piece_length, rounds))


def shards_summed_by(size: int, me: int, per_host: int) -> range:
    """Return the members whose shards member `me` sums up in a `reduce_scatter`, or helps to."""
    return range(me % per_host, size, per_host) if 1 < per_host < size else range(me, me + 1)


def reduce_scatter(
    size: int, me: int, shard: int, piece_length: int, *, per_host: int = 1
) -> MessageGraph:
    """Return the graph of a sum whose shard `me` ends here.

    The source holds `size` shards of `shard` elements; the target starts as this member's own of
    `shards_summed_by`.
    """
    if 1 < per_host < size:
        return hierarchical_reduce_scatter(size, me, shard, _cut(shard, piece_length), per_host)
    outgoing = [
        Outgoing(
            range(peer * shard + part.start, peer * shard + part.stop), peer, NO_GATE, lossy=True
        )
        for part in _cut(shard, piece_length)
        for peer in _others(size, me)
    ]
    gates = tuple(Gate(part, finish=True) for part in _cut(shard, piece_length))
    incoming = [
        Incoming(gate.piece, peer, adds=True, gate=number, lossy=True)
        for number, gate in enumerate(gates)
        for peer in _others(size, me, step=-1)
    ]
    return MessageGraph(tuple(outgoing), tuple(incoming), gates)


def all_to_all(
    me: int,
    sent: Sequence[int],
    received: Sequence[int],
    piece_length: int,
) -> MessageGraph:
    """Return the graph of an exchange: `sent[k]` elements go to member k, `received[k]` come.

    The parts lie one behind the other, in the source by destination and in the target by origin.
    This member's own part is not moved.
    """
    size = len(sent)
    sources, targets = _starts(sent), _starts(received)
    outgoing = [
        Outgoing(range(sources[peer] + part.start, sources[peer] + part.stop), peer, NO_GATE)
        for peer in _others(size, me)
        for part in _cut(sent[peer], piece_length)
    ]
    incoming = [
        Incoming(
            range(targets[peer] + part.start, targets[peer] + part.stop),
            peer,
            adds=False,
            gate=NO_GATE,
        )
        for peer in _others(size, me, step=-1)
        for part in _cut(received[peer], piece_length)
    ]
    return MessageGraph(tuple(outgoing), tuple(incoming), ())


def all_gather(
    me: int, lengths: Sequence[int], piece_length: int, *, per_host: int = 1
) -> MessageGraph:
    """Return the graph by which everyone gets everyone's part, of `lengths[k]` elements each.

    The parts lie one behind the other in the one buffer; this member's own is there already.
    Members send each other theirs, or, if `per_host` of several hosts share one, each host gets a
    part once.
    """
    size = len(lengths)
    parts = [
        [range(start + piece.start, start + piece.stop) for piece in _cut(length, piece_length)]
        for start, length in zip(_starts(lengths), lengths, strict=True)
    ]
    if 1 < per_host < size:
        return hierarchical_all_gather(me, parts, per_host)
    outgoing = [Outgoing(piece, peer, NO_GATE) for piece in parts[me] for peer in _others(size, me)]
    incoming = [
        Incoming(piece, peer, adds=False, gate=NO_GATE)
        for peer in _others(size, me, step=-1)
        for piece in parts[peer]
    ]
    return MessageGraph(tuple(outgoing), tuple(incoming), ())


def broadcast(size: int, me: int, length: int, root: int, piece_length: int) -> MessageGraph:
    """Return the graph by which everyone gets the root's buffer.

    The root sends each member one shard and that member passes it on: so the root's link carries
    the buffer about once, not once for every member.
    """
    if size == 1 or length == 0:
        return EMPTY
    parts = shards(length, size, piece_length)
    outgoing: list[Outgoing] = []
    incoming: list[Incoming] = []
    gates: list[Gate] = []
    for turn in range(len(parts[0])):
        for owner in _from(size, root):
            piece = parts[owner][turn]
            if not piece:
                continue
            first = owner if owner != root else None
            if me == root:
                peers = [first] if first is not None else _others(size, me)
                outgoing.extend(Outgoing(piece, peer, NO_GATE) for peer in peers)
            elif me == owner:
                incoming.append(Incoming(piece, root, adds=False, gate=len(gates)))
                onward = [peer for peer in _others(size, me) if peer != root]
                outgoing.extend(Outgoing(piece, peer, len(gates)) for peer in onward)
                gates.append(Gate(piece, finish=False))
            else:
                incoming.append(Incoming(piece, owner, adds=False, gate=NO_GATE))
    return MessageGraph(tuple(outgoing), tuple(incoming), tuple(gates))


def reduce(size: int, me: int, length: int, root: int, piece_length: int) -> MessageGraph:
    """Return the graph by which the root gets the sum, its own contribution being in its buffer.

    Every member sums one shard and hands it to the root; the other buffers end as scratch.
    """
    if size == 1 or length == 0:
        return EMPTY
    whole = all_reduce(size, me, length, piece_length)
    outgoing = tuple(
        message for message in whole.outgoing if message.after == NO_GATE or message.peer == root
    )
    incoming = tuple(message for message in whole.incoming if message.adds or me == root)
    return MessageGraph(outgoing, incoming, whole.gates)


def transfer(
    me: int, sender: int, receiver: int, length: int, piece_length: int, *, lossy: bool = False
) -> MessageGraph:
    """Return the graph of one buffer that goes from `sender` to `receiver`."""
    pieces = _cut(length, piece_length)
    if sender == receiver or me not in (sender, receiver):
        return EMPTY
    if me == sender:
        outgoing = (Outgoing(piece, receiver, NO_GATE, lossy) for piece in pieces)
        return MessageGraph(tuple(outgoing), (), ())
    incoming = (Incoming(piece, sender, adds=False, gate=NO_GATE, lossy=lossy) for piece in pieces)
    return MessageGraph((), tuple(incoming), ())


def _cut(length: int, piece_length: int) -> list[range]:
    return [
        range(start, min(start + piece_length, length)) for start in range(0, length, piece_length)
    ]


def _others(size: int, me: int, step: int = 1) -> list[int]:
    """Return the other members by distance, so that not all start with the same one."""
    return [(me + step * distance) % size for distance in range(1, size)]


def _from(size: int, first: int) -> list[int]:
    return [(first + distance) % size for distance in range(size)]


def _starts(lengths: Sequence[int]) -> list[int]:
    starts, at = [], 0
    for length in lengths:
        starts.append(at)
        at += length
    return starts
