"""The contract of a synchronization strategy: what happens around one optimizer step.

A strategy is made with its options, bound to one replica, and then told of every step. Its life:
`bind` once, `step` per iteration, `finish` when this worker makes no more steps. That the first and
the last happen once is seen to here; members say what they do then in `_attach` and `_end`. It
reaches other workers only through the replica's communicator and group source. Members of the
family live one per file and are listed in `train.strategies.STRATEGIES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, final

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.train.model_use import ModelUse
    from shoal.train.replica import Replica
    from shoal.watch.remarks import Remark


class Averaged(StrEnum):
    """What the workers average: never to be mixed up (docs/papers.md, 5)."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"


class AbstractStrategy(ABC):
    """How this worker's training meets that of the others."""

    name: ClassVar[str]
    """The word that selects it."""

    averaged: ClassVar[Averaged]
    """What it averages."""

    is_lock_step: ClassVar[bool]
    """Whether every worker must make the same number of steps (or use uneven inputs)."""

    _use: ModelUse
    """Of the model, by this strategy; made in `_attach`."""

    _is_bound = False
    _has_finished = False

    @property
    def replicas_differ(self) -> bool:
        """Whether the workers' models differ until they are averaged after the last step."""
        return self.averaged is Averaged.PARAMETERS

    @abstractmethod
    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the options it was made with, as plain values; workers must agree on them."""

    @property
    def can_round(self) -> bool:
        """Whether what it sends may be rounded to a narrower type on its way."""
        return self.averaged is Averaged.GRADIENTS

    def validate(self, world_size: int) -> None:  # noqa: B027 - most strategies fit any world
        """Raise `UsageError` if the options do not fit `world_size` workers. Starts nothing."""

    def check_unbound(self) -> None:
        """Raise `UsageError` if some optimizer has this strategy already, also one that is done.

        It has that one's replica, its position in the schedule and its threads.
        """
        if self._is_bound:
            message = (
                f"This {self.name} strategy belongs to another DistributedOptimizer: make a new"
                " strategy object for each optimizer."
            )
            raise UsageError(message)

    @final
    def bind(self, replica: Replica) -> None:
        """Attach to `replica`, whose parameters are the same on every worker by now.

        Raises `UsageError` the second time.
        """
        self.check_unbound()
        self._is_bound = True
        self._attach(replica)

    @abstractmethod
    def _attach(self, replica: Replica) -> None:
        """Begin to work for `replica`."""

    @abstractmethod
    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """End one iteration: apply `update` (the local optimizer step) and synchronize.

        `update` must be called at most once; a strategy whose updates happen elsewhere (a
        parameter server) does not call it. `skipped` says that mixed precision found gradients
        that are not finite: `update` does nothing then, and the synchronization still takes
        place, so that the workers stay in step.
        """

    def make_state(self, update: Callable[[], None]) -> None:
        """Have the local optimizer's state made by `update`, a step that changes no parameter."""
        update()

    def settle(self) -> None:  # noqa: B027 - most strategies put nothing off
        """Make what `step` has put off, so that parameters and optimizer state are as after it."""

    def clearing(self, *, set_to_none: bool) -> AbstractContextManager[None]:
        """Return the context in which the user's gradients are cleared."""
        return nullcontext()

    @property
    def has_model(self) -> bool:
        """Whether the model is still this strategy's, and no later one's."""
        return not self._use.has_ended

    @property
    def has_finished(self) -> bool:
        """Whether `finish` has been called."""
        return self._has_finished

    @final
    def finish(self) -> None:
        """Make no more steps. Returns once no other worker can need this one for its own steps.

        Collective for a lock-step strategy. Frees threads, hooks and connections. Does nothing the
        second time, as in a `finally`: the others count on one farewell of each worker.
        """
        if not self._has_finished:
            self._has_finished = True
            self._end()

    @abstractmethod
    def _end(self) -> None:
        """Do what `finish` says."""

    def remarks(self) -> tuple[Remark, ...]:
        """Return what it knows about who is slow; may ask a service."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue: the schedule position and the like."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        if state:
            message = f"The checkpoint holds state of another strategy than {self.name}."
            raise ValueError(message)
