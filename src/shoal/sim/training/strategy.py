"""The contract of a simulated strategy: what one worker does, step after step, as a process.

It decides nothing that `groups` decides; it carries out, in virtual time, what `train` carries out
in real time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process

NO_CHOICE: Final = (
    "holes: only where gradients are summed, packet by packet, can it be chosen what lost parts"
    " count as; leave it out."
)


class AbstractSimulatedStrategy(ABC):
    """How workers synchronise; one object carries one run."""

    @property
    def contributes(self) -> bool:
        """Whether it sends contributions to sums, of which a transport may lose a share."""
        return True

    @property
    def averages_state(self) -> bool:
        """Whether the optimizers' state is exchanged, which only something that learns has."""
        return False

    @property
    def can_round(self) -> bool:
        """Whether what it sends may be rounded to a narrower type on its way."""
        return False

    @property
    def pull_bound(self) -> float:
        """Share of the parameters in a pull from a server that may get lost."""
        return 0.0

    @property
    def copies(self) -> int:
        """How many more times a learner keeps each worker's parameters for it, at most."""
        return 0

    def check_holes(self, policy: int) -> None:
        """Raise `UsageError` if lost parts of gradients cannot count as `policy` (`World.holes`).

        One of `transport.holes` but `ZERO`, under a transport whose packets are simulated.
        """
        raise UsageError(NO_CHOICE)

    def check_goes_on(self) -> None:
        """Raise `UsageError` if the strategy needs all workers to the end."""
        raise UsageError(
            "This strategy needs all workers to the end: leave out the [[event]] tables that kill,"
            " freeze or join workers, or choose another."
        )

    @abstractmethod
    def prepare(self, world: World) -> None:
        """Make what the workers of `world` share. Raises `UsageError` for an impossible size."""

    @abstractmethod
    def worker(self, rank: int) -> Process:
        """Train as worker `rank` until its steps are made."""

    def finish(self, world: World) -> None:  # noqa: B027 - most have nothing to say
        """Note in the world's counters what the run has come to."""
