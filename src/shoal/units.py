"""Units and number types shared by every room: integer nanoseconds, bytes, ranks. Imports nothing.

Quantities carry their unit in their name (`_ns`, `_bytes`, `_ratio`); these helpers convert at the
edges, where people write milliseconds and megabytes.
"""

from __future__ import annotations

from typing import TypeAlias

Rank: TypeAlias = int
"""Index of a worker in the job, 0 to world_size - 1."""

NANOSECONDS_PER_SECOND = 1_000_000_000
NANOSECONDS_PER_MILLISECOND = 1_000_000


def seconds_to_ns(seconds: float) -> int:
    """Return `seconds` as whole nanoseconds, rounded."""
    return round(seconds * NANOSECONDS_PER_SECOND)


def ms_to_ns(milliseconds: float) -> int:
    """Return `milliseconds` as whole nanoseconds, rounded."""
    return round(milliseconds * NANOSECONDS_PER_MILLISECOND)


def ns_to_seconds(duration_ns: int) -> float:
    """Return `duration_ns` in seconds."""
    return duration_ns / NANOSECONDS_PER_SECOND


def ns_to_ms(duration_ns: int) -> float:
    """Return `duration_ns` in milliseconds."""
    return duration_ns / NANOSECONDS_PER_MILLISECOND
