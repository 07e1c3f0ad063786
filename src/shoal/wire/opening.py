"""Making a rank's engine as settings say, and how many lanes it has where they say nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from shoal.launch import workers_on_host
from shoal.wire.engine import UdpEngine
from shoal.wire.interfaces import link_bits_per_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.wire.settings import Settings

FAST_BITS_PER_S: Final = 20e9
"""What links carry that one lane does not fill: it moves some 14 to 20 Gbit/s each way."""


def new_engine(rank: int, num_ranks: int, settings: Settings, *, deadline_s: float) -> UdpEngine:
    """Return this rank's engine, yet to be started.

    Raises `UsageError` for addresses that mean nothing, `ResourceError` if sockets cannot be had.
    """
    return UdpEngine(
        rank,
        num_ranks,
        settings.transport,
        deadline_s=deadline_s,
        bind=settings.bind,
        advertise=settings.advertise,
        ports=settings.ports,
        lane_count=lane_count_of(settings, workers_on_host(num_ranks)),
        shares_memory=settings.shares_memory,
    )


def lane_count_of(settings: Settings, workers: int) -> int:
    """Return how many lanes a rank has on a host with `workers` workers, itself included."""
    return settings.lane_count or usual_lane_count(
        [link_bits_per_s(each.bind) for each in settings.interfaces],
        cores=len(os.sched_getaffinity(0)),
        workers=workers,
        ports_are_given=settings.ports is not None,
    )


def usual_lane_count(
    links: Sequence[float | None], *, cores: int, workers: int, ports_are_given: bool
) -> int:
    """Return how many lanes a rank has: two if its links are fast and its host has the cores.

    `links` are in bit/s, None if not known: then one. A second lane needs a second port, so given
    ones are not taken for it unasked. More lanes than two make sums faster still where cores are
    free, but take more of them for each byte.
    """
    known = [each for each in links if each is not None]
    are_fast = len(known) == len(links) and sum(known) >= FAST_BITS_PER_S
    return 2 if are_fast and cores >= 2 * workers and not ports_are_given else 1
