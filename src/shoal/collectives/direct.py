"""Direct reduce-scatter and all-gather: every member adds up one shard and hands it to all others.

Two steps whatever the size, and each contribution crosses the network once, as it is: so the member
that adds up may weight it, or add in a wider type. Many-to-one traffic is its weakness.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.collectives.plan import Combine, Fetch, Fill, Phase, Plan, Send, Step, shards


def plan_direct(size: int, me: int, length: int, piece_length: int, window: int) -> Plan:
    """Return the plan of member `me` of `size`; at most `window` rounds are received at a time.

    Round k moves piece k of every shard. Members take their peers by distance, so that they do not
    all send to the same one at once. Sends come first: then the network's own thread moves the data
    when the receiver asks for it, and the calling thread is free to add.
    """
    parts = shards(length, size, piece_length)
    rounds = len(parts[0])
    mine = parts[me]
    upward = [(me + distance) % size for distance in range(1, size)]
    downward = [(me - distance) % size for distance in range(1, size)]

    def sources(k: int) -> tuple[tuple[int, int], ...]:
        first = k % window * (size - 1)
        return tuple((peer, first + place) for place, peer in enumerate(downward))

    def receiving(k: int) -> Iterator[Step]:
        if k < rounds:
            if mine[k]:
                yield from (Fetch(mine[k], peer, slot) for peer, slot in sources(k))
            yield from (Fill(parts[peer][k], peer) for peer in downward if parts[peer][k])

    def combining(k: int) -> Iterator[Step]:
        if mine[k]:
            yield Combine(mine[k], sources(k), finish=True)
            yield from (Send(mine[k], peer, Phase.GATHER) for peer in upward)

    theirs = [(parts[peer][k], peer) for k in range(rounds) for peer in upward]
    steps: list[Step] = [Send(piece, peer, Phase.REDUCE) for piece, peer in theirs if piece]
    for k in range(window):
        steps.extend(receiving(k))
    for k in range(rounds):
        steps.extend(combining(k))
        steps.extend(receiving(k + window))
    return Plan(tuple(steps), min(window, rounds) * (size - 1), len(parts[0][0]))
