"""One process of a launched job, with all that it starts: a process group that ends as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from shoal.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BY_SIGNAL = 128
"""What is added to a signal's number to make an exit code, as shells do."""


class LaunchedWorker:
    """A process that runs `command`, in a session of its own: a terminal's Ctrl-C passes it by.

    `log` takes in what it writes; without it, `stdout` and `stderr` are pipes.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: int | None
    ) -> None:
        stream = subprocess.PIPE if log is None else log
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        except OSError as error:
            message = f"{command[0]!r} cannot be run: {error.strerror}."
            raise ResourceError(message) from error

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        return self._process.pid

    @property
    def streams(self) -> tuple[IO[bytes] | None, IO[bytes] | None]:
        """Its output and its error output, if they are pipes."""
        return self._process.stdout, self._process.stderr

    def poll(self) -> int | None:
        """Return the exit code, None while it runs; 128 and the number if a signal ended it.

        What it has started and left behind is killed first: until then its number is not another's.
        """
        if self._process.returncode is None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self.pid, options) is None:
                return None
            self.kill()
        code = self._process.wait()
        return code if code >= 0 else BY_SIGNAL - code

    def ask_to_end(self, number: int) -> None:
        """Send a signal to the process alone: what helps it is needed until it has ended."""
        if self._process.returncode is not None:
            return
        # Not by `send_signal`, which reaps one that has ended, and what it has started would stay.
        for each in (number, signal.SIGCONT):  # one that is stopped hears nothing else
            with suppress(ProcessLookupError):
                os.kill(self.pid, each)

    def kill(self) -> None:
        """Kill it and all that it has started, and do not wait."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
