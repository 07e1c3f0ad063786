"""Which rank or link is slow, as far as one rank's statistics show it. Pure.

Links are judged as in a whole job (`ways`). A late rank begins every operation last, and the others
wait for its first packet; only a rank's own samples tell how long it computes (`own_times`).
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from shoal.watch.verdict import Verdict
from shoal.watch.ways import Way, conspicuous_links

if TYPE_CHECKING:
    from shoal.wire import TransportStats

STANDS_OUT: Final = 3.0
"""The multiple of the median wait for a peer from which on a peer is late."""
LEAST_WAIT: Final = 0.05
"""The share of the time below which waiting for a peer is not reported."""


def remarks(stats: TransportStats) -> tuple[Verdict, ...]:
    """Return what stands out in an interval, as this rank sees it: a late peer, and links."""
    ways = {
        (peer, stats.rank): Way(
            known=each.known_packets,
            missing=each.missing_packets,
            placed_bytes=each.placed_bytes,
            moving_s=each.moving_s,
            seconds=each.seconds,
        )
        for peer, each in stats.peers.items()
    }
    return (*_late(stats), *conspicuous_links(ways, hosts={}))


def _late(stats: TransportStats) -> list[Verdict]:
    """Return the peer that is waited for most, if it stands out."""
    waits = {rank: peer.wait_s for rank, peer in stats.peers.items()}
    if not waits:
        return []
    worst = max(waits, key=lambda rank: waits[rank])
    usual = statistics.median(waits.values())
    if waits[worst] <= max(LEAST_WAIT * stats.seconds, STANDS_OUT * usual):
        return []
    sentence = (
        f"Rank {worst} is late: rank {stats.rank} waited for it for {waits[worst]:.1f} s of"
        f" {stats.seconds:.1f} s, for the others for {usual:.1f} s."
    )
    times = round(waits[worst] / usual, 3) if usual else None
    return [Verdict(kind="slow worker", sentence=sentence, rank=worst, times=times)]
