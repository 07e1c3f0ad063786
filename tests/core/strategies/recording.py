"""A strategy whose courses write down what they want, and what they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from shoal.strategies import AbstractCourse, AbstractDefinition
from shoal.strategies.acts import Begin, Pulled

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal.strategies import Setting
    from shoal.strategies.acts import Acts
    from shoal.strategies.definition import CourseOf

Log = list[tuple[Any, Any]]
"""Acts with their answers; a `Begin` with the log of its own acts."""


class RecordedCourse(AbstractCourse):
    """Yields what `course` yields; skips the steps with these numbers."""

    def __init__(self, course: AbstractCourse, skips: Collection[int]) -> None:
        super().__init__(course.rank, course.view)
        self.course, self.log = course, Log()
        self._skips, self._made = skips, 0

    def begin(self) -> Acts:
        yield from self._recorded(self.course.begin(), self.log)

    def step(self, *, skipped: bool = False) -> Acts:
        skipped = skipped or self._made in self._skips
        self._made += 1
        yield from self._recorded(self.course.step(skipped=skipped), self.log)

    def finish(self) -> Acts:
        yield from self._recorded(self.course.finish(), self.log)

    def _recorded(self, acts: Acts, log: Log) -> Acts:
        answer = None
        while True:
            try:
                act = acts.send(answer)
            except StopIteration:
                return
            if isinstance(act, Begin):
                beside = Log()
                log.append(("beside", beside))
                answer = yield Begin(self._recorded(act.acts, beside))
                continue
            answer = yield act
            # how long somebody waited is the executor's clock
            said = msgspec.structs.replace(answer, held_ns=0) if type(answer) is Pulled else answer
            log.append((act, said))


class Recorded:
    """Stands for `definition`, and keeps what its courses wrote down."""

    def __init__(
        self, definition: AbstractDefinition, skips: dict[int, Collection[int]] | None = None
    ) -> None:
        self._definition, self._skips = definition, skips or {}
        self.made: dict[int, RecordedCourse] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._definition, name)

    def courses(self, setting: Setting) -> CourseOf:
        course_of = self._definition.courses(setting)

        def made(rank: int) -> RecordedCourse:
            self.made[rank] = RecordedCourse(course_of(rank), self._skips.get(rank, ()))
            return self.made[rank]

        return made

    @property
    def logs(self) -> list[Log]:
        """Every rank's acts and answers."""
        return [self.made[rank].log for rank in sorted(self.made)]
