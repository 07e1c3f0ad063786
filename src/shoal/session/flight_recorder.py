"""Writes this worker's last events to a file: after an error of the job, or when SIGUSR1 comes.

Owns the folder, the file and the signal. SHOAL_FLIGHT_DIR names the folder; the default is one of
this user's in the folder for temporary files, and 0 writes nothing. A thread of its own hears the
signal, for the training thread may be blocked outside of Python when the record is needed most.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import shoal
from shoal.errors import DeadlineExceeded, WorkerLost
from shoal.units import NANOSECONDS_PER_MILLISECOND
from shoal.watch import Flight, FlightRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from shoal.membership import View

_log = logging.getLogger(__name__)

VARIABLE: Final = "SHOAL_FLIGHT_DIR"
_NOWHERE: Final = "0"
_WHERE: Final = "The last events of rank %d are on record; who was late says: shoal autopsy %s"


class FlightRecorder:
    """The last events of rank `rank`, of the job that `job` names; `view` returns its members."""

    def __init__(
        self,
        rank: int,
        job: str,
        view: Callable[[], View],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.flight = Flight()
        """The events that the trainings of this worker note."""
        self._rank, self._view = rank, view
        self._folder = _folder(job, environment.get(VARIABLE, ""))
        self._is_written = False
        self._lock = threading.Lock()

    def fail(self, error: BaseException) -> None:
        """Write the record because of an error, unless it has been written for an earlier one."""
        if self._is_written:
            return
        self._is_written = True
        is_own = not isinstance(error, WorkerLost | DeadlineExceeded)
        now_ns = time.monotonic_ns()
        self.flight.note("error", now_ns, now_ns, (), str(error)[:500])
        blames = error.rank if isinstance(error, WorkerLost) else None
        path = self.write(f"{type(error).__name__}: {error}", is_own_fault=is_own, blames=blames)
        if path is not None:
            say = _log.warning if is_own or self._rank == 0 else _log.info
            say(_WHERE, self._rank, path.parent)

    def blocked_ms(self) -> int | None:
        """Return for how long the training has been blocked; None if it does its own work."""
        doing = self.flight.doing
        if doing is None:
            return None
        return (time.monotonic_ns() - doing.since_ns) // NANOSECONDS_PER_MILLISECOND

    def note_view(self, view: View) -> None:
        """Note that another view begins."""
        now_ns = time.monotonic_ns()
        self.flight.note("view", now_ns, now_ns, view.members, view.why)

    def write(
        self, why: str, *, is_own_fault: bool = False, blames: int | None = None
    ) -> Path | None:
        """Write the record, in place of an older one; return its path, None if it cannot be."""
        if self._folder is None:
            return None
        record = FlightRecord(
            version=shoal.__version__,
            rank=self._rank,
            members=self._view().members,
            host=socket.gethostname(),
            pid=os.getpid(),
            why=why[:2000],
            is_own_fault=is_own_fault,
            blames=blames,
            at_ns=time.monotonic_ns(),
            date_s=time.time(),
            step=self.flight.step,
            doing=self.flight.doing,
            events=tuple(self.flight.events()),
        )
        path = self._folder / f"rank-{self._rank}.json"
        fresh = path.with_suffix(f".{os.getpid()}")
        try:
            with self._lock:
                _make_own(self._folder)
                fresh.write_bytes(msgspec.json.encode(record))
                fresh.replace(path)
        except OSError as error:
            _log.warning("what this worker did last cannot be written to %s: %s", path, error)
            return None
        return path

    def write_for_signal(self) -> None:
        """Write the record, and say where it is."""
        path = self.write("SIGUSR1 came.")
        if path is not None:
            _log.warning(_WHERE, self._rank, path.parent)

    def listen(self) -> None:
        """Write the record whenever SIGUSR1 comes, unless other code handles that signal."""
        global _heard_for  # noqa: PLW0603 - a process has one handler of a signal
        if self._folder is not None and (signal.getsignal(signal.SIGUSR1) is _ignore or _hear()):
            _heard_for = self

    def close(self) -> None:
        """Write nothing more for signals."""
        global _heard_for  # noqa: PLW0603 - as above
        if _heard_for is self:
            _heard_for = None


_heard_for: FlightRecorder | None = None


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing in the training thread: the listening thread writes the record."""


def _hear() -> bool:
    """Begin to listen for SIGUSR1, if no other code does; return whether it listens."""
    is_free = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        return False
    here, there = os.pipe()
    os.set_blocking(there, False)
    before = signal.set_wakeup_fd(there, warn_on_full_buffer=False)
    if before != -1:  # other code listens for signals, asyncio say
        signal.set_wakeup_fd(before)
        os.close(here)
        os.close(there)
        return False
    signal.signal(signal.SIGUSR1, _ignore)
    threading.Thread(target=_listen, args=(here,), name="shoal-flight", daemon=True).start()
    return True


def _listen(descriptor: int) -> None:
    while heard := os.read(descriptor, 64):
        recorder = _heard_for
        if signal.SIGUSR1 in heard and recorder is not None:
            recorder.write_for_signal()


def _folder(job: str, asked: str) -> Path | None:
    if asked == _NOWHERE:
        return None
    if asked:
        return Path(asked)
    name = blake2b(job.encode(), digest_size=6).hexdigest()
    return Path(tempfile.gettempdir()) / f"shoal-flight-{os.getuid()}" / name


def _make_own(folder: Path) -> None:
    """Make a folder that other users cannot write to, or check that it is this user's own."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        message = "it is another user's folder"
        raise PermissionError(message)
