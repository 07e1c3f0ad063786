"""The mean of two members in one step: each sends the other all it has.

Half as many steps as scattering and gathering, for the same bytes in each direction; the price is
that both add up everything. Addition commutes, so both get the same bits.
"""

from __future__ import annotations

from shoal.collectives.plan import AwaitSend, Combine, Fetch, Phase, Plan, Send, Step
from shoal.collectives.sharding import split_evenly
from shoal.errors import UsageError


def plan_pair(size: int, me: int, length: int, piece_length: int, window: int) -> Plan:
    """Return the plan of member `me` of two; at most `window` pieces are under way at a time."""
    if size != 2:
        message = f"A pair exchange needs a group of two, not of {size}."
        raise UsageError(message)
    pieces = split_evenly(length, -(-length // piece_length))
    peer = 1 - me
    steps: list[Step] = []

    def issue(k: int) -> None:
        steps.append(Fetch(pieces[k], peer, k % window))
        steps.append(Send(pieces[k], peer, Phase.REDUCE))

    for k in range(min(window, len(pieces))):
        issue(k)
    for k, piece in enumerate(pieces):
        steps.append(AwaitSend(piece))
        steps.append(Combine(piece, ((peer, k % window),), finish=True))
        if k + window < len(pieces):
            issue(k + window)
    slots = min(window, len(pieces))
    return Plan(tuple(steps), slots, max(len(piece) for piece in pieces))
