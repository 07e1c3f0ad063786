"""Runs one command on an emulated host, as the first process of a little system of its own.

A program by itself, of the standard library alone, so that it starts fast: `keeper.py FD NAME HOSTS
FILES COMMAND...`. The command and all that it starts are in new process, mount and host name
namespaces: they see only each other, and the kernel ends them together. They may have FILES open.
The keeper obeys lines on the socket FD: `signal N`, and `slower K`, which stops everyone for all
but one part in K of the time. When the other end is closed, or the keeper dies, everyone is killed.
"""

import contextlib
import ctypes
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

_NEW_MOUNTS, _NEW_NAME, _NEW_PROCESSES = 0x00020000, 0x04000000, 0x20000000
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12
_PARENT_DEATH_SIGNAL = 1
_EVERYONE = -1
_FAILED = 125
"""Exit code if there is no such system, as of other programs that run programs."""
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_BY_SIGNAL = 128
_USUAL = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
"""Signals that a command finds as if a shell had started it: Python ignores the last two."""
_PERIOD_S, _SHORTEST_RUN_S = 0.02, 0.001
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run what the arguments say; return the command's exit code."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    name, hosts, files, command = sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command
    if _libc.unshare(_NEW_PROCESSES | _NEW_MOUNTS | _NEW_NAME) != 0:
        sys.stderr.write(f"Cannot separate processes: {os.strerror(ctypes.get_errno())}.\n")
        return _FAILED
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))  # the lab has raised its own
    first = os.fork()
    if first == 0:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        _furnish(name, hosts)
        os._exit(_First(control, command).run())
    _, status = os.waitpid(first, 0)
    return _exit_code(status)


def _furnish(name: str, hosts: str) -> None:
    """Give this system its host name, its list of processes and the names of the other hosts.

    Says on standard error what it cannot have.
    """
    missing = []
    for what, furnish in (
        ("a host name of its own", partial(socket.sethostname, name)),
        ("a file with the names of all hosts", partial(_mount_own_files, hosts)),
    ):
        try:
            furnish()
        except OSError as error:
            missing.append(f"{what} ({error.strerror})")
    if missing:
        with contextlib.suppress(OSError):  # nobody listens
            sys.stderr.write(f"{name} does not have {' and '.join(missing)}.\n")


def _mount_own_files(hosts: str) -> None:
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)  # else the machine would get what follows
    with contextlib.suppress(OSError):  # refused where the machine's own list is masked
        _mount("proc", "/proc", "proc", 0)
    file, path = tempfile.mkstemp(prefix="shoal-hosts-")
    try:
        os.write(file, hosts.encode())
        os.fchmod(file, 0o644)
        _mount(path, "/etc/hosts", "", _BIND)
    finally:
        os.close(file)
        Path(path).unlink()


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


class _First:
    """The first process of the system: starts the command, buries the dead, obeys the lab."""

    def __init__(self, control: socket.socket, command: list[str]) -> None:
        self._control = control
        self._slower = 1.0
        self._stopped = False
        self._since = time.monotonic()
        self._rest = b""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(reading, selectors.EVENT_READ, self._bury)
        self._selector.register(control, selectors.EVENT_READ, self._obey)
        self._reading = reading
        self._code: int | None = None
        self._command = os.fork()
        if self._command == 0:
            _become(command)

    def run(self) -> int:
        """Return the command's exit code once it has ended."""
        while self._code is None:
            for key, _ in self._selector.select(self._turn()):
                key.data()
        with contextlib.suppress(ProcessLookupError):
            os.kill(_EVERYONE, signal.SIGKILL)
        return self._code

    def _turn(self) -> float | None:
        """Stop everyone or let them go on, if it is time; return how long that lasts."""
        if self._slower == 1 and not self._stopped:
            return None
        now = time.monotonic()
        run_s = max(_PERIOD_S / self._slower, _SHORTEST_RUN_S)
        if not self._stopped:
            left = self._since + run_s - now
            if left > 0:
                return left
            self._until = now + (self._slower - 1) * (now - self._since)
            self._stop(True)
        elif now >= self._until or self._slower == 1:
            self._stop(False)
            self._since = now
            return run_s if self._slower > 1 else None
        return max(0.0, self._until - now)

    def _stop(self, is_stop: bool) -> None:
        self._stopped = is_stop
        with contextlib.suppress(ProcessLookupError):
            os.kill(_EVERYONE, signal.SIGSTOP if is_stop else signal.SIGCONT)

    def _obey(self) -> None:
        heard = self._control.recv(4096)
        if not heard:
            self._code = _BY_SIGNAL + signal.SIGKILL
            return
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            order, value = line.split()
            if order == b"slower":
                self._slower = float(value)
                self._since = time.monotonic()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(_EVERYONE, int(value))

    def _bury(self) -> None:
        os.read(self._reading, 4096)
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            if process == self._command:
                self._code = _exit_code(status)


def _become(command: list[str]) -> None:
    signal.set_wakeup_fd(-1)
    for number in _USUAL:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"Cannot run {command[0]}: {error.strerror}.\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _BY_SIGNAL - code


if __name__ == "__main__":
    sys.exit(main())
