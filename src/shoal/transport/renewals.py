"""Messages that bring a newer version of what the receiver has: how much of one may get lost."""

from __future__ import annotations

from shoal.errors import UsageError


def check_pull_bound(pull_bound: float, loss_bound: float) -> None:
    """Raise `UsageError` if a pull from a parameter server may lose more than a push to it."""
    if pull_bound > loss_bound:
        message = (
            f"Pulls may lose no more than pushes: a pull's bound of {pull_bound:g} needs a loss"
            f" bound of as much, over the transport 'shoal', not {loss_bound:g}."
        )
        raise UsageError(message)
