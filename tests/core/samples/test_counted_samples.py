"""Samples over random histories of deaths, joins and leaves: each counts once in every epoch.

The job here is a list of workers that do what real ones do, in any order: sums that some have and
others do not when the view changes, batches fetched ahead, counts that others have not heard of.
What counts is written down beside, by whoever makes a sum or trains on alone.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.samples import Batch, Change, Deal, Ledger, OwnBatches, Progress, Rule
from thoroughness import examples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.samples import Spans

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
        self.is_ending = self.is_fenced = False
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

    def __init__(self, seed: int, *, is_even: bool, changes: bool = True) -> None:
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
        if self.rule.is_global and self.random.random() < 0.3:
            self.rule = replace(self.rule, shares={}, is_measured=True)
        self.changes = changes
        self.members = {rank: Worker(rank, None) for rank in range(size)}
        for worker in self.members.values():
            worker.batches = OwnBatches(worker.rank, self.rule, Ledger.first(0, tuple(range(size))))
        self.ahead = self.random.choice((0, 0, 1, 3))
        self.view, self.next_rank = 0, size
        self.saved: list[Batch] = []
        """What had counted before this job began."""
        self.counted: list[Batch] = []
        self.is_loose = False
        """Whether somebody was lost when others had ended: what it had may be nobody's."""

    def deal_by(self, rule: Rule, pools: Mapping[int, Spans] = {}, fresh: int = 0) -> None:
        """Let all begin anew, by a rule, with what is still to come."""
        self.rule = rule
        for rank, worker in self.members.items():
            worker.batches = OwnBatches(rank, rule, Ledger(0, tuple(self.members), pools, fresh))

    def change(self) -> None:
        """Lose some workers, take some in, and agree on the next view."""
        is_cut_short = self.random.random() < 0.3
        self.begin_view(is_cut_short=is_cut_short)
        if is_cut_short:
            for _ in range(self.random.randrange(10)):
                self.act_somewhere()
            self.begin_view(is_cut_short=False)

    def act_somewhere(self) -> None:
        able = [worker for worker in self.members.values() if not worker.is_fenced]
        if able:
            self.act(self.random.choice(able))

    def begin_view(self, *, is_cut_short: bool) -> None:
        random = self.random
        spared = random.choice([r for r, w in self.members.items() if w.batches is not None])
        lost = [rank for rank in self.members if random.random() < 0.3 and rank != spared]
        there = [w for r, w in self.members.items() if r not in lost and w.batches is not None]
        said = {
            w.rank: w.own.progress(
                is_ending=w.is_ending, speed=random.choice((0.0, 1.0, 1.05, 3.0, 40.0))
            )
            for w in there
        }
        for rank in lost:
            self.lose(self.members.pop(rank), said)
        if any(worker.is_ending or worker.own.epoch >= EPOCHS for worker in there):
            self.is_loose |= bool(lost)
        elif random.random() < 0.5:
            for rank in self.new_ranks(lost):
                self.members[rank] = Worker(rank, None)
        self.view += 1
        # If the control plane is lost, some hear of a view and others do not, and the next follows.
        heard = [w for w in there if not is_cut_short or random.random() < 0.5]
        for worker in there:
            worker.is_fenced = worker not in heard
        for worker in heard:
            worker.own.go_on(self.view, sorted(self.members), said)
        ledgers = {repr(worker.own.deal.ledger) for worker in heard}
        assert len(ledgers) <= 1, "all of them agree"

    def new_ranks(self, lost: list[int]) -> list[int]:
        if lost and self.random.random() < 0.5:
            return lost[:1]
        self.next_rank += 1
        return [self.next_rank - 1]

    def lose(self, worker: Worker, said: dict[int, Progress]) -> None:
        raise NotImplementedError

    def come_in(self, worker: Worker) -> None:
        """Give a newcomer what it lacks."""
        there = [each for each in self.members.values() if each.batches is not None]
        furthest = max(each.num_whole for each in there)
        donors = [w for w in there if w.own.view == self.view and w.num_whole == furthest]
        if not donors:
            return
        own = (donor := donors[0]).own
        known = own.heard_by_newcomer()
        worker.batches = OwnBatches(worker.rank, self.rule, own.deal.ledger, own.last, known)
        worker.num_whole = donor.num_whole

    def run(self) -> None:
        steps = 0
        while any(not worker.is_ending for worker in self.members.values()):
            steps += 1
            assert steps < 20_000, "somebody goes on for ever"
            if self.changes and steps < 2_000 and self.random.random() < 0.01:
                self.change()
            else:
                self.act_somewhere()
        self.end()

    def act(self, worker: Worker) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Check what has counted."""
        counted = [*self.saved, *self.counted]
        found = Counter(place for batch in counted for place in places(batch))
        assert not [place for place, times in found.items() if times > 1]
        if not self.is_loose:
            assert len(found) == EPOCHS * self.rule.num_samples


class Sums(Job):
    """Workers that sum gradients: a step counts for all of them or for none."""

    def __init__(self, seed: int, *, changes: bool = True) -> None:
        super().__init__(seed, is_even=True, changes=changes)
        self.sums: dict[int, dict[int, Batch]] = {}
        self.views: dict[int, int] = {}
        """The view of each sum."""
        self.wanted = 0
        """How many sums some member of the view has had before it."""
        self.in_view: dict[int, set[int]] = {}
        """The workers that have begun each sum in the present view."""

    def act(self, worker: Worker) -> None:
        if worker.batches is None:
            self.come_in(worker)
        elif worker.num_whole < self.wanted:
            self.take_over_a_sum(worker)
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
            self.sums[number], self.views[number] = parts, worker.own.view
        worker.own.note_all(list(self.sums[number]))
        worker.using = None
        worker.num_whole += 1

    def take_over_a_sum(self, worker: Worker) -> None:
        """Let a worker have the last sum of the view before from a member that has it."""
        if any(other.num_whole > worker.num_whole for other in self.members.values()):
            since = self.views[worker.num_whole]
            worker.own.note_all(list(self.sums[worker.num_whole]), since=since)
            worker.using = None
            worker.num_whole += 1

    def lose(self, worker: Worker, said: dict[int, Progress]) -> None:
        pass

    def begin_view(self, *, is_cut_short: bool) -> None:
        super().begin_view(is_cut_short=is_cut_short)
        self.wanted = max(w.num_whole for w in self.members.values() if w.batches is not None)
        self.sums.pop(self.wanted, None)  # only the dead had it
        self.in_view.clear()

    def end(self) -> None:
        self.counted = self.counted_before(len(self.sums))
        super().end()
        if self.rule.is_global and not (self.rule.is_measured and self.ahead):
            assert max(self.sizes(), default=0) <= self.rule.batch_size

    def counted_before(self, number: int) -> list[Batch]:
        """Return the batches in all sums before one."""
        return [batch for each in range(number) for batch in self.sums[each].values()]

    def sizes(self) -> list[int]:
        """Return how many samples there are in each sum."""
        parts = [self.sums[number].values() for number in sorted(self.sums)]
        return [sum(len(places(batch)) for batch in each) for each in parts]


class Means(Job):
    """Workers that average parameters: a step counts when others know of a mean after it."""

    def __init__(self, seed: int, *, changes: bool = True) -> None:
        super().__init__(seed, is_even=False, changes=changes)
        self.lost: list[Worker] = []
        """The lost of which the living have not agreed yet what counts."""
        self.followed: dict[int, Change] = {}
        """How each view has given way to another, by the epoch of the one before."""

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
        if worker.batches is not None:
            self.lost.append(worker)

    def begin_view(self, *, is_cut_short: bool) -> None:
        super().begin_view(is_cut_short=is_cut_short)
        for worker in self.members.values():
            if worker.batches is not None and (last := worker.own.last) is not None:
                self.followed[last.since] = last
        if not is_cut_short:  # else who has heard may be lost, too
            self.settle()

    def settle(self) -> None:
        """Take note of what counts of the lost."""
        self.counted += [batch for worker in self.lost for batch in self.agreed(worker)]
        self.lost.clear()

    def agreed(self, worker: Worker) -> list[Batch]:
        """Return what counts of a lost worker, by the changes that the living have followed."""
        own = worker.own
        view, rank = own.view, worker.rank
        number = own.num_counted - own.counted[rank]
        if own.last is not None and self.followed[own.last.since] != own.last:
            view, number = own.last.since, number - own.last.counted.get(rank, 0)
        while True:
            change = self.followed[view]
            number += change.counted.get(rank, 0)
            if rank not in change.passed:
                return worker.used[:number]
            view = change.view

    def known_to(self, worker: Worker) -> list[Batch]:
        """Return what members have used, as one of them knows, which has used all its own."""
        found = []
        for other in self.members.values():
            if other.batches is None:
                continue
            # what counted in views before is known to all
            known = worker.own.counted.get(other.rank, 0) - other.own.counted[other.rank]
            surely = other.own.num_counted + known if other is not worker else len(other.used)
            found += other.used[: len(other.used) - other.own.num_taken + surely]
        return found

    def end(self) -> None:
        self.settle()
        for worker in self.members.values():
            self.counted += worker.used
        super().end()


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(1_000))
def test_sums_count_every_sample_once(seed: int) -> None:
    Sums(seed).run()


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(1_000))
def test_means_count_every_sample_once(seed: int) -> None:
    Means(seed).run()


@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=examples(500))
def test_undisturbed_steps_have_all_samples_that_they_can(seed: int, drop_last: bool) -> None:
    job = Sums(seed, changes=False)
    samples = job.rule.num_samples
    size = Deal(job.rule, Ledger.first(0, tuple(job.members))).slice_size
    rest = samples % size
    if drop_last and samples >= size:
        job.deal_by(replace(job.rule, drop_last=True))
        rest = 0
        job.is_loose = True
    job.run()
    whole = [size] * (samples // size)
    assert job.sizes() == EPOCHS * [*whole, *([rest] if rest else [])]


@given(st.integers(0, 1 << 32), st.sampled_from([Sums, Means]))
@settings(max_examples=examples(1_000))
def test_other_workers_go_on_where_one_has_saved(seed: int, kind: type[Sums | Means]) -> None:
    first = kind(seed)
    for _ in range(first.random.randrange(300)):
        if first.random.random() < 0.02:
            first.change()
        first.act(first.random.choice(list(first.members.values())))
    there = [w for w in first.members.values() if w.batches is not None and w.using is None]
    if not there or first.is_loose or len({w.own.view for w in there}) > 1:
        return
    if isinstance(first, Means):
        first.settle()
    saving = there[0]
    remaining = saving.own.remaining()
    if isinstance(first, Sums):
        before = first.counted_before(saving.num_whole)
    else:
        before = [*first.counted, *first.known_to(saving)]
    second = kind(seed + 1)
    rule = replace(second.rule, num_samples=first.rule.num_samples)
    second.deal_by(rule, remaining.pools, remaining.fresh)
    second.saved = before
    second.run()


def test_a_batch_that_nobody_has_asked_for_is_no_ones() -> None:
    own = OwnBatches(0, Rule(10, 4), Ledger.first(0, (0, 1)))
    assert own.take() is None
    first = own.get(0, 0)
    assert first == Batch(0, ((0, 2),))
    assert own.get(0, 0) == first, "the same again, until a step takes it"
    assert own.take() == first
    assert own.num_left(0) == 2
    assert own.epoch == 0


def test_shares_divide_a_step() -> None:
    deal = Deal(Rule(100, 12, shares={1: 3}), Ledger.first(0, (0, 1, 4)))
    parts = [deal.part(rank, 0, 1) for rank in (0, 1, 4)]
    assert [part and part.spans for part in parts] == [((12, 14),), ((14, 21),), ((21, 24),)]
