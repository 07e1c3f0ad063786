"""The contract of a simulated executor: it carries out the courses of all workers in virtual time.

The courses are those that `train` carries out in real time (`strategies`). A family of strategies
has one executor here, too; it decides nothing about who meets whom.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from shoal.scenario import racks_of
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.strategies import CHANGED, OWN_ACTS, Group, Setting

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.membership import Decision
    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process, Signal
    from shoal.strategies import AbstractCourse, AbstractDefinition, Act, Acts

Doing: TypeAlias = "Generator[int | Signal, Any, object] | tuple[()]"
"""The part of an act that takes time, for `yield from`, which gives the act's answer."""

TRAINING: Final = "run"
"""The name of the one training that there is."""

DONE: Final = ()
"""The rest of an act that takes no time and has no answer."""


class AbstractExecutor(AbstractSimulatedStrategy):
    """Carries out the acts of one course for each worker."""

    courses: dict[int, AbstractCourse]
    """The course of each rank."""

    own_acts: ClassVar[tuple[type[Act], ...]] = OWN_ACTS
    """Acts that happen whatever becomes of the view, or that are made again in the next one."""

    def __init__(self, definition: AbstractDefinition) -> None:
        self._definition = definition

    @property
    def contributes(self) -> bool:
        """Whether the strategy sends contributions, of which a bounded share may get lost."""
        return self._definition.takes_loss_bound

    @property
    def pull_bound(self) -> float:
        """The share of a pull that may get lost, as the strategy's options say."""
        return self._definition.bound_of_pulls

    def check_goes_on(self) -> None:
        """Raise `UsageError` if the strategy needs all workers to the end."""
        self._definition.check_goes_on()

    def prepare(self, world: World) -> None:
        """Make the courses, and what workers share."""
        self._world = world
        self._definition.check_size(len(world.view))
        course_of = self._definition.courses(self._setting())
        self.courses = {rank: course_of(rank) for rank in world.view.members}
        self._do = self.do if world.attendance is None else self._do_in_view

    def _setting(self) -> Setting:
        world = self._world
        topology = racks_of(world.time.network.topology, world.view.hosts)
        return Setting(world.view, world.seed, topology)

    def steps_of(self, rank: int) -> int:
        """Return how many steps there are for a worker to make, those of its model included."""
        return self._world.steps

    def worker(self, rank: int) -> Process:
        """Make the steps, and finish; the others' time does not wait for the farewell."""
        course, world = self.courses[rank], self._world
        for step in range(world.times[rank].position, self.steps_of(rank)):
            yield from self.step(rank, step, course.step())
            world.stepped(rank)
        yield from self.settle(rank)
        self.bid_farewell(rank)

    def bid_farewell(self, rank: int) -> None:
        """Begin the end of a worker that has made its steps."""
        attendance = self._world.attendance
        if attendance is not None:
            attendance.note_ending(rank)
        self._world.begin(rank, self._farewell(rank))

    def _farewell(self, rank: int) -> Process:
        attendance = self._world.attendance
        yield from self.carry_out(rank, self.courses[rank].finish())
        if attendance is not None:
            attendance.note_ended(rank)

    def install(self, decision: Decision) -> None:
        """Let the courses go on in the world's view, and begin with those of newcomers.

        Before it `drop` has ended what the workers did together in the view before.
        """
        view, setting = self._world.view, self._setting()
        course_of = self._definition.courses(setting)
        for rank in view.members:
            if rank in decision.newcomers:
                self.courses[rank] = course_of(rank)
            else:
                self.courses[rank].on_view(view)

    def handed_on(self, rank: int) -> dict[str, Any]:
        """Return what a newcomer takes over beside the model of `rank`, between two steps."""
        return self.courses[rank].handed_on()

    def take_over(self, rank: int, state: dict[str, Any]) -> None:
        """Let a newcomer go on from what another worker has `handed_on`."""
        self.courses[rank].take_over(state)

    def notes(self, rank: int) -> dict[str, bytes]:
        """Return what a worker reports, beside how far it is, when the view is about to change."""
        return {}

    @abstractmethod
    def drop(self) -> None:
        """Let nothing come of what workers do together, and all who wait for it know."""

    @abstractmethod
    def step(self, rank: int, step: int, acts: Acts) -> Process:
        """Compute this step, and carry out `acts`."""

    def settle(self, rank: int) -> Process:
        """Wait for what the worker has begun; with that it has made its steps."""
        yield from ()

    def carry_out(self, rank: int, acts: Acts) -> Process:
        """Do what `acts` say, one after another, and send each its answer."""
        act = following(acts)
        while act is not None:
            answer = yield from self._do(rank, act)
            act = following(acts, answer)

    def _do_in_view(self, rank: int, act: Act) -> Generator[int | Signal, Any, object]:
        """Carry out an act where workers come and go, as `train.executor` does.

        The answer is `CHANGED` if the view in which it was drawn ends before it. A group is of the
        view in which the generator formed it.
        """
        if isinstance(act, self.own_acts):
            return (yield from self.do(rank, act))
        attendance, epoch = self._world.attendance, self.courses[rank].view.epoch
        assert attendance is not None
        yield from attendance.settled()
        if self._world.view.epoch != epoch:
            return CHANGED
        answer = yield from self.do(rank, act)
        if answer is CHANGED:
            yield from attendance.settled()
        if isinstance(answer, Group):
            yield from attendance.settled()
            if answer.epoch != self._world.view.epoch:
                return CHANGED
        return answer

    @abstractmethod
    def do(self, rank: int, act: Act) -> Doing:
        """Begin an act of this family; return the rest of it, a process that returns the answer."""


def following(acts: Acts, answer: object = None) -> Act | None:
    """Return the act that follows `answer`, None if there is none."""
    if answer is None:
        return next(acts, None)
    try:
        return acts.send(answer)
    except StopIteration:
        return None
