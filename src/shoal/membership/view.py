"""A view: the members of a job, since when, and on which hosts.

Everything that depends on the number of workers is a function of a view. A view does not know how
workers hear of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

import msgspec

from shoal.errors import UsageError


class View(msgspec.Struct, frozen=True):
    """The members of a job between two changes."""

    epoch: int
    """The number of changes before it. Messages of an earlier epoch do not count in it."""

    members: tuple[int, ...]
    """Ranks, ascending."""

    hosts: tuple[int, ...]
    """The index of each member's host, in the order of `members`."""

    from_step: int = 0
    """The first round of a schedule that its members make together."""

    why: str = ""
    """Why it came about, in sentences; empty for the first view."""

    def __post_init__(self) -> None:
        if not self.members or len(self.members) != len(self.hosts):
            message = f"A view needs members, each with a host, not {self.members}, {self.hosts}."
            raise UsageError(message)

    @classmethod
    def first(cls, size: int, workers_per_host: int = 0) -> Self:
        """Return the view that a job of `size` workers begins with, filled host by host.

        `workers_per_host` 0 puts all of them on one host.
        """
        per_host = workers_per_host or max(1, size)
        return cls(0, tuple(range(size)), tuple(rank // per_host for rank in range(size)))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def workers_per_host(self) -> int:
        """The most members that share a host."""
        return max(Counter(self.hosts).values())

    @property
    def num_hosts(self) -> int:
        """The number of hosts that members are on."""
        return len(set(self.hosts))

    @property
    def sentence(self) -> str:
        """The description that users read."""
        ranks = ", ".join(map(str, self.members))
        return f"View {self.epoch}: {len(self)} members, ranks {ranks}. {self.why}".strip()

    def place_of(self, rank: int) -> int:
        """Return the place of `rank` among the members. Raises `ValueError` if it is no member."""
        return self.members.index(rank)
