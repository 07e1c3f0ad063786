"""Which rank or link is slow, as far as one rank's statistics show it. Pure.

In lock step everyone is as slow as the slowest, so times of steps name nobody. What tells is how a
peer differs from the others: who is late begins every operation last; a slow way shows in the time
that messages of a size take; a way that loses packets in their numbers.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.wire import PeerStats, TransportStats

STANDS_OUT: Final = 3.0
"""Times the median of all peers, from which on one of them is remarkable."""
LEAST_WAIT: Final = 0.05
"""Share of the time below which waiting for a peer is not worth a word."""
LEAST_MOVING: Final = 0.1
"""Share of the time below which the coming in of messages is not worth a word."""
LEAST_LOSS: Final = 0.001

What = Literal["late", "slow", "slow way", "lossy way"]


@dataclass(frozen=True, slots=True)
class Remark:
    """What is remarkable about a peer, seen from rank `seen_by`."""

    rank: int
    what: What
    seen_by: int
    sentence: str


def remarks(stats: TransportStats) -> tuple[Remark, ...]:
    """Return what stands out in an interval: at most one peer of each kind."""
    seconds = stats.seconds
    found = (
        _who(stats, "late", lambda peer: peer.wait_s, LEAST_WAIT * seconds),
        _who(stats, "slow way", lambda peer: peer.moving_s, LEAST_MOVING * seconds),
        _who(stats, "lossy way", lambda peer: peer.lost_share, LEAST_LOSS),
    )
    return tuple(remark for remark in found if remark is not None)


def _who(
    stats: TransportStats, what: What, figure_of: Callable[[PeerStats], float], least: float
) -> Remark | None:
    figures = {rank: figure_of(peer) for rank, peer in stats.peers.items()}
    if not figures:
        return None
    worst = max(figures, key=lambda rank: figures[rank])
    usual = statistics.median(figures.values())
    if figures[worst] <= max(least, STANDS_OUT * usual):
        return None
    value, here = figures[worst], stats.rank
    sentence = {
        "late": f"Rank {worst} is late: waited for {value:.1f} s of {stats.seconds:.1f} s",
        "slow way": f"The way from rank {worst} to rank {here} is slow: its messages took"
        f" {value:.1f} s",
        "lossy way": f"The way from rank {worst} to rank {here} loses {value:.1%} of its packets",
    }[what]
    others = f"{usual:.1%}" if what == "lossy way" else f"{usual:.1f} s"
    return Remark(worst, what, here, f"{sentence}; others: {others}.")
