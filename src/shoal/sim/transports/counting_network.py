"""A network that only counts: the messages that Shoal's transport would cut every transfer into.

Nothing takes time on its way, so a job's first steps are soon through it, and a job that the
transport cannot carry is known before anything is made for its messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.sim.transports.transfer_tables import Flows, message_lengths
from shoal.sim.way_lengths import WayLengths, delay_of
from shoal.switching import down_cables
from shoal.transport import ABSENT, WIRE_BYTES, check_number, messages_of_sum, piece_length

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from shoal.switching import Cable, Topology
    from shoal.transport import TransportConfig


class CountingNetwork:
    """Transfers over `topology` that are over at once; a `sim.network.SummingNetwork`.

    Calls `enough`, if there is one, when more than `most` have begun. Raises `UsageError` for a
    transfer of more messages than there may be between two hosts.
    """

    def __init__(self, topology: Topology, config: TransportConfig, most: int) -> None:
        self.topology, self._config, self._most = topology, config, most
        self.enough: Callable[[], None] | None = None
        self.carries_payload = False
        self.lossy_bytes = self.lost_bytes = 0
        self.flows_ended = self.now = 0
        self._over: list[int] = []
        self._delays = WayLengths(topology, delay_of, without=down_cables(topology))

    @property
    def header_factor(self) -> float:
        """Nothing: sizes are of payload."""
        return 1.0

    @property
    def sends_datagrams(self) -> bool:
        """Whether background flows of UDP are its own: it carries none."""
        return True

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host."""
        return self._delays.between(source, target)

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
        contributes: bool = False,
        layer_class: int = 0,
    ) -> int:
        """Count the messages of flows between hosts, by their sizes alone."""
        senders, receivers = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        moves = senders != receivers
        counts = np.asarray(sizes, float)[moves] // WIRE_BYTES[ABSENT]
        flows = Flows(
            senders[moves],
            receivers[moves],
            np.zeros(len(counts), np.int64),
            np.maximum(1, counts).astype(np.int64),
        )
        message_lengths(flows, self._config)
        return self._end(at)

    def all_reduce(
        self,
        at: int,
        hosts: Sequence[int],
        size: float,
        *,
        algorithm: str = "direct",
        layer_class: int = 0,
        exact: bool = False,
    ) -> int:
        """Count the messages of a sum. Only its size, hosts and algorithm are of account."""
        members, is_ring = len(hosts), algorithm == "ring"
        count, segment = round(size) // WIRE_BYTES[ABSENT], self._config.segment_bytes
        batch = self._config.largest_batch
        piece = piece_length(count, ABSENT, segment, batch, shards=members, ring=is_ring)
        check_number(messages_of_sum(count, piece, members, ring=is_ring))
        return self._end(at)

    def run(self, until: int) -> list[int]:
        """Return the transfers that have begun: they are over."""
        over, self._over = self._over, []
        return over

    def alter(self, at: int, number: int, cable: Cable) -> None:
        """Do nothing: it is all the same which cables there are."""

    def avoid(self, at: int, cables: Collection[int]) -> None:
        """Do nothing."""

    def check_conservation(self) -> None:
        """Do nothing: nothing is ever under way."""

    def _end(self, at: int) -> int:
        self.now = at
        self.flows_ended += 1
        self._over.append(self.flows_ended)
        if self.flows_ended > self._most and self.enough is not None:
            self.enough()
        return self.flows_ended
