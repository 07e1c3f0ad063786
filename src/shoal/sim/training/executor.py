"""The contract of a simulated executor: it carries out the courses of all workers in virtual time.

The courses are those that `train` carries out in real time (`strategies`). A family of strategies
has one executor here, too; it decides nothing about who meets whom.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shoal.membership import View
from shoal.sim.training.racks import racks_of
from shoal.sim.training.strategy import AbstractSimulatedStrategy
from shoal.strategies import Setting

if TYPE_CHECKING:
    from collections.abc import Generator

    from shoal.sim.training.world import World
    from shoal.sim.virtual_time import Process, Signal
    from shoal.strategies import AbstractCourse, AbstractDefinition, Act, Acts

Doing: TypeAlias = "Generator[int | Signal, Any, object] | tuple[()]"
"""The part of an act that takes time, for `yield from`, which gives the act's answer."""

DONE: Final = ()
"""The rest of an act that takes no time and has no answer."""


class AbstractExecutor(AbstractSimulatedStrategy):
    """Carries out the acts of one course for each worker."""

    courses: list[AbstractCourse]
    """The course of each rank."""

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

    def prepare(self, world: World) -> None:
        """Make the courses, and what workers share."""
        self._world = world
        self._definition.check_size(world.size)
        view = View(0, tuple(range(world.size)), tuple(world.host_of))
        topology = racks_of(world.time.network.topology, world.host_of)
        course_of = self._definition.courses(Setting(view, world.seed, topology))
        self.courses = [course_of(rank) for rank in view.members]

    def steps_of(self, rank: int) -> int:
        """Return how many steps a worker makes."""
        return self._world.steps

    def worker(self, rank: int) -> Process:
        """Make the steps, and finish; the others' time does not wait for the farewell."""
        course, world = self.courses[rank], self._world
        for step in range(self.steps_of(rank)):
            yield from self.step(rank, step, course.step())
            world.stepped(rank)
        yield from self.settle(rank)
        world.time.begin(self._farewell(rank))

    def _farewell(self, rank: int) -> Process:
        yield from self.carry_out(rank, self.courses[rank].finish())

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
            answer = yield from self.do(rank, act)
            act = following(acts, answer)

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
