"""The folders that compiled code is kept in, one for each version of the sources: use and removal.

A process that uses a folder holds a shared lock on a file in it for as long as it lives; whoever
removes one needs the lock for itself. Locks end with their process, so none is left by a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

KEPT: Final = 4
"""Folders that stay, the one in use among them, however many have been made since."""
UNUSED_S: Final = 30 * 86400.0
"""How long one must not have been used to be removed although few have been made since."""
IDLE_S: Final = 86400.0
"""How long one must not have been used to be removed at all: versions may be used by turns."""

_USED: Final = ".used"
"""The file that users lock; its time is when the last of them began."""
_REMOVED: Final = ".removed"


def hold(folder: Path) -> IO[bytes] | None:
    """Make `folder` and keep it from being removed until what this returns is closed.

    Returns None if it cannot be written to, or cannot be locked: then nobody removes it either.
    """
    try:
        while True:
            _make(folder)
            with contextlib.suppress(FileNotFoundError):  # removed in the moment since
                used = (folder / _USED).open("ab")
                fcntl.flock(used, fcntl.LOCK_SH)
                if _is_there(used, folder):
                    os.utime(folder / _USED)
                    return used
                used.close()
    except OSError:
        return None


def _make(folder: Path) -> None:
    """Make `folder`, which is this user's alone, and what is missing above it."""
    for missing in reversed([each for each in folder.parents if not each.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)  # whatever the mask: nobody else writes here
    folder.mkdir(mode=0o700, exist_ok=True)


def remove_old(own: Path, now: float) -> list[str]:
    """Remove the folders beside `own` that have not been used for long; return their names.

    `now` is in seconds of the clock that files' times are of. Those in use stay, and so do those
    that may not be removed. What an earlier removal left because it was interrupted goes as well.
    """
    removed = []
    with contextlib.suppress(OSError):
        beside = [each for each in own.parent.iterdir() if each.is_dir() and each != own]
        leftovers = [each for each in beside if each.name.endswith(_REMOVED)]
        last_used = {each.name: _last_used(each) for each in beside if each not in leftovers}
        for name in outdated(last_used, now):
            away = own.parent / f"{name}.{os.getpid()}{_REMOVED}"
            with contextlib.suppress(OSError):
                if _move_unused(own.parent / name, away):
                    leftovers.append(away)
                    removed.append(name)
        for each in leftovers:
            shutil.rmtree(each, ignore_errors=True)
    return removed


def outdated(last_used: Mapping[str, float], now: float) -> list[str]:
    """Return which of the folders beside the one in use are too old, the longest unused first.

    `last_used` has the times by name.
    """
    by_age = sorted(last_used, key=lambda name: (last_used[name], name))
    too_many = by_age[: max(0, len(by_age) + 1 - KEPT)]
    return [
        name
        for name in by_age
        if now - last_used[name] > (IDLE_S if name in too_many else UNUSED_S)
    ]


def _last_used(folder: Path) -> float:
    """Return when a process last began to use `folder`, or else when it was made."""
    try:
        return (folder / _USED).stat().st_mtime
    except OSError:
        return folder.stat().st_mtime


def _move_unused(folder: Path, away: Path) -> bool:
    """Rename `folder` to `away` if no process uses it; return whether that was done.

    Who is about to use it waits for the lock meanwhile, finds it gone and makes it anew.
    """
    with _only_user(folder) as is_only:
        if is_only:
            folder.rename(away)
        return is_only


@contextlib.contextmanager
def _only_user(folder: Path) -> Iterator[bool]:
    with (folder / _USED).open("ab") as used:
        try:
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield _is_there(used, folder)


def _is_there(used: IO[bytes], folder: Path) -> bool:
    """Return whether the file that has been opened is still the one of `folder`."""
    try:
        return os.path.samestat(os.fstat(used.fileno()), (folder / _USED).stat())
    except FileNotFoundError:
        return False
