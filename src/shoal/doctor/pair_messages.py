"""What the two ends of a pair check say to each other, and its limits: MessagePack by msgspec.

The caller asks, the listener answers each question once. `Hello` comes first and carries the
version, because other versions may speak differently.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from shoal.doctor.findings import Finding
from shoal.doctor.probe_facts import Dialled
from shoal.doctor.probes import MAX_PORTS, TOKEN_BYTES, Port, Probe, ProbeArrival
from shoal.doctor.streams import Stream, Streamed, Tally

MAX_PROBES: Final = 1024
"""Most probes of one request."""
MAX_WAIT_S: Final = 5.0
MAX_ROUTERS: Final = 64
"""Most distances, and most routers at each."""

Address: TypeAlias = Annotated[str, Meta(min_length=2, max_length=45)]
Ports: TypeAlias = Annotated[list[Port], Meta(min_length=1, max_length=MAX_PORTS + 1)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of everything said; the tag is the class name."""


class EndFacts(msgspec.Struct, frozen=True):
    """What one end must know of the other."""

    address: Address
    """The address to which its probes are to be sent."""
    udp_ports: Ports
    tcp_ports: Ports
    packet_bytes: Annotated[int, Meta(ge=64, le=65535)]
    """Largest IP packet that the transport sends from there."""
    interface_mtu: Annotated[int, Meta(ge=64, le=65535)]
    """Largest IP packet that could leave there."""


class Hello(Message, frozen=True):
    """A caller would like to examine this pair. Answered `Welcome`."""

    version: Annotated[str, Meta(max_length=100)]
    end: EndFacts


class Welcome(Message, frozen=True):
    """The listener is at the caller's service. Probes of both are to bear `token`."""

    end: EndFacts
    token: Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
    findings: Annotated[list[Finding], Meta(max_length=100)]
    """The findings about the listener's machine."""


class Dial(Message, frozen=True):
    """Connect to these ports of the caller. Answered `Outcomes`."""

    ports: Ports


class Outcomes(Message, frozen=True):
    """What became of the attempts."""

    dialled: dict[int, Dialled]


class SendProbes(Message, frozen=True):
    """Send these probes to the caller. Answered `Sent`."""

    probes: Annotated[list[Probe], Meta(max_length=MAX_PROBES)]
    gap_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S / MAX_PROBES)]


class Sent(Message, frozen=True):
    """The probes are sent; the kernel refused those named, with an errno."""

    refused: dict[int, int]


class Collect(Message, frozen=True):
    """Say what has arrived, after `count` probes or `wait_s`. Answered `Collected`."""

    count: Annotated[int, Meta(ge=0, le=MAX_PROBES)]
    wait_s: Seconds


class Collected(Message, frozen=True):
    """What has arrived since the last time."""

    arrivals: list[ProbeArrival]


class SendStream(Message, frozen=True):
    """Send this stream to the caller. Answered `StreamSent`."""

    stream: Stream


class StreamSent(Message, frozen=True):
    """The stream is sent."""

    streamed: Streamed


class CountStream(Message, frozen=True):
    """Say what arrived of stream `number`; see `ProbeSockets.tally`. Answered `Counted`."""

    number: int
    packets: int
    quiet_s: Seconds
    deadline_s: Seconds


class Counted(Message, frozen=True):
    """What arrived of it."""

    tally: Tally


class Trace(Message, frozen=True):
    """Say which routers there are on the way to the caller. Answered `Traced`."""


class Traced(Message, frozen=True):
    """The routers that name themselves, by their distance."""

    routers: Annotated[
        list[Annotated[list[Address], Meta(max_length=MAX_ROUTERS)]], Meta(max_length=MAX_ROUTERS)
    ]


class Bye(Message, frozen=True):
    """The caller is done. Not answered."""


class Refused(Message, frozen=True):
    """The listener cannot do what was asked."""

    reason: Annotated[str, Meta(max_length=2000)]


Question: TypeAlias = Hello | Dial | SendProbes | Collect | SendStream | CountStream | Trace | Bye
Answer: TypeAlias = Welcome | Outcomes | Sent | Collected | StreamSent | Counted | Traced | Refused

encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
