"""Processes with an environment and output of their own, forked where everything is loaded.

For commands and scripts of which it does not matter that a shell or a launcher starts them: an
interpreter of their own would import for longer than they take. They end as interpreters do, with
what has been registered for the exit.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked_control
from worker_processes import context

from started_ranks import free_port, outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_POLL_S = 0.02
_STARTS_S = 60.0


class ForkedProcess:
    """What tests use of `subprocess.Popen`, whose pipes are two files."""

    def __init__(
        self, environment: Mapping[str, str], function: Callable[..., Any], *arguments: Any
    ) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self._out, self._errors = (self._folder / name for name in ("out", "errors"))
        self._written: tuple[str, str] | None = None
        files = str(self._out), str(self._errors)
        arguments = (*files, dict(environment), forked_control.server(), function, arguments)
        self._process = context.Process(target=_be, args=arguments, daemon=True)
        self._out.touch()
        self._errors.touch()
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or a signal's number below 0; none while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, if it has ended."""
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was written. Raises `TimeoutExpired`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        if self._written is None:
            self._written = self._out.read_text(), self._errors.read_text()
            shutil.rmtree(self._folder)
        return self._written

    def first_error_line(self) -> str:
        """Wait for the first line on standard error, and return it; all of it at the end."""
        end = time.monotonic() + _STARTS_S
        while "\n" not in (written := self._errors.read_text()):
            if self.poll() is not None or time.monotonic() > end:
                return written
            time.sleep(_POLL_S)
        return written.splitlines(keepends=True)[0]

    def terminate(self) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process, and forget what it has written unless somebody has read it."""
        self._process.kill()
        self.communicate()


def run_script(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Fork a process that does what `python -c code` does, with `more` in its environment."""
    process = ForkedProcess({**os.environ, **more}, _run_script, code)
    ((status, out, errors),) = outcomes([process])
    return subprocess.CompletedProcess(code, status, out, errors)


def start(rank: int, size: int, port: int, code: str, **more: str) -> ForkedProcess:
    """Fork a rank that runs `code`, with `more` in its environment; see `started_ranks`."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return ForkedProcess({**os.environ, **place, **master, **more}, _run_script, code)


def printed_by_forks(code: str, size: int, **more: str) -> list[dict[str, Any]]:
    """Run `code` as every rank of a job; return what each printed last, as JSON."""
    port = free_port()
    ended = outcomes([start(rank, size, port, code, **more) for rank in range(size)])
    assert [status for status, _, _ in ended] == [0] * size, ended
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]


def run_command(words: list[str]) -> None:
    """Be `shoal` with these words."""
    from shoal.cli.app import main

    sys.argv = ["shoal", *words]
    main()


def _run_script(code: str) -> None:
    sys.argv = ["-c"]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _be(
    out: str,
    errors: str,
    environment: dict[str, str],
    control_server: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """Be the process: its streams are files, and its end is in order."""
    for path, descriptor in ((out, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    forked_control.use(control_server)
    own, code = os.getpid(), 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter does with what nobody catches
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    if os.getpid() != own:  # a fork of this one, which ends as a whole interpreter does
        ctypes.pythonapi.Py_Exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
