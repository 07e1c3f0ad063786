"""A job as formulas see it: constant computing, and what exchanges of its workers take."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.sim.network import TCP_HEADERS
from shoal.sim.training.hierarchy import ONE_WAY_DELAYS, traffic_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.sim.closed_form.exchange_times import ExchangeTimes
    from shoal.sim.training.model import ModelSize
    from shoal.switching import Topology


_MORE: Final = 1 + 1e-12
"""The factor up to which two loads count as the same: they are sums in another order."""


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """What a group's exchange takes, whether others of its round share links, and which it uses."""

    seconds: float
    shares: bool
    links: NDArray[np.bool_]


@dataclass(frozen=True)
class FormulaInput:
    """What a formula is given; times are seconds."""

    topology: Topology
    exchanges: ExchangeTimes
    host_of: Sequence[int]
    model: ModelSize
    compute: NDArray[np.float64]
    """The seconds that a step of each rank computes."""
    steps: int
    seed: int
    message_cost: float
    """Software, for each message that follows another in an exchange."""
    server_cost: float
    """Software, for a push and a pull."""

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self.host_of)

    def rings(self, groups: Sequence[Sequence[int]], size: float) -> list[ExchangeCost]:
        """Return what each group takes for the mean of `size` bytes, all beginning at once.

        2(S-1)/S of it over every hop, and the delays and the software of 2(S-1) rounds
        (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). Alone: nothing.
        """
        each, delays = [], []
        for members in groups:
            hosts = [self.host_of[rank] for rank in members]
            hops = list(pairwise([*hosts, hosts[0]])) if len(hosts) > 1 else []
            sources, targets = [a for a, _ in hops], [b for _, b in hops]
            count = len(hosts)
            sizes = np.full(len(hops), 2 * (count - 1) / count * size * TCP_HEADERS)
            each.append(self.exchanges.loads(sources, targets, sizes))
            delays.append(self.exchanges.longest_delay(sources, targets))
        total = np.sum(each, axis=0)
        found = []
        for members, mine, delay in zip(groups, each, delays, strict=True):
            busiest = self.exchanges.busiest(mine, total)
            rounds = 2 * (len(members) - 1)
            shares = bool(np.any((mine > 0) & (total > mine * _MORE)))
            seconds = busiest + rounds * (delay + self.message_cost)
            found.append(ExchangeCost(seconds, shares, mine > 0))
        return found

    def hierarchical(self, per_host: int, size: float) -> float:
        """Return what all take for a mean that each `per_host` workers in a row make first.

        With 1 of these it is the direct one. Four one-way delays, whatever the stages.
        """
        count = self.size
        sources, targets, sizes = self._traffic(per_host, size)
        messages = 2 * (per_host - 1) + 2 * (count // per_host - 1)
        later = (ONE_WAY_DELAYS - 1) * self.exchanges.longest_delay(sources, targets)
        last = self.exchanges.last_arrival(sources, targets, sizes)
        return last + later + messages * self.message_cost

    def _traffic(
        self, per_host: int, size: float
    ) -> tuple[list[int], list[int], NDArray[np.float64]]:
        count, hosts = self.size, self.host_of
        if per_host == 1:  # each to each, what it has of the other's shard, and its own shard's sum
            ranks = np.arange(count)
            sources, targets = (each.ravel() for each in np.meshgrid(ranks, ranks, indexing="ij"))
            away = sources != targets
            shares = np.full(int(away.sum()), 2 / count)
            ends = sources[away].tolist(), targets[away].tolist()
        else:
            traffic = traffic_of(count, per_host)
            ends, shares = (list(traffic.sources), list(traffic.targets)), np.array(traffic.shares)
        between = [hosts[rank] for rank in ends[0]], [hosts[rank] for rank in ends[1]]
        return *between, shares * size * TCP_HEADERS

    def to_all_shards(self) -> float:
        """Return what it takes until every worker has pushed its model to the others' shards.

        Or pulled it from them: each has one part in as many as there are workers.
        """
        sources, targets, sizes = self._traffic(1, self.model.bytes / 2)
        return self.exchanges.last_arrival(sources, targets, sizes)

    def pairs(self, active: Sequence[int], passive: Sequence[int]) -> float:
        """Return what the slowest of some pairs takes to exchange the model both ways."""
        a, b = [self.host_of[r] for r in active], [self.host_of[r] for r in passive]
        sizes = np.full(2 * len(a), self.model.bytes * TCP_HEADERS)
        last = self.exchanges.last_arrival([*a, *b], [*b, *a], sizes)
        return last + 2 * self.message_cost
