"""The definition of a strategy, beside its course: its word, its options, and its properties."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from shoal.strategies.course import AbstractCourse, Setting

if TYPE_CHECKING:
    from shoal.groups import Topology

Option: TypeAlias = str | int | float | bool | None
"""A plain value of an option, which workers compare and results keep."""

CourseOf: TypeAlias = Callable[[int], AbstractCourse]
"""Makes the course of a rank."""


class Averaged(StrEnum):
    """The tensors that the workers average: never to be mixed up (docs/papers.md, 5)."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"


class Family(StrEnum):
    """The machinery that carries the acts of a strategy out."""

    MEANS = "means"
    """Means of parameters among groups of workers."""

    PAIRS = "pairs"
    """Means of two workers' parameters: one asks and the other answers while it computes."""

    SERVERS = "servers"
    """Gradients pushed to servers that update, parameters pulled from them."""

    SUMS = "sums"
    """Sums of all workers' gradients, which begin in the backward pass."""


class AbstractDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one strategy, checked when they are given.

    A value: it may be used for several optimizers. Raises `UsageError` for options that do not
    exist.
    """

    word: ClassVar[str]
    """The word that selects the strategy."""

    family: ClassVar[Family]
    averaged: ClassVar[Averaged]
    is_lock_step: ClassVar[bool]
    """Whether every worker must make the same number of steps (or use uneven inputs)."""

    drops_rounds: ClassVar[bool] = False
    """Whether a round in which a worker is lost is dropped, so that steps of the others may shift
    against each other."""

    takes_loss_bound: ClassVar[bool] = True
    """Whether it makes sums, to which a transport may lose a share of the contributions."""

    @property
    def replicas_differ(self) -> bool:
        """Whether the workers' models differ until they are averaged after the last step."""
        return self.averaged is Averaged.PARAMETERS

    @property
    def can_round(self) -> bool:
        """Whether its messages may be rounded to a narrower type."""
        return self.averaged is Averaged.GRADIENTS

    @property
    def bound_of_pulls(self) -> float:
        """The share of the parameters in a pull from a server that may get lost."""
        return 0.0

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,  # noqa: ARG003 - most have one choice whatever the cluster
        *,
        thorough: bool = False,  # noqa: ARG003 - and no rarer ones
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the options that a plan for `cluster` compares; options at defaults are left out.

        With `thorough` rarer options come, too.
        """
        yield {}

    def options(self) -> dict[str, Option]:
        """Return the options as plain values; workers must agree on them."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def check_goes_on(self) -> None:
        """Raise `UsageError` if the strategy cannot be used where workers come and go."""

    def check_size(self, workers: int) -> None:
        """Raise `UsageError` if the options do not fit so many workers."""

    @abstractmethod
    def courses(self, setting: Setting) -> CourseOf:
        """Return the function that makes the workers' courses, which share common state."""
