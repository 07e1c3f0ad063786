"""Section `sim-engines`: packet-hops a second of one core's time where hosts react to packets.

A packet-hop is one packet sent over one link, the host's own included; acknowledgements count.
Every host of a leaf-spine network sends a message to the next leaf, and seven of eight send one to
the eighth, by each congestion control in turn, and over Shoal's transport, which the simulation
calls as real hosts do; packets are sprayed.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from time import process_time
from typing import TYPE_CHECKING, Final

from shoal.scenario import SHOAL
from shoal.sim import BoundedLossNetwork, PacketNetwork, Transport
from shoal.switching import (
    NEVER,
    QUEUES,
    Count,
    Link,
    Materials,
    Port,
    Profile,
    Queue,
    host_names,
    leaf_spine,
)
from shoal_bench import sim_packets
from shoal_bench.sim_packets import GROUP, RATE, SHAPES

if TYPE_CHECKING:
    from shoal.sim import Network

HOSTS: Final = 64
LEAVES, SPINES = SHAPES[HOSTS]
MARK_BYTES: Final = 100_000
LIMIT_BYTES: Final = 600_000
MESSAGE_BYTES: Final = 5_000_000
ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """What one carrier did; the processor's time is the median over the rounds."""

    carrier: str
    processor_s: float
    hops_per_s: list[float]
    """The packet-hops per second of each round."""


def make_network(carrier: str, *, is_full: bool = False) -> PacketNetwork | BoundedLossNetwork:
    """Return the network under a congestion control, or `SHOAL`, at rest.

    `is_full`: ports and links do all that they can (`sim_packets.all_features`).
    """
    shared: tuple[int, ...] = ()
    queue = Queue(capable=Profile(MARK_BYTES, MARK_BYTES))
    port, link = Port(RATE, (queue,) * QUEUES, limit_bytes=LIMIT_BYTES), Link(delay_s=1e-6)
    if is_full:
        port, link = sim_packets.all_features()
        shared = (sim_packets.BUFFER_BYTES,) * (LEAVES + SPINES)
    materials = Materials(Port(RATE), port, link)
    topology = leaf_spine(host_names(HOSTS), LEAVES, SPINES, materials)
    if carrier == SHOAL:
        return BoundedLossNetwork(topology, local_rate=RATE, shared_buffers=shared)
    transport = Transport(carrier, min_timeout_s=1e-3)
    return PacketNetwork(topology, transport, local_rate=RATE, spray=True, shared_buffers=shared)


def send_all(network: Network, message_bytes: float) -> None:
    """Let every message go, and time pass until the last one is there."""
    hosts = range(HOSTS)
    senders = [host for host in hosts if host % GROUP]
    each = HOSTS // LEAVES
    left = {
        network.start(0, hosts, [(h + each) % HOSTS for h in hosts], [message_bytes] * HOSTS),
        network.start(
            0,
            senders,
            [host - host % GROUP for host in senders],
            [message_bytes / (GROUP - 1)] * len(senders),
        ),
    }
    while left:
        left -= set(network.run(NEVER))


def measure(
    carrier: str,
    message_bytes: float = MESSAGE_BYTES,
    rounds: int = ROUNDS,
    *,
    is_full: bool = False,
) -> Speed:
    """Return how fast hosts with this carrier are simulated."""
    send_all(make_network(carrier, is_full=is_full), MESSAGE_BYTES / 100)  # compile
    taken = []
    for _ in range(rounds):
        network = make_network(carrier, is_full=is_full)
        began = process_time()
        send_all(network, message_bytes)
        taken.append(process_time() - began)
    network.check_conservation()
    hops = int(network.state.counts[..., Count.SENT].sum())
    return Speed(carrier, statistics.median(taken), [hops / each for each in taken])
