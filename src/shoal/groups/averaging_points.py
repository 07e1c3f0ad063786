"""When a worker's parameters are averaged, with what beside them, and behind what it hides.

Delayed averaging is that of Zhou et al., DaSGD, arXiv:2006.00441, and Wang et al.,
Overlap-Local-SGD, ICASSP 2020. Owns the rule; who averages with whom is a schedule's to say, or the
generator's.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from shoal.arguments import flag, whole_number
from shoal.errors import UsageError

AveragingOverlap = Literal["none", "next-steps"]
"""What an average of parameters hides behind: nothing, or the steps until the next one is due."""


class AveragingPoints:
    """Every `interval` local steps an average is due; under `overlap` computing goes on meanwhile.

    Then a copy of the model is averaged. What that has changed is added at the end of the first
    step at which it is known, and waited for at the end of the step after which the next average is
    due: a worker has one under way at most. With `average_state` the local optimizer's state is
    averaged with them (docs/papers.md, 2.9: an ablation), which waits like the parameters. Raises
    `UsageError` for an interval below 1, an unknown word, and state while computing goes on.
    """

    def __init__(
        self, interval: int, overlap: AveragingOverlap = "none", *, average_state: bool = False
    ) -> None:
        if overlap not in get_args(AveragingOverlap):
            words = ", ".join(get_args(AveragingOverlap))
            message = f"overlap is one of {words} where parameters are averaged, not {overlap!r}."
            raise UsageError(message)
        self.interval: Final = whole_number(
            interval, "The interval between synchronizations", low=1
        )
        self.overlap: Final = overlap
        self.average_state: Final = flag(average_state, "average_state")
        if average_state and self.is_delayed:
            raise UsageError(
                "average_state is for overlap='none': the optimizer goes on changing its state"
                " while copies of parameters are averaged."
            )

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return what it was made with, by name."""
        return {
            "interval": self.interval,
            "overlap": self.overlap,
            "average_state": self.average_state,
        }

    @property
    def is_delayed(self) -> bool:
        """Whether copies are averaged while computing goes on."""
        return self.overlap == "next-steps"

    def round_after(self, steps: int) -> int | None:
        """Return which average, counted from 0, is due after so many local steps; None: none."""
        number, left = divmod(steps, self.interval)
        return None if left else number - 1
