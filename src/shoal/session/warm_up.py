"""Has Shoal's transport compiled, or its code loaded, before a rank waits or is timed.

Does the same as `numpy_warm_up`, with the sums that strategies around a torch optimizer make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import DEFAULT_HOLES, HOST, LossOptions, TransportCommunicator
from shoal.session.numpy_warm_up import ELEMENTS, LOSS_BOUND, NARROW, between_two
from shoal.transport import POLICIES

if TYPE_CHECKING:
    from shoal.wire import UdpEngine

_SUMS: Final = (
    LossOptions(),
    LossOptions(LOSS_BOUND, POLICIES[DEFAULT_HOLES]),
    LossOptions(LOSS_BOUND, POLICIES[DEFAULT_HOLES], wire=NARROW),
)


def load_transport() -> None:
    """Open a transport of two ranks, make every kind of sum, close it; a minute the first time.

    Raises the first error of a rank.
    """
    between_two(_make_sums)


def _make_sums(engine: UdpEngine) -> None:
    communicator = TransportCommunicator(engine)
    for loss in _SUMS:
        communicator.loss = loss
        communicator.all_reduce(torch.ones(ELEMENTS, device=HOST)).wait()
