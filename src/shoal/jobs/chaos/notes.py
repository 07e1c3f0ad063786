"""What the processes of one job with a fault let each other know: small files in a folder.

A file is there whole or not at all, also if its writer is killed.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

POLL_S = 0.005


class Notes:
    """The notes in one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def write(self, name: str, text: bytes = b"") -> None:
        """Let all know something."""
        fresh = self.folder / f"{name}.{os.getpid()}"
        fresh.write_bytes(text)
        fresh.rename(self.folder / name)

    def claim(self, name: str) -> bool:
        """Return whether nobody has claimed this before."""
        with suppress(FileExistsError):
            os.close(os.open(self.folder / name, os.O_CREAT | os.O_EXCL))
            return True
        return False

    def has(self, name: str) -> bool:
        """Return whether somebody has noted this."""
        return (self.folder / name).exists()

    def read(self, name: str) -> bytes:
        """Return what was noted; nothing if nothing was."""
        with suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return b""

    def wait_for(self, name: str, within_s: float) -> bool:
        """Wait until somebody has noted this; return whether that was in time."""
        end = time.monotonic() + within_s
        while not self.has(name):
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True
