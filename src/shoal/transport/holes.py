"""What a hole means: the segments of a contribution that were lost within the bound.

ZERO is what the papers do: the contribution counts as nothing, and the sum is too small on average
by the lost fraction. DIVIDE_BY_COUNT scales every segment of the sum by the number of contributions
due over the number that arrived, which is unbiased if losses do not depend on values. For written
(not added) messages the receiver keeps the previous value whatever the policy.
(Research digest, section 1.5, "what fills the holes".)
"""

from __future__ import annotations

from typing import Final

from numpy import float32

from shoal.compiled import F4, U2, compiled, rows_at

ZERO: Final = 0
DIVIDE_BY_COUNT: Final = 1


@compiled
def divide_by_counts(
    address: int, size: int, counts_at: int, contributions: int, per_segment: int
) -> None:
    """Scale each segment of float32 sums by `contributions` over the count of those that came."""
    total = size // 4
    segments = (total + per_segment - 1) // per_segment
    counts, sums = rows_at(counts_at, segments, U2), rows_at(address, total, F4)
    for segment in range(segments):
        if counts[segment] != contributions:
            factor = float32(contributions) / float32(counts[segment])
            for index in range(segment * per_segment, min(total, (segment + 1) * per_segment)):
                sums[index] *= factor
