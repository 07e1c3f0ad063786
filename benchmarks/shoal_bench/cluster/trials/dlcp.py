"""The ablation of DLCP: its four mechanisms all on, all off, each one off and each one alone.

"Off" is Shoal's transport as a reliable one: receivers grant credit, what is lost is asked for and
sent again, the sender's own order of layers stays; switches drop what finds a port full, whatever
its tags, and a flow keeps to one path. References are gloo, over TCP on the same network, and all
off with sums around a ring, where no two senders meet at a port.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal_bench.cluster.trials.networks import Switches, bursty_leaf_spine, shallow_star
from shoal_bench.cluster.trials.trial import Variant
from shoal_bench.peers.ours import Shoal

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.scenario import ClusterSpec
    from shoal_bench.cluster.trials.work import Work

LOSS_BOUND: Final = 0.1
PATHS: Final = "8"
"""Source ports that a host sprays over."""

ON, OFF, RING, GLOO = "all on", "all off", "all off, ring", "gloo"

SPRAYING, QUEUEING, DROPPING, LOSS = "spraying", "queueing", "dropping", "bounded loss"
ALL: Final = (SPRAYING, QUEUEING, DROPPING, LOSS)
TRAINED: Final = "-trained"
"""The end of the names of cases whose models have learnt what they will, all on and all off."""

WITHOUT_PATHS: Final = (QUEUEING, DROPPING, LOSS)
"""What can be on or off where there is one path."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A training on a network, whose mechanisms are to be told apart."""

    strategy: str
    build: Callable[[Switches, Work], ClusterSpec]
    mechanisms: tuple[str, ...]

    def options(self, work: Work) -> dict[str, Any]:
        """Return the strategy's own options."""
        if self.strategy == "all-reduce":
            return {"bucket_bytes": work.bucket_bytes, "overlap": "next-forward"}
        return {}

    def variant(self, name: str, on: frozenset[str], work: Work) -> Variant:
        """Return the variant with the mechanisms `on`."""
        bound = LOSS_BOUND if LOSS in on else 0.0
        library = Shoal(self.strategy, transport="shoal", loss_bound=bound, **self.options(work))
        switches = Switches(SPRAYING in on, QUEUEING in on, DROPPING in on)
        paths = (("SHOAL_PATHS", PATHS),) if SPRAYING in on else ()
        return Variant(name, library, partial(self.build, switches), paths)

    def ends(self, work: Work, *, every: bool) -> tuple[Variant, ...]:
        """Return all on and all off, whether `every` variant is asked for or not."""
        everything = frozenset(self.mechanisms)
        return self.variant(ON, everything, work), self.variant(OFF, frozenset(), work)

    def variants(self, work: Work, *, every: bool) -> tuple[Variant, ...]:
        """Return all on, all off and gloo; with `every`, the ring, each one off, each one alone."""
        on, off = self.ends(work, every=every)
        tcp = Shoal(self.strategy, **self.options(work))
        found = [on, off, Variant(GLOO, tcp, partial(self.build, Switches()))]
        if not every:
            return tuple(found)
        if self.strategy == "all-reduce":
            found.append(replace(off, name=RING, environment=(("SHOAL_ALL_REDUCE", "ring"),)))
        everything = frozenset(self.mechanisms)
        found += [self.variant(without(one), everything - {one}, work) for one in self.mechanisms]
        found += [self.variant(alone(one), frozenset({one}), work) for one in self.mechanisms]
        return tuple(found)


def without(mechanism: str) -> str:
    """Return the name of the variant in which only `mechanism` is off."""
    return f"without {mechanism}"


def alone(mechanism: str) -> str:
    """Return the name of the variant in which only `mechanism` is on."""
    return f"{mechanism} alone"


INCAST: Final = Setting("all-reduce", shallow_star, WITHOUT_PATHS)
PUSH: Final = Setting("ps-bsp", shallow_star, WITHOUT_PATHS)
BURSTS: Final = Setting("all-reduce", bursty_leaf_spine, ALL)
