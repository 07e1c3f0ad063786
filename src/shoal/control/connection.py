"""One worker's end of the wire: a DEALER that notices a wrong job key and a vanished service.

Owns the socket, its monitor and the meaning of its events. Knows no message in particular. A closed
connection is final: the service's state is gone with it, so reconnecting would only hide the loss.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.control.messages import decode_reply, encode
from shoal.decoding import decoded
from shoal.errors import MismatchError, ProtocolError, WorkerLost

if TYPE_CHECKING:
    from shoal.control.key import JobKey
    from shoal.control.messages import Reply, Request

_KEEP_ALIVE_MS = 30_000
_REFUSALS: Final = 4
"""The number of failed handshakes in a row, a few tenths of a second, that mean another job key: a
service that ends meanwhile causes one, and is gone then."""
_GONE_S: Final = 2.0
"""The seconds without a service after a failed handshake that mean that the service has ended."""
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)


class ServiceGone(WorkerLost):
    """The service that a connection leads to is gone; another one may stand by for it."""


class ServiceSilent(ServiceGone):
    """The service that a connection leads to does not answer any more, and may yet recover."""


class Connection:
    """A connection to the service at `endpoint`. Connects in the background, with retries.

    To be used by one thread at a time. Other sockets may be registered with `poller`: `receive`
    then also returns when one of them is readable.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, key: JobKey) -> None:
        self._endpoint = endpoint
        self._socket = context.socket(zmq.DEALER)
        pair = key.client_pair()
        self._socket.curve_serverkey = key.server_pair().public
        self._socket.curve_publickey, self._socket.curve_secretkey = pair.public, pair.secret
        self._socket.heartbeat_ivl = _KEEP_ALIVE_MS  # keeps idle connections through firewalls
        self._socket.ipv6 = "[" in endpoint
        self._events = self._socket.get_monitor_socket(_EVENTS)
        self._is_established = self._was_refused = False
        self._refusals = 0
        self._refused_at = 0.0
        self._failure: MismatchError | ServiceGone | None = None
        self._other: Connection | None = None
        self.poller = zmq.Poller()
        for socket in self.sockets:
            self.poller.register(socket, zmq.POLLIN)
        self._socket.connect(endpoint)

    @property
    def is_refused(self) -> bool:
        """Whether no service listens there, as far as is known, and none has ever let it in."""
        return self._was_refused and not self._is_established

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """The sockets that `receive` polls."""
        return self._socket, self._events

    def send(self, message: Request) -> None:
        """Queue `message`; it leaves once the connection stands."""
        self._socket.send(encode(message), zmq.NOBLOCK)

    def receive(self, timeout_s: float) -> Reply | None:
        """Return the next reply, or None after `timeout_s` or when another socket is readable.

        Raises `MismatchError` if the service does not accept the job key, `ServiceGone` if the
        connection was closed, `ProtocolError` if a message is no reply.
        """
        ready = {}
        if self._failure is None:
            if self._refusals:
                timeout_s = min(timeout_s, _GONE_S)
            ready = dict(self.poller.poll(max(0, round(timeout_s * 1000))))
            self._failure = self._read_events()
        # Messages that arrived before the connection closed come first: they may say why.
        if self._socket in ready or (self._failure and self._socket.poll(0)):
            return self._decode(self._socket.recv(zmq.NOBLOCK))
        if self._failure:
            raise self._failure
        return None

    def watch(self, other: Connection | None) -> None:
        """Let `receive` also return when `other` has a message to receive; None: no more."""
        if self._other is not None:
            for socket in self._other.sockets:
                self.poller.unregister(socket)
        self._other = other
        if other is not None:
            for socket in other.sockets:
                self.poller.register(socket, zmq.POLLIN)

    def hang_up(self) -> None:
        """Stop connecting: unsent messages are dropped, and reach no new service."""
        with suppress(zmq.ZMQError):  # it is not connected any more
            self._socket.disconnect(self._endpoint)

    def close(self, linger_s: float) -> None:
        """Close, giving sent messages `linger_s` to leave."""
        self._socket.disable_monitor()
        self._events.close(0)
        self._socket.close(round(linger_s * 1000))

    def _decode(self, payload: bytes) -> Reply:
        fault = f"The control plane at {self._endpoint} sent what this version does not understand"
        advice = "run the same version of Shoal everywhere"
        return decoded(decode_reply, payload, fault, advice, ProtocolError)

    def _read_events(self) -> MismatchError | ServiceGone | None:
        """Return the error that the socket's events tell of, if any."""
        while self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_established, self._refusals = True, 0
            elif self._is_established:
                return ServiceGone(
                    f"The control plane at {self._endpoint} is gone: its process, or the"
                    " connection to its machine, has ended."
                )
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self._was_refused = True
            elif event != zmq.EVENT_DISCONNECTED:
                self._refusals += 1
                self._refused_at = time.monotonic()
        if self._refusals >= _REFUSALS:
            return MismatchError(
                f"The control plane at {self._endpoint} has another job key: start every worker "
                "with the same one, and one job per address."
            )
        if self._refusals and time.monotonic() - self._refused_at > _GONE_S:
            return ServiceGone(
                f"The control plane at {self._endpoint} has ended before it let this worker in."
            )
        return None
