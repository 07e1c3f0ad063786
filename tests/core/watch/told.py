"""Samples of workers that never ran."""

from __future__ import annotations

from typing import Any

from shoal.watch import LinkSample, WorkerSample


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
