"""A mean over workers on a network that makes sums itself: within hosts first, then between them.

A host has one endpoint: the values of its workers, if there are any, are added up there, and it
takes part in the sum of all hosts. Real workers have an endpoint each and send as little between
hosts by the hierarchical algorithm, which they take where hosts hold equally many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.transport import FLOAT32, LARGE, LARGE_CHANGE, ZERO

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from shoal.sim.network import SummingNetwork
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process


@dataclass(frozen=True, slots=True)
class Summand:
    """What is to be averaged: `size` bytes, and the workers' values where they matter."""

    size: float
    values: Sequence[NDArray[np.float32]] = ()
    """One array for each member, replaced by the mean."""
    tensor: Hashable = None
    """Its name from one iteration to the next."""
    layer_class: int = 0
    policy: int = ZERO
    """What a lost part of a value counts as: one of `transport.holes`."""
    exact: bool = False
    """Whether nothing of it may get lost."""
    form: int = FLOAT32
    """What of an element is sent: one of `transport.forms`."""
    importance: str = LARGE
    """The kind of its packets that count as important: see `transport.tags`."""


def sum_over_hosts(
    world: World,
    network: SummingNetwork,
    members: Sequence[int],
    summand: Summand,
    algorithm: str,
) -> Process:
    """Average over `members`, one or more of them on each host."""
    hosts = [world.host_of[rank] for rank in members]
    first = {host: place for place, host in reversed(list(enumerate(hosts)))}
    guests = [place for place, host in enumerate(hosts) if first[host] != place]
    values, size, now = summand.values, summand.size, world.time.now
    within = [hosts[place] for place in guests]
    if guests:
        yield world.time.transfer(within, within, [size] * len(within))
        now = world.time.now
    leaders = sorted(first.values())
    between = [hosts[place] for place in leaders]
    if values:
        for place in guests:
            values[first[hosts[place]]][:] += values[place]
        for place in leaders:  # what follows divides by the number of hosts
            values[place][:] *= np.float32(len(leaders) / len(members))
    if len(between) > 1:
        if values:
            assert isinstance(network, BoundedLossNetwork)  # the only one in which values travel
            leading = [values[place] for place in leaders]
            number = network.mean(
                now,
                between,
                leading,
                tensor=summand.tensor,
                algorithm=algorithm,
                policy=summand.policy,
                layer_class=summand.layer_class,
                form=summand.form,
                importance=summand.importance,
            )
        else:
            number = network.all_reduce(
                now,
                between,
                size,
                algorithm=algorithm,
                layer_class=summand.layer_class,
                exact=summand.exact,
            )
        yield world.time.over(number)
        if values and summand.importance == LARGE_CHANGE:
            assert isinstance(network, BoundedLossNetwork)  # as above
            for host, array in zip(between, leading, strict=True):
                network.means[host].note(summand.tensor, array.ctypes.data, FLOAT32, len(array))
    if guests:
        for place in guests if values else ():
            values[place][:] = values[first[hosts[place]]]
        yield world.time.transfer(within, within, [size] * len(within))
