"""The transports that strategies can go over, by name, and what may be asked of them."""

from __future__ import annotations

from typing import Final

from shoal.errors import UsageError
from shoal.transport.holes import POLICIES

TRANSPORTS: Final = ("gloo", "shoal")
"""torch's gloo over TCP, or Shoal's own transport over UDP."""


def check_transport(transport: str, loss_bound: float, holes: str) -> int:
    """Return the number of the policy `holes`.

    Raises `UsageError` unless that and `transport` exist and it can lose the share `loss_bound`.
    """
    if holes not in POLICIES:
        message = f"Unknown policy for holes {holes!r}; choose one of {', '.join(POLICIES)}."
        raise UsageError(message)
    if transport not in TRANSPORTS:
        message = f"Unknown transport {transport!r}; choose one of {', '.join(TRANSPORTS)}."
        raise UsageError(message)
    if not 0 <= loss_bound < 1:
        message = f"A loss bound is a share of at least 0 and less than 1, not {loss_bound:g}."
        raise UsageError(message)
    if transport == "gloo" and loss_bound:
        raise UsageError("gloo loses nothing; a loss bound needs the transport 'shoal'.")
    return POLICIES[holes]
