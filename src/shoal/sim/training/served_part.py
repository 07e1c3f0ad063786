"""A server's part of a model while virtual time passes: the contract, and the part of nothing.

One process's memory of it: the weights, and the state of the optimizer that updates them. Whose
gradients it is updated with and when, and what it goes on from in a new view, is said by whoever
serves (`sim.training.serving`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final


class AbstractServedPart(ABC):
    """A part of the weights, with the optimizer's state of it."""

    @property
    def state_bytes(self) -> float:
        """The size of the optimizer's state, in bytes; 0 where there is none, or none yet."""
        return 0.0

    @abstractmethod
    def update(self, ranks: Sequence[int], scale: float, share: float) -> None:
        """Update by the mean gradient of the workers `ranks`, times `scale`.

        Averaged buffers move by `share` of the way to the mean of theirs.
        """

    @abstractmethod
    def set_aside(self, rank: int) -> None:
        """Set the weights aside for a worker as they are, to be pulled."""

    @abstractmethod
    def go_on_from_model(self, rank: int) -> None:
        """Take the weights that a worker has in its model."""

    @abstractmethod
    def go_on_from(self, other: AbstractServedPart) -> None:
        """Take the weights that another process has served."""

    @abstractmethod
    def state(self) -> object:
        """Return a copy of the optimizer's state."""

    @abstractmethod
    def load_state(self, state: object) -> None:
        """Go on with an optimizer's state that `state` has returned."""


@final
class NothingServed(AbstractServedPart):
    """A part with nothing in it, for runs of which only the time counts."""

    def update(self, ranks: Sequence[int], scale: float, share: float) -> None:
        """Do nothing, as all of this does."""

    def set_aside(self, rank: int) -> None:
        """Do nothing."""

    def go_on_from_model(self, rank: int) -> None:
        """Do nothing."""

    def go_on_from(self, other: AbstractServedPart) -> None:
        """Do nothing."""

    def state(self) -> object:
        """Return nothing."""
        return None

    def load_state(self, state: object) -> None:
        """Do nothing."""
