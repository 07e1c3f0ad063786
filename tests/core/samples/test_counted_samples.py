"""Samples over random histories of deaths, joins and leaves: each counts once in every epoch.

The job here is a list of workers that do what real ones do, in any order: sums that some have and
others do not when the view changes, batches fetched ahead, counts that others have not heard of.
What counts is written down beside, by whoever makes a sum or trains on alone.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.samples import Batch, Ledger, OwnBatches, Progress, Rule
from thoroughness import examples

EPOCHS = 3


def places(batch: Batch) -> list[tuple[int, int]]:
    """Return the samples of a batch that count, with their epoch."""
    spans = batch.spans if batch.counts else ()
    return [(batch.epoch, each) for start, stop in spans for each in range(start, stop)]


class Worker:
    """One worker with its batches; None until a newcomer has got what it lacks."""

    def __init__(self, rank: int, batches: OwnBatches | None) -> None:
        self.rank, self.batches = rank, batches
        self.num_fetched = 0
        self.using: Batch | None = None
        """The batch of the step under way."""
        self.used: list[Batch] = []
        self.is_ending = False
        self.num_whole = 0

    @property
    def own(self) -> OwnBatches:
        assert self.batches is not None
        return self.batches

    def fetch(self, ahead: int) -> bool:
        """Fetch up to `ahead` batches more than are used; return whether there is one to use."""
        last = EPOCHS - 1
        while self.num_fetched - self.own.num_taken <= ahead:
            self.num_fetched = max(self.num_fetched, self.own.num_taken)
            if self.own.get(self.num_fetched, last) is None:
                break
            self.num_fetched += 1
        return self.num_fetched > self.own.num_taken


class Job:
    """Some workers, their view, and what has counted."""

    def __init__(self, seed: int, *, is_even: bool) -> None:
        self.random = Random(seed)
        size = self.random.randint(1, 5)
        num_samples = self.random.choice((1, 7, 23, 60))
        self.rule = Rule(
            num_samples,
            self.random.choice((1, 4, 9, 70)),
            is_global=self.random.random() < 0.7,
            shares=self.random.choice(({}, {0: 3, 2: 2})),
            is_even=is_even,
        )
        self.members = {rank: Worker(rank, None) for rank in range(size)}
        for worker in self.members.values():
            worker.batches = OwnBatches(worker.rank, self.rule, Ledger.first(0, tuple(range(size))))
        self.ahead = self.random.choice((0, 0, 1, 3))
        self.view, self.next_rank = 0, size
        self.counted: list[Batch] = []
        self.is_loose = False
        """Whether somebody was lost when others had ended: what it had may be nobody's."""

    def change(self) -> None:
        """Lose some workers, take some in, and agree on the next view."""
        random = self.random
        lost = [rank for rank in self.members if random.random() < 0.3]
        if len(lost) == len(self.members):
            lost.pop()
        there = [w for r, w in self.members.items() if r not in lost and w.batches is not None]
        if not there:
            return
        said = {
            worker.rank: Progress(
                worker.own.progress().passed, worker.own.counted, worker.is_ending
            )
            for worker in there
        }
        for rank in lost:
            self.lose(self.members.pop(rank), said)
        if any(worker.is_ending or worker.own.epoch >= EPOCHS for worker in there):
            self.is_loose = True
        elif random.random() < 0.5:
            for rank in self.new_ranks(lost):
                self.members[rank] = Worker(rank, None)
        self.view += 1
        for worker in there:
            worker.own.go_on(self.view, sorted(self.members), said)
        ledgers = {repr(worker.own.deal.ledger) for worker in there}
        assert len(ledgers) == 1, "all of them agree"

    def new_ranks(self, lost: list[int]) -> list[int]:
        if lost and self.random.random() < 0.5:
            return lost[:1]
        self.next_rank += 1
        return [self.next_rank - 1]

    def lose(self, worker: Worker, said: dict[int, Progress]) -> None:
        raise NotImplementedError

    def come_in(self, worker: Worker) -> None:
        """Give a newcomer what it lacks."""
        donor = next(each for each in self.members.values() if each.batches is not None)
        worker.batches = OwnBatches(worker.rank, self.rule, donor.own.deal.ledger)
        worker.num_whole = donor.num_whole

    def run(self) -> None:
        steps = 0
        while any(not worker.is_ending for worker in self.members.values()):
            steps += 1
            assert steps < 20_000, "somebody goes on for ever"
            if steps < 2_000 and self.random.random() < 0.01:
                self.change()
            else:
                self.act(self.random.choice(list(self.members.values())))
        self.end()

    def act(self, worker: Worker) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Check what has counted."""
        found = Counter(place for batch in self.counted for place in places(batch))
        assert not [place for place, times in found.items() if times > 1]
        if not self.is_loose:
            assert len(found) == EPOCHS * self.rule.num_samples


class Sums(Job):
    """Workers that sum gradients: a step counts for all of them or for none."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, is_even=True)
        self.sums: dict[int, dict[int, Batch]] = {}
        self.in_view: dict[int, set[int]] = {}
        """The workers that have begun each sum in the present view."""

    def act(self, worker: Worker) -> None:
        if worker.batches is None:
            self.come_in(worker)
        elif worker.num_whole in self.in_view and worker.rank in self.in_view[worker.num_whole]:
            self.end_sum(worker)
        else:
            self.begin_sum(worker)

    def begin_sum(self, worker: Worker) -> None:
        if worker.using is None and not worker.is_ending:
            if worker.fetch(self.random.randint(0, self.ahead)):
                worker.using = worker.own.take()
            else:
                worker.is_ending = True
        self.in_view.setdefault(worker.num_whole, set()).add(worker.rank)

    def end_sum(self, worker: Worker) -> None:
        """Let a worker have a sum, if all have begun it."""
        number = worker.num_whole
        if self.in_view[number] < self.members.keys():
            return
        if number not in self.sums:
            parts = {r: w.using for r, w in self.members.items() if w.using is not None}
            self.sums[number] = parts
        for rank in self.sums[number]:
            if rank == worker.rank:
                worker.own.count(worker.own.num_taken)
            else:
                worker.own.note(rank, worker.own.counted.get(rank, 0) + 1)
        worker.using = None
        worker.num_whole += 1

    def lose(self, worker: Worker, said: dict[int, Progress]) -> None:
        pass

    def change(self) -> None:
        super().change()
        furthest = max(w.num_whole for w in self.members.values() if w.batches is not None)
        for worker in self.members.values():
            if worker.batches is not None and worker.num_whole < furthest:
                assert worker.num_whole == furthest - 1
                worker.num_whole, worker.using = furthest, None
        self.sums.pop(furthest, None)  # only the dead had it
        self.in_view.clear()

    def end(self) -> None:
        self.counted = [batch for parts in self.sums.values() for batch in parts.values()]
        super().end()


