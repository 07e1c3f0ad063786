"""Parameters averaged in groups that a generator forms at run time: the base of both its modes.

Luo et al., ASPLOS 2020 (Ripples/Prague); docs/papers.md, 3.2 and 3.4. One step is: local update,
ask the generator for a group, average parameters within it. The generator answers when all members
of the group have arrived, so the exchange itself never waits for a worker that still computes:
asking when backward begins costs 5 to 7 % of all steps beside a worker that is five times slower
(docs/group-generator.md). After a restart groups are formed afresh.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, final

from msgspec.structs import force_setattr

from shoal.errors import UsageError
from shoal.strategies.acts import CHANGED, AskGroup, Begin, JoinGroups, LeaveGroups, Mean
from shoal.strategies.periodic import AbstractPeriodicCourse, PeriodicAveraging

if TYPE_CHECKING:
    from shoal.groups import GeneratorConfig
    from shoal.membership import View
    from shoal.strategies.acts import Acts
    from shoal.strategies.course import Setting
    from shoal.strategies.definition import CourseOf


class GeneratedAveraging(PeriodicAveraging, frozen=True, kw_only=True):
    """Asks the group generator every `interval` local steps, and averages within the answer."""

    is_lock_step: ClassVar[bool] = False

    @property
    @abstractmethod
    def config(self) -> GeneratorConfig:
        """The generator's switches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap == "layers":
            raise UsageError(
                "overlap='layers' is for averages by a schedule: a generator says whom a worker"
                " averages with when that asks, after its step."
            )
        config = self.config  # refuses switches that do not exist
        for name in self.__struct_fields__:
            if name in config.__slots__:
                force_setattr(self, name, getattr(config, name))

    def check_size(self, workers: int) -> None:
        """Raise `UsageError` if a group cannot have as many members as asked for."""
        self.config.check_world_size(workers)

    @final
    def courses(self, setting: Setting) -> CourseOf:
        """Return the function that makes the courses."""
        return lambda rank: Generated(self, rank, setting.view)


@final
class Generated(AbstractPeriodicCourse):
    """One worker's course through the groups that it is given."""

    def __init__(self, options: GeneratedAveraging, rank: int, view: View) -> None:
        super().__init__(options, rank, view)
        self._config = options.config
        self.has_left = False

    def begin(self) -> Acts:
        """Join the generator's groups."""
        while (yield JoinGroups(self._config)) is CHANGED:
            pass

    def _average(self, *, in_background: bool) -> Acts:
        meeting = self._meet(self.position + 1)
        if in_background:
            yield Begin(meeting)
        else:
            yield from meeting

    def _meet(self, position: int) -> Acts:
        """Yield the means of all groups that this worker owes before its next request."""
        more = True
        while more:
            group = yield AskGroup(position)
            if group is CHANGED:
                return
            yield Mean(group.members, (self.view.epoch, group.group_id), group.reason)
            more = group.more

    def finish(self) -> Acts:
        """Leave the groups: none that has not started will wait for this worker."""
        yield from self._take_in()
        self.has_left = True
        yield LeaveGroups()
