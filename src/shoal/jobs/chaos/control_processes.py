"""The processes that serve a job's control plane on this machine, found from outside.

They are told from another job's by the file in SHOAL_JOB, which is the job's alone, and from each
other by that file: it says where the one is that serves.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTENS, _IS_CONNECTED = "0A", "01"
"""States of sockets in the kernel's table."""

MARK: Final = "SHOAL_JOB"
"""The variable by which processes of a job are told from others."""


class ControlProcesses:
    """The control planes of the job whose file is at `job_file`."""

    def __init__(self, job_file: Path) -> None:
        self._job_file = job_file

    def running(self) -> list[int]:
        """Return the processes that serve the job or stand by for that."""
        mark = f"{MARK}={self._job_file}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it has ended meanwhile, or is another user's
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def serving(self) -> list[int]:
        """Return the process that serves, where the job's file says that it is."""
        text = b""
        with suppress(FileNotFoundError):
            text = self._job_file.read_bytes()
        found = re.search(rb":(\d+)\"", text)
        return [pid for pid in self.running() if found and int(found[1]) in ports_of(pid)]

    def standing_by(self) -> list[int]:
        """Return the process that stands by; none if there is none."""
        serving = self.serving()
        return [pid for pid in self.running() if pid not in serving][:1]

    def is_followed_by(self, workers: int) -> bool:
        """Return whether so many workers are connected to a control plane that stands by."""
        ports = {port for pid in self.standing_by() for port in ports_of(pid)}
        connected = [port for port, state, _ in _sockets() if state == _IS_CONNECTED]
        return any(connected.count(port) >= workers for port in ports)


def ports_of(pid: int) -> set[int]:
    """Return the TCP ports at which a process listens."""
    files = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                files.add(str(entry.readlink()))
    listening = [(port, name) for port, state, name in _sockets() if state == _LISTENS]
    return {port for port, name in listening if name in files}


def _sockets() -> list[tuple[int, str, str]]:
    """Return the port, the state and the name of each TCP socket of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(int(row[1].rpartition(":")[2], 16), row[3], f"socket:[{row[9]}]") for row in rows]
