"""Ripples' static schedule: partial all-reduce by a fixed table, for workers of equal speed.

Luo et al., ASPLOS 2020 (Prague); docs/papers.md, 3.3. No group generator: every worker reads
its group off the table, which alternates between meeting across hosts and inside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

from msgspec.structs import force_setattr

from shoal.arguments import whole_number
from shoal.groups import make_schedule
from shoal.strategies.periodic import HIDDEN, every_few_steps
from shoal.strategies.scheduled import ScheduledAveraging

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import AbstractGroupSchedule, Topology
    from shoal.strategies.course import Setting


@final
class RipplesStatic(ScheduledAveraging, frozen=True, kw_only=True):
    """Partial all-reduce by the static table.

    `workers_per_host` overrides the launcher's number; 0 keeps it. With `overlap="next-steps"`
    computing goes on while parameters are averaged; `average_state` averages the optimizer's state
    as well.
    """

    word: ClassVar[str] = "ripples-static"

    workers_per_host: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        what = "The number of workers per host (0 is what the launcher says)"
        force_setattr(self, "workers_per_host", whole_number(self.workers_per_host, what, low=0))

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,
        *,
        thorough: bool = False,  # noqa: ARG003 - all of them are tried at once
    ) -> Iterator[Mapping[str, Any]]:
        """Yield intervals, with averages that are waited for or hidden."""
        if cluster.world_size > 1:
            for options in every_few_steps({}):
                yield options
                yield {**options, **HIDDEN}

    def schedule(self, setting: Setting) -> AbstractGroupSchedule:
        """Return the static table for the view's hosts."""
        view = setting.view
        return make_schedule(
            "ripples-static",
            len(view),
            workers_per_host=self.workers_per_host or view.workers_per_host,
        )
