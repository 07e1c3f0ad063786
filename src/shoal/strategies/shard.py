"""One shard of a parameter server: its deeds for each request, as a pure state machine.

Source: docs/papers.md, 4.2. `groups.server_clock` decides whose push counts and whose read waits.
Owns the order in which pushes are added, the divisor of an update, when there is a new version,
which workers are answered when, and the state from which a shard goes on in a new view. Memory,
messages and time are the executor's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, final

import msgspec

from shoal.groups import ClockAdvance, ServerClock, UpdateRule
from shoal.groups import Update as Push

if TYPE_CHECKING:
    from shoal.membership import Decision


class Add(msgspec.Struct, frozen=True):
    """Add the push of this worker to the next update."""

    rank: int


class Apply(msgspec.Struct, frozen=True):
    """Update the weights with the pushes that have been added."""

    divisor: float
    """The divisor of the sum."""

    share: float
    """The weight, up to 1, with which the mean of the pushed buffers replaces averaged buffers."""


class Answer(msgspec.Struct, frozen=True):
    """Let this worker go on, with the weights as they are now."""

    rank: int
    staleness: int
    """The steps by which the slowest worker is behind this one."""

    is_last: bool
    """Whether all workers have left: these are the final weights."""

    was_held: bool
    """Whether this worker had to wait for others."""


Deed: TypeAlias = Add | Apply | Answer


class Holding(msgspec.Struct, frozen=True):
    """The pushes that a shard's weights hold. Sent with them, in every answer and every copy."""

    version: int = 0
    """The number of updates made."""

    pushes: Mapping[int, int] = {}
    """The number of pushes by rank: of its exchanges from 0 up to that number. Skips count."""

    @property
    def age(self) -> tuple[int, int]:
        """A key that is larger for the newer one of two states of a shard."""
        return self.version, sum(self.pushes.values())


def next_exchanges(decision: Decision, training: str) -> dict[int, int]:
    """Return the number of each member's next exchange in the new view; ended ones have none.

    A newcomer begins level with the furthest member that trains: all iterations that it has no part
    in are as complete there as the staleness bound requires.
    """
    stages, rounds = decision.stages_of(training), decision.rounds_of(training)
    going_on = [rank for rank, each in stages.items() if not each.has_ended]
    training_on = [rank for rank in going_on if not stages[rank].is_ending]
    furthest = max((rounds[rank] for rank in training_on or going_on), default=0)
    return {
        rank: rounds.get(rank, furthest)
        for rank in decision.view.members
        if rank in going_on or rank not in rounds
    }


@final
class Shard:
    """The requests of all workers of one shard, one after another. All have read version 0.

    `workers` are the members of the first view; in another it goes on after `on_view`.
    """

    def __init__(self, workers: Iterable[int], rule: UpdateRule) -> None:
        self.rule = rule
        first = dict.fromkeys(workers, 0)
        self.num_members = len(first)
        """The members of the view."""
        self.clock = ServerClock(first, rule.staleness)
        for rank in first:
            self.clock.pull(rank)
        self.version = 0
        """The number of updates made."""
        self.skipped = 0
        """Pushes without gradients."""
        self.delays = 0
        """The sum, over all pushes, of the updates between a worker's read and its push."""
        self.longest_delay = 0
        self._begin(first, Holding())

    def _begin(self, workers: Iterable[int], holding: Holding) -> None:
        """Begin to serve `workers`, from the weights of `holding`, with no pushes collected."""
        self._live = list(workers)
        self._holds = dict(holding.pushes)
        self._repeats: set[int] = set()
        """Ranks whose next push is in the weights already."""
        self._pushes: dict[int, bool] = {}
        """Whether the push holds gradients, by rank."""
        self._added: set[int] = set()
        self._num_added = 0
        self._read_version = dict.fromkeys(self._live, holding.version)
        self.version = holding.version

    @property
    def holding(self) -> Holding:
        """The pushes that the weights hold now."""
        return Holding(self.version, dict(self._holds))

    def on_view(self, decision: Decision, training: str, holding: Holding | None = None) -> None:
        """Go on in a new view with the weights of `holding`; None: with the present weights.

        Pushes added since the last update must be thrown away, as the pushes that are held here
        are: all workers whose exchange is under way make it again. A worker whose push the weights
        hold already is then only answered. A shard whose server is lost goes on elsewhere, from the
        newest of its copy and the members' pulls.
        """
        kept = self.holding if holding is None else holding
        numbers = next_exchanges(decision, training)
        self.num_members = len(decision.view)
        # under BSP an iteration that is complete takes no push of a newcomer either
        complete = max(kept.pushes.values(), default=0) if self.rule.staleness == 0 else 0
        pushes = {
            rank: kept.pushes.get(rank, complete) if rank in decision.reports else complete
            for rank in decision.view.members
        }
        self._begin(numbers, Holding(kept.version, pushes))
        self._repeats = {rank for rank, number in numbers.items() if pushes[rank] > number}
        if not numbers:
            return  # all workers have ended, and none asks any more
        reads = self.clock.staleness_counts
        self.clock = ServerClock(
            {rank: max(number, pushes[rank]) for rank, number in numbers.items()},
            self.rule.staleness,
            readers=numbers.keys() - self._repeats,
        )
        self.clock.staleness_counts.update(reads)

    def take(self, rank: int, kind: Literal["push", "skip", "leave"]) -> list[Deed]:
        """Return the deeds, in order, for a request of this kind from `rank`.

        Raises `ProtocolError` for a request that is not allowed now.
        """
        if kind == "leave":
            advance = self.clock.leave(rank)
            self._live.remove(rank)
        elif rank in self._repeats:
            self._repeats.remove(rank)
            advance = ClockAdvance()
        else:
            advance = self.clock.push(rank)
            self._pushes[rank] = kind == "push"
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
        """Add the pushes that may be added by now, and update if the clock says so."""
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
            divisor = 1.0  # the workers' options scale the update
        if pushes:
            if self._num_added:
                deeds.append(Apply(divisor, self.rule.buffer_share(self.num_members)))
                self.version += 1
            self._holds.update({push.rank: push.iteration + 1 for push in pushes})
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
