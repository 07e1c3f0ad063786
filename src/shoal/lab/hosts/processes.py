"""A command on an emulated host and all that it starts: watched, signalled, slowed, ended."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from shoal.lab.closing import Closing
from shoal.lab.hosts import keeper
from shoal.lab.network.namespaces import inside

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

KILL_S: Final = 10.0
"""The seconds within which the kernel ends what is killed."""

Stream = int | IO[bytes] | None


class HostProcess(Closing):
    """A running command; leaving it as a context manager kills it with all that it has started.

    `namespace` is the path of its network, `name` that of the host, `names` the text of its file of
    hosts, `files` how many it may have open. `environment` is all that the command gets; streams
    are as for `subprocess.Popen`, and `directory` is where it runs if not here.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        namespace: str,
        name: str,
        names: str,
        files: int,
        environment: Mapping[str, str],
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        directory: str | None = None,
    ) -> None:
        self._control, theirs = socket.socketpair()
        launcher = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(theirs.fileno())]
        try:
            with theirs, inside(namespace):
                self._process = subprocess.Popen(
                    [*launcher, name, names, str(files), *command],
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=directory,
                    start_new_session=True,  # a terminal's Ctrl-C comes by way of the lab
                )
        except BaseException:
            self._control.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the process that waits for the command, and ends with it."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """The command's input, if that was asked for as a pipe."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """The command's output, if that was asked for as a pipe."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """The command's error output, if that was asked for as a pipe."""
        assert self._process.stderr is not None
        return self._process.stderr

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command and all that it has started."""
        self._order(f"signal {int(number)}")

    def slow_down(self, factor: float) -> None:
        """Let it run only one part in `factor` of the time from now on, 1 for all of it."""
        self._order(f"slower {factor:g}")

    def poll(self) -> int | None:
        """Return the exit code, None while it runs; 128 and the number if a signal ended it."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, None if it still runs then."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Have what still runs killed, and do not wait for it."""
        self._control.close()

    def close(self) -> None:
        """Kill what still runs, and let go of it. Safe to call twice."""
        self.kill()
        self._process.wait(KILL_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # nobody read what was still to be written
                    pipe.close()

    def _order(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._control.sendall(f"{line}\n".encode())
