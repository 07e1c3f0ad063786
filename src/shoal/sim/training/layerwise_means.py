"""A mean whose pieces members wait for as their next forward pass gets there, in virtual time.

As `train.layerwise_means`: nobody waits when the mean begins.
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
    """A mean of `members` that begins when the last of them is there.

    `carry_out` makes the process that exchanges: it gives each of the signals `here`, one for each
    piece from the front to the rear, when that piece's mean is known. After it the mean is over.
    """

    def __init__(
        self,
        world: World,
        members: Sequence[int],
        carry_out: Callable[[list[Signal]], Process],
    ) -> None:
        self._world, self._missing = world, len(members)
        self._carry_out = carry_out
        self._here = [Signal() for _ in world.model.pieces]
        self._over = Signal()
        self._began = 0
        self._under_way: Process | None = None

    def arrive(self) -> None:
        """Note that a member is there and goes on; the last one lets the exchange begin."""
        self._missing -= 1
        if not self._missing:
            self._began = self._world.time.now
            self._under_way = self._run()
            self._world.time.begin(self._under_way)

    def drop(self) -> None:
        """Let nothing more come of it, and nobody wait for it."""
        time = self._world.time
        if self._under_way is None:
            self._began = time.now
        else:
            time.end(self._under_way)
        for signal in (*self._here, self._over):
            time.give(signal)

    def _run(self) -> Process:
        yield from self._carry_out(self._here)
        self._world.time.give(self._over)

    def forward(self, rank: int, step: int) -> Process:
        """Go forward through each piece's layers once their mean is known.

        With the rear one the mean is over, and the learner, which computes forward and backward at
        once, can begin.
        """
        world = self._world
        for number, piece in enumerate(world.model.pieces):
            is_last = number + 1 == len(self._here)
            yield from self._wait(rank, self._over if is_last else self._here[number])
            yield world.computes(rank, step, piece.forward)

    def end(self, rank: int) -> Process:
        """Wait for all of it."""
        yield from self._wait(rank, self._over)

    def _wait(self, rank: int, what: Signal) -> Process:
        """Wait for others that still compute, and for what is exchanged after that."""
        if what.given:
            return
        world, since = self._world, self._world.time.now
        times = world.times[rank]
        if self._missing:
            # who comes last says when waiting ends and exchanging begins
            yield what
            begun = max(since, self._began)
            times.wait += begun - since
            times.exchange += world.time.now - begun
            return
        times.begin_exchange(since)
        yield what
        times.end_exchange(world.time.now)


REST = 1 - FORWARD
"""The share of a step that follows its forward pass."""
