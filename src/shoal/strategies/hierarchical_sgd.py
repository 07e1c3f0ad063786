"""Hierarchical local SGD: hosts average often, all workers now and then.

Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020 (hierarchical
local SGD); Castiglia, Das and Patterson, "Multi-Level Local SGD", ICLR 2021. For hosts with several
workers, behind links that are far slower than those within a host.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, final

from msgspec.structs import force_setattr

from shoal.arguments import whole_number
from shoal.groups import Group, RepeatedRounds
from shoal.strategies.periodic import HIDDEN
from shoal.strategies.scheduled import ScheduledAveraging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import AbstractGroupSchedule, Topology
    from shoal.strategies.course import Setting


@final
class HierarchicalSGD(ScheduledAveraging, frozen=True, kw_only=True):
    """Average within hosts every `interval` steps; every `global_every`-th time among all workers.

    With `overlap="next-steps"` computing goes on during an average. `average_state` averages the
    optimizer's state as well.
    """

    word: ClassVar[str] = "hierarchical-sgd"

    global_every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        what = "How many averages there are for one among all workers"
        force_setattr(self, "global_every", whole_number(self.global_every, what, low=1))

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,
        *,
        thorough: bool = False,  # noqa: ARG003 - all of them are tried at once
    ) -> Iterator[Mapping[str, Any]]:
        """Yield numbers of averages per one among all workers, if hosts have several workers."""
        if 1 < len(cluster.hosts) < cluster.world_size:
            for rounds in (4, 16):
                yield {"global_every": rounds}
                yield {"global_every": rounds, **HIDDEN}

    def schedule(self, setting: Setting) -> AbstractGroupSchedule:
        """Return the rounds of the view's hosts, the last of which is of all workers."""
        by_host: dict[int, list[int]] = defaultdict(list)
        for place, host in enumerate(setting.view.hosts):
            by_host[host].append(place)
        within = [Group(tuple(places)) for places in by_host.values()]
        everybody = [Group(tuple(range(len(setting.view))))]
        return RepeatedRounds(self.word, [*[within] * (self.global_every - 1), everybody])
