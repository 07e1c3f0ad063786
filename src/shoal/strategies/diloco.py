"""DiLoCo: many steps alone, and an outer optimizer that steps by what all have learnt in them.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv:2311.08105, algorithm 1. For links so slow that even averages every few steps cost too much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from msgspec.structs import force_setattr

from shoal.arguments import positive, share
from shoal.errors import UsageError
from shoal.groups import make_schedule
from shoal.strategies.periodic import HIDDEN, OuterOptions
from shoal.strategies.scheduled import ScheduledAveraging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import AbstractGroupSchedule, Topology
    from shoal.strategies.course import Setting

INNER_STEPS: Final = 32
"""The local steps between two outer steps, unless told otherwise."""


@final
class DiLoCo(ScheduledAveraging, frozen=True, kw_only=True):
    """Average all workers every `interval` steps, and step on in the direction that they took.

    The outer step is SGD's with Nesterov momentum: it starts from the parameters after the outer
    step before, and its gradient is the difference from there to the workers' mean. With an
    `outer_lr` of 1 and an `outer_momentum` of 0 this is local SGD. With `overlap="next-steps"`
    computing goes on during an average, and the outer step is added when it is known; other
    overlaps have no room for it. `average_state` averages the local optimizer's state as well.
    Raises `UsageError` for an `outer_lr` that is not positive, an `outer_momentum` that is not
    at least 0 and less than 1, and an overlap that has no room.
    """

    word: ClassVar[str] = "diloco"

    interval: int = INNER_STEPS
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "outer_lr", positive(self.outer_lr, "outer_lr"))
        force_setattr(self, "outer_momentum", share(self.outer_momentum, "outer_momentum"))
        if self.overlap not in ("none", "next-steps"):
            message = (
                f"diloco makes an outer step of the whole model: overlap={self.overlap!r}, which"
                " takes an average layer by layer, is not for it; 'next-steps' is."
            )
            raise UsageError(message)

    @property
    def outer(self) -> OuterOptions:
        """The options of the outer step."""
        return OuterOptions(self.outer_lr, self.outer_momentum)

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,
        *,
        thorough: bool = False,  # noqa: ARG003 - all of them are tried at once
    ) -> Iterator[Mapping[str, Any]]:
        """Yield intervals, with averages that are waited for or hidden."""
        if cluster.world_size > 1:
            for interval in (8, 32):
                yield {"interval": interval}
                yield {"interval": interval, **HIDDEN}

    def schedule(self, setting: Setting) -> AbstractGroupSchedule:
        """Return the schedule in which all workers meet in every round."""
        return make_schedule("all-reduce", len(setting.view))
