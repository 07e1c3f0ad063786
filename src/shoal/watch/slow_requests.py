"""The worker that is slow, as the group generator's count of requests shows it.

Workers of groups formed at run time do not wait for a slow one, so none sees it late; it asks for
fewer groups than the others do.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from shoal.watch.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

STANDS_OUT: Final = 1.5
"""The ratio of the others' median of requests to a worker's from which on that worker is slow."""
LEAST_REQUESTS: Final = 10.0
"""The median of the others' requests below which a difference may be chance."""


class ComparedRequests:
    """Workers' requests in one run, from the last arrival or loss until a worker has finished.

    Only requests of one and the same interval show which worker is slow: a worker that came later
    has asked less often since the run began, and so has one with fewer steps to make. A worker
    whose group had a member that had not begun yet, or was dead, waited for it and did not ask
    either. The callers say how often each worker has asked so far.
    """

    def __init__(self) -> None:
        self._compared: set[int] = set()
        self._new: set[int] = set()
        """Workers that have not asked yet since they came: they may still be given the model."""
        self._before: dict[int, int] = {}
        """How often each worker had asked when the interval began."""
        self._result: dict[int, int] | None = None
        """The counts when the first compared worker had finished."""

    def come(self, rank: int) -> None:
        """Note that a worker has come, for the first time or again."""
        self._new.add(rank)

    def ask(self, rank: int, asked: Mapping[int, int]) -> None:
        """Note that a worker asks; this request is not in `asked` yet."""
        if rank in self._new:
            self._new.discard(rank)
            self._compared.add(rank)
            self._begin(asked)

    def finish(self, rank: int, asked: Mapping[int, int]) -> None:
        """Note that a worker has made all its requests: the interval ends."""
        if self._result is None and rank in self._compared:
            self._result = self.since(asked)
        self._new.discard(rank)
        self._compared.discard(rank)

    def lose(self, rank: int, asked: Mapping[int, int]) -> None:
        """Note that a worker is gone before it had finished."""
        self._new.discard(rank)
        self._compared.discard(rank)
        self._begin(asked)

    def _begin(self, asked: Mapping[int, int]) -> None:
        self._before, self._result = dict(asked), None

    def since(self, asked: Mapping[int, int]) -> dict[int, int]:
        """Return how often each worker has asked in the interval; {} if some have not begun."""
        if self._new:
            return {}
        if self._result is not None:
            return self._result
        return {
            rank: asked.get(rank, 0) - self._before.get(rank, 0) for rank in sorted(self._compared)
        }


def few_requests(requests_by_rank: Mapping[int, int]) -> Verdict | None:
    """Return the worker that asks for far fewer groups than the others do, or None."""
    if len(requests_by_rank) < 2:
        return None
    rank = min(requests_by_rank, key=lambda each: (requests_by_rank[each], each))
    requests = requests_by_rank[rank]
    usual = statistics.median(n for each, n in requests_by_rank.items() if each != rank)
    if usual < LEAST_REQUESTS or usual < STANDS_OUT * requests:
        return None
    sentence = (
        f"Rank {rank} is slow: it asked for {requests} groups, the others for {usual:.0f}; they do"
        " not wait for it."
    )
    times = round(usual / requests, 3) if requests else None
    return Verdict(kind="slow worker", sentence=sentence, rank=rank, times=times)
