"""Has Shoal's transport compiled, or its code loaded, where there may be no torch.

Some of it is only compiled by the first sum that may lose packets, or that is sent as another type;
so two ranks on this machine make such sums.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np

from shoal.session.numpy_communicator import NumpyCommunicator
from shoal.transport import TransportConfig
from shoal.wire import UdpEngine

_DEADLINE_S: Final = 120.0
ELEMENTS: Final = 10_000
"""The elements of a sum of several packets."""
LOSS_BOUND: Final = 0.1
NARROW: Final = "float16"


def load_numpy_transport() -> None:
    """Open a transport of two ranks, make every kind of sum, close it; a minute the first time.

    Raises the first error of a rank.
    """
    between_two(_make_sums)


def between_two(work: Callable[[UdpEngine], None]) -> None:
    """Start the engines of two ranks, let both do `work` at the same time, close them.

    Raises the first error of a rank.
    """
    engines = [UdpEngine(rank, 2, TransportConfig(), deadline_s=_DEADLINE_S) for rank in range(2)]
    errors: list[BaseException] = []

    def run(engine: UdpEngine) -> None:
        try:
            engine.start([each.card for each in engines])
            work(engine)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)
        finally:
            engine.close()  # in both threads at once: the first to close waits for the last

    threads = [threading.Thread(target=run, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _make_sums(engine: UdpEngine) -> None:
    communicator = NumpyCommunicator(engine)
    array = np.ones(ELEMENTS, np.float32)
    communicator.all_reduce(array)
    communicator.all_reduce(array, loss_bound=LOSS_BOUND, holes="error-feedback")
    communicator.all_reduce(array, loss_bound=LOSS_BOUND, holes="error-feedback", wire=NARROW)
