"""How Shoal compiles its per-packet code: without the GIL, kept on disk between processes.

Numba invalidates a cached function when its own file changes, but not when a file it calls into
does; and an installed package may be read-only. So the cache lies in the user's cache directory, in
a folder named by a hash of every source file of the compiled rooms: change one of them and all is
compiled anew, once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import numba
from numba.core import config

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

ROOMS: Final = ("compiled", "transport", "runtime/udp")
"""Folders of the package whose functions are compiled and call each other."""


def source_hash() -> str:
    """Return a hash of the sources of all compiled rooms and of the numba that compiles them."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(numba.__version__.encode())
    for room in ROOMS:
        for file in sorted((package / room).glob("**/*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "shoal" / "compiled" / source_hash())


_FOLDER: Final = _cache_folder()
_WARM: Final = ".warm"
"""Stands in the folder once everything in it has been compiled."""


def is_cold() -> bool:
    """Return whether nothing has been compiled yet for these sources on this machine."""
    return not Path(_FOLDER, _WARM).exists()


@contextlib.contextmanager
def compiling_once() -> Iterator[None]:
    """Let one process of this machine at a time compile; the others find its work done.

    Wrap the first calls of compiled functions in it.
    """
    if not is_cold():
        yield
        return
    try:
        Path(_FOLDER).mkdir(parents=True, exist_ok=True)
        lock = Path(_FOLDER, ".lock").open("w")  # noqa: SIM115 - entered below
    except OSError:  # nothing can be kept here: every process compiles for itself
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        Path(_FOLDER, _WARM).touch()


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` at its first call; it runs without the GIL and without bounds checks."""
    settings: Any = config
    previous, settings.CACHE_DIR = settings.CACHE_DIR, _FOLDER
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no place to write: compile in every process
        return numba.njit(nogil=True, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = previous
