"""A process that a worker forks, such as a DataLoader's, lets go of the worker's connections.

It would hold the connections open when the worker is killed, and the others would notice the loss
only after the liveness timeout.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from stat import S_ISSOCK


def let_go_of(endpoint: str) -> None:
    """Close, in a forked process, sockets connected to `endpoint`, such as "tcp://10.0.0.1:4711".

    They are found by its port: its host may be a name, and a process that was just forked has no
    other connections there.
    """
    port = int(endpoint.rpartition(":")[2])
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # the listing itself is over, or nothing is connected
            if S_ISSOCK(os.fstat(number).st_mode) and _peer_port(number) == port:
                os.dup2(nothing, number)  # code that still uses the number meets no other file
    os.close(nothing)


def _peer_port(number: int) -> int | None:
    found = socket.socket(fileno=number)
    try:
        is_ip = found.family in (socket.AF_INET, socket.AF_INET6)
        return int(found.getpeername()[1]) if is_ip else None
    finally:
        found.detach()
