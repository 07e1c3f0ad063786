"""Writes each training's spans into the folder that SHOAL_TRACE names, for `shoal report`.

Owns the file: a line of JSON about the worker (`trace.TracedWorker`), and one for each span. Each
process of each worker has its own file, so that none waits for another, and the file of a process
that dies stays. `jobs.traced_folder` reads them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from shoal.errors import ResourceError
from shoal.trace import NullSink, checked_sink
from shoal.units import NANOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.trace import Sample, Span, TracedWorker, TraceSink

VARIABLE: Final = "SHOAL_TRACE"
MOST_BYTES: Final = 256 << 20
"""The size of a file at which it ends: about two million spans."""
FLUSH_NS: Final = NANOSECONDS_PER_SECOND
"""The time between two writes: a worker that is killed loses the spans of so long at most."""

_log = logging.getLogger(__name__)


def sink_of(
    given: TraceSink | None,
    about: Callable[[], TracedWorker],
    environment: Mapping[str, str] = os.environ,
) -> TraceSink:
    """Return the sink of a training's spans: the folder, if there is one, and the sink given.

    Raises `UsageError` if the object given takes no spans, `ResourceError` if the folder cannot be
    written to.
    """
    sink: TraceSink = NullSink() if given is None else checked_sink(given)
    return trace_file(about, sink, environment) or sink


def trace_file(
    about: Callable[[], TracedWorker],
    beside: TraceSink,
    environment: Mapping[str, str] = os.environ,
) -> TraceFile | None:
    """Return the file in the folder that SHOAL_TRACE names, None if it names none.

    `about` says what it begins with. Raises `ResourceError` as `TraceFile`.
    """
    folder = environment.get(VARIABLE, "")
    return TraceFile(Path(folder), about(), beside) if folder else None


class TraceFile:
    """The file of one worker's training; spans and samples are handed on to `beside`, too.

    Spans may come from several threads. Raises `ResourceError` if the file cannot be made.
    """

    def __init__(self, folder: Path, about: TracedWorker, beside: TraceSink) -> None:
        self._beside = beside
        name = f"{about.training}.rank-{about.rank}.{socket.gethostname()}-{os.getpid()}.jsonl"
        self.path = folder / name
        self._lock = threading.Lock()
        self._flush_at_ns = 0
        self._room = MOST_BYTES
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO | None = self.path.open("wb", buffering=1 << 16)
            self._put(msgspec.json.encode(about))
            self._file.flush()
        except OSError as error:
            message = f"{VARIABLE}: no trace can be written to {folder}: {error.strerror}."
            raise ResourceError(message) from error

    @property
    def wants_samples(self) -> bool:
        """Whether samples are worth taking."""
        return self._beside.wants_samples

    def record(self, span: Span) -> None:
        """Write `span`, if there is room."""
        self._beside.record(span)
        line = msgspec.json.encode(span)
        with self._lock:
            try:
                self._put(line)
                if self._file is not None and time.monotonic_ns() >= self._flush_at_ns:
                    self._flush_at_ns = time.monotonic_ns() + FLUSH_NS
                    self._file.flush()
            except OSError as error:
                self._end(str(error.strerror))

    def sample(self, sample: Sample) -> None:
        """Hand `sample` on."""
        self._beside.sample(sample)

    def close(self) -> None:
        """Write the spans not written yet, and take no more. Safe to repeat."""
        with self._lock:
            self._end()

    def _put(self, line: bytes) -> None:
        if self._file is None:
            return
        self._room -= len(line) + 1
        if self._room < 0:
            self._end(f"it has reached {MOST_BYTES >> 20} MiB")
        else:
            self._file.write(line + b"\n")

    def _end(self, why: str = "") -> None:
        """Close the file; a training does not end because its trace does."""
        file, self._file = self._file, None
        if why:
            _log.warning("the trace in %s goes no further: %s", self.path, why)
        if file is not None:
            try:
                file.close()
            except OSError as error:
                _log.warning("the end of the trace in %s is lost: %s", self.path, error.strerror)
