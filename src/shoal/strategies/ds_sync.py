"""DS-Sync: divide the workers into groups that synchronize in parallel, and shuffle them.

Wang et al., INFOCOM 2022; docs/papers.md, 2. A schedule of `groups` says which workers meet in
which round: the grid by default, whose cycle brings all workers to exact consensus.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, final

from msgspec.structs import force_setattr

from shoal.arguments import whole_number
from shoal.errors import UsageError
from shoal.groups import Topology, ds_sync_schedule, make_schedule
from shoal.strategies.periodic import HIDDEN, OTHER_SIZES, every_few_steps
from shoal.strategies.scheduled import ScheduledAveraging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import AbstractGroupSchedule
    from shoal.strategies.course import Setting
    from shoal.strategies.definition import Option


@final
class DSSync(ScheduledAveraging, frozen=True, kw_only=True):
    """Divide and shuffle.

    `shuffle` is "grid" (rows and columns in turn), "random" (equal partitions drawn anew each
    round) or "topology" (no phase puts more flows on a bottleneck than it must). `topology` is the
    network for the last one; None takes the launcher's hosts, all of them in one rack.
    `group_size` is for random partitions; 0 means the square root of the world size. With
    `overlap="next-steps"` computing goes on while parameters are averaged; `average_state` averages
    the optimizer's state as well.
    """

    word: ClassVar[str] = "ds-sync"

    shuffle: str = "grid"
    group_size: int = 0
    topology: Topology | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ds_sync_schedule(self.shuffle)  # refuses an unknown word
        what = "A group size (0 is the square root of the world size)"
        force_setattr(self, "group_size", whole_number(self.group_size, what, low=0))
        _check_topology(self.topology)

    def options(self) -> dict[str, Option]:
        """Return the options as plain values."""
        topology = None if self.topology is None else repr(self.topology)
        return {**super().options(), "topology": topology}

    @classmethod
    def worth_trying(
        cls, cluster: Topology, *, thorough: bool = False
    ) -> Iterator[Mapping[str, Any]]:
        """Yield shuffles; random groups gain nothing by hiding; the topology has to be given."""
        workers = cluster.world_size
        if workers < 2:
            return
        ways: list[dict[str, Any]] = [{}]
        if len(cluster.racks) > 1 or len(cluster.hosts) < workers:
            ways.append({"shuffle": "topology", "topology": cluster})
        for way in ways:
            for options in every_few_steps(way):
                yield options
                yield {**options, **HIDDEN}
        yield from every_few_steps({"shuffle": "random"})
        if thorough:
            for size in OTHER_SIZES:
                if size != math.ceil(math.sqrt(workers)) and size < workers:
                    yield from every_few_steps({"shuffle": "random", "group_size": size})

    def check_goes_on(self) -> None:
        """Raise `UsageError` if groups follow from a network, whose workers are fixed."""
        super().check_goes_on()
        if self.shuffle == "topology":
            raise UsageError(
                "shuffle='topology' divides the workers of a whole network, and this job goes on"
                " without those that are lost: choose shuffle='grid' or 'random'."
            )

    def schedule(self, setting: Setting) -> AbstractGroupSchedule:
        """Return the schedule that `shuffle` names; groups are smaller if too few are left."""
        view, group_size = setting.view, self.group_size
        if view.epoch > 0:
            group_size = min(group_size, len(view))
        return make_schedule(
            ds_sync_schedule(self.shuffle),
            len(view),
            workers_per_host=view.workers_per_host,
            group_size=group_size or None,
            seed=setting.seed,
            topology=self.topology or setting.topology,
        )


def _check_topology(topology: object) -> None:
    if not isinstance(topology, Topology | None):
        message = f"topology is a shoal.Topology or None, not {topology!r}."
        raise UsageError(message)
