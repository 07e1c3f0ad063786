"""What the switches have counted, as rows for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.switching import Count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.switching import Topology


class CableCounts(msgspec.Struct, frozen=True):
    """What has come to a port and its link since the lab is up, over all its queues."""

    cable: str
    packets: int
    bytes: int
    sent_packets: int
    sent_bytes: int
    marked: int
    dropped_early: int
    """Packets dropped by a drop profile."""
    dropped_full: int
    """Packets dropped by a limit of the port or queue, or by a shared buffer."""
    lost: int
    """Packets lost on the link, or past it, where switches knew no way on: behind a link that is
    down."""


def cable_counts(topology: Topology, counts: NDArray[np.int64]) -> list[CableCounts]:
    """Return a row per cable of counts by cable, queue, color and `Count`."""
    return [
        CableCounts(
            cable=cable.name,
            packets=row[Count.ARRIVED],
            bytes=row[Count.ARRIVED_BYTES],
            sent_packets=row[Count.SENT],
            sent_bytes=row[Count.SENT_BYTES],
            marked=row[Count.MARKED],
            dropped_early=row[Count.DROPPED_EARLY],
            dropped_full=row[Count.DROPPED_FULL] + row[Count.DROPPED_SHARED],
            lost=row[Count.LOST],
        )
        for cable, row in zip(topology.cables, counts.sum(axis=(1, 2)).tolist(), strict=True)
    ]
