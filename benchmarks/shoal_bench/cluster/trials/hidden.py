"""What hiding exchanges is worth: begun layer by layer, or whole after the backward pass.

Two cases, in each of which a step's bytes take about as long as its computing. In one a single
server has all parameters, so that its link is what everyone waits for; in the other all workers
average their models. References are the same over gloo, which has no order of layers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal_bench.cluster.trials.networks import plain_star
from shoal_bench.cluster.trials.trial import Variant
from shoal_bench.peers.ours import Shoal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.cluster.trials.work import Work

WHOLE: Final = "none"
"""The overlap that exchanges the whole model when backward has ended, and waits for it."""
HIDDEN: Final[dict[str, Sequence[str]]] = {
    "ps-bsp": ("next-forward", "layers"),
    "local-sgd": ("next-forward", "layers"),
}
"""The overlaps of each strategy."""
OPTIONS: Final[dict[str, dict[str, Any]]] = {"ps-bsp": {"servers": 1}, "local-sgd": {"interval": 1}}
"""Other options of each strategy."""


def name_of(overlap: str, transport: str) -> str:
    """Return a variant's name."""
    return f"overlap {overlap}, {transport}"


def variants(strategy: str, _work: Work, *, every: bool) -> tuple[Variant, ...]:
    """Return every overlap of `strategy` over Shoal's transport; with `every`, over gloo, too."""
    return tuple(
        Variant(
            name_of(overlap, transport),
            Shoal(strategy, transport=transport, overlap=overlap, **OPTIONS.get(strategy, {})),
            plain_star,
        )
        for transport in (("shoal", "gloo") if every else ("shoal",))
        for overlap in (WHOLE, *HIDDEN[strategy])
    )


PUSHES: Final = partial(variants, "ps-bsp")
AVERAGES: Final = partial(variants, "local-sgd")
