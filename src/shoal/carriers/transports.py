"""The transports that strategies can go over, by name, and what may be asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.arguments import one_of, share
from shoal.errors import UsageError
from shoal.transport import IMPORTANCE, LARGE, POLICIES, ZERO, check_wire_type

if TYPE_CHECKING:
    from shoal.comm import Layers

TRANSPORTS: Final = ("gloo", "shoal")
"""torch's gloo over TCP, or Shoal's own transport over UDP."""

ALL_LAYERS, FRONT, BACK = "all", "front", "back"
LOSSY_LAYERS: Final = (ALL_LAYERS, FRONT, BACK)
"""The layers whose sums may lose something: all, or the half near the input or the output."""


DEFAULT_HOLES: Final = "error-feedback"
"""What trained best where much gets lost (docs/loss.md). Needs tensors that keep their memory."""


@dataclass(frozen=True, slots=True)
class LossOptions:
    """What may get lost in sums over Shoal's own transport: what that means, and their rounding."""

    bound: float = 0.0
    """Share of each contribution to a float sum or mean."""
    holes: int = ZERO
    """What a lost part of a sum counts as; see `transport.holes`."""
    layers: str = ALL_LAYERS
    """One of `LOSSY_LAYERS`; other sums than gradients belong to no layer."""
    importance: str = LARGE
    """The kind of packets that are lost last; see `transport.tags`."""
    wire: str | None = None
    """What the floats of contributions, and of their sums, are sent as: one of
    `transport.forms.WIRE_TYPES`, or None for what they are in the tensor."""

    def bound_of(self, layers: Layers | None) -> float:
        """Return the bound for sums of `layers`, of which the front-most counts."""
        if self.layers == ALL_LAYERS:
            return self.bound
        if layers is None:
            return 0.0
        is_front = 2 * layers.front < layers.depth
        return self.bound if is_front == (self.layers == FRONT) else 0.0


def check_ablation(layers: str, importance: str) -> None:
    """Raise `UsageError` unless there are such layers to lose from and such an order of loss."""
    for what, given, known in (
        ("layers that may lose something", layers, LOSSY_LAYERS),
        ("importance", importance, IMPORTANCE),
    ):
        one_of(given, what, known)


def check_transport(transport: str, loss_bound: float, holes: str, wire: str | None = None) -> int:
    """Return the number of the policy `holes`.

    Raises `UsageError` unless that, `wire` and `transport` exist, and the transport can lose the
    share `loss_bound` and send floats as `wire`.
    """
    check_wire_type(wire)
    one_of(holes, "policy for holes", POLICIES)
    one_of(transport, "transport", TRANSPORTS)
    share(loss_bound, "A loss bound")
    if transport == "gloo" and loss_bound:
        raise UsageError("gloo loses nothing; a loss bound needs the transport 'shoal'.")
    if transport == "gloo" and wire is not None:
        raise UsageError(
            "gloo sends tensors as they are; another wire type needs the transport 'shoal'."
        )
    return POLICIES[holes]
