"""Section `sim-packets`: packet-hops that a simulated network takes per second of one core's time.

A packet-hop is one packet sent over one link, the host's own included. Three engines are given the
same packets, in turns in the same process: the window kernel, the heap kernel and plain Python;
and must agree on every count. (Research digest on simulation, section 1: the mixed scenario.)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import process_time
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy import uint64

from shoal.bench.plain_network import PlainNetwork, Send
from shoal.compiled import compiled
from shoal.sim.packet.simulation import Flow, Simulation
from shoal.switching.network import advance, free_row, inject, take_row
from shoal.switching.settings import Link, Port
from shoal.switching.tables import PICOSECONDS, Count
from shoal.switching.topology import Materials, Topology, host_names, leaf_spine, make_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.switching.tables import State

RATE: Final = 10_000_000_000
SIZE: Final = 1_500
PLACES: Final = 100
"""Packets that a port holds."""
GROUP: Final = 8
"""Hosts of which all but one send to that one."""
RING_LOAD: Final = 0.5
INCAST_LOAD: Final = 1.2
SHAPES: Final = {64: (8, 8), 512: (32, 16), 1024: (32, 32)}
"""Leaves and spines by the number of hosts: as much up as down."""
PACKETS: Final = 1 << 18
ROUNDS: Final = 3

_SLOT: Final = SIZE * 8 * PICOSECONDS // RATE


@dataclass(frozen=True, slots=True)
class Speed:
    """What one engine did with one scenario; figures are medians over the rounds."""

    engine: str
    hosts: int
    hops: int
    processor_s: float
    hops_per_s: float
    delivered: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who sends what over which network."""

    topology: Topology
    flows: tuple[Flow, ...]


def mixed_scenario(hosts: int, duration_s: float, seed: int = 1) -> Scenario:
    """Return ring flows to the next leaf and many-to-one flows, all at their own pace."""
    leaves, spines = SHAPES[hosts]
    port = Port(RATE, limit_packets=PLACES)
    names = host_names(hosts)
    topology = leaf_spine(names, leaves, spines, Materials(port, port, Link(delay_s=1e-6)))
    random, flows = Random(seed), []

    def add(source: int, destination: int, load: float) -> None:
        interval = round(_SLOT / load)
        packets = round(duration_s * PICOSECONDS / interval)
        start, key = random.randrange(interval), random.getrandbits(64)
        flows.append(Flow(source, destination, SIZE, packets, interval, start, key=key))

    groups = hosts // GROUP
    for host in range(hosts):
        add(host, (host + hosts // leaves) % hosts, RING_LOAD)
        if host >= groups:
            add(host, host % groups, INCAST_LOAD / (GROUP - 1))
    return Scenario(topology, tuple(flows))


def run_window(scenario: Scenario) -> tuple[float, NDArray[np.int64]]:
    """Return the processor seconds that the window kernel takes, and what it counts."""
    simulation = Simulation(
        scenario.topology, scenario.flows, packets=PACKETS, least_size=SIZE, spray=True
    )
    began = process_time()
    simulation.finish()
    return process_time() - began, simulation.counts


def run_heap(scenario: Scenario) -> tuple[float, NDArray[np.int64]]:
    """Return the same of the heap kernel, which is given its packets in order."""
    state = make_state(scenario.topology, seed=1, packets=PACKETS, spray=True)
    sends = _sends(scenario)
    times = np.array([send.at for send in sends], np.int64)
    ports = np.array([send.port for send in sends], np.int32)
    destinations = np.array([send.destination for send in sends], np.int32)
    keys = np.array([send.key for send in sends], np.uint64)
    began = process_time()
    _pass(state, times, ports, destinations, keys)
    return process_time() - began, state.counts


def run_plain(scenario: Scenario) -> tuple[float, NDArray[np.int64]]:
    """Return the same of plain Python."""
    state = make_state(scenario.topology, seed=1, packets=1, spray=True)
    plain, sends = PlainNetwork(state), _sends(scenario)
    began = process_time()
    plain.run(sends)
    return process_time() - began, plain.counts()


ENGINES: Final[dict[str, Callable[[Scenario], tuple[float, NDArray[np.int64]]]]] = {
    "window": run_window,
    "heap": run_heap,
    "plain Python": run_plain,
}


def measure(
    hosts: int, duration_s: float, engines: tuple[str, ...] = tuple(ENGINES)
) -> list[Speed]:
    """Return the speed of each engine; raise `AssertionError` if they count differently."""
    scenario = mixed_scenario(hosts, duration_s)
    taken: dict[str, list[float]] = {name: [] for name in engines}
    counted: list[NDArray[np.int64]] = []
    for name in engines:  # compile
        ENGINES[name](mixed_scenario(64, 1e-5))
    for _ in range(ROUNDS):
        for name in engines:
            seconds, counts = ENGINES[name](scenario)
            taken[name].append(seconds)
            counted.append(counts)
    assert all((counts == counted[0]).all() for counts in counted)
    totals = counted[0].sum(axis=(0, 1, 2))
    hops, dropped = int(totals[Count.SENT]), int(totals[Count.DROPPED_FULL])
    delivered = sum(flow.packets for flow in scenario.flows) - dropped
    return [
        Speed(name, hosts, hops, median, hops / median, delivered, dropped)
        for name in engines
        if (median := statistics.median(taken[name]))
    ]


def _sends(scenario: Scenario) -> list[Send]:
    """Return every packet of the flows, in the order in which they leave."""
    ports = [scenario.topology.access_port(k) for k in range(scenario.topology.hosts)]
    order = sorted(
        (flow.start_ps + k * flow.interval_ps, ports[flow.source], index)
        for index, flow in enumerate(scenario.flows)
        for k in range(flow.packets)
    )
    flows = scenario.flows
    return [Send(at, port, flows[k].destination, SIZE, flows[k].key, 0) for at, port, k in order]


@compiled
def _pass(
    state: State,
    times: NDArray[np.int64],
    ports: NDArray[np.int32],
    destinations: NDArray[np.int32],
    keys: NDArray[np.uint64],
) -> None:
    """Put packets in when they are due, and free those that have arrived."""
    network = state.network[0]
    for index in range(len(times)):
        at = times[index]
        advance(state, at - 1)
        _free_delivered(state)
        row = take_row(state)
        inject(state, row, ports[index], at, SIZE, destinations[index], uint64(keys[index]), 0, 0)
    while network.events > 0:
        advance(state, state.heap[0].at)
        _free_delivered(state)


@compiled
def _free_delivered(state: State) -> None:
    network = state.network[0]
    for k in range(network.waiting):
        free_row(state, state.delivered[k])
    network.waiting = 0


def _print_table() -> None:
    """Measure 64 and 512 hosts, and print what came of it."""
    for hosts, duration_s in ((64, 0.01), (512, 0.002)):
        speeds = measure(hosts, duration_s)
        for speed in speeds:
            print(  # noqa: T201 - the table is what this is run for
                f"{hosts:5} hosts  {speed.engine:13} {speed.hops_per_s / 1e6:8.2f} M hops/s"
                f"  {speeds[0].hops_per_s / speed.hops_per_s:7.1f}x  ({speed.hops} hops,"
                f" {speed.dropped} of {speed.dropped + speed.delivered} packets dropped)"
            )


if __name__ == "__main__":
    _print_table()
