"""`shoal warm-up`: has all that is compiled at first use compiled now.

For images, for clusters whose machines share no home, and before timing anything.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from shoal.compiled import be_silent, kept_in
from shoal.errors import ResourceError


def warm_up() -> None:
    """Compile now what would be compiled at first use.

    That is the transport, the lab's switch and the simulator: some three minutes on a free core,
    for each version of Shoal and kind of processor. Safe to repeat; what is there is only loaded.
    """
    folder = kept_in()
    if not os.access(folder, os.W_OK | os.X_OK):
        message = (
            f"Nothing can be kept in {folder}: set XDG_CACHE_HOME to a folder that can be written"
            " to."
        )
        raise ResourceError(message)
    be_silent()
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    for what, duration, load in _parts():
        since = time.monotonic()
        if not console.is_terminal:
            sys.stderr.write(f"{what}: {duration}, less if it is there already ...\n")
        with console.status(f"{what}: {duration}, less if it is there already"):
            load()
        console.print(f"{what}: ready after {time.monotonic() - since:.0f} s")
    took = time.monotonic() - began
    console.print(f"All is ready after {took:.0f} s, and kept in {folder}", soft_wrap=True)


def _parts() -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield what is compiled, about how long it takes, and what does it."""
    yield "the transport", "about a minute", _load_transport
    yield "the lab's switch", "half a minute", _load_switch
    from shoal.sim import DURATIONS, load_simulator, name_of

    for kind, duration in DURATIONS.items():
        yield name_of(kind), duration, partial(load_simulator, kind)


def _load_transport() -> None:
    from shoal.session import load_numpy_transport

    load_numpy_transport()
    try:
        from shoal.carriers import load_checksums, load_means
        from shoal.session import load_transport
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
    else:
        load_transport()
        load_means()
        load_checksums()


def _load_switch() -> None:
    from shoal.lab import load_switch

    load_switch()
