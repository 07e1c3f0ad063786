"""What the doctor would measure of a star, by formula, for the tests."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from shoal.doctor.doctor_report import PairFigures, WayFigures
from shoal.doctor.probe_facts import RateFacts
from shoal.doctor.star import (
    HostLinks,
    LinkFigures,
    loss_between,
    rate_between,
    round_trip_between,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SIZE = 1500
BURST = 10**12
"""Packets: so many that a share of them is as exact as a number."""


def host(
    number: int, rate: int = 10**8, delay_s: float = 1e-3, loss: float = 0.0, down: float = 1.0
) -> HostLinks:
    """Return a host; its downward link has `down` times the rate."""
    return HostLinks(
        f"192.0.2.{number}",
        LinkFigures(rate, delay_s, loss),
        LinkFigures(round(rate * down), delay_s, loss),
    )


def way(sender: HostLinks, receiver: HostLinks) -> WayFigures:
    """Return what one way of a star is measured as."""
    return WayFigures(
        sender.address,
        receiver.address,
        SIZE,
        RateFacts(rate_between(sender, receiver), is_least=False, sent_bytes=1),
        BURST,
        round(BURST * loss_between(sender, receiver)),
    )


def pair(one: HostLinks, other: HostLinks) -> PairFigures:
    """Return what a pair of a star is measured as."""
    trip_us = round(1e6 * round_trip_between(one, other, SIZE))
    return PairFigures(way(one, other), way(other, one), SIZE, trip_us, trip_us, trip_us)


def pairs_of(
    hosts: Sequence[HostLinks], which: Iterable[tuple[int, int]] | None = None
) -> list[PairFigures]:
    """Return what all pairs of a star are measured as, or those of `which`."""
    places = combinations(range(len(hosts)), 2) if which is None else which
    return [pair(hosts[a], hosts[b]) for a, b in places]
