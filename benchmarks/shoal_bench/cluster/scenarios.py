"""What can be wrong with a cluster: each scenario is a lab, what happens in it, and slow workers.

Every lab is clean until the workers have met; then the scenario begins. Loss is on the cables from
a switch to a worker's host, so that every packet meets it once. Rates are so low that the machine's
cores are not the limit. A slow worker computes longer; its host and its link are like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal.lab import HOST_QUEUE_BYTES
from shoal.scenario import ClusterSpec, Flow, LinkEvent
from shoal.switching import Link, Materials, Port, Topology, host_names, leaf_spine, star

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

    def factors_of(self, workers: int) -> tuple[float, ...]:
        """Return all workers' factors by rank."""
        return tuple(self.factors.get(rank, 1.0) for rank in range(workers))


# ---- networks ----------------------------------------------------------------------------------


def _star(
    task: Task, *, buffer: int = BUFFER_BYTES, delay_s: float = DELAY_S, others: int = 0
) -> Topology:
    """Return the workers' hosts, and `others` behind them, around one switch."""
    rate = task.megabits * 1_000_000
    access = Port(rate, limit_bytes=HOST_QUEUE_BYTES), Port(rate, limit_bytes=buffer)
    return star(host_names(task.workers + others), Materials(*access, Link(delay_s)))


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
    materials = Materials(
        Port(rate, limit_bytes=HOST_QUEUE_BYTES),
        Port(rate, limit_bytes=BUFFER_BYTES),
        Link(DELAY_S),
        Port(trunk, limit_bytes=BUFFER_BYTES),
        Link(DELAY_S),
    )
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
    return ClusterSpec(_star(task, delay_s=LONG_DELAY_S))


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
)
"""All scenarios, in the order in which they are measured."""
