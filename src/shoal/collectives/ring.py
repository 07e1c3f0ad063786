"""Ring reduce-scatter and all-gather: partial sums travel round the group, then the means do.

Every member sends to its successor only, so no link carries more than one stream; the price is 2
(size - 1) steps. Each shard travels in pieces, which overlap addition with transfer
(docs/papers.md, 4.3).
"""

from __future__ import annotations

from shoal.collectives.plan import AwaitFill, Combine, Fetch, Fill, Phase, Plan, Send, Step, shards


def plan_ring(size: int, me: int, length: int, piece_length: int, window: int) -> Plan:
    """Return the plan of member `me` of `size`; at most `window` fetches are under way at a time.

    A turn moves one piece by one member. In hop h of the reduction a member adds what it fetched
    to its own part of shard me - h - 1 and passes it on; after the last hop it holds the mean of
    shard me + 1, which the gathering then passes on likewise.
    """
    parts = shards(length, size, piece_length)
    successor, predecessor = (me + 1) % size, (me - 1) % size
    arriving = [piece for hop in range(1, size) for piece in parts[(me - hop) % size] if piece]
    gathered = [piece for hop in range(size - 1) for piece in parts[(me - hop) % size] if piece]
    finishing = {piece.start for piece in parts[successor] if piece}
    fetches = [Fetch(piece, predecessor, turn % window) for turn, piece in enumerate(arriving)]

    steps: list[Step] = [*fetches[:window]]
    steps.extend(Fill(piece, predecessor) for piece in gathered)
    steps.extend(Send(piece, successor, Phase.REDUCE) for piece in parts[me] if piece)
    for turn, piece in enumerate(arriving):
        finish = piece.start in finishing
        steps.append(Combine(piece, ((predecessor, turn % window),), finish=finish))
        steps.append(Send(piece, successor, Phase.GATHER if finish else Phase.REDUCE))
        steps.extend(fetches[turn + window : turn + window + 1])
    known_next = len([piece for piece in parts[(me + 2) % size] if piece])
    for piece in gathered[: len(gathered) - known_next]:
        steps.extend((AwaitFill(piece), Send(piece, successor, Phase.GATHER)))
    return Plan(tuple(steps), min(window, len(arriving)), len(parts[0][0]))


def carried_contributions(size: int, me: int, length: int, piece_length: int) -> list[int]:
    """Return how many members' contributions each piece carries that `me` fetches, in order."""
    parts = shards(length, size, piece_length)
    return [hop for hop in range(1, size) for piece in parts[(me - hop) % size] if piece]
