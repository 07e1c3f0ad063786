"""Sums of gradients, in buckets, beside the backward pass (BSP), in virtual time.

As `train.sums`: a bucket's sum begins when every worker has its gradients and the bucket before is
through; the next step begins when the last one is, or goes forward layer by layer as sums are known
(`train.layerwise_updates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from shoal.collectives import ALGORITHMS
from shoal.errors import UsageError
from shoal.sim.training.executor import AbstractExecutor
from shoal.sim.training.hierarchy import check_hosts
from shoal.sim.training.model import ELEMENT_BYTES, FORWARD
from shoal.sim.training.summing import Summand
from shoal.sim.virtual_time import Signal
from shoal.strategies import CHANGED, Act, Acts, Adopt, SumGradients, Summed, Update

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shoal.membership import Decision
    from shoal.sim.training.model import ModelBucket
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process
    from shoal.strategies import AllReduce


class _Iteration:
    """One step's buckets: how many workers have each, and whether its sum is known."""

    def __init__(self, buckets: int, members: Sequence[int]) -> None:
        self.members = members
        self.arrived = [0] * buckets
        self.complete = [Signal() for _ in range(buckets)]
        self.summed = [Signal() for _ in range(buckets)]
        self.gradients: list[NDArray[np.float32]] = []
        """The gradients of the ranks in their order, if they travel."""
        self.training: list[int] = []
        """The workers that make a step with it."""
        self.over = Signal()
        self.all_computed = 0
        """The time when the last worker had its last bucket."""
        self.under_way: list[Process] = []
        """What sums the buckets."""


@dataclass(slots=True)
class _Own:
    """What a worker has for a sum."""

    number: int
    trains: bool
    buckets: int = 0
    """The buckets whose gradients it has computed, or to which it has nothing to give."""
    is_over: bool = False
    num_training: int = 0
    """The workers that have made a step with the sum, once it is over."""


