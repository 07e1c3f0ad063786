"""The control plane's process, forked from the worker that starts it and not begun anew.

An interpreter that imports what the control plane needs takes longer than most jobs of a test: a
fork has it all. What it does then is what `python -m shoal.control` does. That this command starts,
announces itself and ends is tried where tests start it themselves, and wherever they start a
command of Shoal's.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import warnings
from io import FileIO
from pathlib import Path
from typing import NoReturn

import shoal.control.__main__ as control_main
import shoal.control.process

_STDERR = 2


def use() -> None:
    """Let this process fork the control plane's process when it is to start it."""
    setattr(shoal.control.process, "_spawn", ForkedControl)  # noqa: B010 - its type is another one


class ForkedControl:
    """What `ControlProcess` uses of `subprocess.Popen`."""

    def __init__(self) -> None:
        orders_out, orders_in = os.pipe()
        answer_out, answer_in = os.pipe()
        with warnings.catch_warnings():  # the threads that are here are not needed there
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _serve(orders_out, answer_in)
        os.close(orders_out)
        os.close(answer_in)
        self.stdin, self.stdout = FileIO(orders_in, "wb"), FileIO(answer_out)
        self._handle = os.pidfd_open(self.pid)
        self._has_ended = False

    def poll(self) -> int | None:
        """Return 0 if the process has ended."""
        if not self._has_ended and os.waitpid(self.pid, os.WNOHANG)[0]:
            self._has_ended = True
            os.close(self._handle)
        return 0 if self._has_ended else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; raises `TimeoutExpired`."""
        if not self._has_ended and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked control plane", timeout or 0.0)
        self.poll()
        return 0

    def kill(self) -> None:
        """Kill the process."""
        os.kill(self.pid, 9)


def _serve(orders: int, answer: int) -> NoReturn:
    """Be the control plane's process."""
    status = 1
    try:
        os.setsid()
        os.dup2(orders, 0)
        os.dup2(answer, 1)
        for entry in list(Path("/proc/self/fd").iterdir()):
            # Whoever waits for the worker's end would wait for this process's.
            if int(entry.name) > _STDERR and _is_shared(entry):
                os.close(int(entry.name))
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - ends with this process
        status = control_main.main()
    finally:
        os._exit(status)


def _is_shared(entry: Path) -> bool:
    try:
        return str(entry.readlink()).startswith(("pipe:", "socket:"))
    except OSError:
        return False  # the folder's own, closed meanwhile
