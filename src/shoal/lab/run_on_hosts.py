"""Runs one command for every worker of a lab until all have ended, as a launcher does.

Owns how it ends: if one worker fails, or nobody can be told what they say, the others are asked to
end, and killed if they do not.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.lab.open_files import refused_as
from shoal.lab.relay import Relay
from shoal.lab.strikes import Strikes, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.lab.hosts.processes import HostProcess
    from shoal.lab.lab import Lab

GRACE_S: Final = 5.0
"""The seconds between asking workers to end and killing them."""
_POLL_S: Final = 0.05


def run_workers(lab: Lab, command: Sequence[str]) -> int:
    """Start `command` for every worker, and events and flows; return once nothing runs any more.

    The result is the exit code of the first worker that failed, or 0. Raises `BrokenPipeError` if
    the reader of what they say has gone, and `ResourceError` if that cannot be written.
    """
    with refused_as("The workers cannot be listened to"):
        relay = Relay()
    with relay:
        return _run(lab, command, relay)


def _run(lab: Lab, command: Sequence[str], relay: Relay) -> int:
    workers: list[HostProcess] = []

    def start(rank: int, host: int | None = None) -> HostProcess:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        worker = lab.start_worker(rank, command, host=host, **pipes)
        workers.append(worker)
        name = _name(lab, rank, host)
        relay.add(name, worker.stdout, sys.stdout.fileno())
        relay.add(name, worker.stderr, sys.stderr.fileno())
        return worker

    strikes = Strikes(lab.spec.worker_events, start)
    latest: dict[int, Worker] = {rank: start(rank) for rank in range(len(lab.spec.host_of))}
    lab.begin()
    try:
        code = _watch(workers, latest, strikes, relay)
        relay.finish()
        relay.check()
    except BaseException:  # Ctrl-C among them
        _ask_to_end(workers, signal.SIGINT, relay)
        raise
    finally:
        for worker in workers:
            worker.kill()
        relay.finish()
        for worker in workers:
            worker.close()
        with contextlib.suppress(OSError):  # whose reader has gone, too
            for doubt in (*strikes.remarks, *lab.doubts()):
                sys.stderr.write(f"{doubt}\n")
    return code


def _name(lab: Lab, rank: int, host: int | None) -> str:
    """Return what a worker is called: as its host, with its place there if there are several."""
    here = lab.spec.workers
    if rank >= len(lab.spec.host_of):
        return f"rank{rank}" if host is None else f"{lab.hosts[host].name}.rank{rank}"
    return lab.hosts[rank // here].name + (f".{rank % here}" if here > 1 else "")


def _watch(
    workers: Sequence[HostProcess], latest: dict[int, Worker], strikes: Strikes, relay: Relay
) -> int:
    """Return the exit code once all `workers`, to whom more may come, have ended or one fails."""
    began = time.monotonic()
    running: Sequence[HostProcess] = workers
    while running:
        strikes.happen(time.monotonic() - began, latest)
        relay.pass_on(_POLL_S)
        relay.check()
        codes = [(worker, worker.poll()) for worker in workers]
        running = [worker for worker, code in codes if code is None]
        failed = [code for worker, code in codes if code and worker not in strikes.killed]
        if failed:
            _ask_to_end(running, signal.SIGTERM, relay)
            return failed[0]
    strikes.end()
    return 0


def _ask_to_end(workers: Sequence[HostProcess], number: signal.Signals, relay: Relay) -> None:
    """Ask all workers to end, and wait a little for workers that still have something to do."""
    for worker in workers:
        worker.signal(number)
    end = time.monotonic() + GRACE_S
    while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
        relay.pass_on(_POLL_S)


def check_command(command: Sequence[str]) -> None:
    """Raise `UsageError` if it cannot be run here, before anything is built for it."""
    if not command:
        raise UsageError("A command is missing: shoal lab run SPEC.toml -- COMMAND...")
    if shutil.which(command[0]) is None:
        message = f"There is no command {command[0]!r}."
        if "/" in command[0] and Path(command[0]).is_dir():
            message = f"{command[0]!r} is a folder, not a command."
        elif "/" in command[0] and Path(command[0]).exists():
            message = (
                f"{command[0]!r} is not executable: `chmod +x` it, or name the program that runs"
                " it, such as python."
            )
        raise UsageError(message)
