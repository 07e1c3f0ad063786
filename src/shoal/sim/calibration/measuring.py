"""Packet runs that a calibration is made of: pairs of hosts that send each other one message.

A flow has its way for itself, as in a ring whose members have a link each; the other direction is
as busy, so that acknowledgements meet data. Both links of the way lose packets alike, and no queue
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.scenario import SHOAL
from shoal.sim.calibration.carriers import FRAME_BYTES, SEGMENT_BYTES, CalibratedCarrier
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.transports.packet_network import PacketNetwork
from shoal.sim.transports.transport_settings import Transport
from shoal.switching import NEVER, PICOSECONDS, Link, Materials, Port, Topology, host_names, star
from shoal.transport import UNIMPORTANT_SHARE, TransportConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOSTS: Final = 64
"""The number of hosts in one run; more flows take more runs, with other seeds."""
FEWEST_FLOWS: Final = 4


@dataclass(frozen=True, slots=True)
class Effort:
    """How many flows a cell is made of, and the levels of their quantiles that are kept."""

    packets: int
    """All flows together, but for `FEWEST_FLOWS` and `most_flows`."""
    most_flows: int
    levels: tuple[float, ...]


OVER_SHOAL: Final = Effort(200_000, 384, (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.997, 1.0))
# A timeout of 200 ms is rare, and all that the slowest of many flows takes: how rare has to be told
# well, so steps between levels are small where it may begin.
OVER_TCP: Final = Effort(
    300_000,
    1_024,
    (
        *(0.0, 0.05, 0.15, 0.25, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.84, 0.87, 0.9, 0.92, 0.94),
        *(0.955, 0.97, 0.98, 0.985, 0.99, 0.995, 0.9975, 1.0),
    ),
)
LOCAL_RATE: Final = 80e9


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """A way from host to host, and the message that takes it."""

    loss: float
    """Share of packets that it loses, each independently."""
    round_trip_s: float
    """There and back, of a bit: without the time that packets take to be sent."""
    rate: float
    """The rate of its slowest link, in bits per second."""
    packets: int
    """Full packets of the message."""

    @property
    def ideal_s(self) -> float:
        """The seconds until the last bit has come if only the rate and the distance matter."""
        return self.round_trip_s / 2 + self.packets * FRAME_BYTES * 8 / self.rate


@dataclass(frozen=True, slots=True)
class Cell:
    """What flows took over a way."""

    ratios: tuple[float, ...]
    """Quantiles of the time taken over `MeasuredWay.ideal_s`, at the levels of `effort`."""
    lost_share: float
    """The share that was lost of the bytes that may get lost."""


def effort(carrier: CalibratedCarrier) -> Effort:
    """Return how a transport is measured."""
    return OVER_SHOAL if carrier.transport == SHOAL else OVER_TCP


def measure(carrier: CalibratedCarrier, way: MeasuredWay, *, seed: int = 1) -> Cell:
    """Return what a transport makes of a way; the same seed gives the same cell."""
    effort_ = effort(carrier)
    flows = min(max(effort_.packets // way.packets, FEWEST_FLOWS), effort_.most_flows)
    flows -= flows % 2
    took: list[NDArray[np.float64]] = []
    lossy = lost = 0
    for number in range(-(-flows // HOSTS)):
        hosts = min(HOSTS, flows - number * HOSTS)
        network_seed = seed + number
        if carrier.transport == SHOAL:
            seconds, may, did = _over_shoal(carrier, way, hosts, network_seed)
            lossy, lost = lossy + may, lost + did
        else:
            seconds = _over_tcp(carrier, way, hosts, network_seed)
        took.append(seconds)
    quantiles = np.quantile(np.concatenate(took) / way.ideal_s, effort_.levels)
    return Cell(tuple(quantiles.tolist()), lost / lossy if lossy else 0.0)


def _pairs(way: MeasuredWay, hosts: int) -> Topology:
    """Return a star whose links together make up the way."""
    link = Link(delay_s=way.round_trip_s / 4, loss=1 - (1 - way.loss) ** 0.5)
    port = Port(round(way.rate))
    return star(host_names(hosts), Materials(port, port, link))


def _over_tcp(
    carrier: CalibratedCarrier, way: MeasuredWay, hosts: int, seed: int
) -> NDArray[np.float64]:
    network = PacketNetwork(
        _pairs(way, hosts),
        Transport(carrier.transport, frame_bytes=FRAME_BYTES),
        local_rate=LOCAL_RATE,
        seed=seed,
    )
    others = [host ^ 1 for host in range(hosts)]
    network.start(0, range(hosts), others, [way.packets * FRAME_BYTES] * hosts)
    network.run(NEVER)  # until all are through, or given up as one in millions is
    records = network.records
    through = records[records["end"] >= 0]
    return (through["end"] - through["start"]) / PICOSECONDS


def _over_shoal(
    carrier: CalibratedCarrier, way: MeasuredWay, hosts: int, seed: int
) -> tuple[NDArray[np.float64], int, int]:
    """Return seconds, and the bytes that might have got lost and that did."""
    network = BoundedLossNetwork(
        _pairs(way, hosts),
        local_rate=LOCAL_RATE,
        seed=seed,
        config=TransportConfig(segment_bytes=SEGMENT_BYTES),
        loss_bound=carrier.loss_bound,
        important=1 - UNIMPORTANT_SHARE,
    )
    size, contributes = way.packets * SEGMENT_BYTES, carrier.loss_bound > 0
    started = {
        network.start(0, [host], [host ^ 1], [size], contributes=contributes): host
        for host in range(hosts)
    }
    seconds = np.zeros(hosts)
    while started:
        for number in network.run(NEVER):
            seconds[started.pop(number)] = network.now / PICOSECONDS
    return seconds, network.lossy_bytes, network.lost_bytes