@final
class SumsExecutor(AbstractExecutor):
    """Sums every worker's gradients, every step.

    `algorithm` is "ring", "direct" or "hierarchical"; in the last, `per_host` workers that follow
    each other sum first (0: those of a host; it may as well be those of a rack). None is what the
    network's transport does unasked. With `overlap="next-forward"` the next forward pass reaches a
    bucket's layers when its sum is known.
    """

    def __init__(
        self, definition: AllReduce, *, algorithm: str | None = None, per_host: int = 0
    ) -> None:
        super().__init__(definition)
        if algorithm not in (None, *ALGORITHMS):
            message = f"An all-reduce is one of {', '.join(ALGORITHMS)}, not {algorithm!r}."
            raise UsageError(message)
        if per_host and algorithm != "hierarchical":
            raise UsageError('per_host is for algorithm = "hierarchical" alone: leave it out.')
        self._algorithm, self._per_host = algorithm, per_host
        self._bucket_bytes, self._low_rank = definition.bucket_bytes, definition.low_rank
        self._goes_forward = definition.overlap == "next-forward"

    own_acts = (*AbstractExecutor.own_acts, SumGradients, Adopt)

    def check_goes_on(self) -> None:
        """Raise `UsageError` for hosts that have to be filled by equally many workers."""
        super().check_goes_on()
        if self._algorithm == "hierarchical":
            raise UsageError(
                'algorithm = "hierarchical" is simulated where all workers stay to the end: leave'
                " it out, or the [[event]] tables that kill, freeze or join workers."
            )

    @property
    def contributes(self) -> bool:
        """Not if it is hierarchical: its stages are plain messages, which arrive whole.

        Of gradients of low rank it is not simulated what becomes of factors that get lost.
        """
        return self._algorithm != "hierarchical" and not self._low_rank

    @property
    def can_round(self) -> bool:
        """Gradients may be, where the transport sums them."""
        return self.contributes

    @property
    def copies(self) -> int:
        """One with `low_rank`: what a worker has not sent of its gradients yet."""
        return int(self._low_rank > 0)

    def check_holes(self, policy: int) -> None:
        """Allow all of them, if its sums are the transport's."""
        if not self.contributes:
            super().check_holes(policy)

    def prepare(self, world: World) -> None:
        """Lay out the buckets."""
        super().prepare(world)
        self._near = 1
        if self._algorithm == "hierarchical":
            self._near = self._per_host or world.workers_per_host
            check_hosts(world.size, self._near)
        self._buckets = world.model.buckets(
            self._bucket_bytes, world.view.num_hosts, self._low_rank
        )
        self._parts = _parts([int(each.bytes) // ELEMENT_BYTES for each in self._buckets])
        self._iterations: dict[int, _Iteration] = {}
        self._awaiting: dict[int, tuple[_Iteration, int]] = {}
        """Says which step's sums hold a rank, and since when."""
        self._owed: list[_Iteration | None] = [None] * world.size
        """The sums that each rank's next forward pass waits for."""
        self._own: dict[int, _Own] = {}
        """What each rank has for the sum that it has come to."""

    def worker(self, rank: int) -> Process:
        """Make the steps; what goes forward has made one once its last sum is known."""
        for step in range(self._world.times[rank].position, self.steps_of(rank)):
            yield from self.step(rank, step, self.courses[rank].step())
            if not self._goes_forward:
                self._world.stepped(rank)
        before = self._owed[rank]
        if before is not None:
            yield from self._end_step(rank, before)
        self.bid_farewell(rank)

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Carry out `acts`; the first of them, a sum, begins with computing."""
        yield from self.carry_out(rank, acts)

    def do(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out one act."""
        match act:
            case SumGradients(trains=True):
                return (yield from self._compute(rank, act.number))
            case SumGradients():
                return (yield from self._shadow(rank, act.number))
            case Update() | Adopt():
                pass  # the sum has updated all workers, and all have made as many steps
            case _:
                raise TypeError(act)
        return None

    def _compute(self, rank: int, number: int) -> Generator[int | Signal, Any, object]:
        """Forward, backward bucket by bucket, and wait for the sums, then or layer by layer.

        For a sum that is made again among others a worker has its gradients.
        """
        world, before = self._world, self._owed[rank]
        if self._has_begun(rank, number):
            return (yield from self._await_sum(rank, number))
        self._begin_sum(rank, number, trains=True)
        if before is not None:
            yield from self._forward(rank, number, before)
        world.learner.compute_gradient(rank)
        if before is None:
            yield world.computes(rank, number, FORWARD)
        for bucket, made in enumerate(self._buckets):
            yield world.computes(rank, number, made.share)
            self._bring(rank, bucket)
        if self._goes_forward:
            self._owed[rank] = self._iterations[number]
            return None
        return (yield from self._await_sum(rank, number))

    def _shadow(self, rank: int, number: int) -> Generator[int | Signal, Any, object]:
        """Bring nothing to a sum of those who train on; return how many they are."""
        if not self._has_begun(rank, number):
            self._begin_sum(rank, number, trains=False)
            for bucket in range(len(self._buckets)):
                self._bring(rank, bucket)
        answer = yield from self._await_sum(rank, number)
        return answer or Summed(self._own[rank].num_training)

    def _has_begun(self, rank: int, number: int) -> bool:
        return rank in self._own and self._own[rank].number == number

    def _begin_sum(self, rank: int, number: int, *, trains: bool) -> None:
        self._own[rank] = _Own(number, trains)
        attendance = self._world.attendance
        if attendance is None or not attendance.is_fenced:
            self._take_part(rank, self._iteration(number))

    def _bring(self, rank: int, bucket: int) -> None:
        """Note that a worker has a bucket's gradients, and let their sum begin if all have."""
        own = self._own[rank]
        own.buckets = bucket + 1
        if self._world.attendance is not None:
            self._world.attendance.at_border(rank)
        if own.number in self._iterations:  # else the view is about to change
            self._arrive(self._iterations[own.number], bucket)

    def _take_part(self, rank: int, iteration: _Iteration) -> None:
        """Bring to a sum what a worker has for it so far."""
        own = self._own[rank]
        if own.trains:
            iteration.training.append(rank)
        for bucket in range(own.buckets):
            self._arrive(iteration, bucket)

    def _arrive(self, iteration: _Iteration, bucket: int) -> None:
        iteration.arrived[bucket] += 1
        if iteration.arrived[bucket] == len(iteration.members):
            iteration.all_computed = self._world.time.now
            self._world.time.give(iteration.complete[bucket])

    def _await_sum(self, rank: int, number: int) -> Generator[int | Signal, Any, object]:
        """Wait for a sum; the answer is `CHANGED` if it has to be made among others."""
        attendance = self._world.attendance
        if attendance is not None:
            attendance.at_border(rank)
        iteration = self._iterations.get(number)
        if iteration is not None:  # else it is over, or the view is about to change
            if self._own[rank].trains:
                yield from self._await(rank, iteration, iteration.over)
            else:
                yield iteration.over
        if self._own[rank].is_over or attendance is None:
            return None
        yield from attendance.settled()
        return CHANGED

    def drop(self) -> None:
        """Let nothing come of the sums under way: they are made again from the same gradients."""
        iterations = list(self._iterations.values())
        self._iterations.clear()
        for iteration in iterations:
            if iteration.all_computed:
                self._world.count("repeated_sums")
            for process in iteration.under_way:
                self._world.time.end(process)
            self._world.time.give(iteration.over)

    def install(self, decision: Decision) -> None:
        """Let the sums be made among the members that were under way."""
        super().install(decision)
        newcomers, members = decision.newcomers, self._world.view.members
        for rank in [each for each in self._own if each in newcomers or each not in members]:
            del self._own[rank]
            self._awaiting.pop(rank, None)
        for rank in members:
            if rank in self._own and not self._own[rank].is_over:
                self._take_part(rank, self._iteration(self._own[rank].number))

    def _forward(self, rank: int, step: int, before: _Iteration) -> Process:
        """Go forward through each bucket's layers once the step before has updated them.

        Backward has made the front layers' bucket last. With the rear one that step is over, and
        the learner, which computes forward and backward at once, can begin.
        """
        for number in reversed(range(len(self._buckets))):
            if number:
                yield from self._await(rank, before, before.summed[number])
            else:
                yield from self._end_step(rank, before)
            share = self._buckets[number].share
            yield self._world.computes(rank, step, share * FORWARD / (1 - FORWARD))

    def _end_step(self, rank: int, iteration: _Iteration) -> Process:
        yield from self._await(rank, iteration, iteration.over)
        self._world.stepped(rank)

    def _await(self, rank: int, iteration: _Iteration, what: Signal) -> Process:
        """Wait for others that still compute, and for what is exchanged after that."""
        world = self._world
        self._awaiting[rank] = iteration, world.time.now
        yield what
        self._begin_exchange(rank)
        world.times[rank].end_exchange(world.time.now)

    def _begin_exchange(self, rank: int) -> None:
        """Account for what a worker has waited for others; an exchange holds it since."""
        iteration, begin = self._awaiting.pop(rank)
        until = iteration.all_computed or self._world.time.now
        since = max(begin, until)
        self._world.times[rank].wait += since - begin
        self._world.times[rank].begin_exchange(since)

    def finish(self, world: World) -> None:
        """Note whom sums hold that are not over."""
        for rank in list(self._awaiting):
            self._begin_exchange(rank)

    def _iteration(self, step: int) -> _Iteration:
        if step not in self._iterations:
            members = self._world.view.members
            made = self._iterations[step] = _Iteration(len(self._buckets), members)
            self._begin_beside(made, self._sum(step, made))
        return self._iterations[step]

    def _begin_beside(self, iteration: _Iteration, process: Process) -> None:
        iteration.under_way.append(process)
        self._world.time.begin(process)

    def _sum(self, step: int, iteration: _Iteration) -> Process:
        """Sum the buckets: one after another, or each when it is there if the network can."""
        world = self._world
        for number, bucket in enumerate(self._buckets):
            yield iteration.complete[number]
            if world.sums_overlap:
                self._begin_beside(iteration, self._sum_bucket(step, iteration, number, bucket))
            else:
                yield from self._sum_bucket(step, iteration, number, bucket)
        yield from iteration.summed
        if iteration.training:
            if self._low_rank:
                found = world.learner.low_rank_mean(iteration.members, self._low_rank)
                iteration.gradients = list(found)
            world.learner.update_by_mean(iteration.members, iteration.gradients)
            world.count(f"group_size.{len(iteration.members)}")
        del self._iterations[step]
        for own in [self._own[rank] for rank in iteration.members]:
            if own.number == step:
                own.is_over, own.num_training = True, len(iteration.training)
        world.time.give(iteration.over)

    def _sum_bucket(
        self, step: int, iteration: _Iteration, number: int, bucket: ModelBucket
    ) -> Process:
        world, everyone, size = self._world, iteration.members, bucket.sent(step)
        is_carried = world.carries_values and not self._low_rank
        if is_carried and not iteration.gradients:  # with one bucket, all are computed
            iteration.gradients = [world.learner.gradient(rank) for rank in everyone]
        if self._algorithm == "hierarchical":
            yield from world.hierarchical_mean(everyone, self._near, size)
        else:
            part = self._parts[number]
            summand = Summand(
                size * world.wire_share,
                [each[part.start : part.stop] for each in iteration.gradients],
                tensor=number,
                layer_class=bucket.layer_class,
                policy=world.holes,
                exact=bool(self._low_rank),
                form=world.wire,
            )
            yield from world.mean(everyone, summand, algorithm=self._algorithm)
        world.time.give(iteration.summed[number])


def _parts(lengths: Sequence[int]) -> list[range]:
    """Return where buckets of so many elements lie among all: the first one at the end."""
    end, parts = sum(lengths), []
    for length in lengths:
        parts.append(range(end - length, end))
        end -= length
    return parts
