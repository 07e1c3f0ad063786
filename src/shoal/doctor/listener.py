"""The end that waits to be called: does what an authenticated caller asks, one caller at a time.

Owns the service's socket and its session. The connection is the control plane's (CURVE with the job
key, bounded frames), so strangers neither read nor ask; what they send is dropped. Probes go to
nobody but the caller, and from a loopback address to nothing but loopback.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from typing import TYPE_CHECKING, Final, Self

import zmq

import shoal
from shoal.control import Advice, bind, make_router, start_authenticator
from shoal.decoding import decoded
from shoal.doctor.dialling import dial
from shoal.doctor.ends import describe_end
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
    decode_question,
    encode,
)
from shoal.doctor.probes import TOKEN_BYTES, ProbeSockets
from shoal.doctor.routers import routers_towards
from shoal.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.control import JobKey
    from shoal.doctor.findings import Finding
    from shoal.wire import Settings

_IDLE_S: Final = 20.0
"""The seconds after which a caller that has said nothing has gone."""
_POLL_S: Final = 0.1
_ADVICE: Final = Advice(
    in_use="choose another with --port, or 0 for any free one",
    not_ours="set SHOAL_BIND to one that it has",
)


class Listener:
    """Serves callers at a port of `settings.bind`, 0 for any free one; a context manager.

    `findings` on this machine are handed to every caller. Raises `ResourceError` if the port or the
    transport's sockets cannot be had.
    """

    def __init__(
        self, settings: Settings, port: int, key: JobKey, findings: Sequence[Finding]
    ) -> None:
        self._settings, self._findings = settings, list(findings)
        self._sockets = ProbeSockets(settings)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = start_authenticator(self._context, key)
        self._router = make_router(self._context, key)
        self._caller: tuple[bytes, EndFacts] | None = None
        self._heard_at = 0.0
        try:
            self.endpoint = bind(self._router, settings.bind, port, _ADVICE).removeprefix("tcp://")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._router.close(500)
        self._authenticator.stop()
        self._context.destroy(linger=500)
        self._sockets.__exit__(None, None, None)

    def serve(self, seconds: float, on_caller: Callable[[str], None]) -> None:
        """Serve for `seconds`; `on_caller` is told the address of every new caller."""
        deadline = time.monotonic() + seconds
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        for receiver in self._sockets.receivers:
            poller.register(receiver.fileno(), zmq.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            poller.poll(round(min(left, _POLL_S) * 1000))
            self._sockets.absorb(0)
            if self._router.poll(0):
                self._handle(self._router.recv_multipart(), on_caller)

    def _handle(self, frames: list[bytes], on_caller: Callable[[str], None]) -> None:
        identity, payload = frames[0], b"".join(frames[1:])
        try:
            question = decoded(
                decode_question,
                payload,
                "The listener does not understand the question",
                "run the same version of Shoal on both machines",
                ProtocolError,
            )
        except ProtocolError as error:
            answer: Answer | None = Refused(str(error))
        else:
            answer = self._answer(identity, question, on_caller)
        if answer is not None:
            self._router.send_multipart([identity, encode(answer)])

    def _answer(
        self, identity: bytes, question: Question, on_caller: Callable[[str], None]
    ) -> Answer | None:
        if isinstance(question, Hello):
            return self._welcome(identity, question, on_caller)
        if self._caller is None or self._caller[0] != identity:
            return None if isinstance(question, Bye) else Refused("Say who you are first.")
        self._heard_at = time.monotonic()
        caller = self._caller[1]
        if isinstance(question, Dial):
            return Outcomes(dial(caller.address, question.ports))
        if isinstance(question, SendProbes):
            return Sent(self._sockets.send_all(question.probes, caller.address, question.gap_s))
        if isinstance(question, Collect):
            return Collected(self._sockets.arrived(question.count, question.wait_s))
        if isinstance(question, SendStream):
            return StreamSent(self._sockets.stream(question.stream, caller.address))
        if isinstance(question, CountStream):
            return Counted(
                self._sockets.tally(
                    question.number, question.packets, question.quiet_s, question.deadline_s
                )
            )
        if isinstance(question, Trace):
            own = self._settings.interfaces[0].bind
            return Traced(routers_towards(own, caller.address, caller.udp_ports[0]))
        self._caller = None
        self._sockets.begin(secrets.token_bytes(TOKEN_BYTES), None)
        return None

    def _welcome(
        self, identity: bytes, hello: Hello, on_caller: Callable[[str], None]
    ) -> Welcome | Refused:
        objection = self._objection(identity, hello)
        if objection:
            return Refused(objection)
        self._caller, self._heard_at = (identity, hello.end), time.monotonic()
        token = secrets.token_bytes(TOKEN_BYTES)
        self._sockets.begin(token, (hello.end.address, hello.end.udp_ports[0]))
        on_caller(hello.end.address)
        return Welcome(describe_end(self._settings, self._sockets), token, self._findings)

    def _objection(self, identity: bytes, hello: Hello) -> str:
        """Return why this caller is not served, or an empty text."""
        if hello.version != shoal.__version__:
            return (
                f"The caller runs version {hello.version} of Shoal and the listener"
                f" {shoal.__version__}; install the same one on both."
            )
        try:
            theirs = ipaddress.ip_address(hello.end.address)
        except ValueError:
            return "The caller's address is none: set SHOAL_ADVERTISE there to a number."
        ours = ipaddress.ip_address(self._sockets.transport.receiver.getsockname()[0])
        if ours.version != theirs.version:
            return (
                f"The caller is to be reached at {theirs} and the listener at {ours}: give both the"
                " same version of IP."
            )
        if ours.is_loopback and not theirs.is_loopback:
            return f"The listener at {ours} sends to this machine only, not to {theirs}."
        busy = self._caller is not None and self._caller[0] != identity
        if busy and time.monotonic() - self._heard_at < _IDLE_S:
            return "The listener is busy with another caller; try again in a moment."
        return ""
