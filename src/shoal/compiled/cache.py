"""How Shoal compiles its per-packet code: without the GIL, kept on disk between processes.

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
import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import numba
from numba import types
from numba.core import config

from shoal.compiled.cache_folders import hold, remove_old

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""No reference counts: arrays belong to the Python caller for as long as compiled code runs, and
nothing is allocated there (numba refuses to). Counting took up to half of short functions' time."""

ROOMS: Final = ("compiled", "transport", "switching", "lab/network", "runtime/udp")
"""Folders of the package whose functions are compiled and call each other."""

ABOVE: Final = ("sim",)
"""Folders whose compiled functions call those of the rooms but are called by none of them: changing
one of these compiles only these anew."""


def source_hash(rooms: Sequence[str] = ROOMS) -> str:
    """Return a hash of the sources of compiled rooms and of the numba that compiles them."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(numba.__version__.encode())
    for room in rooms:
        for file in sorted((package / room).glob("**/*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "shoal" / "compiled" / source_hash())


_FOLDER: Final = _cache_folder()
_HELD: Final = hold(Path(_FOLDER))
"""Keeps other processes from removing the folder for as long as this one lives."""
if _HELD is not None:
    atexit.register(_HELD.close)
_WARM: Final = ".warm"
"""Begins the names of files that say what has been compiled into the folder."""


@functools.cache
def _folder_above() -> str:
    return str(Path(_FOLDER, f"above-{source_hash(ABOVE)}"))


def _folder_for(module: str) -> str:
    is_above = any(module.startswith(f"shoal.{room}.") for room in ABOVE)
    return _folder_above() if is_above else _FOLDER


def is_cold(what: str) -> bool:
    """Return whether `what` has not been compiled yet for these sources on this machine."""
    return not Path(_FOLDER, f"{_WARM}-{what}").exists()


@contextlib.contextmanager
def compiling_once(what: str) -> Iterator[None]:
    """Let one process of this machine at a time compile; the others find its work done.

    Wrap the first calls of the compiled functions that make up `what` in it.
    """
    if not is_cold(what):
        yield
        return
    try:
        lock = Path(_FOLDER, ".lock").open("w")  # noqa: SIM115 - entered below
    except OSError:  # nothing can be kept here: every process compiles for itself
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_old(Path(_FOLDER), time.time())
        yield
        Path(_FOLDER, f"{_WARM}-{what}").touch()


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` at its first call; it runs without the GIL and without bounds checks.

    Parameters annotated `int` are 64 bits wide whatever is passed to them, so that a function is
    compiled once and not for every width, and for every constant, that it is called with.
    """
    return _compiled(function, OPTIONS)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` into each compiled function that calls it.

    A tuple of arrays is passed as some ten words for each of them: for a function that is called
    for every packet, that takes longer than what it does.
    """
    return _compiled(function, OPTIONS | {"forceinline": True})


def _compiled(
    function: Callable[Parameters, Result], options: dict[str, Any]
) -> Callable[Parameters, Result]:
    settings: Any = config
    previous, settings.CACHE_DIR = settings.CACHE_DIR, _folder_for(function.__module__)
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place to write: compile in every process
        dispatcher = numba.njit(**options)(function)
    finally:
        settings.CACHE_DIR = previous
    _widen_arguments(dispatcher, function)
    return dispatcher


def _widen_arguments(dispatcher: Any, function: Callable[..., object]) -> None:
    """Let calls from other compiled code go to one version of `function`, not one for each width.

    Numba types a call by asking the callee's dispatcher for a template that fits the arguments; the
    caller then converts them to what the template says.
    """
    names = list(inspect.signature(function).parameters)
    integers = {name for name in names if function.__annotations__.get(name) == "int"}
    original = dispatcher.get_call_template

    def widen(name: str, kind: Any) -> Any:
        plain = types.unliteral(kind)  # type: ignore[no-untyped-call]
        wide = name in integers and isinstance(plain, types.Integer)
        return types.int64 if wide else plain

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        return original(
            tuple(widen(name, kind) for name, kind in zip(names, arguments, strict=False)),
            {name: widen(name, kind) for name, kind in keywords.items()},
        )

    dispatcher.get_call_template = get_call_template
