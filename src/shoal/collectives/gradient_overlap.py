"""What the exchange of a step's gradients hides behind: the words, for real and simulated steps."""

from __future__ import annotations

from typing import Literal, get_args

from shoal.errors import UsageError

GradientOverlap = Literal["backward", "next-forward"]
"""What an exchange of gradients hides behind; the next forward pass includes backward."""


def check_gradient_overlap(overlap: GradientOverlap) -> None:
    """Raise `UsageError` for a word that is not one of them."""
    if overlap not in get_args(GradientOverlap):
        words = ", ".join(get_args(GradientOverlap))
        message = f"overlap is one of {words}, not {overlap!r}."
        raise UsageError(message)
