"""Means of two workers' parameters beside computing, in virtual time: AD-PSGD.

As `train.pairs`: active workers ask, passive ones answer one at a time, in the order of arrival.
Both sides average what their parameters were when they asked and answered; what that changes is
added to whatever these have become meanwhile (`train.pairs.master_copy`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from shoal.errors import UsageError
from shoal.sim.training.executor import AbstractExecutor
from shoal.sim.virtual_time import Signal
from shoal.strategies import (
    Act,
    Acts,
    AnswerPairs,
    AwaitGoodbyes,
    Begin,
    Goodbye,
    Pair,
    TakeIn,
    Update,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class PairsExecutor(AbstractExecutor):
    """Lets active workers begin exchanges, and passive ones answer them."""

    def check_goes_on(self) -> None:
        """Raise `UsageError`: what becomes of pairs that lose a worker is not simulated."""
        raise UsageError(
            "sync='ad-psgd' is simulated where all workers stay to the end: leave out the [[event]]"
            " tables that kill, freeze or join workers."
        )

    @property
    def copies(self) -> int:
        """What is averaged, and what that was before."""
        return 2

    def prepare(self, world: World) -> None:
        """Let nobody be busy."""
        super().prepare(world)
        self._queues: list[list[Signal]] = [[] for _ in range(world.size)]
        """Lists for each passive rank who is served and who waits, in the order of arrival."""
        self._under_way: list[Signal | None] = [None] * world.size
        for course in self.courses.values():
            for act in course.begin():
                assert isinstance(act, AnswerPairs)  # whoever asks is answered from the beginning

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Compute, and carry out `acts`."""
        self._world.learner.compute_gradient(rank)
        yield self._world.computes(rank, step)
        yield from self.carry_out(rank, acts)

    def do(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out one act."""
        world = self._world
        match act:
            case TakeIn():
                yield from self._take_in(rank)
            case Update():
                world.learner.update_by_mean([rank])
            case Begin():
                over = self._under_way[rank] = Signal()
                for pair in act.acts:
                    assert isinstance(pair, Pair)
                    world.time.begin(self._exchange(rank, pair.peer, over))
            case Goodbye() | AwaitGoodbyes():
                pass  # a simulated worker answers for as long as somebody asks
            case _:
                raise TypeError(act)
        return None

    def settle(self, rank: int) -> Process:
        """Wait for the exchange under way; the worker makes no more steps meanwhile."""
        over = self._under_way[rank]
        if over is not None:
            yield over

    def _take_in(self, rank: int) -> Process:
        over, times = self._under_way[rank], self._world.times[rank]
        if over is not None:
            times.begin_exchange(self._world.time.now)
            yield over
            times.end_exchange(self._world.time.now)

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
