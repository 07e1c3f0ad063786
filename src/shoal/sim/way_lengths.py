"""How long the ways between hosts are, given what each cable costs, in any unit.

Of the shortest ways as `routes` finds them (by cables); where several are equal, the costliest.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from shoal.switching import Detours, picoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shoal.switching import Cable, Topology


def delay_of(cable: Cable) -> int:
    """Return how long a bit is under way on `cable`, picoseconds."""
    return picoseconds(cable.link.delay_s)


class WayLengths:
    """The cost of the way from each host to each other, every host having one way in and out.

    `join` makes one cost of two that follow each other: their sum, or, with `max`, the larger one.
    Ways avoid the cables `without`, where others lead on.
    """

    def __init__(
        self,
        topology: Topology,
        cost: Callable[[Cable], int],
        join: Callable[[int, int], int] = operator.add,
        *,
        without: Collection[int] = (),
    ) -> None:
        self._topology, self._join = topology, join
        self._costs = [cost(cable) for cable in topology.cables]
        hosts, switches = topology.hosts, len(topology.switches)
        self._switch = [0] * hosts
        self.out, self.into = [0] * hosts, [0] * hosts
        for cable, its_cost in zip(topology.cables, self._costs, strict=True):
            if cable.source >= 0:
                self.out[cable.source], self._switch[cable.source] = its_cost, -1 - cable.target
            if cable.target >= 0:
                self.into[cable.target] = its_cost
        self.between_switches = np.zeros((switches, switches), np.int64)
        """The cost between two switches that hosts are at: [switch, switch]; 0 for the other
        switches."""
        host_at = dict(zip(self._switch, range(hosts), strict=True))
        routes = Detours(topology, without)
        for there, host in host_at.items():
            known, toward = {there: 0}, routes.ports_toward(host)
            for here in host_at:
                self.between_switches[here, there] = self._length(here, known, toward)
        self._between: list[list[int]] = self.between_switches.tolist()

    def between(self, source: int, target: int) -> int:
        """Return what the way from host to host costs; nothing, if they are the same."""
        if source == target:
            return 0
        across = self._between[self._switch[source]][self._switch[target]]
        return self._join(self._join(self.out[source], across), self.into[target])

    def _length(self, switch: int, known: dict[int, int], toward: list[tuple[int, ...]]) -> int:
        """Return the cost from `switch` on, by the ports in `toward`; `known` is added to."""
        if switch not in known:
            known[switch] = max(
                self._join(
                    self._costs[port],
                    self._length(-1 - self._topology.cables[port].target, known, toward),
                )
                for port in toward[switch]
            )
        return known[switch]
