"""Scenarios that both Shoal's simulator and ns-3 are given, and what Shoal's makes of them.

A scenario is what `tools/ns3/README.md` describes: a leaf-spine network, what its ports do, and
either flows that send at their own pace or messages by a transport. It and its result are plain
enough for JSON. Knows nothing of how ns-3 is run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random
from time import process_time
from typing import Any, Final, TypeAlias

import numpy as np

from shoal.sim import GONE, Flow, PacketNetwork, Simulation, Transport
from shoal.switching import (
    NEVER,
    QUEUES,
    Count,
    Link,
    Materials,
    Port,
    Profile,
    Queue,
    Topology,
    host_names,
    leaf_spine,
    with_link,
)

Scenario: TypeAlias = dict[str, Any]
Result: TypeAlias = dict[str, Any]

FRAME: Final = 1_500
"""Bytes of a packet on the link."""
ACK: Final = 64
"""Bytes of an acknowledgement; ns-3's have 54 and more."""
TEN_GIGABIT: Final = 10_000_000_000
SLOT_NS: Final = FRAME * 8 * 1_000_000_000 // TEN_GIGABIT
GROUP: Final = 8
"""The hosts of a group: all but one send to that one."""
RING_LOAD: Final = 0.3
UNLIMITED: Final = 100_000
"""Packets: more than there ever are."""
FABRIC: Final[Scenario] = {
    "hosts": 64,
    "leaves": 8,
    "spines": 8,
    "rate": TEN_GIGABIT,
    "delay_ns": 1_000,
    "limit_packets": 100,
    "seed": 1,
}
TCP: Final[Scenario] = {
    "discipline": "tail",
    "recovery": "prr",
    "first_window": 10,
    "most_window": 1024,
    "min_timeout_s": 0.2,
}
"""All else is as ns-3 has it by default."""
OVERFLOWING: Final = {"limit_packets": 87, "host_limit_packets": UNLIMITED}
"""The queues of ports of switches, and of hosts, which drop nothing of their own."""


