"""What each worker gets of a step's samples, by how fast it has been.

All members compute it from what all have reported, so that they agree.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

USUAL: Final = 100
"""The share of a worker of usual speed."""
LEAST_CHANGE: Final = 0.1
"""The change of anybody's share, compared with the others', below which all keep theirs."""


def measured_shares(
    takers: Sequence[int], speeds: Mapping[int, float], before: Mapping[int, int]
) -> dict[int, int]:
    """Return the shares of `takers`, in proportion to their speeds; at least 1.

    `speeds` are samples in a second of a worker's own time; 0, or none, where that is not known:
    such a worker gets the share that it had `before`, and a new one the usual. Shares stay as they
    are as long as no worker's would change by much.
    """
    known = {rank: speeds[rank] for rank in takers if speeds.get(rank, 0.0) > 0.0}
    if not known:
        return {rank: before.get(rank, USUAL) for rank in takers}
    # Whoever has told nothing keeps its place among those who have.
    of_known = statistics.fmean(before.get(rank, USUAL) for rank in known)
    usual = statistics.fmean(known.values())
    wanted = {
        rank: of_known * known[rank] / usual if rank in known else float(before.get(rank, USUAL))
        for rank in takers
    }
    if all(
        rank in before and abs(wanted[rank] / before[rank] - 1) < LEAST_CHANGE for rank in takers
    ):
        return {rank: before[rank] for rank in takers}
    scale = USUAL * len(takers) / sum(wanted.values())
    return {rank: max(1, round(scale * share)) for rank, share in wanted.items()}
