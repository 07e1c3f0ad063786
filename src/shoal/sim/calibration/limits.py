"""What of a cluster the calibration of a transport does not reach, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.errors import UsageError
from shoal.sim.calibration.ways import WayTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.sim.calibration.calibration_table import Table
    from shoal.switching import Topology

_ADVICE: Final = 'take level = "packets".'
_ROUNDED: Final = 1e-9
"""Losses, delays and rates have been rounded to whole numbers of small units on their way here."""


def check_reach(topologies: Iterable[Topology], table: Table) -> None:
    """Raise `UsageError` if a way through one of `topologies` is outside what `table` covers.

    They are a cluster's: at its beginning, and after each of its events.
    """
    for topology in topologies:
        if topology.hosts < 2:
            continue
        if any(cable.link.to_bad for cable in topology.cables):
            message = f"Flows are calibrated for packets lost one by one, not in bursts: {_ADVICE}"
            raise UsageError(message)
        _check_ways(topology, table)


def _check_ways(topology: Topology, table: Table) -> None:
    sources, targets = _ends(topology)
    ways, reach = WayTable(topology).of(sources, targets), table.range
    for what, values, (least, most), unit in (
        ("loss", ways.loss, reach.loss, ""),
        ("round trip", ways.round_trip_s, reach.round_trip_s, " s"),
        ("rate", ways.rate, reach.rate, " bit/s"),
    ):
        slack = _ROUNDED * most
        outside = np.flatnonzero((values < least - slack) | (values > most + slack))
        if len(outside):
            first = outside[0]
            names = topology.host_names
            message = (
                f"The way from {names[sources[first]]} to {names[targets[first]]} has a {what} of"
                f" {values[first]:.3g}{unit}; flows over {table.carrier.transport} are calibrated"
                f" for {least:g} to {most:g}{unit}: {_ADVICE}"
            )
            raise UsageError(message)


def _ends(topology: Topology) -> tuple[list[int], list[int]]:
    """Return pairs of hosts that stand for all: of hosts alike at a switch, two."""
    alike: dict[object, list[int]] = {}
    into = {cable.target: cable for cable in topology.cables}
    for cable in topology.cables:
        if cable.source >= 0:
            back = into[cable.source]
            kind = (cable.target, cable.link, cable.port, back.link, back.port)
            alike.setdefault(kind, []).append(cable.source)
    chosen = [host for hosts in alike.values() for host in hosts[:2]]
    pairs = [(a, b) for a in chosen for b in chosen if a != b]
    return [a for a, _ in pairs], [b for _, b in pairs]
