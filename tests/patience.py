"""Waiting for processes as long as they get on: a busy machine is slow, and that is no fault."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IDLE_S = 60.0
"""A job of which no process has got on for so long will not end."""
_GETS_ON_S = 0.25
"""A process that uses so much of the processor gets on; heartbeats use less in `IDLE_S`."""
_POLL_S = 1.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def communicate(
    process: subprocess.Popen[str],
    job: Sequence[subprocess.Popen[str]] = (),
    idle_s: float = IDLE_S,
) -> tuple[str, str]:
    """Return what `process` writes until it ends, its output and its errors.

    Raises `TimeoutExpired` when nothing gets on for `idle_s` any more: neither it, nor the other
    processes of its `job`, nor any that these have started.
    """
    roots = [each.pid for each in (process, *job)]
    used, since = processor_s(roots), time.monotonic()
    while True:
        try:
            return process.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            now = processor_s(roots)
            if any(now[pid] - used.get(pid, 0.0) >= _GETS_ON_S for pid in now):
                used, since = now, time.monotonic()
            elif time.monotonic() - since > idle_s:
                raise


def processor_s(roots: Iterable[int]) -> dict[int, float]:
    """Return the seconds of processor that `roots` and their descendants have used, by process."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:  # the name in front may have spaces and brackets of its own
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(fields[11]) + int(fields[12])) * _TICK_S
    family = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: used[pid] for pid in family & used.keys()}
