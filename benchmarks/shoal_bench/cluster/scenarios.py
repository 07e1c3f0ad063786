"""What can be wrong with a cluster: each scenario is a lab, what happens in it, and slow workers.

Every lab is clean until the workers have met; then the scenario begins. Loss is on the cables from
a switch to a worker's host, so that every packet meets it once. Rates are so low that the machine's
cores are not the limit. A slow worker computes longer; its host and its link are like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.lab import HOST_QUEUE_BYTES
from shoal.scenario import ClusterSpec, Flow, LinkEvent
from shoal.switching import Link, Materials, Port, Topology, host_names, join, leaf_spine, star

if TYPE_CHECKING:
    from shoal_bench.cluster.task import Task, Training

DELAY_S: Final = 50e-6
"""The delay of every cable of an ordinary network, in seconds."""
BUFFER_BYTES: Final = 128 << 10
"""The buffer of an ordinary port of a switch, in bytes."""
SHALLOW_BYTES: Final = 16 << 10
"""The buffer of a port that holds no more than some ten packets, in bytes."""
LONG_DELAY_S: Final = 5e-3
"""The delay of a cable where packets travel 10 ms from host to host, in seconds."""
OVERSUBSCRIPTION: Final = 4
LEAVES: Final = 2
SPINES: Final = 2
NEAR: Final = Link(DELAY_S)
WAN: Final = Link(15e-3, jitter_s=1e-3)
"""A cable of hosts that are 30 ms from each other, give or take a millisecond or two."""
SITES: Final = 2
BETWEEN_SITES: Final = 10_000_000, 40e-3
"""The rate, bits per second, and the delay, seconds, of the cable that joins two sites."""

SLOW: Final = 1
"""The worker, or the host, that is slow where one is."""

BURSTS: Final = (("to_bad", 0.002), ("to_good", 0.1), ("bad_loss", 0.5))
"""Gilbert and Elliott: one packet in 51 is in a bad state, half of these get lost; 1 % of all."""
GRAY: Final = ((0.0, 1e-4), (0.05, 1e-3), (0.1, 1e-2))
"""Share of the training's time, and the loss of the failing link from then on."""

FASTER: Final = 1.0
MUCH_FASTER: Final = 1.5
"""What is asked of Shoal where it says that it helps: with loss, stragglers and incast."""

Build = Callable[["Task"], ClusterSpec]


@dataclass(frozen=True, slots=True)
class ClusterScenario:
    """A cluster with something wrong."""

    name: str
    title: str
    build: Build
    factors: Mapping[int, float] = field(default_factory=dict)
    """Rank to how many times longer it computes."""
    culprit: int | None = None
    """The rank whose worker or link is slow; None where nothing or everything is."""
    target: float = FASTER
    """What the best peer's time to the target is to be at least, in times of Shoal's best mode."""
    in_quick: bool = True
    """Whether `--quick` measures it unless asked otherwise."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Task` that this scenario sets in place of the suite."""

    def task_of(self, suite: Task) -> Task:
        """Return what is trained in this scenario, where others train what `suite` says."""
        return msgspec.structs.replace(suite, **self.changes)

    def factors_of(self, workers: int) -> tuple[float, ...]:
        """Return all workers' factors by rank."""
        return tuple(self.factors.get(rank, 1.0) for rank in range(workers))


# ---- networks ----------------------------------------------------------------------------------


def access_ports(task: Training, buffer: int = BUFFER_BYTES) -> tuple[Port, Port]:
    """Return the port through which a host sends, and the one through which it is sent to."""
    rate = task.megabits * 1_000_000
    return Port(rate, limit_bytes=HOST_QUEUE_BYTES), Port(rate, limit_bytes=buffer)


def _star(
    task: Task, *, buffer: int = BUFFER_BYTES, link: Link = NEAR, others: int = 0
) -> Topology:
    """Return the workers' hosts, and `others` behind them, around one switch."""
    return star(host_names(task.workers + others), Materials(*access_ports(task, buffer), link))


def _towards(topology: Topology, hosts: Sequence[int]) -> tuple[int, ...]:
    """Return the cables from switches to these hosts."""
    return tuple(k for k, cable in enumerate(topology.cables) if cable.target in hosts)


def _of(topology: Topology, host: int) -> tuple[int, ...]:
    """Return the two cables of a host."""
    return tuple(
        k for k, cable in enumerate(topology.cables) if host in (cable.source, cable.target)
    )


def _clean(task: Task) -> ClusterSpec:
    return ClusterSpec(_star(task))


