"""All-reduce (BSP): the mean gradient of all workers at every step, overlapped with backward.

The baseline every paper measures against, tuned as its own users would tune it: buckets, started
while backward still runs (docs/papers.md, 4.3). Every replica stays identical. With
`overlap="next-forward"` the exchange goes on behind the next forward pass.

Owns the sequence of sums, and how workers end. Buckets, their order, accumulation and overlap are
the executor's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, final, get_args

from msgspec.structs import force_setattr

from shoal.arguments import whole_number
from shoal.errors import UsageError
from shoal.strategies.acts import CHANGED, UPDATE, Adopt, SumGradients
from shoal.strategies.course import AbstractCourse
from shoal.strategies.definition import AbstractDefinition, Averaged, Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import Topology
    from shoal.membership import View
    from shoal.strategies.acts import Acts
    from shoal.strategies.course import Setting
    from shoal.strategies.definition import CourseOf

GradientOverlap = Literal["backward", "next-forward"]
"""The computing that an exchange of gradients hides behind; "next-forward" includes backward."""


@final
class AllReduce(AbstractDefinition, frozen=True, kw_only=True):
    """Average gradients over all workers at every step.

    `bucket_bytes` is the size of the gradients that are sent together; None is 25 MiB on one host
    and an eighth of the model between hosts (`collectives.layout_buckets`). `overlap` says when
    gradients are waited for: at the end of backward, or ("next-forward") layer by layer when the
    next forward pass gets there, with the same result. With `low_rank` r above 0 the gradient of a
    matrix is sent as r columns and r rows, from the third sum on, and the rest is added to the next
    gradient (`workloads.low_rank_gradients`; after PowerSGD, Vogels et al., NeurIPS 2019).
    """

    word: ClassVar[str] = "all-reduce"
    family: ClassVar[Family] = Family.SUMS
    averaged: ClassVar[Averaged] = Averaged.GRADIENTS
    is_lock_step: ClassVar[bool] = True

    bucket_bytes: int | None = None
    overlap: GradientOverlap = "backward"
    low_rank: int = 0

    def __post_init__(self) -> None:
        if self.overlap not in get_args(GradientOverlap):
            words = ", ".join(get_args(GradientOverlap))
            message = f"overlap is one of {words}, not {self.overlap!r}."
            raise UsageError(message)
        if self.bucket_bytes is not None:
            size = whole_number(self.bucket_bytes, "A bucket's bytes", low=1)
            force_setattr(self, "bucket_bytes", size)
        force_setattr(self, "low_rank", whole_number(self.low_rank, "low_rank", low=0))

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,  # noqa: ARG003 - whatever the cluster
        *,
        thorough: bool = False,  # noqa: ARG003 - both are tried at once
    ) -> Iterator[Mapping[str, Any]]:
        """Yield whole gradients, and gradients of low rank."""
        yield {}
        yield {"low_rank": 8}

    def check_goes_on(self) -> None:
        """Raise `UsageError` if updates are put off."""
        if self.overlap == "next-forward":
            raise UsageError(
                "overlap='next-forward' updates layers before all sums are there, and a job that"
                " goes on without lost workers may have to make a sum again: leave overlap out."
            )

    def courses(self, setting: Setting) -> CourseOf:
        """Return the function that makes the courses."""
        return lambda rank: Sums(rank, setting.view)


@final
class Sums(AbstractCourse):
    """One worker's course: a sum and an update in every step."""

    counts = ("num_steps", "num_sums")

    def __init__(self, rank: int, view: View) -> None:
        super().__init__(rank, view)
        self.num_steps = 0
        self.num_sums = 0
        """The number of sums, including those to which this worker added no gradients."""

    def step(self, *, skipped: bool = False) -> Acts:
        """Sum the gradients, again among the living if the view has changed, and update."""
        while (yield SumGradients(self.num_sums)) is CHANGED:
            pass
        yield UPDATE
        self.num_sums += 1
        self.num_steps += 1

    def finish(self) -> Acts:
        """Join the others' sums without gradients until no worker trains.

        Then take over the model of the worker that trained longest: it saw every update.
        """
        while len(self.view) > 1:
            summed = yield SumGradients(self.num_sums, trains=False)
            if summed is CHANGED:
                continue
            if not summed.num_training:
                break
            self.num_sums += 1
        while len(self.view) > 1 and (yield Adopt(self.num_steps)) is CHANGED:
            pass

    def report(self) -> int:
        """Return how many sums this worker has made."""
        return self.num_sums
