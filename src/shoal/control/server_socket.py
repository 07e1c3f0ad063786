"""A service's end of the wire: a ROUTER that only holders of the job key can reach.

Owns the CURVE settings, the authenticator thread and the errors of binding an address. Knows no
message. A CURVE client must know the server's public key to be answered at all and must prove the
clients' secret key to be admitted; both derive from the job key.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from shoal.control.messages import MAX_FRAME_BYTES
from shoal.errors import ResourceError

if TYPE_CHECKING:
    from shoal.control.key import JobKey

_BACKLOG = 1024
_NOT_OURS = (errno.ENODEV, errno.EADDRNOTAVAIL, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice about an address that cannot be bound: each service's users set it differently."""

    in_use: str
    """The end of the error's sentence if the port is in use."""
    not_ours: str
    """The end of the error's sentence if the host is another machine."""


_CONTROL: Final = Advice(
    in_use="choose another port for the control plane, or 0 for any free one",
    not_ours="start the control plane on the machine that has it, or name one of this machine's"
    " own addresses",
)


class _OnlyKey:
    """Admits connections that prove one CURVE key (the authenticator's callback interface)."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether `key` is the admitted one; `domain` is not used."""
        del domain
        return key == self._public


def start_authenticator(
    context: zmq.Context[zmq.Socket[bytes]], key: JobKey
) -> ThreadAuthenticator:
    """Start admitting only holders of `key`, on all sockets of `context`."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(
        domain="*", credentials_provider=_OnlyKey(key.client_pair().public)
    )
    return authenticator


def make_router(context: zmq.Context[zmq.Socket[bytes]], key: JobKey) -> zmq.Socket[bytes]:
    """Return an unbound ROUTER that proves possession of `key`."""
    router = context.socket(zmq.ROUTER)
    pair = key.server_pair()
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = pair.public, pair.secret
    router.maxmsgsize = MAX_FRAME_BYTES
    router.backlog = _BACKLOG
    return router


def bind(router: zmq.Socket[bytes], host: str, port: int, advice: Advice = _CONTROL) -> str:
    """Bind to `host`:`port` (0: any free port); return the endpoint with the port bound.

    Raises `ResourceError`, with `advice`, if the address cannot be bound.
    """
    address = resolve(host)
    is_version_6 = ":" in address
    router.ipv6 = is_version_6
    shown = f"[{address}]" if is_version_6 else address
    try:
        router.bind(f"tcp://{shown}:{port or '*'}")
    except zmq.ZMQError as error:
        raise ResourceError(_explain(error, host, port, advice)) from error
    return str(router.getsockopt_string(zmq.LAST_ENDPOINT))


def resolve(host: str) -> str:
    """Return the numeric address at which a service of `host` is bound and called.

    Raises `ResourceError` if it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        message = f"The host {host!r} has no address: {error}."
        raise ResourceError(message) from error
    return str(found[0][4][0])


def _explain(error: zmq.ZMQError, host: str, port: int, advice: Advice) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use: {advice.in_use}."
    if error.errno == errno.EACCES:
        return f"This user may not open port {port} of {host}: choose one above 1023."
    if error.errno in _NOT_OURS:
        return f"{host} is no address of this machine: {advice.not_ours}."
    return f"Port {port} of {host} cannot be opened: {error}."
