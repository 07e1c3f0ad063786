"""Tells a person that something is being compiled: what, how long it takes, and where it is kept.

Whoever calls this knows what is cold. Each process says it once of each thing.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from shoal.compiled.cache import kept_in

_told: Final[set[str]] = set()
_is_silent = False


def be_silent() -> None:
    """Say nothing from now on: another process tells what is compiled."""
    global _is_silent  # noqa: PLW0603 - of this process, as standard error is
    _is_silent = True


def sentence_of(what: str, duration: str) -> str:
    """Return what is told while `what` is compiled, which takes about `duration` on a free core."""
    folder = kept_in()
    if os.access(folder, os.W_OK | os.X_OK):
        return (
            f"compiling {what}, once for this version of Shoal: {duration} on a free core; kept in"
            f" {folder} (shoal warm-up does it beforehand)"
        )
    return (
        f"compiling {what}: {duration} on a free core, and again in every process, for nothing can"
        f" be kept in {folder}: set XDG_CACHE_HOME to a folder that can be written to"
    )


def announce(what: str, duration: str) -> None:
    """Say on standard error that `what` is being compiled, which takes about `duration`."""
    if what not in _told and not _is_silent:
        _told.add(what)
        sys.stderr.write(f"{sentence_of(what, duration)}\n")
        sys.stderr.flush()
