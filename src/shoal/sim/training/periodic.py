"""Parameters averaged every few local steps: what averages by schedule and by generator share.

As `train.periodic_averaging`: a local step, then, when `groups.averaging_points` says so, an
average. Computing waits for it, or goes on while a copy is averaged (`train.delayed_average`). Who
averages with whom is the subclass's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.sim.training.world import Times
from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.groups.averaging_points import AveragingPoints
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


class AbstractPeriodicAveraging(AbstractSimulatedStrategy):
    """Averages parameters when `points` say so."""

    _world: World
    _times: Sequence[Times]
    """By rank, where the time of averages goes: not the workers', if these compute meanwhile."""
    _lead: int
    """How long before an average nobody sees a worker that does not compute, picoseconds. The
    worker waits for it in one go with its computing: an event less for every step."""

    def __init__(self, points: AveragingPoints) -> None:
        self._points = points

    @property
    def averages_state(self) -> bool:
        """As asked for."""
        return self._points.average_state

    @property
    def can_round(self) -> bool:
        """Copies may be, which are averaged while computing goes on."""
        return self._points.is_delayed

    @property
    def copies(self) -> int:
        """What is averaged while computing goes on, and what that was before."""
        return 2 if self._points.is_delayed else 0

    def prepare(self, world: World) -> None:
        """Begin with nothing spent."""
        self._world = world
        self._times = [Times() for _ in world.times] if self._points.is_delayed else world.times
        self._lead = 0

    def worker(self, rank: int) -> Process:
        """Step by itself, and average when that is due."""
        world, points, is_delayed = self._world, self._points, self._points.is_delayed
        delayed = DelayedAverage(world, rank)
        for step in range(world.steps):
            due = points.round_after(step + 1)
            yield world.computes(rank, step) + (0 if due is None else self._lead)
            world.learner.update(rank)
            if is_delayed:
                yield from delayed.take_in(wait=due is not None)
            average = None if due is None else self._average(rank, due)
            if average is not None and is_delayed:
                delayed.begin(average)
            elif average is not None:
                yield from average
            world.stepped(rank)
        yield from delayed.take_in(wait=True)
        self._leave(rank)

    @abstractmethod
    def _average(self, rank: int, round_index: int) -> Process | None:
        """Return how a worker averages what is due, its copy if that is delayed; None: alone."""

    def _leave(self, rank: int) -> None:
        """Note that a worker makes no more steps."""

    def _mean(self, members: Sequence[int], shares: Sequence[float] = ()) -> Process:
        """Let the members average their parameters, or copies if that is delayed."""
        points = self._points
        return self._world.average(
            members, shares, copies=points.is_delayed, state=points.average_state
        )


class DelayedAverage:
    """One average of a worker's copy at a time: `begin`, then `take_in` at the end of steps."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank
        self._over: Signal | None = None
        """Of the average that has not been taken in."""

    def begin(self, average: Process) -> None:
        """Let `average` work on a copy of the model; the one before has been taken in."""
        self._world.learner.copy(self._rank, self._world.wire)
        self._over = Signal()
        self._world.time.begin(self._carry_out(average, self._over))

    def _carry_out(self, average: Process, over: Signal) -> Process:
        yield from average
        self._world.time.give(over)

    def take_in(self, *, wait: bool) -> Process:
        """Add to the model what the average has changed, if it is known; else `wait`, or not yet.

        Of the average's time only what computing waits for is the worker's.
        """
        if self._over is None or not (wait or self._over.given):
            return
        world, times = self._world, self._world.times[self._rank]
        times.begin_exchange(world.time.now)
        yield self._over
        times.end_exchange(world.time.now)
        world.learner.add_changes(self._rank)
        self._over = None
