"""What a hole means: the segments of a contribution that were lost within the bound.

ZERO is what the papers do: the contribution counts as nothing, and the sum is too small on average
by the lost fraction. DIVIDE_BY_COUNT scales every segment of the sum by the number of contributions
due over the number that arrived, which is unbiased if losses do not depend on values. With
ERROR_FEEDBACK a hole counts as nothing at first, but its sender keeps what was in it and adds it to
the same tensor's next contribution, so that in the long run nothing is lost. For written
(not added) messages the receiver keeps the previous value whatever the policy.
(docs/papers.md, 1.5, "what fills the holes".)
"""

from __future__ import annotations

from typing import Final

from numpy import float32, float64

from shoal.compiled import F4, F8, U2, compiled, rows_at
from shoal.errors import UsageError
from shoal.transport.forms import FLOAT64, IN_FLOAT32

ZERO: Final = 0
DIVIDE_BY_COUNT: Final = 1
ERROR_FEEDBACK: Final = 2

POLICIES: Final = {
    "zero": ZERO,
    "divide-by-count": DIVIDE_BY_COUNT,
    "error-feedback": ERROR_FEEDBACK,
}
"""Every policy, by name."""


def check_messages(policy: int) -> None:
    """Raise `UsageError` for a policy that messages cannot have which their receiver adds up."""
    if policy == DIVIDE_BY_COUNT:
        raise UsageError(
            "Who adds up messages cannot count what came of each; choose another policy for"
            " holes than 'divide-by-count'."
        )


@compiled
def _scale(form: int, address: int, size: int, factor: float) -> None:
    if form == FLOAT64:
        wide = rows_at(address, size // 8, F8)
        for index in range(wide.size):
            wide[index] *= factor
    elif form in IN_FLOAT32:
        narrow, narrow_factor = rows_at(address, size // 4, F4), float32(factor)
        for index in range(narrow.size):
            narrow[index] *= narrow_factor


@compiled
def divide_by_counts(
    form: int, address: int, size: int, counts_at: int, contributions: int, per_segment: int
) -> None:
    """Scale each segment of a sum by `contributions` over the count that arrived.

    The sum is `size` bytes of memory at `address`, a segment `per_segment` bytes of it. Sums of
    integers stay as they are: there is no fraction of them to give.
    """
    segments = (size + per_segment - 1) // per_segment
    counts = rows_at(counts_at, segments, U2)
    for segment in range(segments):
        if counts[segment] != contributions:
            start = segment * per_segment
            length = min(per_segment, size - start)
            factor = float64(contributions) / float64(counts[segment])
            _scale(form, address + start, length, factor)
