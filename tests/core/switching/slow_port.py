"""A port by its description, slow and plain: lists, and one packet after the other.

The oracle for `shoal.switching.port`. Profiles are steps here, so nothing depends on dice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from shoal.switching.tables import PICOSECONDS, QUEUES

if TYPE_CHECKING:
    from shoal.switching.settings import Port


@dataclass
class SlowPort:
    """`shared` is the size of a buffer that only this port uses; 0: none."""

    port: Port
    shared: int = 0
    free_at: int = 0
    queues: list[deque[list[int]]] = field(default_factory=lambda: [deque() for _ in range(QUEUES)])
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    """Number, when its last bit left, ECN bits."""
    dropped: dict[int, str] = field(default_factory=dict)

    def arrive(self, number: int, at: int, size: int, queue: int, ecn: int) -> None:
        """Let the link take what it takes up to now, then judge the newcomer."""
        self.serve_until(at)
        settings = self.port.queues[queue]
        own = sum(packet[1] for packet in self.queues[queue])
        everything = sum(packet[1] for each in self.queues for packet in each)
        number_waiting = sum(map(len, self.queues))
        free = self.shared - everything
        too_much = (
            own + size > (settings.limit_bytes or 10**18)
            or len(self.queues[queue]) >= (settings.limit_packets or 10**18)
            or everything + size > (self.port.limit_bytes or 10**18)
            or number_waiting >= (self.port.limit_packets or 10**18)
        )
        if too_much:
            self.dropped[number] = "full"
        elif self.shared and (size > free or own + size > Fraction(settings.share) * free):
            self.dropped[number] = "shared"
        else:
            profile = settings.plain if ecn == 0 else settings.capable
            if profile is not None and own >= profile.most_bytes:
                if ecn == 0:
                    self.dropped[number] = "early"
                    return
                ecn = 3
            self.queues[queue].append([number, size, ecn, at])

    def serve_until(self, until: int) -> None:
        """Let the link take every packet whose turn comes at `until` at the latest."""
        while waiting := [each for each in self.queues if each]:
            first = min(each[0][3] for each in waiting)
            start = max(self.free_at, first)
            if start > until:
                return
            here = [each for each in self.queues if each and each[0][3] <= start]
            number, size, ecn, _ = here[0].popleft()
            self.free_at = start - (-size * 8 * PICOSECONDS // self.port.rate)
            self.sent.append((number, self.free_at, ecn))
