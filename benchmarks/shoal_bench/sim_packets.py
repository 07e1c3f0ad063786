"""Section `sim-engines`: packet-hops that a network takes per second of one core's time.

A packet-hop is one packet sent over one link, the host's own included. Three engines are given the
same packets, in turns in the same process: the window kernel, the heap kernel and plain Python;
and must agree on every count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import process_time
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy import uint64

from shoal.compiled import compiled
from shoal.sim import GONE, Flow, Simulation
from shoal.switching import (
    PICOSECONDS,
    QUEUES,
    Count,
    Link,
    Materials,
    Port,
    Profile,
    Queue,
    Topology,
    advance,
    free_row,
    host_names,
    inject,
    leaf_spine,
    make_state,
    take_row,
)
from shoal_bench.plain_network import PacketSend, PlainNetwork

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.switching import State

RATE: Final = 10_000_000_000
SIZE: Final = 1_500
PLACES: Final = 100
"""Packets that a port holds."""
BUFFER_BYTES: Final = 2 << 20
"""The bytes that the ports of a switch share, where they do."""
GROUP: Final = 8
"""The hosts of a group: all but one send to that one."""
RING_LOAD: Final = 0.5
INCAST_LOAD: Final = 1.2
SHAPES: Final = {64: (8, 8), 512: (32, 16), 1024: (32, 32), 4096: (64, 64)}
"""Leaves and spines by the number of hosts: as much up as down."""
PACKETS: Final = 1 << 18
BARE_PORT, BARE_LINK = Port(RATE, limit_packets=PLACES), Link(delay_s=1e-6)

_SEND: Final = np.dtype(
    [
        ("at", "<i8"),
        ("port", "<i4"),
        ("destination", "<i4"),
        ("size", "<i4"),
        ("key", "<u8"),
        ("queue", "u1"),
        ("ecn", "u1"),
    ],
    align=True,
)
"""A `PacketSend` as a row that the compiled engines read."""
_SLOT: Final = SIZE * 8 * PICOSECONDS // RATE


@dataclass(frozen=True, slots=True)
class Speed:
    """What one engine did with one scenario, once."""

    engine: str
    hops: int
    processor_s: float
    hops_per_s: float
    delivered: int
    dropped: int
    """Packets that were dropped, for whatever reason, the link's among them."""


@dataclass(frozen=True, slots=True)
class PacketScenario:
    """The network, and the flows between its hosts."""

    topology: Topology
    flows: tuple[Flow, ...]
    shared_buffers: tuple[int, ...] = ()


def all_features() -> tuple[Port, Link]:
    """Return a port that marks or drops by averages, and a link that loses and delays."""
    rising = Profile(20 * SIZE, 80 * SIZE, 0.5)
    queue = Queue(average_weight=2, plain=rising, capable=rising)
    return Port(RATE, (queue,) * QUEUES), Link(delay_s=1e-6, jitter_s=1e-7, loss=1e-4)


def topology_of(hosts: int, port: Port = BARE_PORT, link: Link = BARE_LINK) -> Topology:
    """Return the network of so many hosts, made of this kind of ports and links."""
    leaves, spines = SHAPES[hosts]
    return leaf_spine(host_names(hosts), leaves, spines, Materials(port, port, link))


