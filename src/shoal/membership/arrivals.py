"""Newcomers on their way in: the engine of the members to come is opened before the view changes.

Opening connections to a newcomer takes a while, and fails where a firewall stands between. So the
members and the newcomers do that beside training, and a newcomer is proposed as a member only when
all are done: a newcomer that does not get so far has disturbed no member.

Knows no message, socket or clock: time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from shoal.errors import DeadlineExceeded
from shoal.membership.membership import Refusal


class Preparation(msgspec.Struct, frozen=True):
    """The members of a view to come, who prepare the engine that they would use together."""

    number: int
    """Counts preparations from 1; the engine of the first view is number 0."""

    ranks: tuple[int, ...]
    """The present members and the newcomers, ascending."""

    newcomers: tuple[int, ...]
    """The newcomers among them, who are not members yet, ascending."""


class Arrivals:
    """The newcomers of one job. `patience_ns` is how long a preparation may take, nanoseconds.

    Preparations up to number `after` have been made before.
    """

    def __init__(self, patience_ns: int, after: int = 0) -> None:
        self._patience_ns = patience_ns
        self._hosts: dict[int, int] = {}
        """The newcomers that wait, with the index of their hosts."""
        self._number = after
        self._since_ns = 0
        self._preparation: Preparation | None = None
        self._missing: set[int] = set()

    def come(self, rank: int, host: int) -> None:
        """Note that `rank` wants to become a member."""
        self._hosts[rank] = host

    def gone(self, rank: int) -> None:
        """Note that `rank`, a newcomer or a member, is gone: prepare without it."""
        self._hosts.pop(rank, None)
        if self._preparation is not None and rank in self._preparation.ranks:
            self._preparation = None

    def begin(self, members: Collection[int], now_ns: int) -> Preparation | None:
        """Return a new preparation for the newcomers that wait, if none is under way."""
        if self._preparation is not None or not self._hosts:
            return None
        self._number += 1
        self._since_ns = now_ns
        ranks = tuple(sorted({*members, *self._hosts}))
        newcomers = tuple(sorted(self._hosts))
        self._preparation, self._missing = Preparation(self._number, ranks, newcomers), set(ranks)
        return self._preparation

    def prepared(self, rank: int, number: int) -> dict[int, int]:
        """Note that `rank` is ready; return the newcomers, with their hosts, if now all are."""
        preparation = self._preparation
        if preparation is None or number != preparation.number:
            return {}
        self._missing.discard(rank)
        if self._missing:
            return {}
        self._preparation = None
        return {each: self._hosts.pop(each) for each in preparation.ranks if each in self._hosts}

    def failed(self, number: int, reason: str, code: int) -> list[Refusal]:
        """Refuse the newcomers of a preparation that has failed, with the reason."""
        preparation = self._preparation
        if preparation is None or number != preparation.number:
            return []
        self._preparation = None
        refused = [rank for rank in preparation.ranks if self._hosts.pop(rank, None) is not None]
        return [Refusal(rank, f"Rank {rank} was not taken in: {reason}", code) for rank in refused]

    def poll(self, now_ns: int) -> list[Refusal]:
        """Refuse newcomers whose preparation takes too long."""
        if self._preparation is None or now_ns - self._since_ns < self._patience_ns:
            return []
        seconds = self._patience_ns / 1e9
        late = ", ".join(map(str, sorted(self._missing)))
        reason = f"the ways among all members were not open on rank {late} within {seconds:g} s."
        return self.failed(self._preparation.number, reason, DeadlineExceeded.exit_code)
