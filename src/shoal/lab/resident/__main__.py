"""The process of a lab that stays up: `python -m shoal.lab.resident NAME SPEC REPORT LISTENER`.

Tells the process that started it, on the descriptor REPORT, that the lab is up, or why not; then
serves visitors at the socket LISTENER until one asks it to end.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.errors import ResourceError, ShoalError, UsageError
from shoal.lab.count_rows import cable_counts
from shoal.lab.lab import Lab
from shoal.lab.open_files import refused_as
from shoal.lab.resident.visitor_messages import (
    STREAMS,
    Answer,
    AskCounts,
    Connection,
    Counts,
    Describe,
    Description,
    Down,
    Ended,
    Execute,
    Refused,
    Request,
    Signal,
    decode_request,
    is_ours,
)
from shoal.scenario import read_spec

if TYPE_CHECKING:
    from shoal.lab.hosts.processes import HostProcess

_RETRY_S: Final = 0.1


class Resident:
    """A lab, and the visitors that it serves, each in a thread of its own."""

    def __init__(self, name: str, spec: Path, lab: Lab, listener: socket.socket) -> None:
        self._name, self._spec, self._lab = name, spec, lab
        self._listener = listener
        self._began = time.monotonic()

    def serve(self) -> Connection:
        """Serve until a visitor asks the lab to end, and return that one."""
        ending: list[Connection] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if ending:  # which has shut it down
                    return ending[0]
                time.sleep(_RETRY_S)  # no descriptor or no memory for one more, until others go
                continue
            visitor = Connection(connection)
            if not is_ours(connection):
                visitor.close()
                continue
            thread = threading.Thread(target=self._receive, args=(visitor, ending), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no room for one more, until others go
                visitor.close()

    def _receive(self, visitor: Connection, ending: list[Connection]) -> None:
        with contextlib.suppress(OSError, ShoalError):
            while (line := visitor.receive()) is not None:
                request = decode_request(line)
                if isinstance(request, Down):
                    ending.append(visitor)
                    self._listener.shutdown(socket.SHUT_RDWR)
                    return
                answer = self._answer(visitor, request)
                if answer is None:
                    break
                visitor.send(answer)
        visitor.close()

    def _answer(self, visitor: Connection, request: Request) -> Answer | None:
        match request:
            case Describe():
                return Description(
                    name=self._name,
                    spec=os.fsencode(self._spec),
                    hosts={host.name: host.address for host in self._lab.hosts},
                    seconds=time.monotonic() - self._began,
                    doubts=self._lab.doubts(),
                )
            case AskCounts():
                counts = self._lab.counts()
                return Counts(cable_counts(self._lab.spec.topology, counts))
            case Execute():
                return self._execute(visitor, request)
            case _:
                return Refused("Nothing runs that could be sent a signal.")

    def _execute(self, visitor: Connection, request: Execute) -> Answer | None:
        """Run a command to its end; None if the visitor has gone."""
        try:
            with refused_as("The command cannot be run"):
                return self._watch(visitor, self._start(visitor, request))
        except ShoalError as error:
            return Refused(str(error), error.exit_code)

    def _start(self, visitor: Connection, request: Execute) -> HostProcess:
        names = [host.name for host in self._lab.hosts]
        host = os.fsdecode(request.host)
        if host not in names:
            message = f"There is no host {host!r}; there are {', '.join(names)}."
            raise UsageError(message)
        streams = [visitor.files.pop(0) for _ in range(min(STREAMS, len(visitor.files)))]
        try:
            if len(streams) != STREAMS:  # the kernel hands over as many as there is room for
                raise ResourceError("The lab's process may not have three more files open.")
            return self._lab.start(
                names.index(host),
                [os.fsdecode(word) for word in request.command],
                environment={os.fsdecode(k): os.fsdecode(v) for k, v in request.environment},
                directory=os.fsdecode(request.directory),
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
            )
        finally:
            for stream in streams:
                os.close(stream)

    def _watch(self, visitor: Connection, process: HostProcess) -> Answer | None:
        with process, selectors.DefaultSelector() as selector:
            ended = os.pidfd_open(process.pid)
            try:
                selector.register(ended, selectors.EVENT_READ)
                selector.register(visitor.socket, selectors.EVENT_READ)
                while True:
                    ready = [key.fileobj for key, _ in selector.select()]
                    if ended in ready:
                        return Ended(process.wait(1.0) or 0)
                    line = visitor.receive()
                    if line is None:
                        return None
                    order = decode_request(line)
                    if isinstance(order, Signal):
                        process.signal(signal.Signals(order.number))
            finally:
                os.close(ended)


def main() -> int:
    """Be the lab that the arguments say."""
    name, spec, report = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    listener = socket.socket(fileno=int(sys.argv[4]))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wanted = read_spec(spec)
        with listener, Lab(wanted) as lab:
            resident = Resident(name, spec, lab, listener)
            lab.begin()
            _say(report, b"0\n")
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in range(STREAMS):
                os.dup2(silence, stream)
            ending = resident.serve()
        ending.close()
    except ShoalError as error:
        _say(report, f"{error.exit_code}\n{error}".encode())
        return error.exit_code
    return 0


def _say(report: int, text: bytes) -> None:
    os.write(report, text)
    os.close(report)


if __name__ == "__main__":
    sys.exit(main())