def mixed_scenario(
    hosts: int, duration_s: float, *, is_full: bool = False, seed: int = 1
) -> PacketScenario:
    """Return ring flows to the next leaf and many-to-one flows, all at their own pace.

    `is_full`: eight priorities, shared buffers with dynamic thresholds, packets marked or dropped
    by averages, links that lose and delay.
    """
    leaves, spines = SHAPES[hosts]
    port, link = all_features() if is_full else (BARE_PORT, BARE_LINK)
    topology = topology_of(hosts, port, link)
    random = Random(seed)
    flows: list[Flow] = []

    def add(source: int, destination: int, load: float) -> None:
        interval = round(_SLOT / load)
        packets = round(duration_s * PICOSECONDS / interval)
        start, key = random.randrange(interval), random.getrandbits(64)
        queue, ecn = (len(flows) % QUEUES, len(flows) % 2) if is_full else (0, 0)
        flows.append(Flow(source, destination, SIZE, packets, interval, start, queue, ecn, key))

    groups = hosts // GROUP
    for host in range(hosts):
        add(host, (host + hosts // leaves) % hosts, RING_LOAD)
        if host >= groups:
            add(host, host % groups, INCAST_LOAD / (GROUP - 1))
    buffers = (BUFFER_BYTES,) * (leaves + spines) if is_full else ()
    return PacketScenario(topology, tuple(flows), buffers)


def run_window(scenario: PacketScenario) -> tuple[float, NDArray[np.int64]]:
    """Return the processor seconds that the window kernel takes, and what it counts."""
    simulation = Simulation(
        scenario.topology,
        scenario.flows,
        packets=PACKETS,
        least_size=SIZE,
        spray=True,
        shared_buffers=scenario.shared_buffers,
    )
    began = process_time()
    simulation.finish()
    return process_time() - began, simulation.counts


def run_heap(scenario: PacketScenario) -> tuple[float, NDArray[np.int64]]:
    """Return the time and counts of the heap kernel, which is given its packets in order."""
    state = make_state(
        scenario.topology,
        seed=1,
        packets=PACKETS,
        spray=True,
        shared_buffers=scenario.shared_buffers,
    )
    sends = np.array([tuple(send) for send in _sends(scenario)], _SEND)
    began = process_time()
    _pass(state, sends)
    return process_time() - began, state.counts


def run_plain(scenario: PacketScenario) -> tuple[float, NDArray[np.int64]]:
    """Return the time and counts of plain Python."""
    state = make_state(scenario.topology, seed=1, packets=1, spray=True)
    plain, sends = PlainNetwork(state), _sends(scenario)
    began = process_time()
    plain.run(sends)
    return process_time() - began, plain.counts()


ENGINES: Final[dict[str, Callable[[PacketScenario], tuple[float, NDArray[np.int64]]]]] = {
    "window": run_window,
    "heap": run_heap,
    "plain Python": run_plain,
}


def measure(
    hosts: int,
    duration_s: float,
    engines: tuple[str, ...] = tuple(ENGINES),
    *,
    is_full: bool = False,
) -> list[Speed]:
    """Return the speed of each engine; raise `AssertionError` if they count differently.

    Plain Python knows nothing of what `is_full` asks for.
    """
    scenario = mixed_scenario(hosts, duration_s, is_full=is_full)
    for name in engines:  # compile
        ENGINES[name](mixed_scenario(64, 1e-5))
    runs = {name: ENGINES[name](scenario) for name in engines}
    counted = [counts for _, counts in runs.values()]
    assert all((counts == counted[0]).all() for counts in counted)
    totals = counted[0].sum(axis=(0, 1, 2))
    hops, dropped = int(totals[Count.SENT]), int(totals[GONE].sum())
    delivered = sum(flow.packets for flow in scenario.flows) - dropped
    return [
        Speed(name, hops, seconds, hops / seconds, delivered, dropped)
        for name, (seconds, _) in runs.items()
    ]


def _sends(scenario: PacketScenario) -> list[PacketSend]:
    """Return every packet of the flows, in the order in which they leave."""
    ports = [scenario.topology.access_port(k) for k in range(scenario.topology.hosts)]
    flows = scenario.flows
    order = sorted(
        (flow.start_ps + k * flow.interval_ps, ports[flow.source], index)
        for index, flow in enumerate(flows)
        for k in range(flow.packets)
    )
    return [
        PacketSend(at, port, flows[k].destination, SIZE, flows[k].key, flows[k].queue, flows[k].ecn)
        for at, port, k in order
    ]


@compiled
def _pass(state: State, sends: NDArray[np.void]) -> None:
    """Put packets in when they are due, and free the ones that have arrived."""
    for index in range(len(sends)):
        send = sends[index]
        advance(state, send.at - 1)
        _free_delivered(state)
        inject(
            state,
            take_row(state),
            send.port,
            send.at,
            send.size,
            send.destination,
            uint64(send.key),
            send.queue,
            send.ecn,
        )
    while state.network[0].events > 0:
        advance(state, state.heap[0].at)
        _free_delivered(state)


@compiled
def _free_delivered(state: State) -> None:
    network = state.network[0]
    for k in range(network.waiting):
        free_row(state, state.delivered[k])
    network.waiting = 0
