"""Means of parameters among groups of workers, in virtual time.

As `train.means`: computing waits for an average at once, or layer by layer
(`sim.training.layerwise_means`), or goes on while a copy is averaged (`train.delayed_average`).
Groups are those of a schedule, or of the generator itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, final

from shoal.groups import GroupGenerator
from shoal.sim.training.executor import DONE, AbstractExecutor, following
from shoal.sim.training.facts import Facts
from shoal.sim.training.layerwise_means import REST, LayerwiseMean
from shoal.sim.training.model import FORWARD
from shoal.sim.training.world import Meeting, Times
from shoal.sim.virtual_time import Signal
from shoal.strategies import (
    CHANGED,
    Act,
    Acts,
    Anchor,
    AskGroup,
    Await,
    Begin,
    Group,
    JoinGroups,
    LeaveGroups,
    Mean,
    OuterStep,
    TakeIn,
    Tell,
    Update,
    mean_ahead,
)

if TYPE_CHECKING:
    from shoal.groups import Assignment, GeneratorConfig
    from shoal.membership import Decision
    from shoal.sim.training.executor import Doing
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process
    from shoal.strategies import PeriodicAveraging


@final
class MeansExecutor(AbstractExecutor):
    """Averages parameters, in workers' time or beside it."""

    _definition: PeriodicAveraging

    @property
    def averages_state(self) -> bool:
        """Whether the optimizers' state is averaged too, as the strategy's options say."""
        return self._definition.average_state

    @property
    def can_round(self) -> bool:
        """Whether elements may be sent rounded: those of copies, averaged beside computing, may."""
        return self._definition.can_round

    @property
    def copies(self) -> int:
        """What is averaged while computing goes on, what that was before, and outer optimizers."""
        outer = 0 if self._definition.outer is None else 2
        return outer + (2 if self._definition.is_delayed else 0)

    def prepare(self, world: World) -> None:
        """Let all workers begin."""
        super().prepare(world)
        is_delayed = self._definition.is_delayed
        self._times: Sequence[Times] = [Times() for _ in world.times] if is_delayed else world.times
        """Takes the time of each rank's averages: not the worker's own, if it computes
        meanwhile."""
        self._delayed = [DelayedAverage(world, rank) for rank in range(world.size)]
        self._goes_forward = self._definition.overlap in ("next-forward", "layers")
        self._begins_early = self._definition.overlap == "layers"
        self._owed: list[LayerwiseMean | None] = [None] * world.size
        """The mean that each rank's next forward pass waits for."""
        self._begun: list[Mean | None] = [None] * world.size
        """The mean that each rank has begun in the backward pass of its step."""
        self._meetings: dict[tuple[tuple[int, int], int], Meeting] = {}
        self._layerwise: dict[tuple[tuple[int, int], int], LayerwiseMean] = {}
        self._facts = Facts(world)
        self._generator: GroupGenerator | None = None
        self._answers = [Signal() for _ in range(world.size)]
        for rank in self.courses:
            self._begin_course(rank)

    def _begin_course(self, rank: int) -> None:
        for act in self.courses[rank].begin():
            if isinstance(act, Anchor):
                self._world.learner.anchor(rank)
            else:
                assert isinstance(act, JoinGroups)
                self._join(rank, act.config)

    def _join(self, rank: int, config: GeneratorConfig) -> None:
        if self._generator is None:
            self._generator = GroupGenerator(config, Random(self._world.seed))
        self._generator.join(rank, self._world.host_of[rank])

    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Compute, and carry out `acts`.

        Nobody sees a worker that has computed and not asked for its group yet. So it waits for both
        in one go: an event less for every step. Where workers come and go what it asks depends on
        who takes part when it has computed.
        """
        world, attendance = self._world, self._world.attendance
        ahead = self._mean_ahead(rank)
        act = following(acts)
        while act is not None:
            lead = 0
            if ahead is not None and isinstance(act, Update):
                yield from self._compute_beside(rank, step, ahead)
                act = following(acts)
                assert act is not None  # the mean, or what comes before it
            elif isinstance(act, Update):
                if attendance is None:
                    act = following(acts)
                if attendance is None and isinstance(act, AskGroup):
                    lead = world.control_delay
                share = 1.0
                if (before := self._owed[rank]) is not None:
                    self._owed[rank] = None
                    yield from before.forward(rank, step)
                    share = REST
                yield world.computes(rank, step, share) + lead
                if attendance is not None:
                    attendance.at_border(rank)
                scale_for = len(world.view) if self._definition.scale_adam else 1
                world.learner.update(rank, scale_for)
                if attendance is not None:
                    act = following(acts)
                if act is None:
                    return
            if lead:
                answer: object = yield from self._ask(rank, self._times[rank], lead)
            else:
                answer = yield from self._do(rank, act)
            act = following(acts, answer)

    def _mean_ahead(self, rank: int) -> Mean | None:
        """Return the mean of the coming step, if it may begin in the backward pass."""
        mean = mean_ahead(self.courses[rank]) if self._begins_early else None
        return mean if mean is not None and self._is_made(mean) else None

    def _compute_beside(self, rank: int, step: int, mean: Mean) -> Process:
        """Compute a step, and begin each piece of a mean when backward has its gradients.

        The learner computes forward and backward at once, so it makes the update between them; a
        piece begins when all have come to it, and by then all have made theirs.
        """
        world, before = self._world, self._owed[rank]
        if before is None:
            yield world.computes(rank, step, FORWARD)
        else:
            self._owed[rank] = None
            yield from before.forward(rank, step)
        world.learner.update(rank)
        layerwise = self._layerwise_of(mean)
        for number in reversed(range(len(world.model.pieces))):
            yield world.computes(rank, step, world.model.pieces[number].forward * REST / FORWARD)
            layerwise.arrive_at(number)
        self._owed[rank], self._begun[rank] = layerwise, mean

    def settle(self, rank: int) -> Process:
        """Wait for the average under way and take it in."""
        yield from self._delayed[rank].take_in(wait=True)
        if (before := self._owed[rank]) is not None:
            self._owed[rank] = None
            yield from before.end(rank)

    def do(self, rank: int, act: Act) -> Doing:
        """Carry out one act in the worker's time."""
        if self._world.attendance is not None:
            self._world.attendance.at_border(rank)
        match act:
            case Mean():
                return self._begin(rank, act) if self._goes_forward else self._attend(rank, act)
            case TakeIn():
                return self._delayed[rank].take_in(wait=act.wait)
            case Begin():
                self._delayed[rank].begin(self.carry_out(rank, act.acts))
            case OuterStep():
                self._step_outer(rank, act)
            case AskGroup():
                return self._ask(rank, self._times[rank])
            case Tell():
                self._facts.tell(rank, act.fact)
            case Await():
                return self._facts.wait(act.somebody, act.everyone)
            case LeaveGroups():
                assert self._generator is not None
                self._hear(self._generator.leave(rank, self._world.time.now // 1_000))
            case _:
                raise TypeError(act)
        return DONE

    def _step_outer(self, rank: int, act: OuterStep) -> None:
        if self._is_of_run(act.number):
            self._world.learner.outer_step(
                rank, act.learning_rate, act.momentum, copies=self._definition.is_delayed
            )

    def _ask(self, rank: int, times: Times, lead: int = 0) -> Generator[int | Signal, Any, Group]:
        """Ask for a group; the worker began `lead` ago to ask, and waits until all are there."""
        world = self._world
        assert self._generator is not None
        asked, delay = world.time.now - lead, world.control_delay - lead
        if delay:
            yield delay
        answer = self._answers[rank] = Signal()
        self._hear(self._generator.request(rank, world.time.now // 1_000))
        assignment, epoch = yield answer
        times.wait += world.time.now - asked
        more = rank in assignment.more
        return Group(assignment.members, assignment.group_id, more, epoch=epoch)

    def _hear(self, assignments: Iterable[Assignment]) -> None:
        for each in assignments:
            for member in each.members:
                self._world.time.give(self._answers[member], (each, self._world.view.epoch))

    def drop(self) -> None:
        """Drop the means under way, and what workers wait to hear of each other."""
        under_way: list[Meeting | LayerwiseMean] = [*self._meetings.values()]
        under_way += self._layerwise.values()
        for mean in under_way:
            self._world.count("dropped_means")
            mean.drop()
        self._meetings.clear()
        self._layerwise.clear()
        self._facts.drop()

    def install(self, decision: Decision) -> None:
        """Let the generator go on without those who are gone; those who wait for a group stay."""
        super().install(decision)
        for rank in decision.newcomers:
            self._delayed[rank] = DelayedAverage(self._world, rank)
            self._owed[rank] = None
        if self._generator is not None:
            staying = set(self._world.view.members) - set(decision.newcomers)
            leaving = [rank for rank in self.courses if rank in self._generator]
            leaving = [rank for rank in leaving if rank not in staying]
            now_ns = self._world.time.now // 1_000
            self._hear(self._generator.leave_together(leaving, now_ns))

    def take_over(self, rank: int, state: dict[str, Any]) -> None:
        """Let a newcomer go on from what a member has handed on, and take part in groups."""
        super().take_over(rank, state)
        self._begin_course(rank)

    def _attend(self, rank: int, mean: Mean) -> Doing:
        """Meet the group; a worker that is alone in it has nothing to do."""
        key = mean.number, mean.members[0]
        meeting = self._meetings.get(key)
        if meeting is None:
            if not self._is_made(mean):
                return DONE
            exchange = partial(self._exchange, key, mean)
            meeting = self._meetings[key] = Meeting(
                self._world, mean.members, self._times, exchange
            )
        return meeting.attend(rank)

    def _begin(self, rank: int, mean: Mean) -> Generator[int | Signal, Any, object]:
        """Take part in a mean that the next forward pass waits for; the one before is over."""
        if self._begun[rank] is not None:
            assert self._begun[rank] == mean, (self._begun[rank], mean)
            self._begun[rank] = None
            return None
        view, attendance = self._world.view, self._world.attendance
        yield from self.settle(rank)
        if attendance is not None and not attendance.is_in(view):
            return CHANGED
        if self._is_made(mean):
            self._owed[rank] = layerwise = self._layerwise_of(mean)
            layerwise.arrive()
        return None

    def _layerwise_of(self, mean: Mean) -> LayerwiseMean:
        key = mean.number, mean.members[0]
        if key not in self._layerwise:
            exchange = partial(self._exchange_pieces, key, mean)
            self._layerwise[key] = LayerwiseMean(
                self._world, mean.members, exchange, rear_first=self._begins_early
            )
        return self._layerwise[key]

    def _is_made(self, mean: Mean) -> bool:
        """Return whether there is anything to exchange."""
        return len(mean.members) > 1 and self._is_of_run(mean.number)

    def _is_of_run(self, number: tuple[int, int]) -> bool:
        """Return whether somebody trains in this round; all workers make as many steps.

        A run is the beginning of a longer training: what workers average when all of them have made
        its steps takes no part in it. A worker that asks a generator makes a step of its own.
        """
        attendance = self._world.attendance
        if self._generator is not None:
            return True
        if attendance is not None:  # not all have made as many steps
            return attendance.is_anyone_training
        _, round_number = number
        return round_number < self._world.steps // self._definition.interval

    def _exchange_pieces(
        self,
        key: tuple[tuple[int, int], int],
        mean: Mean,
        order: Sequence[int],
        complete: list[Signal],
        here: list[Signal],
    ) -> Process:
        world, shares = self._world, _shares(mean)
        yield from world.average_in_pieces(mean.members, shares, order, complete, here)
        self._end(mean)
        del self._layerwise[key]

    def _exchange(self, key: tuple[tuple[int, int], int], mean: Mean) -> Process:
        world, definition = self._world, self._definition
        yield from world.average(
            mean.members,
            _shares(mean),
            copies=definition.is_delayed,
            state=definition.average_state,
            outer=mean.outer,
        )
        self._end(mean)
        del self._meetings[key]

    def _end(self, mean: Mean) -> None:
        if self._generator is None:
            self._world.count(f"group_size.{len(mean.members)}")

    def finish(self, world: World) -> None:
        """Note what the generator has counted."""
        if self._generator is None:
            return
        counters = self._generator.counters
        for name in ("requests", "buffer_hits", "groups_started", "conflicts", "serializations"):
            world.count(name, getattr(counters, name))
        world.count("filtered", counters.filtered)
        for name, steps in counters.staleness(self._definition.interval).items():
            world.count(name, steps)
        for size, count in sorted(counters.group_sizes.items()):
            world.count(f"group_size.{size}", count)


def _shares(mean: Mean) -> list[float]:
    total = sum(mean.weights)
    return [weight / total for weight in mean.weights]


class DelayedAverage:
    """One average of a worker's copy at a time: `begin`, then `take_in` at the end of steps."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank
        self._over: Signal | None = None
        """The signal that the average is over which has not been taken in."""

    def begin(self, average: Process) -> None:
        """Let `average` work on a copy of the model; the one before has been taken in."""
        self._world.learner.copy(self._rank, self._world.wire)
        self._over = Signal()
        self._world.begin(self._rank, self._carry_out(average, self._over))

    def _carry_out(self, average: Process, over: Signal) -> Process:
        yield from average
        self._world.time.give(over)

    def take_in(self, *, wait: bool) -> Doing:
        """Add to the model what the average has changed, if it is known; else `wait`, or not yet.

        Of the average's time only what computing waits for is the worker's.
        """
        if self._over is None or not (wait or self._over.given):
            return DONE
        return self._add_changes(self._over)

    def _add_changes(self, over: Signal) -> Process:
        world, times = self._world, self._world.times[self._rank]
        times.begin_exchange(world.time.now)
        yield over
        times.end_exchange(world.time.now)
        world.learner.add_changes(self._rank)
        self._over = None
