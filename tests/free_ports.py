"""Ports in a row that nobody has, nor is given meanwhile."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress


def free_ports_in_a_row(count: int) -> int:
    """Return the lowest of `count`, below those that the system gives to connections by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with ExitStack() as stack, suppress(OSError):
            for number in range(port, port + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
