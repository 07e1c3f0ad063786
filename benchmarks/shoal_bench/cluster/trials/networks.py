"""The networks of trials: which of DLCP's mechanisms the switches take part in, and what is wrong.

Links are those of the suite's scenarios; rates are so low that the machine's cores are no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.lab import HOST_QUEUE_BYTES
from shoal.scenario import ClusterSpec, Flow
from shoal.switching import (
    CLASS_SELECTORS,
    DSCPS,
    QUEUES,
    Link,
    Materials,
    Port,
    Profile,
    Queue,
    host_names,
    join,
    star,
)
from shoal_bench.cluster.scenarios import DELAY_S, LEAVES, NEAR, SHALLOW_BYTES, SPINES, access_ports

if TYPE_CHECKING:
    from shoal_bench.cluster.trials.work import Work

BUFFER_BYTES: Final = 32 << 10
"""The buffer of a port on the network with bursts."""
BURST_S: Final = 0.1
PERIOD_S: Final = 0.25
OFFSET_S: Final = 0.06
"""The seconds between the beginnings of two flows' bursts."""
MIDDLE_CLASS: Final = 32
"""DSCP of others' traffic: behind the layer classes 0 to 2, before 4 to 7."""
EARLY: Final = 0.5
"""The share of a port's buffer from which on plain packets are dropped and others marked."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What switches do with tags: nothing, unless said."""

    spray: bool = False
    """Every packet chooses among equal paths, and not every flow."""
    queueing: bool = False
    """A queue for each layer class, the front layers' first."""
    dropping: bool = False
    """Plain packets are dropped early, where important ones are marked."""

    def port(self, rate: int, buffer: int) -> Port:
        """Return a switch's port."""
        step = Profile(int(buffer * EARLY), int(buffer * EARLY))
        queue = Queue(plain=step, capable=step) if self.dropping else Queue()
        return Port(rate, (queue,) * QUEUES, limit_bytes=buffer)

    @property
    def queues(self) -> tuple[int, ...]:
        """The queue of each DSCP."""
        return CLASS_SELECTORS if self.queueing else (0,) * DSCPS


def plain_star(work: Work) -> ClusterSpec:
    """Return hosts around a switch with ordinary ports."""
    return ClusterSpec(star(host_names(work.workers), Materials(*access_ports(work), NEAR)))


def shallow_star(switches: Switches, work: Work) -> ClusterSpec:
    """Return hosts around a switch whose ports hold some ten packets."""
    rate = work.megabits * 1_000_000
    materials = Materials(
        Port(rate, limit_bytes=HOST_QUEUE_BYTES), switches.port(rate, SHALLOW_BYTES), Link(DELAY_S)
    )
    topology = star(host_names(work.workers), materials)
    return ClusterSpec(topology, spray=switches.spray, queues=switches.queues)


def bursty_leaf_spine(switches: Switches, work: Work) -> ClusterSpec:
    """Return two leaves and two spines, and bursts of others' traffic across them.

    A trunk is as fast as a host's link: both together carry half of what four workers can send. Two
    more hosts at each leaf send to one at the other leaf, at their whole rate in bursts of their
    own: in a middle class, so that some layers go before them and some after.
    """
    rate = work.megabits * 1_000_000
    workers, half = work.workers, work.workers // 2
    names = host_names(workers + 2 * LEAVES)
    leaves = [
        *(place // half for place in range(workers)),
        *(n % LEAVES for n in range(2 * LEAVES)),
    ]
    up = [f"leaf{leaf}" for leaf in range(LEAVES)]
    spines = [f"spine{n}" for n in range(SPINES)]
    access = [(name, up[leaf]) for name, leaf in zip(names, leaves, strict=True)]
    trunks = [(leaf, spine) for leaf in up for spine in spines]
    host, port = Port(rate, limit_bytes=HOST_QUEUE_BYTES), switches.port(rate, BUFFER_BYTES)
    materials = Materials(host, port, Link(DELAY_S), port, Link(DELAY_S))
    topology = join(names, [*up, *spines], [*access, *trunks], materials)
    flows = tuple(
        Flow(
            workers + which,
            workers + (which ^ 1),
            "udp",
            rate,
            start_s=OFFSET_S * which,
            burst_s=BURST_S,
            period_s=PERIOD_S,
            dscp=MIDDLE_CLASS,
        )
        for which in range(2 * LEAVES)
    )
    return ClusterSpec(topology, spray=switches.spray, queues=switches.queues, flows=flows)
