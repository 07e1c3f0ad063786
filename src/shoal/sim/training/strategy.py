"""The contract of a simulated strategy: what one worker does, step after step, as a process.

It decides nothing that `groups` decides; it carries out, in virtual time, what `train` carries out
in real time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


class AbstractSimulatedStrategy(ABC):
    """How workers synchronise; one object carries one run."""

    @property
    def contributes(self) -> bool:
        """Whether it sends contributions to sums, of which a transport may lose a share."""
        return True

    @property
    def sums_gradients(self) -> bool:
        """Whether it chooses what a lost part of a gradient counts as (`World.holes`)."""
        return False

    @abstractmethod
    def prepare(self, world: World) -> None:
        """Make what the workers of `world` share. Raises `UsageError` for an impossible size."""

    @abstractmethod
    def worker(self, rank: int) -> Process:
        """Train as worker `rank` until its steps are made."""

    def finish(self, world: World) -> None:  # noqa: B027 - most have nothing to say
        """Note in the world's counters what the run has come to."""
