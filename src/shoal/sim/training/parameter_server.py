"""A parameter server sharded over the workers' hosts: BSP, SSP and ASP.

As `train.parameter_server`: every worker pushes its gradient to all shards and pulls all weights;
`groups.server_clock` says which pushes count when and whose pull must wait. The shards' clocks move
together here: one clock stands for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from shoal.arguments import share
from shoal.collectives.sharding import split_evenly
from shoal.groups.server_clock import ServerClock, UpdateRule
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.transports.contributions import Contribution
from shoal.sim.virtual_time import Signal
from shoal.transport.holes import check_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class ParameterServer(AbstractSimulatedStrategy):
    """Push gradients, pull weights; `staleness` 0 is BSP, None is ASP.

    Of a pull the share `pull_bound` may get lost, packet by packet; a worker keeps what it has
    there. Raises `UsageError` for a bound that is none.
    """

    def __init__(
        self, staleness: int | None, *, scale_updates: bool = True, pull_bound: float = 0.0
    ) -> None:
        self._rule = UpdateRule(staleness, scale_updates)
        self._pull_bound = share(pull_bound, "A pull's bound")

    @property
    def pull_bound(self) -> float:
        """As given."""
        return self._pull_bound

    @property
    def copies(self) -> int:
        """What has been set aside for a worker to pull."""
        return 1

    def prepare(self, world: World) -> None:
        """Start the clock."""
        self._world = world
        self._clock = ServerClock(range(world.size), self._rule.staleness)
        self._grants = [Signal() for _ in range(world.size)]

    def check_holes(self, policy: int) -> None:
        """Refuse what servers would have to count."""
        check_messages(policy)

    def worker(self, rank: int) -> Process:
        """Compute, push, and pull when the clock allows it."""
        world, clock = self._world, self._clock
        times = world.times[rank]
        others = [each for each in range(world.size) if each != rank]
        parts = [world.model.bytes / world.size] * len(others)
        software = world.server_cost // 2 if others else 0  # half for a push, half for a pull
        clock.pull(rank)
        for step in range(world.steps):
            world.learner.compute_gradient(rank)
            yield world.computes(rank, step)
            times.begin_exchange(world.time.now)
            if others and world.carries_values:
                yield from self._push_values(rank, others)
            elif others:
                yield world.push(rank, others, parts)
            if software:
                yield software
            times.end_exchange(world.time.now)
            self._push(rank)
            begin = world.time.now
            self._grants[rank] = Signal()
            if not clock.pull(rank):
                yield self._grants[rank]
            times.wait += world.time.now - begin
            times.begin_exchange(world.time.now)
            world.learner.serve(rank)  # others' updates go on while it is being sent
            if others and self._pull_bound and world.carries_values:
                yield from self._pull_values(rank, others)
            else:
                if others:
                    yield world.renew(rank, others, parts, self._pull_bound)
                world.learner.pull(rank)
            if software:
                yield software
            times.end_exchange(world.time.now)
            world.stepped(rank)
        self._release(clock.leave(rank).released)

    def _push_values(self, rank: int, others: Sequence[int]) -> Process:
        """Push a gradient; what gets lost on its way counts as zero, and the own shard is here.

        With error feedback it is pushed with the next one.
        """
        learner, size = self._world.learner, self._world.size
        gradient = learner.gradient(rank)
        shards = split_evenly(len(gradient), size)
        arrived = np.zeros_like(gradient)
        own = slice(shards[rank].start, shards[rank].stop)
        arrived[own] = gradient[own]
        parts = [shards[owner] for owner in others]
        contribution = Contribution(gradient, arrived, parts, rank, self._world.holes)
        yield self._world.push_values([rank] * len(others), others, contribution)
        learner.replace_gradient(rank, arrived)

    def _pull_values(self, rank: int, others: Sequence[int]) -> Process:
        """Pull weights; where they get lost a worker keeps its own. Statistics arrive whole."""
        learner, size = self._world.learner, self._world.size
        served, arrived = learner.served(rank), learner.parameters(rank)
        shards = split_evenly(len(served), size)
        own = slice(shards[rank].start, shards[rank].stop)
        arrived[own] = served[own]
        version = Contribution(served, arrived, [shards[each] for each in others], tensor=rank)
        yield self._world.renew_values(rank, others, version, self._pull_bound)
        learner.pull(rank)
        learner.replace_parameters(rank, arrived)

    def _push(self, rank: int) -> None:
        world = self._world
        advance = self._clock.push(rank)
        together = [each.rank for each in advance.apply]
        scale = 1 / self._rule.rate_divisor(world.size)
        share = self._rule.buffer_share(world.size)
        for ranks in [together] if self._rule.staleness == 0 else [[each] for each in together]:
            if ranks:
                world.learner.push(ranks, scale, share)
        self._release(advance.released)

    def _release(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self._world.time.give(self._grants[rank])

    def finish(self, world: World) -> None:
        """Note how stale reads were, as real servers do: a pull reads a shard of each."""
        reads = self._clock.staleness_counts
        world.count("shard_reads", world.size * sum(reads.values()))
        world.count("staleness", world.size * sum(behind * n for behind, n in reads.items()))
        world.count("max.staleness", max(reads))
