"""The worker that is slow, as the group generator's count of requests shows it.

Workers of groups formed at run time do not wait for a slow one, so nobody sees it late; it asks for
fewer groups than the others do.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDS_OUT: Final = 1.5
"""Times as many requests as a worker's are the others' median, if that worker is remarkable."""
LEAST_REQUESTS: Final = 10.0
"""The median of the others' requests below which a difference may be chance."""


class SlowWorker(NamedTuple):
    """The worker with the fewest requests, and the median of all others."""

    rank: int
    requests: int
    usual: float


def slow_worker(requests_by_rank: Mapping[int, int]) -> SlowWorker | None:
    """Return the worker that stands out, or None; ranks that have not asked yet count as 0."""
    if len(requests_by_rank) < 2:
        return None
    rank = min(requests_by_rank, key=lambda each: (requests_by_rank[each], each))
    requests = requests_by_rank[rank]
    usual = statistics.median(n for each, n in requests_by_rank.items() if each != rank)
    if usual < LEAST_REQUESTS or usual < STANDS_OUT * requests:
        return None
    return SlowWorker(rank, requests, usual)
