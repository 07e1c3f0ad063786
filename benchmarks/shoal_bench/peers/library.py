"""What a library is to the benchmark: its steps can be timed, beside ours and beside a straggler.

Owns the two questions that every library answers. Knows none of them, nor how they start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from shoal_bench.pairs import Pairs
    from shoal_bench.stand import Stand

CYCLE: Final = 4
"""Steps timed in one go: as many as a library lets pass between two averagings."""


@dataclass(frozen=True, slots=True)
class StepJob:
    """Equal workers train the perceptron as fast as they can."""

    workers: int
    width: int
    repeats: int
    """Pairs of measurements to take."""
    cycle: int = CYCLE


@dataclass(frozen=True, slots=True)
class RateJob:
    """Workers train the perceptron, each step lengthened by sleeping before backward."""

    workers: int
    width: int
    seconds: float
    """The approximate length of the job in seconds."""

    compute_s: tuple[float, ...]
    """How long each worker sleeps in a step, by rank."""


class AbstractLibrary(ABC):
    """A library, in one way of using it."""

    package: ClassVar[str]
    """The distribution that has to be installed."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The library's name in the table, the way of using it included."""

    @property
    def name(self) -> str:
        """The title with the installed version."""
        return f"{self.title} {version(self.package).partition('+')[0]}"

    @property
    def name_of_rates(self) -> str:
        """The name beside `rates`, where more has to be said about the way of using it."""
        return self.name

    def is_installed(self) -> bool:
        """Return whether it can be measured here."""
        try:
            version(self.package)
        except PackageNotFoundError:
            return False
        return True

    @property
    @abstractmethod
    def counterpart(self) -> AbstractLibrary:
        """Shoal doing the same thing."""

    @abstractmethod
    def step_pairs(self, stand: Stand, job: StepJob) -> Pairs:
        """Return (Shoal's, this library's) milliseconds per step, of the slowest worker."""

    @abstractmethod
    def rates(self, stand: Stand, job: RateJob) -> list[float]:
        """Return every worker's steps per second, by rank."""
