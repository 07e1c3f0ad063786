"""What can be wrong with a cluster: each scenario is a network, what spoils it, and slow workers.

Every network is clean until the workers have met; then the scenario begins. Loss is set on the
cables from a switch to a host, so that every packet meets it once. Each host has its own link, and
the rates are so low that the machine's cores are not the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from shoal.lab.fabric import Fabric
from shoal.switching.settings import Link, Port, set_link, set_port
from shoal.switching.tables import Count
from shoal.switching.topology import Cable, star

if TYPE_CHECKING:
    from shoal.switching.tables import State

DELAY_S: Final = 50e-6
"""Of every cable of an ordinary network."""
BUFFER_BYTES: Final = 128 << 10
"""Of an ordinary port of a switch."""
HOST_QUEUE_BYTES: Final = 1000 * 1514
"""As long as a network card's queue is by default (txqueuelen 1000)."""

SLOW: Final = 1
"""The worker, or the host, that is slow where one is."""

Spoil = Callable[[Cable], Cable]


def _unchanged(cable: Cable) -> Cable:
    return cable


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster with something wrong."""

    name: str
    title: str
    factors: Mapping[int, float] = field(default_factory=dict)
    """Rank to how many times longer it computes."""
    spoil: Spoil = _unchanged
    """What a cable becomes when the training begins."""
    culprit: int | None = None
    """The rank whose worker or link is slow; None where nothing or everything is."""
    target: float = 1.0
    """What the best peer's time to the target is to be at least, in times of Shoal's best mode."""

    def factors_of(self, workers: int) -> tuple[float, ...]:
        """Return all workers' factors by rank."""
        return tuple(self.factors.get(rank, 1.0) for rank in range(workers))


SCENARIOS: Final = (Scenario("clean", "a clean network, equal workers"),)
"""All scenarios, in the order in which they are measured."""


class Network:
    """The hosts of `scenario` joined by a fabric. A context manager: leaving it removes them."""

    def __init__(self, scenario: Scenario, workers: int, megabits: int, seed: int) -> None:
        self._scenario = scenario
        rate = megabits * 1_000_000
        access = Port(rate, limit_bytes=HOST_QUEUE_BYTES), Port(rate, limit_bytes=BUFFER_BYTES)
        self._topology = star(workers, access, Link(DELAY_S))
        self._fabric = Fabric(self._topology, seed=seed)

    @property
    def hosts(self) -> list[str]:
        """Paths of the workers' namespaces."""
        return self._fabric.hosts

    def begin(self) -> None:
        """Let the scenario begin."""

        def spoil(state: State) -> None:
            for number, cable in enumerate(self._topology.cables):
                spoiled = self._scenario.spoil(cable)
                if spoiled != cable:
                    set_port(state, number, spoiled.port)
                    set_link(state, number, spoiled.link)

        self._fabric.change(spoil)

    def sent_bytes(self) -> int:
        """Return the bytes of frames that the workers' hosts have sent so far."""
        counts = self._fabric.counts()
        ports = [self._topology.access_port(host) for host in range(self._topology.hosts)]
        return int(counts[ports, ..., Count.SENT_BYTES].sum())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._fabric.close()
