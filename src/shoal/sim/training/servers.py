"""A parameter server sharded over the workers' hosts, in virtual time: BSP, SSP and ASP.

As `train.servers`: every worker pushes its gradient to all shards and pulls all weights. What a
shard does with requests is `strategies.shard`'s; all of them move together here, so one stands for
all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from shoal.collectives import split_evenly
from shoal.errors import UsageError
from shoal.sim.training.executor import AbstractExecutor
from shoal.sim.transports.contributions import Contribution
from shoal.sim.virtual_time import Signal
from shoal.strategies import Act, Acts, Add, Answer, Apply, Exchange, Pulled, Shard
from shoal.transport import check_messages

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process
    from shoal.strategies import Deed, ParameterServer


@final
class ServersExecutor(AbstractExecutor):
    """Pushes gradients and pulls weights.

    Of a pull the strategy's `pull_bound` may get lost, packet by packet; a worker keeps what it has
    there.
    """

    _definition: ParameterServer

    @property
    def copies(self) -> int:
        """What has been set aside for a worker to pull."""
        return 1

    def prepare(self, world: World) -> None:
        """Start the servers."""
        super().prepare(world)
        self._shard = Shard(range(world.size), self._definition.rule)
        self._added: list[int] = []
        """The workers whose gradients are in the next update."""
        self._answers = [Signal() for _ in range(world.size)]

    def check_holes(self, policy: int) -> None:
        """Refuse what servers would have to count."""
        check_messages(policy)

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Compute, and carry out `acts`."""
        self._world.learner.compute_gradient(rank)
        yield self._world.computes(rank, step)
        yield from self.carry_out(rank, acts)

    def check_goes_on(self) -> None:
        """Raise `UsageError`: what becomes of lost shards is not simulated."""
        raise UsageError(
            f"sync={self._definition.word!r} is simulated where all workers stay to the end: leave"
            " out the [[event]] tables that kill, freeze or join workers."
        )

    def do(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out one act: push, and pull when the shard lets the worker go on."""
        assert isinstance(act, Exchange)
        if act.kind == "leave":
            self._obey(self._shard.take(rank, act.kind))
            return Pulled(0, 0)
        world, times = self._world, self._world.times[rank]
        others = [each for each in range(world.size) if each != rank]
        parts = [world.model.bytes / world.size] * len(others)
        software = world.server_cost // 2 if others else 0  # half for a push, half for a pull
        times.begin_exchange(world.time.now)
        if others and world.carries_values:
            yield from self._push_values(rank, others)
        elif others:
            yield world.push(rank, others, parts)
        if software:
            yield software
        times.end_exchange(world.time.now)
        asked = world.time.now
        answered = self._answers[rank] = Signal()
        self._obey(self._shard.take(rank, act.kind))
        answer: Answer = yield answered
        held = world.time.now - asked
        times.wait += held
        times.begin_exchange(world.time.now)
        world.learner.serve(rank)  # others' updates go on while it is being sent
        if others and self.pull_bound and world.carries_values:
            yield from self._pull_values(rank, others)
        else:
            if others:
                yield world.renew(rank, others, parts, self.pull_bound)
            world.learner.pull(rank)
        if software:
            yield software
        times.end_exchange(world.time.now)
        return Pulled(held // 1_000, answer.staleness)

    def _obey(self, deeds: Sequence[Deed]) -> None:
        """Do what the shard has decided."""
        scale = 1 / self._definition.rule.rate_divisor(self._shard.num_members)
        for deed in deeds:
            match deed:
                case Add():
                    self._added.append(deed.rank)
                case Apply():
                    self._world.learner.push(self._added, scale, deed.share)
                    self._added = []
                case Answer():
                    self._world.time.give(self._answers[deed.rank], deed)

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
        yield self._world.renew_values(rank, others, version, self.pull_bound)
        learner.pull(rank)
        learner.replace_parameters(rank, arrived)

    def finish(self, world: World) -> None:
        """Note how stale reads were, as real servers do: a pull reads a shard of each."""
        reads = self._shard.clock.staleness_counts
        world.count("shard_reads", world.size * sum(reads.values()))
        world.count("staleness", world.size * sum(behind * n for behind, n in reads.items()))
        world.count("max.staleness", max(reads))