class Means(Job):
    """Workers that average parameters: a step counts when others know of a mean after it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, is_even=False)

    def act(self, worker: Worker) -> None:
        if worker.batches is None:
            self.come_in(worker)
        elif self.random.random() < 0.3:
            worker.own.count(worker.own.num_taken)
        elif self.random.random() < 0.3:
            self.hear(worker)
        elif worker.is_ending:
            pass
        elif worker.fetch(self.random.randint(0, self.ahead)):
            batch = worker.own.take()
            assert batch is not None
            worker.used.append(batch)
        else:
            worker.own.count(worker.own.num_taken)
            worker.is_ending = True

    def hear(self, worker: Worker) -> None:
        for other in self.members.values():
            if other is worker or other.batches is None or other.own.view != worker.own.view:
                continue
            worker.own.note(other.rank, other.own.counted[other.rank])

    def lose(self, worker: Worker, said: dict[int, Progress]) -> None:
        if worker.batches is None:
            return
        known = max(each.counted.get(worker.rank, 0) for each in said.values())
        surely = len(worker.used) - (worker.own.num_taken - worker.own.num_counted)
        surely -= worker.own.counted[worker.rank] - known
        self.counted += worker.used[:surely]

    def end(self) -> None:
        for worker in self.members.values():
            self.counted += worker.used
        super().end()


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(2_000))
def test_sums_count_every_sample_once(seed: int) -> None:
    job = Sums(seed)
    job.run()


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(2_000))
def test_means_count_every_sample_once(seed: int) -> None:
    Means(seed).run()
