"""What became of packets: as the transports at both ends count them, and as the switches do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from shoal.switching import COLORS, QUEUES, Count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shoal.wire import TransportStats


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker's transport, or all workers' together, has sent and received."""

    sent: int
    """Data packets."""
    again: int
    """Data packets that had been sent before."""
    important: int
    """Data packets that were tagged important."""
    by_class: list[int]
    """Data packets of each layer class."""
    received: int
    received_important: int
    received_by_class: list[int]
    due_bytes: int
    """Bytes of others' contributions to sums with a loss bound."""
    missing_bytes: int
    """Bytes of those contributions that were not added."""
    probes: int
    """Questions asked because nothing was heard of a message."""


def sent_of(stats: TransportStats) -> Sent:
    """Return what of `stats` a trial keeps."""
    total = stats.total
    return Sent(
        sent=total.sent_packets,
        again=total.sent_again_packets,
        important=total.important_sent_packets,
        by_class=list(total.sent_packets_by_class),
        received=total.received_packets,
        received_important=total.important_received_packets,
        received_by_class=list(total.received_packets_by_class),
        due_bytes=sum(total.sum_due_bytes),
        missing_bytes=sum(total.sum_missing_bytes),
        probes=total.probes,
    )


def together(parts: Sequence[Sent]) -> Sent | None:
    """Return the sum of all workers' figures, None if there are none."""
    if not parts:
        return None
    added: dict[str, Any] = {}
    for name in Sent.__struct_fields__:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], list):
            added[name] = [sum(column) for column in zip(*values, strict=True)]
        else:
            added[name] = sum(values)
    return Sent(**added)


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue of some ports has counted of packets of one color."""

    queue: int
    is_capable: bool
    """Whether the packets understand marks: those that are important, in Shoal's tags."""
    arrived: int
    sent_bytes: int
    marked: int
    dropped_early: int
    dropped_full: int

    @property
    def dropped(self) -> int:
        """The packets dropped, for any reason."""
        return self.dropped_early + self.dropped_full


def passed(counts: NDArray[np.int64], ports: Sequence[int]) -> list[Passed]:
    """Return what `ports` together have counted: a row for each queue and color that was used."""
    added = counts[list(ports)].sum(axis=0)
    return [
        Passed(
            queue=queue,
            is_capable=bool(color),
            arrived=int(row[Count.ARRIVED]),
            sent_bytes=int(row[Count.SENT_BYTES]),
            marked=int(row[Count.MARKED]),
            dropped_early=int(row[Count.DROPPED_EARLY]),
            dropped_full=int(row[Count.DROPPED_FULL] + row[Count.DROPPED_SHARED]),
        )
        for queue in range(QUEUES)
        for color in range(COLORS)
        if (row := added[queue, color])[Count.ARRIVED] > 0
    ]
