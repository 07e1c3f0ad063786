"""DS-Sync where racks share little: against ring and hierarchical all-reduce, over every transport.

Groups that are aware of racks come from the topology-aware division; the others are drawn at
random, or are the grid's, whose rows of four happen to be the racks but whose columns all cross at
once. gloo has one algorithm, a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.groups.topology import Topology
from shoal_bench.cluster.scenarios import LEAVES, OVERSUBSCRIPTION, oversubscribed
from shoal_bench.cluster.trials.trial import Variant
from shoal_bench.peers.ours import Shoal

if TYPE_CHECKING:
    from shoal_bench.cluster.trials.work import Work

LOSS_BOUND: Final = 0.1
OVERS: Final = ("gloo", "p = 0", "p = 10 %")
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
    overs = OVERS if every else OVERS[:1] + OVERS[2:]
    found = []
    for over in overs:
        transport: dict[str, object] = {} if over == "gloo" else {"transport": "shoal"}
        if over == OVERS[2]:
            transport["loss_bound"] = LOSS_BOUND

        def shoal(strategy: str, _over: dict[str, object] = transport, **options: object) -> Shoal:
            return Shoal(strategy, **_over, **options)  # type: ignore[arg-type]  # all are named

        all_reduce = shoal("all-reduce", bucket_bytes=work.bucket_bytes)
        found.append(
            Variant(
                name_of(RING, over), all_reduce, oversubscribed, (("SHOAL_ALL_REDUCE", "ring"),)
            )
        )
        if over != "gloo":
            found.append(
                Variant(
                    name_of(HIERARCHICAL, over),
                    all_reduce,
                    oversubscribed,
                    (("SHOAL_ALL_REDUCE", "hierarchical"),),
                    workers_per_host=half,
                )
            )
        ways = {
            AWARE: shoal("ds-sync", shuffle="topology", topology=topology),
            UNAWARE: shoal("ds-sync", shuffle="random"),
            GRID: shoal("ds-sync"),
        }
        found += [
            Variant(name_of(way, over), library, oversubscribed) for way, library in ways.items()
        ]
    return tuple(found)
