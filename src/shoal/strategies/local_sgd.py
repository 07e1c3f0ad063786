"""Local SGD: several steps alone, then all workers average their parameters.

The classic remedy for slow links (Stich, ICLR 2019) and the reference for per-step strategies where
the network is far too slow for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from shoal.groups import make_schedule
from shoal.strategies.periodic import HIDDEN
from shoal.strategies.scheduled import ScheduledAveraging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import AbstractGroupSchedule, Topology
    from shoal.strategies.course import Setting

LOCAL_STEPS: Final = 8
"""The local steps between two averages, unless told otherwise."""


@final
class LocalSGD(ScheduledAveraging, frozen=True, kw_only=True):
    """Average the parameters of all workers every `interval` steps.

    With `overlap="next-steps"` computing goes on during an average. `average_state` averages the
    optimizer's state as well.
    """

    word: ClassVar[str] = "local-sgd"

    interval: int = LOCAL_STEPS

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,
        *,
        thorough: bool = False,  # noqa: ARG003 - all of them are tried at once
    ) -> Iterator[Mapping[str, Any]]:
        """Yield intervals, with averages that are waited for or hidden."""
        if cluster.world_size > 1:
            for interval in (2, 4, 8, 16):
                yield {"interval": interval}
                yield {"interval": interval, **HIDDEN}

    def schedule(self, setting: Setting) -> AbstractGroupSchedule:
        """Return the schedule in which all workers meet in every round."""
        return make_schedule("all-reduce", len(setting.view))
