"""Parameters averaged by a schedule: the base of DS-Sync, Ripples' static schedule and local SGD.

One step is: local update with the local gradient, then the group of this round replaces its
members' parameters by their mean (docs/papers.md, 2.3 and 3.3). There is no coordinator and no
barrier: a worker waits only for its own group.

A worker whose data ends early keeps averaging, without updates of its own, until no worker trains
any more: the others' schedule stays whole, and the mean of all models is not biased.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from shoal.membership import View
from shoal.strategies.acts import CHANGED, Anchor, Await, Begin, Mean, OuterStep, Tell
from shoal.strategies.course import AbstractCourse, Setting
from shoal.strategies.periodic import AbstractPeriodicCourse, PeriodicAveraging

if TYPE_CHECKING:
    from shoal.groups import AbstractGroupSchedule, Group
    from shoal.strategies.acts import Acts
    from shoal.strategies.definition import CourseOf

ROUNDS_PER_BLOCK: Final = 8
"""The number of rounds for which one told fact says that some worker still trains; 1 where outer
steps follow."""

FINISHED: Final = "finished"
"""The fact that a worker makes no more steps of its own."""


class ScheduledAveraging(PeriodicAveraging, frozen=True, kw_only=True):
    """Averages parameters within the groups of a schedule, every `interval` local steps."""

    is_lock_step: ClassVar[bool] = True
    drops_rounds: ClassVar[bool] = True

    @abstractmethod
    def schedule(self, setting: Setting) -> AbstractGroupSchedule:
        """Return the schedule for the members of the setting's view, by their places in it."""

    def check_size(self, workers: int) -> None:
        """Raise `UsageError` if the strategy has no schedule for so many workers."""
        self.schedule(Setting(View.first(workers)))

    @final
    def courses(self, setting: Setting) -> CourseOf:
        """Return the function that makes the courses, which share the schedule of each view."""
        shared = _SharedSchedule(self, setting)
        return lambda rank: Scheduled(self, shared, rank, setting.view)


class _SharedSchedule:
    """The schedule of the present view, made once for all courses of a process."""

    def __init__(self, options: ScheduledAveraging, setting: Setting) -> None:
        self._options, self._setting = options, setting
        self._schedule = options.schedule(setting)

    def of(self, view: View) -> AbstractGroupSchedule:
        if view is not self._setting.view:
            if view.members != self._setting.view.members:
                self._schedule = self._options.schedule(
                    Setting(view, self._setting.seed, self._setting.topology)
                )
            self._setting = Setting(view, self._setting.seed, self._setting.topology)
        return self._schedule


@final
class Scheduled(AbstractPeriodicCourse):
    """One worker's course through a schedule.

    Views agree on rounds: after a change all members go on with the round of `View.from_step`.
    """

    counts = (*AbstractPeriodicCourse.counts, "_num_loads")

    def __init__(
        self, options: ScheduledAveraging, shared: _SharedSchedule, rank: int, view: View
    ) -> None:
        super().__init__(options, rank, view)
        self._shared, self._outer = shared, options.outer
        # once nobody trains, an outer step would coast on by its momentum
        self._rounds_per_block = ROUNDS_PER_BLOCK if self._outer is None else 1
        self._num_loads = 0
        self.on_view(view)

    def begin(self) -> Acts:
        """Yield the anchor of the first outer step, if there are outer steps."""
        if self._outer is not None:
            yield Anchor()

    def on_view(self, view: View) -> None:
        """Go on with the view's schedule, at its first round."""
        super().on_view(view)
        self._schedule = self._shared.of(view)
        self._place = view.place_of(self.rank)
        self._next_round = view.from_step
        self._told = ""
        self._must_ask = True
        # of the members some may have made an outer step that others have not, or come anew
        self._may_differ = self._outer is not None and view.epoch > 0

    def report(self) -> int:
        """Return the number of the next round; the largest of all becomes `View.from_step`."""
        return self._next_round

    def _average(self, *, in_background: bool) -> Acts:
        # a new view may begin while the fact is told, and with it another block
        while (block := self._block()) != self._told:
            self._told = block
            yield Tell(block)
        yield from self._round(in_background=in_background)

    def _round(self, *, in_background: bool) -> Acts:
        number, self._next_round = self._next_round, self._next_round + 1
        group = self._schedule.group_of(self._place, number)
        meeting = self._meet(group, number, self.view)
        if in_background and len(group) > 1:
            yield Begin(meeting)
        else:
            yield from meeting

    def _meet(self, group: Group, number: int, view: View) -> Acts:
        """Yield the mean of a round's group, unless its view is over by the time it begins."""
        if view.epoch == self.view.epoch:
            members = group.members
            if view.members[-1] >= len(view):  # ranks are not places, since some are gone
                members = tuple(view.members[place] for place in members)
            reason = f"round {number} of {self._schedule.name}"
            name = view.epoch + self._num_loads, number
            mean = Mean(members, name, reason, group.weights, outer=self._may_differ)
            if (yield mean) is not CHANGED and self._outer is not None:
                self._may_differ &= view.epoch != self.view.epoch
                yield OuterStep(name, *self._outer)

    def _block(self) -> str:
        """Return the fact that somebody trains in the block of the next round."""
        return f"block/{self._next_round // self._rounds_per_block}"

    def finish(self) -> Acts:
        """Yield averages without updates until every worker has finished.

        Rounds come in blocks. All workers make a block's rounds if any worker trains in it; whether
        any trains in the next one is known once its fact is told or all have finished. A new view
        may begin within a block, so the same has to be known of that block first.
        """
        yield from self._take_in()
        if len(self.view) == 1:
            return
        yield Tell(FINISHED)
        self._must_ask = False
        while True:
            if self._must_ask or self._next_round % self._rounds_per_block == 0:
                self._must_ask = False
                answer = yield Await(self._block(), FINISHED)
                if answer is CHANGED:
                    continue
                if not answer:
                    return
            # as the other workers do it, which may round copies averaged beside computing
            yield from self._round(in_background=self._options.is_delayed)
            yield from self._take_in()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the saved position, with means that are numbered unlike earlier ones."""
        super().load_state_dict(state)
        self._next_round = self.position // self._options.interval
        self._num_loads += 1
        self._told = ""


def mean_ahead(course: AbstractCourse) -> Mean | None:
    """Return the mean that the coming step of a course makes, if it makes one.

    The course itself does not change.
    """
    acts = copy.copy(course).step()
    return next((act for act in acts if isinstance(act, Mean)), None)
