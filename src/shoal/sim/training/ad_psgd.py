"""AD-PSGD: pairs average in the background, while the next gradient is computed.

As `train.ad_psgd` and `runtime.pair_exchange`: odd ranks ask, even ranks answer one at a time, in
the order of arrival. Both sides average what their parameters were when they asked and answered;
what that changes is added to whatever these have become meanwhile (`runtime.master_copy`).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Literal, final

from shoal.groups.bipartite import Bipartite
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class ADPSGD(AbstractSimulatedStrategy):
    """Each active worker starts one exchange after every step."""

    def __init__(self, *, peers: Literal["random", "exponential"] = "random") -> None:
        self._peers: Literal["random", "exponential"] = peers

    @property
    def contributes(self) -> bool:
        """Pairs exchange whole models, and need all of each."""
        return False

    @property
    def copies(self) -> int:
        """What is averaged, and what that was before."""
        return 2

    def prepare(self, world: World) -> None:
        """Say who is active."""
        self._world = world
        self._pairs = Bipartite(world.size, self._peers)
        self._queues: list[list[Signal]] = [[] for _ in range(world.size)]
        """By passive rank: who is served and who waits, in the order of arrival."""

    def worker(self, rank: int) -> Process:
        """Compute; take in what averaging has changed; average on."""
        world = self._world
        times = world.times[rank]
        random = Random(f"ad-psgd {world.seed} {rank}")
        exchange: Signal | None = None
        for step in range(world.steps):
            world.learner.compute_gradient(rank)
            yield world.computes(rank, step)
            if exchange is not None:
                times.begin_exchange(world.time.now)
                yield exchange
                times.end_exchange(world.time.now)
            world.learner.update_by_mean([rank])
            if self._pairs.is_active(rank):
                exchange = Signal()
                peer = self._pairs.active_peer(rank, step, random)
                world.time.begin(self._exchange(rank, peer, exchange))
            world.stepped(rank)
        if exchange is not None:
            yield exchange

    def _exchange(self, rank: int, peer: int, over: Signal) -> Process:
        world, queue = self._world, self._queues[peer]
        begin = world.time.now
        world.learner.copy(rank)
        mine = Signal()
        queue.append(mine)
        if len(queue) > 1:
            yield mine
            world.count("busy_requests")
            world.count("queue_seconds", (world.time.now - begin) / 1e12)
        world.learner.copy(peer)
        size = world.model.bytes
        yield world.exchange(rank, peer, size)
        yield from world.software(2)
        world.learner.average([rank, peer], [0.5, 0.5], copies=True)
        for each in (rank, peer):
            world.learner.add_changes(each)
        world.count("exchanges")
        queue.pop(0)
        if queue:
            world.time.give(queue[0])
        world.time.give(over)
