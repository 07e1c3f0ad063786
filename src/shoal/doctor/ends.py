"""The two ends of a pair check behind one interface: this machine, and the one that listens.

Owns the connection to the listener, its deadlines and its errors. What is asked of the ends, and in
what order, is `pair`'s.
"""

from __future__ import annotations

import abc
import time
from typing import TYPE_CHECKING, Final, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

import shoal
from shoal.control import MAX_FRAME_BYTES
from shoal.decoding import decoded
from shoal.doctor.dialling import dial
from shoal.doctor.kernel_interfaces import interface_of
from shoal.doctor.machine import packet_bytes
from shoal.doctor.pair_messages import (
    Answer,
    Bye,
    Collect,
    Collected,
    Counted,
    CountStream,
    Dial,
    EndFacts,
    Hello,
    Outcomes,
    Question,
    Refused,
    SendProbes,
    SendStream,
    Sent,
    StreamSent,
    Trace,
    Traced,
    Welcome,
    decode_answer,
    encode,
)
from shoal.doctor.routers import routers_towards
from shoal.errors import DeadlineExceeded, MismatchError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.control import JobKey
    from shoal.doctor.probe_facts import Dialled
    from shoal.doctor.probes import Probe, ProbeArrival, ProbeSockets
    from shoal.doctor.streams import Stream, Streamed, Tally
    from shoal.wire import Settings

ANSWER_S: Final = 15.0
"""How long the listener may take: longer than anything that it can be asked."""
_LARGEST_PACKET: Final = 65535
_POLL_S: Final = 0.05
_HANDSHAKE_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)

Expected = TypeVar("Expected", bound=Answer)


def describe_end(settings: Settings, sockets: ProbeSockets) -> EndFacts:
    """Return what the other end must know of this one."""
    interface = interface_of(settings.bind)
    return EndFacts(
        address=settings.advertise or settings.bind,
        udp_ports=sockets.udp_ports,
        tcp_ports=sockets.tcp_ports,
        packet_bytes=packet_bytes(settings),
        interface_mtu=min(interface.mtu if interface else _LARGEST_PACKET, _LARGEST_PACKET),
    )


class AbstractEnd(abc.ABC):
    """One of the two machines."""

    facts: EndFacts

    @abc.abstractmethod
    def dial(self, other: EndFacts) -> dict[int, Dialled]:
        """Connect to the other end's TCP ports; return what became of it."""

    @abc.abstractmethod
    def send(self, probes: Sequence[Probe], other: EndFacts, gap_s: float = 0.0) -> dict[int, int]:
        """Send probes to the other end; return number -> errno of the refused ones."""

    @abc.abstractmethod
    def collect(self, count: int, wait_s: float) -> list[ProbeArrival]:
        """Return what has arrived since the last time, after `count` probes or `wait_s`."""

    @abc.abstractmethod
    def stream(self, stream: Stream, other: EndFacts) -> Streamed:
        """Send a stream to the other end; return how that went."""

    @abc.abstractmethod
    def trace(self, other: EndFacts) -> list[list[str]]:
        """Return the routers on the way to the other end; see `routers_towards`."""

    @abc.abstractmethod
    def tally(self, number: int, packets: int, quiet_s: float, deadline_s: float) -> Tally:
        """Return what arrived of stream `number`; see `ProbeSockets.tally`."""


class ThisEnd(AbstractEnd):
    """This machine."""

    def __init__(self, settings: Settings, sockets: ProbeSockets) -> None:
        self.facts = describe_end(settings, sockets)
        self._bind, self._sockets = settings.interfaces[0].bind, sockets

    def dial(self, other: EndFacts) -> dict[int, Dialled]:
        """See `AbstractEnd`."""
        return dial(other.address, other.tcp_ports)

    def send(self, probes: Sequence[Probe], other: EndFacts, gap_s: float = 0.0) -> dict[int, int]:
        """See `AbstractEnd`."""
        return self._sockets.send_all(probes, other.address, gap_s)

    def collect(self, count: int, wait_s: float) -> list[ProbeArrival]:
        """See `AbstractEnd`."""
        return self._sockets.arrived(count, wait_s)

    def stream(self, stream: Stream, other: EndFacts) -> Streamed:
        """See `AbstractEnd`."""
        return self._sockets.stream(stream, other.address)

    def trace(self, other: EndFacts) -> list[list[str]]:
        """See `AbstractEnd`."""
        return routers_towards(self._bind, other.address, other.udp_ports[0])

    def tally(self, number: int, packets: int, quiet_s: float, deadline_s: float) -> Tally:
        """See `AbstractEnd`."""
        return self._sockets.tally(number, packets, quiet_s, deadline_s)


