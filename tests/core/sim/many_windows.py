"""Very many packets through the window kernel, sent and taken in compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from engines import Window as Engine
from flows import FULL, star_of
from one_port import check_conservation

from shoal.compiled import compiled
from shoal.sim.packet.window import advance, inject
from shoal.switching.network import free_row, take_row
from shoal.switching.settings import Port

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.packet.window_tables import Window
    from shoal.switching.tables import State

FAST = 1_000_000_000_000
"""Bits per second of what leads to the port under test."""


def waits_at(
    rate: int, arrivals: NDArray[np.int64], queues: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the picoseconds that packets wait at a switch's port of `rate` bits per second.

    They come one by one from another host, over a link so fast that it hardly bunches them.
    """
    shape = star_of(2, host=Port(FAST), access=Port(rate))
    engine = Engine(shape, seed=1, packets=1 << 16, least_size=FULL)
    left = np.full(len(arrivals), -1, np.int64)
    _pass(engine.state, engine.window, engine.access[0], arrivals, queues, left)
    check_conservation(engine.state)
    alone = FULL * 8 * (1_000_000_000_000 // FAST + 1_000_000_000_000 // rate) + 2_000_000
    return left - arrivals - alone


@compiled
def _pass(
    state: State,
    window: Window,
    port: int,
    arrivals: NDArray[np.int64],
    queues: NDArray[np.int64],
    left: NDArray[np.int64],
) -> None:
    network = state.network[0]
    for index in range(len(arrivals) + 1):
        until = arrivals[index] if index < len(arrivals) else arrivals[-1] + 1_000_000_000_000
        advance(state, window, until)
        for k in range(network.waiting):
            row = state.delivered[k]
            left[state.packets[row].number] = state.packets[row].at
            free_row(state, row)
        network.waiting = 0
        if index < len(arrivals):
            row = take_row(state)
            inject(state, window, row, port, until, 1_500, 1, np.uint64(0), queues[index], 0)
