"""One replica's requests for the groups that a generator forms at run time.

Owns how waits for groups are accounted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.strategies import Group
from shoal.trace import SpanKind

if TYPE_CHECKING:
    from shoal.groups import GeneratorConfig
    from shoal.train.replica import Replica, Stopwatch


class GroupRequests:
    """This worker's membership at the generator. All workers join and `meet` before any asks."""

    def __init__(self, replica: Replica, config: GeneratorConfig) -> None:
        self._replica = replica
        replica.groups.join(replica.session, replica.host, config, replica.seed)

    def meet(self) -> None:
        """Wait until all have joined: a worker that asked earlier would go on alone."""
        self._replica.communicator.barrier()

    def ask(self, step: int, stopwatch: Stopwatch) -> Group:
        """Return this worker's group once all its members have asked."""
        start_ns = time.monotonic_ns()
        with stopwatch.entered(SpanKind.WAIT):  # for which workers is known only afterwards
            assigned = self._replica.groups.request_group(self._replica.session, step)
        end_ns = time.monotonic_ns()
        stopwatch.add(SpanKind.WAIT, start_ns, end_ns, assigned.members, assigned.reason)
        return Group(
            assigned.members, assigned.group_id, assigned.more, assigned.reason, assigned.epoch
        )

    def leave(self, interval: int) -> None:
        """Take this worker out of every group that has not started.

        The first member notes the generator's counters; `interval`: the steps between two requests.
        """
        if self._replica.communicator.rank == self._replica.member.ranks()[0]:
            counted = self._replica.groups.generator_counters(self._replica.session, interval)
            self._replica.counters.update(counted)
        self._replica.groups.leave(self._replica.session)
