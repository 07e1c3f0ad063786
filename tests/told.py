"""Samples of workers that never ran, and what is shown of them."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.watch import BOUNDS_S, JobNow, LinkSample, Picture, Snapshot, WorkerSample
from shoal.watch.model_distance import DistancePoint


def told(own_ms: float, blocked_ms: float = 10.0, *, steps: int = 20, **other: Any) -> WorkerSample:
    """Return a sample of so many steps, each of which took so long."""
    fields = {
        "training": "run-1",
        "strategy": "all-reduce",
        "is_lock_step": True,
        "transport": "shoal",
        "epoch": 0,
        "step": 100,
        "num_steps": steps,
        "at_s": 1000.0,
        "own_s": own_ms * steps / 1000,
        "wait_s": 0.0,
        "exchange_s": blocked_ms * steps / 1000,
    }
    return WorkerSample(**{**fields, **other})


def came_over(
    peer: int,
    *,
    lost: float = 0.0,
    packets: int = 10_000,
    mb_per_s: float = 100.0,
    round_trip_ms: float = 1.0,
    megabytes: float = 10.0,
) -> LinkSample:
    """Return what came from a peer in an interval."""
    return LinkSample(
        peer=peer,
        known_packets=packets,
        missing_packets=round(lost * packets),
        placed_bytes=round(1e6 * megabytes),
        moving_s=megabytes / mb_per_s,
        round_trip_s=round_trip_ms / 1000,
    )


def shown(size: int = 3, *, told_of: int | None = None, **job: Any) -> Snapshot:
    """Return a snapshot of workers of which rank 1 is slow, and tells of sums with losses."""
    picture = Picture(0.0)
    counts = (0,) * 5 + (19, 1) + (0,) * (len(BOUNDS_S) - 6)
    for k in range(6):
        for rank in range(size if told_of is None else told_of):
            own_ms = 80.0 if rank == 1 else 40.0
            lossy = {"effective_loss": 0.02, "hidden_s": 0.1} if rank == 1 else {}
            links = tuple(came_over(peer) for peer in range(size) if peer != rank)
            sample = told(own_ms, 90 - own_ms, step=20 * k + rank, loss=0.5, counts=counts, **lossy)
            picture.take(rank, msgspec.structs.replace(sample, links=links), float(k))
    members = tuple(range(size))
    fields = {"epoch": 4, "members": members, "hosts": members}
    fields["states"] = {rank: "lost" if rank == 2 else "alive" for rank in members}
    found = picture.snapshot(msgspec.convert({**fields, **job}, JobNow), 6.0, 1006.0)
    apart = (DistancePoint(1005.0, 100, 0.25, 8.0),) if told_of != 0 else ()
    return msgspec.structs.replace(found, distances=apart)
