"""A course: the acts of one worker under a strategy, as a pure state machine.

A course yields acts (`strategies.acts`) and is sent the answers. The runtime (`train`) and the
simulator (`sim`) carry out the same acts, so a strategy is written once. Courses know no clock,
socket, thread, environment, array or global randomness; random choices are drawn from a seed.

State is plain attributes, changed at the end of a step. So it can be saved in a checkpoint and
reported between acts, and an executor may draw acts ahead, up to the first whose answer is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from shoal.groups import Topology
from shoal.membership import View

if TYPE_CHECKING:
    from shoal.strategies.acts import Acts


class Setting(msgspec.Struct, frozen=True):
    """The setting that all workers of a job know alike when a strategy begins."""

    view: View
    seed: int = 0
    """The seed of random schedules, groups and peers."""

    topology: Topology | None = None
    """The network; None: hosts as the view says, all in one rack."""


class AbstractCourse(ABC):
    """One worker's course. It begins once, makes steps, and finishes once."""

    counts: ClassVar[tuple[str, ...]] = ()
    """The attributes that a newcomer takes over from the member whose model it goes on from."""

    def __init__(self, rank: int, view: View) -> None:
        self.rank = rank
        self.view = view

    def begin(self) -> Acts:
        """Yield the acts that come before the first step."""
        yield from ()

    @abstractmethod
    def step(self, *, skipped: bool = False) -> Acts:
        """Yield the acts of one step. `skipped`: mixed precision found gradients not finite."""

    @abstractmethod
    def finish(self) -> Acts:
        """Yield the acts that are left when this worker makes no more steps of its own.

        When they end, no other worker can need this one.
        """

    def report(self) -> int:
        """Return the number of the next round of a schedule, or sum; 0 where none are counted.

        Members have to know it of each other to agree on a new view. The call changes nothing; any
        thread may make it between acts.
        """
        return 0

    def on_view(self, view: View) -> None:
        """Go on in `view`. Called before `Changed` answers the act that was under way."""
        self.view = view

    def handed_on(self) -> dict[str, int]:
        """Return the state that a newcomer takes over, between two steps."""
        return {name: getattr(self, name) for name in self.counts}

    def take_over(self, counts: dict[str, int]) -> None:
        """Go on, as a newcomer, from the state that another course has `handed_on`."""
        for name in self.counts:
            setattr(self, name, counts[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs to continue."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        if state:
            raise ValueError("The checkpoint holds state of another strategy.")
