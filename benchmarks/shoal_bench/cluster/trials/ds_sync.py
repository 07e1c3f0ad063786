"""DS-Sync where racks share little: against ring and hierarchical all-reduce, over every transport.

Groups that are aware of racks come from the topology-aware division; the others are drawn at
random, or are the grid's, whose rows of four happen to be the racks but whose columns all cross at
once. gloo has one algorithm, a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.groups import Topology
from shoal_bench.cluster.scenarios import LEAVES, OVERSUBSCRIPTION, oversubscribed
from shoal_bench.cluster.trials.trial import Variant
from shoal_bench.peers.ours import Shoal

if TYPE_CHECKING:
    from shoal_bench.cluster.trials.work import Work

LOSS_BOUND: Final = 0.1
OVERS: Final[dict[str, dict[str, Any]]] = {
    "gloo": {},
    "p = 0": {"transport": "shoal"},
    "p = 10 %": {"transport": "shoal", "loss_bound": LOSS_BOUND},
}
"""Transports by their names."""
RING, HIERARCHICAL, AWARE, UNAWARE, GRID = (
    "ring",
    "hierarchical",
    "ds-sync, aware of racks",
    "ds-sync, random groups",
    "ds-sync, grid",
)


def name_of(way: str, over: str) -> str:
    """Return a variant's name."""
    return f"{way}, {over}"


def variants(work: Work, *, every: bool) -> tuple[Variant, ...]:
    """Return all ways over all transports; without `every`, one of each kind."""
    half = work.workers // LEAVES
    topology = Topology.uniform(
        work.workers,
        1,
        half,
        nic_bps=work.megabits * 1_000_000,
        oversubscription_ratio=OVERSUBSCRIPTION,
    )
    found = []
    for over, transport in OVERS.items():
        if over == "p = 0" and not every:
            continue
        all_reduce = Shoal("all-reduce", bucket_bytes=work.bucket_bytes, **transport)
        ring, hierarchical = ((("SHOAL_ALL_REDUCE", way),) for way in (RING, HIERARCHICAL))
        found.append(Variant(name_of(RING, over), all_reduce, oversubscribed, ring))
        if transport:  # gloo has a ring alone
            name = name_of(HIERARCHICAL, over)
            found.append(Variant(name, all_reduce, oversubscribed, hierarchical, half))
        ways = {
            AWARE: Shoal("ds-sync", shuffle="topology", topology=topology, **transport),
            UNAWARE: Shoal("ds-sync", shuffle="random", **transport),
            GRID: Shoal("ds-sync", **transport),
        }
        found += [
            Variant(name_of(way, over), library, oversubscribed) for way, library in ways.items()
        ]
    return tuple(found)
