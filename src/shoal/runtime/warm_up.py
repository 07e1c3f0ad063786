"""Has Shoal's transport compiled, or its code loaded, before anybody waits or is timed.

Some of it is compiled where a sum may first lose something, or is first sent as another type; so
two ranks on this machine make such sums.
"""

from __future__ import annotations

import threading
from typing import Final

import torch

from shoal.runtime.host_copy import HOST
from shoal.runtime.transport_communicator import TransportCommunicator
from shoal.runtime.transports import DEFAULT_HOLES, LossOptions
from shoal.runtime.udp.engine import Card, UdpEngine
from shoal.transport.endpoint import TransportConfig
from shoal.transport.holes import POLICIES

_DEADLINE_S: Final = 120.0
_ELEMENTS: Final = 10_000
"""Several packets."""
_SUMS: Final = (
    LossOptions(),
    LossOptions(0.1, POLICIES[DEFAULT_HOLES]),
    LossOptions(0.1, POLICIES[DEFAULT_HOLES], wire="float16"),
)


def load_transport() -> None:
    """Open a transport of two ranks, make every kind of sum, close it. First it takes a minute.

    Raises what goes wrong at a rank.
    """
    engines = [UdpEngine(rank, 2, TransportConfig(), deadline_s=_DEADLINE_S) for rank in range(2)]
    errors: list[BaseException] = []

    def run(engine: UdpEngine) -> None:
        try:
            _make_sums(engine, [each.card for each in engines])
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)
        finally:
            engine.close()  # by each at once: the first to close waits for the last

    threads = [threading.Thread(target=run, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _make_sums(engine: UdpEngine, cards: list[Card]) -> None:
    engine.start(cards)
    communicator = TransportCommunicator(engine)
    for loss in _SUMS:
        communicator.loss = loss
        communicator.all_reduce(torch.ones(_ELEMENTS, device=HOST)).wait()
