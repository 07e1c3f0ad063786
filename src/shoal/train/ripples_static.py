"""Ripples' static schedule: partial all-reduce by a fixed table, for workers of equal speed.

Luo et al., ASPLOS 2020 (Prague); docs/papers.md, 3.3. No group generator: every worker reads
its group off the table, which alternates between meeting across hosts and inside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.arguments import whole_number
from shoal.groups import make_schedule
from shoal.groups.averaging_points import AveragingPoints
from shoal.train.scheduled_averaging import AbstractScheduledAveraging

if TYPE_CHECKING:
    from shoal.groups.averaging_points import AveragingOverlap
    from shoal.groups.schedule import AbstractGroupSchedule
    from shoal.train.replica import Replica


@final
class RipplesStatic(AbstractScheduledAveraging):
    """Partial all-reduce by the static table.

    `workers_per_host` overrides what the launcher said; 0 keeps it. With `overlap="next-steps"`
    computing goes on while parameters are averaged; `average_state` averages the optimizer's state
    as well.
    """

    name = "ripples-static"

    def __init__(
        self,
        *,
        workers_per_host: int = 0,
        interval: int = 1,
        overlap: AveragingOverlap = "none",
        average_state: bool = False,
    ) -> None:
        super().__init__(AveragingPoints(interval, overlap, average_state=average_state))
        self._workers_per_host = whole_number(
            workers_per_host, "The number of workers per host (0 is what the launcher says)", low=0
        )

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the options as plain values."""
        return {"workers_per_host": self._workers_per_host, **self._points.options()}

    def make_schedule(self, replica: Replica) -> AbstractGroupSchedule:
        """Return the static table for the replica's hosts."""
        return make_schedule(
            "ripples-static",
            replica.communicator.world_size,
            workers_per_host=self._workers_per_host or replica.workers_per_host,
        )
