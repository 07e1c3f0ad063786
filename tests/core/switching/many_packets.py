"""Very many packets through one port, sent and taken in compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from one_port import OnePort, check_conservation

from shoal.compiled import compiled
from shoal.switching.network import advance, free_row, inject, take_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.switching.settings import Port
    from shoal.switching.tables import State


def arrivals_at_load(load: float, slot: int, packets: int, seed: int) -> NDArray[np.int64]:
    """Return times of a Poisson process of `load` packets per `slot`."""
    gaps = np.random.default_rng(seed).exponential(slot / load, packets)
    return np.cumsum(gaps).astype(np.int64)


def delivery_times(
    port: Port, arrivals: NDArray[np.int64], size: int, queues: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return when each packet of `size` bytes came out of `port`; -1 if it was dropped."""
    line = OnePort(port)
    left = np.full(len(arrivals), -1, np.int64)
    _pass(line.state, arrivals, size, queues, left)
    check_conservation(line.state)
    return left


@compiled
def _pass(
    state: State,
    arrivals: NDArray[np.int64],
    size: int,
    queues: NDArray[np.int64],
    left: NDArray[np.int64],
) -> None:
    network = state.network[0]
    for index in range(len(arrivals) + 1):
        until = arrivals[index] if index < len(arrivals) else arrivals[-1] + 1_000_000_000_000
        while network.events > 0 and state.heap[0].at <= until:
            at = state.heap[0].at
            advance(state, at)
            for k in range(network.waiting):
                row = state.delivered[k]
                left[state.packets[row].number] = at
                free_row(state, row)
            network.waiting = 0
        if index < len(arrivals):
            row = take_row(state)
            inject(state, row, 0, until, size, 0, np.uint64(0), queues[index], 0)
