"""When a worker's parameters are averaged, with which state, and what the average hides behind.

Delayed averaging is that of Zhou et al., DaSGD, arXiv:2006.00441, and Wang et al.,
Overlap-Local-SGD, ICASSP 2020. Owns the rule; a schedule or the generator decides which workers
average together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, get_args

from msgspec.structs import force_setattr

from shoal.arguments import flag, whole_number
from shoal.errors import UsageError
from shoal.strategies.acts import UPDATE, TakeIn
from shoal.strategies.course import AbstractCourse
from shoal.strategies.definition import AbstractDefinition, Averaged, Family

if TYPE_CHECKING:
    from shoal.membership import View
    from shoal.strategies.acts import Acts

AveragingOverlap = Literal["none", "next-forward", "layers", "next-steps"]
"""The computing that an average of parameters hides behind: none; the next forward pass, layer by
layer and with the same result; that and the backward pass, if gradients are not changed after it;
or the steps until the next average is due."""


class OuterOptions(NamedTuple):
    """The options of the step that an outer optimizer makes after each mean."""

    learning_rate: float
    momentum: float


class PeriodicAveraging(AbstractDefinition, frozen=True, kw_only=True):
    """Every `interval` local steps an average is due; under `overlap` computing goes on meanwhile.

    With "next-forward" each layer waits for its part of the average when the next forward pass
    gets there, and the result is that of "none". With "layers" each layer is also updated, and its
    average begins, as soon as backward has its gradients; clipping and gradient scalers, which
    change them before the step, are refused. With "next-steps" a copy of the model is averaged.
    The change is added at the end of the first step at which it is known, and waited for at the end
    of the step after which the next average is due: a worker has at most one under way. With
    `average_state` the local optimizer's state is averaged with the parameters (docs/papers.md,
    2.9: an ablation), and waited for like them. With `scale_adam` steps by Adam are as long as the
    mean gradient of all workers would make them (`workloads.adam_steps`). Raises `UsageError` for
    an interval below 1, an unknown word, `average_state` with an overlap, and `scale_adam` with
    "layers".
    """

    family: ClassVar[Family] = Family.MEANS
    averaged: ClassVar[Averaged] = Averaged.PARAMETERS

    interval: int = 1
    overlap: AveragingOverlap = "none"
    average_state: bool = False
    scale_adam: bool = False

    def __post_init__(self) -> None:
        if self.overlap not in get_args(AveragingOverlap):
            words = ", ".join(get_args(AveragingOverlap))
            message = (
                f"overlap is one of {words} where parameters are averaged, not {self.overlap!r}."
            )
            raise UsageError(message)
        interval = whole_number(self.interval, "The interval between synchronizations", low=1)
        force_setattr(self, "interval", interval)
        flag(self.average_state, "average_state")
        flag(self.scale_adam, "scale_adam")
        if self.scale_adam and self.overlap == "layers":
            raise UsageError(
                "scale_adam is not for overlap='layers', which updates one layer at a time."
            )
        if self.average_state and self.overlap != "none":
            raise UsageError(
                "average_state is for overlap='none': averages of parameters alone can be hidden."
            )

    def check_goes_on(self) -> None:
        """Raise `UsageError` if averages begin before the step that makes them."""
        if self.overlap == "layers":
            raise UsageError(
                "overlap='layers' begins a step's averages before its end, and in a job that goes"
                " on without lost workers they may not happen: use overlap='next-forward'."
            )

    @property
    def is_delayed(self) -> bool:
        """Whether copies are averaged while computing goes on."""
        return self.overlap == "next-steps"

    @property
    def outer(self) -> OuterOptions | None:
        """The options of an outer step after each mean; None if a mean is taken as it is."""
        return None

    @property
    def can_round(self) -> bool:
        """Whether parameters may be rounded: their copies, where computing goes on meanwhile."""
        return self.is_delayed

    def is_due_after(self, steps: int) -> bool:
        """Return whether an average is due after so many local steps."""
        return steps % self.interval == 0


HIDDEN: Final = {"overlap": "next-steps"}
"""The option with which averages hide behind computing."""


OTHER_SIZES: Final = (2, 4)
"""The sizes of random groups that a thorough plan tries, beside the usual size."""


def every_few_steps(options: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `options` with an average after every step, and after every fourth."""
    yield options
    yield {**options, "interval": 4}


class AbstractPeriodicCourse(AbstractCourse):
    """Local steps, and an average when one is due."""

    counts: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(self, options: PeriodicAveraging, rank: int, view: View) -> None:
        super().__init__(rank, view)
        self._options = options
        self.position = 0
        """The number of local steps made."""

    def step(self, *, skipped: bool = False) -> Acts:
        """Yield the local update and the average that is due."""
        yield UPDATE
        is_due = self._options.is_due_after(self.position + 1)
        is_delayed = self._options.is_delayed
        if is_delayed:
            yield TakeIn(wait=is_due)
        if is_due:
            yield from self._average(in_background=is_delayed and len(self.view) > 1)
        self.position += 1

    @abstractmethod
    def _average(self, *, in_background: bool) -> Acts:
        """Yield the average that is due, or its beginning beside computing."""

    def _take_in(self) -> Acts:
        """Take in the last average, if one may be under way."""
        if self._options.is_delayed:
            yield TakeIn(wait=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of local steps made."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting local steps from the saved position."""
        self.position = int(state["position"])
