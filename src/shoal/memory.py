"""How much memory there is to have, and whether a run's tables fit: asked before they are made.

A kernel says it late: allocating succeeds for more than there is, and the process is killed when
the memory is written to. And how much this process has taken.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from pathlib import Path
from typing import Final

from shoal.errors import ResourceError

_SYSTEM: Final = Path("/proc/meminfo")
_CONTAINER: Final = Path("/sys/fs/cgroup")
_LARGE: Final = 8
"""Tables that take this part of what is free are worth looking for what can go."""


def check_room(needed: int, what: str, remedy: str) -> None:
    """Raise `ResourceError` if `needed` bytes, for `what`, are more than can be had.

    A network and its processes hold each other, so the one before may still be there: large tables
    do not wait until Python comes to look for such circles by itself. `remedy` ends the sentence.
    """
    available = available_bytes()
    if needed > available // _LARGE:
        gc.collect()
        available = available_bytes()
    if needed > available:
        message = (
            f"{what} would take {needed / 1e6:,.0f} MB of memory, of which {available / 1e6:,.0f}"
            f" MB are free: {remedy}."
        )
        raise ResourceError(message)


def available_bytes(system: Path = _SYSTEM, container: Path = _CONTAINER) -> int:
    """Return how many bytes can be taken: free ones, and caches that give way.

    In a container that has a limit of its own (cgroup v2) no more than what is left of it.
    """
    left = [_of_system(system), _of_container(container)]
    return min(each for each in left if each is not None)


def peak_bytes() -> int:
    """Return the most memory that this process has had resident since its program began.

    Linux's `getrusage` does not: what the process had that started it counts there (getrusage(2)
    keeps the largest resident set through execve).
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return int(kibibytes) * 1024


def _of_system(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(kibibytes) * 1024


def _of_container(path: Path) -> int | None:
    """Return what is left; None if there is no limit."""
    try:
        limit = int((path / "memory.max").read_text())  # the word "max" is no number
        taken = int((path / "memory.current").read_text())
        stat = dict(line.split() for line in (path / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, limit - taken + int(stat.get("inactive_file", 0)))
