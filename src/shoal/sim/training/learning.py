"""What workers learn while virtual time passes: the contract, and the learner that learns nothing.

A learner is told in the order of virtual time what each worker does to its parameters. Simulations
of time alone need none of it; `replicas` trains real models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from shoal.diverged import Figure, restore
from shoal.errors import ProtocolError
from shoal.sim.training.served_part import NothingServed
from shoal.transport import FLOAT32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.sim.training.model import ModelSize
    from shoal.sim.training.served_part import AbstractServedPart


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What the workers knew at a moment of virtual time."""

    seconds: float
    mean_step: float
    averaged: Figure
    """Metric of the mean of all models."""
    rank0: Figure
    """Metric of rank 0's model, or of the first one's that takes part."""
    consensus_distance: Figure
    """Root mean square distance of the models from their mean."""
    steps_behind: int
    """Staleness: from the worker with the most updates to the one with the fewest."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "averaged", "rank0", "consensus_distance")


class AbstractLearner(ABC):
    """Replicas of a model, one for each worker."""

    @property
    def is_satisfied(self) -> bool:
        """Whether the run may end because what it was for has been reached."""
        return False

    @property
    def curve(self) -> Sequence[CurvePoint]:
        """What was known when; nothing where only time counts."""
        return ()

    @property
    def size(self) -> ModelSize | None:
        """How large the model is that learns; None where only time counts."""
        return None

    @property
    def gradient_elements(self) -> int:
        """How many a worker's gradient has; 0 where only time counts."""
        return 0

    @property
    def state_per_parameter(self) -> float:
        """How many elements of an optimizer's state there are for each of the model's."""
        return 0.0

    @abstractmethod
    def update(self, rank: int, scale_for: int = 1) -> None:
        """Let a worker compute a gradient on its next batch and update its own replica by it.

        By Adam's step as the mean gradient of `scale_for` workers would make it.
        """

    @abstractmethod
    def average(
        self, members: Sequence[int], shares: Sequence[float], *, copies: bool = False
    ) -> None:
        """Replace the members' parameters, or their `copies`, by their mean with these weights.

        No `shares` are equal ones.
        """

    @abstractmethod
    def average_state(self, members: Sequence[int], shares: Sequence[float]) -> None:
        """Replace the state of the members' optimizers by its mean, weighted as in `average`."""

    def anchor(self, rank: int) -> None:  # noqa: B027 - where only time counts
        """Keep a worker's parameters as the point that its first outer step starts from."""

    def outer_step(  # noqa: B027 - where only time counts
        self, rank: int, learning_rate: float, momentum: float, *, copies: bool = False
    ) -> None:
        """Make a worker's outer step (`strategies.OuterStep`) from its parameters or its copy's."""

    def average_outer(  # noqa: B027 - where only time counts
        self, members: Sequence[int], shares: Sequence[float]
    ) -> None:
        """Replace the members' anchors and velocities by their means, weighted as in `average`."""

    @abstractmethod
    def copy(self, rank: int, wire: int = FLOAT32) -> None:
        """Take a copy of a worker's parameters, to be averaged while the worker learns on.

        It is rounded as `wire`, one of `transport.forms.IN_FLOAT32`, says.
        """

    @abstractmethod
    def add_changes(self, rank: int) -> None:
        """Add to a worker's parameters what averaging has changed in the copy of them."""

    @abstractmethod
    def compute_gradient(self, rank: int) -> None:
        """Let a worker compute a gradient on its next batch, of the parameters it has now."""

    def gradient(self, rank: int) -> NDArray[np.float32]:
        """Return what a worker has computed, as one array of its own, layer after layer.

        Raises `ProtocolError` where only time counts.
        """
        message = f"Worker {rank} has computed nothing."
        raise ProtocolError(message)

    def replace_gradient(self, rank: int, gradient: NDArray[np.float32]) -> None:
        """Put what has become of a worker's gradient on its way in its place.

        Raises `ProtocolError` where only time counts.
        """
        message = f"Worker {rank} has computed nothing that {gradient.size} values could replace."
        raise ProtocolError(message)

    def low_rank_mean(
        self,
        members: Sequence[int],
        rank: int,
    ) -> Sequence[NDArray[np.float32]]:
        """Return for each member the mean of all their gradients, summed as factors of `rank`."""
        return ()

    def parameters(self, rank: int, *, copies: bool = False) -> NDArray[np.float32]:
        """Return a worker's trained parameters, or its copy's, layer after layer; never a view.

        Raises `ProtocolError` where only time counts.
        """
        message = f"Worker {rank} has learnt nothing."
        raise ProtocolError(message)

    def replace_parameters(
        self, rank: int, parameters: NDArray[np.float32], *, copies: bool = False
    ) -> None:
        """Put what has become of a worker's parameters, or its copy's, on their way in their place.

        Raises `ProtocolError` where only time counts.
        """
        message = f"Worker {rank} has learnt nothing that {parameters.size} values could replace."
        raise ProtocolError(message)

    @abstractmethod
    def update_by_mean(
        self, members: Sequence[int], gradients: Sequence[NDArray[np.float32]] = ()
    ) -> None:
        """Update the members' replicas by the mean of the gradients that they computed.

        `gradients` are what has become of them on their way, where they travelled.
        """

    @abstractmethod
    def served_part(self, part: int, of: int) -> AbstractServedPart:
        """Return new memory for one of as many parts of the parameters as servers share.

        It holds the parameters that all workers begin with.
        """

    @abstractmethod
    def pull(self, rank: int) -> None:
        """Give a worker what has been set aside for it."""

    def served(self, rank: int) -> NDArray[np.float32]:
        """Return the trained parameters that have been set aside for a worker, layer after layer.

        Raises `ProtocolError` where only time counts.
        """
        message = f"Nothing has been set aside for worker {rank}."
        raise ProtocolError(message)

    def attend(self, members: Sequence[int]) -> None:  # noqa: B027 - where only time counts
        """Note whose models are the job's from now on."""

    def hand_on(self, rank: int, taker: int) -> None:  # noqa: B027 - where only time counts
        """Give a newcomer what a worker goes on from: its model and its optimizer's state."""

    def finish(self, now: int) -> None:  # noqa: B027 - most have nothing to say
        """Note that the run is over at `now`, picoseconds."""

    @abstractmethod
    def note_step(self, rank: int, now: int) -> None:
        """Note that a worker has finished a step at `now`, picoseconds."""


@final
class NothingLearned(AbstractLearner):
    """A learner that learns nothing, for runs of which only the time counts."""

    def update(self, rank: int, scale_for: int = 1) -> None:
        """Do nothing, as all of this does."""

    def average(
        self, members: Sequence[int], shares: Sequence[float], *, copies: bool = False
    ) -> None:
        """Do nothing."""

    def average_state(self, members: Sequence[int], shares: Sequence[float]) -> None:
        """Do nothing."""

    def copy(self, rank: int, wire: int = FLOAT32) -> None:
        """Do nothing."""

    def add_changes(self, rank: int) -> None:
        """Do nothing."""

    def compute_gradient(self, rank: int) -> None:
        """Do nothing."""

    def update_by_mean(
        self, members: Sequence[int], gradients: Sequence[NDArray[np.float32]] = ()
    ) -> None:
        """Do nothing."""

    def served_part(self, part: int, of: int) -> AbstractServedPart:
        """Return a part with nothing in it."""
        return NothingServed()

    def pull(self, rank: int) -> None:
        """Do nothing."""

    def note_step(self, rank: int, now: int) -> None:
        """Do nothing."""
