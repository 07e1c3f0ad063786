"""What is left of namespaces after whoever made them is gone."""

from __future__ import annotations

import contextlib
from pathlib import Path


def references(namespaces: set[int]) -> list[str]:
    """Return what on this machine refers to the namespaces of these inode numbers."""
    found = []
    for path in [*Path("/proc").glob("[0-9]*/task/*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")]:
        with contextlib.suppress(OSError):
            if path.stat().st_ino in namespaces and str(path.readlink()).startswith("net:"):
                found.append(str(path))
    return found