class OtherEnd(AbstractEnd):
    """The machine that listens at `host`:`port`, over an authenticated connection.

    Raises `MismatchError` if it has another job key or version, `DeadlineExceeded` if it does not
    answer, `ProtocolError` if it says what makes no sense.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: str,
        port: int,
        key: JobKey,
        sockets: ProbeSockets,
    ) -> None:
        self._where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._sockets = sockets
        self._dealer = context.socket(zmq.DEALER)
        pair = key.client_pair()
        self._dealer.curve_serverkey = key.server_pair().public
        self._dealer.curve_publickey, self._dealer.curve_secretkey = pair.public, pair.secret
        self._dealer.ipv6 = ":" in host
        self._dealer.maxmsgsize = MAX_FRAME_BYTES
        self._dealer.linger = 500
        self._events = self._dealer.get_monitor_socket(_HANDSHAKE_FAILED)
        self._dealer.connect(f"tcp://{self._where}")

    def greet(self, own: EndFacts) -> Welcome:
        """Introduce this end; return what the other says of itself."""
        welcome = self._ask(Hello(shoal.__version__, own), Welcome)
        self.facts = welcome.end
        return welcome

    def dial(self, other: EndFacts) -> dict[int, Dialled]:
        """See `AbstractEnd`."""
        return self._ask(Dial(other.tcp_ports), Outcomes).dialled

    def send(self, probes: Sequence[Probe], other: EndFacts, gap_s: float = 0.0) -> dict[int, int]:
        """See `AbstractEnd`."""
        return self._ask(SendProbes(list(probes), gap_s), Sent).refused

    def collect(self, count: int, wait_s: float) -> list[ProbeArrival]:
        """See `AbstractEnd`."""
        return self._ask(Collect(count, wait_s), Collected).arrivals

    def stream(self, stream: Stream, other: EndFacts) -> Streamed:
        """See `AbstractEnd`."""
        return self._ask(SendStream(stream), StreamSent).streamed

    def trace(self, other: EndFacts) -> list[list[str]]:
        """See `AbstractEnd`."""
        return self._ask(Trace(), Traced).routers

    def tally(self, number: int, packets: int, quiet_s: float, deadline_s: float) -> Tally:
        """See `AbstractEnd`."""
        return self._ask(CountStream(number, packets, quiet_s, deadline_s), Counted).tally

    def close(self) -> None:
        """Take leave, if the other end is there to hear it, and close the connection."""
        self._dealer.disable_monitor()
        self._events.close(0)
        self._dealer.send(encode(Bye()), zmq.NOBLOCK)
        self._dealer.close()

    def _ask(self, question: Question, kind: type[Expected]) -> Expected:
        """Return the answer to `question`; what arrives meanwhile is read."""
        self._dealer.send(encode(question), zmq.NOBLOCK)
        deadline = time.monotonic() + ANSWER_S
        while not self._dealer.poll(0):
            if self._events.poll(0):
                self._explain_end()
            if time.monotonic() > deadline:
                message = f"The doctor at {self._where} did not answer within {ANSWER_S:g} s."
                raise DeadlineExceeded(message)
            self._wait()
        fault = f"The doctor at {self._where} answers what makes no sense"
        answer = decoded(decode_answer, self._dealer.recv(zmq.NOBLOCK), fault, raises=ProtocolError)
        if isinstance(answer, Refused):
            raise MismatchError(answer.reason)
        if not isinstance(answer, kind):
            message = f"The doctor at {self._where} answers something else than it was asked."
            raise ProtocolError(message)
        return answer

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._dealer, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        for receiver in self._sockets.receivers:
            poller.register(receiver.fileno(), zmq.POLLIN)
        poller.poll(round(_POLL_S * 1000))
        self._sockets.absorb(0)

    def _explain_end(self) -> None:
        """Raise what the end of the connection means: of one that never stood, another key."""
        event = recv_monitor_message(self._events)["event"]
        if hasattr(self, "facts") and event == zmq.EVENT_DISCONNECTED:
            message = f"The doctor at {self._where} has ended the connection."
            raise DeadlineExceeded(message)
        message = (
            f"What listens at {self._where} is no `shoal doctor --listen`, or has another job key:"
            " set the same SHOAL_JOB_KEY on both."
        )
        raise MismatchError(message)
