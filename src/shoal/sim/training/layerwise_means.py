"""A mean whose pieces members wait for as their next forward pass gets there, in virtual time.

As `train.piece_means` and `train.early_means`: nobody waits when the mean begins, and it may begin
piece by piece while backward is running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.sim.training.model import FORWARD
from shoal.sim.virtual_time import Signal

if TYPE_CHECKING:
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


class LayerwiseMean:
    """A mean of `members` of which each piece begins when the last of them has come to it.

    Members come to its pieces from the front, or with `rear_first` from the rear. `carry_out` makes
    the process that exchanges them in that order: given a signal for each piece, from the front to
    the rear, that all have come to it, it gives each of the others when that piece's mean is known.
    After it the mean is over.
    """

    def __init__(
        self,
        world: World,
        members: Sequence[int],
        carry_out: Callable[[Sequence[int], list[Signal], list[Signal]], Process],
        *,
        rear_first: bool = False,
    ) -> None:
        self._world = world
        self._carry_out = carry_out
        numbers = range(len(world.model.pieces))
        self._order = list(reversed(numbers) if rear_first else numbers)
        self._missing = [len(members) for _ in numbers]
        self._begins = [0 for _ in numbers]
        """The times at which the last member came to each piece."""
        self._complete = [Signal() for _ in numbers]
        self._here = [Signal() for _ in numbers]
        self._over = Signal()
        self._under_way: Process | None = None

    def arrive(self) -> None:
        """Note that a member has come to all pieces, and goes on."""
        for number in self._order:
            self.arrive_at(number)

    def arrive_at(self, number: int) -> None:
        """Note that a member has come to a piece; the last one lets its exchange begin."""
        self._missing[number] -= 1
        if self._missing[number]:
            return
        time = self._world.time
        self._begins[number] = time.now
        time.give(self._complete[number])
        if number == self._order[0]:
            self._under_way = self._run()
            time.begin(self._under_way)

    def drop(self) -> None:
        """Let nothing more come of it, and nobody wait for it."""
        time = self._world.time
        if self._under_way is None:
            self._begins = [time.now for _ in self._begins]
        else:
            time.end(self._under_way)
        for signal in (*self._here, self._over):
            time.give(signal)

    def _run(self) -> Process:
        yield from self._carry_out(self._order, self._complete, self._here)
        self._world.time.give(self._over)

    def forward(self, rank: int, step: int) -> Process:
        """Go forward through each piece's layers once their mean is known.

        With the rear one the mean is over, and the learner, which computes forward and backward at
        once, can begin.
        """
        world = self._world
        for number, piece in enumerate(world.model.pieces):
            is_last = number + 1 == len(self._here)
            yield from self._wait(rank, self._over if is_last else self._here[number], number)
            yield world.computes(rank, step, piece.forward)

    def end(self, rank: int) -> Process:
        """Wait for all of it."""
        yield from self._wait(rank, self._over, self._order[-1])

    def _wait(self, rank: int, what: Signal, number: int) -> Process:
        """Wait for others that still compute, and for what is exchanged after that."""
        if what.given:
            return
        world, since = self._world, self._world.time.now
        times = world.times[rank]
        if self._missing[number]:
            # who comes last says when waiting ends and exchanging begins
            yield what
            begun = max(since, self._begins[number])
            times.wait += begun - since
            times.exchange += world.time.now - begun
            return
        times.begin_exchange(since)
        yield what
        times.end_exchange(world.time.now)


REST = 1 - FORWARD
"""The share of a step that follows its forward pass."""
