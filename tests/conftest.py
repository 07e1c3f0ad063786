"""What all tests share: the transport's compiled code is there before a test's time limit runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

import pytest


def pytest_configure() -> None:
    """Undo what a shell does to background jobs: the tests of Ctrl-C send it to their processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the transport, if a test that needs it is going to run: once for these sources."""
    if session.config.option.collectonly:
        return
    if any("transport" in item.nodeid for item in session.items):
        from shoal.runtime.udp.engine import UdpEngine
        from shoal.transport.endpoint import TransportConfig

        engine = UdpEngine(0, 1, TransportConfig(), deadline_s=600.0)
        engine.start([engine.card])
        engine.close()
