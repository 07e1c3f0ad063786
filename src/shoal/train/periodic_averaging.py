"""Parameter averaging every few local steps: what strategies by schedule and by generator share.

Carries out what `groups.averaging_points` says of when an average is due; computing waits for it,
or goes on (`delayed_average`). Who averages with whom is the subclass's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from shoal.carriers.channels import reserve_channels
from shoal.train.averaged_state import AveragedState
from shoal.train.delayed_average import DelayedAverage
from shoal.train.model_use import ModelUse
from shoal.train.strategy import AbstractStrategy, Averaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.groups.averaging_points import AveragingPoints
    from shoal.train.delayed_average import Average
    from shoal.train.replica import Replica


class AbstractPeriodicAveraging(AbstractStrategy):
    """Averages parameters every `interval` local steps."""

    averaged = Averaged.PARAMETERS

    def __init__(self, points: AveragingPoints) -> None:
        self._points = points
        self._state: AveragedState | None = None
        self._delayed: DelayedAverage | None = None
        self._position = 0

    @property
    def can_round(self) -> bool:
        """Whether parameters may be rounded: their copies, where computing goes on meanwhile."""
        return self._points.is_delayed

    def _attach(self, replica: Replica) -> None:
        """Begin at the first step."""
        self._replica = replica
        self._position = 0
        self._use = ModelUse(replica.model, is_shared=True)
        self._channel = 0  # the training thread's, which makes its averages one after another
        if self._points.average_state:
            self._state = AveragedState(replica.optimizer)
        if self._points.is_delayed and replica.communicator.world_size > 1:
            self._channel, *_ = reserve_channels(replica.communicator)
            self._delayed = DelayedAverage(replica)

    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """Apply the local `update`, then average if that is due."""
        self._use.check()
        update()
        self._position += 1
        due = self._points.round_after(self._position)
        if self._delayed is not None:
            self._delayed.take_in(wait=due is not None)
        if due is not None:
            self._synchronize(due)

    @abstractmethod
    def _synchronize(self, round_index: int) -> None:
        """Carry out the average that is due now, by way of `_carry_out`."""

    def _carry_out(self, average: Average) -> None:
        """Let `average` average the model: now, or in the background a copy of it."""
        flats, stopwatch = self._replica.flat.buffers, self._replica.stopwatch
        if self._delayed is not None:
            self._delayed.begin(average)
        elif self._state is not None:
            average([*flats, *self._state.gather()], stopwatch, None)
            self._state.scatter()
        else:
            average(flats, stopwatch, None)

    def settle(self) -> None:
        """Wait for the average under way, if there is one, and take it in."""
        if self._delayed is not None:
            self._delayed.take_in(wait=True)

    def _end_overlap(self) -> None:
        """Take in the average under way; from now on computing waits for every one."""
        if self._delayed is not None:
            self._delayed.close()
            self._delayed = None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of local steps made."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting local steps from the saved position."""
        self._position = int(state["position"])
