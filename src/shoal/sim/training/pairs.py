"""Means of two workers' parameters beside computing, in virtual time: AD-PSGD.

As `train.pairs`: active workers ask, passive ones answer one at a time, in the order of arrival.
Both sides average what their parameters were when they asked and answered; what that changes is
added to whatever these have become meanwhile (`train.pairs.master_copy`). An exchange that is under
way when the view changes is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, final

from shoal.sim.training.executor import TRAINING, AbstractExecutor
from shoal.sim.virtual_time import Signal
from shoal.strategies import (
    CHANGED,
    Act,
    Acts,
    AnswerPairs,
    AwaitGoodbyes,
    Begin,
    Goodbye,
    Pair,
    Pairs,
    TakeIn,
    Update,
    pairing,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.membership import Decision
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@final
class PairsExecutor(AbstractExecutor):
    """Lets active workers begin exchanges, and passive ones answer them."""

    own_acts = (TakeIn, Update)

    @property
    def copies(self) -> int:
        """What is averaged, and what that was before."""
        return 2

    def prepare(self, world: World) -> None:
        """Let nobody be busy."""
        super().prepare(world)
        self._under_way: list[Signal | None] = [None] * world.size
        """Given when the exchange is over that each rank has begun last."""
        self._exchanges: dict[int, Process] = {}
        """The exchanges under way, by the rank that has begun each."""
        self._begin_view()
        for rank in self.courses:
            self._begin_course(rank)

    def _begin_view(self) -> None:
        """Let nobody answer, and nobody have said goodbye."""
        self._queues: defaultdict[int, list[Signal]] = defaultdict(list)
        """Lists for each passive rank who is served and who waits, in the order of arrival."""
        self._answering: defaultdict[int, Signal] = defaultdict(Signal)
        """Given when a passive rank begins to answer."""
        self._active: dict[int, tuple[int, ...]] = {}
        """The ranks that may ask each passive one that answers."""
        self._gone: set[int] = set()
        """The active ranks that have said goodbye."""
        self._awaiting: dict[int, Signal] = {}
        """What passive ranks wait for that make no more steps."""

    def _begin_course(self, rank: int) -> None:
        for act in self.courses[rank].begin():
            assert isinstance(act, AnswerPairs)  # whoever asks is answered from the beginning
            self._answer(rank, act)

    def _answer(self, rank: int, act: AnswerPairs) -> None:
        self._active[rank] = act.active
        self._world.time.give(self._answering[rank])

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Compute, and carry out `acts`."""
        self._world.learner.compute_gradient(rank)
        yield self._world.computes(rank, step)
        yield from self.carry_out(rank, acts)

    def do(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out one act; before any, newcomers get what they lack."""
        world = self._world
        if world.attendance is not None:
            world.attendance.at_border(rank)
        match act:
            case TakeIn():
                yield from self._take_in(rank)
            case Update():
                world.learner.update_by_mean([rank])
            case Begin():
                for pair in act.acts:
                    assert isinstance(pair, Pair)
                    self._begin(rank, pair.peer)
            case AnswerPairs():
                self._answer(rank, act)
            case Goodbye():
                self._gone.add(rank)
                self._hear_goodbyes()
            case AwaitGoodbyes():
                awaited = self._awaiting[rank] = Signal()
                self._hear_goodbyes()
                return (yield awaited)
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

    def _hear_goodbyes(self) -> None:
        """Let passive workers end whom nobody will ask any more."""
        for rank in [each for each in self._awaiting if self._gone.issuperset(self._active[each])]:
            self._world.time.give(self._awaiting.pop(rank))

    def _begin(self, rank: int, peer: int) -> None:
        over = self._under_way[rank] = Signal()
        process = self._exchanges[rank] = self._exchange(rank, peer, over)
        self._world.time.begin(process)

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
        yield self._answering[peer]
        began = world.time.now
        world.learner.copy(peer)
        size = world.model.bytes
        yield world.exchange(rank, peer, size)
        yield from world.software(2)
        if world.attendance is not None:
            yield from world.attendance.lives.held_up((rank, peer), began)
        world.learner.average([rank, peer], [0.5, 0.5], copies=True)
        for each in (rank, peer):
            world.learner.add_changes(each)
        world.count("exchanges")
        queue.pop(0)
        if queue:
            world.time.give(queue[0])
        del self._exchanges[rank]
        world.time.give(over)

    def drop(self) -> None:
        """Drop the exchanges under way: both sides keep what they have."""
        world, exchanges, awaiting = self._world, self._exchanges, self._awaiting
        self._exchanges = {}
        self._begin_view()
        for rank, process in exchanges.items():
            world.count("dropped_means")
            world.time.end(process)
            if (over := self._under_way[rank]) is not None:
                world.time.give(over)
        for signal in awaiting.values():
            world.time.give(signal, CHANGED)

    def install(self, decision: Decision) -> None:
        """Let those pair in the new view that had steps to make."""
        super().install(decision)
        ranks = pairing(decision, TRAINING)
        for rank in self._world.view.members:
            course = self.courses[rank]
            assert isinstance(course, Pairs)
            course.pair(self._world.view, ranks)

    def take_over(self, rank: int, state: dict[str, Any]) -> None:
        """Let a newcomer go on from what a member has handed on, and answer if it is passive."""
        super().take_over(rank, state)
        self._begin_course(rank)
