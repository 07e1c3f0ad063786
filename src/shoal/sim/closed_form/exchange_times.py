"""How long messages between hosts take that begin together: the alpha-beta model over links.

A way's delay is alpha; beta is what the busiest of a message's links takes for all that crosses it.
Messages that are alike get through exactly then (max-min fairly); unlike ones may take longer,
since what is held back at one link leaves room at another. (Hockney, "The communication challenge
for MPP", Parallel Computing 20, 1994.)
Knows no strategy. Times are seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.errors import UsageError
from shoal.sim.way_lengths import WayLengths, delay_of
from shoal.switching import PICOSECONDS, Detours, down_cables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.switching import Topology

_BITS: Final = 8


class ExchangeTimes:
    """The links of a topology, and a link of `local_rate` bits per second from each host to itself.

    Raises `UsageError` if a flow would take one of several equal ways, and not all of them
    (`spray`): which one is chance.
    """

    def __init__(self, topology: Topology, *, local_rate: float, spray: bool) -> None:
        self._down = down_cables(topology)
        self._delays = WayLengths(topology, delay_of, without=self._down)
        self._hosts, self._switches = topology.hosts, len(topology.switches)
        cables = topology.cables
        rates = [float(cable.port.rate) for cable in cables] + [local_rate] * topology.hosts
        self._rates = np.array(rates) / _BITS
        self._local = len(cables)
        self._out, self._into = np.zeros((2, self._hosts), np.int64)
        self._switch = np.zeros(self._hosts, np.int64)
        for number, cable in enumerate(cables):
            if cable.source >= 0:
                self._out[cable.source], self._switch[cable.source] = number, -1 - cable.target
            if cable.target >= 0:
                self._into[cable.target] = number
        self._trunks = self._shares(topology, spray=spray)

    def longest_delay(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Return the delay of the longest of some ways."""
        ways = set(zip(sources, targets, strict=True))
        return max((self._delays.between(a, b) for a, b in ways), default=0) / PICOSECONDS

    def loads(
        self, sources: Sequence[int], targets: Sequence[int], sizes: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the seconds for which messages of `sizes` bytes fill each link."""
        source, target = np.array(sources, np.int64), np.array(targets, np.int64)
        bytes_ = np.zeros(len(self._rates))
        away = source != target
        np.add.at(bytes_, self._local + source[~away], sizes[~away])
        np.add.at(bytes_, self._out[source[away]], sizes[away])
        np.add.at(bytes_, self._into[target[away]], sizes[away])
        between = self._switch[source[away]] * self._switches + self._switch[target[away]]
        by_switches = np.bincount(between, sizes[away], self._switches**2)
        for pair in np.flatnonzero(by_switches):
            for link, share in self._trunks.get(divmod(int(pair), self._switches), ()):
                bytes_[link] += share * by_switches[pair]
        return bytes_ / self._rates

    def last_arrival(
        self, sources: Sequence[int], targets: Sequence[int], sizes: NDArray[np.float64]
    ) -> float:
        """Return when the last of some messages has come, each as late as its busiest link."""
        if not len(sizes):
            return 0.0
        loads = self.loads(sources, targets, sizes)
        source, target = np.array(sources, np.int64), np.array(targets, np.int64)
        trunks = np.zeros((self._switches, self._switches))
        for ends, shares in self._trunks.items():
            trunks[ends] = max(loads[link] for link, _ in shares)
        here, there = self._switch[source], self._switch[target]
        busiest = np.maximum(loads[self._out[source]], loads[self._into[target]])
        busiest = np.maximum(busiest, trunks[here, there])
        out, into = np.array(self._delays.out), np.array(self._delays.into)
        delays = out[source] + self._delays.between_switches[here, there] + into[target]
        away = source != target
        arrivals = np.where(away, busiest + delays / PICOSECONDS, loads[self._local + source])
        return float(arrivals.max())

    def busiest(self, mine: NDArray[np.float64], everyones: NDArray[np.float64]) -> float:
        """Return how long everyone's load takes on the busiest of the links that `mine` crosses."""
        return float(np.max(everyones, where=mine > 0, initial=0.0))

    def _shares(
        self, topology: Topology, *, spray: bool
    ) -> dict[tuple[int, int], list[tuple[int, float]]]:
        """Return the trunks between the switches that hosts are at, and which share each has."""
        routes = Detours(topology, self._down)
        host_at = {int(switch): host for host, switch in enumerate(self._switch)}
        found = {}
        for there, host in host_at.items():
            toward = routes.ports_toward(host)
            for here in host_at:
                if here != there:
                    found[here, there] = self._split(topology, toward, here, there, spray=spray)
        return found

    def _split(
        self,
        topology: Topology,
        toward: list[tuple[int, ...]],
        here: int,
        there: int,
        *,
        spray: bool,
    ) -> list[tuple[int, float]]:
        """Let a load of 1 flow from a switch to another, evenly over equal ports."""
        shares: dict[int, float] = {}
        at = {here: 1.0}
        while set(at) != {there}:
            onward: dict[int, float] = {}
            for switch, load in at.items():
                if len(toward[switch]) > 1 and not spray:
                    raise UsageError(
                        "A closed form cannot tell which of several equal ways a flow takes: let"
                        ' [switch] forwarding = "packet", or take level = "flows".'
                    )
                for port in toward[switch]:
                    shares[port] = shares.get(port, 0.0) + load / len(toward[switch])
                    target = -1 - topology.cables[port].target
                    onward[target] = onward.get(target, 0.0) + load / len(toward[switch])
            at = onward
        return list(shares.items())
