"""Local SGD: several steps alone, then all workers average their parameters.

The classic remedy for slow links (Stich, ICLR 2019) and the reference for per-step strategies where
the network is far too slow for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from shoal.groups import make_schedule
from shoal.groups.all_workers import LOCAL_STEPS
from shoal.groups.averaging_points import AveragingPoints
from shoal.train.scheduled_averaging import AbstractScheduledAveraging

if TYPE_CHECKING:
    from shoal.groups.averaging_points import AveragingOverlap
    from shoal.groups.schedule import AbstractGroupSchedule
    from shoal.train.replica import Replica


@final
class LocalSGD(AbstractScheduledAveraging):
    """Average the parameters of all workers every `interval` steps.

    With `overlap="next-steps"` computing goes on meanwhile; see `train.delayed_average`.
    `average_state` averages the optimizer's state as well.
    """

    name = "local-sgd"

    def __init__(
        self,
        *,
        interval: int = LOCAL_STEPS,
        overlap: AveragingOverlap = "none",
        average_state: bool = False,
    ) -> None:
        super().__init__(AveragingPoints(interval, overlap, average_state=average_state))

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the options as plain values."""
        return self._points.options()

    def make_schedule(self, replica: Replica) -> AbstractGroupSchedule:
        """Return the schedule in which everybody meets."""
        return make_schedule("all-reduce", replica.communicator.world_size)
