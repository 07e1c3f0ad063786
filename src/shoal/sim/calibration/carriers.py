"""The transports that are calibrated, and how packets of theirs are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.scenario import SHOAL
from shoal.sim.network import TCP_HEADERS
from shoal.sim.transports.bounded_loss import ETHERNET_BYTES
from shoal.transport import segment_bytes_for

MTU: Final = 1_500
"""Bytes of packets without Ethernet's header: the only size that is calibrated."""
FRAME_BYTES: Final = MTU + ETHERNET_BYTES
"""Bytes of a full packet on a link, whichever transport's it is."""
SEGMENT_BYTES: Final = segment_bytes_for(MTU)
"""Bytes of payload in a full packet of Shoal's transport."""


@dataclass(frozen=True, slots=True)
class CalibratedCarrier:
    """A transport, and the share of a contribution to a sum that it may lose."""

    transport: str
    loss_bound: float = 0.0

    def __str__(self) -> str:
        bound = f" with a loss bound of {self.loss_bound:g}" if self.loss_bound else ""
        return f"{self.transport}{bound}"

    @property
    def file_name(self) -> str:
        """The name of its table's file."""
        bound = f"-{round(100 * self.loss_bound)}-percent" if self.loss_bound else ""
        return f"{self.transport}{bound}.json"

    @property
    def header_factor(self) -> float:
        """What links carry for a byte of payload in full packets."""
        return FRAME_BYTES / SEGMENT_BYTES if self.transport == SHOAL else TCP_HEADERS


CARRIERS: Final = (
    CalibratedCarrier(SHOAL),
    CalibratedCarrier(SHOAL, 0.1),
    CalibratedCarrier("newreno"),
    CalibratedCarrier("cubic"),
    CalibratedCarrier("dctcp"),
)
