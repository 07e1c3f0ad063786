"""What probing finds out, as plain values: the input of the judges, which see nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class Dialled(StrEnum):
    """What became of an attempt to connect."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"
    UNREACHABLE = "unreachable"


class TosFact(msgspec.Struct, frozen=True):
    """What became of the TOS byte (traffic class) of some probes."""

    sent: int
    arrived: int | None
    """The TOS byte of the first probe that arrived; None if none did."""


class BatchFact(msgspec.Struct, frozen=True):
    """What became of packets that were given to the kernel in one piece, to be cut by it."""

    sent: int
    arrived: int
    refusal: str = ""
    """Why the kernel did not take them; empty if it did."""


class InterfaceFacts(msgspec.Struct, frozen=True):
    """A network interface."""

    name: str
    mtu: int
    """Largest IP packet in bytes."""
    is_up: bool
    is_loopback: bool
    cuts_segments: bool | None = None
    """Whether the hardware cuts UDP batches into packets; None if it does not say."""
    bits_per_s: float | None = None
    """Speed of its link; None if the driver does not say."""


class SocketFacts(msgspec.Struct, frozen=True):
    """What the kernel grants the transport's sockets, tried over loopback."""

    receive_bytes: int
    """Bytes of the receive buffer, as the kernel counts them: twice what was asked for."""
    budget_packets: int
    """Packets that may be under way to this rank without overrunning the buffer."""
    send_bytes: int
    """Bytes of one send buffer, counted likewise."""
    batch: BatchFact
    coalesces: bool
    """Whether the kernel hands over several arrived packets at once (GRO), when asked to."""
    stamps: bool
    """Whether arrivals bear the kernel's time."""
    tos: list[TosFact]


class MachineFacts(msgspec.Struct, frozen=True):
    """A machine as the transport would use it."""

    bind: str
    advertise: str
    is_chosen: bool
    """Whether settings say which address to use; else it is loopback for want of anything."""
    packet_bytes: int
    """Largest IP packet that the transport would send, headers included."""
    batch_bytes: int
    """Most that the transport hands to the kernel at once."""
    wanted_packets: int
    """Packets that the transport would like to have under way to this rank."""
    cores: int
    is_compiled: bool
    interface: InterfaceFacts | None = None
    """None if no single one has the address."""
    sockets: SocketFacts | None = None
    refusal: str = ""
    """Why there are no sockets."""
    receive_limit_bytes: int | None = None
    """The largest receive buffer that may be asked for, net.core.rmem_max."""
    send_limit_bytes: int | None = None
    """The largest send buffer that may be asked for, net.core.wmem_max."""


class RateFacts(msgspec.Struct, frozen=True):
    """How fast packets get from one machine to another."""

    bits_per_s: Annotated[int, Meta(ge=1)]
    """The rate at which IP packets of the transport's size arrived, in bits per second, headers
    included."""
    is_least: bool
    """Whether the two programs, or the probe's bounds, were the limit and not what lies between."""
    sent_bytes: int
    """The bytes of IP packets that were sent to find out."""


class WayFacts(msgspec.Struct, frozen=True):
    """The way from one machine to another."""

    sender: str
    receiver: str
    packet_bytes: int
    """Largest IP packet that the transport would send this way."""
    tcp: dict[int, Dialled]
    """The outcome of a connection to each TCP port of the receiver."""
    udp: dict[int, bool]
    """Maps each UDP port of the receiver to whether anything arrived there."""
    udp_refusal: str = ""
    """Why the sender's kernel did not let datagrams out; empty if it did."""
    path_mtu: int | None = None
    """Largest IP packet that arrived unfragmented; None if that was not tried."""
    tos: list[TosFact] = []
    batch: BatchFact | None = None
    rate: RateFacts | None = None
    routers: list[list[str]] | None = None
    """The routers that name themselves, by their distance; None if nobody was asked."""


class BurstFacts(msgspec.Struct, frozen=True):
    """A paced train of packets there and back, timed by its sender's clock alone."""

    sent: int
    reached: int
    returned: int
    packet_bytes: int
    smallest_us: int
    """0, like the other times, if nothing returned."""
    median_us: int
    largest_us: int


class PairFacts(msgspec.Struct, frozen=True):
    """Two machines, as they reach each other."""

    there: WayFacts
    back: WayFacts
    burst: BurstFacts | None
    wanted_packets: int
    tolerated_loss: float
