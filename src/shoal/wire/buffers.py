"""Asks the kernel for larger buffers of sockets. Linux only."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_FORCE: Final = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}
"""The options that also go beyond the system's limit, for who may (SO_RCVBUFFORCE and so on)."""


def enlarge_buffer(made: socket.socket, option: int, num_bytes: int) -> None:
    """Ask for a buffer (`SO_RCVBUF`, `SO_SNDBUF`) of so many bytes, by force where allowed."""
    made.setsockopt(socket.SOL_SOCKET, option, num_bytes)
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, _FORCE[option], num_bytes)
