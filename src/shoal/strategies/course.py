"""A course: what one worker does next under a strategy, as a pure machine.

A course yields acts (`strategies.acts`) and is sent the answers. The runtime (`train`) and the
simulator (`sim`) carry the same acts out, so a strategy is said once. No clock, socket, thread,
environment, array or global randomness is known here; what is random is drawn from a seed.

State is plain attributes, changed at the end of a step. So it is the checkpoint, it can be reported
between acts, and an executor may draw acts ahead, up to the first whose answer is used.
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
    """What all workers of a job know alike when a strategy begins."""

    view: View
    seed: int = 0
    """What random schedules, groups and peers are drawn with."""

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
        """Yield what comes before the first step."""
        yield from ()

    @abstractmethod
    def step(self, *, skipped: bool = False) -> Acts:
        """Yield one step. `skipped` says that mixed precision found gradients not finite."""

    @abstractmethod
    def finish(self) -> Acts:
        """Yield what is left to do when this worker makes no more steps of its own.

        When it ends, no other worker can need this one.
        """

    def report(self) -> int:
        """Return which round of a schedule, or which sum, comes next; 0 where none are counted.

        It is what the members have to know of each other to agree on a new view. It changes
        nothing; any thread may ask between acts.
        """
        return 0

    def on_view(self, view: View) -> None:
        """Go on in `view`. Comes before `Changed` answers what was under way."""
        self.view = view

    def handed_on(self) -> dict[str, int]:
        """Return what a newcomer takes over, between two steps."""
        return {name: getattr(self, name) for name in self.counts}

    def take_over(self, counts: dict[str, int]) -> None:
        """Go on, as a newcomer, from what another course has `handed_on`, in the present view."""
        for name in self.counts:
            setattr(self, name, counts[name])

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        if state:
            raise ValueError("The checkpoint holds state of another strategy.")
