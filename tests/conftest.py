"""What all tests share: Ctrl-C works in them, one thread, compiled code, examples without dice."""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from thoroughness import examples

if TYPE_CHECKING:
    from collections.abc import Generator

SIMULATOR = Path(__file__).parent / "core" / "sim"
PROCESSES = Path(__file__).parent / "processes"
"""Their workers are forked from a process that loads the transport."""
NAMESPACES = Path(__file__).parent / "namespaces"
"""Their networks have the lab's switch, which says so where it has to be compiled."""

# The same examples everywhere, and no test fails for the speed of a machine.
settings.register_profile("shoal", derandomize=True, deadline=None, max_examples=examples(100))
settings.load_profile("shoal")


def pytest_configure() -> None:
    """Undo what a shell does to background jobs: the tests of Ctrl-C send it to their processes.

    What workers of tests did last is written only where a test asks for it.
    """
    os.environ.setdefault("SHOAL_FLIGHT_DIR", "0")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what is there to stay: thousands of tests, and torch.

    Visiting it again and again takes a third of the time of collecting tests, and later a second
    whenever something asks for a full collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile what tests need that are going to run, before any time limit does."""
    if session.config.option.collectonly:
        return
    compiles = []
    uses_transport = any(
        "transport" in item.nodeid or PROCESSES in item.path.parents for item in session.items
    )
    if uses_transport and find_spec("torch") is not None:
        from shoal.session.warm_up import load_transport

        compiles.append(load_transport)
    if any(NAMESPACES in item.path.parents for item in session.items):
        from shoal.lab.network.load_switch import load_switch

        compiles.append(load_switch)
    if any(SIMULATOR in item.path.parents for item in session.items):
        from kernels import compile_kernels

        compiles.append(compile_kernels)
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        compiles.reverse()  # two processes compile different things, and find each other's
    for compile_now in compiles:
        compile_now()
    if "worker_processes" in sys.modules:  # some test forks workers
        sys.modules["worker_processes"].start_server()


def pytest_runtest_setup() -> None:
    """Let torch compute with one thread in every test, whatever the one before has set.

    Models in tests are so small that threads which share them out only wait for each other: on a
    busy machine that took ten times as long, and most of the processor. Commands that tests start
    have as many as they choose.
    """
    if "torch" in sys.modules:  # some test uses it
        sys.modules["torch"].set_num_threads(1)
