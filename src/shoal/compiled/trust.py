"""Whether code in a folder may be run: only what this user, or root, alone can put there.

What is compiled once is loaded by later processes as it lies there. Whoever can write the folder,
or put another one in its place, decides what runs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shoal.errors import ResourceError


def check_trusted(folder: Path, base: Path) -> None:
    """Raise `ResourceError` if another user could have put code into `folder`.

    Looks at `folder` and those above it, up to the user's cache directory `base`. Those that do not
    exist yet are nobody's.
    """
    for each in (folder, *folder.parents):
        try:
            found = each.stat()
        except FileNotFoundError:
            continue
        except PermissionError as error:
            message = f"The folder {each} for compiled code cannot be looked at: {error.strerror}."
            raise ResourceError(message) from error
        if reason := _distrust(found, is_base=each == base):
            message = (
                f"The folder {each} for compiled code {reason}, and could hold code of theirs:"
                " remove it, or set XDG_CACHE_HOME to a folder of your own."
            )
            raise ResourceError(message)
        if each == base:
            return


def _distrust(found: os.stat_result, *, is_base: bool) -> str:
    """Return why a folder is not to be trusted, or nothing."""
    if found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a folder like /tmp others may make files, but not replace those of this user.
    if others_write and not (is_base and found.st_mode & stat.S_ISVTX):
        return "can be written to by other users"
    return ""
