"""Channels for what runs beside training: some of their own for each training run.

Two optimizers may train at the same time (a generator and its critic); their servers, and averages
in the background, must not read each other's mail. Workers make their optimizers in the same order,
so counting agrees everywhere.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.comm import Communicator

CHANNELS_PER_RUN: Final = 80
"""Channels of each run: one for requests to servers, and two for every piece of a model."""

STATE_CHANNEL: Final = 1
"""The channel on which a newcomer is given its state."""

_FIRST: Final = 8
_NUM_RUNS: Final = 6

_runs: WeakKeyDictionary[Communicator, Iterator[int]] = WeakKeyDictionary()


def reserve_channels(communicator: Communicator) -> range:
    """Return channels for what a new run does beside training; every worker gets the same.

    After six runs the first one's are given out again: it must have finished by then, and services
    say who may still send them something (`receive_any`), so that it has left nothing open.
    """
    number = next(_runs.setdefault(communicator, count()))
    base = _FIRST + CHANNELS_PER_RUN * (number % _NUM_RUNS)
    return range(base, base + CHANNELS_PER_RUN)
