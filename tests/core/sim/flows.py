"""Small networks for the simulator's tests."""

from __future__ import annotations

from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, Topology, host_names, star

GIGABIT = 1_000_000_000
FULL = 1_500
SLOT = 12_000_000
"""Picoseconds that a full packet takes at 1 Gbit/s."""
MICROSECOND = 1_000_000


def star_of(
    hosts: int, *, access: Port | None = None, host: Port | None = None, delay_s: float = 1e-6
) -> Topology:
    """Return hosts around a switch, links of 1 Gbit/s unless said otherwise."""
    plain = Port(GIGABIT)
    return star(host_names(hosts), Materials(host or plain, access or plain, Link(delay_s=delay_s)))
