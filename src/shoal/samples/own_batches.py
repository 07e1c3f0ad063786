"""The batches of one worker: which it has got, which a step has taken, and which count.

It hears of the views that are decided, in order, and knows of others what they have told. When the
control plane is lost, a view may have been told to some members and not to others. So each says
with its report how it has come to its view, and whoever has missed that one catches up first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import msgspec

from shoal.errors import ProtocolError
from shoal.samples.deal import Deal, heir_of
from shoal.samples.shares import measured_shares

if TYPE_CHECKING:
    from shoal.samples.ledger import Batch, Ledger, Rule


class Change(msgspec.Struct, frozen=True):
    """How one view has given way to another: what `Deal.next` takes."""

    since: int
    """The epoch of the view before."""

    view: int
    takers: tuple[int, ...]
    passed: Mapping[int, int]
    counted: Mapping[int, int]
    pending: Mapping[int, int] = {}
    shares: Mapping[int, int] = {}

    def key(self, rank: int) -> int:
        """Return the number under which is held what a rank has got before the change."""
        return rank if rank in self.passed else heir_of(rank)

    def rest(self, progress: Progress) -> dict[int, int]:
        """Return what counts by what a member said before the change, and does not by that."""
        more = {r: number - self.counted.get(r, 0) for r, number in progress.counted.items()}
        return {self.key(rank): number for rank, number in more.items() if number > 0}


class Progress(msgspec.Struct, frozen=True):
    """What one member says when a view ends."""

    view: int
    """The epoch of the last view that it has heard of."""

    passed: int = 0
    """The slices that it has passed in that view."""

    counted: Mapping[int, int] = {}
    """The batches of each rank that it knows to count, since that view began."""

    is_ending: bool = False
    """Whether it takes no more batches."""

    last: Change | None = None
    """How that view has begun."""

    speed: float = 0.0
    """Samples that it trains on in a second of its own time, where shares are measured."""


@final
class OwnBatches:
    """The batches of `rank`. They are numbered from 0, whatever the view."""

    def __init__(
        self,
        rank: int,
        rule: Rule,
        ledger: Ledger,
        last: Change | None = None,
        known: Mapping[int, int] = {},
    ) -> None:
        self.rank = rank
        self.last = last
        """How the present view has begun, if it is not the first."""
        self._begin(Deal(rule, ledger))
        self._others.update(known)
        self.num_taken = 0
        """The number of batches that steps have taken."""
        self.num_counted = 0
        """The number of batches that count."""
        self._gone: dict[int, int] = {}
        """The last view from which on a rank was not what it had been before, by rank."""
        self._base = 0
        """The number of those that counted when the view began."""

    def _begin(self, deal: Deal) -> None:
        self.deal = deal
        self._batches = list(deal.ledger.held.get(self.rank, ()))
        self._passed = 0
        self._others: dict[int, int] = {}

    @property
    def view(self) -> int:
        """The epoch of the view that the deal is of."""
        return self.deal.ledger.view

    @property
    def _is_taker(self) -> bool:
        return self.rank in self.deal.ledger.takers

    @property
    def epoch(self) -> int:
        """The epoch of the next batch that a step takes."""
        untaken = self._batches[self.num_taken - self._base :]
        if untaken:
            return untaken[0].epoch
        if not self._is_taker:
            return self.deal.ledger.fresh
        passed = self._passed
        while True:
            epoch, number = self.deal.find(passed)
            if self.deal.part(self.rank, epoch, number) is not None:
                return epoch
            passed += 1

    def num_left(self, last_epoch: int) -> int:
        """Return how many batches are left for steps up to the end of an epoch."""
        untaken = self._batches[self.num_taken - self._base :]
        left = sum(batch.epoch <= last_epoch for batch in untaken)
        if not self._is_taker:
            return left
        epoch, number = self.deal.find(self._passed)
        passed = self._passed - number
        left -= self.deal.num_before(self.rank, epoch, number)
        while epoch <= last_epoch:
            left += self.deal.num_batches(self.rank, epoch)
            passed += self.deal.num_slices(epoch)
            epoch, _ = self.deal.find(passed)
        return left

    def get(self, number: int, last_epoch: int) -> Batch | None:
        """Return a batch, the next one if need be; None if it is of a later epoch."""
        while number >= self._base + len(self._batches):
            if not self._is_taker:
                return None
            epoch, place = self.deal.find(self._passed)
            if epoch > last_epoch:
                return None
            self._passed += 1
            batch = self.deal.part(self.rank, epoch, place)
            if batch is not None:
                self._batches.append(batch)
        batch = self._batches[number - self._base]
        return batch if batch.epoch <= last_epoch else None

    def take(self) -> Batch | None:
        """Return the batch that a step uses now; None if it has got none that is not used."""
        place = self.num_taken - self._base
        if place >= len(self._batches):
            return None
        self.num_taken += 1
        return self._batches[place]

    def count(self, number: int) -> None:
        """Take note that the batches before `number` count."""
        self.num_counted = max(self.num_counted, number)

    def note(self, rank: int, counted: int) -> None:
        """Take note that so many batches of another rank count, since the view began."""
        self._others[rank] = max(self._others.get(rank, 0), counted)

    @property
    def counted(self) -> dict[int, int]:
        """The batches of each rank that are known to count, since the view began."""
        return {**self._others, self.rank: self.num_counted - self._base}

    def progress(self, *, is_ending: bool = False, speed: float = 0.0) -> Progress:
        """Return what this worker says when the view ends."""
        return Progress(self.view, self._passed, self.counted, is_ending, self.last, speed)

    def go_on(self, view: int, members: Sequence[int], said: Mapping[int, Progress]) -> None:
        """Go on in another view; `said` is what each of those said who were in one before.

        Raises `ProtocolError` for a worker that has missed more than one view.
        """
        furthest = max((each.view for each in said.values()), default=self.view)
        if self.view < furthest:
            self._catch_up(furthest, said)
        # Whoever has missed the last view has done nothing in it, and knows what it knew before.
        there = [
            each.counted if each.view == furthest or self.last is None else self.last.rest(each)
            for each in said.values()
        ]
        known = {
            rank: [each.get(rank, 0) for each in there]
            for rank in {rank for each in there for rank in each}
        }
        # A sum that only some have counts if one of them lives to hand it out. What somebody has
        # heard of a worker that averages parameters is so.
        agree = min if self.deal.rule.is_even else max
        counted = {rank: agree(numbers) for rank, numbers in known.items()}
        pending = {r: max(n) - counted[r] for r, n in known.items() if max(n) > counted[r]}
        if not self.deal.rule.is_even:
            pending = {}
        passed = {r: each.passed if each.view == furthest else 0 for r, each in said.items()}
        staying = tuple(r for r in members if r not in said or not said[r].is_ending)
        takers = staying or tuple(members)
        shares: Mapping[int, int] = {}
        if self.deal.rule.is_measured:
            speeds = {rank: each.speed for rank, each in said.items()}
            shares = measured_shares(takers, speeds, self.deal.ledger.shares)
        self._follow(Change(self.view, view, takers, passed, counted, pending, shares))

    def _catch_up(self, view: int, said: Mapping[int, Progress]) -> None:
        """Go on in a view that others have heard of, and this worker has not."""
        for each in said.values():
            if each.view == view and each.last is not None and each.last.since == self.view:
                self._follow(each.last)
                return
        message = (
            f"Rank {self.rank} has not heard of several changes of the members, and with them of"
            " who trains on which samples: start it again."
        )
        raise ProtocolError(message)

    def _follow(self, change: Change) -> None:
        ledger = self.deal.next(
            change.view,
            change.takers,
            change.passed,
            change.counted,
            change.pending,
            change.shares,
        )
        surplus = change.rest(self.progress())
        before = self.deal.ledger.takers
        self._gone |= {rank: change.view for rank in before if rank not in change.passed}
        self.last = change
        self._base += change.counted.get(self.rank, 0)
        self.num_counted = max(self.num_counted, self._base)
        self.num_taken = max(self.num_taken, self._base)
        self._begin(Deal(self.deal.rule, ledger))
        self._others = {r: number for r, number in surplus.items() if r != self.rank}

    def note_all(self, ranks: Sequence[int], *, since: int | None = None) -> None:
        """Take note that one more batch of each of `ranks` counts, as a sum says.

        A sum that has come from another member is of an earlier view, whose epoch is `since`.
        """
        before = self.counted
        for rank in ranks:
            if rank == self.rank:
                self.count(self.num_taken)
            else:
                is_gone = since is not None and self._gone.get(rank, -1) > since
                key = heir_of(rank) if is_gone else rank
                self.note(key, before.get(key, 0) + 1)

    def heard_by_newcomer(self) -> dict[int, int]:
        """Return what a newcomer in this view knows to count once it is as far as this worker."""
        return {rank: number for rank, number in self.counted.items() if number}

    def restart(self, ledger: Ledger) -> None:
        """Begin with what another member has handed on, or a file has kept."""
        self.num_taken = self.num_counted = self._base = 0
        self._begin(Deal(self.deal.rule, ledger))

    def remaining(self) -> Ledger:
        """Return what is to come for all who go on from what this worker has trained."""
        ledger = self.deal.ledger
        counted = {**self.counted, self.rank: self.num_taken - self._base}
        return self.deal.next(ledger.view, ledger.takers, {}, counted)
