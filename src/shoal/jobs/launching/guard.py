"""Ends the workers of a launcher that is gone, however it went, and removes its folder.

A program by itself, of the standard library alone, so that it starts fast: `guard.py FOLDER`. Each
line on its standard input is a process group that has begun, or with a minus one that has ended.
When the input ends, so does all that is left.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Note which groups there are until the input ends; then end them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = abs(int(line))
        (groups.discard if line.startswith("-") else groups.add)(group)
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
