"""What a command leaves behind: processes that carry its mark in their environment.

Every process that a command starts inherits the mark, however it is detached from the command.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

_NAME = "SHOAL_TEST_MARK"


def marked_environment(**more: str) -> dict[str, str]:
    """Return this process's environment with a mark of its own, and `more`."""
    return {**os.environ, _NAME: uuid4().hex, **more}


def processes_of(environment: dict[str, str]) -> dict[int, str]:
    """Return the command lines of the processes that run in `environment`, by number."""
    mark = f"{_NAME}={environment[_NAME]}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # a zombie has none: it has ended, and waits for its parent
                    found[int(entry.name)] = command
        except OSError:
            continue  # it has ended meanwhile, or is another user's
    return found


def wait_for_end(environment: dict[str, str], deadline_s: float) -> dict[int, str]:
    """Return the processes that still run in `environment` at the deadline: {} if none does."""
    end = time.monotonic() + deadline_s
    while (left := processes_of(environment)) and time.monotonic() < end:
        time.sleep(0.02)
    return left
