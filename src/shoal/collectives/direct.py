"""Direct reduce-scatter and all-gather: every member adds up one shard and hands it to all others.

Two steps whatever the size, and each contribution crosses the network once, as it is: so the member
that adds up may weight it, or add in a wider type. Many-to-one traffic is its weakness.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.collectives.plan import Combine, Fetch, Fill, Phase, Plan, Send, Step, shards


def plan_direct(size: int, me: int, length: int, piece_length: int, window: int) -> Plan:
    """Return the plan of member `me` of `size`; at most `window` rounds of pieces are under way.

    Round k moves piece k of every shard. Members take their peers by distance, so that they do not
    all send to the same one at once.
    """
    parts = shards(length, size, piece_length)
    rounds = len(parts[0])
    upward = [(me + distance) % size for distance in range(1, size)]
    downward = [(me - distance) % size for distance in range(1, size)]

    def sources(k: int) -> tuple[tuple[int, int], ...]:
        first = k % window * (size - 1)
        return tuple((peer, first + place) for place, peer in enumerate(downward))

    def scatter(k: int) -> Iterator[Step]:
        if parts[me][k]:
            yield from (Fetch(parts[me][k], peer, slot) for peer, slot in sources(k))
        yield from (Fill(parts[peer][k], peer) for peer in downward if parts[peer][k])
        yield from (Send(parts[peer][k], peer, Phase.REDUCE) for peer in upward if parts[peer][k])

    def gather(k: int) -> Iterator[Step]:
        if parts[me][k]:
            yield Combine(parts[me][k], sources(k), finish=True)
            yield from (Send(parts[me][k], peer, Phase.GATHER) for peer in upward)

    steps: list[Step] = []
    for k in range(min(window, rounds)):
        steps.extend(scatter(k))
    for k in range(rounds):
        steps.extend(gather(k))
        if k + window < rounds:
            steps.extend(scatter(k + window))
    return Plan(tuple(steps), min(window, rounds) * (size - 1), len(parts[0][0]))
