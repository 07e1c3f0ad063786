"""One shard of a parameter server: what it does with each request, as a pure machine.

Source: docs/papers.md, 4.2. Whose push counts and whose read waits is decided by
`groups.server_clock`. Owns the order in which pushes are added, what an update divides by, when
there is a new version, and who is answered when. Memory, messages and time are the executor's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, final

import msgspec

from shoal.groups import ServerClock, UpdateRule
from shoal.groups import Update as Push


class Add(msgspec.Struct, frozen=True):
    """Add the push of this worker to the next update."""

    rank: int


class Apply(msgspec.Struct, frozen=True):
    """Update the weights with what has been added."""

    divisor: float
    """What the sum is divided by."""

    share: float
    """The weight, up to 1, with which averaged buffers are replaced by the mean of those pushed."""


class Answer(msgspec.Struct, frozen=True):
    """Let this worker go on, with the weights as they are now."""

    rank: int
    staleness: int
    """The steps by which the slowest worker is behind it."""

    is_last: bool
    """Whether all workers have left: these are the final weights."""

    was_held: bool
    """Whether it had to wait for others."""


Deed: TypeAlias = Add | Apply | Answer


@final
class Shard:
    """The requests of all workers of one shard, one after another. All have read version 0."""

    def __init__(self, workers: Iterable[int], rule: UpdateRule) -> None:
        self.rule = rule
        self._live = list(workers)
        self._num_workers = len(self._live)
        self.clock = ServerClock(self._live, rule.staleness)
        for rank in self._live:
            self.clock.pull(rank)
        self._pushes: dict[int, bool] = {}
        """Says of a rank whether its push holds gradients."""
        self._added: set[int] = set()
        self._num_added = 0
        self._read_version = dict.fromkeys(self._live, 0)
        self.version = 0
        """The number of updates made."""
        self.skipped = 0
        """Pushes without gradients."""
        self.delays = 0
        """The updates of others between reads and the pushes that followed them, all together."""
        self.longest_delay = 0

    def take(self, rank: int, kind: Literal["push", "skip", "leave"]) -> list[Deed]:
        """Return what to do now, in order, as `rank` has sent a request of this kind.

        Raises `ProtocolError` for a request that cannot come now.
        """
        if kind == "leave":
            advance = self.clock.leave(rank)
            self._live.remove(rank)
        else:
            self._pushes[rank] = kind == "push"
            advance = self.clock.push(rank)
        deeds = self._update(advance.apply)
        deeds += [self._answer(each, was_held=True) for each in advance.released]
        if kind != "leave":
            if self.clock.pull(rank):
                deeds.append(self._answer(rank, was_held=False))
        elif not self._live:
            deeds += [self._answer(each, was_held=True) for each in self._read_version]
        return deeds

    def restart_at(self, version: int) -> None:
        """Go on from `version`, which all workers have read."""
        self.version = version
        self._read_version = dict.fromkeys(self._read_version, version)

    def _update(self, pushes: Sequence[Push]) -> list[Deed]:
        """Add what may be added by now, and update if the clock says so."""
        deeds: list[Deed] = []
        if self.rule.staleness == 0:
            # in the order of ranks, so that sums have the same bits in every run
            for rank in self._live:
                if rank not in self._pushes:
                    break
                if rank not in self._added:
                    deeds += self._add(rank)
            divisor = float(self._num_added)
        else:
            for push in pushes:
                deeds += self._add(push.rank)
                delay = self.version - self._read_version[push.rank]
                self.delays += delay
                self.longest_delay = max(self.longest_delay, delay)
            divisor = 1.0  # the workers' options make the update as small as it has to be
        if pushes:
            if self._num_added:
                deeds.append(Apply(divisor, self.rule.buffer_share(self._num_workers)))
                self.version += 1
            self._num_added = 0
            self._pushes.clear()
            self._added.clear()
        return deeds

    def _add(self, rank: int) -> list[Deed]:
        self._added.add(rank)
        if not self._pushes[rank]:
            self.skipped += 1
            return []
        self._num_added += 1
        return [Add(rank)]

    def _answer(self, rank: int, *, was_held: bool) -> Answer:
        is_last = not self._live
        staleness = 0 if is_last else self.clock.clock_of(rank) - self.clock.minimum
        self._read_version[rank] = self.version
        return Answer(rank, staleness, is_last, was_held)