def _slow_link(task: Task) -> ClusterSpec:
    topology = _star(task)
    event = LinkEvent(0.0, _of(topology, SLOW), rate=task.megabits * 1_000_000 // 10)
    return ClusterSpec(topology, events=(event,))


def _random_loss(loss: float, task: Task) -> ClusterSpec:
    topology = _star(task)
    cables = _towards(topology, range(task.workers))
    return ClusterSpec(topology, events=(LinkEvent(0.0, cables, link=(("loss", loss),)),))


def _bursts(task: Task) -> ClusterSpec:
    """Two more hosts send half of a link's rate to two workers, in bursts of their own."""
    topology = _star(task, others=2)
    cables = _towards(topology, range(task.workers))
    rate = task.megabits * 1_000_000 // 2
    flows = tuple(
        Flow(task.workers + which, which, "udp", rate, burst_s=burst_s, period_s=period_s)
        for which, (burst_s, period_s) in enumerate(((0.1, 0.25), (0.15, 0.4)))
    )
    return ClusterSpec(topology, events=(LinkEvent(0.0, cables, link=BURSTS),), flows=flows)


def oversubscribed(task: Training) -> ClusterSpec:
    """Return two leaves whose trunks carry a quarter of what their hosts can send together."""
    rate = task.megabits * 1_000_000
    per_leaf = task.workers // LEAVES
    trunk = rate * per_leaf // (OVERSUBSCRIPTION * SPINES)
    materials = Materials(*access_ports(task), NEAR, Port(trunk, limit_bytes=BUFFER_BYTES), NEAR)
    return ClusterSpec(leaf_spine(host_names(task.workers), LEAVES, SPINES, materials))


def _incast(task: Task) -> ClusterSpec:
    return ClusterSpec(_star(task, buffer=SHALLOW_BYTES))


def _gray(task: Task) -> ClusterSpec:
    topology = _star(task)
    cables = _of(topology, SLOW)
    return ClusterSpec(
        topology,
        events=tuple(
            LinkEvent(share * task.seconds, cables, link=(("loss", loss),)) for share, loss in GRAY
        ),
    )


def _delay(task: Task) -> ClusterSpec:
    return ClusterSpec(_star(task, link=Link(LONG_DELAY_S)))


def _wan(task: Task) -> ClusterSpec:
    topology = _star(task, link=WAN)
    cables = _towards(topology, range(task.workers))
    return ClusterSpec(topology, events=(LinkEvent(0.0, cables, link=(("loss", 0.005),)),))


def _two_sites(task: Task) -> ClusterSpec:
    """Half of the hosts around each of two switches, joined by one slow cable."""
    hosts, each = host_names(task.workers), task.workers // SITES
    sites = [f"site{site}" for site in range(SITES)]
    rate, delay_s = BETWEEN_SITES
    materials = Materials(
        *access_ports(task), NEAR, Port(rate, limit_bytes=BUFFER_BYTES), Link(delay_s)
    )
    access = [(host, sites[place // each]) for place, host in enumerate(hosts)]
    return ClusterSpec(join(hosts, sites, [*access, (sites[0], sites[1])], materials))


SCENARIOS: Final = (
    ClusterScenario("clean", "a clean network, equal workers", _clean),
    ClusterScenario(
        "slow-worker-2x",
        "one worker computes twice as long",
        _clean,
        {SLOW: 2.0},
        SLOW,
        MUCH_FASTER,
        in_quick=False,
    ),
    ClusterScenario(
        "slow-worker-5x",
        "one worker computes five times as long",
        _clean,
        {SLOW: 5.0},
        SLOW,
        MUCH_FASTER,
    ),
    ClusterScenario("slow-link", "one link has a tenth of the rate", _slow_link, culprit=SLOW),
    ClusterScenario(
        "loss-0.1",
        "0.1 % random loss",
        partial(_random_loss, 0.001),
        target=MUCH_FASTER,
        in_quick=False,
    ),
    ClusterScenario("loss-1", "1 % random loss", partial(_random_loss, 0.01), target=MUCH_FASTER),
    ClusterScenario(
        "loss-3", "3 % random loss", partial(_random_loss, 0.03), target=MUCH_FASTER, in_quick=False
    ),
    ClusterScenario(
        "bursts", "1 % loss in bursts, and bursts of others' traffic", _bursts, target=MUCH_FASTER
    ),
    ClusterScenario(
        "oversubscribed", "two leaves behind trunks of a quarter of their rate", oversubscribed
    ),
    ClusterScenario("incast", "ports that hold ten packets", _incast, target=MUCH_FASTER),
    ClusterScenario(
        "gray-failure",
        "one link that loses more and more, up to 1 %",
        _gray,
        culprit=SLOW,
        in_quick=False,
    ),
    ClusterScenario("delay", "10 ms from host to host", _delay),
    ClusterScenario(
        "wan",
        "links of 20 Mbit/s, 30 ms from host to host, 0.5 % random loss",
        _wan,
        target=MUCH_FASTER,
        in_quick=False,
        changes={"megabits": 20, "seconds": 120.0},
    ),
    ClusterScenario(
        "two-sites",
        "two halves joined by 10 Mbit/s and 40 ms",
        _two_sites,
        target=MUCH_FASTER,
        in_quick=False,
        changes={"seconds": 120.0},
    ),
    ClusterScenario(
        "network-bound",
        "a model of 4 million parameters on a clean network",
        _clean,
        in_quick=False,
        changes={
            "dataset": "fashion-mnist",
            "model": "mlp:1056x4",
            "batch_size": 32,
            "workers": 4,
            "megabits": 100,
            "compute_ms": 400.0,
            "seconds": 150.0,
            "target_loss": 0.9,
            "looks": 40,
            "judged_samples": 1024,
        },
    ),
)
"""All scenarios, in the order in which they are measured."""
