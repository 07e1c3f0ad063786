"""Where compiled code is kept between processes, and who compiles it.

Numba invalidates a cached function when its own file changes, but not when a file it calls into
does; and an installed package may be read-only. So the cache lies in the user's cache directory, in
a folder named by a hash of every source file of the compiled rooms: change one of them and all is
compiled anew, once. Folders of sources that are no longer used are removed when one is made.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from shoal.compiled.cache_folders import hold, remove_old
from shoal.compiled.trust import check_trusted

ROOMS: Final = (
    *("compiled", "transport", "switching", "lab/network"),
    *("wire/pump.py", "carriers/checksum.py", "carriers/mean.py"),
)
"""Folders and files of the package whose functions are compiled and call each other: all that are
not above. Code of a function elsewhere would be used after its source has changed."""

ABOVE: Final = ("sim",)
"""Folders whose compiled functions call those of the rooms but are called by none of them: changing
one of these compiles only these anew."""


def source_hash(rooms: Sequence[str] = ROOMS) -> str:
    """Return a hash of the sources of compiled rooms and of the numba that compiles them."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(_numba_version())
    for room in rooms:
        place = package / room
        for file in [place] if place.is_file() else sorted(place.glob("**/*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _numba_version() -> bytes:
    """Return the file that says numba's version: importing numba takes a second and 20 MB."""
    found = find_spec("numba")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("_version.py").read_bytes()


_BASE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_FOLDER: Final = str(_BASE / "shoal" / "compiled" / source_hash())
_HELD: Final = hold(Path(_FOLDER))
"""The hold that keeps other processes from removing the folder for as long as this one lives."""
if _HELD is not None:
    atexit.register(_HELD.close)
_WARM: Final = ".warm"
"""The beginning of the names of files that say what has been compiled into the folder."""


@functools.cache
def _folder_above() -> str:
    return str(Path(_FOLDER, f"above-{source_hash(ABOVE)}"))


@functools.cache
def _check_folder() -> None:
    check_trusted(Path(_FOLDER), _BASE)


@functools.cache
def _processor() -> str:
    """Return a hash of this kind of processor, which code is made for."""
    try:
        about = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        about = []
    kinds = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU ")
    lines = [each for each in about if each.startswith(kinds)]
    return hashlib.sha256("\n".join([platform.machine(), *lines]).encode()).hexdigest()[:8]


def folder_for(module: str) -> str:
    """Return the folder for the code of functions of `module`.

    Raises `ResourceError` if somebody else could have put code there.
    """
    _check_folder()
    is_above = any(module.startswith(f"shoal.{room}.") for room in ABOVE)
    return _folder_above() if is_above else _FOLDER


def kept_in() -> Path:
    """Return the folder that compiled code is kept in, if it can be."""
    return Path(_FOLDER)


def mark_warm(what: str) -> None:
    """Note that `what` has been compiled and kept; nothing if nothing can be."""
    with contextlib.suppress(OSError):
        mark = _mark_of(what)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()


def is_cold(what: str) -> bool:
    """Return whether `what` has not been compiled yet for these sources and this processor."""
    return not _mark_of(what).exists()


def _mark_of(what: str) -> Path:
    is_above = what.startswith(tuple(ABOVE))
    return Path(_folder_above() if is_above else _FOLDER, f"{_WARM}-{what}-{_processor()}")


@contextlib.contextmanager
def compiling_once(what: str) -> Iterator[None]:
    """Let one process of this machine at a time compile `what`; the others find its work done.

    Wrap the first calls of the compiled functions that make it up in it.
    """
    if not is_cold(what):
        yield
        return
    try:
        lock = Path(_FOLDER, f".lock-{what}").open("w")  # noqa: SIM115 - entered below
    except OSError:  # nothing can be kept here: every process compiles for itself
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_old(Path(_FOLDER), time.time())
        yield
        _mark_of(what).touch()
