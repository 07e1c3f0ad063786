"""Statistics of a transport that never ran: zeros, but for what a test says."""

from __future__ import annotations

from typing import Any

from shoal.transport.tables import CLASSES
from shoal.wire.stats import LoopStats, PeerStats, Traffic, TransportStats

SECONDS = 10.0


def traffic(kind: type[Traffic], **changes: Any) -> Any:
    """Return a record of zeros, with `changes`."""
    fields = kind.__dataclass_fields__
    zeros = {name: (0,) * CLASSES if "tuple" in str(fields[name].type) else 0 for name in fields}
    return kind(**{**zeros, "seconds": SECONDS, **changes})


def seen_from(rank: int, peers: dict[int, dict[str, Any]]) -> TransportStats:
    return TransportStats(
        rank=rank,
        total=traffic(Traffic),
        peers={peer: traffic(PeerStats, **changes) for peer, changes in peers.items()},
        operations={},
        loop=LoopStats(),
        budget_packets=1.0,
        deadline_s=1.0,
        busy_s=1.0,
        under_way=0,
        oldest_s=0.0,
    )
