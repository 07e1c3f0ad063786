"""Has Shoal's transport compiled, or its code loaded, before anybody's time is measured."""

from __future__ import annotations

from typing import Final

from shoal.runtime.udp.engine import UdpEngine
from shoal.transport.endpoint import TransportConfig

_DEADLINE_S: Final = 10.0


def load_transport() -> None:
    """Open a transport of one rank on this machine and close it. The first time takes a minute."""
    engine = UdpEngine(0, 1, TransportConfig(), deadline_s=_DEADLINE_S)
    try:
        engine.start([engine.card])
    finally:
        engine.close()
