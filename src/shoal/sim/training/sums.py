"""Sums of gradients, in buckets, beside the backward pass (BSP), in virtual time.

As `train.sums`: a bucket's sum begins when every worker has its gradients and the bucket before is
through; the next step begins when the last one is, or goes forward layer by layer as sums are known
(`train.layerwise_updates`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from shoal.collectives import ALGORITHMS
from shoal.errors import UsageError
from shoal.sim.training.executor import AbstractExecutor
from shoal.sim.training.hierarchy import check_hosts
from shoal.sim.training.model import ELEMENT_BYTES, FORWARD
from shoal.sim.training.summing import Summand
from shoal.sim.virtual_time import Signal
from shoal.strategies import Act, Acts, Adopt, SumGradients, Summed, Update

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process
    from shoal.strategies import AllReduce


class _Iteration:
    """One step's buckets: how many workers have each, and whether its sum is known."""

    def __init__(self, buckets: int) -> None:
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
        self._goes_forward = definition.overlap == "next-forward"

    @property
    def contributes(self) -> bool:
        """Not if it is hierarchical: its stages are plain messages, which arrive whole."""
        return self._algorithm != "hierarchical"

    @property
    def can_round(self) -> bool:
        """Gradients may be, where the transport sums them."""
        return self.contributes

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
        self._buckets = world.model.buckets()
        self._classes = world.model.bucket_classes()
        self._parts = _parts([int(size) // ELEMENT_BYTES for _, size in self._buckets])
        self._iterations: dict[int, _Iteration] = {}
        self._awaiting: dict[int, tuple[_Iteration, int]] = {}
        """Says which step's sums hold a rank, and since when."""
        self._owed: list[_Iteration | None] = [None] * world.size
        """The sums that each rank's next forward pass waits for."""

    def worker(self, rank: int) -> Process:
        """Make the steps; what goes forward has made one once its last sum is known."""
        for step in range(self.steps_of(rank)):
            yield from self.step(rank, step, self.courses[rank].step())
            if not self._goes_forward:
                self._world.stepped(rank)
        before = self._owed[rank]
        if before is not None:
            yield from self._end_step(rank, before)
        self._world.time.begin(self._farewell(rank))

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Carry out `acts`; the first of them, a sum, begins with computing."""
        yield from self.carry_out(rank, acts)

    def do(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out one act."""
        match act:
            case SumGradients(trains=True):
                yield from self._compute(rank, act.number)
            case SumGradients():
                return (yield from self._shadow(rank, act.number))
            case Update() | Adopt():
                pass  # the sum has updated all workers, and all have made as many steps
            case _:
                raise TypeError(act)
        return None

    def _compute(self, rank: int, number: int) -> Process:
        """Forward, backward bucket by bucket, and wait for the sums, then or layer by layer."""
        world, before = self._world, self._owed[rank]
        iteration = self._iteration(number)
        iteration.training.append(rank)
        if before is not None:
            yield from self._forward(rank, number, before)
        world.learner.compute_gradient(rank)
        if before is None:
            yield world.computes(rank, number, FORWARD)
        for bucket, (share, _) in enumerate(self._buckets):
            yield world.computes(rank, number, share)
            self._arrive(iteration, bucket)
        if self._goes_forward:
            self._owed[rank] = iteration
        else:
            yield from self._await(rank, iteration, iteration.over)

    def _shadow(self, rank: int, number: int) -> Generator[int | Signal, Any, Summed]:
        """Bring nothing to a sum of those who train on; return how many they are."""
        iteration = self._iteration(number)
        for bucket in range(len(self._buckets)):
            self._arrive(iteration, bucket)
        yield iteration.over
        return Summed(len(iteration.training))

    def _arrive(self, iteration: _Iteration, bucket: int) -> None:
        iteration.arrived[bucket] += 1
        if iteration.arrived[bucket] == self._world.size:
            iteration.all_computed = self._world.time.now
            self._world.time.give(iteration.complete[bucket])

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
            share, _ = self._buckets[number]
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
            self._iterations[step] = _Iteration(len(self._buckets))
            self._world.time.begin(self._sum(step, self._iterations[step]))
        return self._iterations[step]

    def _sum(self, step: int, iteration: _Iteration) -> Process:
        """Sum the buckets: one after another, or each when it is there if the network can."""
        world = self._world
        for number, (_, size) in enumerate(self._buckets):
            yield iteration.complete[number]
            if world.sums_overlap:
                world.time.begin(self._sum_bucket(iteration, number, size))
            else:
                yield from self._sum_bucket(iteration, number, size)
        yield from iteration.summed
        if iteration.training:
            world.learner.update_by_mean(range(world.size), iteration.gradients)
        del self._iterations[step]
        world.time.give(iteration.over)

    def _sum_bucket(self, iteration: _Iteration, number: int, size: float) -> Process:
        world, everyone = self._world, range(self._world.size)
        if world.carries_values and not iteration.gradients:  # with one bucket, all are computed
            iteration.gradients = [world.learner.gradient(rank) for rank in everyone]
        if self._algorithm == "hierarchical":
            yield from world.hierarchical_mean(self._near, size)
        else:
            part = self._parts[number]
            summand = Summand(
                size * world.wire_share,
                [each[part.start : part.stop] for each in iteration.gradients],
                tensor=number,
                layer_class=self._classes[number],
                policy=world.holes,
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
