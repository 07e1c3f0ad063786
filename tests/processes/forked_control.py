"""The control plane's process, forked from one that has loaded it and not begun anew.

An interpreter that imports what the control plane needs takes longer than most jobs of a test. So
each test process has a server, which has it loaded, has one thread, and forks it for any worker
that asks: a fork of the worker itself would take over the worker's threads' locks and open files.
What the fork does then is what `python -m shoal.control` does. That this command starts, announces
itself and ends is tried where tests start it themselves, and wherever they start a command of
Shoal's.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import cache, partial
from io import FileIO
from pathlib import Path
from typing import NoReturn

import shoal.control.__main__ as control_main
import shoal.control.process

_STDIN = 0
_PID_BYTES = 8


def server() -> str:
    """Return the address of this process's server, which ends with this process."""
    return _server()[1]


def running() -> set[int]:
    """Return the control planes that run now, by their process numbers."""
    number = _server()[0]
    return set(map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split()))


@cache
def _server() -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    atexit.register(process.communicate)
    return process.pid, process.stdout.readline().decode().strip()


def use(address: str) -> None:
    """Have this process's control plane forked by the server at `address`."""
    spawn = partial(ForkedControl, address)
    setattr(shoal.control.process, "_spawn", spawn)  # noqa: B010 - its type is another one


class ForkedControl:
    """What `ControlProcess` uses of `subprocess.Popen`."""

    def __init__(self, address: str) -> None:
        orders_out, orders_in = os.pipe()
        answer_out, answer_in = os.pipe()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + address)
            own = os.getpid().to_bytes(_PID_BYTES)
            socket.send_fds(connection, [own], [orders_out, answer_in])
            self.pid = int.from_bytes(connection.recv(_PID_BYTES))
        os.close(orders_out)
        os.close(answer_in)
        self.stdin, self.stdout = FileIO(orders_in, "wb"), FileIO(answer_out)
        self._handle: int | None
        try:
            self._handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._handle = None

    def poll(self) -> int | None:
        """Return 0 if the process has ended."""
        if self._handle is not None and select.select([self._handle], [], [], 0)[0]:
            os.close(self._handle)
            self._handle = None
        return 0 if self._handle is None else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; raises `TimeoutExpired`."""
        if self._handle is not None and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked control plane", timeout or 0.0)
        self.poll()
        return 0

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _serve_forks() -> None:
    """Fork a control plane for each worker that asks, until standard input closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"shoal-tests-{os.getpid()}"
        listener.bind("\0" + address)
        listener.listen(64)
        print(address, flush=True)
        while True:
            ready, _, _ = select.select([listener, _STDIN], [], [])
            if _STDIN in ready:
                return
            connection, _ = listener.accept()
            with connection:
                own, fds, _, _ = socket.recv_fds(connection, _PID_BYTES, 2)
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    connection.close()
                    _be_control(int.from_bytes(own), *fds)
                for fd in fds:
                    os.close(fd)
                connection.send(pid.to_bytes(_PID_BYTES))


def _be_control(owner: int, orders: int, answer: int) -> NoReturn:
    """Be the control plane's process of the worker `owner`."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(orders, 0)
        os.dup2(answer, 1)
        os.close(orders)
        os.close(answer)
        handle = os.pidfd_open(owner)
        # The parent of the real process is the worker, whose end gives it another one.
        os.getppid = lambda: 1 if select.select([handle], [], [], 0)[0] else owner
        status = control_main.main()
    except BaseException:  # noqa: BLE001 - as an interpreter does with what nobody catches
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve_forks()
