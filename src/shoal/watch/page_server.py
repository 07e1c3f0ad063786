"""Shows a job in a browser: one static page, and its data, from the control plane's process.

Owns the HTTP server and its bounds: so many viewers, each in a thread of its own, and a viewer that
does not read its data is dropped. Does not decide what is shown: the control plane publishes
snapshots, and makes them only while somebody looks (`wants`).
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal.decoding import decode_json
from shoal.errors import ResourceError
from shoal.watch.address import LOOPBACK, WatchAddress
from shoal.watch.exposition import PROMETHEUS, exposition
from shoal.watch.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_VIEWERS: Final = 32
"""The most connections that are served at once; one more gets an error and is closed."""
PATIENCE_S: Final = 5.0
"""How long a viewer may take to send its request, or to read the answer."""
_FRESH_S: Final = 2.0
"""How long a request waits for a fresh snapshot."""
_INTERVAL_S: Final = 1.0
"""The time between two snapshots."""
_POLL_S: Final = 0.1
"""The time between two checks whether to stop serving."""
_PAGE: Final = Path(__file__).with_name("page.html")
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FULL: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\n\r\n"
    b"Too many look at this job already: close another page.\n"
)
_HASTE_S: Final = 0.2
"""How long a viewer that is turned away may take to read why: others wait meanwhile."""


class PageServer:
    """Serves the page at `address` until closed. Raises `ResourceError` if it cannot be bound.

    `/` is the page, `/snapshot` the latest snapshot as JSON, `/events` a stream of them, `/metrics`
    the same for Prometheus.
    """

    def __init__(self, address: WatchAddress) -> None:
        self._changed = threading.Condition()
        self._shown = _Shown(bytes)
        self.number = 0
        """The number of snapshots published so far."""
        self._num_waiting = 0
        self._made_s = 0.0
        self._is_closed = False
        self._places = threading.Semaphore(MOST_VIEWERS)
        try:
            self._server = _Server(address, self, self._places)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"The job cannot be shown at {address}: {reason}."
            raise ResourceError(message) from error
        port = int(self._server.server_address[1])
        self.address = WatchAddress(address.host, port)
        """The address at which it serves."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="shoal-page", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"http://{self.address}/"

    def wants(self, now_s: float) -> bool:
        """Return whether somebody looks, and the last snapshot is old; `now_s` is monotonic."""
        return self._num_waiting > 0 and now_s - self._made_s >= _INTERVAL_S

    def publish(self, make: Callable[[], bytes], now_s: float) -> None:
        """Show the snapshot that `make` returns, JSON on one line; a viewer's thread calls it."""
        with self._changed:
            self._shown, self._made_s = _Shown(make), now_s
            self.number += 1
            self._changed.notify_all()

    def next(self, after: int, patience_s: float) -> tuple[int, bytes]:
        """Return a snapshot newer than number `after`, waiting for it, and its number.

        After `patience_s` it is the last one that there is, or empty.
        """
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.wait_for(
                    lambda: self.number > after or self._is_closed, timeout=patience_s
                )
            finally:
                self._num_waiting -= 1
            number, shown = self.number, self._shown
        return number, shown.content()

    def latest(self) -> bytes:
        """Return a fresh snapshot, waiting for one if need be; else the last that there is."""
        age_s = time.monotonic() - self._made_s
        return self.next(self.number - (age_s < _INTERVAL_S), _FRESH_S)[1]

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return self._is_closed

    def close(self) -> None:
        """Stop serving. Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)


class _Shown:
    """A snapshot, which is made when the first viewer takes it."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._content: bytes | None = None

    def content(self) -> bytes:
        """Return the snapshot as JSON; empty if none has been published."""
        with self._lock:
            if self._content is None:
                self._content = self._make()
            return self._content


class _Server(ThreadingHTTPServer):
    """Gives each viewer a thread, as long as there are free places."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_VIEWERS

    def __init__(
        self, address: WatchAddress, page: PageServer, places: threading.Semaphore
    ) -> None:
        self.page, self._places = page, places
        self.is_loopback = address.is_loopback
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _Viewer)

    def server_bind(self) -> None:
        """Bind, without looking up this machine's names: that may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection if there is a free place; else say so, and close it."""
        if not self._places.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(_HASTE_S)
                request.sendall(_FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a viewer that has gone is no error of the job."""


class _Viewer(BaseHTTPRequestHandler):
    """One request of a viewer."""

    server: _Server
    timeout = PATIENCE_S
    server_version = "shoal"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        if not self._is_for_us():
            self.send_error(HTTPStatus.FORBIDDEN, "Ask for this machine by its own name")
            return
        path = self.path.partition("?")[0]
        answers = {
            "/": self._page,
            "/snapshot": self._one,
            "/events": self._stream,
            "/metrics": self._metrics,
        }
        answer = answers.get(path)
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND, "There are /, /snapshot, /events and /metrics")
        else:
            answer()

    def _is_for_us(self) -> bool:
        """Return whether the request names this machine: another site's page may send it, too.

        A site whose name leads to this machine's loopback (DNS rebinding) must not see the job.
        """
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        return not self.server.is_loopback or name.strip("[]") in LOOPBACK

    def _page(self) -> None:
        self._send("text/html; charset=utf-8", _PAGE.read_bytes())

    def _one(self) -> None:
        if snapshot := self._latest():
            self._send("application/json", snapshot)

    def _metrics(self) -> None:
        if snapshot := self._latest():
            shown = decode_json(snapshot, Snapshot, "This is no snapshot")
            self._send(PROMETHEUS, exposition(shown).encode())

    def _latest(self) -> bytes:
        """Return a snapshot; if there is none yet, send an error and return nothing."""
        snapshot = self.server.page.latest()
        if not snapshot:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "Nothing is known yet; ask again")
        return snapshot

    def _stream(self) -> None:
        self._begin("text/event-stream")
        page, number = self.server.page, 0
        while not page.is_closed:
            before = number
            number, snapshot = page.next(number, PATIENCE_S)
            told = b"data: " + snapshot + b"\n\n" if number > before else b": still here\n\n"
            self.wfile.write(told)

    def _send(self, kind: str, content: bytes) -> None:
        self._begin(kind, len(content))
        self.wfile.write(content)

    def _begin(self, kind: str, length: int | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        """Log nothing: a viewer's request is no event of the job."""
