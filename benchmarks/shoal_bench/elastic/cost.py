"""Section `cost`: what it costs a job in which nothing fails that it could go on without workers.

Two jobs of the same strategy over the same transport are there at once, one of a fixed size and one
that goes on without lost workers. They take turns, some steps of one and then of the other, in
another order each time, while the other's workers wait. The slowest worker of a job counts.

Where four workers share this machine's cores, each copy that a job keeps costs time. On hosts of
their own, which the last model has, they wait for the network meanwhile.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from shoal.errors import ShoalError
from shoal.lab import obstacle
from shoal_bench.elastic.job import ElasticJob
from shoal_bench.elastic.ours import Shoal
from shoal_bench.elastic.worker import Training
from shoal_bench.emulated_network import COMMANDS_WITHOUT_LOSS, EmulatedNetwork, Ports
from shoal_bench.pairs import take_both
from shoal_bench.rows import Row, at_most, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_bench.emulated_network import Host
    from shoal_bench.pairs import Pairs
    from shoal_bench.stand import Stand

NAME: Final = "cost"
WORKERS: Final = 4
SYNCS: Final = ("all-reduce", "ds-sync", "ripples-static")
"""The strategies. Where groups form at run time workers cannot all stop after as many steps."""
PORTS: Final = Ports(WORKERS, 200_000_000, 1 << 18)
ON_HOSTS: Final = "2 MB, 100 ms of compute added, on hosts at 200 Mbit/s"
TRAININGS: Final = {
    "2 MB, no compute added": (Training(width=350, compute_s=0.0), 24),
    "2 MB, 20 ms of compute added": (Training(width=350, compute_s=0.02), 24),
    "40 MB, 200 ms of compute added": (Training(width=1580, compute_s=0.2), 8),
    ON_HOSTS: (Training(width=350, compute_s=0.1), 24),
}
"""Models by their size, and the pairs to take; compute is slept, about as long as what a step takes
without it."""
MOST: Final = 1.01

_CYCLE: Final = 4
"""Steps in one turn."""
_WARM_UP: Final = 2


def measure(stand: Stand) -> list[Row]:
    """Return a row for each strategy and model, and keep them one by one."""
    trainings = dict(TRAININGS)
    if reason := obstacle(COMMANDS_WITHOUT_LOSS):
        stand.skip(reason)
        del trainings[ON_HOSTS]
    parts = {
        f"{WORKERS} workers, {text}, {sync}": (sync, training, pairs, text == ON_HOSTS)
        for text, (training, pairs) in trainings.items()
        for sync in SYNCS
    }
    rows: list[Row] = []
    for case, (sync, training, pairs, is_apart) in stand.each(parts):
        pairs = stand.choose(full=pairs, quick=3)
        try:
            with EmulatedNetwork(PORTS, can_lose=False) if is_apart else nullcontext() as network:
                found = step_pairs(sync, training, pairs, hosts=network.hosts if network else ())
        except ShoalError as error:
            stand.skip(f"{case}: {error}")
            continue
        metric = "step time, a job that can go on / one of fixed size"
        bound = at_most(MOST)
        rows.append(comparison(case, metric, "ms", found, peer="fixed size", target=bound))
        stand.keep(rows)
    return rows


def step_pairs(
    sync: str,
    training: Training,
    pairs: int,
    workers: int = WORKERS,
    hosts: Sequence[Host] = (),
) -> Pairs:
    """Return (elastic, fixed) milliseconds per step of the slowest worker, taken by turns."""
    with (
        ElasticJob(Shoal(sync), workers, training, hosts, is_led=True) as elastic,
        ElasticJob(Shoal(sync, is_elastic=False), workers, training, hosts, is_led=True) as fixed,
    ):
        jobs = elastic, fixed
        for job in jobs:
            job.start()

        def take(which: int) -> float:
            return 1000 * max(jobs[which].steps(_CYCLE))

        return [take_both(number, take) for number in range(_WARM_UP + pairs)][_WARM_UP:]
