"""How a worker's trainings end: finished, given up, or left in the middle; who is told of it.

Owns what the other workers, and the user, hear when a worker leaves. A worker that has met an error
of the job has failed, however its script ends (`raise SystemExit(error.exit_code)` looks like an
ordinary end to Python); one that leaves between two steps without an error has left in the middle.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shoal.errors import DeadlineExceeded, ProtocolError, ResourceError, ShoalError, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.strategies import AbstractDefinition

_log = logging.getLogger(__name__)

_OF_THE_JOB: Final = (WorkerLost, DeadlineExceeded, ProtocolError, ResourceError)
"""Errors after which this worker cannot go on; after a `UsageError`, the script's own, it can."""


def _nothing(_error: ShoalError) -> None:
    pass


@dataclass(slots=True)
class Training:
    """The record of one `DistributedOptimizer`, from which follows how it ended."""

    name: str
    strategy: AbstractDefinition
    num_steps: int = 0
    has_finished: bool = False
    is_averaged: bool = False
    """Whether the model has become the mean of all since the last step."""


@dataclass(slots=True)
class Endings:
    """The trainings of one worker, and the first error of the job that one of them met."""

    trainings: list[Training] = field(default_factory=list)
    failure: ShoalError | None = None
    is_interrupted: bool = False
    """Whether the script ends by an exception: then no warning is needed."""
    on_failure: Callable[[ShoalError], None] = _nothing
    """Called with the first error of the job."""
    is_leaving: bool = False
    """Whether this worker leaves at the end of its step, and the others go on."""

    def begin(self, name: str, strategy: AbstractDefinition) -> Training:
        """Return the record of a new training."""
        training = Training(name, strategy)
        self.trainings.append(training)
        return training

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note an error of the job that the body of the `with` statement raises."""
        try:
            yield
        except _OF_THE_JOB as error:
            if self.failure is None:
                self.failure = error
                self.on_failure(error)
            raise

    @property
    def under_way(self) -> list[AbstractDefinition]:
        """The strategies of the trainings that have not been finished."""
        return [each.strategy for each in self.trainings if not each.has_finished]

    @property
    def are_in_the_middle(self) -> bool:
        """Whether a training has begun and has not been finished."""
        return any(each.num_steps and not each.has_finished for each in self.trainings)

    def warn(self, num_workers: int) -> None:
        """Log, once, if a model trained here is one worker's replica and not a mean."""
        trainings, self.trainings = self.trainings, []
        if self.failure is not None or self.is_interrupted or num_workers == 1:
            return
        for training in trainings:
            differ = training.strategy.replicas_differ  # until they are averaged at the end
            if training.num_steps and differ and not training.is_averaged:
                call = "average_model()" if training.has_finished else "finish(), average_model()"
                _log.warning(
                    "The model trained by sync=%r is one of %d replicas that differ: this worker"
                    " leaves without %s. Call it before the model is saved.",
                    training.strategy.word,
                    num_workers,
                    call,
                )
