"""How samples are dealt out in a view: a function of what all members know alike.

What nobody has of an epoch is cut into slices, one for each step, and every slice into parts, one
for each member. So a worker knows its batches without asking, whatever the others do meanwhile.
When the view ends, each of the living says how many slices it has passed, and how many of the
batches that it knows of count. That tells all of them what to begin the next view with: the living
keep what they have got, and what a lost worker had got goes back, unless it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import count
from typing import Final, final

from shoal.samples.ledger import Batch, Ledger, Rule
from shoal.samples.spans import Span, Spans, cut, length, merged, without


@final
class Deal:
    """The batches of every member in one view."""

    def __init__(self, rule: Rule, ledger: Ledger) -> None:
        self.rule: Final = rule
        self.ledger: Final = ledger
        shares = ledger.shares or rule.shares
        self._shares = [shares.get(rank, 1) for rank in ledger.takers]
        self._total = sum(self._shares)
        self.slice_size: Final = rule.batch_size * (1 if rule.is_global else self._total)
        """Samples of all members in a step, but for the last one of an epoch."""

    @cached_property
    def _whole(self) -> Spans:
        return ((0, self.rule.num_samples),)

    def _pool(self, epoch: int) -> Spans:
        if epoch >= self.ledger.fresh:
            return self._whole
        return self.ledger.pools.get(epoch, ())

    def _epochs(self) -> Iterator[int]:
        """Yield the epochs of which somebody may get something, without end."""
        yield from self.ledger.pools
        yield from count(self.ledger.fresh)

    def num_slices(self, epoch: int) -> int:
        """Return how many steps there are in an epoch."""
        left, size = length(self._pool(epoch)), self.slice_size
        # An epoch that is shorter than a batch would else have no steps at all.
        drops = self.rule.drop_last and self.rule.num_samples >= size
        return left // size if drops else -(-left // size)

    def usual_size(self, rank: int) -> float:
        """Return how many samples `rank` has in a step, on average."""
        takers = self.ledger.takers
        if rank not in takers:
            return self.slice_size / max(1, len(takers))
        return self.slice_size * self._shares[takers.index(rank)] / self._total

    def find(self, passed: int) -> tuple[int, int]:
        """Return the epoch and the number in it of the slice after `passed` others."""
        for epoch in self._epochs():
            slices = self.num_slices(epoch)
            if passed < slices:
                return epoch, passed
            passed -= slices
        raise AssertionError(passed)

    def part(self, rank: int, epoch: int, number: int) -> Batch | None:
        """Return the part of `rank`, a taker, in a slice; None if it has none."""
        start, stop = self._part_of(rank, epoch, number)
        if start < stop:
            return Batch(epoch, cut(self._pool(epoch), start, stop))
        return self.filler(rank, epoch) if self.rule.is_even else None

    def filler(self, rank: int, epoch: int) -> Batch:
        """Return a batch of the usual size that counts for nothing."""
        size = min(self.rule.num_samples, max(1, int(self.usual_size(rank))))
        return Batch(epoch, ((0, size),), counts=False)

    def _part_of(self, rank: int, epoch: int, number: int) -> Span:
        """Return where the part of `rank` lies in the pool of an epoch."""
        base = number * self.slice_size
        size = min(self.slice_size, length(self._pool(epoch)) - base)
        takers, place = self.ledger.takers, self.ledger.takers.index(rank)
        turn = epoch % len(takers)  # who is last in an uneven slice changes from epoch to epoch
        before = sum(self._shares[:place]) - sum(self._shares[:turn])
        if place < turn:
            before += self._total
        after = before + self._shares[place]
        return base + size * before // self._total, base + size * after // self._total

    def num_batches(self, rank: int, epoch: int) -> int:
        """Return how many batches `rank`, a taker, has in an epoch."""
        slices = self.num_slices(epoch)
        if not slices:
            return 0
        last = self.rule.is_even or self._has_part(rank, epoch, slices - 1)
        return self.num_before(rank, epoch, slices - 1) + last

    def num_before(self, rank: int, epoch: int, number: int) -> int:
        """Return how many batches `rank`, a taker, has before a slice of an epoch."""
        return number if self.rule.is_even or self._has_part(rank, epoch, 0) else 0

    def _has_part(self, rank: int, epoch: int, number: int) -> bool:
        start, stop = self._part_of(rank, epoch, number)
        return start < stop

    def passed_with(self, rank: int, batches: int) -> int:
        """Return how many slices `rank`, a taker, has passed once it has got so many batches."""
        passed = 0
        for epoch in self._epochs():
            there, slices = self.num_batches(rank, epoch), self.num_slices(epoch)
            if batches <= there:
                is_in_each = self.num_before(rank, epoch, slices) == slices
                return passed + (slices if batches and not is_in_each else batches)
            batches, passed = batches - there, passed + slices
        raise AssertionError(batches)

    def batches(self, rank: int, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of `rank` in slices `start` to `stop` - 1."""
        for passed in range(start, stop):
            batch = self.part(rank, *self.find(passed))
            if batch is not None:
                yield batch

    def next(
        self,
        view: int,
        takers: tuple[int, ...],
        passed: Mapping[int, int],
        counted: Mapping[int, int],
        pending: Mapping[int, int] = {},
        shares: Mapping[int, int] = {},
    ) -> Ledger:
        """Return what all know alike when another view begins, with other `takers`.

        `passed` is how many slices each of those has passed that have said so: whoever has not is
        lost, or has got nothing yet. `counted` is how many batches of each rank count. Of those
        after them `pending` count if nobody is lost who says so: what is lost with their worker is
        held under `heir_of` its rank until that is known. `shares` are those of the takers, if they
        are measured.
        """
        if self.rule.is_even and passed:  # all of them are to be as far
            passed = dict.fromkeys(passed, max(passed.values()))
        held: dict[int, tuple[Batch, ...]] = {}
        back: list[Batch] = []
        until: dict[int, int] = {}
        for rank in sorted({*self.ledger.takers, *self.ledger.held}):
            known = counted.get(rank, 0)
            least = known + pending.get(rank, 0)
            left, until[rank] = self._left(rank, known, least, passed.get(rank))
            if rank in passed and rank in takers:
                held[rank] = left
            else:
                kept = pending.get(rank, 0)
                if kept:
                    held[rank if rank in passed else heir_of(rank)] = left[:kept]
                back += left[kept:]
        pools, fresh = self._pools_after(until, back)
        if self.rule.drop_last:
            begun = min((self.find(each)[0] for each in until.values()), default=0)
            pools = {
                epoch: spans
                for epoch, spans in pools.items()
                if epoch >= begun or length(spans) >= self.slice_size
            }
        there = [held[rank][pending.get(rank, 0) :] for rank in takers if rank in held]
        if self.rule.is_even and there:
            longest = max(there, key=len)
            for rank in takers:
                if rank not in passed:
                    held[rank] = tuple(self.filler(rank, each.epoch) for each in longest)
        return Ledger(view, takers, pools, fresh, held, shares)

    def _left(
        self, rank: int, counted: int, least: int, passed: int | None
    ) -> tuple[tuple[Batch, ...], int]:
        """Return what `rank` has got that does not count, and the slices that it has passed.

        None stands for those up to the `least` batches that it must have got.
        """
        held = self.ledger.held.get(rank, ())
        if rank not in self.ledger.takers:
            return held[counted:], 0
        start = self.passed_with(rank, max(0, counted - len(held)))
        stop = self.passed_with(rank, max(0, least - len(held)))
        if passed is not None:
            stop = max(stop, passed)
        return (*held[counted:], *self.batches(rank, start, stop)), stop

    def _pools_after(
        self, until: Mapping[int, int], back: list[Batch]
    ) -> tuple[dict[int, Spans], int]:
        """Return what nobody has once each rank has passed slices, and some batches are back."""
        pools = {epoch: [*spans] for epoch, spans in self.ledger.pools.items()}
        ranks = self.ledger.takers
        offset, fresh = 0, self.ledger.fresh
        for epoch in self._epochs():
            slices = self.num_slices(epoch)
            done = {rank: min(slices, max(0, until[rank] - offset)) for rank in ranks}
            if not any(done.values()) and epoch >= fresh:
                break
            pools[epoch] = [*without(self._pool(epoch), self._parts_up_to(epoch, done))]
            offset, fresh = offset + slices, max(fresh, epoch + 1)
        for batch in back:
            if batch.counts:
                pools.setdefault(batch.epoch, []).extend(batch.spans)
        return {epoch: merged(pools[epoch]) for epoch in sorted(pools) if pools[epoch]}, fresh

    def _parts_up_to(self, epoch: int, done: Mapping[int, int]) -> Iterator[Span]:
        """Yield where the parts lie that each rank has passed in an epoch."""
        first = min(done.values())
        yield 0, min(first * self.slice_size, length(self._pool(epoch)))
        for rank, number in done.items():
            for each in range(first, number):
                yield self._part_of(rank, epoch, each)


def heir_of(rank: int) -> int:
    """Return the number under which is held what may count of a lost worker, `rank`.

    Another process may be that rank by then. What is held so stays under its number.
    """
    return rank if rank < 0 else -1 - rank
