"""The process that workers are forked from: it has imported torch once for all of them.

There is one for each launcher, which it does not outlive. Owns its start and its end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerContext


TRANSPORT_CODE: Final = "shoal.jobs.loaded_transport"
"""What to import for workers that use Shoal's transport."""

READY: Final = "shoal.jobs.forked_from"
"""What is imported last, for all workers."""


def start(modules: Sequence[str]) -> ForkServerContext:
    """Start the server unless it runs, with `modules` imported; return what makes processes.

    A terminal sends Ctrl-C to everyone. The launcher alone acts on it: from a server that is
    importing torch it would draw a traceback. What is blocked here is blocked in its children too.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, READY])
    resource_tracker.ensure_running()  # the server's start would do it, and unblock the signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


def kill() -> None:
    """End the server.

    It ends by itself with the launcher, but takes seconds while it imports torch or lets go of it.
    """
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)  # noqa: SLF001 - nor does the standard library have another way to end it
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
