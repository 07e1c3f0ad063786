"""Section `shared-hosts`: all-reduce among emulated hosts that several ranks share.

Ranks of one host reach each other without passing its port. The ideal is the time in which
2(H-1)/H of the buffer pass it, H being the number of hosts: what crosses when hosts send their
sums. A ring over all N ranks lets 2(N-1)/N cross, a direct sum each rank's shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.collectives import AUTO
from shoal_bench.emulated_network import EmulatedNetwork
from shoal_bench.rows import Row, at_most, figure
from shoal_bench.shaped import (
    CLEAN_TARGET,
    ShapedCase,
    is_possible,
    processor_row,
    processor_ticks,
    ratios,
)
from shoal_bench.turns import GLOO, Contender, all_reduce_rounds

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME: Final = "shared-hosts"

UNASKED: Final = "unasked"
"""Name of the sum that suits itself to its hosts."""

CASE: Final = ShapedCase(4, 50, 4.0)
RANKS: Final = 2
"""The ranks on each host."""


def measure(stand: Stand) -> list[Row]:
    """Return the rows of sums made unasked, exact and bounded, of others, and of gloo: medians."""
    if not is_possible(stand):
        return []
    rounds = stand.choose(full=25, quick=3)
    contenders = [
        Contender(UNASKED, rounds, algorithm=AUTO),
        Contender(f"{UNASKED}, p = 5%", rounds, 0.05, AUTO),
        Contender("direct", rounds, algorithm="direct"),
        Contender("ring", rounds, algorithm="ring"),
        Contender(GLOO, rounds),
    ]
    text = f"{CASE}, {RANKS} ranks each"
    stand.note(text, 0, 1)
    with EmulatedNetwork(CASE.ports) as network:
        hosts = [host for host in network.hosts for _ in range(RANKS)]
        before = processor_ticks()
        by_rank = stand.pool(len(hosts)).call(all_reduce_rounds, hosts, CASE.num_bytes, contenders)
        rows = [processor_row(text, before)]
    for which, contender in enumerate(contenders):
        values = ratios(by_rank, which, CASE.ideal_s)
        target = at_most(CLEAN_TARGET) if contender.name == UNASKED else None
        name = f"{text}, {contender.name}"
        rows.append(figure(name, "time / ideal, median", "", values, target))
    return rows
