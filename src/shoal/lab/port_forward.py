"""Port forwarding into a lab: a port of this machine leads to whoever listens there on a host.

The hosts of a lab are networks of their own, which no browser on this machine can reach.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shoal.errors import ResourceError
from shoal.lab.closing import Closing
from shoal.lab.network.namespaces import socket_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_DESCRIPTOR: Final = 3
"""The descriptor of a socket that a program finds open: the convention of systemd's sockets."""
_NOBODY: Final = b"No worker of the lab shows its job here yet, or the job is over.\n"
_UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s" % (len(_NOBODY), _NOBODY)
)
"""The answer to a browser that comes while nobody listens."""
_CHUNK_BYTES: Final = 1 << 16
_PATIENCE_S: Final = 5.0


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address of this machine; port 0 stands for any.

    To be called before `have_rights`, which may lead into another network. Raises `ResourceError`.
    """
    if os.environ.pop("LISTEN_PID", "") == str(os.getpid()):
        listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
        listener.set_inheritable(False)
        return listener
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        message = f"Nothing can be shown at {host}:{port}: {reason}."
        raise ResourceError(message) from error


def hand_on(listener: socket.socket) -> None:
    """Let the program that takes this one's place have `listener`: its `listen` returns it."""
    os.dup2(listener.fileno(), _FIRST_DESCRIPTOR)
    os.set_inheritable(_FIRST_DESCRIPTOR, True)  # it may have been this one already
    os.environ["LISTEN_PID"] = str(os.getpid())


class PortForward(Closing):
    """Leads whoever connects to `listener` to the same port on a host. A context manager.

    `paths` are the namespaces of the hosts. The first host is asked on whose loopback address
    somebody listens, beginning with the one that answered last.
    """

    def __init__(self, listener: socket.socket, paths: Sequence[str]) -> None:
        self._listener, self._paths = listener, list(paths)
        self._port = int(listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="shoal-forward", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more, and end what goes through. Safe to call twice."""
        with self._lock:
            ends = [self._listener, *self._open]
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._lead, args=(visitor,), daemon=True).start()

    def _lead(self, visitor: socket.socket) -> None:
        """Pass bytes on between `visitor` and a host, in both directions, until both have ended."""
        with visitor, suppress(OSError):
            host = self._connect()
            if host is None:
                visitor.settimeout(_PATIENCE_S)
                visitor.recv(_CHUNK_BYTES)  # what is not read would reset the connection
                visitor.sendall(_UNAVAILABLE)
                return
            with host, selectors.DefaultSelector() as selector:
                ends = {visitor, host}
                with self._lock:
                    self._open |= ends
                try:
                    selector.register(visitor, selectors.EVENT_READ, host)
                    selector.register(host, selectors.EVENT_READ, visitor)
                    _pass_on(selector)
                finally:
                    with self._lock:
                        self._open -= ends

    def _connect(self) -> socket.socket | None:
        """Return a connection to a host, None if nobody listens there."""
        for place, path in enumerate(self._paths):
            with suppress(OSError, ResourceError):  # nobody there, or the lab has ended
                connection = socket_inside(path, socket.SOCK_STREAM)
                try:
                    connection.settimeout(_PATIENCE_S)
                    connection.connect(("127.0.0.1", self._port))
                except OSError:
                    connection.close()
                    raise
                connection.settimeout(None)
                with self._lock:
                    self._paths.insert(0, self._paths.pop(place))
                return connection
        return None


def _pass_on(selector: selectors.BaseSelector) -> None:
    """Send what each registered socket gets to the one that is its data, until both have ended."""
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            if chunk := key.fileobj.recv(_CHUNK_BYTES):
                key.data.sendall(chunk)
            else:
                selector.unregister(key.fileobj)
                key.data.shutdown(socket.SHUT_WR)
