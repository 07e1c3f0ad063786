"""Runs one command for every worker of a lab until all have ended, as a launcher does.

Owns what comes to the terminal, line by line with the name of who said it, and how it ends: if one
worker fails, the others are asked to end, and killed if they do not.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.lab.hosts.processes import HostProcess
    from shoal.lab.lab import Lab

GRACE_S: Final = 5.0
"""Between asking workers to end and killing them."""
_POLL_S: Final = 0.05
_CHUNK_BYTES: Final = 1 << 16


def run_workers(lab: Lab, command: Sequence[str]) -> int:
    """Start `command` for every worker, and events and flows; return once nothing runs any more.

    The result is the exit code of the first worker that failed, or 0.
    """
    workers = lab.start_workers(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lab.begin()
    here = lab.spec.workers
    names = [
        lab.hosts[rank // here].name + (f".{rank % here}" if here > 1 else "")
        for rank in range(len(workers))
    ]
    relay = _Relay()
    for name, worker in zip(names, workers, strict=True):
        relay.add(name, worker.stdout, sys.stdout.buffer)
        relay.add(name, worker.stderr, sys.stderr.buffer)
    try:
        return _watch(workers, relay.pass_on)
    except BaseException:  # Ctrl-C among them
        _end(workers, signal.SIGINT, relay.pass_on)
        raise
    finally:
        relay.finish()
        for doubt in lab.doubts():
            sys.stderr.write(f"{doubt}\n")


def _watch(workers: Sequence[HostProcess], pass_on: Callable[[float], None]) -> int:
    running = list(workers)
    while running:
        pass_on(_POLL_S)
        codes = [worker.poll() for worker in running]
        failed = [code for code in codes if code]
        running = [worker for worker, code in zip(running, codes, strict=True) if code is None]
        if failed:
            _end(running, signal.SIGTERM, pass_on)
            return failed[0]
    return 0


def _end(
    workers: Sequence[HostProcess], number: signal.Signals, pass_on: Callable[[float], None]
) -> None:
    """Ask all workers to end, wait a little, and kill those that do not."""
    for worker in workers:
        worker.signal(number)
    end = time.monotonic() + GRACE_S
    while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
        pass_on(_POLL_S)
    for worker in workers:
        worker.close()


@dataclass(slots=True)
class _Voice:
    """What one worker writes to one of its streams."""

    prefix: bytes
    source: IO[bytes]
    target: IO[bytes]
    rest: bytearray = field(default_factory=bytearray)


class _Relay:
    """Passes on whole lines of many streams, each with its speaker's name."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, name: str, source: IO[bytes], target: IO[bytes]) -> None:
        """Pass on what comes from `source` to `target`."""
        os.set_blocking(source.fileno(), False)
        voice = _Voice(f"[{name}] ".encode(), source, target)
        self._selector.register(source, selectors.EVENT_READ, voice)

    def pass_on(self, wait_s: float) -> None:
        """Pass on what has come, or comes within `wait_s`; sleep so long if nobody speaks."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return
        for key, _ in self._selector.select(wait_s):
            voice: _Voice = key.data
            heard = os.read(voice.source.fileno(), _CHUNK_BYTES)
            voice.rest += heard
            if not heard:
                self._selector.unregister(voice.source)
            self._write(voice, is_last=not heard)

    def finish(self) -> None:
        """Pass on what is still there."""
        while any(self._selector.select(0)):
            self.pass_on(0)
        for key in list(self._selector.get_map().values()):
            self._write(key.data, is_last=True)
        self._selector.close()

    def _write(self, voice: _Voice, *, is_last: bool) -> None:
        *lines, rest = bytes(voice.rest).split(b"\n")
        if is_last and rest:
            lines, rest = [*lines, rest], b""
        voice.rest[:] = rest
        if lines:
            voice.target.write(b"".join(voice.prefix + line + b"\n" for line in lines))
            voice.target.flush()


def check_command(command: Sequence[str]) -> None:
    """Raise `UsageError` if there is no such command here, before anything is built for it."""
    if not command:
        raise UsageError("A command is missing: shoal lab run SPEC.toml -- COMMAND...")
    if shutil.which(command[0]) is None:
        message = f"There is no command {command[0]!r}."
        raise UsageError(message)
