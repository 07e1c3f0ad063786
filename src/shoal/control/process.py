"""The control plane as a child process of a worker: started, announced, stopped.

Owns the child's life: the job key goes to it through its standard input, never through arguments
or the environment; its endpoint or its error comes back through its standard output. It ends when
told to, or when its standard input closes because the parent is gone; where a job goes on without
lost workers, with the last worker. Rank 0 starts the first control plane, other workers those that
stand by. Knows no message.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec.structs import replace

from shoal.control.service import STOP_COMMAND
from shoal.control.terms import Terms, terms_of
from shoal.decoding import decode_json
from shoal.errors import ResourceError, UsageError
from shoal.membership import Quorum, View
from shoal.watch import WatchAddress

if TYPE_CHECKING:
    from shoal.control.key import JobKey

_START_S = 30.0
_STOP_S = 5.0
_SOURCE_ROOT = Path(__file__).parents[3]


class Orders(msgspec.Struct, frozen=True):
    """The orders to the child, as one line of JSON."""

    host: str
    port: int
    job_key: str
    terms: Terms
    view: View | None = None
    """The members with which the job begins; None: it runs, and this stands by."""
    keeper: int = 0
    """The rank that starts the child."""
    note: str = ""
    """The path of the file that says where the job is found; empty if there is none."""
    watch: WatchAddress | None = None
    """The address at which it shows the job, while it serves; None: nowhere."""
    is_key_given: bool = False
    """Whether all workers were given the key, so that it need not be in that file."""

    def __repr__(self) -> str:
        return "Orders(<hidden>)"


class Announcement(msgspec.Struct, frozen=True):
    """The child's answer, as one line of JSON: its endpoint, or why there is none."""

    endpoint: str = ""
    usage_error: str = ""
    resource_error: str = ""


class ControlProcess:
    """A running service. Made by `start`, ended by `stop` or by the end of this process."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str, orders: Orders) -> None:
        self._process, self._orders = process, orders
        self.endpoint = endpoint
        """The address to which workers connect, as `tcp://address:port`."""

    @classmethod
    def start(  # noqa: PLR0913 - what one process is told, each by its name
        cls,
        *,
        key: JobKey,
        view: View,
        liveness_timeout_s: float,
        min_members: int | None = None,
        quorum: Quorum = Quorum.MAJORITY,
        host: str = "127.0.0.1",
        port: int = 0,
        note: str = "",
        is_key_given: bool = False,
        watch: WatchAddress | None = None,
    ) -> ControlProcess:
        """Start a service for the members of `view` on `host`:`port` (0: any free port).

        The job can go on with `min_members`, by `quorum`; None: it needs all. `host` is an address
        of this machine that all workers can reach. The file `note` is for newcomers, with the key
        unless all workers have it (`is_key_given`); it is removed when the job ends. The job is
        shown at `watch`, if that address can be bound. Raises `ResourceError` if the address cannot
        be bound, the file not be written or the process not be started, `UsageError` for a bad
        value.
        """
        terms = terms_of(view, liveness_timeout_s, min_members, quorum)
        orders = Orders(
            host,
            port,
            key.reveal(),
            terms,
            view,
            note=note,
            watch=watch,
            is_key_given=is_key_given,
        )
        return cls._start(orders)

    @classmethod
    def stand_by(
        cls,
        keeper: int,
        *,
        key: JobKey,
        terms: Terms,
        host: str,
        port: int = 0,
        note: str = "",
        is_key_given: bool = False,
        watch: WatchAddress | None = None,
    ) -> ControlProcess:
        """Start a service beside rank `keeper` that stands by for the one that serves.

        When it takes over it writes the file `note`, for newcomers, and shows the job at `watch`.
        See `start`.
        """
        return cls._start(
            Orders(
                host,
                port,
                key.reveal(),
                terms,
                keeper=keeper,
                note=note,
                watch=watch,
                is_key_given=is_key_given,
            )
        )

    @classmethod
    def _start(cls, orders: Orders) -> ControlProcess:
        process = _spawn()
        try:
            announcement = _exchange(process, orders)
        except BaseException:
            _end(process)
            raise
        if announcement.endpoint:
            return cls(process, announcement.endpoint, orders)
        _end(process)
        if announcement.usage_error:
            raise UsageError(announcement.usage_error)
        raise ResourceError(announcement.resource_error)

    def again(self) -> ControlProcess:
        """Start a service to stand by at the address of this one, which has ended. See `start`."""
        port = int(self.endpoint.rpartition(":")[2])
        return self._start(replace(self._orders, port=port, view=None))

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the service still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the service; workers that have not said goodbye are told. Safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            _write(self._process, STOP_COMMAND + b"\n")
        _end(self._process)

    def kill(self) -> None:
        """End the service at once, also if it hangs: no worker is told."""
        self._process.kill()
        _end(self._process)

    def abandon(self) -> None:
        """Let go of the service as if this process had ended: others may need it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()


def _spawn() -> subprocess.Popen[bytes]:
    # This user's other processes, and root, can read the environment: the key is not in it.
    environment = {name: value for name, value in os.environ.items() if name != "SHOAL_JOB_KEY"}
    path = os.pathsep.join([str(_SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        # A process session of its own: Ctrl-C ends the workers, and this once they are gone.
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.control"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**environment, "PYTHONPATH": path},
            start_new_session=True,
        )
    except OSError as error:
        message = f"The control plane's process cannot be started: {error}."
        raise ResourceError(message) from error


def _exchange(process: subprocess.Popen[bytes], orders: Orders) -> Announcement:
    """Give the child its orders and return its announcement."""
    _write(process, msgspec.json.encode(orders) + b"\n")
    assert process.stdout is not None
    line = _read_line(process.stdout.fileno(), time.monotonic() + _START_S)
    fault = (
        "The control plane's process ended before it was ready: its error is above, on the standard"
        " error of rank 0"
    )
    return decode_json(line, Announcement, fault, raises=ResourceError)


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
    except BrokenPipeError:
        return  # it has ended: its announcement or exit status says why


def _read_line(fd: int, end: float) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(fd, 4096) if ready else b""
        if not ready:
            message = f"The control plane's process was not ready within {_START_S:g} s."
            raise ResourceError(message)
        if not chunk:
            break
        line += chunk
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the child's pipes and wait for it, killing it if it takes too long."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
