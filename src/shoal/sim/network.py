"""What training in virtual time asks of a network, whether it is made of flows or of packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from shoal.switching import Cable, Topology


FEWER: Final = "simulate fewer workers, or smaller groups"
"""What helps where a network does not fit into memory."""

_TCP_HEADER_BYTES: Final = 66
"""Ethernet, IPv4, and TCP with timestamps."""


def tcp_headers(frame_bytes: int) -> float:
    """Return what links carry for a byte of payload, in full packets of so many bytes."""
    return frame_bytes / (frame_bytes - _TCP_HEADER_BYTES)


TCP_HEADERS: Final = tcp_headers(1514)
"""The bytes that links carry for a byte of TCP's payload, with an MTU of 1,500 bytes."""

_SEED_BITS: Final = 30


def first_key(seed: int) -> int:
    """Return where keys of 64 bits begin that are drawn with `seed`, of up to 63 bits."""
    while seed >= 1 << _SEED_BITS:  # of larger ones all bits count
        seed = (seed >> _SEED_BITS) ^ (seed & ((1 << _SEED_BITS) - 1))
    return seed << 32


class Network(Protocol):
    """Transfers between the hosts of a topology. Times are picoseconds, rates bits per second.

    A transfer is one or more flows that begin together; it is over when the last byte of the last
    of them has arrived.
    """

    @property
    def topology(self) -> Topology:
        """Hosts, switches and cables."""
        ...

    @property
    def header_factor(self) -> float:
        """What sizes must be multiplied by to count headers; 1 where they are added anyway."""
        ...

    @property
    def sends_datagrams(self) -> bool:
        """Whether it was made with the sources of background flows that heed nothing (UDP)."""
        ...

    @property
    def now(self) -> int:
        """The time of the last event, in picoseconds."""
        ...

    @property
    def flows_ended(self) -> int:
        """Flows that have come to their end since the beginning."""
        ...

    def delay(self, source: int, target: int) -> int:
        """Return how long a bit takes from host to host."""
        ...

    def start(
        self,
        at: int,
        sources: Sequence[int] | NDArray[Any],
        targets: Sequence[int] | NDArray[Any],
        sizes: Sequence[float] | NDArray[Any],
        *,
        most: float = float("inf"),
    ) -> int:
        """Let flows of `sizes` bytes leave their sources at `at`; return the transfer's number.

        None exceeds the rate `most`. Numbers of transfers that are over are used again.
        """
        ...

    def run(self, until: int) -> list[int]:
        """Let time pass up to `until`, or to when the next transfers are over; return those."""
        ...

    def alter(self, at: int, number: int, cable: Cable) -> None:
        """Let the cable of this number be like `cable` from `at` on; everything before has been."""
        ...

    def avoid(self, at: int, cables: Collection[int]) -> None:
        """Send by shortest paths without these cables from `at` on."""
        ...

    def check_conservation(self) -> None:
        """Raise `AssertionError` unless all that was sent has arrived, is gone or is under way."""
        ...


@runtime_checkable
class YieldingNetwork(Network, Protocol):
    """A network in which what nobody waits for any more takes no room. In others it goes on."""

    def give_up(self, at: int, transfer: int) -> None:
        """Let a transfer move nothing more from `at` on."""
        ...


@runtime_checkable
class RingNetwork(Network, Protocol):
    """A network that carries the rounds of a ring one after another, as they depend on each other.

    Others are given the bytes of all its rounds at once.
    """

    def ring(self, at: int, hosts: Sequence[int], size: float) -> int:
        """Let `hosts` sum `size` bytes around a ring from `at` on; return the transfer's number."""
        ...


@runtime_checkable
class SummingNetwork(Network, Protocol):
    """A network whose transport makes sums itself; a bounded share of them may get lost."""

    carries_payload: bool
    """Whether values travel."""
    lossy_bytes: int
    lost_bytes: int
    """What might have got lost so far, and what did."""

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
        """Start as `Network` does; what `contributes` to a sum may lose a share of it."""
        ...

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
        """Let `hosts` sum `size` bytes of payload from `at` on; return the transfer's number.

        Nothing of an `exact` one may get lost.
        """
        ...
