"""Runs of a sweep that end well, fail, die or take their time.

In a module of its own, which spawned processes load without torch.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from shoal.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable


def work(number: int, *, tick: Callable[[float], None]) -> tuple[int, int]:
    """Return a number and who made it; 13 fails, 99 dies, and 50 says how far it is."""
    if number == 13:
        raise ProtocolError("Thirteen is no number.")
    if number == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 50:
        for part in range(5):
            time.sleep(0.3)
            tick(part / 5)
    return number, os.getpid()
