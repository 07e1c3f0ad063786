"""Hierarchical collectives: what all members of a host want crosses the network to it once.

An all-reduce goes within each host first, then between hosts, then within each host again.

With L members on each of H hosts, a contribution crosses the network as part of its host's sum, so
each host sends 2 (H - 1)/H of the buffer instead of L times as much. Member l of every host is in
charge of shard l; between hosts, host h sums sub-shard h of it. Members are numbered host by host.
What may get lost gets lost between hosts: within one, nothing needs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.collectives.message_graph import NO_GATE, Gate, Incoming, MessageGraph, Outgoing
from shoal.collectives.plan import shards
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class _Place:
    """A member's place: `index` on `host`, each host having `per_host` members."""

    host: int
    index: int
    per_host: int
    hosts: int

    def colleagues(self) -> list[int]:
        """Return the other members on this host, by distance."""
        first = self.host * self.per_host
        return [first + (self.index + step) % self.per_host for step in range(1, self.per_host)]

    def turns(self) -> list[int]:
        """Return all hosts, this one last: no two hosts begin with the same one."""
        return [(self.host + step) % self.hosts for step in range(1, self.hosts + 1)]

    def counterparts(self) -> list[int]:
        """Return the members of the same index on other hosts, by distance."""
        hosts = ((self.host + step) % self.hosts for step in range(1, self.hosts))
        return [host * self.per_host + self.index for host in hosts]


def hierarchical_all_reduce(
    size: int, me: int, length: int, piece_length: int, per_host: int
) -> MessageGraph:
    """Return the graph of member `me` of a sum over `size` members, `per_host` on every host.

    Raises `UsageError` if they do not fill their hosts.
    """
    if per_host < 1 or size % per_host:
        message = (
            f"A hierarchical all-reduce needs equally many members on every host; {size} do not"
            f" make whole hosts of {per_host}."
        )
        raise UsageError(message)
    here = _Place(me // per_host, me % per_host, per_host, size // per_host)
    pieces = shards(length, size, piece_length)
    gates: list[Gate] = []
    to_reduce: list[Outgoing] = []
    between: list[Outgoing] = []
    onward: list[Outgoing] = []
    within: list[Incoming] = []
    from_hosts: list[Incoming] = []
    back: list[Incoming] = []

    def owned(host: int, index: int) -> list[range]:
        """Return the pieces that member `index` of `host` sums up."""
        return [piece for piece in pieces[index * here.hosts + host] if piece]

    for host in here.turns():
        for colleague in here.colleagues():
            for piece in owned(host, colleague % per_host):
                to_reduce.append(Outgoing(piece, colleague, NO_GATE))
                back.append(Incoming(piece, colleague, adds=False, gate=NO_GATE))
        for piece in owned(host, here.index):
            summed = len(gates) if per_host > 1 or host == here.host else NO_GATE
            if summed != NO_GATE:
                gates.append(Gate(piece, finish=host == here.host))
            within += [
                Incoming(piece, colleague, adds=True, gate=summed)
                for colleague in here.colleagues()
            ]
            if host == here.host:
                from_hosts += [
                    Incoming(
                        piece, peer, adds=True, gate=summed, lossy=True, contributions=per_host
                    )
                    for peer in here.counterparts()
                ]
                onward += [Outgoing(piece, peer, summed) for peer in here.counterparts()]
                complete = summed
            else:
                owner = host * per_host + here.index
                between.append(Outgoing(piece, owner, summed, lossy=True))
                complete = len(gates)
                gates.append(Gate(piece, finish=False))
                back.append(Incoming(piece, owner, adds=False, gate=complete))
            onward += [Outgoing(piece, colleague, complete) for colleague in here.colleagues()]
    return MessageGraph(
        (*to_reduce, *between, *onward), (*within, *from_hosts, *back), tuple(gates)
    )


def hierarchical_reduce_scatter(
    size: int, me: int, shard: int, parts: Sequence[range], per_host: int
) -> MessageGraph:
    """Return the graph of a sum whose shard `me`, of `shard` elements in `parts`, ends here.

    The source holds `size` shards. The target holds those of the members of this index, host by
    host, and starts as this member's own of each.
    """
    here = _Place(me // per_host, me % per_host, per_host, size // per_host)
    to_reduce: list[Outgoing] = []
    between: list[Outgoing] = []
    incoming: list[Incoming] = []
    gates: list[Gate] = []

    def moved(part: range, number: int) -> range:
        return range(number * shard + part.start, number * shard + part.stop)

    for part in parts:
        for host in here.turns():
            piece, mine = moved(part, host), host == here.host
            for colleague in here.colleagues():
                theirs = moved(part, host * per_host + colleague % per_host)
                to_reduce.append(Outgoing(theirs, colleague, NO_GATE))
                incoming.append(Incoming(piece, colleague, adds=True, gate=len(gates)))
            if mine:
                incoming += [
                    Incoming(
                        piece,
                        peer,
                        adds=True,
                        gate=len(gates),
                        lossy=True,
                        contributions=per_host,
                    )
                    for peer in here.counterparts()
                ]
            else:
                owner = host * per_host + here.index
                between.append(Outgoing(piece, owner, len(gates), lossy=True))
            gates.append(Gate(piece, finish=mine))
    return MessageGraph((*to_reduce, *between), tuple(incoming), tuple(gates))


def hierarchical_all_gather(
    me: int, parts: Sequence[Sequence[range]], per_host: int
) -> MessageGraph:
    """Return the graph by which everyone gets everyone's part, member k's in pieces `parts[k]`.

    A part goes to the member of the same index on every host, and from there to its colleagues.
    """
    size = len(parts)
    here = _Place(me // per_host, me % per_host, per_host, size // per_host)
    counterparts, colleagues = here.counterparts(), here.colleagues()
    outgoing = [Outgoing(piece, peer, NO_GATE) for piece in parts[me] for peer in counterparts]
    outgoing += [Outgoing(piece, peer, NO_GATE) for piece in parts[me] for peer in colleagues]
    incoming: list[Incoming] = []
    gates: list[Gate] = []
    for peer in counterparts:
        for piece in parts[peer]:
            incoming.append(Incoming(piece, peer, adds=False, gate=len(gates)))
            outgoing += [Outgoing(piece, colleague, len(gates)) for colleague in colleagues]
            gates.append(Gate(piece, finish=False))
    for colleague in colleagues:
        there = _Place(here.host, colleague % per_host, per_host, here.hosts)
        for origin in (colleague, *there.counterparts()):
            incoming += [
                Incoming(each, colleague, adds=False, gate=NO_GATE) for each in parts[origin]
            ]
    return MessageGraph(tuple(outgoing), tuple(incoming), tuple(gates))
