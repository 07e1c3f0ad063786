"""What a port does with a burst that comes while its link is busy: the closed form.

A slow plain description of the rules in `docs/switching.md`, packet by packet, written apart from
the switch that it judges. Nothing leaves but the first packet that is kept: the idle link takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shoal.switching import Port, Profile, Queue

_AVERAGE_ONE: Final = 1 << 16


@unique
class Fate(StrEnum):
    """What becomes of a packet."""

    KEPT = "kept"
    MAY_BE_MARKED = "may be marked"
    """The packet is kept, and chance decides about the mark."""
    MARKED = "marked"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class BurstArrival:
    """A packet of a burst."""

    queue: int
    capable: bool
    """Whether it understands marks."""
    size: int


def fates(
    port: Port, arrivals: Sequence[BurstArrival], shared_buffer: int | None, *, unlucky: bool
) -> list[Fate]:
    """Return what becomes of each, in order; drops that chance decides happen if `unlucky`."""
    waiting = [_Waiting() for _ in port.queues]
    everything = _Waiting()
    result: list[Fate] = []
    is_busy = False
    for packet in arrivals:
        queue, mine = port.queues[packet.queue], waiting[packet.queue]
        mine.average += (mine.num_bytes * _AVERAGE_ONE - mine.average) >> queue.average_weight
        seen = mine.average // _AVERAGE_ONE if queue.average_weight else mine.num_bytes
        fate = Fate.KEPT
        if not _has_room(port, queue, everything, mine, packet.size, shared_buffer):
            fate = Fate.DROPPED
        elif packet.capable:
            fate = _marked(queue.capable, seen)
        elif _marked(queue.plain, seen) is not Fate.KEPT:
            is_certain = _marked(queue.plain, seen) is Fate.MARKED
            fate = Fate.DROPPED if is_certain or unlucky else Fate.KEPT
        if fate is not Fate.DROPPED and is_busy:
            mine.add(packet.size)
            everything.add(packet.size)
        is_busy |= fate is not Fate.DROPPED
        result.append(fate)
    return result


@dataclass(slots=True)
class _Waiting:
    """What waits in a queue, or in all of them."""

    num_bytes: int = 0
    packets: int = 0
    average: int = 0

    def add(self, size: int) -> None:
        """Let one more wait."""
        self.num_bytes += size
        self.packets += 1


def _has_room(
    port: Port,
    queue: Queue,
    everything: _Waiting,
    mine: _Waiting,
    size: int,
    shared_buffer: int | None,
) -> bool:
    limits = [
        (mine.num_bytes + size, queue.limit_bytes),
        (mine.packets + 1, queue.limit_packets),
        (everything.num_bytes + size, port.limit_bytes),
        (everything.packets + 1, port.limit_packets),
    ]
    if shared_buffer is not None:
        free = shared_buffer - everything.num_bytes
        limits.append((size, free))
        limits.append((mine.num_bytes + size, int(free * Fraction(queue.share))))
    return all(limit is None or wanted <= limit for wanted, limit in limits)


def _marked(profile: Profile | None, seen: int) -> Fate:
    """Return whether a packet that finds `seen` bytes is marked, or may be."""
    if profile is None or seen < profile.least_bytes:
        return Fate.KEPT
    if seen >= profile.most_bytes:
        return Fate.MARKED
    return Fate.MAY_BE_MARKED if profile.probability > 0 else Fate.KEPT


def kept_range(
    port: Port, arrivals: Sequence[BurstArrival], shared_buffer: int | None
) -> tuple[int, int]:
    """Return how many of a burst are kept, at least and at most as far as chance decides."""
    kept = [
        sum(fate is not Fate.DROPPED for fate in fates(port, arrivals, shared_buffer, unlucky=bad))
        for bad in (True, False)
    ]
    return min(kept), max(kept)


def first_marked_range(
    port: Port, arrivals: Sequence[BurstArrival], shared_buffer: int | None
) -> tuple[int, int] | None:
    """Return at which places of a burst the first mark can be; None if nothing needs be marked."""
    found = fates(port, arrivals, shared_buffer, unlucky=False)
    if Fate.MARKED not in found:
        return None
    certain = found.index(Fate.MARKED)
    possible = found.index(Fate.MAY_BE_MARKED) if Fate.MAY_BE_MARKED in found else certain
    return min(possible, certain), certain


def order_of_service(
    port: Port, arrivals: Sequence[BurstArrival], shared_buffer: int | None
) -> list[int]:
    """Return the places of a burst's kept packets, in the order in which the link takes them."""
    found = fates(port, arrivals, shared_buffer, unlucky=False)
    kept = [place for place, fate in enumerate(found) if fate is not Fate.DROPPED]
    return kept[:1] + sorted(kept[1:], key=lambda place: arrivals[place].queue)