def cross_traffic(
    load: float, duration_ns: int, discipline: str = "tail", *, hosts: int = 64, leaves: int = 8
) -> Scenario:
    """Return ring flows, to the next leaf, and seven to one until that one's link has `load`."""
    random, flows = Random(1), list[list[int]]()
    step = hosts // leaves if leaves > 1 else GROUP

    def add(source: int, target: int, share: float) -> None:
        interval = round(SLOT_NS / share)
        start = random.randrange(interval)
        band = 0 if discipline == "tail" else len(flows) % QUEUES
        flows.append([source, target, FRAME, duration_ns // interval, interval, start, band])

    groups = hosts // GROUP
    for host in range(hosts):
        add(host, (host + step) % hosts, RING_LOAD)
        if host >= groups:
            add(host, host % groups, (load - RING_LOAD) / (GROUP - 1))
    return FABRIC | _shape(hosts, leaves) | {"discipline": discipline, "flows": flows}


def with_averages(scenario: Scenario) -> Scenario:
    """Return `scenario`, which has bands, with queues that drop by a running average (RED)."""
    red = {"least_packets": 20, "most_packets": 80, "average_weight": 0.25, "probability": 0.5}
    return scenario | red | {"discipline": "priority-red"}


def with_colors(scenario: Scenario, least: int, most: int, probability: float = 1.0) -> Scenario:
    """Return `scenario`, which has bands, where switches drop the packets of even ones early.

    From `least` waiting on, all of them from `most` on, and just below that with `probability`.
    """
    limits = {"least_packets": least, "most_packets": most, "probability": probability}
    return scenario | limits | {"discipline": "colors"}


def ring(hosts: int, leaves: int, packets: int) -> Scenario:
    """Return an all-reduce around a ring: each host sends a part on once it has come."""
    messages = [
        [
            host,
            (host + 1) % hosts,
            packets,
            0,
            (step - 1) * hosts + (host - 1) % hosts if step else -1,
        ]
        for step in range(2 * (hosts - 1))
        for host in range(hosts)
    ]
    return _over_tcp(
        hosts, leaves, "newreno", messages, limit_packets=UNLIMITED, recovery="classic"
    )


def incast(
    hosts: int, leaves: int, group: int, packets: int, recovery: str = "classic"
) -> Scenario:
    """Return DCTCP from all of each `group` of neighbours to the first of it.

    65 packets mark, as DCTCP's authors have it for 10 Gbit/s; nothing is dropped. `recovery` is how
    ns-3 lets a window shrink: at once as RFC 8257 does ("classic"), or over a round trip ("prr").
    """
    messages = [[host, host - host % group, packets, 0] for host in range(hosts) if host % group]
    marking = {"limit_packets": UNLIMITED, "discipline": "mark", "most_packets": 65}
    return _over_tcp(hosts, leaves, "dctcp", messages, recovery=recovery, **marking)


def lossy_path(control: str, loss: float, packets: int) -> Scenario:
    """Return one message over a long path of 100 Mbit/s and 20 ms that loses packets."""
    return _over_tcp(
        2,
        2,
        control,
        [[0, 1, packets, 0]],
        rate=1_000_000_000,
        delay_ns=100_000,
        trunk_rate=100_000_000,
        trunk_delay_ns=5_000_000,
        limit_packets=200,
        host_limit_packets=UNLIMITED,
        loss=loss,
    )


def full_buffer(control: str, limit: int, packets: int) -> Scenario:
    """Return one message over a path of 100 Mbit/s and 20 ms whose port holds `limit` packets."""
    return lossy_path(control, 0.0, packets) | {"limit_packets": limit}


def slow_link(control: str) -> Scenario:
    """Return a ring's flows on 8 hosts of 50 Mbit/s, of which the first has a tenth of that."""
    messages = [[host, (host + 1) % 8, 1_162, 0] for host in range(8)]
    rates = {"rate": 50_000_000, "slow_host": 0, "slow_rate": 5_000_000}
    return _over_tcp(8, 1, control, messages, delay_ns=50_000, **rates, **OVERFLOWING)


def shared_trunk(control: str) -> Scenario:
    """Return two rings of 8 hosts, each dealt to both leaves, which one trunk of 4:1 joins."""
    rings = [[0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]]
    messages = [
        [a, b, 400, 0] for ring in rings for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)
    ]
    return _over_tcp(
        16,
        2,
        control,
        messages,
        spines=1,
        rate=100_000_000,
        trunk_rate=200_000_000,
        delay_ns=50_000,
        start_spread_ns=1_000_000,
        **OVERFLOWING,
    )


def incast_beside_ring(control: str, min_timeout_s: float) -> Scenario:
    """Return 15 hosts that send to one while all 16 send to their next, behind one switch."""
    ring = [[host, (host + 1) % 16, 400, 0] for host in range(16)]
    return _over_tcp(
        16,
        1,
        control,
        [*([host, 0, 64, 0] for host in range(1, 16)), *ring],
        rate=1_000_000_000,
        delay_ns=10_000,
        min_timeout_s=min_timeout_s,
        start_spread_ns=1_000_000,
        **OVERFLOWING,
    )


def _over_tcp(
    hosts: int, leaves: int, control: str, messages: list[list[int]], **settings: object
) -> Scenario:
    """Return `messages` by TCP over the fabric, which `settings` change."""
    what = {"control": control, "messages": messages}
    return FABRIC | TCP | _shape(hosts, leaves) | what | settings


def starts_of(scenario: Scenario) -> list[int]:
    """Return when each message begins, ns: apart by chance up to `start_spread_ns`."""
    spread = scenario.get("start_spread_ns", 0)
    return [
        message[3] + (Random(1_000 * scenario["seed"] + k).randrange(spread) if spread else 0)
        for k, message in enumerate(scenario["messages"])
    ]


def _shape(hosts: int, leaves: int) -> Scenario:
    """Return a leaf-spine network in which a leaf has as many links up as down; a switch if one."""
    spines = hosts // leaves if leaves > 1 else 0
    return {"hosts": hosts, "leaves": leaves, "spines": spines}


def run(scenario: Scenario) -> Result:
    """Return what Shoal's simulator makes of `scenario`, as `tools/ns3/run.py` says it."""
    return _run_messages(scenario) if "messages" in scenario else _run_flows(scenario)


def topology_of(scenario: Scenario) -> Topology:
    """Return the network of `scenario`."""
    rate: int = scenario["rate"]
    limit: int = scenario["limit_packets"]
    delay_ns: int = scenario["delay_ns"]
    host_limit = scenario.get("host_limit_packets", limit)
    trunk_link = Link(scenario.get("trunk_delay_ns", delay_ns) / 1e9)
    is_plain = scenario["discipline"] in ("mark", "colors")
    materials = Materials(
        Port(rate) if is_plain else _port(scenario, rate, host_limit),
        _port(scenario, rate, limit),
        Link(delay_ns / 1e9),
        _port(scenario, scenario.get("trunk_rate", rate), limit),
        trunk_link,
    )
    names = host_names(scenario["hosts"])
    topology = leaf_spine(names, scenario["leaves"], scenario["spines"], materials)
    if "slow_host" in scenario:
        for number, cable in enumerate(topology.cables):
            if scenario["slow_host"] in (cable.source, cable.target):
                port = replace(cable.port, rate=scenario["slow_rate"])
                topology = topology.with_cable(number, replace(cable, port=port))
    if scenario.get("loss", 0.0) > 0:
        topology = with_link(topology, "leaf0-spine0", replace(trunk_link, loss=scenario["loss"]))
    return topology


def _port(scenario: Scenario, rate: int, limit: int) -> Port:
    discipline = scenario["discipline"]
    if discipline == "tail":
        return Port(rate, limit_packets=limit)
    if discipline == "bands":
        return Port(rate, (Queue(limit_packets=limit),) * QUEUES)
    most = scenario["most_packets"] * FRAME
    if discipline == "colors":
        profile = Profile(scenario["least_packets"] * FRAME, most, scenario["probability"])
        return Port(rate, (Queue(plain=profile),) * QUEUES, limit_packets=limit)
    if discipline == "mark":
        queue = Queue(capable=Profile(most, most))
        return Port(rate, (queue,) * QUEUES, limit_packets=limit)
    least = scenario["least_packets"] * FRAME
    queue = Queue(
        limit_packets=limit,
        average_weight=round(-np.log2(scenario["average_weight"])),
        plain=Profile(least, most, scenario["probability"]),
    )
    return Port(rate, (queue,) * QUEUES)


def _run_flows(scenario: Scenario) -> Result:
    has_colors = scenario["discipline"] == "colors"
    flows = [
        Flow(
            *(source, target, size, packets, 1_000 * interval, 1_000 * start),
            queue=0 if has_colors else band,
            ecn=band % 2 if has_colors else 0,
            key=number,
        )
        for number, (source, target, size, packets, interval, start, band) in enumerate(
            scenario["flows"]
        )
    ]
    simulation = Simulation(
        topology_of(scenario),
        flows,
        seed=scenario["seed"],
        packets=1 << 17,
        least_size=FRAME,
        spray=not scenario.get("hashed", False),
    )
    began = process_time()
    simulation.finish()
    took_s = process_time() - began
    by_port = simulation.counts.sum(axis=(1, 2))
    totals = by_port.sum(axis=0)
    cables = simulation.topology.cables
    uplinks = [
        k
        for k, cable in enumerate(cables)
        if cable.source < 0 and cable.target < 0 and -1 - cable.source < scenario["leaves"]
    ]
    return {
        "uplinks": [int(by_port[k, Count.SENT]) for k in uplinks],
        "delivered": simulation.flows["delivered"].tolist(),
        "delay_ns": (simulation.flows["delay"] / 1e3).tolist(),
        "hops": int(totals[Count.SENT]),
        "dropped": int(totals[GONE].sum()),
        "marked": int(totals[Count.MARKED]),
        "lost": int(totals[Count.LOST]),
        "processor_s": took_s,
    }


def _run_messages(scenario: Scenario) -> Result:
    transport = Transport(
        scenario["control"],
        frame_bytes=FRAME,
        ack_bytes=ACK,
        first_window=scenario["first_window"],
        most_window=scenario["most_window"],
        min_timeout_s=scenario["min_timeout_s"],
        tail_probes=False,  # ns-3 has none
    )
    network = PacketNetwork(
        topology_of(scenario),
        transport,
        local_rate=scenario["rate"],
        spray=True,
        seed=scenario["seed"],
    )
    began = process_time()
    messages, started = scenario["messages"], list[int]()
    starts = starts_of(scenario)
    followers = defaultdict[int, list[int]](list)
    under_way: dict[int, int] = {}

    def start(at: int, number: int) -> None:
        source, target, packets = messages[number][:3]
        started.append(number)
        under_way[network.start(at, [source], [target], [packets * FRAME])] = number

    for number, (_, _, _, _, *after) in enumerate(messages):
        if after and after[0] >= 0:
            followers[after[0]].append(number)
        else:
            start(1_000 * starts[number], number)
    queues = _Queues(network, scenario)
    while under_way:
        ended = network.run(queues.next_look)
        if not ended:
            assert queues.next_look < NEVER, "A sender has given up."
            queues.look()
        for over in ended:
            for number in followers[under_way.pop(over)]:
                start(network.now, number)
    took_s = process_time() - began
    ends = dict(zip(started, network.records["end"].tolist(), strict=True))
    took = [(ends[k] - 1_000 * starts[k]) / 1e3 for k in range(len(messages))]
    figures, totals = network.figures(), network.state.counts.sum(axis=(0, 1, 2))
    return {
        "took_ns": took,
        "hops": figures.hops,
        "dropped": figures.dropped,
        "marked": int(totals[Count.MARKED]),
        "lost": figures.lost,
        "processor_s": took_s,
        "queue_packets": queues.mean(),
    }


class _Queues:
    """What waits at the ports to receivers of messages, looked at every `sample_ns`."""

    def __init__(self, network: PacketNetwork, scenario: Scenario) -> None:
        targets = {message[1] for message in scenario["messages"]}
        cables = network.topology.cables
        self._ports = [k for k, cable in enumerate(cables) if cable.target in targets]
        self._network = network
        self._every = 1_000 * scenario.get("sample_ns", 0)
        self.next_look = self._every or NEVER
        self._seen: list[float] = []

    def look(self) -> None:
        """Note what waits now."""
        self._seen.append(float(self._network.state.ports["packets"][self._ports].mean()))
        self.next_look += self._every

    def mean(self) -> float | None:
        """Return how many packets have waited at a port, if anybody has looked."""
        return float(np.mean(self._seen)) if self._seen else None
