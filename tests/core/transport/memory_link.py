"""Hosts on which several ranks share memory, joined by a network in virtual time.

Ranks of a host exchange messages through their mailboxes, and with others by datagrams. Each
sleeps as `wire.pump` does, and is woken only by whoever finds it asleep: a lost wake-up leaves a
run stuck.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from virtual_link import VirtualLink, joined

from shoal.transport import by_memory, mailboxes
from shoal.transport.mailboxes import Area, PostOffice, area_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.transport.endpoint import Endpoint, TransportConfig

SHARE = 8
"""Blocks for each other rank."""

MOST_TURNS = 10_000
"""Turns of one rank without a sleep after which it is said to spin."""


@dataclass(eq=False)
class MemoryLink(VirtualLink):
    """A `VirtualLink` between endpoints of which some share memory."""

    slowest_us: int = 0
    """The longest time from waking a rank to its turn."""
    stopped: set[int] = field(default_factory=set)
    """Ranks that do nothing."""
    offices: dict[int, PostOffice] = field(default_factory=dict)

    def _turn(self, host: int) -> None:
        """Do what `pump` does between two waits."""
        if host in self.stopped:
            return
        state = self.endpoints[host].state
        if state.core["post"][0] == 0:
            super()._turn(host)
            return
        mailboxes.wake_up(state)
        for _ in range(MOST_TURNS):
            taken = by_memory.take_by_memory(state, self.now)
            super()._turn(host)
            sent = by_memory.send_by_memory(state)
            self.counts["runs"] += sent
            self._wake_others(host)
            if taken == sent == 0 and mailboxes.fall_asleep(state):
                break
        else:
            self._fail(f"Rank {host} spins")
        done = self.endpoints[host].finished()
        self.finished[host].update(self.slots[host].pop(slot) for slot in done)

    def _wake_others(self, host: int) -> None:
        while (other := mailboxes.next_sleeper(self.endpoints[host].state)) >= 0:
            self.counts["woken"] += 1
            moment = self.now + self.random.randint(0, self.slowest_us)
            self.at(moment, other, lambda: None)


def with_memory(
    hosts: Sequence[int], config: TransportConfig | None = None, **link: object
) -> tuple[MemoryLink, list[Endpoint]]:
    """Return a link and its endpoints, one for each of `hosts`, which says where it is."""
    _, endpoints = joined(len(hosts), config)
    made = MemoryLink(endpoints, **link)  # type: ignore[arg-type]
    for host in set(hosts):
        ranks = [rank for rank, each in enumerate(hosts) if each == host]
        if len(ranks) == 1:
            continue
        areas = [_area(rank, len(ranks)) for rank in ranks]
        for area in areas:
            others = [each for each in areas if each is not area]
            office = made.offices[area.rank] = PostOffice(area, others, len(hosts), SHARE)
            endpoints[area.rank].open_post(office)
    return made, endpoints


def _area(rank: int, ranks: int) -> Area:
    """Return an area whose rank is woken by its own number in place of an eventfd."""
    memory = np.zeros(area_bytes(ranks, SHARE) // 8, np.int64)
    return Area(rank, memory.ctypes.data, rank, memory)
