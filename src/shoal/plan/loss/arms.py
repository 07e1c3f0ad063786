"""What a profile compares: bounds, policies for holes, and the papers' ablations.

The ablations (docs/papers.md, 1.2) ask whose loss does more harm: that of front or of back
layers, that of large or of small gradients. They fill holes with zeros, as the papers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shoal.carriers import ALL_LAYERS, BACK, FRONT
from shoal.errors import UsageError
from shoal.transport import IMPORTANCE, LARGE, NONE, SMALL

ABLATIONS: Final = {
    "none": (),
    "layers": ("layers",),
    "magnitude": ("magnitude",),
    "all": ("layers", "magnitude"),
}
PAPERS_POLICY: Final = "zero"


class Arm(msgspec.Struct, frozen=True):
    """One way of losing."""

    bound: float = 0.0
    holes: str = PAPERS_POLICY
    layers: str = ALL_LAYERS
    """The layers whose gradients may get lost; see `carriers.transports.LOSSY_LAYERS`."""

    importance: str = LARGE
    """The kind of packets that are lost last; see `transport.tags.IMPORTANCE`."""

    @property
    def is_ablation(self) -> bool:
        """Whether something but the bound and the policy differs from the transport's own way."""
        return self.layers != ALL_LAYERS or self.importance != LARGE

    @property
    def what(self) -> str:
        """What is lost, in words."""
        if not self.bound:
            return "nothing"
        order = {
            LARGE: "small gradients first",
            SMALL: "large gradients first",
            NONE: "whatever their size",
        }
        where = {FRONT: "front layers only, ", BACK: "back layers only, "}
        return where.get(self.layers, "") + order[self.importance]

    def __str__(self) -> str:
        return f"bound {self.bound:g}, {self.holes}, {self.what}" if self.bound else "lossless"


LOSSLESS: Final = Arm()


def arms_of(bounds: Sequence[float], holes: Sequence[str], ablation: str) -> list[Arm]:
    """Return all arms, the lossless one first, none twice. Raises `UsageError` for a wrong word."""
    if ablation not in ABLATIONS:
        message = f"Unknown ablation {ablation!r}; choose one of {', '.join(ABLATIONS)}."
        raise UsageError(message)
    lossy = sorted({bound for bound in bounds if bound})
    arms = [LOSSLESS, *(Arm(bound, policy) for policy in holes for bound in lossy)]
    if "layers" in ABLATIONS[ablation]:
        arms += [Arm(bound, layers=layers) for layers in (FRONT, BACK) for bound in lossy]
    if "magnitude" in ABLATIONS[ablation]:
        arms += [Arm(bound, importance=order) for order in IMPORTANCE for bound in lossy]
    return list(dict.fromkeys(arms))
